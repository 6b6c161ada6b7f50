//! CSV and TSV files of numbers and text.

use std::borrow::Cow;
use std::io::BufReader;
use std::path::Path;

use super::Opening;
use super::rows::Lines;
use super::text_cells::Cell;
use super::text_table::{EachRow, MOST_COLUMNS, Rows, TextTable};
use crate::error::{Fault, Result};
use crate::spec::FieldChoice;
use crate::store::Reader;

/// Opens tables of text.
pub(super) fn open(what: &Path, fields: &[FieldChoice], with: &Opening<'_>) -> Result<TextTable> {
    let paths = super::shards::expand(
        what,
        &[".csv", ".tsv", ".tab", ".csv.gz", ".tsv.gz", ".csv.zst"],
        &**with.store,
    )?;
    let tabs = |path: &Path| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        matches!(ending, Some("tsv" | "tab" | "TSV"))
    };
    let delimiter = if paths.first().is_some_and(|path| tabs(path)) { b'\t' } else { b',' };
    TextTable::open(Box::new(Csv { delimiter }), what, paths, fields, with)
}

struct Csv {
    delimiter: u8,
}

/// A value of a row: where it lies, and whether it is in quotes.
type Span = (usize, usize, bool);

impl Csv {
    /// Finds the values of a row; `false` if a quote is open at its end.
    fn split(&self, row: &[u8], spans: &mut Vec<Span>) -> bool {
        spans.clear();
        let mut begin = 0;
        loop {
            // There are too many, which is told later.
            if spans.len() > MOST_COLUMNS {
                return true;
            }
            if row.get(begin) != Some(&b'"') {
                let end = memchr::memchr(self.delimiter, &row[begin..]).map(|at| begin + at);
                spans.push((begin, end.unwrap_or(row.len()), false));
                match end {
                    Some(end) => begin = end + 1,
                    None => return true,
                }
                continue;
            }
            let mut at = begin + 1;
            loop {
                let Some(quote) = memchr::memchr(b'"', &row[at..]) else { return false };
                at += quote + 1;
                if row.get(at) != Some(&b'"') {
                    break;
                }
                at += 1;
            }
            // What follows the quote belongs to the value, as other readers have it.
            let end = memchr::memchr(self.delimiter, &row[at..]).map(|found| at + found);
            spans.push((begin, end.unwrap_or(row.len()), true));
            match end {
                Some(end) => begin = end + 1,
                None => return true,
            }
        }
    }
}

/// The text of a value.
fn text<'a>(row: &'a [u8], (begin, end, quoted): Span) -> Cow<'a, [u8]> {
    let raw = &row[begin..end];
    if !quoted {
        return Cow::Borrowed(raw);
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut inside = false;
    let mut at = 0;
    while at < raw.len() {
        match (raw[at], inside) {
            (b'"', true) if raw.get(at + 1) == Some(&b'"') => {
                out.push(b'"');
                at += 1;
            }
            (b'"', _) if at == 0 || inside => inside = !inside,
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    Cow::Owned(out)
}

fn word<'a>(row: &'a [u8], span: Span) -> Option<Cow<'a, str>> {
    match text(row, span) {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

impl Rows for Csv {
    fn read(
        &self,
        lines: &mut Lines<BufReader<Reader>>,
        columns: &mut Vec<String>,
        each: &mut EachRow<'_>,
    ) -> Result<(), String> {
        let mut spans = Vec::new();
        let mut header: Option<usize> = None;
        let failed = |error: std::io::Error| error.to_string();
        while lines.advance().map_err(failed)? {
            if lines.line.is_empty() {
                continue;
            }
            let mark = lines.begin == 0 && lines.line.starts_with(b"\xef\xbb\xbf");
            if mark {
                lines.line.drain(..3);
            }
            while !self.split(&lines.line, &mut spans) {
                // The shift by a byte order mark must not look like an end of line.
                if mark {
                    return Err("has a name of several lines".to_owned());
                }
                if !lines.join().map_err(failed)? {
                    return Err("has a quote that is never closed".to_owned());
                }
            }
            let row = &lines.line;
            let words = || spans.iter().map(|span| word(row, *span));
            let Some(count) = header else {
                let names: Option<Vec<Cow<'_, str>>> = words().collect();
                let names = names.ok_or("has a name that is not UTF-8")?;
                let bare = names.iter().all(|name| name.trim().parse::<f64>().is_ok());
                let names: Vec<String> = match bare {
                    true => (0..names.len()).map(|number| number.to_string()).collect(),
                    false => names.iter().map(|name| name.trim().to_owned()).collect(),
                };
                if names.len() > MOST_COLUMNS {
                    return Err(format!("has more than {MOST_COLUMNS} columns"));
                }
                if columns.is_empty() {
                    if let Some(twice) =
                        (1..names.len()).find(|at| names[..*at].contains(&names[*at]))
                    {
                        return Err(format!("has two columns called {:?}", names[twice]));
                    }
                    *columns = names;
                } else if *columns != names {
                    return Err("has other columns than the first file".to_owned());
                }
                header = Some(spans.len());
                if bare {
                    let begin = lines.begin + if mark { 3 } else { 0 };
                    each(begin, row.len(), &mut words().map(cell));
                }
                continue;
            };
            if spans.len() != count {
                return Err(format!("has {} values, the first line {count}", spans.len()));
            }
            each(lines.begin, row.len(), &mut words().map(cell));
        }
        Ok(())
    }

    fn pick(
        &self,
        row: &[u8],
        _columns: &[String],
        column: usize,
        each: &mut dyn FnMut(Cell<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut spans = Vec::new();
        self.split(row, &mut spans);
        let span = spans.get(column).ok_or_else(|| Fault::corrupt("csv", "has changed"))?;
        match word(row, *span) {
            Some(word) => each(Cell::Word(word)),
            None => Err(Fault::corrupt("csv", "is not UTF-8")),
        }
    }
}

/// What is not UTF-8 is text, and told when it is read.
fn cell(word: Option<Cow<'_, str>>) -> Cell<'_> {
    Cell::Word(word.unwrap_or(Cow::Borrowed("\u{fffd}")))
}
