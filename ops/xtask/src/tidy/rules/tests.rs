use super::*;

/// Findings in a file at `path`, without the path.
fn findings(path: &str, body: &str) -> Vec<String> {
    let text = Text::new(path.to_owned(), body.to_owned());
    check(&text).into_iter().map(|finding| finding[path.len() + 1..].to_owned()).collect()
}

fn clean(path: &str, body: &str) {
    assert_eq!(findings(path, body), Vec::<String>::new(), "{body}");
}

#[track_caller]
fn one(path: &str, body: &str, line: usize, part: &str) {
    let found = findings(path, body);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(&format!("{line}: ")) && found[0].contains(part), "{found:?}");
}

const LIB: &str = "dataplane/tcp/src/frame.rs";

#[test]
fn whitespace_is_clean() {
    clean(LIB, "fn a() {}\n");
    one(LIB, "fn a() {} \n", 1, "space at the end");
    one(LIB, "fn a() {}\n\tlet b;\n", 2, "tab");
    one("README.md", "a\r\n", 1, "space at the end");
    one("README.md", "a\nb", 2, "no newline");
    clean("Makefile", "a:\n\tb\n");
    clean("README.md", "");
}

#[test]
fn unfinished_code_is_found_and_talk_of_it_is_not() {
    for word in UNFINISHED {
        one("README.md", &format!("x\n{word}: later\n"), 2, word);
        clean("README.md", &format!("{word}S {}\n", word.to_lowercase()));
    }
    one(LIB, "fn a() { todo!() }\n", 1, "todo!");
    one(LIB, "fn a() { dbg!(1); }\n", 1, "dbg!");
    one(LIB, "fn a() { unimplemented!(\"x\") }\n", 1, "unimplemented!");
    clean(LIB, "// what a todo! would do\nfn todo() { let s = \"dbg!(x)\"; }\n");
}

#[test]
fn paths_of_one_machine_are_found() {
    for folder in PRIVATE_FOLDERS {
        one("README.md", &format!("see /{folder}/x\n"), 1, folder);
        one("a.sh", &format!("cd \"/{folder}\"\n"), 1, folder);
        clean(
            "README.md",
            &format!("a/{folder}/b {folder}/b $DIR/{folder} ${{DIR}}/{folder}/x /{folder}er /{folder}-x\n"),
        );
        clean("README.md", &format!("https://{folder}/x\n"));
    }
}

#[test]
fn registries_stay_out() {
    one("README.md", &format!("from {}\n", REGISTRY_HOSTS[0]), 1, "registry host");
    clean("Cargo.lock", &format!("{LOCK_SOURCE}\n"));
    one("Cargo.lock", "source = \"registry+https://mirror.example/index\"\n", 1, "elsewhere");
    one(".cargo/config.toml", "[source.crates-io]\nreplace-with = \"mirror\"\n", 2, "replaces");
}

#[test]
fn scripts_stop_at_the_first_error() {
    clean("ops/demo", "#!/usr/bin/env bash\nset -euo pipefail\n");
    one("ops/demo", "#!/usr/bin/env bash\nset -e\n", 1, "pipefail");
    clean("ops/plot.py", "#!/usr/bin/env python3\n");
}

#[test]
fn libraries_do_not_print() {
    one(LIB, "fn a() { println!(\"x\"); }\n", 1, "println!");
    one("control/src/server.rs", "fn a() { eprintln!(\"x\"); }\n", 1, "eprintln!");
    clean("control/src/cli/table.rs", "fn a() { println!(\"x\"); }\n");
    clean("dataplane/tcp/src/frame/tests.rs", "fn a() { println!(\"x\"); }\n");
    clean("dataplane/tcp/tests/frame.rs", "fn a() { println!(\"x\"); }\n");
    clean("dataplane/daemon/src/main.rs", "//! The dataplane.\nfn main() { println!(\"x\"); }\n");
}

#[test]
fn atomics_have_one_home() {
    let named = "use core::sync::atomic::AtomicU64;\n";
    one(LIB, named, 1, "atomics");
    one(LIB, "use std::sync::{Arc, atomic::AtomicBool};\n", 1, "atomics");
    clean(SYNC, named);
    clean(LIB, "use core::sync::atomic::Ordering;\n");
    one(LIB, "use core::sync::atomic::{AtomicU64, Ordering};\n", 1, "atomics");
    clean(LIB, "// core::sync::atomic is elsewhere\n");
    clean(LIB, &format!("#[allow(clippy::disallowed_types, reason = \"counts allocations\")]\n{named}"));
    one(LIB, &format!("#[allow(clippy::disallowed_types)]\n{named}"), 2, "atomics");
}

#[test]
fn unsafe_says_why() {
    clean(LIB, "// SAFETY: the pointer is ours.\nunsafe { f() };\n");
    clean(LIB, "// SAFETY: no thread touches it.\nunsafe impl Send for A {}\n");
    one(LIB, "unsafe { f() };\n", 1, "SAFETY");
    one(LIB, "fn a() {\n    let x =\n        unsafe\n        { f() };\n}\n", 3, "SAFETY");
    one(LIB, "unsafe impl Send for A {}\n", 1, "SAFETY");
    clean(
        LIB,
        "/// # Safety\n/// `x` is valid.\npub unsafe fn f(x: *const u8) {}\n#[unsafe(no_mangle)]\n// unsafe { }\n",
    );
}

#[test]
fn the_comment_for_one_unsafe_block_reaches_only_so_far() {
    let body =
        format!("// SAFETY: ours.\nunsafe {{ f() }};\n{}unsafe {{ g() }};\n", "\n".repeat(SAFETY_REACH));
    one(LIB, &body, SAFETY_REACH + 3, "SAFETY");
}

#[test]
fn crate_roots_state_their_purpose_and_their_bans() {
    let header = "//! One.\n//!\n//! Two.\n";
    clean("dataplane/tcp/src/lib.rs", header);
    one("dataplane/tcp/src/lib.rs", "//! One.\n", 1, "header");
    one("dataplane/daemon/src/main.rs", "fn main() {}\n", 1, "header");
    one("dataplane/sim/src/lib.rs", header, 1, "forbid(unsafe_code)");
    clean("dataplane/sim/src/lib.rs", &format!("{header}#![forbid(unsafe_code)]\n"));
    one(
        "dataplane/core/src/lib.rs",
        &format!("{header}#![forbid(unsafe_code)]\n// #![no_std]\n"),
        1,
        "no_std",
    );
    clean(
        "dataplane/ring/src/lib.rs",
        &format!("{header}#![forbid(unsafe_code)]\n#![cfg_attr(not(loom), no_std)]\n"),
    );
}

#[test]
fn time_and_dispatch_stay_out_of_the_engine() {
    one("dataplane/core/src/engine.rs", "let n = Instant::now();\n", 1, "clock");
    clean("dataplane/daemon/src/lane.rs", "let n = Instant::now();\n");
    clean("dataplane/core/src/engine.rs", "fn now(at: Instant) {}\n");
    one("dataplane/core/src/engine.rs", "fn f(x: &dyn Fabric) {}\n", 1, "dyn");
    clean("dataplane/core/src/engine.rs", "// no dyn here\n");
}

#[test]
fn decisions_are_numbered_once() {
    let check = |paths: &[&str]| adr_numbers(paths.iter().copied());
    assert!(check(&["ops/adr/0001-a.md", "ops/adr/0002-b.md", "ops/adr/README.md", "ops/test"]).is_empty());
    assert!(
        check(&["ops/adr/0001-a.md", "ops/adr/0001-b.md"])[0].contains("the number of ops/adr/0001-a.md")
    );
    assert!(check(&["ops/adr/1-a.md"])[0].contains("NNNN"));
}
