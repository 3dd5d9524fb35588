//! Reference: one plain TCP stream between two processes, blocking writes and reads of the same size, both walking
//! through a buffer that is larger than their private caches.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};

use crate::cpu;
use crate::problem::{Problem, Tried};
use crate::runner::Measure;

/// How long the other process may take for anything.
const TIMEOUT: Duration = Duration::from_secs(15);
/// What the sink says when its buffer is ready.
const READY: [u8; 1] = [1];

/// The reading process, ended when this is dropped.
struct Sink(Child);

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Streams for `duration` and measures until the other end has read everything.
pub(crate) fn measure(bytes: usize, walk_bytes: usize, duration: Duration) -> Result<Measure, Problem> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).tried("listening on loopback")?;
    let address = listener.local_addr().tried("the listener's address")?;
    let program = std::env::current_exe().tried("the path of this program")?;
    let child = Command::new(program)
        .args(["stream-sink", &address.to_string(), &bytes.to_string(), &walk_bytes.to_string()])
        .stdin(Stdio::null())
        .spawn()
        .tried("starting the reading process")?;
    let sink = Sink(child);
    let source = buffer(walk_bytes)?;
    let mut stream = accept(&listener)?;
    prepare(&stream)?;
    let mut ready = [0; 1];
    stream.read_exact(&mut ready).tried("the reading process")?;

    let (start, cpu) = (Instant::now(), cpu::thread_s());
    let mut moved = 0;
    'walk: loop {
        for slot in source.chunks_exact(bytes) {
            stream.write_all(slot).tried("writing to the stream")?;
            moved += bytes as u64;
            if start.elapsed() >= duration {
                break 'walk;
            }
        }
    }
    stream.shutdown(std::net::Shutdown::Write).tried("ending the stream")?;
    let mut sink_ns = [0; 8];
    stream.read_exact(&mut sink_ns).tried("the reading process")?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_s = cpu::thread_s() - cpu + u64::from_le_bytes(sink_ns) as f64 / 1e9;
    drop(sink);
    Ok(Measure { rate: moved as f64 / seconds, seconds, cpu_s: Some(cpu_s), bytes: moved as f64 })
}

/// The reading process: reads until the stream ends, then says what CPU time that took.
pub(crate) fn sink(address: SocketAddr, bytes: usize, walk_bytes: usize) -> Result<(), Problem> {
    let mut stream =
        TcpStream::connect_timeout(&address, TIMEOUT).tried("connecting to the writing process")?;
    prepare(&stream)?;
    let mut target = buffer(walk_bytes)?;
    stream.write_all(&READY).tried("the writing process")?;
    let cpu = cpu::thread_s();
    'walk: loop {
        for slot in target.chunks_exact_mut(bytes) {
            if !fill(&mut stream, slot)? {
                break 'walk;
            }
        }
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of one run")]
    let cpu_ns = ((cpu::thread_s() - cpu) * 1e9) as u64;
    stream.write_all(&cpu_ns.to_le_bytes()).tried("the writing process")
}

/// Fills the slot; false at the end of the stream.
fn fill(stream: &mut TcpStream, slot: &mut [u8]) -> Result<bool, Problem> {
    let mut filled = 0;
    while filled < slot.len() {
        match stream.read(&mut slot[filled..]).tried("reading from the stream")? {
            0 => return Ok(false),
            count => filled += count,
        }
    }
    Ok(true)
}

/// A buffer with its pages in place, on hugepages where the kernel gives them: ours lie on such pages, too.
fn buffer(bytes: usize) -> Result<MmapMut, Problem> {
    let mut buffer = MmapMut::map_anon(bytes).tried("a buffer")?;
    let _ = buffer.advise(Advice::HugePage);
    buffer.fill(1);
    Ok(buffer)
}

fn prepare(stream: &TcpStream) -> Result<(), Problem> {
    stream.set_nodelay(true).tried("TCP_NODELAY")?;
    stream.set_read_timeout(Some(TIMEOUT)).tried("SO_RCVTIMEO")?;
    stream.set_write_timeout(Some(TIMEOUT)).tried("SO_SNDTIMEO")
}

fn accept(listener: &TcpListener) -> Result<TcpStream, Problem> {
    listener.set_nonblocking(true).tried("the listener")?;
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).tried("the stream")?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).tried("accepting the reading process"),
        }
    }
    Err(Problem::new("the reading process did not connect"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sink as a thread: what the writing end counts is what the reading end got.
    #[test]
    fn sink_reads_to_the_end_and_answers() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let address = listener.local_addr().expect("bound");
        let reader = std::thread::spawn(move || sink(address, 4096, 16384));
        let mut stream = accept(&listener).expect("the sink connects");
        let mut ready = [0; 1];
        stream.read_exact(&mut ready).expect("the sink is ready");
        assert_eq!(ready, READY);
        // Ends in the middle of a slot and after more than one walk.
        stream.write_all(&[7; 5 * 4096 + 100]).expect("the sink reads");
        stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the answer");
        assert_eq!(answer.len(), 8);
        reader.join().expect("no panic").expect("a clean end");
    }
}
