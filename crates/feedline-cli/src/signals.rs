//! Ctrl-C and SIGTERM, for commands that have something to put in order first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

/// Watches for signals that ask the process to end. A second one ends it at once.
pub(crate) struct Signals {
    code: Arc<AtomicUsize>,
    registered: Vec<SigId>,
}

impl Signals {
    pub(crate) fn watch() -> Self {
        let code = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        let mut registered = Vec::new();
        for (signal, exit_code) in [(SIGINT, 130), (SIGTERM, 143)] {
            // In this order: the first signal finds the flag unset and only sets it. Where the
            // system refuses, the signal keeps ending the process.
            registered.extend(flag::register_conditional_shutdown(
                signal,
                exit_code,
                again.clone(),
            ));
            registered.extend(flag::register(signal, again.clone()));
            registered.extend(flag::register_usize(signal, code.clone(), exit_code as usize));
        }
        Signals { code, registered }
    }

    /// The exit code that the signal asks for, once there was one.
    pub(crate) fn received(&self) -> Option<i32> {
        let code = self.code.load(Ordering::Relaxed);
        i32::try_from(code).ok().filter(|code| *code != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.registered.drain(..).for_each(|id| {
            low_level::unregister(id);
        });
    }
}
