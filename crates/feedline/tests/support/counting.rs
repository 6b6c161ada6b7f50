//! An allocator that counts what the process holds, for tests of what a file may take.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// No test has a reason to ask for more at once; whoever does gets nothing, and aborts if it
/// counts on it.
const REFUSED: usize = 2 << 30;

/// Counts what the process holds and the most that it held.
pub(crate) struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);

/// What `work` gives, and the most that the process held meanwhile beyond what it held before.
/// Others must not work at the same time.
pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    let outcome = work();
    (outcome, MOST.load(Relaxed) - before)
}

fn count(change: i64) {
    let now = HELD.fetch_add(change, Relaxed) + change;
    MOST.fetch_max(now, Relaxed);
}

// SAFETY: everything is handed on to the system's allocator as it came, or refused.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REFUSED {
            return std::ptr::null_mut();
        }
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REFUSED {
            return std::ptr::null_mut();
        }
        count(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > REFUSED {
            return std::ptr::null_mut();
        }
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
