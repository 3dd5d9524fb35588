use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::*;

/// `cat` reads from and writes to one buffer of its own: the tracer must see both, at that address, byte for byte.
#[test]
fn addresses_and_bytes_of_another_process_are_seen() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut back = [0; 5000];
    // Only once it is at work: its loader reads as well.
    stdin.write_all(&[1]).unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut back[..1]).unwrap();
    let tracer = Tracer::attach(child.id());
    stdin.write_all(&[7; 5000]).unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
    assert_eq!(back, [7; 5000]);
    let maps = procfs::mappings(child.id());
    let calls = tracer.finish();
    drop(stdin);
    assert!(child.wait().unwrap().success(), "it runs on after it was let go");
    for out in [false, true] {
        let pieces: Vec<_> =
            calls.iter().filter(|call| call.out == out).flat_map(|call| &call.pieces).collect();
        assert_eq!(pieces.iter().map(|(_, bytes)| bytes).sum::<u64>(), 5000, "{calls:?}");
        assert!(pieces.iter().all(|(at, bytes)| maps.iter().any(|mapping| mapping.holds(*at, *bytes))));
    }
}

#[test]
fn pieces_of_vectors_and_messages_are_decoded() {
    let own = [[1_u8; 24], [2; 24]];
    let iovecs =
        own.each_ref().map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: 24 });
    let mut message = MaybeUninit::<libc::msghdr>::zeroed();
    // SAFETY: a zeroed msghdr is a valid value, and only two of its members are set.
    let message = unsafe {
        (*message.as_mut_ptr()).msg_iov = iovecs.as_ptr().cast_mut();
        (*message.as_mut_ptr()).msg_iovlen = 2;
        message.assume_init()
    };
    let address = (&raw const message).addr() as u64;
    let arguments = [0, address, 0, 0, 0, 0];
    let number = u64::try_from(libc::SYS_sendmsg).unwrap();
    let call = call_of(std::process::id(), 1, number, &arguments, 30).unwrap().unwrap();
    let at = |index: usize| iovecs[index].iov_base.addr() as u64;
    assert_eq!(call.pieces, [(at(0), 24), (at(1), 6)], "what was not moved is left out");
    assert!(call.out);
    assert_eq!(call_of(std::process::id(), 1, number, &arguments, -1).unwrap(), None);
}
