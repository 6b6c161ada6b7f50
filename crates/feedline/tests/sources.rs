//! What every source must do. A new source gets a line in `all` and the whole suite.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::Arc;

use crate::support::{self, Folder, arrays, photos};
use feedline::internals::engine::{Pack, PackOptions, opening};
use feedline::internals::pack::{Given, Record};
use feedline::pack::WriteOptions;
use feedline::sample::{DType, Field, FieldKind, Room, Value};
use feedline::source::{self, Source};
use feedline::spec::{FieldChoice, SourceFormat, SourceKind, Spec};
use feedline::store::{Files, Store};
use feedline::{Error, Fault, Loader, pack};

const PHOTOS: u64 = 12;

fn data() -> Folder {
    let folder = Folder::new("sources");
    photos(&folder, 3, 4);
    let rows = |line: &dyn Fn(usize, usize) -> String| -> String {
        (0..3).flat_map(|class| (0..4).map(move |n| (class, n))).map(|(c, n)| line(c, n)).collect()
    };
    let csv = rows(&|c, n| format!("class{c}/{n:03}.jpg,class{c},{}\n", n as f64 / 2.0));
    let tsv = rows(&|c, n| format!("class{c}/{n:03}.jpg\t{c}\n"));
    let json = rows(&|c, n| {
        format!("{{\"image\": \"class{c}/{n:03}.jpg\", \"label\": {c}, \"note\": null}}\n")
    });
    // A byte order mark, quotes and a blank line are part of life.
    folder.write("a.csv", format!("\u{feff}path,label,score\n{csv}").as_bytes());
    folder.write("b.tsv", format!("file\tclass_id\n{tsv}").as_bytes());
    folder.write("c.jsonl", format!("{json}\n").as_bytes());
    archives(&folder);
    columns(&folder, SourceFormat::Parquet, "g.parquet", None);
    columns(&folder, SourceFormat::Arrow, "h.arrow", None);
    columns(&folder, SourceFormat::Arrow, "i.arrow", Some("zstd"));
    folder
}

/// The same photos and labels in the columns of a file.
fn columns(folder: &Folder, format: SourceFormat, name: &str, compression: Option<&str>) {
    let field = |name: &str, kind| Field { name: name.to_owned(), kind };
    let label = field("label", FieldKind::scalar(DType::I64));
    let fields = [field("image", FieldKind::EncodedImage), label];
    let compression = compression.map(str::to_owned);
    let options = WriteOptions { compression, block_samples: Some(5), ..Default::default() };
    let path = folder.path().join(name);
    let mut writer = pack::create(format, &path, &fields, &options).unwrap();
    for index in 0..PHOTOS {
        let key = format!("class{}/{:03}", index / 4, index % 4);
        let image = std::fs::read(folder.path().join(format!("{key}.jpg"))).unwrap();
        let label = (index as i64 / 4).to_ne_bytes();
        let values = [Given { bytes: &image, shape: &[] }, Given { bytes: &label, shape: &[] }];
        writer.put(&Record { key: &key, values: &values }).unwrap();
    }
    writer.finish().unwrap();
}

/// The same photos in tar shards, in one compressed shard, and in a zip archive.
fn archives(folder: &Folder) {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let mut shards: Vec<_> = (0..4).map(|_| tar::Builder::new(Vec::new())).collect();
    for (class, number) in (0..3).flat_map(|class| (0..4).map(move |number| (class, number))) {
        let name = format!("class{class}/{number:03}");
        let photo = std::fs::read(folder.path().join(format!("{name}.jpg"))).unwrap();
        zip.start_file(format!("{name}.jpg"), zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&photo).unwrap();
        for shard in [class, 3] {
            for (ending, bytes) in [("jpg", &photo[..]), ("cls", class.to_string().as_bytes())] {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                shards[shard].append_data(&mut header, format!("{name}.{ending}"), bytes).unwrap();
            }
        }
    }
    folder.write("f.zip", zip.finish().unwrap().get_ref());
    for (number, shard) in shards.into_iter().enumerate() {
        let bytes = shard.into_inner().unwrap();
        match number {
            3 => folder.write("e.tar.zst", &zstd::encode_all(&bytes[..], 1).unwrap()),
            _ => folder.write(&format!("d-{number}.tar"), &bytes),
        };
    }
}

/// The same photos and classes in every format that we write, packed, and as raw pixels.
fn written(folder: &Folder) -> Vec<std::path::PathBuf> {
    let to = folder.path().join("written");
    std::fs::create_dir(&to).unwrap();
    let mut paths = Vec::new();
    for format in SourceFormat::writable() {
        let name = format!("written/set.{}", format.extension());
        columns(folder, format, &name, None);
        paths.push(folder.path().join(name));
    }
    let photos = Folder::new("sources-to-pack");
    support::photos(&photos, 3, 4);
    for (name, raw) in [("packed", false), ("raw", true)] {
        let options = PackOptions { raw, crop_index: !raw, ..PackOptions::default() };
        let kind = SourceKind::ImageFolder(photos.path().to_owned());
        Pack::open(kind, options).unwrap().run(&to.join(name), &|_| (), &|| false).unwrap();
        paths.push(to.join(name));
    }
    paths
}

/// What is true of every source, whatever it holds.
fn conforms(name: &str, source: &dyn Source) {
    let shown: Vec<_> = (0..source.len()).map(|index| show(source, index)).collect();
    for (index, before) in shown.iter().enumerate().rev() {
        assert_eq!(&show(source, index as u64), before, "{name}, backwards");
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (index, before) in shown.iter().enumerate().rev() {
                    assert_eq!(&show(source, index as u64), before, "{name}, many readers");
                }
            });
        }
    });
}

#[test]
fn what_we_write_conforms() {
    let folder = data();
    for path in written(&folder) {
        let (name, source) = (path.display().to_string(), open(&SourceKind::Path(path.clone())));
        assert_eq!(source.len(), PHOTOS, "{name}");
        let position = |field: &str| source.fields().iter().position(|one| one.name == field);
        assert!(position("image").is_some(), "{name}");
        let label = position("label").unwrap();
        for index in 0..PHOTOS {
            let found = match source.value(index, label).unwrap() {
                Value::Int(number) => number,
                _ => {
                    let mut made = Made::default();
                    source.read(index, label, &mut made).unwrap();
                    i64::from_ne_bytes(made.bytes.try_into().unwrap())
                }
            };
            assert_eq!(found, index as i64 / 4, "{name}");
        }
        conforms(&name, &*source);
        resumes(&path);
    }
}

/// Files that the formats' own libraries wrote (`fixtures/make.py`): whether they hold images, and
/// what one of their fields is called.
const FOREIGN: [(SourceFormat, &str, bool, &str); 13] = [
    (SourceFormat::Tar, "plain.tar", true, "png"),
    (SourceFormat::Tfrecord, "examples.tfrecord", false, "label"),
    (SourceFormat::Lmdb, "samples.lmdb", false, "png"),
    (SourceFormat::Hdf5, "latest.h5", false, "plain"),
    (SourceFormat::Npy, "rows.npy", false, "rows"),
    (SourceFormat::Parquet, "plain.parquet", false, "label"),
    (SourceFormat::Arrow, "plain.arrow", false, "label"),
    (SourceFormat::Csv, "table.csv", false, "text"),
    (SourceFormat::Jsonl, "table.jsonl", false, "text"),
    (SourceFormat::Zarr, "v3.zarr", false, "plain"),
    (SourceFormat::Mds, "mds", true, "label"),
    (SourceFormat::Litdata, "litdata", true, "label"),
    (SourceFormat::Zip, "images.zip", true, "image"),
];

/// A copy of a file that others wrote: indexes are written beside the data.
fn foreign(name: &str) -> (Folder, std::path::PathBuf) {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let copy = Folder::new("written-by-others");
    let path = copy.path().join(name);
    copy_all(&fixtures.join(name), &path);
    (copy, path)
}

#[test]
fn what_others_write_conforms() {
    for (format, name, images, _) in FOREIGN {
        let (_copy, path) = foreign(name);
        let source = open(&SourceKind::Format { format, path: path.clone(), fields: Vec::new() });
        assert!(!source.is_empty(), "{name}");
        conforms(name, &*source);
        if images {
            resumes(&path);
        }
    }
    let seen: Vec<_> = FOREIGN.iter().map(|(format, ..)| *format).collect();
    assert_eq!(seen, SourceFormat::all().collect::<Vec<_>>());
}

/// Every format says which file lacks a field, what there is instead, and what may be meant.
#[test]
fn a_wrong_name_of_a_field_is_reported_with_those_that_there_are() {
    for (format, name, _, right) in FOREIGN {
        let (_copy, path) = foreign(name);
        let choose = |column: &str| {
            let column = column.to_owned();
            let fields = vec![FieldChoice::new("x", column)];
            tried(&SourceKind::Format { format, path: path.clone(), fields })
        };
        for wanted in [right.to_owned(), format!("none; {right}")] {
            let fields = choose(&wanted).unwrap().fields().to_vec();
            assert_eq!(fields.len(), 1, "{name}: {wanted}");
        }
        let wrong = format!("{right}s");
        for wanted in [wrong.clone(), format!("none;{wrong}")] {
            let error = choose(&wanted).err().unwrap().to_string();
            let (start, rest) = error.split_once(&format!(" {wanted:?}, only ")).unwrap();
            assert!(start.starts_with(&path.display().to_string()), "{error}");
            let noun = start.rsplit_once(": has no ").unwrap().1;
            assert!(["column", "dataset", "array", "field"].contains(&noun), "{error}");
            let (known, hint) = rest.split_once("; ").unwrap();
            assert!(known.split(", ").any(|each| each == right), "{error}");
            assert_eq!(hint, format!("did you mean {right:?}?"), "{name}");
        }
    }
}

#[test]
fn a_wrong_name_of_a_column_of_a_manifest_is_reported_too() {
    let folder = data();
    for (name, path, label) in [("a.csv", "pth", "label"), ("c.jsonl", "image", "lable")] {
        let path_column = Some(path.to_owned());
        let label_columns = Some(vec![label.to_owned()]);
        let path = folder.path().join(name);
        let error = tried(&SourceKind::Manifest { path, path_column, label_columns, root: None });
        let error = error.err().unwrap().to_string();
        for part in [name, "has no column", "only ", "did you mean \""] {
            assert!(error.contains(part), "{error}");
        }
    }
}

fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    if from.is_file() {
        std::fs::copy(from, to).unwrap();
        return;
    }
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy_all(&entry.path(), &to.join(entry.file_name()));
    }
}

fn open(kind: &SourceKind) -> Arc<dyn Source> {
    tried(kind).unwrap()
}

fn tried(kind: &SourceKind) -> Result<Arc<dyn Source>, Error> {
    let store: Arc<dyn Store> = Arc::new(Files::default());
    source::open(kind, &opening(&Spec::default(), &store))
}

fn all(folder: &Folder) -> Vec<(&'static str, Arc<dyn Source>)> {
    let path = |name: &str| SourceKind::Path(folder.path().join(name));
    let manifest = SourceKind::Manifest {
        path: folder.path().join("a.csv"),
        path_column: Some("path".to_owned()),
        label_columns: Some(vec!["label".to_owned(), "score".to_owned()]),
        root: Some(folder.path().to_owned()),
    };
    vec![
        ("image folder", open(&SourceKind::ImageFolder(folder.path().to_owned()))),
        ("flat folder", open(&SourceKind::Flat(folder.path().to_owned()))),
        ("csv", open(&path("a.csv"))),
        ("csv with two labels", open(&manifest)),
        ("tsv", open(&path("b.tsv"))),
        ("jsonl", open(&path("c.jsonl"))),
        ("arrays", Arc::new(arrays(PHOTOS as usize))),
        ("tar", open(&path("d-{0..2}.tar"))),
        ("compressed tar", open(&path("e.tar.zst"))),
        ("zip", open(&path("f.zip"))),
        ("parquet", open(&path("g.parquet"))),
        ("arrow", open(&path("h.arrow"))),
        ("compressed arrow", open(&path("i.arrow"))),
    ]
}

/// What a source made.
#[derive(Debug, Default)]
struct Made {
    bytes: Vec<u8>,
    shape: Vec<usize>,
}

impl Room for Made {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        self.bytes = vec![0; bytes as usize];
        Ok(&mut self.bytes)
    }

    fn shape(&mut self, shape: &[usize]) {
        self.shape = shape.to_vec();
    }
}

/// A value as something that can be compared.
fn show(source: &dyn Source, index: u64) -> Vec<String> {
    (0..source.fields().len())
        .map(|field| match source.value(index, field) {
            Err(fault) => fault.to_string(),
            Ok(value) => show_value(source, (index, field), value),
        })
        .collect()
}

fn show_value(source: &dyn Source, (index, field): (u64, usize), value: Value<'_>) -> String {
    match value {
        Value::File(location) => {
            format!("{} {:?}", location.root.join(location.path).display(), location.range)
        }
        Value::Made => {
            let mut room = Made::default();
            source.read(index, field, &mut room).unwrap();
            format!("{room:?}")
        }
        Value::Bytes(bytes) => format!("{bytes:?}"),
        Value::Pixels { location, height, width, channels } => {
            let place = location.root.join(location.path);
            format!("{height} x {width} x {channels}: {place:?} {:?}", location.range)
        }
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
    }
}

#[test]
fn values_fit_the_fields_and_stay_the_same() {
    let folder = data();
    for (name, source) in all(&folder) {
        assert_eq!(source.len(), PHOTOS, "{name}");
        let first: Vec<_> = (0..PHOTOS).map(|index| show(&*source, index)).collect();
        for index in (0..PHOTOS).rev() {
            assert_eq!(show(&*source, index), first[index as usize], "{name}, backwards");
            for (number, field) in source.fields().iter().enumerate() {
                let value = source.value(index, number).unwrap();
                let fits = match (&field.kind, value) {
                    (FieldKind::EncodedImage, Value::Made) => true,
                    (FieldKind::EncodedImage, Value::File(location)) => {
                        location.root.join(location.path).is_file()
                    }
                    (FieldKind::Array { dtype, shape }, Value::Bytes(bytes)) => {
                        bytes.len() == shape.iter().product::<usize>() * dtype.size()
                    }
                    (FieldKind::Array { dtype, shape }, Value::Int(_)) => {
                        dtype.name() == "int64" && shape.is_empty()
                    }
                    (FieldKind::Array { dtype, shape }, Value::Float(_)) => {
                        dtype.name() == "float32" && shape.is_empty()
                    }
                    _ => false,
                };
                assert!(fits, "{name}: {field:?} holds {value:?}");
            }
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for (index, before) in first.iter().enumerate() {
                        assert_eq!(&show(&*source, index as u64), before, "{name}, many readers");
                    }
                });
            }
        });
    }
}

#[test]
fn labels_are_right() {
    let folder = data();
    for (name, source) in all(&folder) {
        let Some(label) = source.fields().iter().position(|f| f.kind != FieldKind::EncodedImage)
        else {
            assert_eq!(name, "flat folder");
            continue;
        };
        if name == "arrays" {
            continue;
        }
        for index in 0..PHOTOS {
            let Value::Int(class) = source.value(index, label).unwrap() else { panic!("{name}") };
            assert_eq!(class as u64, index / 4, "{name}");
        }
        let named = matches!(name, "image folder" | "csv" | "csv with two labels" | "zip");
        assert_eq!(source.classes().len(), if named { 3 } else { 0 }, "{name}");
    }
}

#[test]
fn labels_are_numbers_only_if_all_are() {
    let folder = Folder::new("labels");
    let labels = |lines: &[&str]| {
        let rows: String = lines.iter().map(|line| format!("x.jpg,{line}\n")).collect();
        let path = folder.write("labels.csv", format!("path,label\n{rows}").as_bytes());
        let source = open(&SourceKind::Path(path));
        let shown: Vec<String> =
            (0..source.len()).map(|index| show(&*source, index)[1].clone()).collect();
        (shown.join(" "), source.classes().join(" "))
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(labels(&["001", "2", "-3"]), pair("1 2 -3", ""));
    assert_eq!(labels(&["1", "2.5"]), pair("1 2.5", ""));
    assert_eq!(labels(&["001", "1", "abc", "001"]), pair("0 1 2 0", "001 1 abc"));
    assert_eq!(labels(&["nan", "1"]), pair("1 0", "1 nan"));
}

#[test]
fn fingerprints_follow_the_data_and_not_its_place() {
    let (one, two) = (data(), data());
    let prints = |folder: &Folder| -> Vec<u64> {
        all(folder).iter().map(|(_, source)| source.fingerprint()).collect()
    };
    let before = prints(&one);
    assert_eq!(before, prints(&two), "the same data elsewhere");
    std::fs::rename(two.path().join("class2/003.jpg"), two.path().join("class2/004.jpg")).unwrap();
    let csv = std::fs::read_to_string(two.path().join("a.csv")).unwrap();
    two.write("a.csv", csv.replacen("class0,0", "class1,0", 1).as_bytes());
    let tsv = std::fs::read_to_string(two.path().join("b.tsv")).unwrap();
    two.write("b.tsv", tsv.replacen("\t2", "\t7", 1).as_bytes());
    // Classes by another name are other classes.
    let json = std::fs::read_to_string(two.path().join("c.jsonl")).unwrap();
    let renamed = json.replace(": 0,", ": \"cat\",").replace(": 1,", ": \"dog\",");
    two.write("c.jsonl", renamed.replace(": 2,", ": \"emu\",").as_bytes());
    let after = prints(&two);
    for (number, (name, _)) in all(&one).iter().enumerate().take(6) {
        assert_ne!(before[number], after[number], "{name}: a changed name or label");
    }
}

/// An epoch of what is at `path` goes on where it was left.
fn resumes(path: &std::path::Path) {
    let build = || {
        let spec = Spec::from_value(serde_json::json!({
            "source": path, "batch_size": 5, "shuffle": true, "num_workers": 2,
            "transforms": [{"op": "CenterCrop", "size": 8}],
        }));
        Loader::from_spec(spec.unwrap()).unwrap()
    };
    let whole: Vec<u64> = build().epoch().map(|batch| batch.unwrap().hash()).collect();
    let mut loader = build();
    loader.epoch().next().unwrap().unwrap();
    let state = loader.state();
    let mut resumed = build();
    resumed.resume(&state).unwrap();
    let rest: Vec<u64> = resumed.epoch().map(|batch| batch.unwrap().hash()).collect();
    assert_eq!(rest, whole[1..], "{}", path.display());
}

#[test]
fn every_source_shuffles_and_resumes() {
    let folder = data();
    for path in [
        "",
        "a.csv",
        "b.tsv",
        "c.jsonl",
        "d-*.tar",
        "e.tar.zst",
        "f.zip",
        "g.parquet",
        "h.arrow",
        "i.arrow",
    ] {
        resumes(&folder.path().join(path));
    }
}

#[test]
fn what_is_wrong_with_a_source_is_said() {
    let folder = data();
    std::fs::create_dir_all(folder.path().join("empty/class")).unwrap();
    std::os::unix::fs::symlink(folder.path(), folder.path().join("class0/loop")).unwrap();
    let write = |name: &str, text: &str| folder.write(name, text.as_bytes());
    write("no-rows.csv", "path,label\n");
    write("ragged.csv", "path,label\na.jpg,1\nb.jpg\n");
    write("hole.csv", "path,label\na.jpg,1\n,2\n");
    write("broken.jsonl", "{\"path\": \"a.jpg\"}\n{\"path\": \n");
    write("kinds.jsonl", "{\"path\": \"a.jpg\", \"label\": [1]}\n");
    let rows = "b.jpg,2\n".repeat(1 << 18);
    write("quote.csv", &format!("path,label\n\"a.jpg,1\n{rows}"));
    std::fs::create_dir_all(folder.path().join("links/0")).unwrap();
    for level in 0..20 {
        let next = folder.path().join(format!("links/{}", level + 1));
        std::fs::create_dir_all(&next).unwrap();
        for name in ["a", "b"] {
            let link = folder.path().join(format!("links/{level}/{name}"));
            std::os::unix::fs::symlink(&next, link).unwrap();
        }
    }
    folder.write("endless.jsonl", &vec![b'x'; 3 << 20]);
    folder.write("thing.xyz", b"?");
    for (name, message) in [
        ("nowhere", "No such file"),
        ("empty", "no images"),
        ("", "is a link to a folder that contains it"),
        ("no-rows.csv", "lists no samples"),
        ("ragged.csv", "line 3"),
        ("hole.csv", "line 3"),
        ("broken.jsonl", "line 2"),
        ("kinds.jsonl", "no text or number for label"),
        ("endless.jsonl", "longer than 1 MiB"),
        ("quote.csv", "longer than 1 MiB"),
        ("links", "reached through links"),
        ("thing.xyz", "is not a data set that feedline knows"),
    ] {
        let kind = SourceKind::Path(folder.path().join(name));
        let Err(error) = tried(&kind) else { panic!("{name} was accepted") };
        assert!(error.to_string().contains(message), "{name}: {error}");
        assert!(matches!(error, Error::Source { .. } | Error::Io { .. }), "{name}: {error:?}");
    }
}

/// A file of separated values follows the same rules as a manifest and as a table.
#[test]
fn manifests_and_tables_read_separated_values_alike() {
    let folder = Folder::new("sources-separated");
    let both = |name: &str, text: &str, label: &str| {
        let path = folder.write(name, text.as_bytes());
        let label_columns = Some(vec![label.to_owned()]);
        let table =
            SourceKind::Format { format: SourceFormat::Csv, path: path.clone(), fields: vec![] };
        let manifest = SourceKind::Manifest { path, path_column: None, label_columns, root: None };
        [tried(&manifest), tried(&table)]
    };
    let text = "\u{feff}\"path\",\"la\r\nbel\"\r\n\r\n\"a, \"\"b\"\".jpg\",\"x\ny\"\r\nc\"d.jpg,\"z\"\"w\"v\r\n";
    let [manifest, table] = both("a.csv", text, "la\r\nbel").map(Result::unwrap);
    let rows = [("a, \"b\".jpg", "x\ny"), ("c\"d.jpg", "z\"wv")];
    assert_eq!((manifest.len(), table.len()), (2, 2));
    for (index, (path, label)) in (0..).zip(rows) {
        let Ok(Value::File(found)) = manifest.value(index, 0) else { panic!("{index}") };
        assert_eq!(found.path, std::path::Path::new(path));
        assert_eq!(manifest.classes()[index as usize], label);
        for (field, expected) in [path, label].into_iter().enumerate() {
            let mut made = Made::default();
            table.read(index, field, &mut made).unwrap();
            assert_eq!(made.bytes, expected.as_bytes());
        }
    }
    for (name, text, expected) in [
        (
            "open.csv",
            "path,label\na.jpg,1\n\"b.jpg,2\nc.jpg,3\n",
            "line 3: has a quote that is never",
        ),
        (
            "short.csv",
            "path,label\na.jpg,\"1\n2\"\nb.jpg\n",
            "line 4: has 1 values, the first line 2",
        ),
        (
            "old.csv",
            "path,label\ra.jpg,1\rb.jpg,2\r",
            "line 1: ends its lines with carriage returns",
        ),
    ] {
        for refused in both(name, text, "label") {
            let error = refused.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[test]
fn the_only_column_beside_the_paths_is_the_label_and_unused_ones_are_named() {
    let folder = Folder::new("unused-columns");
    photos(&folder, 1, 1);
    let photo = "class0/000.jpg";
    let names = |source: &dyn Source| -> Vec<String> {
        source.fields().iter().map(|field| field.name.clone()).collect()
    };
    let cases: [(&str, String, &[&str], &[&str]); 8] = [
        ("a.csv", format!("filename,category\n{photo},cat\n"), &["image", "category"], &[]),
        ("b.csv", format!(",path, category \n0,{photo},3\n"), &["image", "category"], &[]),
        ("c.csv", format!("path,label,score\n{photo},1,2\n"), &["image", "label"], &["score"]),
        ("d.tsv", format!("path\tcat\tsplit\n{photo}\ta\tb\n"), &["image"], &["cat", "split"]),
        ("e.csv", format!("path\n{photo}\n"), &["image"], &[]),
        ("f.csv", format!("path,image\n{photo},x\n"), &["image"], &["image"]),
        (
            "g.jsonl",
            format!("{{\"file\": \"{photo}\", \"kind\": true}}\n"),
            &["image", "kind"],
            &[],
        ),
        ("h.jsonl", format!("{{\"file\": \"{photo}\", \"box\": [1]}}\n"), &["image"], &["box"]),
    ];
    for (name, text, fields, unused) in cases {
        folder.write(name, text.as_bytes());
        let path = folder.path().join(name);
        let source = open(&SourceKind::Path(path.clone()));
        assert_eq!(names(&*source), fields, "{name}");
        assert_eq!(source.unused_columns(), unused, "{name}");
        // What somebody leaves out by name needs no mention.
        let chosen = open(&SourceKind::Manifest {
            path,
            path_column: None,
            label_columns: Some(Vec::new()),
            root: None,
        });
        assert_eq!((names(&*chosen), chosen.unused_columns()), (vec!["image".to_owned()], &[][..]));
    }
    let loader = Loader::builder(folder.path().join("d.tsv")).build().unwrap();
    let name = folder.path().join("d.tsv").display().to_string();
    assert_eq!(loader.unused_columns(), [(name, vec!["cat".to_owned(), "split".to_owned()])]);
}
