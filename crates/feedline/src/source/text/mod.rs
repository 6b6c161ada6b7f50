//! Tables of text as fields: what CSV and JSONL have in common.
//!
//! What a column holds is decided over all rows. Numbers are kept; of everything else only the
//! places of the rows are known, and a row is read again when it is asked for.

mod cells;
pub(in crate::source) mod csv;
pub(in crate::source) mod jsonl;
pub(in crate::source) mod rows;

use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::buffer;
use crate::error::{Error, Fault, Result};
use crate::sample::{DType, Field, FieldKind, Room, Value};
use crate::source::arrays::Files;
use crate::source::{Needs, Opening, Source, described, field_names, problem};
use crate::spec::{FieldChoice, FieldRole};
use crate::store::Reader;
use cells::{Cell, Seen, number_in, single_in, truth_in, whole_in, write};
use rows::Lines;

/// No row is longer.
pub(in crate::source) const LONGEST_ROW: u64 = 16 << 20;
/// No table has more columns.
pub(in crate::source) const MOST_COLUMNS: usize = 1 << 16;

/// How rows are written.
pub(in crate::source) trait Rows: Send + Sync {
    /// Calls `each` with every row of a file: its place and its values, in the order of
    /// `columns`, to which new ones are added.
    fn read(
        &self,
        lines: &mut Lines<BufReader<Reader>>,
        columns: &mut Vec<String>,
        each: &mut EachRow<'_>,
    ) -> std::io::Result<()>;

    /// The value of one column of a row that is at hand.
    fn pick(
        &self,
        row: &[u8],
        columns: &[String],
        column: usize,
        each: &mut dyn FnMut(Cell<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault>;
}

/// Hears of a row: where it begins, how long it is, its values.
pub(in crate::source) type EachRow<'a> =
    dyn FnMut(u64, usize, &mut dyn Iterator<Item = Cell<'_>>) + 'a;

enum CellData {
    Whole(Vec<i64>),
    Number(Vec<f32>),
    Wide(Vec<f64>),
    Truth(Vec<u8>),
    /// Read from its row each time.
    InRow,
}

struct TextColumn {
    /// Its number in a row.
    number: usize,
    stored: CellData,
    /// A bit for each row without a value, up to the last of those.
    missing: Vec<u8>,
}

/// Rows of text in many files.
pub(in crate::source) struct TextTable {
    rows: Box<dyn Rows>,
    what: String,
    paths: Vec<PathBuf>,
    /// Opened to read rows; empty if all columns are kept.
    files: Files,
    /// Where each file ends, in rows.
    ends: Vec<u64>,
    /// Where each row begins and how long it is; empty if all columns are kept.
    places: Vec<(u64, u32)>,
    names: Vec<String>,
    fields: Vec<Field>,
    columns: Vec<TextColumn>,
}

impl TextTable {
    /// Reads the files twice: to see what the columns hold, and for their values.
    pub(in crate::source) fn open(
        rows: Box<dyn Rows>,
        what: &Path,
        paths: Vec<PathBuf>,
        chosen: &[FieldChoice],
        with: &Opening<'_>,
    ) -> Result<TextTable> {
        let mut table = TextTable {
            rows,
            what: what.display().to_string(),
            paths,
            files: Files::new(with.store),
            ends: Vec::new(),
            places: Vec::new(),
            names: Vec::new(),
            fields: Vec::new(),
            columns: Vec::new(),
        };
        let mut seen: Vec<Seen> = Vec::new();
        let mut names = Vec::new();
        let mut count = 0_u64;
        for path in &table.paths {
            table.scan(path, &mut names, &mut |_, _, cells| {
                count += 1;
                for (at, cell) in cells.enumerate() {
                    if at >= seen.len() {
                        seen.push(Seen::default());
                    }
                    seen[at].see(&cell);
                }
            })?;
            table.ends.push(count);
        }
        table.names = names;
        seen.resize(table.names.len(), Seen::default());
        if count == 0 {
            return Err(table.problem("has no rows"));
        }
        table.choose(&seen, chosen)?;
        // All is known before anything is kept: a row may leave most of its columns out.
        let each = table.columns.iter().map(TextColumn::width).sum::<u64>();
        let places = if table.is_in_rows() { size_of::<(u64, u32)>() as u64 } else { 0 };
        let held = count.saturating_mul(each.saturating_add(places));
        with.check_held(what, held, (1, 1))?;
        table.take()?;
        if !table.places.is_empty() {
            for path in &table.paths {
                table.files.add(path)?;
            }
        }
        Ok(table)
    }

    fn problem(&self, why: impl Into<String>) -> Error {
        problem(&self.what, why.into())
    }

    fn scan(&self, path: &Path, names: &mut Vec<String>, each: &mut EachRow<'_>) -> Result<()> {
        let file = self.files.store().open(path).map_err(|source| Error::Io {
            what: "cannot open",
            path: path.to_owned(),
            source,
        })?;
        let mut start = [0; 4];
        let read = file.read_at(&mut start, 0).unwrap_or(0);
        if start[..read].starts_with(b"\x1f\x8b") || start == *b"\x28\xb5\x2f\xfd" {
            return Err(problem(
                path,
                "is compressed, and compressed tables are not read: unpack it (with gunzip or unzstd), or pack it after that",
            ));
        }
        let reader = BufReader::with_capacity(1 << 17, Reader::new(file));
        let mut lines = Lines::new(reader, LONGEST_ROW, "table");
        self.rows
            .read(&mut lines, names, each)
            .map_err(|error| problem(format!("{}, line {}", path.display(), lines.number), error))
    }

    fn choose(&mut self, seen: &[Seen], chosen: &[FieldChoice]) -> Result<()> {
        let several = "holds values of several types, or objects";
        let mut add = |name: &str, number: usize, role: Option<FieldRole>| -> bool {
            let kind = role.map(field_names::kind_of).or_else(|| seen[number].kind());
            let Some(kind) = kind else { return false };
            let stored = match &kind {
                FieldKind::Array { dtype, shape } if shape.is_empty() => match dtype {
                    DType::Bool => CellData::Truth(Vec::new()),
                    DType::I64 => CellData::Whole(Vec::new()),
                    DType::F64 => CellData::Wide(Vec::new()),
                    _ => CellData::Number(Vec::new()),
                },
                _ => CellData::InRow,
            };
            self.fields.push(Field { name: name.to_owned(), kind });
            self.columns.push(TextColumn { number, stored, missing: Vec::new() });
            true
        };
        let known: Vec<&str> = self.names.iter().map(String::as_str).collect();
        for choice in chosen {
            let number = match field_names::find("column", &choice.column, &known) {
                Ok(number) => number,
                Err(missing) => return Err(self.problem(missing)),
            };
            if choice.role == Some(FieldRole::Image) {
                let text = "holds no images: a table of images' paths is a manifest";
                return Err(self.problem(text));
            }
            if !add(&choice.name, number, choice.role) {
                return Err(self.problem(format!("column {:?} {several}", choice.column)));
            }
        }
        if chosen.is_empty() {
            let mut left_out = None;
            for (number, name) in self.names.iter().enumerate() {
                if !add(name, number, None) && left_out.is_none() {
                    left_out = Some(name);
                }
            }
            // What cannot be read is not left out in silence.
            if let Some(name) = left_out.filter(|_| !self.fields.is_empty()) {
                let text =
                    format!("column {name:?} {several}; choose the other fields with fields");
                return Err(self.problem(text));
            }
        }
        match self.fields.is_empty() {
            true => Err(self.problem(format!("has no column that can be read: each {several}"))),
            false => Ok(()),
        }
    }

    /// Takes the numbers, and the places of the rows if they are needed.
    fn take(&mut self) -> Result<()> {
        let in_rows = self.is_in_rows();
        let count = self.ends.last().copied().unwrap_or(0);
        let mut columns = std::mem::take(&mut self.columns);
        let mut by_number: Vec<Vec<usize>> = vec![Vec::new(); self.names.len()];
        for (at, column) in columns.iter().enumerate() {
            by_number[column.number].push(at);
        }
        let mut places = Vec::new();
        let refused = |fault: Fault| self.problem(fault.to_string());
        if in_rows {
            buffer::reserve(&mut places, count).map_err(refused)?;
        }
        for column in &mut columns {
            column.reserve(count).map_err(refused)?;
        }
        let mut row = 0;
        for path in &self.paths {
            let mut names = self.names.clone();
            self.scan(path, &mut names, &mut |begin, length, cells| {
                let mut cells = cells.enumerate();
                let mut next = cells.next();
                for (number, wanted) in by_number.iter().enumerate() {
                    let cell = match next.take() {
                        Some((at, cell)) if at == number => {
                            next = cells.next();
                            cell
                        }
                        other => {
                            next = other;
                            Cell::Missing
                        }
                    };
                    wanted.iter().for_each(|at| columns[*at].put(&cell, row));
                }
                if in_rows {
                    places.push((begin, length as u32));
                }
                row += 1;
            })?;
        }
        (self.columns, self.places) = (columns, places);
        match self.ends.last() == Some(&row) {
            true => Ok(()),
            false => Err(self.problem("changed while it was read")),
        }
    }

    /// Whether some column is read from its row each time.
    fn is_in_rows(&self) -> bool {
        self.columns.iter().any(|column| matches!(column.stored, CellData::InRow))
    }

    fn missing(&self, index: u64, field: usize) -> Fault {
        let name = &self.names[self.columns[field].number];
        Fault::Unsupported(format!("row {index} has no value in column {name:?}"))
    }
}

impl TextColumn {
    fn put(&mut self, cell: &Cell<'_>, row: u64) {
        fn add<T: Default>(values: &mut Vec<T>, value: Option<T>) -> bool {
            let there = value.is_some();
            values.push(value.unwrap_or_default());
            there
        }
        let there = match &mut self.stored {
            CellData::Whole(values) => add(values, whole_in(cell)),
            CellData::Number(values) => add(values, single_in(cell)),
            CellData::Wide(values) => add(values, number_in(cell)),
            CellData::Truth(values) => add(values, truth_in(cell).map(u8::from)),
            CellData::InRow => true,
        };
        if !there {
            let byte = (row / 8) as usize;
            if byte >= self.missing.len() {
                self.missing.resize(byte + 1, 0);
            }
            self.missing[byte] |= 1 << (row % 8);
        }
    }

    fn lacks(&self, row: u64) -> bool {
        self.missing.get((row / 8) as usize).is_some_and(|byte| byte >> (row % 8) & 1 == 1)
    }

    /// Bytes that are kept of a row, its bit among those that are missing included.
    fn width(&self) -> u64 {
        match &self.stored {
            CellData::Whole(_) | CellData::Wide(_) => 9,
            CellData::Number(_) => 5,
            CellData::Truth(_) => 2,
            CellData::InRow => 0,
        }
    }

    fn reserve(&mut self, rows: u64) -> Result<(), Fault> {
        match &mut self.stored {
            CellData::Whole(values) => buffer::reserve(values, rows),
            CellData::Number(values) => buffer::reserve(values, rows),
            CellData::Wide(values) => buffer::reserve(values, rows),
            CellData::Truth(values) => buffer::reserve(values, rows),
            CellData::InRow => Ok(()),
        }
    }
}

impl Source for TextTable {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        let column = &self.columns[field];
        if column.lacks(index) {
            return Err(self.missing(index, field));
        }
        let at = index as usize;
        Ok(match &column.stored {
            CellData::Whole(values) => Value::Int(values[at]),
            CellData::Number(values) => Value::Float(values[at]),
            CellData::Wide(values) => Value::Bytes(bytemuck::bytes_of(&values[at])),
            CellData::Truth(values) => Value::Bytes(&values[at..=at]),
            CellData::InRow => Value::Made,
        })
    }

    fn read(&self, index: u64, field: usize, room: &mut dyn Room) -> Result<(), Fault> {
        let file = self.ends.partition_point(|end| *end <= index);
        let place = self.places.get(index as usize);
        let (begin, length) = place.ok_or_else(|| self.missing(index, field))?;
        let mut row = buffer::zeroed(u64::from(*length))?;
        self.files.read(file as u32, *begin, &mut row)?;
        let (kind, number) = (&self.fields[field].kind, self.columns[field].number);
        let mut found = false;
        self.rows.pick(&row, &self.names, number, &mut |cell| {
            found = write(&cell, kind, room)?;
            Ok(())
        })?;
        match found {
            true => Ok(()),
            false => Err(self.missing(index, field)),
        }
    }

    fn needs(&self, index: u64, field: usize, each: &mut Needs<'_>) {
        if !matches!(self.columns[field].stored, CellData::InRow) {
            return;
        }
        let file = self.ends.partition_point(|end| *end <= index) as u32;
        if let Some((begin, length)) = self.places.get(index as usize) {
            each(&self.files.location(file, (*begin, u64::from(*length))));
        }
    }

    fn origin(&self, index: u64) -> Option<PathBuf> {
        let file = self.ends.partition_point(|end| *end <= index);
        let row = index - if file == 0 { 0 } else { self.ends[file - 1] };
        Some(PathBuf::from(format!("{}#{row}", self.paths.get(file)?.display())))
    }

    fn fingerprint(&self) -> u64 {
        let start = described(&self.paths, &self.ends, &self.fields, &[]);
        self.columns.iter().fold(start, |hash, column| {
            let bytes: &[u8] = match &column.stored {
                CellData::Whole(values) => bytemuck::cast_slice(values),
                CellData::Number(values) => bytemuck::cast_slice(values),
                CellData::Wide(values) => bytemuck::cast_slice(values),
                CellData::Truth(values) => values,
                CellData::InRow => &[],
            };
            xxhash_rust::xxh3::xxh3_64_with_seed(bytes, hash)
        })
    }

    fn name(&self) -> String {
        self.what.clone()
    }

    fn held(&self) -> u64 {
        let columns = self.columns.iter().map(TextColumn::width).sum::<u64>();
        let places = (self.places.len() * size_of::<(u64, u32)>()) as u64;
        self.len().saturating_mul(columns) + places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::arrays::npy::tests::{Folder, bytes, opening};
    use crate::source::{csv, jsonl};

    fn kinds(path: &Path) -> std::result::Result<Vec<FieldKind>, String> {
        let table = match path.extension().is_some_and(|ending| ending == "jsonl") {
            true => jsonl::open(path, &[], &opening()),
            false => csv::open(path, &[], &opening()),
        };
        let table = table.map_err(|error| error.to_string())?;
        Ok(table.fields().iter().map(|field| field.kind.clone()).collect())
    }

    #[test]
    fn numbers_keep_their_values() {
        let folder = Folder::new();
        let text = b"a,b,c,d,e,f\n0.1,0.5,1e300,1,nan,16777216\n0.2,16777217,1,9223372036854775808,inf,0.5\n";
        let path = folder.write("a.csv", text);
        let scalar = |dtypes: [DType; 6]| dtypes.map(FieldKind::scalar).to_vec();
        let (f, d) = (DType::F32, DType::F64);
        assert_eq!(kinds(&path).unwrap(), scalar([f, d, d, d, f, f]));
        let table = csv::open(&path, &[], &opening()).unwrap();
        assert_eq!(bytes(&table, 1, 1).unwrap(), 16_777_217f64.to_ne_bytes());
        assert_eq!(bytes(&table, 0, 2).unwrap(), 1e300f64.to_ne_bytes());
        let text = b"{\"a\": 0.5, \"b\": 1, \"c\": [1, 0.5]}\n{\"a\": 16777217, \"b\": 18446744073709551615, \"c\": [16777217, 2]}\n";
        let path = folder.write("a.jsonl", text);
        let list = FieldKind::Array { dtype: d, shape: vec![2] };
        assert_eq!(kinds(&path).unwrap(), [FieldKind::scalar(d), FieldKind::scalar(d), list]);
        let table = jsonl::open(&path, &[], &opening()).unwrap();
        let mut list = 16_777_217f64.to_ne_bytes().to_vec();
        list.extend(2f64.to_ne_bytes());
        assert_eq!(bytes(&table, 1, 2).unwrap(), list);
    }

    #[test]
    fn no_column_is_left_out_in_silence() {
        let folder = Folder::new();
        let path = folder.write("a.jsonl", b"{\"a\": 1, \"b\": {\"c\": 1}}\n");
        let error = kinds(&path).unwrap_err();
        assert!(error.contains("\"b\"") && error.contains("with fields"), "{error}");
    }

    #[test]
    fn few_files_are_kept_open() {
        let folder = Folder::new();
        for number in 0..300 {
            folder.write(&format!("{number:03}.csv"), format!("a\nx{number}\n").as_bytes());
        }
        let table = csv::open(&folder.0, &[], &opening()).unwrap();
        for number in 0..300 {
            assert_eq!(bytes(&table, number, 0).unwrap(), format!("x{number}").as_bytes());
        }
        let mine = format!("{}", folder.0.display());
        let open = std::fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
            let link = std::fs::read_link(entry.as_ref().unwrap().path());
            link.is_ok_and(|link| link.starts_with(&mine))
        });
        assert!(open.count() <= 256);
    }

    #[test]
    fn compressed_tables_are_recognised() {
        let folder = Folder::new();
        folder.write("a.csv.gz", b"\x1f\x8b\x08\0");
        folder.write("b.jsonl", b"\x28\xb5\x2f\xfd\0");
        for name in ["", "a.csv.gz", "b.jsonl"] {
            let error = kinds(&folder.0.join(name)).unwrap_err();
            assert!(error.contains("compressed tables are not read"), "{name}: {error}");
        }
    }
}
