use super::*;
use crate::mapping::{Access, Mapping};
use crate::memfd::{self, Huge};
use rustix::io::FdFlags;

#[test]
fn frames_keep_their_boundaries() {
    let (ours, theirs) = pair().unwrap();
    send_frame(&ours, b"one", &[]).unwrap();
    send_frame(&ours, b"second", &[]).unwrap();
    let mut buffer = [0; 16];
    let frame = recv_frame(&theirs, &mut buffer, 0).unwrap();
    assert_eq!((&buffer[..frame.bytes], frame.fds.len()), (&b"one"[..], 0));
    let frame = recv_frame(&theirs, &mut buffer, 0).unwrap();
    assert_eq!(&buffer[..frame.bytes], b"second");
}

#[test]
fn passed_memory_is_shared_and_closed_on_exec() {
    let (ours, theirs) = pair().unwrap();
    let file = memfd::create("test", 4096, Huge::No).unwrap();
    let bell = crate::eventfd::create().unwrap();
    send_frame(&ours, b"memory", &[file.as_fd(), bell.as_fd()]).unwrap();
    let mut buffer = [0; 16];
    let frame = recv_frame(&theirs, &mut buffer, 2).unwrap();
    assert_eq!(frame.fds.len(), 2);
    for fd in &frame.fds {
        assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
    }
    let mine = Mapping::of_sealed(&file, Access::ReadWrite).unwrap().words(0, 1).unwrap();
    let other = Mapping::of_sealed(&frame.fds[0], Access::ReadWrite).unwrap().words(0, 1).unwrap();
    mine[0].store_release(11);
    assert_eq!(other[0].load_acquire(), 11);
    crate::eventfd::ring(&bell).unwrap();
    assert_eq!(crate::eventfd::drain(&frame.fds[1]), Ok(1));
}

/// The write end of a pipe was really closed in the receiver when the read end sees the end.
fn assert_all_closed(reader: std::io::PipeReader) {
    use std::io::Read;
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut byte = [0];
    assert_eq!((&reader).read(&mut byte).unwrap(), 0, "a refused descriptor is still open");
}

#[test]
fn too_many_descriptors_are_refused_and_closed() {
    let (ours, theirs) = pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    send_frame(&ours, b"x", &[writer.as_fd(), writer.as_fd()]).unwrap();
    drop(writer);
    let mut buffer = [0; 16];
    assert_eq!(recv_frame(&theirs, &mut buffer, 1).unwrap_err(), SocketError::Descriptors { limit: 1 });
    assert_all_closed(reader);
}

#[test]
fn truncated_control_data_is_refused_and_closed() {
    for count in [FDS_MAX + 1, FDS_MAX + 100] {
        let (ours, theirs) = pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let fds = vec![writer.as_fd(); count];
        assert_eq!(send_frame(&ours, b"x", &fds), Err(SocketError::Descriptors { limit: FDS_MAX }));
        // Past our own sending side's check, as a hostile peer would.
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(count))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        drop(fds);
        drop(writer);
        let mut buffer = [0; 16];
        let error = recv_frame(&theirs, &mut buffer, usize::MAX).unwrap_err();
        assert_eq!(error, SocketError::Descriptors { limit: FDS_MAX });
        assert_all_closed(reader);
    }
}

#[test]
fn oversized_frame_is_refused_and_its_descriptors_closed() {
    let (ours, theirs) = pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    send_frame(&ours, &[1; 17], &[writer.as_fd()]).unwrap();
    drop(writer);
    let mut buffer = [0; 16];
    assert_eq!(recv_frame(&theirs, &mut buffer, 1).unwrap_err(), SocketError::Oversized { limit: 16 });
    assert_all_closed(reader);
}

#[test]
fn end_is_closed_in_both_directions() {
    let (ours, theirs) = pair().unwrap();
    drop(ours);
    let mut buffer = [0; 16];
    assert_eq!(recv_frame(&theirs, &mut buffer, 0).unwrap_err(), SocketError::Closed);
    assert_eq!(send_frame(&theirs, b"x", &[]), Err(SocketError::Closed));
}

#[test]
fn empty_frames_and_quiet_sockets() {
    let (ours, theirs) = pair().unwrap();
    assert_eq!(send_frame(&ours, b"", &[]), Err(SocketError::Empty));
    rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::NONBLOCK).unwrap();
    assert_eq!(recv_frame(&theirs, &mut [0; 4], 0).unwrap_err(), SocketError::NotReady);
}

#[test]
fn listener_connects_and_names_the_peer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    assert!(matches!(connect(&path), Err(SocketError::System { errno: Errno::NOENT, .. })));
    let listener = listen(&path, 4).unwrap();
    assert!(matches!(listen(&path, 4), Err(SocketError::System { errno: Errno::ADDRINUSE, .. })));
    let client = connect(&path).unwrap();
    let server = accept(&listener).unwrap();
    let expected = PeerCredentials {
        pid: Some(std::process::id()),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    assert_eq!(peer_credentials(&server).unwrap(), expected);
    assert_eq!(peer_credentials(&client).unwrap(), expected);
    send_frame(&client, b"hello", &[]).unwrap();
    assert_eq!(recv_frame(&server, &mut [0; 8], 0).unwrap().bytes, 5);
}

#[test]
fn credentials_of_something_else_are_an_error() {
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(matches!(peer_credentials(&file), Err(SocketError::System { .. })));
}
