//! What needs a second process: imports, processes that are killed, and contexts that are lost.

use std::io::{BufRead, BufReader, Write};
use std::process::Child;
use std::time::{Duration, Instant};

use railhead_abi::Code;
use railhead_core::port::{Copy, CopyDone, CopyEngine, Place, PostId, RegionIndex};
use railhead_cuda::{
    ClientMemory, CopierConfig, CudaCopier, DeviceMemory, MemoryError, Pieces, Stream, StreamQueues,
    Verifier, checksum, pattern,
};

use crate::common;

const BYTES: u64 = 8 << 20;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal");
    }
    bytes
}

/// The rest of the line of the child that begins with `name`.
fn line_of(child: &mut Child, name: &str) -> String {
    let stdout = child.stdout.take().expect("piped");
    let mut lines = BufReader::new(stdout).lines();
    loop {
        let line = lines.next().expect("the child ended early").expect("text");
        if let Some((_, rest)) = line.split_once(name) {
            return rest.trim().to_owned();
        }
    }
}

/// A client allocates, shares by CUDA IPC, and is killed while the memory is open here.
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn memory_of_another_process_by_ipc() {
    const NAME: &str = "processes::memory_of_another_process_by_ipc";
    let gpus = common::gpus();
    let (gpu, _) = common::two(&gpus);
    if common::role().is_some() {
        let client = ClientMemory::allocate(gpu, BYTES).expect("memory");
        let verifier = Verifier::new(gpu).expect("kernels");
        // SAFETY: memory of this process, which nobody else uses yet.
        unsafe { verifier.fill(client.address(), BYTES, 21) }.expect("filled");
        println!("\nhandle {}", hex(&client.ipc_handle().expect("a handle")));
        std::io::stdout().flush().expect("written");
        // Until it is killed.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let mut child = common::child(NAME, "exporter");
    let handle = from_hex(&line_of(&mut child, "handle "));
    let (mut expected, verifier) = (vec![0; BYTES as usize], Verifier::new(gpu).expect("kernels"));
    pattern(21, &mut expected);
    for (offset, bytes) in [(0, BYTES), (5, 1000), (BYTES - 1, 1)] {
        let memory = DeviceMemory::open_ipc(gpu, handle, offset, bytes).expect("opened");
        // SAFETY: the child keeps the memory and does not change it.
        let seen = unsafe { verifier.checksum(memory.address(), bytes) }.expect("summed");
        let (from, to) = (offset as usize, (offset + bytes) as usize);
        assert_eq!(seen, checksum(&expected[from..to]), "{bytes} bytes at {offset}");
    }
    for (offset, bytes) in [(0, BYTES + 1), (BYTES, 1), (u64::MAX, 2)] {
        let error = DeviceMemory::open_ipc(gpu, handle, offset, bytes).expect_err("outside");
        assert!(matches!(error, MemoryError::Range { .. }), "{error}");
    }
    let memory = DeviceMemory::open_ipc(gpu, handle, 0, BYTES).expect("opened");
    child.kill().expect("killed");
    child.wait().expect("waited for");
    // What is read now is not defined; that this process and this GPU go on is.
    // SAFETY: the mapping is this process's own and stays until it is closed.
    let after = unsafe { verifier.checksum(memory.address(), BYTES) };
    println!("after the exporter was killed: {:?}", after.map(|sum| sum == checksum(&expected)));
    drop(memory);
    let own = DeviceMemory::allocate(gpu, BYTES, &[]).expect("memory");
    // SAFETY: memory of this test.
    unsafe { verifier.fill(own.address(), BYTES, 22) }.expect("the GPU works");
}

/// A handle of this process itself is refused by the driver, typed.
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn ipc_of_the_own_process_is_refused() {
    let gpus = common::gpus();
    let (gpu, _) = common::two(&gpus);
    let client = ClientMemory::allocate(gpu, BYTES).expect("memory");
    let error = DeviceMemory::open_ipc(gpu, client.ipc_handle().expect("a handle"), 0, BYTES);
    assert!(matches!(error, Err(MemoryError::Driver(_))), "{error:?}");
}

/// A kernel that writes where there is no memory loses the context: the copies of that GPU end, typed, in bounded time.
#[test]
#[ignore = "needs a GPU: ops/gpu"]
fn a_sticky_error_ends_everything_of_its_gpu() {
    const NAME: &str = "processes::a_sticky_error_ends_everything_of_its_gpu";
    if common::role().is_none() {
        let output = common::child(NAME, "victim").wait_with_output().expect("waited for");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        print!("{text}");
        assert!(text.contains("lost and told"), "{:?}", output.status);
        return;
    }
    let gpus = common::gpus();
    let gpu = &gpus[0];
    let queues = StreamQueues::new(&gpus, 1).expect("queues");
    let mut copier = CudaCopier::new(CopierConfig { regions: 4, ..CopierConfig::default() }, queues);
    let host = common::pinned(gpu, BYTES, Pieces::Whole);
    copier.install(RegionIndex(0), railhead_cuda::CopyMemory::Host(host)).expect("room");
    copier.install(RegionIndex(1), common::device(&gpus, 0, BYTES)).expect("room");
    let (verifier, stream) = (Verifier::new(gpu).expect("kernels"), Stream::new(gpu).expect("a stream"));
    // SAFETY: none: this is the error that is wanted, and the process ends with it.
    unsafe { verifier.produce(&stream, 8, 1024, 1, 1_000_000) }.expect("posted");
    let start = Instant::now();
    let mut ended = Vec::new();
    let mut next = 0;
    while start.elapsed() < Duration::from_secs(5)
        && ended.iter().filter(|code| **code != Code::Ok).count() < 3
    {
        let place = |region| Place { region: RegionIndex(region), offset: 0 };
        let copy = Copy { from: place(1), to: place(0), bytes: 1 << 20, post: PostId(next) };
        if copier.posted() < 8 && copier.copy(&copy).is_ok() {
            next += 1;
        }
        let now = u64::try_from(start.elapsed().as_nanos()).expect("short");
        copier.kick(now);
        let mut done = [CopyDone { post: PostId(0), status: Code::Ok }; 8];
        let count = copier.poll(now, &mut done);
        ended.extend(done[..count].iter().map(|done| done.status));
    }
    let loss = copier.take_loss().expect("told");
    println!("\n{} after {:?}; {} copies ended", loss.error, start.elapsed(), ended.len());
    assert!(loss.error.is_sticky());
    assert!(ended.iter().all(|code| matches!(code, Code::Ok | Code::DeviceError)));
    println!("lost and told");
    std::io::stdout().flush().expect("written");
    // Nothing of a lost context can be given back in order.
    std::process::exit(0);
}
