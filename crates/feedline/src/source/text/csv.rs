//! CSV and TSV files: their rows, and those of numbers and text as fields.

use std::borrow::Cow;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::cells::Cell;
use super::rows::{Lines, invalid};
use super::{EachRow, MOST_COLUMNS, Rows, TextTable};
use crate::error::{Fault, Result};
use crate::source::Opening;
use crate::spec::FieldChoice;
use crate::store::Reader;

/// Opens tables of text.
pub(in crate::source) fn open(
    what: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<TextTable> {
    let paths = crate::source::shards::expand(
        what,
        &[".csv", ".tsv", ".tab", ".csv.gz", ".tsv.gz", ".csv.zst"],
        &**with.store,
    )?;
    let delimiter = paths.first().map_or(b',', |path| delimiter(path));
    TextTable::open(Box::new(Csv { delimiter }), what, paths, fields, with)
}

/// What separates values, by the file's name.
pub(in crate::source) fn delimiter(path: &Path) -> u8 {
    let is = |ending: &str| path.extension().is_some_and(|own| own.eq_ignore_ascii_case(ending));
    if is("tsv") || is("tab") { b'\t' } else { b',' }
}

struct Csv {
    delimiter: u8,
}

/// A value of a row: where it lies, and whether it is in quotes.
type Span = (usize, usize, bool);

/// The rows of a file, all of as many values as the first.
pub(in crate::source) struct CsvRows<'a, R> {
    pub lines: &'a mut Lines<R>,
    delimiter: u8,
    spans: Vec<Span>,
    width: Option<usize>,
}

impl<'a, R: BufRead> CsvRows<'a, R> {
    pub(in crate::source) fn new(lines: &'a mut Lines<R>, delimiter: u8) -> Self {
        CsvRows { lines, delimiter, spans: Vec::new(), width: None }
    }

    /// Reads the next row that is not blank; `false` at the end.
    pub(in crate::source) fn advance(&mut self) -> std::io::Result<bool> {
        self.spans.clear();
        loop {
            if !self.lines.advance()? {
                return Ok(false);
            }
            if !self.lines.line.is_empty() {
                break;
            }
        }
        let mut searched = 0;
        while !split(&self.lines.line, self.delimiter, &mut self.spans, searched) {
            searched = self.lines.line.len();
            if !self.lines.join()? {
                return Err(invalid("has a quote that is never closed"));
            }
        }
        let found = self.spans.len();
        if found > MOST_COLUMNS {
            return Err(invalid(format!("has more than {MOST_COLUMNS} columns")));
        }
        let row = &self.lines.line;
        let returns = |&(begin, end, quoted): &Span| !quoted && row[begin..end].contains(&b'\r');
        match self.width {
            None if self.spans.iter().any(returns) => {
                Err(invalid("ends its lines with carriage returns: write it with line feeds"))
            }
            Some(width) if width != found => {
                Err(invalid(format!("has {found} values, the first line {width}")))
            }
            _ => {
                self.width = Some(found);
                Ok(true)
            }
        }
    }

    /// The row's values.
    pub(in crate::source) fn values(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.spans.iter().map(|span| text(&self.lines.line, *span))
    }

    /// One of them.
    pub(in crate::source) fn value(&self, number: usize) -> Cow<'_, [u8]> {
        text(&self.lines.line, self.spans[number])
    }
}

/// Adds the values of a row to those that were found; `false` if a quote is open at its end. Of the
/// first of them `searched` bytes of the row have no end: a row of many lines is searched once.
fn split(row: &[u8], delimiter: u8, spans: &mut Vec<Span>, searched: usize) -> bool {
    let mut begin = spans.last().map_or(0, |(_, end, _)| end + 1);
    loop {
        // There are too many, which is reported later.
        if spans.len() > MOST_COLUMNS {
            return true;
        }
        if row.get(begin) != Some(&b'"') {
            let end = memchr::memchr(delimiter, &row[begin..]).map(|at| begin + at);
            spans.push((begin, end.unwrap_or(row.len()), false));
            match end {
                Some(end) => begin = end + 1,
                None => return true,
            }
            continue;
        }
        let mut at = searched.max(begin + 1);
        loop {
            let Some(quote) = memchr::memchr(b'"', &row[at..]) else { return false };
            at += quote + 1;
            if row.get(at) != Some(&b'"') {
                break;
            }
            at += 1;
        }
        // What follows the quote belongs to the value, as other readers have it.
        let end = memchr::memchr(delimiter, &row[at..]).map(|found| at + found);
        spans.push((begin, end.unwrap_or(row.len()), true));
        match end {
            Some(end) => begin = end + 1,
            None => return true,
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

fn word(text: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match text {
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
    ) -> std::io::Result<()> {
        let mut rows = CsvRows::new(lines, self.delimiter);
        if !rows.advance()? {
            return Ok(());
        }
        let names: Option<Vec<Cow<'_, str>>> = rows.values().map(word).collect();
        let names = names.ok_or_else(|| invalid("has a name that is not UTF-8"))?;
        let bare = names.iter().all(|name| name.trim().parse::<f64>().is_ok());
        let names: Vec<String> = match bare {
            true => (0..names.len()).map(|number| number.to_string()).collect(),
            false => names.iter().map(|name| name.trim().to_owned()).collect(),
        };
        if columns.is_empty() {
            if let Some(twice) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
                return Err(invalid(format!("has two columns called {:?}", names[twice])));
            }
            *columns = names;
        } else if *columns != names {
            return Err(invalid("has other columns than the first file"));
        }
        let mut there = bare || rows.advance()?;
        while there {
            each(rows.lines.begin, rows.lines.line.len(), &mut rows.values().map(cell));
            there = rows.advance()?;
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
        split(row, self.delimiter, &mut spans, 0);
        let span = spans.get(column).ok_or_else(|| Fault::corrupt("csv", "has changed"))?;
        match word(text(row, *span)) {
            Some(word) => each(Cell::Word(word)),
            None => Err(Fault::corrupt("csv", "is not UTF-8")),
        }
    }
}

/// What is not UTF-8 is text, and reported when it is read.
fn cell(text: Cow<'_, [u8]>) -> Cell<'_> {
    Cell::Word(word(text).unwrap_or(Cow::Borrowed("\u{fffd}")))
}
