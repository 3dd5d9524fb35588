//! The way to standard error that never holds anybody up.
//!
//! Whoever reads the log may stop reading, and a full pipe would then stop every thread that has something to say, the
//! settings thread among them. So lines go to a bounded queue, and one thread writes them. Lines that find the queue full
//! are counted, and the count is written when there is room again: the log may have gaps, but says so.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use railhead_ring::Word;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait.
const LINES: usize = 4096;
/// How long the end of the process waits for the last lines.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Where log lines go.
#[derive(Debug, Clone)]
pub struct LogOutput {
    lines: flume::Sender<Vec<u8>>,
    lost: Arc<Word>,
    ended: flume::Receiver<()>,
}

impl LogOutput {
    /// Starts the thread that writes to `target`.
    ///
    /// # Errors
    /// No threads left.
    pub fn start(target: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, waiting) = flume::bounded(LINES);
        let (end, ended) = flume::bounded(1);
        let lost = Arc::new(Word::new(0));
        let losses = Arc::clone(&lost);
        thread::Builder::new().name("railhead-log".to_owned()).spawn(move || {
            write_lines(&waiting, &losses, target);
            // Whoever waits for the end is told by the drop, too.
            drop(end);
        })?;
        Ok(Self { lines, lost, ended })
    }

    /// Waits a little until what was logged is written. The last call of a process; lines that come later may be lost.
    pub fn flush(self) {
        let Self { lines, ended, .. } = self;
        // An empty line ends the thread; a full queue means that nobody reads.
        if lines.send_timeout(Vec::new(), FLUSH_MAX).is_ok() {
            let _ = ended.recv_timeout(FLUSH_MAX);
        }
    }
}

fn write_lines(waiting: &flume::Receiver<Vec<u8>>, lost: &Word, mut target: impl Write) {
    while let Ok(line) = waiting.recv() {
        if line.is_empty() {
            return;
        }
        // An output that is closed for good takes nothing; there is nobody to tell.
        let _ = target.write_all(&line);
        let count = lost.swap_acq_rel(0);
        if count > 0 {
            let _ = writeln!(target, "{count} log lines were lost: the log was not read fast enough");
        }
    }
}

/// One line on its way.
#[derive(Debug)]
pub struct Line<'a> {
    output: &'a LogOutput,
    bytes: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let bytes = core::mem::take(&mut self.bytes);
        if !bytes.is_empty() && self.output.lines.try_send(bytes).is_err() {
            self.output.lost.fetch_add_release(1);
        }
    }
}

impl<'a> MakeWriter<'a> for LogOutput {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Line { output: self, bytes: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;

    /// An output that can be made to block.
    #[derive(Clone, Default)]
    struct Slow {
        written: Arc<Mutex<Vec<u8>>>,
        gate: Arc<Mutex<()>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _gate = self.gate.lock().unwrap();
            self.written.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up_and_tells_of_its_gaps() {
        let slow = Slow::default();
        let output = LogOutput::start(slow.clone()).unwrap();
        let closed = slow.gate.lock().unwrap();
        let started = Instant::now();
        for _ in 0..2 * LINES {
            output.make_writer().write_all(b"line\n").unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(5));
        drop(closed);
        output.make_writer().write_all(b"last\n").unwrap();
        output.flush();
        let written = String::from_utf8(slow.written.lock().unwrap().clone()).unwrap();
        assert!(written.contains("log lines were lost"), "no word of the gap");
        assert!(written.lines().filter(|line| *line == "line").count() >= LINES);
    }
}
