//! In place of the encoder and the rewriter of JPEGs where libjpeg-turbo is left out: neither can be
//! made, and the error says so.

use std::convert::Infallible;

use super::Subsampling;
use crate::error::{Error, Fault, Result};

fn absent() -> Error {
    let why = "this build of feedline writes no JPEGs: build it with its feature \"libjpeg-turbo\"";
    Error::System(why.to_owned())
}

/// An encoder, which only builds with libjpeg-turbo have.
#[derive(Debug)]
pub struct Encoder(Infallible);

impl Encoder {
    /// Says what is missing.
    pub fn new(_quality: u8, _subsampling: Subsampling, _progressive: bool) -> Result<Self> {
        Err(absent())
    }

    /// Cannot be reached.
    pub fn encode(&mut self, _rgb: &[u8], _width: usize, _height: usize) -> Result<&[u8]> {
        match self.0 {}
    }
}

/// A rewriter, which only builds with libjpeg-turbo have.
#[derive(Debug)]
pub struct Recutter(Infallible);

impl Recutter {
    /// Says what is missing.
    pub fn new() -> Result<Self> {
        Err(absent())
    }

    /// Cannot be reached.
    pub fn recut(&mut self, _bytes: &[u8], _segment: Option<u16>) -> Result<&[u8], Fault> {
        match self.0 {}
    }

    /// Cannot be reached.
    #[must_use]
    pub fn last(&self) -> &[u8] {
        match self.0 {}
    }

    /// Nothing is needed.
    #[must_use]
    pub fn memory(_bytes: &[u8]) -> usize {
        0
    }
}
