//! Prints the layouts that processes share: what `cargo xtask abi-digest` compares.

#![forbid(unsafe_code)]

fn main() -> std::fmt::Result {
    let mut table = String::new();
    railhead_abi::layout::write_table(&mut table)?;
    print!("abi_version {}\n{table}", railhead_abi::ABI_VERSION);
    Ok(())
}
