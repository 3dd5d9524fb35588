//! Links railhead-core, and with it abi and ring, into a program that has neither std nor an allocator.
//!
//! If one of them begins to need std, rustc finds two panic handlers; if one begins to allocate, it finds no global
//! allocator. Both stop the build. The variants `proof_alloc` and `proof_std` show that they would.

#![no_std]
#![no_main]

#[cfg(proof_alloc)]
extern crate alloc;
#[cfg(proof_std)]
extern crate std;

use railhead_core as _;

/// The start-up files of C, which call `main`, stand in for those of std.
#[link(name = "c")]
unsafe extern "C" {}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

// SAFETY: no other symbol of this program is called `main`, and it has the signature that C start-up expects of a
// program that ignores its arguments.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    0
}
