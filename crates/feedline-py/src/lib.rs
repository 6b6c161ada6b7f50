//! Conversion between Python and the engine.
