//! The feedline command as a library.
