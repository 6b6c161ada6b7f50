//! Rows of text that are read one by one, none of which may be endless.

use std::cell::Cell;
use std::io::BufRead;
use std::rc::Rc;

/// Refuses a file whose rows never end (a stray quote, another kind of file) before they fill the
/// memory.
pub(super) struct Bounded<R> {
    inner: R,
    /// Bytes taken since the last row; a buffer may hold many rows.
    since: Rc<Cell<u64>>,
    longest: u64,
    /// What it is not if a row is longer.
    what: &'static str,
}

impl<R: BufRead> Bounded<R> {
    /// Rows of `longest` bytes at most. Whoever reads a row sets what is given back to 0.
    pub(super) fn new(inner: R, longest: u64, what: &'static str) -> (Self, Rc<Cell<u64>>) {
        let since = Rc::new(Cell::new(0));
        (Bounded { inner, since: since.clone(), longest, what }, since)
    }
}

impl<R: BufRead> BufRead for Bounded<R> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.since.get() > self.longest {
            let limit = self.longest >> 20;
            let text = format!("is longer than {limit} MiB: this is no {}", self.what);
            return Err(std::io::Error::other(text));
        }
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.since.set(self.since.get() + amount as u64);
        self.inner.consume(amount);
    }
}

impl<R: BufRead> std::io::Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let available = self.fill_buf()?;
        let n = available.len().min(out.len());
        out[..n].copy_from_slice(&available[..n]);
        self.consume(n);
        Ok(n)
    }
}

/// Lines with their places.
pub(super) struct Lines<R> {
    reader: Bounded<R>,
    since: Rc<Cell<u64>>,
    /// The line, without what ends it.
    pub line: Vec<u8>,
    /// Where it begins.
    pub begin: u64,
    next: u64,
    /// Its number, from 1.
    pub number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R, longest: u64, what: &'static str) -> Self {
        let (reader, since) = Bounded::new(reader, longest, what);
        Lines { reader, since, line: Vec::new(), begin: 0, next: 0, number: 0 }
    }

    /// Reads the next line; `false` at the end.
    pub(super) fn advance(&mut self) -> std::io::Result<bool> {
        self.line.clear();
        self.since.set(0);
        self.begin = self.next;
        self.more()
    }

    /// Adds the next line to this one, with the end of line between them.
    pub(super) fn join(&mut self) -> std::io::Result<bool> {
        let read = (self.next - self.begin) as usize;
        // What ended the line is part of the row: a quoted value goes on behind it.
        let ending: &[u8] = if read - self.line.len() == 2 { b"\r\n" } else { b"\n" };
        self.line.extend_from_slice(ending);
        self.more()
    }

    fn more(&mut self) -> std::io::Result<bool> {
        let read = self.reader.read_until(b'\n', &mut self.line)?;
        self.next += read as u64;
        self.number += 1;
        for end in [b'\n', b'\r'] {
            if read > 0 && self.line.last() == Some(&end) {
                self.line.pop();
            }
        }
        Ok(read > 0)
    }
}
