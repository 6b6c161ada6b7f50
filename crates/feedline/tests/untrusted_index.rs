//! Lists of samples that come from somebody else: indexes that say something else than their file,
//! trees and lists that declare more than there is. What does not fit its file is made anew, and
//! whatever is declared, opening takes no more than `memory` and 64 MB.
#![allow(clippy::unwrap_used)]

#[path = "support/counting.rs"]
mod counting;
mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counting::{Counting, measured};
use feedline::error::Result;
use feedline::internals::engine::opening;
use feedline::internals::pack::{Given, Record};
use feedline::pack;
use feedline::pack::WriteOptions;
use feedline::sample::{DType, Field, FieldKind, Room, Value};
use feedline::source::{self, Source};
use feedline::spec::{FieldChoice, SourceFormat, SourceKind, Spec};
use feedline::store::{Files, Store};
use feedline::{Error, Fault};
use serde_json::json;
use support::Folder;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MEMORY: u64 = 64 << 20;
/// What opening may take: `memory`, and what everything else is.
const LIMIT: i64 = MEMORY as i64 + (64 << 20);

/// Tests take turns, since all of them count together.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_with(
    format: SourceFormat,
    path: &Path,
    fields: &[&str],
    memory: u64,
) -> Result<Arc<dyn Source>> {
    let fields = fields.iter().map(|name| FieldChoice::new(*name, *name));
    let kind = SourceKind::Format { format, path: path.to_owned(), fields: fields.collect() };
    let store: Arc<dyn Store> = Arc::new(Files::default());
    let spec = Spec::default().with(|spec| spec.memory = Some(memory));
    source::open(&kind, &opening(&spec, &store))
}

fn open(format: SourceFormat, path: &Path, fields: &[&str]) -> Result<Arc<dyn Source>> {
    open_with(format, path, fields, MEMORY)
}

/// The error of a set that takes too much, once it is sure that finding out did not.
fn refused(format: SourceFormat, path: &Path) -> Error {
    let (opened, most) = measured(|| open(format, path, &[]));
    assert!(most <= LIMIT, "{} took {most} bytes", path.display());
    let error = opened.err().unwrap();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    error
}

#[derive(Default)]
struct Taken(Vec<u8>);

impl Room for Taken {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        assert!(bytes < 1 << 28, "{bytes} bytes are asked for");
        self.0 = vec![0; bytes as usize];
        Ok(&mut self.0)
    }
}

fn taken(source: &dyn Source, index: u64, field: usize) -> Result<Vec<u8>, Fault> {
    let mut room = Taken::default();
    match source.value(index, field)? {
        Value::Int(number) => room.0 = number.to_le_bytes().to_vec(),
        Value::Float(number) => room.0 = number.to_le_bytes().to_vec(),
        Value::File(place) => {
            let (at, length) = place.range.unwrap();
            let file = fs::File::open(place.root.join(place.path))?;
            file.read_exact_at(room.make(length)?, at)?;
        }
        Value::Made => source.read(index, field, &mut room)?,
        other => panic!("{other:?}"),
    }
    Ok(room.0)
}

/// What is in a set: its fields and classes, and everything of every sample.
fn contents(source: &dyn Source) -> String {
    let mut out = format!("{:?} {:?}\n", source.fields(), source.classes());
    for index in 0..source.len() {
        out += &format!("{:?}", source.origin(index));
        for field in 0..source.fields().len() {
            out +=
                &format!(" {:?}", taken(source, index, field).map_err(|fault| fault.to_string()));
        }
        out.push('\n');
    }
    out
}

fn index_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.feedline-index", path.display()))
}

/// A column of an index: what its head says, and its three parts.
struct IndexColumn {
    places: Vec<[u64; 2]>,
    values: Vec<u8>,
    extra: Vec<u8>,
}

/// An index taken apart.
struct Index {
    head: serde_json::Value,
    ends: Vec<u8>,
    columns: Vec<IndexColumn>,
    text: Vec<u8>,
}

const MAGIC: usize = 16;

impl Index {
    fn read(path: &Path) -> Index {
        let bytes = fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[MAGIC..24].try_into().unwrap()) as usize;
        let head: serde_json::Value = serde_json::from_slice(&bytes[24..24 + length]).unwrap();
        let samples = head["samples"].as_u64().unwrap() as usize;
        let mut rest = &bytes[24 + length..bytes.len() - 8];
        let mut take = |count: usize| rest.split_off(..count).unwrap().to_vec();
        let ends = take(8 * samples);
        let mut columns = Vec::new();
        for column in head["columns"].as_array().unwrap() {
            let there = |key: &str| if column[key] == true { samples } else { 0 };
            let number = |eight: &[u8]| u64::from_le_bytes(eight.try_into().unwrap());
            let places = take(16 * there("places"));
            let places = places.chunks_exact(16).map(|p| [number(&p[..8]), number(&p[8..])]);
            let values = match column["values"].as_str().unwrap() {
                "Int" => 8,
                "Float" => 4,
                _ => 0,
            };
            let values = take(values * samples);
            columns.push(IndexColumn {
                places: places.collect(),
                values,
                extra: take(8 * there("extra")),
            });
        }
        let text = take(head["text"].as_u64().unwrap() as usize);
        Index { head, ends, columns, text }
    }

    fn write(&self, path: &Path) {
        let head = self.head.to_string();
        let mut out = fs::read(path).unwrap()[..MAGIC].to_vec();
        out.extend((head.len() as u64).to_le_bytes());
        out.extend(head.as_bytes());
        out.extend(&self.ends);
        for column in &self.columns {
            column.places.iter().flatten().for_each(|number| out.extend(number.to_le_bytes()));
            out.extend(&column.values);
            out.extend(&column.extra);
        }
        out.extend(&self.text);
        out.extend(xxhash_rust::xxh3::xxh3_64(&out).to_le_bytes());
        fs::write(path, out).unwrap();
    }

    fn number(&self, name: &str) -> usize {
        let columns = self.head["columns"].as_array().unwrap();
        columns.iter().position(|column| column["name"] == name).unwrap()
    }

    /// Says 7 for every number of a column.
    fn set_values(&mut self, name: &str) {
        let at = self.number(name);
        let seven = match self.head["columns"][at]["values"].as_str().unwrap() {
            "Int" => 7_i64.to_le_bytes().to_vec(),
            _ => 7_f32.to_le_bytes().to_vec(),
        };
        let column = &mut self.columns[at];
        column.values = seven.repeat(column.values.len() / seven.len());
    }

    fn drop_places(&mut self, name: &str) {
        let at = self.number(name);
        self.head["columns"][at]["places"] = false.into();
        self.columns[at].places.clear();
    }
}

type Forgery = (&'static str, fn(&mut Index));

/// Opens a set after each forgery of its index: it has to be what it was, and the index too.
fn corrected(
    format: SourceFormat,
    set: &Path,
    file: &Path,
    fields: &[&str],
    forgeries: &[Forgery],
) {
    let right = contents(&*open(format, set, fields).unwrap());
    let path = index_of(file);
    let whole = fs::read(&path).unwrap();
    let written = || fs::metadata(&path).unwrap().ino();
    let before = written();
    assert_eq!(contents(&*open(format, set, fields).unwrap()), right);
    assert_eq!(written(), before, "an honest index is used");
    for (what, forge) in forgeries {
        let mut index = Index::read(&path);
        index.write(&path);
        assert!(fs::read(&path).unwrap() == whole, "taken apart and joined it is the same");
        forge(&mut index);
        index.write(&path);
        assert!(fs::read(&path).unwrap() != whole, "{what} is a change");
        assert_eq!(contents(&*open(format, set, fields).unwrap()), right, "{what}");
        assert!(fs::read(&path).unwrap() == whole, "after {what} the index is made anew");
    }
}

/// Samples of each set: few enough for all of them to be compared.
const SAMPLES: usize = 50;

fn text(n: usize) -> Vec<u8> {
    format!("text {n:02} ").repeat(200).into_bytes()
}

fn tar_archive() -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for n in 0..SAMPLES {
        let numbers = format!("{{\"k\": {n}, \"f\": {n}.5, \"s\": \"x\"}}");
        let array = {
            let head = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
            let mut array = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
            array.extend_from_slice(format!("{head:<117}\n").as_bytes());
            array.extend([n as f32, 0.5].iter().flat_map(|number| number.to_le_bytes()));
            array
        };
        for (kind, bytes) in [
            ("txt", text(n)),
            ("cls", n.to_string().into_bytes()),
            ("id", (1000 + n).to_string().into_bytes()),
            ("json", numbers.into_bytes()),
            ("npy", array),
        ] {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            out.append_data(&mut header, format!("a/{n:03}.{kind}"), &bytes[..]).unwrap();
        }
    }
    out.into_inner().unwrap()
}

const TAR_FIELDS: [&str; 6] = ["txt", "cls", "id", "json.k", "json.f", "npy"];

fn shape_of_one(index: &mut Index, dtype: &str) {
    let at = index.number("npy");
    index.head["columns"][at]["content"]["Array"]["dtype"] = dtype.into();
}

#[test]
fn an_index_of_a_tar_is_compared_with_its_members() {
    let _turn = turn();
    let folder = Folder::new("forged-tar");
    let path = folder.write("a.tar", &tar_archive());
    let forgeries: [Forgery; 9] = [
        ("another label", |index| index.set_values("cls")),
        ("labels without places", |index| {
            index.set_values("cls");
            index.drop_places("cls");
        }),
        ("labels that are hidden", |index| {
            index.set_values("cls");
            let at = index.number("cls");
            index.head["columns"][at]["hidden"] = true.into();
        }),
        ("whole numbers of JSON", |index| index.set_values("json.k")),
        ("numbers of JSON", |index| index.set_values("json.f")),
        ("numbers of JSON without places", |index| {
            index.set_values("json.k");
            index.drop_places("json.k");
        }),
        ("a column under the name of another", |index| {
            let (label, id) = (index.number("cls"), index.number("id"));
            index.head["columns"][label]["name"] = "id".into();
            index.head["columns"][id]["name"] = "cls".into();
        }),
        ("another type of arrays", |index| shape_of_one(index, "int32")),
        ("a compression", |index| index.head["compression"] = "Gzip".into()),
    ];
    corrected(SourceFormat::Tar, &path, &path, &TAR_FIELDS, &forgeries);
    // The field of the label is another column's.
    let forgeries: [Forgery; 1] = [("another field", |index| {
        let (label, id) = (index.number("cls"), index.number("id"));
        index.head["columns"][label]["field"] = "id".into();
        index.head["columns"][id]["field"] = "label".into();
    })];
    corrected(SourceFormat::Tar, &path, &path, &[], &forgeries);
}

#[test]
fn an_index_of_a_compressed_shard_is_compared_when_it_is_unpacked() {
    let _turn = turn();
    let folder = Folder::new("forged-gzip");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    packed.write_all(&tar_archive()).unwrap();
    let path = folder.write("a.tar.gz", &packed.finish().unwrap());
    let get = || open(SourceFormat::Tar, &path, &TAR_FIELDS).unwrap();
    let right = contents(&*get());
    let before = fs::metadata(index_of(&path)).unwrap().ino();
    assert_eq!(contents(&*get()), right, "by its index");
    assert_eq!(fs::metadata(index_of(&path)).unwrap().ino(), before);
    let whole = fs::read(index_of(&path)).unwrap();
    for column in ["cls", "json.k", "json.f"] {
        fs::write(index_of(&path), &whole).unwrap();
        let mut index = Index::read(&index_of(&path));
        index.set_values(column);
        index.write(&index_of(&path));
        let source = get();
        let field = TAR_FIELDS.iter().position(|name| *name == column).unwrap();
        let error = taken(&*source, 3, field).unwrap_err().to_string();
        assert!(error.contains("remove") && error.contains("a.tar.gz.feedline-index"), "{error}");
    }
    // It is no other number of samples, and no larger than it is.
    fs::write(index_of(&path), &whole).unwrap();
    let mut index = Index::read(&index_of(&path));
    index.head["compression"] = "None".into();
    index.head["length"] = fs::metadata(&path).unwrap().len().into();
    index.write(&index_of(&path));
    assert_eq!(contents(&*get()), right);
}

fn zip_archive(compressed: bool) -> Vec<u8> {
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let method = match compressed {
        true => zip::CompressionMethod::Deflated,
        false => zip::CompressionMethod::Stored,
    };
    for n in 0..SAMPLES {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        let class = ["cat", "dog", "emu"][n % 3];
        out.start_file(format!("set/{class}/{n:03}.png"), options).unwrap();
        let noise: Vec<u8> =
            (0..2000).flat_map(|m| (n * 7919 + m * m * 31).to_le_bytes()).collect();
        out.write_all(&noise).unwrap();
    }
    out.finish().unwrap().into_inner()
}

#[test]
fn labels_of_a_zip_are_its_folders() {
    let _turn = turn();
    let folder = Folder::new("forged-zip");
    let label = json!({"name": "label", "field": "label", "hidden": false, "content": "Number",
        "encoding": "Plain", "places": false, "values": "Int", "extra": false});
    for compressed in [false, true] {
        let path = folder.write("a.zip", &zip_archive(compressed));
        let right = contents(&*open(SourceFormat::Zip, &path, &[]).unwrap());
        assert!(right.contains("[\"cat\", \"dog\", \"emu\"]"), "{}", &right[..200]);
        // Labels and classes of a forged index, whether it had such columns or not.
        let mut index = Index::read(&index_of(&path));
        index.head["classes"] = json!(["a", "b", "c", "d", "e", "f", "g", "h"]);
        let columns = index.head["columns"].as_array_mut().unwrap();
        columns.retain(|column| column["name"] != "label");
        columns.push(label.clone());
        index.columns.truncate(1);
        let values = 7_i64.to_le_bytes().repeat(SAMPLES);
        index.columns.push(IndexColumn { places: Vec::new(), values, extra: Vec::new() });
        index.write(&index_of(&path));
        assert_eq!(contents(&*open(SourceFormat::Zip, &path, &[]).unwrap()), right);
        fs::remove_file(index_of(&path)).unwrap();
        let forgeries: [Forgery; 4] = [
            ("another place", |index| index.columns[0].places.swap(3, 4)),
            ("another length", |index| index.columns[0].places[3][1] -= 1),
            ("another kind of compression", |index| index.columns[0].extra[3 * 8 + 3] ^= 0x80),
            ("another checksum", |index| index.columns[0].extra[3 * 8 + 5] ^= 1),
        ];
        corrected(SourceFormat::Zip, &path, &path, &[], &forgeries);
    }
}

fn field(name: &str, kind: FieldKind) -> Field {
    Field { name: name.to_owned(), kind }
}

/// Writes samples of two whole numbers, a float, a text and arrays.
fn write_records(format: SourceFormat, path: &Path) {
    let array = |dtype, shape: &[usize]| FieldKind::Array { dtype, shape: shape.to_vec() };
    let fields = [
        field("label", array(DType::I64, &[])),
        field("other", array(DType::I64, &[])),
        field("score", array(DType::F32, &[])),
        field("text", FieldKind::Text),
        field("floats", array(DType::F32, &[2])),
        field("wide", array(DType::F32, &[2])),
    ];
    let mut writer = pack::create(format, path, &fields, &WriteOptions::default()).unwrap();
    for n in 0..SAMPLES {
        let floats = |first: f32| [first.to_ne_bytes(), 0.5_f32.to_ne_bytes()].concat();
        let values: [(Vec<u8>, &[usize]); 6] = [
            ((n as i64).to_ne_bytes().to_vec(), &[]),
            ((1000 + n as i64).to_ne_bytes().to_vec(), &[]),
            ((n as f32 / 2.0).to_ne_bytes().to_vec(), &[]),
            (text(n), &[]),
            (floats(n as f32), &[2]),
            (floats(-(n as f32)), &[2]),
        ];
        let given: Vec<_> = values.iter().map(|(bytes, shape)| Given { bytes, shape }).collect();
        writer.put(&Record { key: &format!("k{n:03}"), values: &given }).unwrap();
    }
    writer.finish().unwrap();
}

fn swap_places(index: &mut Index, one: &str, other: &str) {
    let (one, other) = (index.number(one), index.number(other));
    let places = std::mem::take(&mut index.columns[one].places);
    index.columns[one].places = std::mem::replace(&mut index.columns[other].places, places);
}

#[test]
fn an_index_of_records_is_compared_with_their_features() {
    let _turn = turn();
    let folder = Folder::new("forged-tfrecord");
    let path = folder.path().join("a.tfrecord");
    write_records(SourceFormat::Tfrecord, &path);
    let forgeries: [Forgery; 8] = [
        ("another whole number", |index| index.set_values("label")),
        ("another number", |index| index.set_values("score")),
        ("numbers without places", |index| {
            index.set_values("label");
            index.drop_places("label");
        }),
        ("the numbers of another feature", |index| {
            let (label, other) = (index.number("label"), index.number("other"));
            swap_places(index, "label", "other");
            index.columns[label].values = index.columns[other].values.clone();
        }),
        ("the numbers of another record", |index| {
            let at = index.number("label");
            let column = &mut index.columns[at];
            column.places.swap(3, 4);
            column.values[3 * 8..5 * 8].rotate_left(8);
        }),
        ("the array of another feature", |index| swap_places(index, "floats", "wide")),
        ("the array of another record", |index| {
            let at = index.number("floats");
            index.columns[at].places.swap(3, 4);
        }),
        ("another type of arrays", |index| {
            let at = index.number("floats");
            index.head["columns"][at]["content"]["Array"]["dtype"] = "int32".into();
        }),
    ];
    corrected(SourceFormat::Tfrecord, &path, &path, &[], &forgeries);
}

#[test]
fn an_index_of_parquet_is_compared_with_its_pages() {
    let _turn = turn();
    let folder = Folder::new("forged-parquet");
    let path = folder.path().join("a.parquet");
    let fields = [field("image", FieldKind::EncodedImage)];
    let mut writer =
        pack::create(SourceFormat::Parquet, &path, &fields, &WriteOptions::default()).unwrap();
    // Values of one length: that alone does not distinguish them.
    for n in 0..SAMPLES {
        let bytes = [b"\xff\xd8\xff", &vec![n as u8; 100_000][..]].concat();
        let values = [Given { bytes: &bytes, shape: &[] }];
        writer.put(&Record { key: &format!("k{n:03}"), values: &values }).unwrap();
    }
    writer.finish().unwrap();
    let forgeries: [Forgery; 2] = [
        ("the value of another row", |index| index.columns[0].places.swap(3, 4)),
        ("values that are said to be missing", |index| {
            index.columns[0].places.fill([u64::MAX, 0]);
        }),
    ];
    corrected(SourceFormat::Parquet, &path, &path, &["image"], &forgeries);
}

#[test]
fn an_index_of_lmdb_is_compared_with_its_tree() {
    let _turn = turn();
    let folder = Folder::new("forged-lmdb");
    let set = folder.path().join("set");
    write_records(SourceFormat::Lmdb, &set);
    let forgeries: [Forgery; 5] = [
        ("another label", |index| index.set_values("cls")),
        ("labels without places", |index| {
            index.set_values("cls");
            index.drop_places("cls");
        }),
        ("another sample's text", |index| {
            let at = index.number("text.txt");
            index.columns[at].places.swap(3, 4);
        }),
        ("a piece of a text", |index| {
            let at = index.number("text.txt");
            index.columns[at].places[3][1] -= 8;
        }),
        ("what lies beside a text", |index| {
            let at = index.number("text.txt");
            index.columns[at].places[3][0] += 8;
        }),
    ];
    corrected(SourceFormat::Lmdb, &set, &set.join("data.mdb"), &[], &forgeries);
}

/// A shard of samples, each the sizes of the columns that are not fixed, and their bytes.
fn rows(samples: &[Vec<(bool, Vec<u8>)>], config: &[u8]) -> Vec<u8> {
    let mut at = 4 + 4 * (samples.len() + 1) + config.len();
    let mut head = (samples.len() as u32).to_le_bytes().to_vec();
    head.extend((at as u32).to_le_bytes());
    let mut body = config.to_vec();
    for sample in samples {
        let start = body.len();
        for (_, bytes) in sample.iter().filter(|(sized, _)| *sized) {
            body.extend((bytes.len() as u32).to_le_bytes());
        }
        sample.iter().for_each(|(_, bytes)| body.extend(bytes));
        at += body.len() - start;
        head.extend((at as u32).to_le_bytes());
    }
    head.extend(body);
    head
}

#[test]
fn an_index_of_rows_is_compared_with_their_shard() {
    let _turn = turn();
    let folder = Folder::new("forged-rows");
    let rows_of = |fixed: bool| -> Vec<Vec<(bool, Vec<u8>)>> {
        let sample = |n: usize| {
            vec![
                (!fixed, (n as i64).to_le_bytes().to_vec()),
                (true, text(n)),
                (!fixed, (1000 + n as i64).to_le_bytes().to_vec()),
            ]
        };
        (0..SAMPLES).map(sample).collect()
    };
    let index = json!({"version": 2, "shards": [{
        "version": 2, "format": "mds", "samples": SAMPLES, "compression": null, "hashes": [],
        "column_names": ["label", "text", "other"], "column_encodings": ["int", "str", "int"],
        "column_sizes": [8, null, 8],
        "raw_data": {"basename": "shard.00000.mds", "bytes": 1, "hashes": {}},
        "zip_data": null, "size_limit": 1,
    }]});
    folder.write("mds/index.json", index.to_string().as_bytes());
    let mds = folder.write("mds/shard.00000.mds", &rows(&rows_of(true), b"{}"));
    let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
    let spec = format!(
        r#"[1, {{"type": "builtins.dict", "context": "[\"label\", \"text\", \"other\"]", "children_spec": [{leaf}, {leaf}, {leaf}]}}]"#
    );
    let index = json!({
        "chunks": [{"chunk_bytes": 1, "chunk_size": SAMPLES, "dim": null, "filename": "chunk-0-0.bin"}],
        "config": {"compression": null, "data_format": ["int", "str", "int"],
                   "data_spec": spec, "encryption": null, "item_loader": "PyTreeLoader"},
    });
    folder.write("lit/index.json", index.to_string().as_bytes());
    let lit = folder.write("lit/chunk-0-0.bin", &rows(&rows_of(false), b""));
    let forgeries: [Forgery; 4] = [
        ("another number", |index| index.set_values("label")),
        ("a column under the name of another", |index| {
            let (label, other) = (index.number("label"), index.number("other"));
            index.head["columns"][label]["name"] = "other".into();
            index.head["columns"][other]["name"] = "label".into();
        }),
        ("the numbers of another column", |index| {
            let (label, other) = (index.number("label"), index.number("other"));
            index.columns[label].values = index.columns[other].values.clone();
            index.columns[label].places = index.columns[other].places.clone();
        }),
        ("a piece of a text", |index| {
            let at = index.number("text");
            index.columns[at].places[3][1] -= 8;
        }),
    ];
    for (format, file) in [(SourceFormat::Mds, mds), (SourceFormat::Litdata, lit)] {
        corrected(format, file.parent().unwrap(), &file, &[], &forgeries);
    }
}

#[test]
fn an_index_that_is_larger_than_its_file_can_need_is_not_read() {
    let _turn = turn();
    let folder = Folder::new("large-index");
    let path = folder.write("a.tar", &tar_archive());
    let right = contents(&*open(SourceFormat::Tar, &path, &TAR_FIELDS).unwrap());
    let whole = fs::read(index_of(&path)).unwrap();
    // Zeros that are nowhere: names without text, or labels that are all the same.
    for (samples, columns, memory) in [
        (100_000_000_u64, 0, u64::MAX),
        (100_000_000, 0, MEMORY),
        (8_000_000, 5, MEMORY),
        (50_000, 1000, u64::MAX),
        (50_000, 1000, MEMORY),
    ] {
        let mut index = Index::read(&index_of(&path));
        index.head["samples"] = samples.into();
        index.head["text"] = 0.into();
        let label = index.number("cls");
        let label = index.head["columns"][label].clone();
        index.head["columns"] = vec![label; columns].into();
        let head = index.head.to_string();
        let mut bytes = whole[..MAGIC].to_vec();
        bytes.extend((head.len() as u64).to_le_bytes());
        bytes.extend(head.as_bytes());
        let length = bytes.len() as u64 + samples * (8 + 24 * columns as u64) + 8;
        fs::write(index_of(&path), &bytes).unwrap();
        let file = fs::OpenOptions::new().write(true).open(index_of(&path)).unwrap();
        file.set_len(length).unwrap();
        let (opened, most) =
            measured(|| open_with(SourceFormat::Tar, &path, &TAR_FIELDS, memory).unwrap());
        assert_eq!(contents(&*opened), right);
        assert!(most <= 64 << 20, "{samples} samples of {columns} columns took {most} bytes");
        assert!(fs::read(index_of(&path)).unwrap() == whole, "it is made anew");
    }
    // A head of many names.
    let mut bytes = whole[..MAGIC].to_vec();
    let mut head = Index::read(&index_of(&path)).head.to_string();
    head.truncate(head.len() - 1);
    head += &format!(",\"more\":[{}0]}}", "\"\",".repeat(12 << 20));
    bytes.extend((head.len() as u64).to_le_bytes());
    bytes.extend(head.as_bytes());
    bytes.extend(&whole[24..]);
    fs::write(index_of(&path), &bytes).unwrap();
    drop((bytes, head));
    let (opened, most) = measured(|| open(SourceFormat::Tar, &path, &TAR_FIELDS).unwrap());
    assert_eq!(contents(&*opened), right);
    assert!(most <= 16 << 20, "{most} bytes");
}

/// A description of an LMDB file.
fn lmdb_meta(size: u64, depth: u16, entries: u64, root: u64, transaction: u64) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[10] = 8;
    page[16..20].copy_from_slice(&0xbeef_c0de_u32.to_le_bytes());
    page[20..24].copy_from_slice(&1_u32.to_le_bytes());
    page[32..40].copy_from_slice(&size.to_le_bytes());
    page[40..44].copy_from_slice(&4096_u32.to_le_bytes());
    page[80..88].copy_from_slice(&u64::MAX.to_le_bytes());
    page[94..96].copy_from_slice(&depth.to_le_bytes());
    page[120..128].copy_from_slice(&entries.to_le_bytes());
    page[128..136].copy_from_slice(&root.to_le_bytes());
    page[144..152].copy_from_slice(&transaction.to_le_bytes());
    page
}

/// A page that lists one node many times.
fn lmdb_page(number: u64, flags: u16, node: &[u8], count: usize) -> Vec<u8> {
    let at = 4096 - 64;
    let mut page = vec![0; 4096];
    page[..8].copy_from_slice(&number.to_le_bytes());
    page[10..12].copy_from_slice(&flags.to_le_bytes());
    page[12..14].copy_from_slice(&(16 + 2 * count as u16).to_le_bytes());
    page[14..16].copy_from_slice(&(at as u16).to_le_bytes());
    for offset in page[16..16 + 2 * count].chunks_exact_mut(2) {
        offset.copy_from_slice(&(at as u16).to_le_bytes());
    }
    page[at..at + node.len()].copy_from_slice(node);
    page
}

#[test]
fn pages_and_nodes_of_lmdb_count_once() {
    let _turn = turn();
    let folder = Folder::new("lmdb-tree");
    let child = |page: u16| [page.to_le_bytes(), [0; 2], [0; 2], [0; 2]].concat();
    // (branches' nodes, leaf's nodes): all of them, and each alone.
    for (name, branches, leaves) in [("both", 1900, 1900), ("pages", 1900, 1), ("nodes", 1, 1900)] {
        let pages = [
            lmdb_meta(1 << 36, 5, 1_000_000_000_000, 2, 1),
            lmdb_meta(1 << 36, 5, 1_000_000_000_000, 2, 2),
            lmdb_page(2, 1, &child(3), branches),
            lmdb_page(3, 1, &child(4), branches),
            lmdb_page(4, 2, &[0; 8], leaves),
        ];
        let path = folder.write(&format!("{name}/data.mdb"), &pages.concat());
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 36).unwrap();
        let error = refused(SourceFormat::Lmdb, path.parent().unwrap()).to_string();
        assert!(error.contains("is damaged"), "{error}");
    }
}

#[test]
fn what_a_scan_keeps_is_counted_while_it_is_filled() {
    let _turn = turn();
    let folder = Folder::new("held");
    let cases = [
        (SourceFormat::Tfrecord, "a.tfrecord"),
        (SourceFormat::Lmdb, "b"),
        (SourceFormat::Tar, "c.tar"),
    ];
    for (format, name) in cases {
        let path = folder.path().join(name);
        let fields = [field("label", FieldKind::scalar(DType::I64))];
        let mut writer = pack::create(format, &path, &fields, &WriteOptions::default()).unwrap();
        for n in 0..20_000_i64 {
            let values = [Given { bytes: &n.to_ne_bytes(), shape: &[] }];
            writer.put(&Record { key: &format!("{n:07}"), values: &values }).unwrap();
        }
        writer.finish().unwrap();
        let opened = open_with(format, &path, &[], 256 << 10);
        let error = opened.err().unwrap();
        assert!(matches!(error, Error::Memory(_)), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
        let (opened, most) = measured(|| open_with(format, &path, &[], 8 << 20));
        assert_eq!(opened.unwrap().len(), 20_000);
        assert!(most < 8 << 20, "{name}: {most} bytes");
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let crc = |bytes: &[u8]| {
        crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (message.len() as u64).to_le_bytes();
    [&length[..], &crc(&length), message, &crc(message)].concat()
}

#[test]
fn features_that_most_records_lack_are_counted() {
    let _turn = turn();
    let folder = Folder::new("wide-tfrecord");
    let tagged =
        |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat();
    let record = |name: u8| {
        let value = tagged(3, &tagged(1, &[1]));
        let entry = [tagged(1, &[name]), tagged(2, &value)].concat();
        framed(&tagged(1, &tagged(1, &entry)))
    };
    let block: Vec<u8> = (0..64).flat_map(|n| record(48 + n)).collect();
    let path = folder.write("a.tfrecord", &block.repeat(6_000));
    let error = refused(SourceFormat::Tfrecord, &path);
    assert!(matches!(error, Error::Memory(_)), "{error:?}");
}

#[test]
fn members_that_most_samples_lack_are_counted() {
    let _turn = turn();
    let folder = Folder::new("wide-tar");
    // 16 kinds of members, of which each sample has one, and numbers in JSON likewise.
    for (name, kinds, json) in [("many.tar", 15, false), ("json.tar", 1, true)] {
        let path = folder.path().join(name);
        let mut out = tar::Builder::new(std::io::BufWriter::new(fs::File::create(&path).unwrap()));
        for n in 0..200_000 {
            let (kind, bytes) = match json {
                true => ("json".to_owned(), format!("{{\"k{}\": 1}}", n % 64).into_bytes()),
                false => (format!("x{}", n % kinds), Vec::new()),
            };
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            out.append_data(&mut header, format!("{n}.{kind}"), &bytes[..]).unwrap();
        }
        out.into_inner().unwrap().flush().unwrap();
        let (opened, most) = measured(|| open_with(SourceFormat::Tar, &path, &[], 16 << 20));
        let error = opened.err().unwrap();
        assert!(matches!(error, Error::Memory(_)), "{error:?}");
        assert!(most <= 64 << 20, "{name}: {most} bytes");
    }
}

#[test]
fn a_stored_size_beyond_reason_is_refused() {
    let _turn = turn();
    let folder = Folder::new("zip-stored");
    // One deflated member of 100 bytes that takes 1 GB of holes as it is stored.
    let stored = (1_u32 << 30).to_le_bytes();
    let name = b"x/a.png";
    let common = [
        &[20, 0, 0, 0, 8, 0, 0, 0, 0, 0][..],
        &[0; 4],
        &stored,
        &100_u32.to_le_bytes(),
        &(name.len() as u16).to_le_bytes(),
        &[0; 2],
    ]
    .concat();
    let head = [b"PK\x03\x04", &common[..], name].concat();
    let list = [b"PK\x01\x02\x14\x00", &common[..], &[0; 14], name].concat();
    let start = head.len() as u64 + (1 << 30);
    let end = [
        b"PK\x05\x06\0\0\0\0\x01\0\x01\0",
        &(list.len() as u32).to_le_bytes()[..],
        &(start as u32).to_le_bytes(),
        &[0; 2],
    ]
    .concat();
    let path = folder.write("a.zip", &head);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[list, end].concat(), start).unwrap();
    let error = refused(SourceFormat::Zip, &path).to_string();
    assert!(error.contains("declares"), "{error}");
}

#[test]
fn no_more_is_read_of_a_member_than_blocks_may_take() {
    let _turn = turn();
    let folder = Folder::new("tar-large");
    let path = folder.path().join("a.tar");
    // Two arrays of different shapes, so that their headers are read with them: one is a hole.
    let npy = |count: u64| {
        let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({count},), }}");
        [b"\x93NUMPY\x01\x00\x76\x00", format!("{text:<117}\n").as_bytes()].concat()
    };
    let large = 1_u64 << 30;
    let header = |name: &str, size: u64| {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let mut small = npy(2);
    small.extend(b"ab");
    let size = small.len() as u64;
    small.resize(512, 0);
    let begin = [header("a.npy", size), small, header("b.npy", large + 128), npy(large)].concat();
    fs::write(&path, &begin).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2048 + large + 1024).unwrap();
    let source = open(SourceFormat::Tar, &path, &[]).unwrap();
    assert_eq!(taken(&*source, 0, 0).unwrap(), b"ab");
    let (read, most) = measured(|| taken(&*source, 1, 0));
    let error = read.unwrap_err();
    assert!(matches!(error, Fault::TooLarge(_)), "{error:?}");
    assert!(most <= LIMIT, "{most} bytes");
}

/// A folder for `pack --raw`'s result with files of some length, and a description of so many
/// samples.
fn raw_set(folder: &Folder, samples: u64, lengths: [u64; 2]) -> PathBuf {
    let catalog = json!({"feedline_pack": 1, "kind": "raw", "samples": samples, "classes": [],
        "labels": [["label", "int64"]], "table": false, "job": null, "bytes": 1,
        "list": "0000000000000000"});
    let path = folder.write("raw/feedline.json", catalog.to_string().as_bytes());
    for (name, length) in ["index.bin", "names.bin"].into_iter().zip(lengths) {
        let file = fs::File::create(path.with_file_name(name)).unwrap();
        file.set_len(length).unwrap();
    }
    path.parent().unwrap().to_owned()
}

#[test]
fn a_raw_set_is_refused_before_its_lists_are_read() {
    let _turn = turn();
    let folder = Folder::new("raw-lists");
    let samples = 4_000_000;
    let path = raw_set(&folder, samples, [24 + 32 * samples, 200 * samples]);
    let error = {
        let kind = SourceKind::Path(path.clone());
        let with = Spec::default().with(|spec| spec.memory = Some(MEMORY));
        let store: Arc<dyn Store> = Arc::new(Files::default());
        let (opened, most) = measured(|| source::open(&kind, &opening(&with, &store)));
        assert!(most <= 16 << 20, "{most} bytes");
        opened.err().unwrap()
    };
    assert!(matches!(error, Error::Memory(_)), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}
