//! The library where it is, and where it is not.

use std::path::Path;

use rdma_core_sys::{Library, LoadError, NAME};

#[test]
fn a_missing_library_is_a_typed_error() {
    let error = Library::open(Some(Path::new("libibverbs-of-nowhere.so.1"))).expect_err("it is not there");
    assert!(matches!(error, LoadError::Absent { .. }), "{error}");
    assert!(error.to_string().contains("install libibverbs1"), "{error}");
}

#[test]
fn another_library_is_told_apart() {
    let error = Library::open(Some(Path::new("libc.so.6"))).expect_err("it is not a libibverbs");
    assert!(matches!(error, LoadError::Symbol { symbol: "ibv_get_device_list", .. }), "{error}");
}

#[test]
fn the_installed_library_has_all_symbols() {
    match Library::open(None) {
        Ok(library) => assert!(library.ibv_reg_mr_iova2.is_some(), "since rdma-core 28"),
        Err(LoadError::Absent { .. }) => {
            println!("NOT RUN: the_installed_library_has_all_symbols: no {NAME}");
        }
        Err(error) => panic!("{error}"),
    }
}
