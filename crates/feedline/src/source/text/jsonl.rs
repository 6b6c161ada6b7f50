//! A JSON object a line: numbers, text, and lists of numbers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::{Map, Value};

use super::cells::Cell;
use super::rows::{Lines, invalid};
use super::{EachRow, MOST_COLUMNS, Rows, TextTable};
use crate::error::{Fault, Result};
use crate::source::Opening;
use crate::spec::FieldChoice;
use crate::store::Reader;

/// Opens files of JSON lines.
pub(in crate::source) fn open(
    what: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<TextTable> {
    let paths = crate::source::shards::expand(
        what,
        &[".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst"],
        &**with.store,
    )?;
    TextTable::open(Box::new(Jsonl), what, paths, fields, with)
}

struct Jsonl;

/// A row may hold so many values: each takes far more memory than text.
const MOST_VALUES: usize = 1 << 20;

fn parse(row: &[u8]) -> Result<Map<String, Value>, String> {
    let values = row.iter().filter(|byte| b",[{".contains(byte)).count();
    if values > MOST_VALUES {
        return Err("has more than a million values".to_owned());
    }
    serde_json::from_slice(row).map_err(|error| format!("is not a JSON object: {error}"))
}

/// Reads the next row that is not blank; `None` at the end.
pub(in crate::source) fn next_row<R: BufRead>(
    lines: &mut Lines<R>,
) -> std::io::Result<Option<Map<String, Value>>> {
    while lines.advance()? {
        if !lines.line.iter().all(u8::is_ascii_whitespace) {
            return parse(&lines.line).map(Some).map_err(invalid);
        }
    }
    Ok(None)
}

impl Rows for Jsonl {
    fn read(
        &self,
        lines: &mut Lines<BufReader<Reader>>,
        columns: &mut Vec<String>,
        each: &mut EachRow<'_>,
    ) -> std::io::Result<()> {
        let mut known: HashMap<String, usize> =
            columns.iter().enumerate().map(|(at, name)| (name.clone(), at)).collect();
        while let Some(row) = next_row(lines)? {
            for name in row.keys().filter(|name| !known.contains_key(*name)).collect::<Vec<_>>() {
                if columns.len() >= MOST_COLUMNS {
                    return Err(invalid(format!("has more than {MOST_COLUMNS} names")));
                }
                known.insert(name.clone(), columns.len());
                columns.push(name.clone());
            }
            let cells = columns.iter().map(|name| row.get(name).map_or(Cell::Missing, Cell::Json));
            each(lines.begin, lines.line.len(), &mut { cells });
        }
        Ok(())
    }

    fn pick(
        &self,
        row: &[u8],
        columns: &[String],
        column: usize,
        each: &mut dyn FnMut(Cell<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let row = parse(row).map_err(|problem| Fault::corrupt("jsonl", problem))?;
        each(row.get(&columns[column]).map_or(Cell::Missing, Cell::Json))
    }
}
