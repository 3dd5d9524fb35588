//! Attaching to what is no dataplane of this version: each is refused with a reason, and nothing is mapped blindly.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use railhead_abi::frame::{AdminWelcome, Empty, FRAME_BYTES_MAX, Frame, Refused};
use railhead_abi::segment::{CONTROL_MAGIC, ControlHeader, ControlShape};
use railhead_abi::{ABI_VERSION, Code};
use railhead_control::link::FRAME_VERSION;
use railhead_control::segment::Segment;
use railhead_shm::memfd::{self, Huge};
use railhead_shm::{Access, Mapping, socket};
use support::{Home, until};

fn file_with(header: &ControlHeader, words: usize) -> OwnedFd {
    let file = memfd::create("test", 8 * words as u64, Huge::No).unwrap();
    let mapping = Mapping::of_sealed(&file, Access::ReadWrite).unwrap();
    support::store(&mapping.words(0, 64).unwrap(), 0, &header.encode());
    file
}

fn good_header(lanes: u32) -> ControlHeader {
    let words = ControlShape { lanes: lanes as usize }.words();
    ControlHeader {
        magic: CONTROL_MAGIC,
        abi_version: ABI_VERSION,
        lanes,
        segment_words: words as u64,
        incarnation: 7,
        ..ControlHeader::default()
    }
}

#[test]
fn segments_are_checked_before_use() {
    let words = ControlShape { lanes: 2 }.words();
    let good = good_header(2);
    assert_eq!(Segment::map(file_with(&good, words)).unwrap().lanes(), 2);
    for (header, code) in [
        (ControlHeader { magic: 1, ..good }, Code::VersionMismatch),
        (ControlHeader { abi_version: ABI_VERSION + 1, ..good }, Code::VersionMismatch),
        (ControlHeader { lanes: 0, ..good }, Code::MappingFailed),
        (ControlHeader { lanes: 65, ..good }, Code::MappingFailed),
        (ControlHeader { lanes: u32::MAX, ..good }, Code::MappingFailed),
        (ControlHeader { lanes: 1, ..good }, Code::MappingFailed),
        (ControlHeader { segment_words: 0, ..good }, Code::MappingFailed),
        (good_header(3), Code::MappingFailed),
    ] {
        assert_eq!(Segment::map(file_with(&header, words)).unwrap_err().code, code, "{header:?}");
    }
    let ordinary = tempfile::tempfile().unwrap();
    ordinary.set_len(1 << 20).unwrap();
    assert_eq!(
        Segment::map(&ordinary).unwrap_err().code,
        Code::MappingFailed,
        "it could shrink under the mapping"
    );
}

/// Answers the first connection with these bytes and this file, then keeps it open until the test ends.
fn answer(home: &Home, bytes: Vec<u8>, file: Option<OwnedFd>) -> JoinHandle<OwnedFd> {
    let listener = socket::listen(&home.config.dataplane.admin_socket, 4).unwrap();
    std::thread::spawn(move || {
        let connection = socket::accept(&listener).unwrap();
        socket::recv_frame(&connection, &mut [0; FRAME_BYTES_MAX], 0).unwrap();
        if !bytes.is_empty() {
            let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            socket::send_frame(&connection, &bytes, &files).unwrap();
        }
        connection
    })
}

fn bytes_of(frame: &Frame, version: u16) -> Vec<u8> {
    let (bytes, length) = frame.encode(version);
    bytes[..length].to_vec()
}

async fn refused_with(code: Code, bytes: Vec<u8>, file: Option<OwnedFd>) -> String {
    let home = Home::new();
    let server = answer(&home, bytes, file);
    let rest = home.control();
    let mut what = String::new();
    until("refused", || match rest.control.link().state() {
        Err(detached) if detached.code == code => {
            what = detached.what;
            true
        }
        _ => false,
    })
    .await;
    drop(server.join().unwrap());
    what
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_a_welcome_are_refused() {
    let welcome = AdminWelcome { incarnation: 7, ..AdminWelcome::default() };
    let wrong = Frame::Heartbeat(Empty::default());
    refused_with(Code::FrameMalformed, b"HTTP/1.1 400".to_vec(), None).await;
    refused_with(Code::FrameMalformed, bytes_of(&wrong, FRAME_VERSION), None).await;
    refused_with(Code::FrameMalformed, bytes_of(&Frame::AdminWelcome(welcome), FRAME_VERSION), None).await;
    refused_with(Code::VersionMismatch, bytes_of(&Frame::AdminWelcome(welcome), FRAME_VERSION + 1), None)
        .await;
    let refused = Frame::Refused(Refused::because(Code::NotPermitted, "uid 7"));
    assert!(
        refused_with(Code::NotPermitted, bytes_of(&refused, FRAME_VERSION), None).await.contains("uid 7")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn segment_of_another_start_is_refused() {
    let file = file_with(&good_header(2), ControlShape { lanes: 2 }.words());
    let welcome = Frame::AdminWelcome(AdminWelcome { incarnation: 8, ..AdminWelcome::default() });
    refused_with(Code::MappingFailed, bytes_of(&welcome, FRAME_VERSION), Some(file)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_ends_with_a_reason() {
    let home = Home::new();
    let server = answer(&home, Vec::new(), None);
    let rest = home.control();
    until("given up", || {
        rest.control.link().state().is_err_and(|detached| detached.what.contains("does not answer"))
    })
    .await;
    drop(server.join().unwrap());
}
