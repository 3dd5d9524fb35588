//! Memory of GPUs: allocations, sharing, dma-bufs, and what the driver says of addresses.

use std::fs::File;
use std::os::fd::AsFd;

use railhead_cuda::memory::{ALLOCATION_BYTES, export_dma_buf};
use railhead_cuda::pointer::order_synchronous_copies;
use railhead_cuda::{
    ClientMemory, Device, DeviceMemory, MemoryError, MemoryKind, Pieces, Pointer, Stream, Verifier, checksum,
    pattern,
};

use crate::common;

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn devices_are_described() {
    let driver = common::driver();
    println!("driver of CUDA {}, batched copies: {}", driver.version(), driver.has_batched_copies());
    for device in Device::list(&driver).expect("devices") {
        println!("{device:?}");
        assert!(!device.name.is_empty() && device.bytes > 1 << 30 && device.compute.0 >= 8);
        assert!(device.uuid.starts_with("GPU-") && device.uuid.len() == 40, "{}", device.uuid);
        assert!(device.pci.0.contains(':'));
        assert!(device.copy_engines > 0 && device.stream_words_64);
    }
    for gpu in common::gpus() {
        for other in common::others(&common::gpus(), &gpu) {
            println!("{gpu:?} reaches {other:?}: {}", gpu.can_reach(&other).expect("an answer"));
        }
        if gpu.device().flush_by_host {
            gpu.flush_writes().expect("flushed");
        }
    }
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn allocations_are_whole_and_their_own() {
    let gpus = common::gpus();
    let (gpu, _) = common::two(&gpus);
    let memory = DeviceMemory::allocate(gpu, 5000, &[]).expect("memory");
    assert_eq!((memory.len(), memory.address() % ALLOCATION_BYTES), (ALLOCATION_BYTES, 0));
    assert_eq!(DeviceMemory::allocate(gpu, 0, &[]).unwrap_err(), MemoryError::Empty);
    match DeviceMemory::allocate(gpu, gpu.device().bytes * 2, &[]).unwrap_err() {
        MemoryError::Driver(error) => assert!(error.is_exhausted(), "{error}"),
        other => panic!("{other}"),
    }
    // And after that refusal the GPU works.
    DeviceMemory::allocate(gpu, 64 << 20, &[]).expect("memory");
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn shared_memory_is_the_same_memory() {
    let gpus = common::gpus();
    let (gpu, last) = common::two(&gpus);
    let memory = DeviceMemory::allocate(gpu, 4 << 20, &[]).expect("memory");
    let file = memory.share().expect("shared");
    for wrong in [1 << 20, 64 << 20] {
        assert!(DeviceMemory::import(gpu, file.as_fd(), wrong, &[]).is_err(), "{wrong} bytes");
    }
    let imported =
        DeviceMemory::import(gpu, file.as_fd(), 4 << 20, &common::others(&gpus, gpu)).expect("imported");
    drop(file);
    assert_ne!(imported.address(), memory.address());
    let (verifier, other) = (Verifier::new(gpu).expect("kernels"), Verifier::new(last).expect("kernels"));
    // SAFETY: memory of this test, which nobody else uses meanwhile.
    unsafe { verifier.fill(memory.address(), memory.len(), 5) }.expect("filled");
    // It stays as long as one of the two does.
    drop(memory);
    let mut expected = vec![0; 4 << 20];
    pattern(5, &mut expected);
    // SAFETY: as above; the last GPU is a peer of the import, or the same.
    let seen = unsafe { other.checksum(imported.address(), imported.len()) }.expect("summed");
    assert_eq!(seen, checksum(&expected));
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn sums_and_patterns_are_those_of_the_host() {
    let gpus = common::gpus();
    let (gpu, _) = common::two(&gpus);
    let (verifier, stream) = (Verifier::new(gpu).expect("kernels"), Stream::new(gpu).expect("a stream"));
    let memory = DeviceMemory::allocate(gpu, 4 << 20, &[]).expect("memory");
    for (offset, bytes) in [(0, 1), (0, 8), (3, 7), (1, 1000), (16, 65_536), (5, 1_000_003)] {
        let mut expected = vec![0; bytes];
        pattern(bytes as u64, &mut expected);
        let mut seen = vec![0; bytes];
        // SAFETY: memory of this test, which nobody else uses meanwhile.
        let sum = unsafe {
            verifier.fill(memory.address() + offset, bytes as u64, bytes as u64).expect("filled");
            verifier.checksum(memory.address() + offset, bytes as u64).expect("summed")
        };
        common::get(&stream, memory.address() + offset, &mut seen);
        assert!(seen == expected, "{bytes} bytes at {offset}");
        assert_eq!(sum, checksum(&expected), "{bytes} bytes at {offset}");
    }
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn dma_bufs_hold_the_range_that_was_asked_for() {
    let gpus = common::gpus();
    let (gpu, _) = common::two(&gpus);
    if !gpu.device().dma_buf {
        println!("not run: {gpu:?} exports no dma-buf");
        return;
    }
    let memory = DeviceMemory::allocate(gpu, 4 << 20, &[]).expect("memory");
    let client = ClientMemory::allocate(gpu, 4 << 20).expect("memory");
    for (offset, bytes) in [(0, 4 << 20), (4096, 8192), (5000, 100), ((4 << 20) - 1, 1)] {
        let own = memory.export_dma_buf(offset, bytes).expect("a dma-buf");
        let other = export_dma_buf(gpu, client.address() + offset, bytes).expect("a dma-buf");
        for dma_buf in [own, other] {
            assert_eq!(dma_buf.offset, offset % 4096);
            let size = File::from(dma_buf.file).metadata().map(|facts| facts.len()).unwrap_or(0);
            println!("{bytes} bytes at {offset}: a file of {size}");
        }
    }
    assert!(matches!(memory.export_dma_buf(1, 4 << 20), Err(MemoryError::Range { .. })));
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn addresses_are_told_apart() {
    let gpus = common::gpus();
    let (gpu, last) = common::two(&gpus);
    let kind = |address| Pointer::describe(gpu, address).expect("an answer").kind;
    let ordinary = vec![0u8; 4096];
    assert_eq!(kind(ordinary.as_ptr() as u64), MemoryKind::Host);
    let pinned = common::pinned(gpu, 2 << 20, Pieces::Whole);
    assert_eq!(kind(pinned.address() + 100), MemoryKind::HostPinned);
    let own = DeviceMemory::allocate(last, 2 << 20, &[]).expect("memory");
    assert_eq!(kind(own.address() + 1), MemoryKind::Device { ordinal: last.device().ordinal });
    let client = ClientMemory::allocate(last, 1 << 20).expect("memory");
    let pointer = Pointer::describe(gpu, client.address() + 5).expect("an answer");
    assert_eq!(pointer.kind, MemoryKind::Device { ordinal: last.device().ordinal });
    assert_eq!(pointer.allocation, Some((client.address(), client.len())));
    order_synchronous_copies(last, client.address()).expect("set");
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn an_address_that_was_freed_and_used_again_is_not_the_same() {
    let gpus = common::gpus();
    let (gpu, last) = common::two(&gpus);
    let mut reused = 0;
    for gpu in [gpu, last] {
        for _ in 0..32 {
            let client = ClientMemory::allocate(gpu, 8 << 20).expect("memory");
            let address = client.address();
            let before = Pointer::describe(gpu, address).expect("an answer");
            assert!(before.is_same(gpu).expect("an answer"));
            drop(client);
            let again = ClientMemory::allocate(gpu, 8 << 20).expect("memory");
            reused += usize::from(again.address() == address);
            assert!(!before.is_same(gpu).expect("an answer"), "a stale entry would be served");
        }
    }
    println!("the address came back {reused} times of 64");
    assert!(reused > 0, "nothing was tried");
}

#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn registered_pieces_are_all_given_back() {
    let gpus = common::gpus();
    let (gpu, _) = common::two(&gpus);
    let mut pauses = 0;
    let arena = railhead_memory::Arena::reserve(railhead_memory::ArenaConfig {
        bytes: 9 << 20,
        huge: railhead_memory::Policy::Prefer,
        numa_node: None,
    })
    .expect("memory");
    let register = |pauses: &mut usize, pieces| {
        railhead_cuda::PinnedMemory::register(gpu, arena.span(), pieces, || *pauses += 1)
    };
    let whole_pieces = arena.len().div_ceil(2 << 20) - 1;
    let pinned = register(&mut pauses, Pieces::Of(2 << 20)).expect("registered");
    assert_eq!(pauses, whole_pieces);
    assert!(pinned.device_address().is_some(), "kernels reach it");
    let error = register(&mut pauses, Pieces::Whole).expect_err("it is registered already");
    println!("a second time: {error}");
    drop(pinned);
    register(&mut pauses, Pieces::Whole).expect("registered again");
}
