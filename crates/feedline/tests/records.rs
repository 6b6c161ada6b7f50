//! Formats that are records in files: what is written is read back, and damage is no harm.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{Folder, jpeg, processor_seconds};
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
use std::os::unix::fs::FileExt;

#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    shape: Option<Vec<usize>>,
}

impl Room for Taken {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        assert!(bytes < 1 << 28, "{bytes} bytes are asked for");
        self.bytes = vec![0; bytes as usize];
        Ok(&mut self.bytes)
    }

    fn shape(&mut self, shape: &[usize]) {
        self.shape = Some(shape.to_vec());
    }
}

/// A value's bytes, and its shape if that was given.
fn taken(source: &dyn Source, index: u64, field: usize) -> Result<Taken, Fault> {
    let mut room = Taken::default();
    match source.value(index, field)? {
        Value::Int(number) => room.bytes = number.to_le_bytes().to_vec(),
        Value::Float(number) => room.bytes = number.to_le_bytes().to_vec(),
        Value::File(place) => {
            let (at, length) = place.range.unwrap();
            let file = std::fs::File::open(place.root.join(place.path))?;
            file.read_exact_at(room.make(length)?, at)?;
        }
        Value::Made => source.read(index, field, &mut room)?,
        other => panic!("{other:?}"),
    }
    Ok(room)
}

fn choose(format: SourceFormat, path: &Path, fields: &[&str]) -> Result<Arc<dyn Source>> {
    let fields = fields.iter().map(|name| FieldChoice::new(*name, *name));
    let kind = SourceKind::Format { format, path: path.to_owned(), fields: fields.collect() };
    let store: Arc<dyn Store> = Arc::new(Files::default());
    source::open(&kind, &opening(&Spec::default(), &store))
}

fn open(format: SourceFormat, path: &Path) -> Result<Arc<dyn Source>> {
    choose(format, path, &[])
}

fn field(name: &str, kind: FieldKind) -> Field {
    Field { name: name.to_owned(), kind }
}

/// Fields of every kind, and for sample `n` the bytes and shape of each.
fn fields() -> Vec<Field> {
    let array = |dtype, shape: &[usize]| FieldKind::Array { dtype, shape: shape.to_vec() };
    let ragged = |dtype, axes| FieldKind::Ragged { dtype, axes };
    vec![
        field("image", FieldKind::EncodedImage),
        field("label", array(DType::I64, &[])),
        field("score", array(DType::F32, &[])),
        field("small", array(DType::U8, &[])),
        field("text", FieldKind::Text),
        field("raw", FieldKind::Bytes),
        field("one", array(DType::I64, &[1])),
        field("ints", array(DType::I64, &[2, 3])),
        field("floats", array(DType::F32, &[4])),
        field("wide", array(DType::F64, &[2, 2])),
        field("tokens", ragged(DType::I64, 1)),
        field("wave", ragged(DType::F32, 1)),
        field("bits", ragged(DType::U16, 1)),
        field("plane", ragged(DType::F32, 2)),
    ]
}

fn sample(n: usize) -> Vec<(Vec<u8>, Vec<usize>)> {
    let ints = |values: &[i64]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
    let floats = |count: usize| {
        (0..count).flat_map(|v| ((n * 10 + v) as f32 / 4.0).to_ne_bytes()).collect::<Vec<u8>>()
    };
    let n64 = n as i64;
    let tokens: Vec<i64> = (0..n64 % 4).map(|v| v - n64 * 1000).collect();
    let wide: Vec<u8> = (0..4).flat_map(|v| (n as f64 + f64::from(v)).to_ne_bytes()).collect();
    // Some values fill pages of their own.
    let raw = vec![n as u8 | 0x80; [0, 1, 300, 2030, 2040, 4080, 9000][n % 7]];
    vec![
        (jpeg(n as u64, 16, 16), vec![]),
        (ints(&[n64 - 3]), vec![]),
        (floats(1), vec![]),
        (vec![n as u8], vec![]),
        ("ü".repeat(n % 5).into_bytes(), vec![]),
        (raw, vec![]),
        (ints(&[-n64]), vec![1]),
        (ints(&[n64, 1, -1, i64::MIN, i64::MAX, 0]), vec![2, 3]),
        (floats(4), vec![4]),
        (wide, vec![2, 2]),
        (ints(&tokens), vec![tokens.len()]),
        (floats(n % 3), vec![n % 3]),
        (vec![7; n % 4 * 2], vec![n % 4]),
        (floats((n % 3) * 2), vec![n % 3, 2]),
    ]
}

fn write(
    format: SourceFormat,
    path: &Path,
    samples: std::ops::Range<usize>,
    packing: Option<&str>,
) {
    let options = WriteOptions { compression: packing.map(str::to_owned), ..Default::default() };
    let mut writer = pack::create(format, path, &fields(), &options).unwrap();
    for n in samples {
        let values = sample(n);
        let given: Vec<_> = values.iter().map(|(bytes, shape)| Given { bytes, shape }).collect();
        let key = format!("folder/na.me-{n}");
        writer.put(&Record { key: &key, values: &given }).unwrap();
    }
    assert!(writer.bytes() > 0);
    writer.finish().unwrap();
}

#[test]
fn what_is_written_is_read_back() {
    let folder = Folder::new("records");
    let cases = [
        (SourceFormat::Tfrecord, "a.tfrecord", None, 100),
        (SourceFormat::Tfrecord, "b.tfrecord.gz", Some("gzip"), 40),
        (SourceFormat::Tfrecord, "c.tfrecord", Some("zlib"), 40),
        (SourceFormat::Lmdb, "d.lmdb", None, 700),
    ];
    for (format, name, packing, count) in cases {
        let path = folder.path().join(name);
        write(format, &path, 0..count, packing);
        // The second time, what the first scan found is used.
        for _ in 0..2 {
            let source = open(format, &path).unwrap();
            assert_eq!(source.len(), count as u64, "{name}");
            let mut found: Vec<&str> = source.fields().iter().map(|f| f.name.as_str()).collect();
            let mut wanted: Vec<String> = fields().into_iter().map(|field| field.name).collect();
            found.sort_unstable();
            wanted.sort();
            assert_eq!(found, wanted, "{name}");
            for (number, field) in fields().iter().enumerate() {
                let at = source.fields().iter().position(|f| f.name == field.name).unwrap();
                assert_eq!(source.fields()[at].kind, field.kind, "{name}: {}", field.name);
                for n in 0..count {
                    let read = taken(&*source, n as u64, at).unwrap();
                    let (bytes, shape) = &sample(n)[number];
                    assert_eq!(&read.bytes, bytes, "{name}: {} of {n}", field.name);
                    if let (FieldKind::Ragged { .. }, Some(given)) = (&field.kind, read.shape) {
                        assert_eq!(&given, shape, "{name}: {} of {n}", field.name);
                    }
                }
            }
        }
    }
    let refused = WriteOptions { compression: Some("zstd".to_owned()), ..Default::default() };
    for format in [SourceFormat::Tfrecord, SourceFormat::Lmdb] {
        let created = pack::create(format, &folder.path().join("x"), &fields(), &refused);
        assert!(created.err().unwrap().to_string().contains("compress"));
        let again =
            folder.path().join(if format == SourceFormat::Lmdb { "d.lmdb" } else { "a.tfrecord" });
        assert!(pack::create(format, &again, &fields(), &WriteOptions::default()).is_err());
    }
}

#[test]
fn records_shuffle_and_resume_with_any_number_of_readers() {
    let folder = Folder::new("order");
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("gz")).unwrap();
    write(SourceFormat::Tfrecord, &path("a.tfrecord"), 0..23, None);
    write(SourceFormat::Tfrecord, &path("gz/a.tfrecord.gz"), 0..11, Some("gzip"));
    write(SourceFormat::Tfrecord, &path("gz/b.tfrecord.gz"), 11..23, Some("gzip"));
    write(SourceFormat::Lmdb, &path("b.lmdb"), 0..23, None);
    let (mds_set, lit_set) = (Folder::new("order-mds"), Folder::new("order-litdata"));
    mds(&mds_set);
    litdata(&lit_set);
    let sets = [path("a.tfrecord"), path("gz"), path("b.lmdb")];
    let sets = sets.iter().map(PathBuf::as_path).chain([mds_set.path(), lit_set.path()]);
    for set in sets {
        let build = |workers: u64| {
            let mut spec = serde_json::json!({
                "source": set, "batch_size": 2, "shuffle": true, "num_workers": workers,
            });
            if set.starts_with(folder.path()) {
                spec["decode"] = serde_json::json!({"mode": "bytes"});
            }
            feedline::Loader::from_spec(Spec::from_value(spec).unwrap()).unwrap()
        };
        let hashes = |loader: &mut feedline::Loader| -> Vec<u64> {
            loader.epoch().map(|batch| batch.unwrap().hash()).collect()
        };
        let whole = hashes(&mut build(0));
        assert!(whole.len() > 1);
        assert_eq!(hashes(&mut build(3)), whole, "{set:?}");
        let mut loader = build(2);
        loader.epoch().next().unwrap().unwrap();
        let mut resumed = build(2);
        resumed.resume(&loader.state()).unwrap();
        assert_eq!(hashes(&mut resumed), whole[1..], "{set:?}");
    }
}

/// Opens a file and reads all of it; true if nothing was amiss.
fn read_all(format: SourceFormat, path: &Path) -> bool {
    let begun = processor_seconds();
    let whole = match open(format, path) {
        Err(Error::Source { .. } | Error::Io { .. }) => false,
        Err(other) => panic!("{other:?}"),
        Ok(source) => {
            let each = |n: u64| (0..source.fields().len()).all(|f| taken(&*source, n, f).is_ok());
            (0..source.len()).all(each)
        }
    };
    let took = processor_seconds() - begun;
    assert!(took < 1.0, "{took} s");
    whole
}

/// Reads `bytes` cut at every byte and with every bit turned, as the file at `path`.
fn damage(format: SourceFormat, set: &Path, path: &Path, bytes: &[u8], noticed: bool) {
    std::fs::write(path, bytes).unwrap();
    assert!(read_all(format, set), "{path:?} is whole");
    for end in 0..bytes.len() {
        std::fs::write(path, &bytes[..end]).unwrap();
        let whole = read_all(format, set);
        assert!(!(noticed && whole) || end == 0, "{path:?} cut at {end}");
    }
    let mut changed = bytes.to_vec();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            changed[at] ^= 1 << bit;
            std::fs::write(path, &changed).unwrap();
            let whole = read_all(format, set);
            assert!(!(noticed && whole), "{path:?} with bit {bit} of byte {at} turned");
            changed[at] ^= 1 << bit;
        }
        // Lengths and places are most hostile at their extremes.
        if at % 3 == 0 {
            let end = (at + 4).min(bytes.len());
            for extreme in [0xff, 0x7f, 0] {
                changed[at..end].fill(extreme);
                std::fs::write(path, &changed).unwrap();
                read_all(format, set);
            }
            changed.copy_from_slice(bytes);
        }
    }
}

fn small_record() -> Vec<u8> {
    // An example with an int64_list and a float_list that are not packed, and a field that is not
    // known; then one with a feature list.
    let mut features = Vec::new();
    let mut put = |name: &str, list: u8, elements: &[u8]| {
        let mut value = vec![list << 3 | 2, elements.len() as u8];
        value.extend(elements);
        let mut entry = vec![0x0a, name.len() as u8];
        entry.extend(name.as_bytes());
        entry.extend([0x12, value.len() as u8]);
        entry.extend(value);
        features.extend([0x0a, entry.len() as u8]);
        features.extend(entry);
    };
    put("ints", 3, &[8, 1, 8, 0x96, 1]);
    put("floats", 2, &[0x0d, 0, 0, 0x80, 0x3f, 0x0d, 0, 0, 0, 0x40, 0x78, 5]);
    put("name", 1, &[0x0a, 2, b'h', b'i']);
    let mut message = vec![0x0a, features.len() as u8];
    message.extend(features);
    message.extend([0x50, 1]);
    // {"steps": [[1], [2]]}
    let list = [0x0a, 5, 0x1a, 3, 0x0a, 1, 1, 0x0a, 5, 0x1a, 3, 0x0a, 1, 2];
    let mut entry = vec![0x0a, 5];
    entry.extend(b"steps");
    entry.extend([0x12, list.len() as u8]);
    entry.extend(list);
    message.extend([0x12, entry.len() as u8 + 2, 0x0a, entry.len() as u8]);
    message.extend(entry);
    message
}

fn framed(message: &[u8]) -> Vec<u8> {
    let crc = |bytes: &[u8]| {
        crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (message.len() as u64).to_le_bytes();
    [&length[..], &crc(&length), message, &crc(message)].concat()
}

#[test]
fn lists_that_are_not_packed_are_read() {
    let folder = Folder::new("unpacked");
    let path = folder.write("a.tfrecord", &framed(&small_record()));
    let source = open(SourceFormat::Tfrecord, &path).unwrap();
    let get = |name: &str| {
        let at = source.fields().iter().position(|field| field.name == name).unwrap();
        taken(&*source, 0, at).unwrap().bytes
    };
    assert_eq!(get("ints"), [1i64.to_le_bytes(), 150i64.to_le_bytes()].concat());
    assert_eq!(get("floats"), [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat());
    assert_eq!(get("name"), b"hi");
    assert_eq!(get("steps"), [1i64.to_le_bytes(), 2i64.to_le_bytes()].concat());
}

#[test]
fn a_list_of_one_in_one_file_is_a_list_in_all() {
    let folder = Folder::new("lists");
    let fields = [field("a", FieldKind::Array { dtype: DType::I64, shape: vec![] })];
    let mut one = pack::create(
        SourceFormat::Tfrecord,
        &folder.path().join("0.tfrecord"),
        &fields,
        &WriteOptions::default(),
    )
    .unwrap();
    let bytes = 5i64.to_ne_bytes();
    one.put(&Record { key: "x", values: &[Given { bytes: &bytes, shape: &[] }] }).unwrap();
    one.finish().unwrap();
    let fields = [field("a", FieldKind::Array { dtype: DType::I64, shape: vec![2] })];
    let mut two = pack::create(
        SourceFormat::Tfrecord,
        &folder.path().join("1.tfrecord"),
        &fields,
        &WriteOptions::default(),
    )
    .unwrap();
    let bytes = [bytes, bytes].concat();
    two.put(&Record { key: "x", values: &[Given { bytes: &bytes, shape: &[2] }] }).unwrap();
    two.finish().unwrap();
    let source = open(SourceFormat::Tfrecord, folder.path()).unwrap();
    assert_eq!(source.fields()[0].kind, FieldKind::Ragged { dtype: DType::I64, axes: 1 });
    assert_eq!(taken(&*source, 0, 0).unwrap().bytes.len(), 8);
    assert_eq!(taken(&*source, 1, 0).unwrap().bytes, bytes);
}

#[test]
fn damaged_records_do_no_harm() {
    let folder = Folder::new("hostile-tfrecord");
    let bytes = [framed(&small_record()), framed(&small_record())].concat();
    let path = folder.path().join("a.tfrecord");
    // Cut between two records it is whole.
    damage(SourceFormat::Tfrecord, &path, &path, &bytes, false);
    let only = framed(&small_record());
    damage(SourceFormat::Tfrecord, &path, &path, &only, true);
    // The same with checksums that are right: the message itself is damaged.
    let message = small_record();
    for at in 0..message.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, message[at] ^ 1, message[at].wrapping_add(8)] {
            let mut changed = message.clone();
            changed[at] = value;
            std::fs::write(&path, framed(&changed)).unwrap();
            read_all(SourceFormat::Tfrecord, &path);
            std::fs::write(&path, framed(&changed[..at])).unwrap();
            read_all(SourceFormat::Tfrecord, &path);
        }
    }
}

#[test]
fn damaged_lmdb_does_no_harm() {
    let folder = Folder::new("hostile-lmdb");
    let set = folder.path().join("set");
    let fields = [field("label", FieldKind::scalar(DType::I64)), field("raw", FieldKind::Bytes)];
    let mut writer =
        pack::create(SourceFormat::Lmdb, &set, &fields, &WriteOptions::default()).unwrap();
    for n in 0..40i64 {
        let raw = vec![1; if n == 3 { 5000 } else { 150 }];
        let values =
            [Given { bytes: &n.to_ne_bytes(), shape: &[] }, Given { bytes: &raw, shape: &[] }];
        writer.put(&Record { key: "k", values: &values }).unwrap();
    }
    writer.finish().unwrap();
    let path = set.join("data.mdb");
    let bytes = std::fs::read(&path).unwrap();
    assert!(read_all(SourceFormat::Lmdb, &set));
    for end in (0..bytes.len()).step_by(509) {
        std::fs::write(&path, &bytes[..end]).unwrap();
        assert!(!read_all(SourceFormat::Lmdb, &set), "cut at {end}");
    }
    // The descriptions, and the heads of all pages.
    let heads =
        (0..bytes.len()).step_by(4096).flat_map(|page| (page..page + 160).step_by(1 + page / 8192));
    let mut changed = bytes.clone();
    for at in heads {
        for value in [1, 0xff, bytes[at] ^ 0x80] {
            changed[at] = value;
            std::fs::write(&path, &changed).unwrap();
            read_all(SourceFormat::Lmdb, &set);
        }
        changed[at] = bytes[at];
    }
    // Nodes grow from the end of a page.
    for page in (2 * 4096..bytes.len()).step_by(4096) {
        for at in (page + 3800..page + 4096).step_by(4) {
            for value in [0u16, 0xffff] {
                changed[at..at + 2].copy_from_slice(&value.to_le_bytes());
                std::fs::write(&path, &changed).unwrap();
                read_all(SourceFormat::Lmdb, &set);
            }
            changed[at..at + 2].copy_from_slice(&bytes[at..at + 2]);
        }
    }
}

/// A shard of samples, each its columns' sizes (where `sized`) and bytes.
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

fn mds(folder: &Folder) -> (PathBuf, Vec<u8>) {
    let samples: Vec<_> = (0..3u8)
        .map(|n| {
            let array = [&[8, 2 << 2, 1, n][..], &vec![n; n as usize]].concat();
            let flat = [&[1 << 2, n + 1][..], &vec![n; 2 * (n as usize + 1)]].concat();
            vec![
                (true, array),
                (false, i64::from(n).to_le_bytes().to_vec()),
                (true, flat),
                (true, format!("text {n}").into_bytes()),
            ]
        })
        .collect();
    let index = serde_json::json!({"version": 2, "shards": [{
        "version": 2, "format": "mds", "samples": 3, "compression": null, "hashes": [],
        "column_names": ["a", "b", "c", "d"],
        "column_encodings": ["ndarray", "int", "ndarray:int16", "str"],
        "column_sizes": [null, 8, null, null],
        "raw_data": {"basename": "shard.00000.mds", "bytes": 1, "hashes": {}},
        "zip_data": null, "size_limit": 1,
    }]});
    folder.write("index.json", index.to_string().as_bytes());
    let bytes = rows(&samples, b"{}");
    (folder.write("shard.00000.mds", &bytes), bytes)
}

fn litdata(folder: &Folder) -> (PathBuf, Vec<u8>) {
    let samples: Vec<_> = (0..3u8)
        .map(|n| {
            let tensor =
                [&[0, 0, 0, 11, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, n][..], &vec![n; n as usize]];
            vec![
                (true, i64::from(n).to_le_bytes().to_vec()),
                (true, tensor.concat()),
                (true, vec![n; 8]),
            ]
        })
        .collect();
    let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
    let spec = format!(
        r#"[1, {{"type": "builtins.dict", "context": "[\"n\", \"t\", \"f\"]", "children_spec": [{leaf}, {leaf}, {leaf}]}}]"#
    );
    let index = serde_json::json!({
        "chunks": [{"chunk_bytes": 1, "chunk_size": 3, "dim": null, "filename": "chunk-0-0.bin"}],
        "config": {"compression": null, "data_format": ["int", "tensor", "no_header_tensor:17"],
                   "data_spec": spec, "encryption": null, "item_loader": "PyTreeLoader"},
    });
    folder.write("index.json", index.to_string().as_bytes());
    let bytes = rows(&samples, b"");
    (folder.write("chunk-0-0.bin", &bytes), bytes)
}

#[test]
fn damaged_mds_and_litdata_do_no_harm() {
    for format in [SourceFormat::Mds, SourceFormat::Litdata] {
        let folder = Folder::new("hostile-rows");
        let (path, bytes) = match format {
            SourceFormat::Mds => mds(&folder),
            _ => litdata(&folder),
        };
        let source = open(format, folder.path()).unwrap();
        assert_eq!(source.len(), 3);
        assert!(
            source.fields().iter().any(|f| matches!(f.kind, FieldKind::Ragged { axes: 2, .. })),
            "{:?}",
            source.fields()
        );
        damage(format, folder.path(), &path, &bytes, false);
        std::fs::write(&path, &bytes).unwrap();
        let index = std::fs::read(folder.path().join("index.json")).unwrap();
        damage(format, folder.path(), &folder.path().join("index.json"), &index, false);
    }
}

#[test]
fn what_is_refused_is_said() {
    let folder = Folder::new("refused");
    let (path, _) = mds(&folder);
    let index = folder.path().join("index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    for (from, to, message) in [
        ("shard.00000.mds", "../shard.00000.mds", "not in its folder"),
        ("shard.00000.mds", "/etc/passwd", "not in its folder"),
        ("\"str\"", "\"pkl\"", "runs code"),
        ("\"str\"", "\"pil\"", "raw pixels"),
        ("\"str\"", "\"other\"", "not known"),
        ("\"samples\":3", "\"samples\":2", "not the 2"),
        ("\"version\":2", "\"version\":3", "version 3"),
        ("\"mds\"", "\"json\"", "only \"mds\""),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&index, text.replace(from, to)).unwrap();
        let error = open(SourceFormat::Mds, folder.path()).err().unwrap().to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
    std::fs::write(&index, text.replace("\"str\"", "\"pkl\"")).unwrap();
    assert_eq!(choose(SourceFormat::Mds, folder.path(), &["b"]).unwrap().len(), 3);
    std::fs::remove_file(&path).unwrap();
    let folder = Folder::new("refused-litdata");
    litdata(&folder);
    let index = folder.path().join("index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    for (from, to, message) in [
        ("chunk-0-0.bin", "../chunk-0-0.bin", "not in its folder"),
        ("\"int\"", "\"pickle\"", "runs code"),
        ("PyTreeLoader", "TokensLoader", "TokensLoader"),
        ("\"encryption\":null", "\"encryption\":{}", "encrypted"),
        ("\"compression\":null", "\"compression\":\"lz4\"", "only zstd"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&index, text.replace(from, to)).unwrap();
        let error = open(SourceFormat::Litdata, folder.path()).err().unwrap().to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
    let bad = folder.write("a.tfrecord", b"this is no record at all");
    let error = open(SourceFormat::Tfrecord, &bad).err().unwrap().to_string();
    assert!(error.contains("checksum"), "{error}");
    let bad = folder.write("a.mdb", &[0; 10000]);
    let error = open(SourceFormat::Lmdb, &bad).err().unwrap().to_string();
    assert!(error.contains("no LMDB"), "{error}");
}
