//! What runs a whole pipeline for another end than a loader's batches: looking at a data set,
//! packing it, checking that batches come again, finding out why a program waits.

pub(super) mod diagnose;
pub(super) mod feeding;
pub(super) mod inspect;
pub(super) mod pack;
pub(super) mod trial;
pub(super) mod verify;
