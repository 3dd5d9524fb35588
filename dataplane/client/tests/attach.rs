//! Attaching: what a client is told when it works, and what when it does not.

mod fake;

use std::time::{Duration, Instant};

use fake::{Command, Fake, Wrong};
use railhead_client::{AttachOptions, Code, Session, SessionError};

fn attach(fake: &Fake) -> Result<Session, SessionError> {
    Session::attach(fake.path("a"), &AttachOptions::default())
}

#[test]
fn a_session_knows_what_it_was_granted() {
    let fake = Fake::start(&["a", "b"], 3);
    let options = AttachOptions { name: "trainer", ports: 4, entries: 64, ..AttachOptions::default() };
    let session = Session::attach(fake.path("b"), &options).unwrap();
    assert_eq!((session.node(), session.name()), ("b", "trainer"));
    assert_eq!((session.lanes(), session.ports(), session.entries()), (3, 4, 64));
    assert_eq!(session.incarnation(), 0x1234);
    let lanes: Vec<usize> = std::iter::from_fn(|| session.take_port()).map(|port| port.lane()).collect();
    assert_eq!(lanes, [0, 1, 2, 0]);
    assert!(session.take_events().is_some());
    assert!(session.take_events().is_none());
}

#[test]
fn an_unnamed_session_is_called_after_the_process() {
    let fake = Fake::single();
    assert_eq!(attach(&fake).unwrap().name(), format!("pid-{}", std::process::id()));
}

#[test]
fn nobody_listening_is_named_with_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.sock");
    let error = Session::attach(&path, &AttachOptions::default()).unwrap_err();
    assert_eq!(error.code(), Code::DataplaneAbsent);
    let text = error.to_string();
    assert!(text.contains("none.sock") && text.contains("start railhead-dataplane"), "{text}");
}

#[test]
fn a_refusal_is_passed_on_with_cause_and_remedy() {
    let fake = Fake::single();
    fake.tell(Command::Refuse(Code::NotPermitted, "uid 1000"));
    let error = attach(&fake).unwrap_err();
    assert!(
        matches!(&error, SessionError::Refused { code: Code::NotPermitted, detail, .. } if detail == "uid 1000")
    );
    let text = error.to_string();
    assert!(text.contains("uid 1000") && text.contains(Code::NotPermitted.remedy()), "{text}");
    attach(&fake).unwrap();
}

#[test]
fn another_version_is_told_apart() {
    let fake = Fake::single();
    fake.tell(Command::OtherVersion);
    let error = attach(&fake).unwrap_err();
    assert!(matches!(error, SessionError::Version { code: Code::VersionMismatch }), "{error}");
}

#[test]
fn a_wrong_welcome_is_refused() {
    let fake = Fake::single();
    for wrong in [Wrong::Descriptors, Wrong::Lanes, Wrong::Entries, Wrong::Incarnation] {
        fake.tell(Command::WrongWelcome(wrong));
        let error = attach(&fake).unwrap_err();
        assert!(matches!(error, SessionError::Answer { .. }), "{wrong:?}: {error}");
    }
    attach(&fake).unwrap();
}

#[test]
fn arguments_are_checked_before_anything_is_asked() {
    let nowhere = std::path::Path::new("/nonexistent/session.sock");
    let cases = [
        (AttachOptions { name: "with space", ..AttachOptions::default() }, "name", Code::NameInvalid),
        (AttachOptions { ports: 5000, ..AttachOptions::default() }, "ports", Code::PortsFull),
        (AttachOptions { entries: 48, ..AttachOptions::default() }, "entries", Code::QuotaExceeded),
        (AttachOptions { entries: 2048, ..AttachOptions::default() }, "entries", Code::QuotaExceeded),
    ];
    for (options, named, expected) in cases {
        match Session::attach(nowhere, &options).unwrap_err() {
            SessionError::Argument { argument, code, .. } => assert_eq!((argument, code), (named, expected)),
            other => panic!("{named}: {other}"),
        }
    }
}

#[test]
fn no_answer_is_an_error_in_time_and_ends_the_dialogue() {
    let fake = Fake::single();
    let timeout = Duration::from_millis(100);
    let options = AttachOptions { timeout, ..AttachOptions::default() };
    let session = Session::attach(fake.path("a"), &options).unwrap();
    fake.tell(Command::Mute);
    let start = Instant::now();
    assert!(matches!(Session::attach(fake.path("a"), &options), Err(SessionError::TimedOut(_))));
    assert!(matches!(session.open("a", "x"), Err(SessionError::TimedOut(_))));
    assert!(start.elapsed() < Duration::from_secs(5));
    // A late answer must not be taken for that of another request.
    assert!(matches!(session.open("a", "x"), Err(SessionError::TimedOut(_))));
}

#[test]
fn requests_after_the_dataplanes_end_say_so() {
    let mut fake = Fake::single();
    let session = attach(&fake).unwrap();
    assert!(!session.is_lost());
    fake.kill();
    assert!(session.is_lost());
    assert!(matches!(session.open("a", "x"), Err(SessionError::DataplaneLost)));
}
