//! A JSON object a line: numbers, text, and lists of numbers.

use std::collections::HashMap;
use std::io::BufReader;
use std::path::Path;

use serde_json::{Map, Value};

use super::Opening;
use super::rows::Lines;
use super::text_cells::Cell;
use super::text_table::{EachRow, MOST_COLUMNS, Rows, TextTable};
use crate::error::{Fault, Result};
use crate::spec::FieldChoice;
use crate::store::Reader;

/// Opens files of JSON lines.
pub(super) fn open(what: &Path, fields: &[FieldChoice], with: &Opening<'_>) -> Result<TextTable> {
    let paths = super::shards::expand(
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

impl Rows for Jsonl {
    fn read(
        &self,
        lines: &mut Lines<BufReader<Reader>>,
        columns: &mut Vec<String>,
        each: &mut EachRow<'_>,
    ) -> Result<(), String> {
        let mut known: HashMap<String, usize> =
            columns.iter().enumerate().map(|(at, name)| (name.clone(), at)).collect();
        while lines.advance().map_err(|error| error.to_string())? {
            if lines.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let row = parse(&lines.line)?;
            for name in row.keys().filter(|name| !known.contains_key(*name)).collect::<Vec<_>>() {
                if columns.len() >= MOST_COLUMNS {
                    return Err(format!("has more than {MOST_COLUMNS} names"));
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
