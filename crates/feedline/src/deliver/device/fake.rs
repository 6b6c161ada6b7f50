//! A device for tests: streams are threads that dawdle, copies read host memory when their turn
//! comes and a little at a time, and every call can be made to fail.
//!
//! Memory that is written before its copy is done therefore shows up as wrong bytes, and what is
//! not given back as a count.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Device, Handle, LEGACY_STREAM, Result};
use crate::error::DeviceError;

enum Op {
    Copy { to: usize, from: usize, bytes: usize },
    Read { from: usize, bytes: usize, answer: Sender<Vec<u8>> },
    Mark { event: Handle, ticket: u64, streams_left: Arc<AtomicUsize> },
    Wait { event: Handle, ticket: u64 },
}

/// How often an event was set, and up to which of them the streams have come.
#[derive(Default, Clone, Copy)]
struct Mark {
    set: u64,
    passed: u64,
}

#[derive(Default)]
struct Inside {
    events: HashMap<Handle, Mark>,
    memory: HashMap<Handle, Box<[AtomicU8]>>,
    freed: Vec<Box<[AtomicU8]>>,
    locks: HashMap<usize, usize>,
    next: Handle,
    allocated: usize,
}

struct Shared {
    inside: Mutex<Inside>,
    moved: Condvar,
    dawdle: u64,
}

/// A stream: what it has to do, and the thread that does it.
type Worker = (Sender<Op>, JoinHandle<()>);

pub(crate) struct Fake {
    shared: Arc<Shared>,
    streams: Mutex<HashMap<Handle, Worker>>,
    random: AtomicU64,
    /// Events say that they have passed when they have not: the guard of host memory is gone.
    pub(crate) events_lie: AtomicBool,
    /// Streams do not wait for events: the guard of device memory is gone.
    pub(crate) waits_lie: AtomicBool,
    /// The call of this name fails, after so many that succeed, as often as the last number says.
    pub(crate) failing: Mutex<Option<(&'static str, usize, usize)>>,
    /// Most bytes of device memory.
    pub(crate) most: AtomicUsize,
    pub(crate) locked: AtomicUsize,
}

/// A number that looks random.
fn mixed(state: &AtomicU64) -> u64 {
    let mut x = state.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Fake {
    /// Streams pause up to `dawdle` microseconds before and within each piece of work.
    pub(crate) fn new(seed: u64, dawdle: u64) -> Arc<Fake> {
        let inside = Mutex::new(Inside { next: 100, ..Inside::default() });
        let fake = Fake {
            shared: Arc::new(Shared { inside, moved: Condvar::new(), dawdle }),
            streams: Mutex::default(),
            random: AtomicU64::new(seed),
            events_lie: AtomicBool::new(false),
            waits_lie: AtomicBool::new(false),
            failing: Mutex::new(None),
            most: AtomicUsize::new(usize::MAX),
            locked: AtomicUsize::new(0),
        };
        fake.start(LEGACY_STREAM);
        Arc::new(fake)
    }

    pub(crate) fn device(self: &Arc<Self>) -> Arc<dyn Device> {
        self.clone()
    }

    fn start(&self, handle: Handle) {
        let (sender, receiver) = channel();
        let (shared, random) = (self.shared.clone(), AtomicU64::new(mixed(&self.random)));
        let thread = std::thread::spawn(move || run(&shared, &receiver, &random));
        self.streams.lock().unwrap().insert(handle, (sender, thread));
    }

    fn call(&self, name: &'static str) -> Result<()> {
        let mut failing = self.failing.lock().unwrap();
        match &mut *failing {
            Some((call, after, times)) if *call == name && *times > 0 => {
                if *after > 0 {
                    *after -= 1;
                    return Ok(());
                }
                *times -= 1;
                Err(failure(name, 999))
            }
            _ => Ok(()),
        }
    }

    fn queue(&self, stream: Handle, op: Op) -> Result<()> {
        match self.streams.lock().unwrap().get(&stream) {
            Some((sender, _)) => sender.send(op).map_err(|_| failure("stream", 400)),
            None => Err(failure("stream", 400)),
        }
    }

    fn set(&self, event: Handle, streams: &[Handle]) -> Result<()> {
        let ticket = {
            let mut inside = self.shared.inside.lock().unwrap();
            let mark = inside.events.get_mut(&event).ok_or_else(|| failure("event", 400))?;
            mark.set += 1;
            mark.set
        };
        let streams_left = Arc::new(AtomicUsize::new(streams.len()));
        for stream in streams {
            let streams_left = streams_left.clone();
            self.queue(*stream, Op::Mark { event, ticket, streams_left })?;
        }
        Ok(())
    }

    /// A consumer's kernel: reads device memory when its turn in the stream comes.
    pub(crate) fn read_later(
        &self,
        from: Handle,
        bytes: usize,
        stream: Handle,
    ) -> Receiver<Vec<u8>> {
        let (answer, receiver) = channel();
        self.queue(stream, Op::Read { from: from as usize, bytes, answer }).unwrap();
        receiver
    }

    /// Memory, events, streams and locks that exist; the default stream does not count.
    pub(crate) fn left(&self) -> (usize, usize, usize, usize) {
        let inside = self.shared.inside.lock().unwrap();
        let streams = self.streams.lock().unwrap().len() - 1;
        (inside.memory.len(), inside.events.len(), streams, inside.locks.len())
    }

    pub(crate) fn allocated(&self) -> usize {
        self.shared.inside.lock().unwrap().allocated
    }

    fn has(&self, event: Handle, ticket: Option<u64>) -> bool {
        let inside = self.shared.inside.lock().unwrap();
        inside.events.get(&event).is_none_or(|mark| mark.passed >= ticket.unwrap_or(mark.set))
    }
}

fn failure(call: &'static str, code: i32) -> DeviceError {
    let (name, text) = (format!("FAKE_{code}"), "made to fail".to_owned());
    DeviceError::Call { call, code, name, text, advice: "" }
}

fn run(shared: &Shared, ops: &Receiver<Op>, random: &AtomicU64) {
    let dawdle = || match shared.dawdle {
        0 => {}
        most => std::thread::sleep(Duration::from_micros(mixed(random) % most)),
    };
    for op in ops {
        dawdle();
        match op {
            Op::Copy { to, from, bytes } => {
                for at in 0..bytes {
                    if at == bytes / 2 {
                        dawdle();
                    }
                    // SAFETY: the caller keeps both ranges until the stream has done this. Memory
                    // that is written too early is what these tests are about; atomic accesses
                    // keep even that defined.
                    unsafe {
                        let byte = AtomicU8::from_ptr((from + at) as *mut u8);
                        AtomicU8::from_ptr((to + at) as *mut u8)
                            .store(byte.load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                }
            }
            Op::Read { from, bytes, answer } => {
                // SAFETY: as above.
                let byte = |at| unsafe { AtomicU8::from_ptr((from + at) as *mut u8) };
                let _ =
                    answer.send((0..bytes).map(|at| byte(at).load(Ordering::Relaxed)).collect());
            }
            Op::Mark { event, ticket, streams_left } => {
                if streams_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let mut inside = shared.inside.lock().unwrap();
                    if let Some(mark) = inside.events.get_mut(&event) {
                        mark.passed = mark.passed.max(ticket);
                    }
                    shared.moved.notify_all();
                }
            }
            Op::Wait { event, ticket } => {
                let mut inside = shared.inside.lock().unwrap();
                while inside.events.get(&event).is_some_and(|mark| mark.passed < ticket) {
                    inside = shared.moved.wait(inside).unwrap();
                }
            }
        }
    }
}

impl Device for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn number(&self) -> i32 {
        0
    }

    unsafe fn lock(&self, address: *mut u8, bytes: usize) -> Result<()> {
        self.call("lock")?;
        let before = self.shared.inside.lock().unwrap().locks.insert(address as usize, bytes);
        self.locked.fetch_add(1, Ordering::Relaxed);
        if before.is_some() { Err(failure("lock", 712)) } else { Ok(()) }
    }

    unsafe fn unlock(&self, address: *mut u8) -> Result<()> {
        let known = self.shared.inside.lock().unwrap().locks.remove(&(address as usize));
        assert!(known.is_some(), "unlocked twice");
        self.call("unlock")
    }

    fn allocate(&self, bytes: usize) -> Result<Handle> {
        self.call("allocate")?;
        let mut inside = self.shared.inside.lock().unwrap();
        if inside.allocated + bytes > self.most.load(Ordering::Relaxed) {
            return Err(failure("allocate", 2));
        }
        inside.allocated += bytes;
        let memory: Box<[AtomicU8]> = (0..bytes).map(|_| AtomicU8::new(0xDD)).collect();
        let handle = memory.as_ptr() as Handle;
        inside.memory.insert(handle, memory);
        Ok(handle)
    }

    unsafe fn free(&self, memory: Handle) -> Result<()> {
        let mut inside = self.shared.inside.lock().unwrap();
        let freed = inside.memory.remove(&memory).expect("freed twice");
        inside.allocated -= freed.len();
        // Kept, so that who reads it too late sees other bytes rather than anything.
        freed.iter().for_each(|byte| byte.store(0xCC, Ordering::Relaxed));
        inside.freed.push(freed);
        self.call("free")
    }

    fn create_stream(&self) -> Result<Handle> {
        self.call("create_stream")?;
        let handle = {
            let mut inside = self.shared.inside.lock().unwrap();
            inside.next += 1;
            inside.next
        };
        self.start(handle);
        Ok(handle)
    }

    unsafe fn destroy_stream(&self, stream: Handle) -> Result<()> {
        let (sender, thread) = self.streams.lock().unwrap().remove(&stream).expect("ended twice");
        drop(sender);
        thread.join().unwrap();
        self.call("destroy_stream")
    }

    unsafe fn copy_in(
        &self,
        to: Handle,
        from: *const u8,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        self.call("copy_in")?;
        self.queue(stream, Op::Copy { to: to as usize, from: from as usize, bytes })
    }

    unsafe fn copy_out(
        &self,
        to: *mut u8,
        from: Handle,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        self.call("copy_out")?;
        self.queue(stream, Op::Copy { to: to as usize, from: from as usize, bytes })
    }

    fn create_event(&self) -> Result<Handle> {
        self.call("create_event")?;
        let mut inside = self.shared.inside.lock().unwrap();
        inside.next += 1;
        let handle = inside.next;
        inside.events.insert(handle, Mark::default());
        Ok(handle)
    }

    unsafe fn destroy_event(&self, event: Handle) -> Result<()> {
        let known = self.shared.inside.lock().unwrap().events.remove(&event);
        assert!(known.is_some(), "destroyed twice");
        self.shared.moved.notify_all();
        self.call("destroy_event")
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<()> {
        self.call("record")?;
        self.set(event, &[stream])
    }

    unsafe fn record_all(&self, event: Handle) -> Result<()> {
        self.call("record_all")?;
        let streams: Vec<Handle> = self.streams.lock().unwrap().keys().copied().collect();
        self.set(event, &streams)
    }

    unsafe fn has_passed(&self, event: Handle) -> Result<bool> {
        self.call("has_passed")?;
        Ok(self.events_lie.load(Ordering::Relaxed) || self.has(event, None))
    }

    unsafe fn wait(&self, event: Handle) -> Result<()> {
        self.call("wait")?;
        let mut inside = self.shared.inside.lock().unwrap();
        while inside.events.get(&event).is_some_and(|mark| mark.passed < mark.set) {
            inside = self.shared.moved.wait(inside).unwrap();
        }
        Ok(())
    }

    unsafe fn make_wait(&self, stream: Handle, event: Handle) -> Result<()> {
        self.call("make_wait")?;
        if self.waits_lie.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ticket = {
            let inside = self.shared.inside.lock().unwrap();
            inside.events.get(&event).ok_or_else(|| failure("event", 400))?.set
        };
        self.queue(stream, Op::Wait { event, ticket })
    }

    fn settle(&self) -> Result<()> {
        self.call("settle")?;
        let event = self.create_event()?;
        // SAFETY: the event was made here and is destroyed here.
        unsafe {
            let streams: Vec<Handle> = self.streams.lock().unwrap().keys().copied().collect();
            self.set(event, &streams)?;
            let mut inside = self.shared.inside.lock().unwrap();
            while inside.events.get(&event).is_some_and(|mark| mark.passed < mark.set) {
                inside = self.shared.moved.wait(inside).unwrap();
            }
            drop(inside);
            self.destroy_event(event)
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for (_, (sender, thread)) in self.streams.get_mut().unwrap().drain() {
            drop(sender);
            let _ = thread.join();
        }
    }
}
