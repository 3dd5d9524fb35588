//! `cargo xtask`: every gate of Railhead, and the checks of the tree that no compiler makes.
//!
//! It owns the list of gates (`stages.rs`) and runs each as a process of its own with a time limit; tidy, edges,
//! abi-digest, proof and loom-mutants are subcommands, so that each is a gate like any other and can be run alone.
//! It links no crate of the dataplane, so that it reports even when those do not compile.

#![forbid(unsafe_code)]

mod abi_digest;
mod edges;
mod gates;
mod mutants;
mod proof;
mod stages;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A failure that ends a subcommand: its text is all that the user needs.
type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  test [--only STAGE..] [--list]   run the gates (all, or those named and what they stand on)
  stage LIMIT_S COMMAND..          run one command as a gate: time limit, no process left behind
  tidy [--write]                   words, lengths, headers; --write lowers the ratchet to what it is now
  edges                            dependency edges, external crates, their reasons
  abi-digest [--write] [--unreleased]
                                   compare the shared layouts with dataplane/abi/layout.txt, or rewrite it
  proof                            link railhead-core without std and without an allocator
  loom-mutants                     the loom suite passes, and fails under each named weakening";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<ExitCode> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(USAGE.into());
    };
    let root = root();
    match command.as_str() {
        "test" => return gates::test(&root, rest),
        "stage" => return gates::stage(&root, rest),
        "tidy" => tidy::run(&root, flag(rest, &["--write"])?.contains(&"--write"))?,
        "edges" => {
            flag(rest, &[])?;
            edges::run(&root)?;
        }
        "abi-digest" => {
            let flags = flag(rest, &["--write", "--unreleased"])?;
            abi_digest::run(&root, flags.contains(&"--write"), flags.contains(&"--unreleased"))?;
        }
        "proof" => {
            flag(rest, &[])?;
            proof::run(&root)?;
        }
        "loom-mutants" => {
            flag(rest, &[])?;
            mutants::run(&root)?;
        }
        "help" | "--help" | "-h" => println!("{USAGE}"),
        other => return Err(format!("unknown command {other:?}\n{USAGE}").into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The arguments if each is among `known`; the first that is not is an error, so that a typing mistake never
/// turns a check into a pass.
fn flag<'a>(arguments: &'a [String], known: &[&str]) -> Result<Vec<&'a str>> {
    match arguments.iter().find(|a| !known.contains(&a.as_str())) {
        Some(unknown) => Err(format!("unknown argument {unknown:?}\n{USAGE}").into()),
        None => Ok(arguments.iter().map(String::as_str).collect()),
    }
}

/// The root of the tree: where this crate was built, or the current folder when that has moved.
fn root() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    built.canonicalize().unwrap_or_else(|_| PathBuf::from("."))
}

/// Ends a check: prints each finding, and fails when there is one.
fn conclude(check: &str, findings: &[String]) -> Result<()> {
    for finding in findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("{check}: ok");
            Ok(())
        }
        count => Err(format!("{check}: {count} finding(s)").into()),
    }
}
