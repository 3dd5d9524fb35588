//! Runs an engine in a program that has neither std nor an allocator: core, and with it abi and ring, on the stack.
//!
//! The engine is instantiated over a fabric that refuses everything, takes a submission and completes it as refused, so
//! that the code of every generic function is in the program. If one of the crates begins to need std, rustc finds two panic handlers; if one begins to allocate, it finds no global
//! allocator. Both stop the build. The variants `proof_alloc` and `proof_std` show that they would.

#![no_std]
#![no_main]

#[cfg(proof_alloc)]
extern crate alloc;
#[cfg(proof_std)]
extern crate std;

use railhead_abi::observe::{COUNTER_WORDS, EventEntry, Flight};
use railhead_abi::record::{RawRecord, SLOTS_MAX};
use railhead_abi::settings::Settings;
use railhead_abi::submission::{Completion, Submission};
use railhead_core::list::Link;
use railhead_core::pool::PoolShape;
use railhead_core::port::{
    Capabilities, ConnectionIndex, Copy, CopyDone, CopyEngine, CopyFull, Fabric, FabricEvent, Nanos, Place,
    PostError, PostId, Read, RemotePlace, Write,
};
use railhead_core::storage::{Observe, Storage};
use railhead_core::tables::{
    BlockEntry, ChunkEntry, Connection, Inbound, PortParts, Region, Remote, SessionQueue, Transfer,
};
use railhead_core::{Engine, EngineConfig};
use railhead_ring::{Bell, Consumer, Counters, LogWriter, Producer, Word, log_words, ring_words};

// The start-up files of C, which call `main`, stand in for those of std.
#[link(name = "c")]
unsafe extern "C" {}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// A device that takes nothing.
struct Nothing;

impl Fabric for Nothing {
    fn capabilities(&self, _: ConnectionIndex) -> Capabilities {
        Capabilities { write_bytes_max: 1, ..Capabilities::default() }
    }
    fn send(&mut self, _: ConnectionIndex, _: &RawRecord) -> Result<(), PostError> {
        Err(PostError::Full)
    }
    fn write(&mut self, _: ConnectionIndex, _: &Write) -> Result<(), PostError> {
        Err(PostError::Full)
    }
    fn read(&mut self, _: ConnectionIndex, _: &Read) -> Result<(), PostError> {
        Err(PostError::Full)
    }
    fn flush(&mut self, _: ConnectionIndex, _: PostId) -> Result<(), PostError> {
        Err(PostError::Full)
    }
    fn confirm(&mut self, _: ConnectionIndex, _: RemotePlace, _: PostId) -> Result<(), PostError> {
        Err(PostError::Full)
    }
    fn open_window(&mut self, _: ConnectionIndex, _: u16, _: Place, _: u64) {}
    fn close_window(&mut self, _: ConnectionIndex, _: u16) {}
    fn close(&mut self, _: ConnectionIndex) {}
    fn kick(&mut self, _: Nanos) {}
    fn poll(&mut self, _: Nanos, _: &mut [FabricEvent]) -> usize {
        0
    }
}

impl CopyEngine for Nothing {
    fn copy(&mut self, _: &Copy) -> Result<(), CopyFull> {
        Err(CopyFull)
    }
    fn kick(&mut self, _: Nanos) {}
    fn poll(&mut self, _: Nanos, _: &mut [CopyDone]) -> usize {
        0
    }
    fn is_busy(&self) -> bool {
        false
    }
}

const POOL: PoolShape = PoolShape {
    large_bytes: 4096,
    small_bytes: 4096,
    large_send: 1,
    large_receive: 1,
    small_send: 1,
    small_receive: 1,
};
const ENTRIES: usize = 4;

/// Words on the stack.
macro_rules! words {
    ($count:expr) => {
        &[const { Word::new(0) }; $count][..]
    };
}

/// Sends one submission through an engine; true if it came back as a completion.
fn run() -> bool {
    let (submission_ring, completion_ring, bell) = (
        words!(ring_words(ENTRIES, Submission::WORDS)),
        words!(ring_words(ENTRIES, Completion::WORDS)),
        words!(1),
    );
    let (Ok(submissions), Ok(completions), Ok(bell)) =
        (Consumer::new(submission_ring, ENTRIES), Producer::new(completion_ring, ENTRIES), Bell::new(bell))
    else {
        return false;
    };
    let (flight, events) = (words!(log_words(2, Flight::WORDS)), words!(log_words(2, EventEntry::WORDS)));
    let (Ok(flight), Ok(events)) = (LogWriter::new(flight, 2), LogWriter::new(events, 2)) else {
        return false;
    };
    const INBOUND: usize = SLOTS_MAX as usize;
    let storage = Storage {
        transfers: &mut [Transfer::FREE; 2],
        transfer_links: &mut [Link::UNLINKED; 2],
        chunks: &mut [ChunkEntry::default(); 2],
        chunk_links: &mut [Link::UNLINKED; 2],
        connections: &mut [Connection::FREE; 1],
        slots: &mut [0; INBOUND],
        inbound: &mut [Inbound::IDLE; INBOUND],
        demand_links: &mut [Link::UNLINKED; INBOUND],
        answer_links: &mut [Link::UNLINKED; INBOUND],
        pool_links: &mut [Link::UNLINKED; POOL.blocks()],
        blocks: &mut [BlockEntry::default(); POOL.blocks()],
        block_links: &mut [Link::UNLINKED; POOL.blocks()],
        regions: &mut [Region::default(); 2],
        remotes: &mut [Remote::default(); 2],
        sessions: &mut [const { None }; 1],
        session_queues: &mut [SessionQueue::EMPTY; 1],
        session_links: [&mut [Link::UNLINKED; 1], &mut [Link::UNLINKED; 1]],
        ports: &mut [const { None }; 1],
        notices: &mut [const { None }; 8],
    };
    let settings = Settings::default();
    let config =
        EngineConfig { lane: 0, unix_offset_ns: 0, pool: POOL, pool_epoch: 1, settings, generation: 1 };
    let counters = words!(COUNTER_WORDS);
    let observe = Observe { counters: Counters::new(counters), flight, events };
    let mut engine = Engine::new(config, storage, observe, Nothing, Nothing);
    if engine.attach_port(0, PortParts { submissions, completions, bell }).is_err() {
        return false;
    }
    let (Ok(mut client), Ok(mut answers)) = (
        Producer::<_, { Submission::WORDS }>::new(submission_ring, ENTRIES),
        Consumer::<_, { Completion::WORDS }>::new(completion_ring, ENTRIES),
    ) else {
        return false;
    };
    let submission = Submission { cookie: 7, ..Submission::default() };
    if client.push_publish(&submission.encode()).is_err() {
        return false;
    }
    engine.turn(1);
    let answer = answers.pop().ok().flatten().map(|words| Completion::decode(&words));
    answer.is_some_and(|completion| completion.cookie == 7 && completion.status != 0)
}

// The objects of the distributed `core` name the routine that unwinding would call; this program aborts instead.
// SAFETY: no other symbol of this program has this name, and nothing calls it: nothing unwinds.
#[cfg(not(proof_std))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// SAFETY: no other symbol of this program is called `main`, and it has the signature that C start-up expects of a
// program that ignores its arguments.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    i32::from(!run())
}
