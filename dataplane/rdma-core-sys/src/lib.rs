//! The stable C interface of rdma-core's `libibverbs`: declarations, the library opened at run time, and what its header
//! does in inline functions.
//!
//! **Owns** nothing but the loaded library, which stays loaded for ever. **Never** links it: a binary with this crate
//! starts where neither library nor RDMA is installed, and [`Library::open`] says so. Names and layouts are those of
//! `infiniband/verbs.h`; a test compiles a C program against that header and compares every size, offset and constant.
//! C's enumerations are plain integers here, since devices newer than this file report values that it does not know.
//! Structures that newer versions lengthened (`ibv_port_attr`, `ibv_device_attr_ex`) are passed with their size.
//!
//! Any thread may call; which calls on one object may overlap is libibverbs' contract (`man 3 ibv_post_send`): all may,
//! but the destruction of an object with any use of it.
#![allow(non_camel_case_types, reason = "the names of the C header")]
#![allow(missing_docs, reason = "the C header and its manual pages document fields and constants")]

mod constants;
mod inline;
mod library;
mod types;

pub use constants::*;
pub use inline::{
    ibv_alloc_parent_domain, ibv_alloc_td, ibv_dealloc_td, ibv_poll_cq, ibv_post_recv, ibv_post_send,
    ibv_req_notify_cq,
};
pub use library::{Library, LoadError, NAME};
pub use types::*;
