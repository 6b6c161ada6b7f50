//! Panics of other people's decoders, as ordinary errors and without a word on stderr.
//!
//! Libraries that read untrusted files have bugs that hostile files find. What such a bug costs
//! is one sample, and a training log is no place for a backtrace of it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// How many guarded sections this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the panic that is being caught came up, and whether that is in this crate.
    static FOUND: RefCell<Option<(String, bool)>> = const { RefCell::new(None) };
}

/// A panic that was caught.
#[derive(Debug)]
pub(crate) struct Panicked {
    /// What it says, and where it came up.
    pub(crate) text: String,
    /// It came up in this crate's own code: a bug of ours, which the usual hook has reported.
    pub(crate) own: bool,
}

/// Runs what may panic on hostile data. What it has half written must not be looked at again.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    static INSTALLED: Once = Once::new();
    // The hook cannot be changed while this thread unwinds.
    if !std::thread::panicking() {
        INSTALLED.call_once(|| {
            let previous = take_hook();
            set_hook(Box::new(move |info| {
                if !noted(info) {
                    previous(info);
                }
            }));
        });
    }
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    outcome.map_err(|payload| {
        let (place, own) = FOUND.take().unwrap_or_default();
        Panicked { text: format!("{}{place}", message(&*payload)), own }
    })
}

fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

/// Notes a panic in a guarded section. False if it is to be reported as any other.
fn noted(info: &PanicHookInfo<'_>) -> bool {
    // A thread that is ending has no such variables any more.
    if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
        return false;
    }
    let own = info.location().is_some_and(is_own);
    let place = info.location().map_or_else(String::new, |location| {
        // The folders above a library's own depend on the machine that built it.
        let parts: Vec<&str> = location.file().rsplit('/').take(4).collect();
        let file = parts.into_iter().rev().collect::<Vec<_>>().join("/");
        format!(" ({file}:{})", location.line())
    });
    let _ = FOUND.try_with(|found| *found.borrow_mut() = Some((place, own)));
    !own
}

fn is_own(location: &Location<'_>) -> bool {
    let folder = file!().strip_suffix("guard.rs").unwrap_or_default();
    location.file().starts_with(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_value_that_says_where_it_came_up() {
        assert_eq!(guarded(|| 7).unwrap(), 7);
        let caught = guarded(|| guarded(|| panic!("inner {}", 1)).map_err(|e| e.text)).unwrap();
        let text = caught.unwrap_err();
        assert!(text.contains("inner 1") && text.contains("guard.rs:"), "{text}");
        assert_eq!(DEPTH.get(), 0);
    }

    #[test]
    fn own_code_and_libraries_are_distinguished() {
        assert!(guarded::<()>(|| panic!("ours")).unwrap_err().own);
        // A code size that the library takes for a bug of its caller.
        let caught = guarded(|| weezl::decode::Decoder::new(weezl::BitOrder::Msb, 99).has_ended());
        let caught = caught.unwrap_err();
        assert!(!caught.own && caught.text.contains("weezl"), "{caught:?}");
    }
}
