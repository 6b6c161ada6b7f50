//! Small files that would become large: dictionaries, runs, deltas, compressed zeros, declared
//! lengths. Whatever a file holds, opening and reading it takes no more than `memory` and 64 MB,
//! and what does not fit ends in an error that names the file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/crafted.rs"]
mod crafted;
#[path = "support/reading.rs"]
mod reading;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::builder::{ListBuilder, UInt8Builder};
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Int32Array, Int64Array, RecordBatch, RunArray,
    StringArray, StringViewArray,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::Field;
use counting::{Counting, measured};
use feedline::internals::engine::opening;
use feedline::source;
use feedline::spec::{SourceFormat, SourceKind, Spec};
use feedline::store::{Files, Store};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use reading::{MEMORY, read};

/// What a file may take beside the memory that is given.
const BESIDE: i64 = 64 << 20;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A folder for one test. Tests take turns, since all of them count together.
struct Shelf {
    folder: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Shelf {
    fn new(name: &str) -> Shelf {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = format!("feedline-bombs-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Shelf { folder, _turn: turn }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn bytes_below(path: &Path) -> u64 {
    match path.is_dir() {
        true => fs::read_dir(path).unwrap().map(|entry| bytes_below(&entry.unwrap().path())).sum(),
        false => fs::metadata(path).unwrap().len(),
    }
}

/// What opening says if it fails.
fn refusal(format: SourceFormat, path: &Path) -> Option<String> {
    let kind = SourceKind::Format { format, path: path.to_owned(), fields: Vec::new() };
    let spec = Spec::default().with(|spec| spec.memory = Some(MEMORY));
    let store: Arc<dyn Store> = Arc::new(Files::default());
    source::open(&kind, &opening(&spec, &store)).err().map(|error| error.to_string())
}

/// Opens and reads a small file; gives how many values could be had.
fn defused(format: SourceFormat, path: &Path) -> usize {
    let stored = bytes_below(path);
    assert!(stored < 4 << 20, "{}: {stored} bytes are no bomb", path.display());
    let (values, most) = measured(|| {
        let values = read(format, path);
        if let Some(error) = refusal(format, path) {
            assert!(error.contains(path.file_stem().unwrap().to_str().unwrap()), "{error}");
        }
        values
    });
    let limit = MEMORY as i64 + BESIDE;
    assert!(most <= limit, "{} of {stored} bytes took {most} bytes", path.display());
    values
}

fn table(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn options() -> IpcWriteOptions {
    IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap()
}

fn arrow_file(batches: &[RecordBatch], options: IpcWriteOptions) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer =
        FileWriter::try_new_with_options(&mut out, &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    drop(writer);
    out
}

fn arrow_stream(batch: &RecordBatch) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer =
        StreamWriter::try_new_with_options(&mut out, &batch.schema(), options()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    out
}

/// Rows that all have the same long text.
fn repeated(rows: usize, length: usize) -> ArrayRef {
    let values: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(length)]));
    Arc::new(DictionaryArray::<Int32Type>::new(Int32Array::from(vec![0; rows]), values))
}

fn captions(rows: usize) -> ArrayRef {
    let texts: Vec<String> = (0..10).map(|n| format!("{n}").repeat(6_000)).collect();
    let values: ArrayRef = Arc::new(StringArray::from(texts));
    let keys = Int32Array::from((0..rows as i32).map(|row| row % 10).collect::<Vec<_>>());
    Arc::new(DictionaryArray::<Int32Type>::new(keys, values))
}

#[test]
fn arrow_dictionaries_stay_folded() {
    let shelf = Shelf::new("arrow-dictionary");
    let whole = table(vec![("caption", repeated(4_000, 256 << 10))]);
    for (name, bytes) in [
        ("file.arrow", arrow_file(std::slice::from_ref(&whole), options())),
        ("stream.arrow", arrow_stream(&whole)),
    ] {
        assert!(bytes.len() < 64 << 10, "{}", bytes.len());
        assert!(defused(SourceFormat::Arrow, &shelf.write(name, &bytes)) > 0, "{name} is read");
    }
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20_000));
    let set = table(vec![("caption", captions(20_000)), ("label", labels)]);
    let path = shelf.write("captions.arrow", &arrow_file(&[set], options()));
    assert!(defused(SourceFormat::Arrow, &path) > 0);
}

#[test]
fn arrow_runs_and_views_stay_folded() {
    let shelf = Shelf::new("arrow-runs");
    let long = "y".repeat(1 << 20);
    let ends = Int32Array::from(vec![5_000]);
    let runs = RunArray::<Int32Type>::try_new(&ends, &StringArray::from(vec![&*long])).unwrap();
    let path =
        shelf.write("runs.arrow", &arrow_file(&[table(vec![("t", Arc::new(runs))])], options()));
    let _ = defused(SourceFormat::Arrow, &path);
    let mut views = arrow_array::builder::StringViewBuilder::new();
    let block = views.append_block(long.as_bytes().to_vec().into());
    for _ in 0..2_000 {
        views.try_append_view(block, 0, 1 << 20).unwrap();
    }
    let views: StringViewArray = views.finish();
    let path =
        shelf.write("views.arrow", &arrow_file(&[table(vec![("t", Arc::new(views))])], options()));
    assert!(defused(SourceFormat::Arrow, &path) > 0);
}

#[test]
fn compressed_zeros_of_arrow_are_counted_before_they_are_unpacked() {
    let shelf = Shelf::new("arrow-zeros");
    let zeros: ArrayRef = Arc::new(Int64Array::from(vec![0; 20 << 20]));
    let bytes = arrow_file(&[table(vec![("zeros", zeros)])], options());
    assert_eq!(defused(SourceFormat::Arrow, &shelf.write("zeros.arrow", &bytes)), 0);
    // One byte a value, in lists of one length: small as stored, and kept for that once.
    let values = arrow_array::UInt8Array::from(vec![0; 160 << 20]);
    let item = Arc::new(Field::new("item", values.data_type().clone(), false));
    let lists = arrow_array::FixedSizeListArray::new(item, 1 << 16, Arc::new(values), None);
    let bytes = arrow_file(&[table(vec![("lists", Arc::new(lists))])], options());
    assert_eq!(defused(SourceFormat::Arrow, &shelf.write("lists.arrow", &bytes)), 0);
}

fn parquet(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    out
}

fn packed() -> parquet::file::properties::WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_page_size_limit(64 << 20)
}

#[test]
fn parquet_dictionaries_stay_folded() {
    let shelf = Shelf::new("parquet-dictionary");
    let whole = table(vec![("caption", repeated(4_000, 256 << 10))]);
    for (name, properties) in [
        ("zstd.parquet", packed().build()),
        ("v2.parquet", packed().set_writer_version(WriterVersion::PARQUET_2_0).build()),
        ("plain.parquet", packed().set_compression(Compression::UNCOMPRESSED).build()),
    ] {
        let bytes = parquet(&whole, properties);
        assert!(defused(SourceFormat::Parquet, &shelf.write(name, &bytes)) > 0, "{name} is read");
    }
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20_000));
    let set = table(vec![("caption", captions(20_000)), ("label", labels)]);
    let path = shelf.write("captions.parquet", &parquet(&set, packed().build()));
    assert!(defused(SourceFormat::Parquet, &path) > 0);
}

#[test]
fn parquet_runs_deltas_and_lists_are_bounded() {
    let shelf = Shelf::new("parquet-runs");
    // A million values of a run are a few bytes.
    let truths: ArrayRef = Arc::new(BooleanArray::from(vec![true; 40 << 20]));
    let bytes = parquet(&table(vec![("truths", truths)]), packed().build());
    let _ = defused(SourceFormat::Parquet, &shelf.write("truths.parquet", &bytes));
    let same: ArrayRef = Arc::new(Int32Array::from(vec![7; 16 << 20]));
    let bytes = parquet(&table(vec![("same", same)]), packed().build());
    let _ = defused(SourceFormat::Parquet, &shelf.write("same.parquet", &bytes));
    // Each text is the one before and a letter.
    let long = "z".repeat(18_000);
    let growing = StringArray::from_iter_values((0..18_000).map(|row| &long[..row]));
    let deltas = packed().set_dictionary_enabled(false).set_encoding(Encoding::DELTA_BYTE_ARRAY);
    let bytes = parquet(&table(vec![("growing", Arc::new(growing))]), deltas.build());
    let _ = defused(SourceFormat::Parquet, &shelf.write("growing.parquet", &bytes));
    // One row of many has all the values.
    let mut lists = ListBuilder::new(UInt8Builder::new());
    for row in 0..1000 {
        let length = if row == 500 { 12 << 20 } else { 1 };
        (0..length).for_each(|_| lists.values().append_value(0));
        lists.append(true);
    }
    let set = table(vec![("lists", Arc::new(lists.finish()))]);
    for (name, version) in [
        ("lists.parquet", WriterVersion::PARQUET_1_0),
        ("lists2.parquet", WriterVersion::PARQUET_2_0),
    ] {
        let bytes = parquet(&set, packed().set_writer_version(version).build());
        let _ = defused(SourceFormat::Parquet, &shelf.write(name, &bytes));
    }
}

/// Zeros, and what comes before them, as gzip has them.
fn gzip(head: &[u8], zeros: usize) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(head).unwrap();
    (0..zeros >> 20).for_each(|_| out.write_all(&[0; 1 << 20]).unwrap());
    out.finish().unwrap()
}

fn zstd_of(head: &[u8], zeros: usize) -> Vec<u8> {
    let mut out = zstd::Encoder::new(Vec::new(), 1).unwrap();
    out.write_all(head).unwrap();
    (0..zeros >> 20).for_each(|_| out.write_all(&[0; 1 << 20]).unwrap());
    out.finish().unwrap()
}

const ZEROS: usize = 160 << 20;

#[test]
fn compressed_archives_are_bounded() {
    let shelf = Shelf::new("archives");
    let mut header = tar::Header::new_ustar();
    header.set_path("a.png").unwrap();
    header.set_size(ZEROS as u64);
    header.set_cksum();
    for (name, bytes) in [
        ("a.tar.gz", gzip(header.as_bytes(), ZEROS)),
        ("a.tar.zst", zstd_of(header.as_bytes(), ZEROS)),
        ("a.tar.bz2", b"BZh91AY&SY".to_vec()),
    ] {
        assert_eq!(defused(SourceFormat::Tar, &shelf.write(name, &bytes)), 0, "{name}");
    }
    // The head of a record says how long it is, with a checksum of that.
    let length = (ZEROS as u64).to_le_bytes();
    let crc = crc32c::crc32c(&length).rotate_right(15).wrapping_add(0xa282_ead8);
    let head = [&length[..], &crc.to_le_bytes()].concat();
    let path = shelf.write("a.tfrecord.gz", &gzip(&head, ZEROS));
    assert_eq!(defused(SourceFormat::Tfrecord, &path), 0);
    // The same without a byte of it: a hole in the file.
    let path = shelf.write("hole.tfrecord", &head);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(defused_hole(SourceFormat::Tfrecord, &path), 0);
}

/// An archive of one deflated member of zeros.
fn zip_of(member: &str, head: &[u8]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let deflated = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated);
    writer.start_file(member, deflated).unwrap();
    writer.write_all(head).unwrap();
    (0..ZEROS >> 20).for_each(|_| writer.write_all(&[0; 1 << 20]).unwrap());
    writer.finish().unwrap().into_inner()
}

#[test]
fn zip_and_npz_are_bounded() {
    let shelf = Shelf::new("zip");
    let path = shelf.write("a.zip", &zip_of("x/a.png", b""));
    assert_eq!(defused(SourceFormat::Zip, &path), 2, "its label is known, which is read twice");
    let text =
        format!("{{'descr': '|u1', 'fortran_order': False, 'shape': (1000, {}), }}", ZEROS / 1000);
    let text = format!("{text:<117}\n");
    let head = [b"\x93NUMPY\x01\x00", &118_u16.to_le_bytes()[..], text.as_bytes()].concat();
    let path = shelf.write("a.npz", &zip_of("x.npy", &head));
    let _ = defused(SourceFormat::Npy, &path);
}

#[test]
fn chunks_of_zarr_are_bounded() {
    let shelf = Shelf::new("zarr");
    let v2 = |codec: &str| {
        format!(
            r#"{{"zarr_format": 2, "shape": [1000, 160000], "chunks": [1000, 160000], "dtype": "|u1",
            "compressor": {codec}, "fill_value": 0, "order": "C", "filters": null}}"#
        )
    };
    // A frame of Blosc that declares as much, of nothing.
    let mut blosc = vec![2, 1, 1, 1];
    blosc.extend_from_slice(&160_000_000_u32.to_le_bytes());
    blosc.extend_from_slice(&(1_u32 << 20).to_le_bytes());
    blosc.extend_from_slice(&64_u32.to_le_bytes());
    blosc.resize(64, 0);
    for (name, codec, bytes) in [
        ("gzip.zarr", r#"{"id": "gzip", "level": 1}"#, gzip(&[], ZEROS)),
        ("zstd.zarr", r#"{"id": "zstd", "level": 1}"#, zstd_of(&[], ZEROS)),
        ("blosc.zarr", r#"{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}"#, blosc),
    ] {
        let folder = shelf.folder.join(name);
        shelf.write(&format!("{name}/x/.zarray"), v2(codec).as_bytes());
        shelf.write(&format!("{name}/x/0.0"), &bytes);
        shelf.write(&format!("{name}/.zgroup"), br#"{"zarr_format": 2}"#);
        assert_eq!(defused(SourceFormat::Zarr, &folder), 0, "{name}");
    }
    // A shard whose index alone would fill the memory.
    let v3 = r#"{"zarr_format": 3, "node_type": "array", "shape": [100000000000, 8], "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100000000000, 8]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "attributes": {},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 8],
            "codecs": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            "index_location": "end"}}]}"#;
    shelf.write("sharded.zarr/x/zarr.json", v3.as_bytes());
    shelf.write("sharded.zarr/x/c/0/0", &[0; 4096]);
    let group = br#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;
    shelf.write("sharded.zarr/zarr.json", group);
    let _ = defused(SourceFormat::Zarr, &shelf.folder.join("sharded.zarr"));
}

/// A file of one chunk of a thousand equal rows.
fn hdf5_rows(path: &Path, row: &[u8]) {
    use feedline::internals::pack::{Given, Record};
    use feedline::pack::WriteOptions;
    use feedline::sample::{DType, Field, FieldKind};
    let kind = FieldKind::Array { dtype: DType::U8, shape: vec![row.len()] };
    let options = WriteOptions {
        compression: Some("gzip".to_owned()),
        level: Some(1),
        block_samples: Some(1000),
    };
    let fields = [Field { name: "x".to_owned(), kind }];
    let mut writer =
        feedline::internals::pack::create(SourceFormat::Hdf5, path, &fields, &options).unwrap();
    for _ in 0..1000 {
        let values = [Given { bytes: row, shape: &[row.len()] }];
        writer.put(&Record { key: "", values: &values }).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn chunks_of_hdf5_are_bounded() {
    let shelf = Shelf::new("hdf5");
    let path = shelf.folder.join("zeros.h5");
    let zeros = vec![0; ZEROS / 1000];
    hdf5_rows(&path, &zeros);
    let empty = include_bytes!("fixtures/empty.h5");
    for (path, written) in [(shelf.write("empty.h5", empty), false), (path, true)] {
        // Rows that were never written are their fill value, in blocks of any size.
        assert_eq!(defused(SourceFormat::Hdf5, &path) == 0, written, "{}", path.display());
    }
}

#[test]
fn columns_that_most_rows_lack_are_counted_before_they_are_kept() {
    let shelf = Shelf::new("jsonl");
    let names: Vec<String> = (0..2_000).map(|number| format!("\"{number}\":1")).collect();
    let mut text = format!("{{{}}}\n", names.join(","));
    text.push_str(&"{}\n".repeat(20_000));
    let path = shelf.write("wide.jsonl", text.as_bytes());
    assert_eq!(defused(SourceFormat::Jsonl, &path), 0);
    let error = refusal(SourceFormat::Jsonl, &path).unwrap();
    assert!(error.contains("360 MB") && error.contains("raise memory"), "{error}");
    let path = shelf.write("narrow.csv", b"a\n1\n");
    assert!(defused(SourceFormat::Csv, &path) > 0);
}

#[test]
fn shards_of_mds_and_litdata_are_bounded() {
    let shelf = Shelf::new("mds");
    // Two samples, of which the first has nearly all.
    let mut shard = 2_u32.to_le_bytes().to_vec();
    for end in [16, 16 + ZEROS as u32, 20 + ZEROS as u32] {
        shard.extend_from_slice(&end.to_le_bytes());
    }
    let packed = zstd_of(&shard, ZEROS);
    let index = format!(
        r#"{{"version": 2, "shards": [{{"column_encodings": ["bytes"], "column_names": ["x"],
        "column_sizes": [null], "compression": "zstd", "format": "mds", "hashes": [], "samples": 2,
        "size_limit": null, "version": 2, "raw_data": {{"basename": "shard.00000.mds", "bytes": {}, "hashes": {{}}}},
        "zip_data": {{"basename": "shard.00000.mds.zstd", "bytes": {}, "hashes": {{}}}}}}]}}"#,
        20 + ZEROS,
        packed.len()
    );
    shelf.write("mds/index.json", index.as_bytes());
    shelf.write("mds/shard.00000.mds.zstd", &packed);
    assert_eq!(defused(SourceFormat::Mds, &shelf.folder.join("mds")), 0);
    let index = r#"{"chunks": [{"chunk_bytes": 167772180, "chunk_size": 2, "dim": null, "filename": "chunk-0-0.zstd.bin"}],
        "config": {"chunk_bytes": 167772180, "chunk_size": null, "compression": "zstd", "data_format": ["bytes"],
        "data_spec": "[1, {\"type\": null, \"context\": null, \"children_spec\": []}]", "encryption": null, "item_loader": "PyTreeLoader"},
        "updated_at": "1"}"#;
    shelf.write("lit/index.json", index.as_bytes());
    shelf.write("lit/chunk-0-0.zstd.bin", &packed);
    assert_eq!(defused(SourceFormat::Litdata, &shelf.folder.join("lit")), 0);
}

/// A file that says no more than `rows` rows of one text, of `bytes` bytes.
fn said(rows: i64, bytes: i64) -> Vec<u8> {
    let schema =
        [crafted::element(b"r", None, 0, Some(1)), crafted::element(b"t", Some(6), 1, None)];
    let chunk = crafted::Chunk {
        path: &[b"t"],
        kind: 6,
        codec: 0,
        values: rows,
        uncompressed: bytes,
        compressed: 190,
        offset: 4,
    };
    crafted::parquet(&[0; 200], &crafted::footer(&schema, &[(vec![chunk], rows)]))
}

#[test]
fn a_declared_size_of_a_column_makes_no_million_blocks() {
    let shelf = Shelf::new("parquet-units");
    for (name, bytes) in [("units.parquet", 1 << 60), ("some.parquet", 1 << 50)] {
        assert_eq!(defused(SourceFormat::Parquet, &shelf.write(name, &said(40_000_000, bytes))), 0);
    }
}

#[test]
fn places_of_all_columns_and_files_share_one_room() {
    let shelf = Shelf::new("parquet-places");
    let (rows, columns) = (5_000_000, 60);
    let run = [crafted::varint(rows << 1), vec![0]].concat();
    let body = [&(run.len() as u32).to_le_bytes(), &run[..]].concat();
    let page = [crafted::page(body.len() as i64, body.len() as i64, rows as i64), body].concat();
    let names: Vec<String> = (0..columns).map(|number| format!("t{number}")).collect();
    let paths: Vec<[&[u8]; 1]> = names.iter().map(|name| [name.as_bytes()]).collect();
    let mut schema = vec![crafted::element(b"r", None, 0, Some(columns))];
    schema.extend(names.iter().map(|name| crafted::element(name.as_bytes(), Some(6), 1, None)));
    let chunks = paths.iter().map(|path| crafted::Chunk {
        path,
        kind: 6,
        codec: 0,
        values: rows as i64,
        uncompressed: page.len() as i64,
        compressed: page.len() as i64,
        offset: 4,
    });
    let bytes =
        crafted::parquet(&page, &crafted::footer(&schema, &[(chunks.collect(), rows as i64)]));
    let path = shelf.write("places.parquet", &bytes);
    assert_eq!(defused(SourceFormat::Parquet, &path), 0);
    let error = refusal(SourceFormat::Parquet, &path).unwrap();
    assert!(error.contains("raise memory"), "{error}");
}

#[test]
fn names_of_parquets_groups_are_counted_with_each_leaf() {
    let shelf = Shelf::new("parquet-schema");
    let mut schema = vec![
        crafted::element(b"r", None, 0, Some(1)),
        crafted::element(&vec![b'g'; 300_000], None, 0, Some(6_000)),
    ];
    schema.extend((0..6_000).map(|_| crafted::element(b"a", Some(1), 0, None)));
    let bytes = crafted::parquet(&[0; 16], &crafted::footer(&schema, &[]));
    assert_eq!(defused(SourceFormat::Parquet, &shelf.write("schema.parquet", &bytes)), 0);
}

#[test]
fn one_field_of_arrow_that_a_schema_names_often_is_counted_each_time() {
    let shelf = Shelf::new("arrow-schema");
    let path = shelf.write("names.arrow", &crafted::repeated_field(16_000, 100_000));
    assert_eq!(defused(SourceFormat::Arrow, &path), 0);
    let error = refusal(SourceFormat::Arrow, &path).unwrap();
    assert!(!error.contains("no rows"), "refused for what it says: {error}");
    // The same in a sound measure is read as far as it goes.
    let path = shelf.write("few.arrow", &crafted::repeated_field(1, 10));
    assert!(refusal(SourceFormat::Arrow, &path).unwrap().contains("no rows"));
}

#[test]
fn kept_columns_share_one_room() {
    let shelf = Shelf::new("arrow-overlap");
    let (rows, length) = (1_800, 60_000);
    let mut views = arrow_array::builder::StringViewBuilder::new();
    let text: Vec<u8> = (0..rows + length).map(|at| b' ' + (at * at / 7 % 90) as u8).collect();
    let block = views.append_block(text.into());
    for row in 0..rows {
        views.try_append_view(block, row, length).unwrap();
    }
    let views: ArrayRef = Arc::new(views.finish());
    let columns = ["a", "b", "c", "d"].map(|name| (name, views.clone()));
    let path = shelf.write("views.arrow", &arrow_file(&[table(columns.to_vec())], options()));
    let _ = defused(SourceFormat::Arrow, &path);
}

#[test]
fn dictionaries_of_many_arrow_files_share_one_room() {
    let shelf = Shelf::new("arrow-dictionaries");
    for number in 0..60 {
        // A short text that is there, and a long one that no row has.
        let texts = vec!["x".repeat(1000), "y".repeat(3 << 20)];
        let values: ArrayRef = Arc::new(StringArray::from(texts));
        let keys = Int32Array::from(vec![0]);
        let texts: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, values));
        let bytes = arrow_file(&[table(vec![("t", texts)])], options());
        shelf.write(&format!("dictionaries/{number:03}.arrow"), &bytes);
    }
    assert!(defused(SourceFormat::Arrow, &shelf.folder.join("dictionaries")) > 0);
}

#[test]
fn rows_of_lists_without_values_are_refused() {
    let shelf = Shelf::new("parquet-rows");
    let schema = [
        crafted::element(b"r", None, 0, Some(1)),
        crafted::element(b"l", None, 1, Some(1)),
        crafted::element(b"list", None, 2, Some(1)),
        crafted::element(b"element", Some(1), 0, None),
    ];
    let chunk = crafted::Chunk {
        path: &[b"l", b"list", b"element"],
        kind: 1,
        codec: 0,
        values: 1,
        uncompressed: 50,
        compressed: 50,
        offset: 4,
    };
    let footer = crafted::footer(&schema, &[(vec![chunk], 1 << 60)]);
    let path = shelf.write("rows.parquet", &crafted::parquet(&[0; 200], &footer));
    assert_eq!(defused(SourceFormat::Parquet, &path), 0);
    let error = refusal(SourceFormat::Parquet, &path).unwrap();
    assert!(error.contains("fewer values than rows"), "{error}");
}

/// Row groups of one long text each, which are said to be small.
fn understated(groups: usize, length: usize) -> Vec<u8> {
    // Some noise, as no page is packed better than by 1 to 16,384.
    let noise = (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8);
    let text: Vec<u8> = noise.map(|byte| b' ' + byte % 90).collect();
    let text = [text, vec![b'a'; length - 4096]].concat();
    let value = [&(length as u32).to_le_bytes()[..], &text].concat();
    let packed = zstd::encode_all(&value[..], 1).unwrap();
    let page = [crafted::page(value.len() as i64, packed.len() as i64, 1), packed].concat();
    let schema =
        [crafted::element(b"r", None, 0, Some(1)), crafted::element(b"t", Some(6), 0, None)];
    let groups: Vec<_> = (0..groups)
        .map(|group| {
            let chunk = crafted::Chunk {
                path: &[b"t"],
                kind: 6,
                codec: 6,
                values: 1,
                uncompressed: 1,
                compressed: page.len() as i64,
                offset: (4 + group * page.len()) as i64,
            };
            (vec![chunk], 1)
        })
        .collect();
    crafted::parquet(&page.repeat(groups.len()), &crafted::footer(&schema, &groups))
}

#[test]
fn blocks_that_are_larger_than_they_say_take_turns() {
    let shelf = Shelf::new("parquet-turns");
    let path = shelf.write("turns.parquet", &understated(40, 14 << 20));
    let kind = SourceKind::Format {
        format: SourceFormat::Parquet,
        path: path.clone(),
        fields: Vec::new(),
    };
    let spec = Spec::default().with(|spec| spec.memory = Some(MEMORY));
    struct Small;
    impl feedline::sample::Room for Small {
        fn make(&mut self, _: u64) -> Result<&mut [u8], feedline::Fault> {
            Err(feedline::Fault::Cancelled)
        }
    }
    let ((), most) = measured(|| {
        let store: Arc<dyn Store> = Arc::new(Files::default());
        let source = source::open(&kind, &opening(&spec, &store)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..20 {
                let source = &source;
                scope.spawn(move || {
                    for row in [2 * thread, 2 * thread + 1] {
                        let _ = source.read(row, 0, &mut Small);
                    }
                });
            }
        });
    });
    assert!(most <= MEMORY as i64 + BESIDE, "{most}");
}

/// Makes a hole of `bytes` before the last `tail` bytes of a file.
fn hole(path: &Path, tail: &[u8], bytes: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() + bytes).unwrap();
    file.write_all_at(tail, file.metadata().unwrap().len()).unwrap();
}

/// As [`defused`], of a file that is long and takes no room.
fn defused_hole(format: SourceFormat, path: &Path) -> usize {
    let (values, most) = measured(|| read(format, path));
    assert!(most <= MEMORY as i64 + BESIDE, "{} took {most} bytes", path.display());
    values
}

const HOLE: u64 = 800 << 20;

#[test]
fn stored_pages_are_counted_before_they_are_read() {
    let shelf = Shelf::new("parquet-hole");
    let schema =
        [crafted::element(b"r", None, 0, Some(1)), crafted::element(b"t", Some(6), 0, None)];
    let head = crafted::page(1000, HOLE as i64, 1);
    let chunk = crafted::Chunk {
        path: &[b"t"],
        kind: 6,
        codec: 2,
        values: 1,
        uncompressed: 1000,
        compressed: head.len() as i64 + HOLE as i64,
        offset: 4,
    };
    let path = shelf.write("hole.parquet", &[b"PAR1", &head[..]].concat());
    hole(&path, &crafted::footer(&schema, &[(vec![chunk], 1)]), HOLE);
    assert_eq!(defused_hole(SourceFormat::Parquet, &path), 0);
}

#[test]
fn stored_members_of_npz_are_counted_before_they_are_read() {
    let shelf = Shelf::new("npz-hole");
    let text = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000, 8), }";
    let text = format!("{text:<117}\n");
    let head = [b"\x93NUMPY\x01\x00", &118_u16.to_le_bytes()[..], text.as_bytes()].concat();
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let deflated = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated);
    writer.start_file("x.npy", deflated).unwrap();
    writer.write_all(&head).unwrap();
    writer.write_all(&[7; 8000]).unwrap();
    let bytes = writer.finish().unwrap().into_inner();
    // The member's end, as the archive's list has it, is behind a hole.
    let list = bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
    let (member, mut list) = (&bytes[..list], bytes[list..].to_vec());
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let stored = number(&list[20..24]) + HOLE as u32;
    list[20..24].copy_from_slice(&stored.to_le_bytes());
    let end = list.windows(4).position(|four| four == b"PK\x05\x06").unwrap();
    let at = number(&list[end + 16..end + 20]) + HOLE as u32;
    list[end + 16..end + 20].copy_from_slice(&at.to_le_bytes());
    let path = shelf.write("hole.npz", member);
    hole(&path, &list, HOLE);
    let _ = defused_hole(SourceFormat::Npy, &path);
}

#[test]
fn stored_chunks_of_hdf5_are_counted_before_they_are_read() {
    let shelf = Shelf::new("hdf5-hole");
    let path = shelf.folder.join("hole.h5");
    hdf5_rows(&path, &[1; 8]);
    let read = defused(SourceFormat::Hdf5, &path);
    assert!(read > 0, "{:?}", refusal(SourceFormat::Hdf5, &path));
    let mut bytes = fs::read(&path).unwrap();
    // A node of chunks: its head has 24 bytes, a chunk's size follows.
    let node = bytes.windows(5).position(|five| five == b"TREE\x01").unwrap();
    bytes[node + 24..node + 28].copy_from_slice(&(HOLE as u32).to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    hole(&path, b"", HOLE);
    assert_eq!(defused_hole(SourceFormat::Hdf5, &path), 0);
}

#[test]
fn frames_of_lz4_in_parquet_are_counted_before_they_are_unpacked() {
    let shelf = Shelf::new("parquet-lz4");
    // A frame of blocks of 4 MB, each a run of one letter: its length in steps of 255.
    let mut block = vec![0x1f, b'a', 1, 0];
    let run = (4 << 20) - 1 - 4 - 15 - 5;
    block.resize(block.len() + run / 255, 255);
    block.push((run % 255) as u8);
    block.extend_from_slice(&[0x50, b'a', b'a', b'a', b'a', b'a']);
    let mut frame = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73];
    for _ in 0..100 {
        frame.extend_from_slice(&(block.len() as u32).to_le_bytes());
        frame.extend_from_slice(&block);
    }
    frame.extend_from_slice(&[0; 4]);
    let page = [crafted::page(1000, frame.len() as i64, 1), frame].concat();
    let schema =
        [crafted::element(b"r", None, 0, Some(1)), crafted::element(b"t", Some(6), 0, None)];
    let chunk = crafted::Chunk {
        path: &[b"t"],
        kind: 6,
        codec: 5,
        values: 1,
        uncompressed: 1000,
        compressed: page.len() as i64,
        offset: 4,
    };
    let footer = crafted::footer(&schema, &[(vec![chunk], 1)]);
    let path = shelf.write("frames.parquet", &crafted::parquet(&page, &footer));
    assert_eq!(defused(SourceFormat::Parquet, &path), 0);
}

#[test]
fn lists_of_hdf5s_chunks_are_counted() {
    let shelf = Shelf::new("hdf5-chunks");
    let mut bytes = Vec::new();
    let packed = &include_bytes!("fixtures/chunks.h5.gz")[..];
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    let path = shelf.write("chunks.h5", &bytes);
    assert_eq!(defused(SourceFormat::Hdf5, &path), 0);
    let error = refusal(SourceFormat::Hdf5, &path).unwrap();
    assert!(error.contains("chunks") && error.contains("more memory"), "{error}");
}
