use std::fs;

use super::*;

/// A tree with one crate whose library has `body`, and with `ratchet` as its list.
fn tree(body: &str, ratchet: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for path in ["dataplane/tcp/src", "dataplane/tcp/target", "ops/xtask"] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    fs::write(folder.path().join("dataplane/tcp/src/frame.rs"), body).unwrap();
    // Neither build outputs nor what is not text is looked at.
    fs::write(folder.path().join("dataplane/tcp/target/out.rs"), "x \n").unwrap();
    fs::write(folder.path().join("ops/image"), [0xff, 0xfe, b' ', b'\n']).unwrap();
    fs::write(folder.path().join(RATCHET), ratchet).unwrap();
    folder
}

fn ok(body: &str, ratchet: &str) -> bool {
    run(tree(body, ratchet).path(), false).is_ok()
}

fn function(lines: usize) -> String {
    format!("fn long() {{\n{}}}\n", "    f();\n".repeat(lines - 2))
}

#[test]
fn a_clean_tree_passes_and_a_finding_fails() {
    assert!(ok("fn a() {}\n", ""));
    assert!(!ok("fn a() {} \n", ""));
}

#[test]
fn long_files_need_an_entry_that_holds() {
    assert!(ok(&"//\n".repeat(500), ""));
    assert!(!ok(&"//\n".repeat(501), ""));
    let listed = "[files]\n\"dataplane/tcp/src/frame.rs\" = 600\n";
    assert!(ok(&"//\n".repeat(600), listed));
    assert!(!ok(&"//\n".repeat(601), listed));
    assert!(!ok(&"//\n".repeat(599), listed));
}

#[test]
fn long_functions_need_an_entry_that_holds() {
    assert!(ok(&function(70), ""));
    assert!(!ok(&function(71), ""));
    assert!(ok(&function(71), "[functions]\n\"dataplane/tcp/src/frame.rs::long\" = 71\n"));
}

#[test]
fn tests_in_the_file_do_not_count() {
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}{}}}\n", function(100), "//\n".repeat(500));
    assert!(ok(&format!("{}{tests}", "//\n".repeat(450)), ""));
}

#[test]
fn writing_lowers_the_list_and_never_raises_it() {
    let listed = "[files]\n\"dataplane/tcp/src/frame.rs\" = 600\n\"gone.rs\" = 700\n";
    let lower = tree(&"//\n".repeat(550), listed);
    run(lower.path(), true).unwrap();
    assert!(run(lower.path(), false).is_ok());
    let higher = tree(&"//\n".repeat(650), listed);
    assert!(run(higher.path(), true).is_err());
    assert!(run(higher.path(), false).is_err());
}
