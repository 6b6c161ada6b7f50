//! Rows of text that are read one by one, none of which may be endless.

use std::io::{BufRead, Error, ErrorKind, Read, Result};

/// What is wrong with a row, rather than with reading it.
pub(in crate::source) fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, problem.into())
}

/// Lines with their places. A byte order mark is no part of the first.
pub(in crate::source) struct Lines<R> {
    reader: R,
    /// A file whose rows never end (a stray quote, another kind of file) is refused before they
    /// fill the memory.
    longest: u64,
    /// What it is not if a row is longer.
    what: &'static str,
    /// The line, without what ends it.
    pub line: Vec<u8>,
    /// Where it begins.
    pub begin: u64,
    /// Where the next one begins.
    pub next: u64,
    /// Its number, from 1; of joined lines that of the first.
    pub number: u64,
    /// How many were read.
    read: u64,
}

impl<R: BufRead> Lines<R> {
    /// Rows of `longest` bytes at most.
    pub(in crate::source) fn new(reader: R, longest: u64, what: &'static str) -> Self {
        Lines { reader, longest, what, line: Vec::new(), begin: 0, next: 0, number: 0, read: 0 }
    }

    /// Reads the next line; `false` at the end.
    pub(in crate::source) fn advance(&mut self) -> Result<bool> {
        self.line.clear();
        self.begin = self.next;
        self.number = self.read + 1;
        let there = self.more()?;
        if self.begin == 0 && self.line.starts_with(b"\xef\xbb\xbf") {
            self.line.drain(..3);
            self.begin = 3;
        }
        Ok(there)
    }

    /// Adds the next line to this one, with the end of line between them.
    pub(in crate::source) fn join(&mut self) -> Result<bool> {
        let read = (self.next - self.begin) as usize;
        // What ended the line is part of the row: a quoted value goes on behind it.
        let ending: &[u8] = if read - self.line.len() == 2 { b"\r\n" } else { b"\n" };
        self.line.extend_from_slice(ending);
        self.more()
    }

    fn more(&mut self) -> Result<bool> {
        let room = self.longest - (self.next - self.begin);
        let mut bounded = self.reader.by_ref().take(room + 1);
        let read = bounded.read_until(b'\n', &mut self.line)? as u64;
        if read > room {
            let limit = self.longest >> 20;
            return Err(invalid(format!("is longer than {limit} MiB: this is no {}", self.what)));
        }
        self.next += read;
        self.read += 1;
        for end in [b'\n', b'\r'] {
            if read > 0 && self.line.last() == Some(&end) {
                self.line.pop();
            }
        }
        Ok(read > 0)
    }
}
