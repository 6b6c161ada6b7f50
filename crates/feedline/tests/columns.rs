//! Parquet, Arrow, CSV and JSONL: what is written comes back, and damage does no harm.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::support::{Folder, jpeg};
use feedline::internals::engine::opening;
use feedline::internals::pack::{Given, Record};
use feedline::pack::WriteOptions;
use feedline::sample::{DType, Field, FieldKind, Room, Value};
use feedline::source::{self, Source};
use feedline::spec::{FieldChoice, FieldRole, SourceFormat, SourceKind, Spec};
use feedline::store::{Files, Store};
use feedline::{Fault, Result, pack};

const ROWS: usize = 40;

#[derive(Default)]
struct Memory(Vec<u8>, Vec<usize>);

impl Room for Memory {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        if bytes > 1 << 28 {
            return Err(Fault::TooLarge("too large for a test".to_owned()));
        }
        self.0 = vec![0; bytes as usize];
        Ok(&mut self.0)
    }

    fn shape(&mut self, shape: &[usize]) {
        self.1 = shape.to_vec();
    }
}

fn bytes(source: &dyn Source, row: u64, field: usize) -> Result<(Vec<u8>, Vec<usize>), Fault> {
    Ok(match source.value(row, field)? {
        Value::File(place) => {
            let (begin, length) = place.range.unwrap();
            let mut bytes = vec![0; length as usize];
            let file = std::fs::File::open(place.root.join(place.path))?;
            file.read_exact_at(&mut bytes, begin)?;
            (bytes, Vec::new())
        }
        Value::Bytes(bytes) => (bytes.to_owned(), Vec::new()),
        Value::Int(number) => (number.to_ne_bytes().to_vec(), Vec::new()),
        Value::Float(number) => (number.to_ne_bytes().to_vec(), Vec::new()),
        Value::Made => {
            let mut room = Memory::default();
            source.read(row, field, &mut room)?;
            (room.0, room.1)
        }
        Value::Pixels { .. } => panic!("pixels in a table"),
    })
}

fn open(format: SourceFormat, path: &Path, fields: &[FieldChoice]) -> Result<Arc<dyn Source>> {
    let kind = SourceKind::Format { format, path: path.to_owned(), fields: fields.to_vec() };
    let store: Arc<dyn Store> = Arc::new(Files::default());
    source::open(&kind, &opening(&Spec::default(), &store))
}

fn choice(column: &str, role: Option<FieldRole>) -> FieldChoice {
    let mut choice = FieldChoice::new(column, column);
    choice.role = role;
    choice
}

fn fields() -> Vec<Field> {
    let field = |name: &str, kind| Field { name: name.to_owned(), kind };
    vec![
        field("photo", FieldKind::EncodedImage),
        field("label", FieldKind::scalar(DType::I64)),
        field("score", FieldKind::scalar(DType::F32)),
        field("small", FieldKind::scalar(DType::U8)),
        field("text", FieldKind::Text),
        field("bytes", FieldKind::Bytes),
        field("matrix", FieldKind::Array { dtype: DType::F16, shape: vec![2, 3] }),
        field("flags", FieldKind::Array { dtype: DType::Bool, shape: vec![3] }),
        field("none", FieldKind::Array { dtype: DType::I32, shape: vec![2, 0] }),
        field("boxes", FieldKind::Ragged { dtype: DType::F32, axes: 2 }),
        field("words", FieldKind::Ragged { dtype: DType::I32, axes: 1 }),
    ]
}

/// The fields of sample `row`: bytes and shape.
fn sample(row: usize) -> Vec<(Vec<u8>, Vec<usize>)> {
    let count = row % 4;
    vec![
        (jpeg(row as u64, 8 + row, 8), vec![]),
        ((row as i64 - 5).to_ne_bytes().to_vec(), vec![]),
        ((row as f32 / 3.0).to_ne_bytes().to_vec(), vec![]),
        (vec![row as u8], vec![]),
        (if count == 0 { String::new() } else { format!("tëxt {row}") }.into_bytes(), vec![]),
        (vec![row as u8; count * 5], vec![]),
        ((0..12).map(|at| (row + at) as u8).collect(), vec![2, 3]),
        (vec![(row % 2) as u8, 1, 0], vec![3]),
        (vec![], vec![2, 0]),
        (vec![row as u8; count * 4 * 4], vec![count, 4]),
        (vec![row as u8; count * 4], vec![count]),
    ]
}

fn write(format: SourceFormat, path: &Path, options: &WriteOptions, rows: usize) {
    let mut writer = pack::create(format, path, &fields(), options).unwrap();
    for row in 0..rows {
        let values = sample(row);
        let values: Vec<Given<'_>> =
            values.iter().map(|(bytes, shape)| Given { bytes, shape }).collect();
        writer.put(&Record { key: &format!("sample-{row}"), values: &values }).unwrap();
    }
    assert!(writer.bytes() > 0 || rows == 0);
    writer.finish().unwrap();
}

const WRITTEN: [(SourceFormat, &str); 8] = [
    (SourceFormat::Parquet, "none"),
    (SourceFormat::Parquet, "zstd"),
    (SourceFormat::Parquet, "snappy"),
    (SourceFormat::Parquet, "gzip"),
    (SourceFormat::Parquet, "lz4"),
    (SourceFormat::Arrow, "none"),
    (SourceFormat::Arrow, "zstd"),
    (SourceFormat::Arrow, "lz4"),
];

#[test]
fn what_is_written_comes_back() {
    let folder = Folder::new("columns");
    for (format, compression) in WRITTEN {
        let path = folder.path().join(format!("{compression}.{}", format.name()));
        let compression = Some(compression.to_owned());
        let options = WriteOptions { compression, block_samples: Some(7), ..Default::default() };
        write(format, &path, &options, ROWS);
        let source = open(format, &path, &[]).unwrap();
        assert_eq!(source.len(), ROWS as u64, "{path:?}");
        assert_eq!(source.fields(), fields(), "{path:?}");
        for row in (0..ROWS).rev() {
            for (at, (expected, shape)) in sample(row).into_iter().enumerate() {
                let (found, given) = bytes(&*source, row as u64, at).unwrap();
                assert_eq!(found, expected, "{path:?}, row {row}, {}", fields()[at].name);
                // Lists without elements do not say how long their other axes would be.
                if !given.is_empty() && !expected.is_empty() {
                    assert_eq!(given, shape);
                }
            }
        }
        // No field comes back by its usual name if it was given another.
        assert_eq!(source.fields()[0].name, "photo");
        let again = open(format, &path, &[choice("text", None), choice("label", None)]).unwrap();
        assert_eq!(again.fields().len(), 2);
        assert_ne!(again.fingerprint(), source.fingerprint());
    }
}

#[test]
fn images_lie_in_the_file() {
    let folder = Folder::new("columns-plain");
    for format in [SourceFormat::Parquet, SourceFormat::Arrow] {
        let path = folder.path().join(format.name());
        write(format, &path, &WriteOptions::default(), ROWS);
        let source = open(format, &path, &[choice("photo", None), choice("label", None)]).unwrap();
        assert!(source.blocks().is_none());
        for row in 0..ROWS as u64 {
            assert!(matches!(source.value(row, 0).unwrap(), Value::File(_)));
            assert!(matches!(source.value(row, 1).unwrap(), Value::Int(_)));
        }
    }
}

#[test]
fn an_index_is_kept_and_made_anew() {
    let folder = Folder::new("columns-index");
    let path = folder.path().join("a.parquet");
    let fields = [Field { name: "image".to_owned(), kind: FieldKind::EncodedImage }];
    let put = |path: &Path, fill: u8| {
        let _ = std::fs::remove_file(path);
        let options = WriteOptions::default();
        let mut writer = pack::create(SourceFormat::Parquet, path, &fields, &options).unwrap();
        for row in 0..100 {
            let mut bytes = jpeg(0, 16, 16);
            bytes.resize(60_000 + row, fill);
            let values = [Given { bytes: &bytes, shape: &[] }];
            writer.put(&Record { key: "a", values: &values }).unwrap();
        }
        writer.finish().unwrap();
    };
    let check = |fill: u8| {
        let source = open(SourceFormat::Parquet, &path, &[]).unwrap();
        for row in 0..100 {
            let found = bytes(&*source, row, 0).unwrap().0;
            assert_eq!((found.len(), found.last()), (60_000 + row as usize, Some(&fill)));
        }
    };
    put(&path, 1);
    check(1);
    let index = folder.path().join("a.parquet.feedline-index");
    let kept = std::fs::read(&index).unwrap();
    check(1);
    for at in (0..kept.len()).step_by(97) {
        let mut bad = kept.clone();
        bad[at] ^= 0x10;
        std::fs::write(&index, &bad).unwrap();
        check(1);
    }
    put(&path, 2);
    check(2);
}

/// Opens a damaged file and reads what it can.
fn harmless(format: SourceFormat, path: &Path) {
    if let Ok(source) = open(format, path, &[]) {
        for row in (0..source.len().min(20)).chain([source.len() - 1]) {
            for field in 0..source.fields().len() {
                let _ = bytes(&*source, row, field);
            }
        }
    }
}

#[test]
fn damage_does_no_harm() {
    let folder = Folder::new("columns-damage");
    let good = folder.path().join("good");
    let bad = folder.path().join("bad");
    std::panic::set_hook(Box::new(|_| ()));
    let mut number = 1_u64;
    let mut random = move || {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        number
    };
    for (format, compression) in WRITTEN {
        let compression = Some(compression.to_owned());
        let options = WriteOptions { compression, block_samples: Some(4), ..Default::default() };
        let _ = std::fs::remove_file(&good);
        write(format, &good, &options, 8);
        let whole = std::fs::read(&good).unwrap();
        for end in (0..whole.len()).step_by(41) {
            std::fs::write(&bad, &whole[..end]).unwrap();
            harmless(format, &bad);
        }
        for _ in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..=random() % 3 {
                let at = random() as usize % bytes.len();
                bytes[at] = if random() % 2 == 0 { random() as u8 } else { bytes[at] ^ 1 };
            }
            std::fs::write(&bad, &bytes).unwrap();
            harmless(format, &bad);
        }
    }
    let _ = std::panic::take_hook();
}

#[test]
fn tables_of_text_are_typed_over_all_rows() {
    let folder = Folder::new("columns-text");
    let csv = "\u{feff}name,x,y,flag,note\r\na,1,2.5,true,\"hello, \"\"you\"\"\"\r\n\r\nb,2,3,False,plain\r\n\"ü\",-3,,TRUE,\"two\r\nlines\"\r\n";
    let path = folder.write("a.csv", csv.as_bytes());
    let source = open(SourceFormat::Csv, &path, &[]).unwrap();
    let kinds: Vec<_> = source.fields().iter().map(|field| field.kind.clone()).collect();
    let scalar = FieldKind::scalar;
    assert_eq!(
        kinds,
        [
            FieldKind::Text,
            scalar(DType::I64),
            scalar(DType::F32),
            scalar(DType::Bool),
            FieldKind::Text
        ]
    );
    let text = |row, field| String::from_utf8(bytes(&*source, row, field).unwrap().0).unwrap();
    assert_eq!(text(0, 4), "hello, \"you\"");
    assert_eq!(text(2, 4), "two\r\nlines");
    assert_eq!([text(0, 0), text(1, 0), text(2, 0)], ["a", "b", "ü"]);
    assert!(matches!(source.value(2, 1).unwrap(), Value::Int(-3)));
    assert!(source.value(2, 2).unwrap_err().to_string().contains("no value in column \"y\""));
    // A number may be wanted as it is written.
    let source = open(SourceFormat::Csv, &path, &[choice("x", Some(FieldRole::Text))]).unwrap();
    assert_eq!(bytes(&*source, 2, 0).unwrap().0, b"-3");
    let bare = folder.write("bare.csv", b"1,2\n3,4.5\n");
    let source = open(SourceFormat::Csv, &bare, &[]).unwrap();
    assert_eq!((source.len(), source.fields()[1].name.as_str()), (2, "1"));

    for (name, text, expected) in [
        ("short.csv", "a,b\n1,2\n3\n", "line 3: has 1 values"),
        ("open.csv", "a,b\n1,\"2\n3,4\n", "never closed"),
        ("twice.csv", "a,a\n1,2\n", "two columns called \"a\""),
        ("empty.csv", "a,b\n", "has no rows"),
    ] {
        let path = folder.write(name, text.as_bytes());
        let error = open(SourceFormat::Csv, &path, &[]).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = open(SourceFormat::Csv, &path, &[choice("nme", None)]).err().unwrap();
    assert!(error.to_string().contains("did you mean \"name\"?"), "{error}");
}

#[test]
fn lines_of_json_hold_lists() {
    let folder = Folder::new("columns-json");
    let text = concat!(
        "{\"x\": 1, \"v\": [1, 2], \"r\": [[1.5, 2]], \"s\": \"q\\\"\\u00e9\", \"o\": {}}\n\n",
        "{\"x\": 2, \"v\": [3, 4], \"r\": [], \"s\": null, \"extra\": true}\n",
    );
    let path = folder.write("a.jsonl", text.as_bytes());
    // What cannot be read is not left out in silence.
    let error = open(SourceFormat::Jsonl, &path, &[]).err().unwrap().to_string();
    assert!(error.contains("\"o\"") && error.contains("fields"), "{error}");
    let chosen = ["x", "v", "r", "s", "extra"].map(|name| choice(name, None));
    let source = open(SourceFormat::Jsonl, &path, &chosen).unwrap();
    let names: Vec<_> = source.fields().iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["x", "v", "r", "s", "extra"]);
    assert_eq!(source.fields()[1].kind, FieldKind::Array { dtype: DType::I64, shape: vec![2] });
    assert_eq!(source.fields()[2].kind, FieldKind::Ragged { dtype: DType::F32, axes: 2 });
    assert_eq!(bytes(&*source, 1, 1).unwrap().0, bytemuck::cast_slice::<i64, u8>(&[3, 4]));
    assert_eq!(bytes(&*source, 0, 2).unwrap().1, [1, 2]);
    assert_eq!(bytes(&*source, 1, 2).unwrap(), (vec![], vec![0, 0]));
    assert_eq!(bytes(&*source, 0, 3).unwrap().0, "q\"é".as_bytes());
    assert!(bytes(&*source, 1, 3).is_err());
    assert!(bytes(&*source, 0, 4).is_err());
    let error = open(SourceFormat::Jsonl, &path, &[choice("o", None)]).err().unwrap().to_string();
    assert!(error.contains("objects"), "{error}");
    let path = folder.write("b.jsonl", b"{\"x\": 1}\n[2]\n");
    let error = open(SourceFormat::Jsonl, &path, &[]).err().unwrap().to_string();
    assert!(error.contains("line 2"), "{error}");
}
