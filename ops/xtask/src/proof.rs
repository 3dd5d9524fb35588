//! Shows that railhead-core needs neither std nor an allocator: a program that has neither links it and runs.

use std::path::Path;
use std::process::{Command, Output};

use crate::Result;

/// Variants that must not build, with what rustc then says. Without them the proof could pass for a wrong reason.
const REFUSED: [(&str, &str); 2] = [
    ("proof_alloc", "no global memory allocator found"),
    ("proof_std", "found duplicate lang item `panic_impl`"),
];

/// Builds and runs the proof, and builds the variants that must be refused.
///
/// # Errors
/// The proof does not build or run, or a variant does.
pub(crate) fn run(root: &Path) -> Result<()> {
    // The versions of the workspace: cargo drops what the proof does not use.
    std::fs::copy(root.join("Cargo.lock"), root.join("ops/proof/Cargo.lock"))?;
    let built = build(root, None)?;
    if !built.status.success() {
        return Err(format!("the proof does not link:\n{}", String::from_utf8_lossy(&built.stderr)).into());
    }
    let binary = root.join("target/proof/release/railhead-proof");
    let status = Command::new(&binary).status()?;
    if !status.success() {
        return Err(format!("the proof ends with {status}").into());
    }
    let image = std::fs::read(&binary)?;
    if let Some(symbol) = [&b"__rust_alloc"[..], b"\0malloc\0"].into_iter().find(|s| contains(&image, s)) {
        return Err(format!("the proof holds {}", symbol.escape_ascii()).into());
    }
    let mut findings = Vec::new();
    for (variant, expected) in REFUSED {
        let output = build(root, Some(variant))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            findings.push(format!("{variant} links: the proof cannot fail"));
        } else if !said.contains(expected) {
            findings.push(format!("{variant} fails, but not with {expected:?}:\n{said}"));
        } else {
            println!("{variant}: refused, as it must be");
        }
    }
    crate::conclude("proof", &findings)
}

fn build(root: &Path, variant: Option<&str>) -> Result<Output> {
    let mut command = Command::new("cargo");
    command
        .args(["rustc", "--quiet", "--release", "--manifest-path", "ops/proof/Cargo.toml"])
        .args(["--target-dir", "target/proof", "--bin", "railhead-proof", "--"])
        .current_dir(root);
    if let Some(variant) = variant {
        command.args(["--cfg", variant]);
    }
    Ok(command.output()?)
}

fn contains(image: &[u8], part: &[u8]) -> bool {
    image.windows(part.len()).any(|window| window == part)
}
