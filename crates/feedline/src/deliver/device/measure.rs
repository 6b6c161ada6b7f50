//! How fast a device takes bytes, and whether they arrive.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Device, DeviceMemory, Event, PageLock, Stream};
use crate::buffer::BatchMemory;
use crate::error::{Error, Result};

/// What was measured. Times are medians of one copy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Bytes of a copy.
    pub bytes: usize,
    /// To the device, from memory as the system gives it.
    pub pageable: Duration,
    /// To the device, from page-locked memory.
    pub pinned: Duration,
    /// How long the program is held up by a copy from page-locked memory.
    pub queueing: Duration,
    /// From the device, to page-locked memory.
    pub back: Duration,
    /// To the device and from it at once, on two streams.
    pub both: Duration,
    /// How long it took to page-lock the memory.
    pub locking: Duration,
    /// Copies that came back with other bytes.
    pub wrong: u64,
}

impl Measured {
    /// The part of the shorter of the two copies that ran beside the other: 0 is one after the
    /// other, 1 is at once.
    #[must_use]
    pub fn overlap(&self) -> f64 {
        let (pinned, back) = (self.pinned.as_secs_f64(), self.back.as_secs_f64());
        let saved = pinned + back - self.both.as_secs_f64();
        (saved / pinned.min(back).max(1e-9)).clamp(0.0, 1.0)
    }
}

/// Copies that [`measure`] does for so many rounds.
#[must_use]
pub fn copies(rounds: u64) -> u64 {
    4 * rounds
}

/// Copies `bytes` bytes to the device and back, `rounds` times in each way.
pub fn measure(
    device: &Arc<dyn Device>,
    bytes: usize,
    rounds: u64,
    progress: &dyn Fn(u64),
) -> Result<Measured> {
    let (rounds, bytes) = (rounds.max(1), bytes.max(1));
    let host = Host::new(device, bytes)?;
    let target = Host::new(device, bytes)?;
    let memory = DeviceMemory::new(device, bytes)?;
    let other = DeviceMemory::new(device, bytes)?;
    let (side, back) = (Lane::new(device)?, Lane::new(device)?);
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(done);
    };
    let mut wrong = 0;
    let mut come_back = |seed: u64| -> Result<Duration> {
        target.fill(!seed);
        let began = Instant::now();
        // SAFETY: the host's memory is not touched before the copy is waited for.
        back.begin(|stream| unsafe { memory.copy_out(0, target.bytes(), stream) })?.wait()?;
        let time = began.elapsed();
        wrong += u64::from(!target.holds(seed));
        Ok(time)
    };

    let mut pageable = Vec::new();
    for round in 0..rounds {
        host.fill(round);
        let began = Instant::now();
        // SAFETY: as above.
        side.begin(|stream| unsafe { memory.copy_in(0, host.bytes(), stream) })?.wait()?;
        pageable.push(began.elapsed());
        step();
    }
    come_back(rounds - 1)?;

    let began = Instant::now();
    PageLock::of_batch(device, &host.memory)?;
    let locking = began.elapsed();
    PageLock::of_batch(device, &target.memory)?;
    let (mut pinned, mut queueing) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        host.fill(round + 1000);
        let began = Instant::now();
        // SAFETY: as above.
        let copy = side.begin(|stream| unsafe { memory.copy_in(0, host.bytes(), stream) })?;
        queueing.push(began.elapsed());
        copy.wait()?;
        pinned.push(began.elapsed());
        step();
    }
    let mut out = Vec::new();
    for _ in 0..rounds {
        out.push(come_back(rounds - 1 + 1000)?);
        step();
    }
    let mut both = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        // SAFETY: as above; the two copies have no memory in common.
        let to = side.begin(|stream| unsafe { other.copy_in(0, host.bytes(), stream) })?;
        // SAFETY: as above.
        let from = back.begin(|stream| unsafe { memory.copy_out(0, target.bytes(), stream) })?;
        to.wait()?;
        from.wait()?;
        both.push(began.elapsed());
        step();
    }
    Ok(Measured {
        bytes,
        pageable: median(pageable),
        pinned: median(pinned),
        queueing: median(queueing),
        back: median(out),
        both: median(both),
        locking,
        wrong,
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Host memory with a pattern. When it goes, the device has no use for it any more.
struct Host {
    memory: BatchMemory,
    device: Arc<dyn Device>,
}

impl Host {
    fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Host> {
        let memory = BatchMemory::new(bytes)
            .map_err(|error| Error::System(format!("the system refuses memory: {error}")))?;
        Ok(Host { memory, device: device.clone() })
    }

    #[allow(clippy::mut_from_ref)]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: `measure` is one thread, and keeps no slice over a call of another.
        unsafe { self.memory.range_mut(0, self.memory.len()) }
    }

    fn fill(&self, seed: u64) {
        for (at, byte) in self.bytes().iter_mut().enumerate() {
            *byte = pattern(at, seed);
        }
    }

    fn holds(&self, seed: u64) -> bool {
        self.bytes().iter().enumerate().all(|(at, byte)| *byte == pattern(at, seed))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // After an error a copy may be under way. A device that cannot say so is one that is gone.
        let _ = self.device.settle();
    }
}

fn pattern(at: usize, seed: u64) -> u8 {
    ((at as u64).wrapping_mul(0x9E37_79B9) >> 13) as u8 ^ seed as u8
}

/// A stream with an event.
struct Lane {
    stream: Stream,
    event: Event,
}

impl Lane {
    fn new(device: &Arc<dyn Device>) -> Result<Lane> {
        Ok(Lane { stream: Stream::new(device)?, event: Event::new(device)? })
    }

    /// Queues some work; the result waits for it.
    fn begin(&self, work: impl FnOnce(&Stream) -> super::Result<()>) -> Result<&Event> {
        work(&self.stream)?;
        self.event.record(&self.stream)?;
        Ok(&self.event)
    }
}
