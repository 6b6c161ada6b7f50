//! A file as a scan sees it: bytes at places that only grow, plain or unpacked on the way.

use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::source::Opening;
use crate::store::{Handle, Object, Reader};

/// How a whole file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::source) enum Compression {
    None,
    Gzip,
    Zlib,
    Zstd,
}

impl Compression {
    /// What the first bytes say. Zlib has no mark of its own, so it is never found here.
    pub(in crate::source) fn by_magic(start: &[u8]) -> Compression {
        match start {
            [0x1f, 0x8b, 8, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// A reader of what the file holds.
    pub(in crate::source) fn unpack(self, file: Handle) -> std::io::Result<Box<dyn Read>> {
        let file = BufReader::with_capacity(1 << 17, Reader::new(file));
        Ok(match self {
            Compression::None => Box::new(file),
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
            Compression::Zlib => Box::new(flate2::bufread::ZlibDecoder::new(file)),
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(file)?;
                // What a window may take, whatever the file demands: 128 MiB, zstd's own default.
                decoder.window_log_max(27)?;
                Box::new(decoder)
            }
        })
    }
}

enum Bytes<'a> {
    Plain(&'a dyn Object),
    Memory(&'a [u8]),
    Stream(Box<dyn Read>),
}

/// What all files of a set keep, counted while it is found: several are scanned at once.
pub(in crate::source) struct Held<'a> {
    what: &'a Path,
    with: &'a Opening<'a>,
    files: u64,
    done: AtomicU64,
    bytes: AtomicU64,
}

impl<'a> Held<'a> {
    pub(in crate::source) fn new(what: &'a Path, with: &'a Opening<'a>, files: usize) -> Held<'a> {
        let (done, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Held { what, with, files: files as u64, done, bytes }
    }

    /// Counts a whole file.
    pub(in crate::source) fn add(&self, bytes: u64) -> Result<()> {
        self.change(0, bytes, 0)?;
        self.done.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Counts `after` bytes instead of `before` for a file of which so many thousandths are
    /// scanned.
    fn change(&self, before: u64, after: u64, scanned: u64) -> Result<()> {
        let change = after.wrapping_sub(before);
        let bytes = self.bytes.fetch_add(change, Relaxed).wrapping_add(change);
        let done = self.done.load(Relaxed) * 1000 + scanned;
        self.with.check_held(self.what, bytes, (done, self.files * 1000))
    }
}

/// A file that is being scanned.
pub(in crate::source) struct Input<'a> {
    path: &'a Path,
    reader: Bytes<'a>,
    /// Bytes of a plain file, or the most that a stream may unpack to.
    length: u64,
    /// The most that may be asked for in one piece.
    piece: u64,
    window: Vec<u8>,
    /// Where the window begins, and where the reading of a stream stands.
    start: u64,
    read: u64,
    /// What is kept of all files, and of this one.
    held: Option<(&'a Held<'a>, u64)>,
}

/// Small things that follow each other are read at once.
const PLAIN_WINDOW: u64 = 8 << 10;
const STREAM_WINDOW: usize = 256 << 10;

impl<'a> Input<'a> {
    /// A plain file of `length` bytes, of which `piece` at most are held at once: what a file
    /// declares may be a hole in it.
    pub(in crate::source) fn plain(
        path: &'a Path,
        file: &'a dyn Object,
        length: u64,
        piece: u64,
    ) -> Input<'a> {
        Input { piece, ..Input::new(path, Bytes::Plain(file), length) }
    }

    /// What a compressed file unpacks to, up to `limit` bytes.
    pub(in crate::source) fn stream(
        path: &'a Path,
        reader: Box<dyn Read>,
        limit: u64,
    ) -> Input<'a> {
        Input::new(path, Bytes::Stream(reader), limit)
    }

    /// What a file unpacked to.
    pub(in crate::source) fn memory(path: &'a Path, bytes: &'a [u8]) -> Input<'a> {
        Input::new(path, Bytes::Memory(bytes), bytes.len() as u64)
    }

    fn new(path: &'a Path, reader: Bytes<'a>, length: u64) -> Input<'a> {
        let window = Vec::new();
        Input { path, reader, length, piece: length, window, start: 0, read: 0, held: None }
    }

    /// Counts what the scan keeps with what is kept of other files.
    pub(in crate::source) fn counted(self, held: &'a Held<'a>) -> Input<'a> {
        Input { held: Some((held, 0)), ..self }
    }

    /// Notes what the scan keeps by now, and refuses more than there is memory for. To be called
    /// before that much is there, or soon after.
    pub(in crate::source) fn hold(&mut self, bytes: u64) -> Result<()> {
        let scanned = match self.reader {
            // A stream's length is not known before its end.
            Bytes::Stream(_) => 1000,
            _ => self.start.saturating_mul(1000) / self.length.max(1),
        };
        let Some((held, before)) = &mut self.held else { return Ok(()) };
        let before = std::mem::replace(before, bytes);
        held.change(before, bytes, scanned.clamp(1, 1000))
    }

    /// The file.
    #[allow(dead_code)] // for formats that come
    pub(in crate::source) fn path(&self) -> &'a Path {
        self.path
    }

    /// An error that names the file.
    pub(in crate::source) fn problem(&self, problem: impl Into<String>) -> Error {
        Error::Source { what: self.path.display().to_string(), problem: problem.into() }
    }

    fn failed(&self, source: std::io::Error) -> Error {
        match self.reader {
            // What a decoder complains of is the file's fault, not the system's.
            Bytes::Stream(_) if source.raw_os_error().is_none() => {
                self.problem(format!("cannot be unpacked: {source}"))
            }
            _ => Error::Io { what: "cannot read", path: self.path.to_owned(), source },
        }
    }

    /// Exactly `length` bytes from `at` on. A stream is only read forwards: `at` may not lie before
    /// that of the call before.
    pub(in crate::source) fn bytes(&mut self, at: u64, length: u64) -> Result<&[u8]> {
        if self.some(at, length)?.len() as u64 != length {
            return Err(self.problem(format!(
                "ends before {length} bytes from byte {at} on: it is cut short or damaged"
            )));
        }
        self.some(at, length)
    }

    /// Up to `most` bytes from `at` on, fewer at the end. As [`Input::bytes`] otherwise.
    pub(in crate::source) fn some(&mut self, at: u64, most: u64) -> Result<&[u8]> {
        let end = at.saturating_add(most);
        let inside = at >= self.start && end <= self.start + self.window.len() as u64;
        if !inside {
            match self.reader {
                Bytes::Plain(_) | Bytes::Memory(_) => self.move_to(at, most)?,
                Bytes::Stream(_) => {
                    self.advance(at, end)?;
                }
            }
        }
        let window = self.window.len() as u64;
        let from = at.saturating_sub(self.start).min(window);
        let to = end.saturating_sub(self.start).min(window);
        Ok(&self.window[from as usize..to as usize])
    }

    /// How many bytes there are. A stream is read to its end for it.
    pub(in crate::source) fn length(&mut self) -> Result<u64> {
        match self.reader {
            Bytes::Plain(_) | Bytes::Memory(_) => Ok(self.length),
            Bytes::Stream(_) => {
                // Whole windows, since what is in them is of no use any more.
                while self.advance(self.read, self.read + 1)? {}
                Ok(self.read)
            }
        }
    }

    /// True if there are at least `length` bytes. Needs no reading in a plain file.
    pub(in crate::source) fn reaches(&mut self, length: u64) -> Result<bool> {
        match self.reader {
            Bytes::Plain(_) | Bytes::Memory(_) => Ok(length <= self.length),
            Bytes::Stream(_) => Ok(length == 0 || !self.some(length - 1, 1)?.is_empty()),
        }
    }

    fn move_to(&mut self, at: u64, most: u64) -> Result<()> {
        let length = self.length.saturating_sub(at).min(most.max(PLAIN_WINDOW));
        if length > self.piece.max(PLAIN_WINDOW) {
            return Err(self.too_large(length));
        }
        self.window.clear();
        self.start = at;
        self.window.try_reserve(length as usize).map_err(|_| self.too_large(length))?;
        let file = match self.reader {
            Bytes::Plain(file) => file,
            Bytes::Memory(bytes) => {
                let from = bytes.get(at.min(bytes.len() as u64) as usize..).unwrap_or_default();
                self.window.extend_from_slice(&from[..from.len().min(length as usize)]);
                return Ok(());
            }
            Bytes::Stream(_) => return Ok(()),
        };
        self.window.resize(length as usize, 0);
        let (mut done, mut outcome) = (0, Ok(()));
        while done < self.window.len() {
            match file.read_at(&mut self.window[done..], at + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.window.truncate(done);
        outcome.map_err(|error| self.failed(error))
    }

    fn too_large(&self, length: u64) -> Error {
        self.problem(format!("declares {length} bytes in one piece, more than fit into memory"))
    }

    /// The problem of a stream that is larger than blocks may be. It is read on for a while, to
    /// tell what would be enough.
    fn beyond_memory(&mut self) -> Error {
        let limit = self.length;
        let mut more = "";
        if let Bytes::Stream(reader) = &mut self.reader {
            let on = limit.saturating_mul(3).min(4 << 30);
            let read = std::io::copy(&mut reader.take(on), &mut std::io::sink()).unwrap_or(on);
            self.read += read;
            more = if read == on { "more than " } else { "" };
        }
        let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
        let [all, most] = [self.read, limit].map(megabytes);
        // Blocks have a quarter of the memory.
        let enough = megabytes(self.read.saturating_mul(4));
        self.problem(format!(
            "unpacks to {more}{all} MB, and any of its samples needs all of it, for which {most} MB \
             are allowed: raise memory to {more}{enough} MB, or unpack it (gzip -d, zstd -d), so \
             that samples are read alone"
        ))
    }

    /// Reads on until the window holds `at..end` or the stream is over; false if nothing came.
    fn advance(&mut self, at: u64, end: u64) -> Result<bool> {
        if at < self.start {
            return Err(self.problem("is read backwards, which a compressed file cannot be"));
        }
        let before = self.read;
        loop {
            // What lies before `at` is done with.
            let done = at.min(self.read) - self.start;
            self.window.drain(..done as usize);
            self.start += done;
            if self.read >= end {
                return Ok(true);
            }
            let Bytes::Stream(reader) = &mut self.reader else { return Ok(false) };
            let room = STREAM_WINDOW as u64;
            let read = reader.take(room).read_to_end(&mut self.window);
            let read = read.map_err(|error| self.failed(error))?;
            self.read += read as u64;
            if self.read > self.length {
                return Err(self.beyond_memory());
            }
            if read == 0 {
                return Ok(self.read > before);
            }
        }
    }
}
