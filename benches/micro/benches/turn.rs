//! What a lane pays in a turn beside its transfers: the bell, the settings cell, a log entry, a counter.

use divan::{Bencher, black_box};
use railhead_ring::bell::BELL_WORDS;
use railhead_ring::{Bell, CellReader, CellWriter, Counters, LogReader, LogWriter, cell_words, log_words};
use railhead_shm::{Mapping, Words};

const ENTRIES: usize = 1024;
const ENTRY_WORDS: usize = 16;

fn main() {
    divan::main();
}

/// Words as the daemon gives them out: on their own pages.
fn mapped(words: usize) -> Words {
    let mapping = Mapping::anonymous(words * size_of::<u64>()).expect("a few pages of memory");
    // As a lane's memory: a fault in the first round would also mislead divan about how often to iterate.
    mapping.populate().expect("pages for it");
    mapping.words(0, words).expect("the mapping is as long as asked")
}

/// The waker's fence and look, with nobody asleep: once per batch.
#[divan::bench(sample_size = 10_000)]
fn bell_take(bencher: Bencher) {
    let bell = Bell::new(mapped(BELL_WORDS)).expect("one word");
    bencher.bench_local(|| bell.take());
}

/// Going to sleep and finding work after all.
#[divan::bench(sample_size = 10_000)]
fn bell_prepare_end(bencher: Bencher) {
    let bell = Bell::new(mapped(BELL_WORDS)).expect("one word");
    bencher.bench_local(|| {
        bell.prepare();
        bell.end();
    });
}

/// The look at the settings that every turn takes.
#[divan::bench(sample_size = 10_000)]
fn cell_generation(bencher: Bencher) {
    let reader = CellReader::new(mapped(cell_words(512))).expect("a cell");
    bencher.bench_local(|| reader.generation());
}

/// The copy that only a change takes.
#[divan::bench(args = [64, 512, 4096])]
fn cell_read(bencher: Bencher, payload_words: usize) {
    let words = mapped(cell_words(payload_words));
    let mut payload = vec![1; payload_words];
    CellWriter::new(words.clone()).expect("a cell").publish(1, &payload).expect("the first generation");
    let reader = CellReader::new(words).expect("a cell");
    bencher.bench_local(|| reader.read(black_box(&mut payload), 1));
}

#[divan::bench(sample_size = 10_000)]
fn log_append(bencher: Bencher) {
    let words = mapped(log_words(ENTRIES, ENTRY_WORDS));
    let mut writer = LogWriter::<_, ENTRY_WORDS>::new(words, ENTRIES).expect("an empty log");
    bencher.bench_local(|| writer.append(black_box(&[7; ENTRY_WORDS])));
}

#[divan::bench(sample_size = 10_000)]
fn log_read(bencher: Bencher) {
    let words = mapped(log_words(ENTRIES, ENTRY_WORDS));
    let mut writer = LogWriter::<_, ENTRY_WORDS>::new(words.clone(), ENTRIES).expect("an empty log");
    let position = writer.append(&[7; ENTRY_WORDS]);
    let reader = LogReader::<_, ENTRY_WORDS>::new(words, ENTRIES).expect("a log");
    bencher.bench_local(|| reader.read(black_box(position)));
}

#[divan::bench(sample_size = 10_000)]
fn counter_add(bencher: Bencher) {
    let counters = Counters::new(mapped(8));
    bencher.bench_local(|| counters.add(black_box(3), 1));
}
