//! What the machine allows, and so what to use when nothing is said.

mod limits;

pub use limits::{cores, memory_available};
