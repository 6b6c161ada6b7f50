//! What this process listens on: a child that is forked off it gets that too, and has to close it,
//! or else whoever connects after the end of this process waits for an answer.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

const NONE: RawFd = -1;

static SOCKET: AtomicI32 = AtomicI32::new(NONE);
static PAGE: AtomicI32 = AtomicI32::new(NONE);

#[derive(Debug, Clone, Copy)]
pub(super) enum Listener {
    Socket,
    Page,
}

/// The process listens on this descriptor until it ends.
pub(super) fn note(listener: Listener, descriptor: RawFd) {
    let place = match listener {
        Listener::Socket => &SOCKET,
        Listener::Page => &PAGE,
    };
    place.store(descriptor, Ordering::Relaxed);
}

/// The descriptors that a forked child has from its parent and must close, once. Their owners are
/// threads that do not exist there. It neither locks nor allocates, as little else is allowed there.
#[must_use]
pub fn inherited() -> [Option<RawFd>; 2] {
    [&SOCKET, &PAGE].map(|place| {
        let descriptor = place.swap(NONE, Ordering::Relaxed);
        (descriptor != NONE).then_some(descriptor)
    })
}
