//! What is written: samples as fields and bytes, into one file of one format.

use crate::error::Result;

/// One field of one sample, as bytes: an encoded image, text, or an array's elements in C order
/// and this machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The array's shape; empty for a scalar, an image, bytes and text.
    pub shape: &'a [usize],
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its name, unique in the set: a key where the format has keys.
    pub key: &'a str,
    /// Its fields, in the order of those that the writer was made with.
    pub values: &'a [Given<'a>],
}

/// How a file is written, where its format leaves a choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The compression's name in the format, as "zstd" or "gzip"; none if not given.
    pub compression: Option<String>,
    /// Its level; the format's usual one if not given.
    pub level: Option<i32>,
    /// Samples of a block (a chunk, a row group) where the format has blocks.
    pub block_samples: Option<u64>,
}

/// Writes one file (or folder) of one format, from one thread.
pub trait RecordWriter: Send {
    /// Adds a sample.
    fn put(&mut self, record: &Record<'_>) -> Result<()>;

    /// Bytes that were written or wait to be: when a shard is full.
    fn bytes(&self) -> u64;

    /// Writes what is missing and has all of it reach the disk. A file that was dropped without
    /// this is not whole.
    fn finish(self: Box<Self>) -> Result<()>;
}
