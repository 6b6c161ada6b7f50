//! The header of a .npy file: a Python dict as text, of which only plain literals are read.

use std::fmt::Display;
use std::ops::Range;

use crate::error::Fault;
use crate::source::arrays::{Element, MOST_AXES, elements, from_numpy};

/// A header is text that says three things; NumPy itself refuses more than 10,000 bytes.
pub(in crate::source) const LARGEST: usize = 1 << 20;

/// Literals may be nested so deep: a list of tuples with a tuple in them is all there is.
const DEEPEST: usize = 8;

/// One part of a record, or all of it.
#[derive(Clone)]
pub(in crate::source) struct RecordPart {
    /// Its name; empty if the array has no records.
    pub name: String,
    /// Its type.
    pub element: Element,
    /// Its shape in one record.
    pub shape: Vec<usize>,
    /// Bytes of the record before it.
    pub skip: u64,
}

/// What a header says.
#[derive(Clone)]
pub(in crate::source) struct Header {
    /// Bytes before the elements.
    pub bytes: usize,
    /// What an element consists of.
    pub parts: Vec<RecordPart>,
    /// Bytes of an element.
    pub record: u64,
    /// True when the first axis runs fastest.
    pub fortran: bool,
    /// The array's shape.
    pub shape: Vec<usize>,
}

/// Why an array is refused, as its header stands.
#[derive(Debug)]
pub(in crate::source) enum NpyRefusal {
    /// The bytes are not a header.
    Damaged(String),
    /// Sound, and nothing that a batch can hold.
    Unsupported(String),
    /// The header declares too many bytes.
    TooLarge(String),
}

impl From<NpyRefusal> for String {
    fn from(refusal: NpyRefusal) -> String {
        match refusal {
            NpyRefusal::Damaged(why) | NpyRefusal::Unsupported(why) | NpyRefusal::TooLarge(why) => {
                why
            }
        }
    }
}

impl From<NpyRefusal> for Fault {
    fn from(refusal: NpyRefusal) -> Fault {
        match refusal {
            NpyRefusal::Damaged(why) => Fault::corrupt("npy", why),
            NpyRefusal::Unsupported(why) => Fault::Unsupported(format!("npy: {why}")),
            NpyRefusal::TooLarge(why) => Fault::TooLarge(format!("npy: {why}")),
        }
    }
}

impl Header {
    /// Bytes of all elements, if they can be counted.
    pub(in crate::source) fn data_bytes(&self) -> Option<u64> {
        elements(&self.shape)?.checked_mul(self.record)
    }

    /// Where the header's text starts and ends, from its first 12 bytes (10 in the oldest version).
    /// `Ok(None)` asks for more bytes than these.
    fn extent(file: &[u8]) -> Result<Option<Range<usize>>, NpyRefusal> {
        let Some(start) = file.get(..10) else { return Ok(None) };
        if start[..6] != *b"\x93NUMPY" {
            return Err(NpyRefusal::Damaged("is not a .npy file".to_owned()));
        }
        let (text_start, length) = match start[6] {
            1 => (10, usize::from(u16::from_le_bytes([start[8], start[9]]))),
            2 | 3 => match file.get(8..12) {
                Some(four) => {
                    (12, u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize)
                }
                None => return Ok(None),
            },
            version => {
                let why = format!("has version {version} of .npy, 1 to 3 are known");
                return Err(NpyRefusal::Unsupported(why));
            }
        };
        if length > LARGEST {
            let why = format!("has a header of {length} bytes, {LARGEST} are allowed");
            return Err(NpyRefusal::TooLarge(why));
        }
        Ok(Some(text_start..text_start + length))
    }

    /// Bytes before the elements. `Ok(None)` asks for more bytes than these.
    pub(in crate::source) fn length(file: &[u8]) -> Result<Option<usize>, NpyRefusal> {
        Ok(Header::extent(file)?.map(|text| text.end))
    }

    /// Reads the header that `file` starts with. `Ok(None)` asks for more bytes than these.
    pub(in crate::source) fn parse(file: &[u8]) -> Result<Option<Header>, NpyRefusal> {
        let Some(extent) = Header::extent(file)? else { return Ok(None) };
        let bytes = extent.end;
        let Some(text) = file.get(extent) else { return Ok(None) };
        // Version 3 is UTF-8, the others Latin-1.
        let text: String = match file[6] {
            3 => std::str::from_utf8(text).map_err(|_| damaged("is not UTF-8"))?.to_owned(),
            _ => text.iter().map(|byte| char::from(*byte)).collect(),
        };
        read(&text, bytes).map(Some)
    }
}

fn damaged(problem: impl Display) -> NpyRefusal {
    NpyRefusal::Damaged(format!("has a damaged .npy header: {problem}"))
}

fn read(text: &str, bytes: usize) -> Result<Header, NpyRefusal> {
    let mut literals = Literals { text: text.as_bytes(), at: 0 };
    let Literal::Dict(entries) = literals.next(DEEPEST)? else {
        return Err(damaged("it is not a dict"));
    };
    literals.blank();
    if literals.at != literals.text.len() {
        return Err(damaged("there is more after the dict"));
    }
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    for (key, value) in entries {
        match (key.as_str(), value) {
            ("descr", value) if descr.is_none() => descr = Some(value),
            ("fortran_order", Literal::Bool(value)) if fortran.is_none() => fortran = Some(value),
            ("shape", Literal::List(axes)) if shape.is_none() => shape = Some(axes_of(axes)?),
            (key, _) => return Err(damaged(format!("{key:?} is not expected there"))),
        }
    }
    let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
        return Err(damaged("descr, fortran_order or shape is missing"));
    };
    let (parts, record) = parts_of(descr)?;
    Ok(Header { bytes, parts, record, fortran, shape })
}

fn axes_of(axes: Vec<Literal>) -> Result<Vec<usize>, NpyRefusal> {
    if axes.len() > MOST_AXES {
        return Err(damaged(format!("{} axes", axes.len())));
    }
    let axis = |axis| match axis {
        Literal::Int(axis) => usize::try_from(axis).map_err(|_| damaged("an axis is too long")),
        _ => Err(damaged("an axis is not a number")),
    };
    axes.into_iter().map(axis).collect()
}

/// Parts of a record and its size.
fn parts_of(descr: Literal) -> Result<(Vec<RecordPart>, u64), NpyRefusal> {
    let fields = match descr {
        Literal::Text(text) => {
            let element = from_numpy(&text).map_err(NpyRefusal::Unsupported)?;
            let record = element.width() as u64;
            let part = RecordPart { name: String::new(), element, shape: Vec::new(), skip: 0 };
            return Ok((vec![part], record));
        }
        Literal::List(fields) => fields,
        _ => return Err(damaged("descr is neither a type nor a list of fields")),
    };
    let mut parts = Vec::new();
    let mut record = 0u64;
    for field in fields {
        let Literal::List(field) = field else { return Err(damaged("a field is not a tuple")) };
        let mut field = field.into_iter();
        let (name, kind, shape) = (field.next(), field.next(), field.next());
        let (Some(Literal::Text(name)), Some(Literal::Text(kind)), None) =
            (name, kind, field.next())
        else {
            return Err(NpyRefusal::Unsupported(
                "has records within records, or titles: only records of simple fields can be read"
                    .to_owned(),
            ));
        };
        let shape = match shape {
            None => Vec::new(),
            Some(Literal::List(axes)) => axes_of(axes)?,
            Some(Literal::Int(axis)) => axes_of(vec![Literal::Int(axis)])?,
            Some(_) => return Err(damaged("a field's shape is not a tuple")),
        };
        // Bytes between fields have no name, or are called so.
        let padding = kind.strip_prefix("|V").filter(|_| name.is_empty());
        let (width, element) = match padding {
            Some(digits) => {
                (digits.parse::<u64>().map_err(|_| damaged("a padding has no length"))?, None)
            }
            None => {
                let element = from_numpy(&kind).map_err(NpyRefusal::Unsupported)?;
                (element.width() as u64, Some(element))
            }
        };
        let size = elements(&shape).and_then(|all| all.checked_mul(width));
        let end = size.and_then(|size| record.checked_add(size));
        let end = end.ok_or_else(|| damaged("a record is too long"))?;
        if let Some(element) = element {
            if name.is_empty() || parts.iter().any(|part: &RecordPart| part.name == name) {
                return Err(damaged(format!("a field is called {name:?}")));
            }
            parts.push(RecordPart { name, element, shape, skip: record });
        }
        record = end;
    }
    if parts.is_empty() {
        return Err(NpyRefusal::Unsupported("has records without fields".to_owned()));
    }
    Ok((parts, record))
}

enum Literal {
    Text(String),
    Int(u64),
    Bool(bool),
    /// A list or a tuple.
    List(Vec<Literal>),
    Dict(Vec<(String, Literal)>),
}

/// Reads Python literals one after the other.
struct Literals<'a> {
    text: &'a [u8],
    at: usize,
}

impl Literals<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blank(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// True, and past it, if `byte` comes next after blanks.
    fn skip(&mut self, byte: u8) -> bool {
        self.blank();
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn next(&mut self, depth: usize) -> Result<Literal, NpyRefusal> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(damaged("it is nested too deep"));
        };
        self.blank();
        match self.peek() {
            Some(quote @ (b'\'' | b'"')) => self.quoted(quote).map(Literal::Text),
            Some(digit) if digit.is_ascii_digit() => {
                let start = self.at;
                while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                    self.at += 1;
                }
                let digits = std::str::from_utf8(&self.text[start..self.at]).unwrap_or("");
                // Python 2 wrote long integers with an L.
                if self.peek() == Some(b'L') {
                    self.at += 1;
                }
                digits.parse().map(Literal::Int).map_err(|_| damaged("a number is too large"))
            }
            Some(b'T' | b'F') => {
                for (word, value) in [("True", true), ("False", false)] {
                    if self.text[self.at..].starts_with(word.as_bytes()) {
                        self.at += word.len();
                        return Ok(Literal::Bool(value));
                    }
                }
                Err(damaged("there is a word in it"))
            }
            Some(open @ (b'(' | b'[')) => {
                self.at += 1;
                let close = if open == b'(' { b')' } else { b']' };
                let mut items = Vec::new();
                while !self.skip(close) {
                    items.push(self.next(depth)?);
                    if !self.skip(b',') {
                        if self.skip(close) {
                            // Parentheses around one thing are no tuple.
                            return match (open, items.len(), items.pop()) {
                                (b'(', 1, Some(only)) => Ok(only),
                                (_, _, last) => {
                                    items.extend(last);
                                    Ok(Literal::List(items))
                                }
                            };
                        }
                        return Err(damaged("a list does not end"));
                    }
                }
                Ok(Literal::List(items))
            }
            Some(b'{') => {
                self.at += 1;
                let mut entries = Vec::new();
                while !self.skip(b'}') {
                    let Literal::Text(key) = self.next(depth)? else {
                        return Err(damaged("a key is not text"));
                    };
                    if !self.skip(b':') {
                        return Err(damaged("a key has no value"));
                    }
                    entries.push((key, self.next(depth)?));
                    if !self.skip(b',') {
                        if self.skip(b'}') {
                            break;
                        }
                        return Err(damaged("the dict does not end"));
                    }
                }
                Ok(Literal::Dict(entries))
            }
            _ => Err(damaged("there is something unknown in it")),
        }
    }

    fn quoted(&mut self, quote: u8) -> Result<String, NpyRefusal> {
        self.at += 1;
        let start = self.at;
        while let Some(byte) = self.peek() {
            self.at += 1;
            if byte == quote {
                let text = &self.text[start..self.at - 1];
                return Ok(String::from_utf8_lossy(text).into_owned());
            }
            if byte == b'\\' {
                return Err(damaged("a name has a backslash in it"));
            }
        }
        Err(damaged("a text does not end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn file(version: u8, dict: &str) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((dict.len() as u16).to_le_bytes()),
            _ => bytes.extend((dict.len() as u32).to_le_bytes()),
        }
        bytes.extend(dict.as_bytes());
        bytes
    }

    const PLAIN: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n";
    const RECORD: &str = "{'descr': [('x', '<f4', (2, 3)), ('', '|V4'), ('y', '>i8')], 'fortran_order': False, 'shape': (5,)}";

    #[test]
    fn headers_of_all_versions_are_read() {
        for version in 1..=3 {
            let header = Header::parse(&file(version, PLAIN)).unwrap().unwrap();
            assert_eq!((header.shape.as_slice(), header.record), ([3, 4].as_slice(), 4));
            assert!(!header.fortran);
            assert_eq!(header.data_bytes(), Some(48));
        }
        let header = Header::parse(&file(1, RECORD)).unwrap().unwrap();
        assert_eq!((header.shape.as_slice(), header.record), ([5].as_slice(), 36));
        let parts: Vec<_> = header
            .parts
            .iter()
            .map(|part| (part.name.as_str(), part.skip, part.shape.len()))
            .collect();
        assert_eq!(parts, [("x", 0, 2), ("y", 28, 0)]);
        let scalar = "{'descr': '<i8', 'fortran_order': True, 'shape': ()}";
        assert!(Header::parse(&file(1, scalar)).unwrap().unwrap().shape.is_empty());
    }

    #[test]
    fn what_is_wrong_with_a_header_is_said() {
        let with = |descr: &str, shape: &str| {
            format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}")
        };
        for (text, message) in [
            (with("'|O'", "(3,)"), "pickle"),
            (with("'<c8'", "(3,)"), "cannot be in a batch"),
            (with("[('a', [('b', '<f4')])]", "(3,)"), "records within records"),
            (with("[(('t', 'a'), '<f4')]", "(3,)"), "titles"),
            (with("'<f4'", "(-3,)"), "unknown"),
            (with("'<f4'", "(99999999999999999999,)"), "too large"),
            (with("'<f4'", "3"), "not expected"),
            (with("'<f4'", "((((((((((3,),),),),),),),),),)"), "too deep"),
            (with("'<f4'", "(3,)") + "x", "more after"),
            ("{'descr': '<f4', 'shape': (3,)}".to_owned(), "missing"),
            ("[1, 2]".to_owned(), "not a dict"),
            ("import os".to_owned(), "unknown"),
            ("{'descr': '<f4".to_owned(), "does not end"),
            (with("'<f4'", "(3, 4"), "does not end"),
        ] {
            let error = String::from(Header::parse(&file(1, &text)).map(|_| ()).unwrap_err());
            assert!(error.contains(message), "{text}: {error}");
        }
        assert!(Header::parse(b"PK\x03\x04......").is_err());
        assert!(Header::parse(&file(9, PLAIN)).is_err());
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        for text in [PLAIN, RECORD] {
            for version in [1, 3] {
                let whole = file(version, text);
                for cut in 0..whole.len() {
                    assert!(!matches!(Header::parse(&whole[..cut]), Ok(Some(_))), "{cut}");
                }
                for at in 0..whole.len() {
                    for bit in 0..8 {
                        let mut flipped = whole.clone();
                        flipped[at] ^= 1 << bit;
                        if let Ok(Some(header)) = Header::parse(&flipped) {
                            let _ = header.data_bytes();
                        }
                    }
                }
            }
        }
    }
}
