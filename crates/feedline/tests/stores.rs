//! Every store keeps the same promises, and every format is read from any of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Folder, photos, rows};
use feedline::internals::engine::{Pack, PackOptions, opening};
use feedline::sample::{Field, Grown, Value};
use feedline::source;
use feedline::spec::{OpSpec, SourceFormat, SourceKind};
use feedline::store::{
    Delayed, Entry, Faults, Files, Handle, Local, Memory, Metadata, Operation, Store, Throttled,
    conformance, wrapped,
};
use feedline::{Fault, Loader, Spec};

/// Writes elsewhere and renames, so that whoever has the file open keeps the old one.
fn put(path: &Path, bytes: &[u8]) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let partial = std::env::temp_dir().join(format!(
        "feedline-put-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&partial, bytes).unwrap();
    std::fs::rename(&partial, path).unwrap();
}

/// The store of every loader, `Files`, keeps files open; the cache of samples is no store, and is tried
/// with the engine.
#[test]
fn stores_keep_their_promises() {
    type Wrap = fn(Arc<dyn Store>) -> Arc<dyn Store>;
    let wrappers: [(&str, Wrap); 4] = [
        ("bare", |inner| inner),
        ("throttled", |inner| Arc::new(Throttled::new(inner, 1 << 40))),
        ("delayed", |inner| Arc::new(Delayed::new(inner, Duration::from_micros(1)))),
        ("faults", |inner| Arc::new(Faults::new(inner))),
    ];
    for (name, wrap) in wrappers {
        for (base, store) in
            [("local", Arc::new(Local) as Arc<dyn Store>), ("files", Arc::new(Files::default()))]
        {
            let folder = Folder::new("conformance");
            conformance::check(&*wrap(store), folder.path(), &put)
                .unwrap_or_else(|broken| panic!("{name} over {base}: {broken}"));
        }
        let memory = Arc::new(Memory::default());
        let fill = |path: &Path, bytes: &[u8]| memory.put(path, bytes);
        conformance::check(&*wrap(memory.clone()), Path::new("/somewhere/set"), &fill)
            .unwrap_or_else(|broken| panic!("{name} over memory: {broken}"));
    }
}

/// A store that breaks one promise.
struct Broken(&'static str);

impl Store for Broken {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        Local.open(path)
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> std::ops::ControlFlow<()>,
    ) -> std::io::Result<()> {
        Local.list(folder, &mut |entry| {
            let left_out = self.0 == "list" && entry.name == "empty";
            if left_out { std::ops::ControlFlow::Continue(()) } else { each(entry) }
        })
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        let found = Local.find(path)?;
        let more = u64::from(self.0 == "find");
        Ok(Metadata { len: found.len + more, ..found })
    }

    fn reopen(&self, path: &Path, stamp: u64) -> Result<Handle, Fault> {
        if self.0 == "reopen" { Ok(Local.open(path)?) } else { Local.reopen(path, stamp) }
    }

    fn size(&self, location: &feedline::sample::Location<'_>) -> Result<u64, Fault> {
        Ok(Local.size(location)? + u64::from(self.0 == "size"))
    }
}

#[test]
fn a_broken_promise_is_found() {
    for (promise, text) in
        [("list", "list"), ("find", "find"), ("reopen", "of another stamp"), ("size", "size")]
    {
        let folder = Folder::new("broken");
        let broken = conformance::check(&Broken(promise), folder.path(), &put).unwrap_err();
        assert!(broken.contains(text), "{promise}: {broken}");
    }
    conformance::check(&Broken(""), Folder::new("whole").path(), &put).unwrap();
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// All files at or below a path.
fn files_at(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).unwrap();
    entries.flat_map(|entry| files_at(&entry.unwrap().path())).collect()
}

/// A data set of each kind: its name, where it lies, and what is opened there.
fn data_sets(made: &Folder) -> Vec<(String, PathBuf, PathBuf)> {
    let top = made.path();
    photos(made, 2, 6);
    std::fs::rename(top.join("class0"), top.join("moved")).unwrap();
    let classes = top.join("photos");
    std::fs::create_dir(&classes).unwrap();
    std::fs::rename(top.join("moved"), classes.join("class0")).unwrap();
    std::fs::rename(top.join("class1"), classes.join("class1")).unwrap();
    let table = "path,label\nphotos/class0/000.jpg,1\nphotos/class1/001.jpg,0\n";
    std::fs::write(top.join("list.csv"), table).unwrap();
    for (name, options) in [
        ("raw", PackOptions { raw: true, ..PackOptions::default() }),
        ("tars", PackOptions { to: Some(SourceFormat::Tar), ..PackOptions::default() }),
        ("images", PackOptions { crop_index: true, ..PackOptions::default() }),
    ] {
        let kind = SourceKind::Path(classes.clone());
        let pack = Pack::open(kind, options).unwrap();
        pack.run(&top.join(name), &|_| (), &|| false).unwrap();
    }
    let litdata = top.join("litdata");
    std::fs::create_dir(&litdata).unwrap();
    litdata_chunk(&litdata);
    let mut sets: Vec<(String, PathBuf, PathBuf)> = ["photos", "raw", "tars", "images", "litdata"]
        .map(|name| (name.to_owned(), top.join(name), top.join(name)))
        .into();
    sets.push(("manifest".to_owned(), top.to_owned(), top.join("list.csv")));
    sets.push(("flat".to_owned(), classes.join("class0"), classes.join("class0")));
    for name in [
        "big-endian.npy",
        "deflated.npz",
        "earliest.h5",
        "examples.tfrecord",
        "examples.tfrecord.gz",
        "images.zip",
        "latest.h5",
        "mds",
        "packed.feather",
        "packed.parquet",
        "packed.tar.gz",
        "packed.tar.zst",
        "plain.arrow",
        "plain.parquet",
        "plain.tar",
        "rows.npy",
        "samples.lmdb",
        "sequences.tfrecord",
        "snappy.parquet",
        "stored.npz",
        "stream.arrow",
        "table.csv",
        "table.jsonl",
        "v2.zarr",
        "v3.zarr",
    ] {
        sets.push((name.to_owned(), fixture(name), fixture(name)));
    }
    sets
}

/// Two samples of a number, as LitData's own writer lays them out.
fn litdata_chunk(folder: &Path) {
    let items: [&[u8]; 2] = [b"\x07\0\0\0\0\0\0\0", b"\x09\0\0\0\0\0\0\0"];
    let mut chunk = 2_u32.to_le_bytes().to_vec();
    let mut at = 4 * (1 + 3) as u32;
    let mut rows = Vec::new();
    chunk.extend(at.to_le_bytes());
    for item in items {
        let mut row = (item.len() as u32).to_le_bytes().to_vec();
        row.extend(item);
        at += row.len() as u32;
        chunk.extend(at.to_le_bytes());
        rows.extend(row);
    }
    chunk.extend(rows);
    std::fs::write(folder.join("chunk-0-0.bin"), &chunk).unwrap();
    let index = format!(
        r#"{{"chunks": [{{"chunk_bytes": {}, "chunk_size": 2, "dim": null, "filename": "chunk-0-0.bin"}}],
            "config": {{"chunk_bytes": 64000000, "chunk_size": null, "compression": null,
                        "data_format": ["int"], "data_spec": "[1, {{\"type\": null, \"context\": null, \"children_spec\": []}}]",
                        "encryption": null, "item_loader": "PyTreeLoader"}}}}"#,
        chunk.len()
    );
    std::fs::write(folder.join("index.json"), index).unwrap();
}

/// Everything that a source says and holds.
#[derive(Debug, PartialEq)]
struct Contents {
    fields: Vec<Field>,
    classes: Vec<String>,
    fingerprint: u64,
    values: Vec<Vec<u8>>,
}

fn contents(store: &Arc<dyn Store>, path: &Path) -> Result<Contents, String> {
    let spec = Spec::default().with(|spec| spec.memory = Some(1 << 30));
    let kind = SourceKind::Path(path.to_owned());
    let source = source::open(&kind, &opening(&spec, store)).map_err(|error| error.to_string())?;
    let mut values = Vec::new();
    for index in 0..source.len() {
        for field in 0..source.fields().len() {
            let mut room = Grown::default();
            let read = source.value(index, field).and_then(|value| {
                match value {
                    Value::Int(number) => room.bytes = number.to_ne_bytes().to_vec(),
                    Value::Float(number) => room.bytes = number.to_ne_bytes().to_vec(),
                    Value::Bytes(bytes) => room.bytes = bytes.to_vec(),
                    Value::Made => source.read(index, field, &mut room)?,
                    value => store.read(&value.location().unwrap(), &mut room)?,
                }
                Ok(())
            });
            values.push(match read {
                Ok(()) => room.bytes,
                // The file is as broken as the store.
                Err(Fault::Io(error)) => return Err(error.to_string()),
                Err(fault) => fault.to_string().into(),
            });
        }
    }
    Ok(Contents {
        fields: source.fields().to_vec(),
        classes: source.classes().to_vec(),
        fingerprint: source.fingerprint(),
        values,
    })
}

fn brief(found: &Result<Contents, String>) -> String {
    match found {
        Ok(found) => format!("{:?}, {} values", found.fields, found.values.len()),
        Err(error) => error.clone(),
    }
}

/// A copy of what lies at `from`, in memory below a folder that no disk has.
fn in_memory(from: &Path, opened: &Path) -> (Arc<dyn Store>, PathBuf) {
    let memory = Memory::default();
    let elsewhere = Path::new("/nowhere/on/this/machine").join(from.file_name().unwrap());
    let moved = |path: &Path| match path.strip_prefix(from).unwrap() {
        inside if inside.as_os_str().is_empty() => elsewhere.clone(),
        inside => elsewhere.join(inside),
    };
    for path in files_at(from) {
        memory.put(&moved(&path), std::fs::read(&path).unwrap());
    }
    (Arc::new(memory), moved(opened))
}

#[test]
fn every_format_is_served_from_memory_as_from_files() {
    let made = Folder::new("every-format");
    let local: Arc<dyn Store> = Arc::new(Files::default());
    for (name, from, opened) in data_sets(&made) {
        let expected = contents(&local, &opened).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!expected.values.is_empty(), "{name}");
        let (memory, elsewhere) = in_memory(&from, &opened);
        let found = contents(&memory, &elsewhere);
        assert!(found.as_ref() == Ok(&expected), "{name}: {}", brief(&found));
        let slow: Arc<dyn Store> = Arc::new(Throttled::new(memory, 1 << 40));
        assert!(contents(&slow, &elsewhere) == Ok(expected), "{name}, throttled");
    }
}

#[test]
fn batches_from_memory_are_those_from_files() {
    let made = Folder::new("memory-batches");
    for (name, from, opened) in data_sets(&made).into_iter().take(4) {
        let (memory, elsewhere) = in_memory(&from, &opened);
        let load = |path: &Path, store: Arc<dyn Store>| {
            let crop = OpSpec::new("RandomResizedCrop").with("size", 16);
            let mut loader =
                Loader::builder(path).batch_size(4).transform(crop).store(store).build().unwrap();
            loader.epoch().map(|batch| rows(&batch.unwrap())).collect::<Vec<_>>()
        };
        let expected = load(&opened, Arc::new(Files::default()));
        assert_eq!(load(&elsewhere, memory), expected, "{name}");
    }
}

/// A fault at any point of an opening or a reading is an error, or nothing at all where what failed
/// was not needed; it never changes a value, and the next attempt is whole.
#[test]
fn a_fault_anywhere_is_an_error_and_changes_nothing() {
    let made = Folder::new("faults");
    for (name, from, opened) in data_sets(&made) {
        let (memory, elsewhere) = in_memory(&from, &opened);
        let expected = contents(&memory, &elsewhere).unwrap();
        for operation in [Operation::List, Operation::Open, Operation::Read] {
            let (mut failed, mut spared) = (0, 0);
            loop {
                let faulty = Arc::new(Faults::new(memory.clone()));
                faulty.fail(operation, "nowhere", spared, 1);
                let found = contents(&(faulty.clone() as Arc<dyn Store>), &elsewhere);
                if !faulty.is_over() {
                    assert!(found.as_ref() == Ok(&expected), "{name}: {}", brief(&found));
                    break;
                }
                match found {
                    Ok(found) => assert!(found == expected, "{name}: {operation:?} {spared}"),
                    Err(error) => {
                        assert!(error.contains("os error 5"), "{name}: {error}");
                        failed += 1;
                    }
                }
                // The first ones one by one, then further and further apart.
                spared += 1 + spared / 8;
            }
            let must = operation != Operation::List;
            assert!(failed > 0 || !must, "{name}: no failed {operation:?} was seen");
        }
    }
}

/// Notes what is read of what is open, and what is read as a sample's bytes.
struct Noting {
    inner: Arc<dyn Store>,
    reads: Arc<Mutex<Vec<(PathBuf, u64, u64)>>>,
}

impl Store for Noting {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        let (path, reads) = (path.to_owned(), self.reads.clone());
        Ok(wrapped(self.inner.open(&path)?, move |inner, out, at| {
            let read = inner.read_at(out, at)?;
            reads.lock().unwrap().push((path.clone(), at, at + read as u64));
            Ok(read)
        }))
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> std::ops::ControlFlow<()>,
    ) -> std::io::Result<()> {
        self.inner.list(folder, each)
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        self.inner.find(path)
    }
}

/// What a sample will read is known before it is read, in every format.
#[test]
fn a_sample_says_what_it_will_read() {
    // What lies elsewhere: texts in a heap, a shard's own index, dictionaries and descriptions of
    // batches, the offsets of rows of different lengths.
    let elsewhere = ["earliest.h5", "latest.h5", "v3.zarr", "v2.zarr", "packed.feather"];
    let made = Folder::new("needs");
    let spec = Spec::default().with(|spec| spec.memory = Some(1 << 30));
    for (name, from, opened) in data_sets(&made) {
        let (memory, path) = in_memory(&from, &opened);
        let reads = Arc::new(Mutex::new(Vec::new()));
        let store: Arc<dyn Store> = Arc::new(Noting { inner: memory, reads: reads.clone() });
        let source = source::open(&SourceKind::Path(path), &opening(&spec, &store)).unwrap();
        let (mut announced, mut bytes, mut missed) = (Vec::new(), 0, Vec::new());
        for (index, field) in (0..source.len())
            .flat_map(|index| (0..source.fields().len()).map(move |field| (index, field)))
        {
            source.needs(index, field, &mut |location| {
                let (start, length) = location.range.unwrap_or((0, u64::MAX / 2));
                announced.push((location.root.join(location.path), start, start + length));
            });
            reads.lock().unwrap().clear();
            let mut room = Grown::default();
            match source.value(index, field) {
                Ok(Value::Made) => drop(source.read(index, field, &mut room)),
                Ok(value) => {
                    value.location().map(|location| store.read(&location, &mut room));
                }
                Err(_) => {}
            }
            for (path, start, end) in reads.lock().unwrap().drain(..) {
                bytes += end - start;
                // The reader of Parquet's page headers looks a kilobyte further.
                let within = |part: &&(PathBuf, u64, u64)| {
                    part.0 == path && part.1 <= start && end <= part.2 + 1024
                };
                if !announced.iter().any(|part| within(&part)) {
                    missed.push((index, field, path, start, end));
                }
            }
        }
        let missed_bytes: u64 = missed.iter().map(|(.., start, end)| end - start).sum();
        assert!(
            missed.is_empty() || elsewhere.contains(&&*name) && missed_bytes < bytes,
            "{name}: {missed_bytes} of {bytes} bytes were not announced: {:?}",
            &missed[..missed.len().min(3)]
        );
    }
}
