//! Millions of paths in one piece of text: 8 bytes a name beyond the text itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A list of relative paths. Names are bytes, as the system has them; UTF-8 is not required.
#[derive(Default)]
pub(in crate::source) struct Names {
    text: Vec<u8>,
    ends: Vec<u64>,
}

impl Names {
    pub(in crate::source) fn push(&mut self, name: &[u8]) {
        self.text.extend_from_slice(name);
        self.ends.push(self.text.len() as u64);
    }

    pub(in crate::source) fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Name number `index`; the caller stays below `len`.
    pub(in crate::source) fn get(&self, index: u64) -> &Path {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Path::new(OsStr::from_bytes(&self.text[start..self.ends[index] as usize]))
    }

    /// Bytes that it takes.
    pub(in crate::source) fn held(&self) -> u64 {
        (self.text.capacity() + 8 * self.ends.capacity()) as u64
    }

    /// All names that are UTF-8.
    pub(in crate::source) fn texts(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).to_str().unwrap_or_default())
    }

    pub(in crate::source) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// The text, and where each name ends in it.
    pub(in crate::source) fn parts(&self) -> (&[u8], &[u64]) {
        (&self.text, &self.ends)
    }

    /// The same from its parts; `None` if they do not go together.
    pub(in crate::source) fn from_parts(text: Vec<u8>, ends: Vec<u64>) -> Option<Names> {
        let rising = ends.is_sorted() && ends.last().copied().unwrap_or(0) == text.len() as u64;
        rising.then_some(Names { text, ends })
    }

    /// A hash of all names in their order.
    pub(in crate::source) fn fingerprint(&self, seed: u64) -> u64 {
        let text = xxhash_rust::xxh3::xxh3_64_with_seed(&self.text, seed);
        let ends: &[u8] = bytemuck::cast_slice(&self.ends);
        xxhash_rust::xxh3::xxh3_64_with_seed(ends, text)
    }
}
