//! Millions of paths in one piece of text: 8 bytes a name beyond the text itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A list of relative paths. Names are bytes, as the system has them; UTF-8 is not required.
#[derive(Default)]
pub(super) struct Names {
    text: Vec<u8>,
    ends: Vec<u64>,
}

impl Names {
    pub(super) fn push(&mut self, name: &[u8]) {
        self.text.extend_from_slice(name);
        self.ends.push(self.text.len() as u64);
    }

    pub(super) fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Name number `index`; the caller stays below `len`.
    pub(super) fn get(&self, index: u64) -> &Path {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Path::new(OsStr::from_bytes(&self.text[start..self.ends[index] as usize]))
    }

    /// Bytes that it takes.
    pub(super) fn held(&self) -> u64 {
        (self.text.capacity() + 8 * self.ends.capacity()) as u64
    }

    /// All names that are UTF-8.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).to_str().unwrap_or_default())
    }

    pub(super) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// The text, and where each name ends in it.
    pub(super) fn parts(&self) -> (&[u8], &[u64]) {
        (&self.text, &self.ends)
    }

    /// The same from its parts; `None` if they do not go together.
    pub(super) fn from_parts(text: Vec<u8>, ends: Vec<u64>) -> Option<Names> {
        let rising = ends.is_sorted() && ends.last().copied().unwrap_or(0) == text.len() as u64;
        rising.then_some(Names { text, ends })
    }

    /// A hash of all names in their order.
    pub(super) fn fingerprint(&self, seed: u64) -> u64 {
        let text = xxhash_rust::xxh3::xxh3_64_with_seed(&self.text, seed);
        let ends: &[u8] = bytemuck::cast_slice(&self.ends);
        xxhash_rust::xxh3::xxh3_64_with_seed(ends, text)
    }
}
