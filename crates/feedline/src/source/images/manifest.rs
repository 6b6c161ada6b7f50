//! A table of paths and labels: CSV, TSV or JSONL, with a column of paths and columns of labels.
//!
//! Where nothing is said, the label is the column with a usual name, or else the only one beside the
//! paths. A label column whose values are all whole numbers is int64; all numbers, float32; anything
//! else is a class name, numbered in sorted order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, Fault, Result};
use crate::sample::{DType, Field, FieldKind, Location, Value};
use crate::source::names::Names;
use crate::source::text::csv::{self, CsvRows};
use crate::source::text::jsonl;
use crate::source::text::rows::Lines;
use crate::source::{Opening, Source, described, field_names, problem};
use crate::store::Reader;

/// Which columns to use; those with the usual names if not given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Columns {
    /// The column of paths.
    pub path: Option<String>,
    /// The columns that become fields.
    pub labels: Option<Vec<String>>,
}

const PATH_NAMES: [&str; 7] =
    ["path", "file", "filename", "file_name", "filepath", "image", "image_path"];
const LABEL_NAMES: [&str; 5] = ["label", "class", "target", "class_id", "y"];
/// Names of unused columns that are noted, and letters of each, where any row may have others.
const MOST_UNUSED: usize = 100;
const LONGEST_UNUSED: usize = 200;
/// What the name of a class takes beside its text: a string, and a node while classes are sorted.
const CLASS: u64 = 100;
/// A row of a manifest is a path and some labels; a longer one is another kind of file.
const LONGEST_ROW: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::source) enum Format {
    Separated(u8),
    JsonLines,
}

pub(in crate::source) fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "csv" | "tsv" | "tab" => Some(Format::Separated(csv::delimiter(path))),
        "jsonl" | "ndjson" => Some(Format::JsonLines),
        _ => None,
    }
}

/// True unless the table's first row shows that it lists no images: it has no column of paths, or
/// files of another kind are in it. Opening a manifest reports what is wrong with it.
pub(in crate::source) fn looks_like_one(file: &Path, with: &Opening<'_>) -> std::io::Result<bool> {
    let Some(format) = format_of(file) else { return Ok(false) };
    let reader = Reader::new(with.store.open(file)?);
    // A row that is longer is refused later.
    let reader = BufReader::new(reader.take(LONGEST_ROW));
    let mut lines = Lines::new(reader, LONGEST_ROW, "manifest");
    let row = match first_row(&mut lines, format) {
        Err(error) if error.kind() == ErrorKind::InvalidData => return Ok(is_json(file)),
        row => row?,
    };
    let Some((names, values)) = row else { return Ok(true) };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let path = PATH_NAMES.iter().find_map(|name| field_names::position(name, &names));
    let Some(path) = path.map(|at| &values[at]) else { return Ok(false) };
    if path.contains('\n') {
        // A quote that is not closed.
        return Ok(true);
    }
    let path = Path::new(path);
    Ok(crate::source::walk::is_image(path, with.image_extensions) || path.extension().is_none())
}

/// The names of the columns, and the values of the first row as text; empty where there is none.
fn first_row(
    lines: &mut Lines<impl BufRead>,
    format: Format,
) -> std::io::Result<Option<(Vec<String>, Vec<String>)>> {
    let Format::Separated(delimiter) = format else {
        let row = jsonl::next_row(lines)?;
        let text = |(name, value): (String, serde_json::Value)| {
            (name, value.as_str().unwrap_or_default().to_owned())
        };
        return Ok(row.map(|row| row.into_iter().map(text).unzip()));
    };
    let text = |bytes: Cow<'_, [u8]>| String::from_utf8_lossy(&bytes).into_owned();
    let mut rows = CsvRows::new(lines, delimiter);
    rows.advance()?;
    let names: Vec<String> = rows.values().map(text).collect();
    // A row that is cut off begins with its values all the same.
    rows.advance().or_else(|error| match error.kind() {
        ErrorKind::InvalidData => Ok(false),
        _ => Err(error),
    })?;
    let mut values: Vec<String> = rows.values().map(text).collect();
    values.resize(names.len(), String::new());
    Ok(Some((names, values)))
}

pub(in crate::source) fn is_json(path: &Path) -> bool {
    format_of(path) == Some(Format::JsonLines)
}

enum Labels {
    Whole(Vec<i64>),
    Number(Vec<f32>),
}

/// The images that a table lists.
pub(crate) struct Manifest {
    file: PathBuf,
    root: PathBuf,
    names: Names,
    labels: Vec<Labels>,
    fields: Vec<Field>,
    classes: Vec<String>,
    unused: Vec<String>,
}

impl Manifest {
    /// Reads the whole table.
    pub(crate) fn open(
        file: &Path,
        columns: &Columns,
        root: Option<&Path>,
        with: &Opening<'_>,
    ) -> Result<Manifest> {
        let reader = with.store.open(file).map_err(|source| Error::Io {
            what: "cannot open",
            path: file.to_owned(),
            source,
        })?;
        let format = format_of(file)
            .ok_or_else(|| problem(file, "has no known ending: expected .csv, .tsv or .jsonl"))?;
        let (length, reader) = (reader.len(), Reader::new(reader));
        let mut rows = Rows {
            file,
            columns,
            names: Names::default(),
            labels: Vec::new(),
            unused: Vec::new(),
            guessed: false,
            line: 0,
            length,
            with,
        };
        let mut lines = Lines::new(BufReader::new(reader), LONGEST_ROW, "manifest");
        match format {
            Format::Separated(delimiter) => rows.read_separated(&mut lines, delimiter)?,
            Format::JsonLines => rows.read_json(&mut lines)?,
        }
        if rows.names.len() == 0 {
            return Err(rows.problem("lists no samples"));
        }
        rows.check_held(length)?;
        rows.names.shrink();
        let mut manifest = Manifest {
            file: file.to_owned(),
            root: root.or(file.parent()).unwrap_or(Path::new("")).to_owned(),
            names: rows.names,
            labels: Vec::new(),
            fields: vec![Field { name: "image".to_owned(), kind: FieldKind::EncodedImage }],
            classes: Vec::new(),
            unused: rows.unused,
        };
        for (name, column) in rows.labels {
            let (labels, classes) = read_labels(&column);
            drop(column);
            let dtype = match labels {
                Labels::Whole(_) => DType::I64,
                Labels::Number(_) => DType::F32,
            };
            manifest
                .fields
                .push(Field { name, kind: FieldKind::Array { dtype, shape: Vec::new() } });
            manifest.labels.push(labels);
            if manifest.classes.is_empty() {
                manifest.classes = classes;
            }
        }
        with.check_held(file, manifest.held(), (length, length))?;
        Ok(manifest)
    }
}

/// One label column as it is written. What it is shows only when all of it is known: "001" is a
/// number until a name comes, and then a name.
fn read_labels(texts: &Names) -> (Labels, Vec<String>) {
    if let Ok(values) = texts.texts().map(|text| text.trim().parse()).collect() {
        return (Labels::Whole(values), Vec::new());
    }
    let number = |text: &str| text.trim().parse().ok().filter(|x: &f64| x.is_finite());
    let single = |text: &str| number(text).map(|x| x as f32);
    if let Some(values) = texts.texts().map(single).collect() {
        return (Labels::Number(values), Vec::new());
    }
    let mut classes: BTreeMap<&str, i64> = texts.texts().map(|text| (text, 0)).collect();
    classes.values_mut().enumerate().for_each(|(at, number)| *number = at as i64);
    let numbers = texts.texts().map(|text| classes[text]).collect();
    (Labels::Whole(numbers), classes.into_keys().map(str::to_owned).collect())
}

struct Rows<'a> {
    file: &'a Path,
    columns: &'a Columns,
    names: Names,
    labels: Vec<(String, Names)>,
    unused: Vec<String>,
    /// The label is a column without a usual name, as there is no other.
    guessed: bool,
    line: u64,
    /// Bytes of the file.
    length: u64,
    with: &'a Opening<'a>,
}

impl Rows<'_> {
    fn problem(&self, why: impl std::fmt::Display) -> Error {
        let place = if self.line > 0 { format!(", line {}", self.line) } else { String::new() };
        problem(format!("{}{place}", self.file.display()), why)
    }

    /// A row without a label.
    fn no_label(&self, what: &str, column: &str) -> Error {
        let guess = match self.guessed {
            true => ", the only column beside the paths: label_columns = [] leaves it out",
            false => "",
        };
        self.problem(format!("has no {what} for {column}{guess}"))
    }

    /// The columns to read, given those that there are. `is_label` says whether a column can be one.
    fn choose(
        &mut self,
        known: &[&str],
        is_label: &dyn Fn(&str) -> bool,
    ) -> Result<(String, Vec<String>)> {
        let exact = |name: &str| field_names::position(name, known).map(|at| known[at].to_owned());
        let given = |name: &String| {
            exact(name).ok_or_else(|| self.problem(field_names::missing("column", name, known)))
        };
        let path = match &self.columns.path {
            Some(name) => given(name)?,
            None => PATH_NAMES.iter().find_map(|name| exact(name)).ok_or_else(|| {
                self.problem(format!(
                    "has no column called {}, only {}: name it with path_column",
                    PATH_NAMES.join(", "),
                    field_names::listed(known)
                ))
            })?,
        };
        let labels = match &self.columns.labels {
            Some(names) => names.iter().map(given).collect::<Result<_>>()?,
            None => {
                // A table's index is often a column without a name.
                let others =
                    || known.iter().filter(|name| **name != path && !name.trim().is_empty());
                let only = || match others().collect::<Vec<_>>()[..] {
                    [only] if is_label(only) && only.trim() != "image" => Some((*only).to_owned()),
                    _ => None,
                };
                let usual = LABEL_NAMES.iter().find_map(|name| exact(name));
                let guess = usual.is_none().then(only).flatten();
                let label = usual.or_else(|| guess.clone());
                let unused = others().filter(|name| label.as_deref() != Some(**name));
                let unused = unused.map(|name| name.trim().to_owned()).collect();
                (self.guessed, self.unused) = (guess.is_some(), unused);
                label.into_iter().collect::<Vec<_>>()
            }
        };
        let mut names: Vec<&str> = labels.iter().map(|name| name.trim()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) || names.contains(&"image") {
            return Err(self.problem("label_columns names a column twice, or one called \"image\", which is the image's own name"));
        }
        self.labels = labels.iter().map(|n| (n.trim().to_owned(), Names::default())).collect();
        Ok((path, labels))
    }

    /// Refuses what takes more memory than is given; `read` bytes of the file were read.
    fn check_held(&self, read: u64) -> Result<()> {
        // Labels are numbers in the end, beside which their texts are still there.
        let labels = self.labels.iter().map(|(_, texts)| texts.held() + 8 * texts.len());
        let held = self.names.held() + labels.sum::<u64>();
        self.with.check_held(self.file, held, (read, self.length))
    }

    fn push_path(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() || path.contains(&0) {
            return Err(self.problem("has an empty path, or one with a zero byte"));
        }
        self.names.push(path);
        Ok(())
    }

    fn read_separated(&mut self, lines: &mut Lines<impl BufRead>, delimiter: u8) -> Result<()> {
        let mut rows = CsvRows::new(lines, delimiter);
        let there = rows.advance();
        self.line = rows.lines.number;
        there.map_err(|e| self.problem(e))?;
        let known: Vec<String> =
            rows.values().map(|name| String::from_utf8_lossy(&name).into_owned()).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let (path, labels) = self.choose(&known, &|_| true)?;
        let at = |name: &String| known.iter().position(|k| k == name).unwrap_or(0);
        let path = at(&path);
        let labels: Vec<usize> = labels.iter().map(at).collect();
        loop {
            let there = rows.advance();
            self.line = rows.lines.number;
            if !there.map_err(|e| self.problem(e))? {
                self.line = 0;
                return Ok(());
            }
            self.push_path(&rows.value(path))?;
            for (column, at) in labels.iter().enumerate() {
                let text = rows.value(*at);
                let text = std::str::from_utf8(&text)
                    .map_err(|_| self.problem("has a label that is not UTF-8"))?;
                if text.is_empty() {
                    return Err(self.no_label("value", known[*at]));
                }
                self.labels[column].1.push(text.as_bytes());
            }
            self.check_held(rows.lines.next)?;
        }
    }

    /// Looks at the columns of a row that the first one did not have: each row of JSON has its own.
    fn note_others(
        &mut self,
        row: &serde_json::Map<String, serde_json::Value>,
        path: &str,
        labels: &[String],
    ) -> Result<()> {
        for name in row.keys().filter(|name| *name != path && !labels.contains(name)) {
            let name: String = name.trim().chars().take(LONGEST_UNUSED).collect();
            if name.is_empty() || self.unused.contains(&name) {
                continue;
            }
            let unlabelled = self.guessed || labels.is_empty();
            if unlabelled && LABEL_NAMES.contains(&&*name) {
                return Err(self.problem(format!(
                    "has a {name}, which the first row lacks: every row needs a label, or none; label_columns names it, or is [] to leave it out"
                )));
            }
            if self.unused.len() < MOST_UNUSED {
                self.unused.push(name);
            }
        }
        Ok(())
    }

    fn read_json(&mut self, lines: &mut Lines<impl BufRead>) -> Result<()> {
        let mut chosen: Option<(String, Vec<String>)> = None;
        loop {
            let row = jsonl::next_row(lines);
            self.line = lines.number;
            let Some(row) = row.map_err(|e| self.problem(e))? else {
                self.line = 0;
                return Ok(());
            };
            let is_first = chosen.is_none();
            let (path, labels) = match &chosen {
                Some(chosen) => chosen,
                None => {
                    let known: Vec<&str> = row.keys().map(String::as_str).collect();
                    let is_label = |name: &str| {
                        row.get(name)
                            .is_some_and(|v| v.is_string() || v.is_number() || v.is_boolean())
                    };
                    chosen.insert(self.choose(&known, &is_label)?)
                }
            };
            if !is_first && self.columns.labels.is_none() {
                self.note_others(&row, path, labels)?;
            }
            let Some(serde_json::Value::String(text)) = row.get(path) else {
                return Err(self.problem(format!("has no text for {path}")));
            };
            self.push_path(text.as_bytes())?;
            for (column, name) in labels.iter().enumerate() {
                match row.get(name) {
                    Some(serde_json::Value::String(text)) => {
                        self.labels[column].1.push(text.as_bytes());
                    }
                    Some(value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => {
                        self.labels[column].1.push(value.to_string().as_bytes());
                    }
                    _ => return Err(self.no_label("text or number", name)),
                }
            }
            self.check_held(lines.next)?;
        }
    }
}

impl Source for Manifest {
    fn len(&self) -> u64 {
        self.names.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        if field == 0 {
            return Ok(Value::File(Location {
                root: &self.root,
                path: self.names.get(index),
                range: None,
                stamp: None,
            }));
        }
        Ok(match &self.labels[field - 1] {
            Labels::Whole(values) => Value::Int(values[index as usize]),
            Labels::Number(values) => Value::Float(values[index as usize]),
        })
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn unused_columns(&self) -> &[String] {
        &self.unused
    }

    fn fingerprint(&self) -> u64 {
        let start = described(&[], &[], &self.fields, &self.classes);
        self.labels.iter().fold(self.names.fingerprint(start), |hash, labels| {
            let bytes: &[u8] = match labels {
                Labels::Whole(values) => bytemuck::cast_slice(values),
                Labels::Number(values) => bytemuck::cast_slice(values),
            };
            xxhash_rust::xxh3::xxh3_64_with_seed(bytes, hash)
        })
    }

    fn name(&self) -> String {
        self.file.display().to_string()
    }

    fn held(&self) -> u64 {
        let labels = self.labels.iter().map(|labels| match labels {
            Labels::Whole(values) => 8 * values.len() as u64,
            Labels::Number(values) => 4 * values.len() as u64,
        });
        let classes = self.classes.iter().map(|class| class.len() as u64 + CLASS);
        self.names.held() + labels.sum::<u64>() + classes.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::arrays::npy::tests::{Folder, opening};

    fn open(folder: &Folder, text: &str) -> Result<Manifest> {
        let path = folder.write("a.jsonl", text.as_bytes());
        Manifest::open(&path, &Columns::default(), None, &opening())
    }

    #[test]
    fn columns_that_only_later_rows_have_are_not_passed_over() {
        let folder = Folder::new();
        let text = "{\"path\": \"a.jpg\"}\n{\"path\": \"b.jpg\", \"label\": 3}\n";
        let error = open(&folder, text).err().unwrap().to_string();
        assert!(error.contains("line 2") && error.contains("label_columns"), "{error}");
        let text = "{\"path\": \"a.jpg\", \"label\": 1}\n{\"path\": \"b.jpg\", \"label\": 3, \"size\": 7}\n";
        let manifest = open(&folder, text).unwrap();
        assert_eq!((manifest.fields.len(), &manifest.unused[..]), (2, &["size".to_owned()][..]));
        // Who says that there is no label has none.
        let path = folder.write("b.jsonl", b"{\"path\": \"a\"}\n{\"path\": \"b\", \"y\": 3}\n");
        let none = Columns { labels: Some(Vec::new()), ..Columns::default() };
        assert_eq!(Manifest::open(&path, &none, None, &opening()).unwrap().fields.len(), 1);
    }

    #[test]
    fn names_of_classes_count_as_held() {
        let folder = Folder::new();
        let rows = |each: &dyn Fn(usize) -> usize| -> String {
            let row =
                |row| format!("{{\"path\": \"a.jpg\", \"label\": \"class {:04}\"}}\n", each(row));
            (0..5000).map(row).collect()
        };
        let one = open(&folder, &rows(&|_| 0)).unwrap().held();
        let many = open(&folder, &rows(&|row| row)).unwrap().held();
        assert!(many >= one + 4999 * 100, "{one} {many}");
    }
}
