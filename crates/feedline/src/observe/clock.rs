//! The time that a thread was given by the processor.
#![allow(unsafe_code)]

use std::time::Duration;

/// Time that the calling thread ran so far. A difference of two readings that is smaller than the
/// time that passed says that the thread waited: for bytes, or for a core.
#[must_use]
pub fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours, which the call fills.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    if failed != 0 {
        return Duration::ZERO;
    }
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_takes_no_processor() {
        let began = thread_cpu();
        std::thread::sleep(Duration::from_millis(60));
        assert!(thread_cpu() - began < Duration::from_millis(30));
        let began = thread_cpu();
        let mut sum = 0u64;
        for n in 0..3_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_add(n * n));
        }
        assert!(thread_cpu() > began, "{sum}");
    }
}
