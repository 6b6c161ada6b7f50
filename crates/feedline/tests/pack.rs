//! Packing again: what is gone on with, what is kept, and what is refused.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::Folder;
use feedline::error::Stage;
use feedline::internals::engine::{Pack, PackOptions, Packed, Verify};
use feedline::internals::pack::{Given, Record};
use feedline::pack::WriteOptions;
use feedline::pack::{Datum, Writer, WriterOptions};
use feedline::sample::{DType, Field, FieldKind};
use feedline::spec::{DecodeSpec, OnError, OpSpec, SourceFormat, SourceKind, Workers};
use feedline::store::{Local, Store};
use feedline::{Error, Loader, Spec};

fn pack(source: &Path, to: &Path, options: PackOptions) -> feedline::error::Result<Packed> {
    Pack::open(SourceKind::Path(source.to_owned()), options)?.run(to, &|_| {}, &|| false)
}

fn array(dtype: DType, shape: &[usize]) -> Vec<Field> {
    vec![Field { name: "x".to_owned(), kind: FieldKind::Array { dtype, shape: shape.to_vec() } }]
}

/// Writes `rows` rows of ones.
fn write(
    format: SourceFormat,
    path: &Path,
    (fields, bytes): (&[Field], usize),
    rows: usize,
    block_samples: u64,
) -> feedline::error::Result<()> {
    let options = WriteOptions { block_samples: Some(block_samples), ..WriteOptions::default() };
    let mut writer = feedline::internals::pack::create(format, path, fields, &options)?;
    let bytes = vec![1; bytes];
    let FieldKind::Array { shape, .. } = &fields[0].kind else { panic!() };
    for _ in 0..rows {
        writer.put(&Record { key: "", values: &[Given { bytes: &bytes, shape }] })?;
    }
    writer.finish()
}

#[test]
fn memory_that_changes_the_order_makes_another_job() {
    let folder = Folder::new("pack-memory");
    let source = folder.path().join("source.zarr");
    let fields = array(DType::U8, &[1 << 20]);
    write(SourceFormat::Zarr, &source, (&fields, 1 << 20), 8, 1).unwrap();
    let options = |memory: u64| PackOptions {
        to: Some(SourceFormat::Tar),
        memory: Some(memory),
        ..PackOptions::default()
    };
    let to = folder.path().join("packed");
    assert_eq!(pack(&source, &to, options(20 << 20)).unwrap().samples, 8);
    assert!(pack(&source, &to, options(20 << 20)).unwrap().kept);
    let error = pack(&source, &to, options(40 << 20)).unwrap_err().to_string();
    assert!(error.contains("other options"), "{error}");
}

#[test]
fn changed_files_make_another_job() {
    let folder = Folder::new("pack-changed");
    crate::support::photos(&folder, 2, 3);
    let to = Folder::new("pack-changed-to");
    for to_format in [None, Some(SourceFormat::Tar)] {
        let options = || PackOptions { to: to_format, resize: Some(16), ..PackOptions::default() };
        let to = to.path().join(format!("{to_format:?}"));
        pack(folder.path(), &to, options()).unwrap();
        assert!(pack(folder.path(), &to, options()).unwrap().kept);
        folder.write("class0/000.jpg", &crate::support::jpeg(99, 30, 30));
        let error = pack(folder.path(), &to, options()).unwrap_err().to_string();
        assert!(error.contains("other data"), "{error}");
    }
    let source = to.path().join("shards");
    let fields = array(DType::U8, &[4]);
    std::fs::create_dir(&source).unwrap();
    let shard = source.join("a.parquet");
    write(SourceFormat::Parquet, &shard, (&fields, 4), 8, 4).unwrap();
    let options = || PackOptions { to: Some(SourceFormat::Npy), ..PackOptions::default() };
    let to = to.path().join("npy");
    pack(&source, &to, options()).unwrap();
    assert!(pack(&source, &to, options()).unwrap().kept);
    std::fs::remove_file(&shard).unwrap();
    write(SourceFormat::Parquet, &shard, (&fields, 4), 8, 4).unwrap();
    let error = pack(&source, &to, options()).unwrap_err().to_string();
    assert!(error.contains("other data"), "{error}");
}

#[test]
fn a_sample_too_large_for_the_memory_is_not_left_out_as_bad() {
    let folder = Folder::new("pack-large");
    let ppm = |side: usize| {
        let mut bytes = format!("P6 {side} {side} 255\n").into_bytes();
        bytes.resize(bytes.len() + side * side * 3, 7);
        bytes
    };
    (0..3).for_each(|number| drop(folder.write(&format!("in/a/{number}.ppm"), &ppm(16))));
    folder.write("in/a/large.ppm", &ppm(1500));
    folder.write("in/a/bad.ppm", b"P6 nothing");
    let source = folder.path().join("in");
    let options = |memory| PackOptions {
        to: Some(SourceFormat::Tar),
        skip_bad: true,
        memory: Some(memory),
        ..PackOptions::default()
    };
    for memory in [20_000_000, 60_000_000] {
        let to = folder.path().join(format!("out-{memory}"));
        let packed = pack(&source, &to, options(memory));
        match memory {
            20_000_000 => {
                let error = packed.unwrap_err();
                assert!(matches!(error, Error::Memory(_)), "{error}");
                let text = error.to_string();
                assert!(text.contains("large.ppm") && text.contains("--memory"), "{text}");
            }
            _ => {
                let packed = packed.unwrap();
                assert_eq!((packed.samples, packed.left_out), (4, 1));
            }
        }
    }
}

#[test]
fn blocks_that_memory_does_not_hold_are_refused() {
    let folder = Folder::new("pack-blocks");
    let fields = array(DType::U8, &[1000]);
    for format in [SourceFormat::Zarr, SourceFormat::Hdf5] {
        let path = folder.path().join(format.name());
        let error = write(format, &path, (&fields, 1000), 1, 1 << 40).unwrap_err().to_string();
        assert!(error.contains("256000 at most"), "{error}");
    }
    // A chunk alone is no larger than what there is.
    let path = folder.path().join("small.zarr");
    write(SourceFormat::Zarr, &path, (&fields, 1000), 3, 200_000).unwrap();
    let metadata = std::fs::read_to_string(path.join("x/zarr.json")).unwrap();
    assert!(metadata.contains("\"chunk_shape\":[3,1000]"), "{metadata}");
    let source = SourceKind::Format { format: SourceFormat::Zarr, path, fields: Vec::new() };
    let source = feedline::source::open(
        &source,
        &feedline::source::Opening {
            store: &(Arc::new(Local) as Arc<dyn Store>),
            image_extensions: &[],
            block_memory: 1 << 20,
            memory: 64 << 20,
            is_image: |_| false,
        },
    );
    assert_eq!(source.unwrap().len(), 3);
}

#[test]
fn zarr_refuses_bfloat16() {
    let folder = Folder::new("pack-bfloat16");
    let path = folder.path().join("a.zarr");
    let fields = array(DType::BF16, &[2]);
    let error = write(SourceFormat::Zarr, &path, (&fields, 4), 1, 1).unwrap_err().to_string();
    assert!(error.contains("bfloat16") && error.contains("convert it"), "{error}");
}

/// Runs where files may have 2 MB at most.
#[test]
#[ignore = "started by another test"]
fn writes_more_than_a_file_may_have() {
    let folder = Folder::new("pack-full");
    let fields = array(DType::U8, &[1000]);
    for (number, rows) in [(0, 10_000), (1, 2_050)] {
        let path = folder.path().join(format!("{number}.h5"));
        let written = write(SourceFormat::Hdf5, &path, (&fields, 1000), rows, 100);
        assert!(written.unwrap_err().to_string().contains("cannot write"));
    }
}

#[test]
fn a_full_disk_is_an_error_of_hdf5_and_no_crash() {
    let limited = "trap '' XFSZ; ulimit -f 4000; exec \"$0\" --ignored --exact \"$1\"";
    let done = std::process::Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .arg("pack::writes_more_than_a_file_may_have")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && text.contains("1 passed"), "{:?} {text}", done.status);
}

#[test]
fn hdf5_refuses_what_it_cannot_hold() {
    let folder = Folder::new("pack-hdf5-refused");
    let field = |name: &str, kind| Field { name: name.to_owned(), kind };
    let ragged = FieldKind::Ragged { dtype: DType::U8, axes: 1 };
    let huge = FieldKind::Array { dtype: DType::U8, shape: vec![1 << 33] };
    let empty = FieldKind::Array { dtype: DType::U8, shape: vec![0, 1 << 33] };
    for (fields, problem) in [
        (vec![field("x", ragged), field("x.data", FieldKind::Bytes)], "two datasets \"x.data\""),
        (vec![field("x", FieldKind::Text), field("x", FieldKind::Bytes)], "two datasets \"x\""),
        (vec![field("x", huge)], "4 GB"),
        (vec![field("x", empty)], "4 GB"),
    ] {
        let path = folder.path().join("set.h5");
        let made = feedline::internals::pack::create(
            SourceFormat::Hdf5,
            &path,
            &fields,
            &Default::default(),
        );
        assert!(made.err().unwrap().to_string().contains(problem), "{problem}");
        assert!(!path.exists());
    }
}

/// A set of raw pixels, 40 x 30 each, and the file that they lie in.
fn raw_pixels(folder: &Folder, count: u64) -> (PathBuf, PathBuf) {
    for number in 0..count {
        let photo = crate::support::jpeg(number, 40, 30);
        folder.write(&format!("photos/class/{number:02}.jpg"), &photo);
    }
    let to = folder.path().join("raw");
    let options = PackOptions { raw: true, ..PackOptions::default() };
    pack(&folder.path().join("photos"), &to, options).unwrap();
    let pixels = to.join("pixels-00000.bin");
    (to, pixels)
}

fn cut(file: &Path, length: u64) {
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length).unwrap();
}

#[test]
fn pixels_that_are_cut_while_they_are_loaded_are_failed_samples_of_that_file() {
    let folder = Folder::new("pack-cut");
    let (to, pixels) = raw_pixels(&folder, 8);
    let whole = std::fs::read(&pixels).unwrap();
    let each = whole.len() as u64 / 8;
    let crop = OpSpec::new("RandomResizedCrop").with("size", 16);
    let build = |workers| {
        Loader::builder(to.clone()).transform(crop.clone()).batch_size(2).num_workers(workers)
    };
    for workers in [0, 2] {
        // Files that are open when they are cut, and some that are not yet.
        for opened_before in [true, false] {
            let mut loader = build(workers).build().unwrap();
            let mut skipping = build(workers).on_error(OnError::Skip).build().unwrap();
            if opened_before {
                for loader in [&mut loader, &mut skipping] {
                    assert_eq!(loader.epoch().map(Result::unwrap).count(), 4);
                }
            }
            // The last three samples are gone. Batches that were made before may still come.
            cut(&pixels, 5 * each);
            let failed = (0..10).find_map(|_| loader.epoch().find_map(Result::err)).unwrap();
            let Error::Sample(error) = failed else { panic!("{failed}") };
            assert_eq!(error.stage, Stage::Read);
            assert_eq!(error.path.as_deref(), Some(&*pixels));
            if opened_before {
                assert!(error.to_string().contains("ends before byte"), "{error}");
                // Others stand in for those that are gone.
                for _ in 0..10 {
                    assert_eq!(skipping.epoch().map(Result::unwrap).count(), 4);
                }
                assert_eq!(skipping.stats().work.failed, 3);
            } else {
                assert!(error.to_string().contains("has changed"), "{error}");
            }
            drop((loader, skipping));
            std::fs::write(&pixels, &whole).unwrap();
        }
    }
}

#[test]
fn pixels_that_are_cut_are_bad_samples_of_a_check() {
    let folder = Folder::new("pack-cut-check");
    let (to, pixels) = raw_pixels(&folder, 4);
    let verify =
        Verify::open(&Spec::default().with(|spec| spec.sources = vec![to.into()])).unwrap();
    let each = std::fs::metadata(&pixels).unwrap().len() / 4;
    let check = || {
        let mut bad = |_| std::ops::ControlFlow::Continue(());
        verify.run(&|_| {}, &mut bad).unwrap().bad
    };
    assert_eq!(check(), 0);
    cut(&pixels, 2 * each);
    assert_eq!(check(), 2);
}

#[test]
fn packed_pixels_are_cropped_as_the_whole_images_are() {
    let folder = Folder::new("pack-crops");
    let (to, _) = raw_pixels(&folder, 9);
    let op = |name: &str| OpSpec::new(name);
    let chains = [
        vec![op("RandomResizedCrop").with("size", 16), op("RandomHorizontalFlip")],
        vec![op("RandomCrop").with("size", 20), op("RandomVerticalFlip")],
        vec![op("CenterCrop").with("size", 12), op("Resize").with("size", 7)],
        vec![op("Resize").with("size", 11), op("CenterCrop").with("size", 9)],
        vec![op("Pad").with("padding", 4), op("RandomCrop").with("size", 16)],
        vec![op("GaussianBlur").with("kernel_size", 3), op("CenterCrop").with("size", 8)],
        vec![op("RandomRotation").with("degrees", 30), op("RandomCrop").with("size", 8)],
        vec![],
    ];
    for chain in chains {
        let hashes = |source: &Path| {
            let builder = Loader::builder(source.to_owned()).batch_size(4).shuffle(true);
            let builder = chain.iter().fold(builder, |builder, op| builder.transform(op.clone()));
            let exact = DecodeSpec::default().with(|decode| decode.exact = true);
            let mut loader = builder.decode(exact).build().unwrap();
            let mut all = Vec::new();
            for _ in 0..3 {
                all.extend(loader.epoch().map(|batch| batch.unwrap().hash()));
            }
            all
        };
        assert_eq!(hashes(&to), hashes(&folder.path().join("photos")), "{chain:?}");
    }
}

/// What is written to when a job packs a folder of photos to `to`.
fn pack_photos(folder: &Folder, to: &Path) -> Result<Packed, String> {
    let options = PackOptions { resize: Some(8), ..PackOptions::default() };
    pack(&folder.path().join("photos"), to, options).map_err(|error| error.to_string())
}

#[test]
fn a_link_in_the_place_of_unfinished_work_is_refused() {
    let folder = Folder::new("pack-link");
    folder.write("photos/class/1.jpg", &crate::support::jpeg(1, 20, 20));
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let to = folder.path().join("to");
    let partial = folder.path().join("to.partial");
    for target in [elsewhere.clone(), folder.path().join("nothing")] {
        symlink(target, &partial).unwrap();
        let error = pack_photos(&folder, &to).unwrap_err();
        assert!(error.contains("to.partial") && error.contains("is a link"), "{error}");
        std::fs::remove_file(&partial).unwrap();
    }
    // The same for the destination itself.
    for target in [elsewhere.clone(), folder.path().join("nothing")] {
        symlink(target, &to).unwrap();
        let error = pack_photos(&folder, &to).unwrap_err();
        assert!(error.contains("is a link"), "{error}");
        std::fs::remove_file(&to).unwrap();
    }
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    assert!(!folder.path().join("nothing").exists());
    folder.write("to.partial", b"a file");
    assert!(pack_photos(&folder, &to).unwrap_err().contains("is not a folder"));
    std::fs::remove_file(&partial).unwrap();
    assert_eq!(pack_photos(&folder, &to).unwrap().samples, 1);
    // A set that a link leads to is there, whole.
    let link = folder.path().join("link");
    symlink(&to, &link).unwrap();
    assert!(pack_photos(&folder, &link).unwrap().kept);
}

#[test]
fn links_in_unfinished_work_are_refused() {
    let folder = Folder::new("pack-inner-link");
    for number in 0..3 {
        folder.write(&format!("photos/class/{number}.jpg"), &crate::support::jpeg(number, 20, 20));
    }
    let precious = folder.write("precious", b"precious");
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let (to, partial) = (folder.path().join("to"), folder.path().join("to.partial"));
    let names = ["feedline-journal.jsonl", "feedline-files.jsonl", "class/1.jpg", "class"];
    for name in names {
        let options = PackOptions { resize: Some(8), ..PackOptions::default() };
        let source = SourceKind::Path(folder.path().join("photos"));
        // Called off at once, so that the folder is there with its note.
        let stopped = Pack::open(source, options).unwrap().run(&to, &|_| {}, &|| true);
        assert!(matches!(stopped, Err(Error::Interrupted)));
        let link = partial.join(name);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&link);
        let _ = std::fs::remove_dir_all(&link);
        let target = if name == "class" { &elsewhere } else { &precious };
        symlink(target, &link).unwrap();
        let error = pack_photos(&folder, &to).unwrap_err();
        assert!(error.contains(name) && error.contains("neither a file nor"), "{error}");
        std::fs::remove_dir_all(&partial).unwrap();
    }
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn a_writer_neither_clears_nor_fills_what_a_link_leads_to() {
    let folder = Folder::new("writer-link");
    folder.write("elsewhere/precious", b"precious");
    let elsewhere = folder.path().join("elsewhere");
    symlink(&elsewhere, folder.path().join(".out.tar.feedline-partial")).unwrap();
    let path = folder.path().join("out.tar");
    let error = Writer::create(&path, None, WriterOptions::default()).err().unwrap().to_string();
    assert!(error.contains("is a link"), "{error}");
    assert_eq!(std::fs::read(elsewhere.join("precious")).unwrap(), b"precious");
    std::fs::remove_file(folder.path().join(".out.tar.feedline-partial")).unwrap();
    let mut writer = Writer::create(&path, None, WriterOptions::default()).unwrap();
    writer.write(None, &[("label", Datum::Int(3))]).unwrap();
    writer.finish().unwrap();
    assert!(path.is_file());
}

#[test]
fn a_quarantine_file_is_not_written_through_a_link() {
    let folder = Folder::new("quarantine-link");
    crate::support::photos(&folder, 1, 2);
    let precious = folder.write("list/precious", b"precious");
    let link = folder.path().join("list/link");
    symlink(&precious, &link).unwrap();
    let build = |list: PathBuf| {
        let builder = Loader::builder(folder.path().join("class0")).on_error(OnError::Skip);
        builder.transform(OpSpec::new("CenterCrop").with("size", 8)).quarantine(list).build()
    };
    let error = build(link).err().unwrap().to_string();
    assert!(error.contains("is a link"), "{error}");
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    assert!(build(folder.path().join("list/own")).is_ok());
}

/// Photos of which five are bad: each in its own way, with headers that are good in three.
fn damaged_photos(folder: &Folder) {
    for number in 0..6 {
        let photo = crate::support::jpeg(number, 64 + number as usize, 48);
        folder.write(&format!("photos/class/good{number}.jpg"), &photo);
    }
    let whole = crate::support::jpeg(9, 64, 48);
    folder.write("photos/class/bad0.jpg", b"");
    folder.write("photos/class/bad1.jpg", b"<html>not found</html>");
    folder.write("photos/class/bad2.jpg", &whole[..whole.len() / 2]);
    let mut gray = b"P5 64 64 255\n".to_vec();
    gray.resize(2000, 7);
    folder.write("photos/class/bad3.pgm", &gray);
    let mut broken = whole;
    let scan = broken.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    broken.truncate(scan + 40);
    broken.extend([0xff, 0xd9]);
    folder.write("photos/class/bad4.jpg", &broken);
}

#[test]
fn what_is_kept_when_bad_samples_are_left_out_can_be_decoded() {
    let folder = Folder::new("pack-skip-bad");
    damaged_photos(&folder);
    let photos = folder.path().join("photos");
    let base =
        || PackOptions { skip_bad: true, num_workers: Workers::Count(3), ..PackOptions::default() };
    let tar = Some(SourceFormat::Tar);
    let ways = [
        ("crop-index", PackOptions { crop_index: true, ..base() }),
        ("unchecked", PackOptions { crop_index: true, check: false, ..base() }),
        ("resize", PackOptions { resize: Some(16), ..base() }),
        ("large", PackOptions { resize: Some(1000), ..base() }),
        ("raw", PackOptions { raw: true, ..base() }),
        ("tar", PackOptions { to: tar, ..base() }),
        ("tar-crop-index", PackOptions { to: tar, crop_index: true, ..base() }),
        ("parquet", PackOptions { to: Some(SourceFormat::Parquet), ..base() }),
    ];
    for (name, options) in ways {
        let to = folder.path().join(name);
        let packed = pack(&photos, &to, options).unwrap();
        assert_eq!((packed.samples, packed.left_out), (6, 5), "{name}: {:?}", packed.bad);
        let spec = Spec::default().with(|spec| spec.sources = vec![to.into()]);
        let mut bad = |_| std::ops::ControlFlow::Continue(());
        let verified = Verify::open(&spec).unwrap().run(&|_| {}, &mut bad).unwrap();
        assert_eq!((verified.samples, verified.bad), (6, 0), "{name}");
    }
}

/// All files below a folder and what they hold.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut folders, mut found) = (vec![folder.to_owned()], BTreeMap::new());
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_owned();
                    found.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    found
}

#[test]
fn the_same_data_are_packed_to_the_same_bytes() {
    let folder = Folder::new("pack-bytes");
    for number in 0..12 {
        let photo = crate::support::jpeg(number, 40 + number as usize, 30);
        folder.write(&format!("photos/class{}/{number:02}.jpg", number % 2), &photo);
    }
    let photos = folder.path().join("photos");
    let text = |name: &str| Some(name.to_owned());
    let to = |format, decoded, compression| PackOptions {
        to: Some(format),
        decoded,
        write: WriteOptions { compression, ..WriteOptions::default() },
        ..PackOptions::default()
    };
    let mut ways = vec![
        PackOptions { crop_index: true, ..PackOptions::default() },
        PackOptions { resize: Some(16), ..PackOptions::default() },
        PackOptions { raw: true, ..PackOptions::default() },
        to(SourceFormat::Tar, false, text("gzip")),
        to(SourceFormat::Tar, false, text("zstd")),
        to(SourceFormat::Hdf5, true, text("gzip")),
        to(SourceFormat::Parquet, false, text("zstd")),
        to(SourceFormat::Arrow, false, text("zstd")),
        to(SourceFormat::Zarr, true, text("zstd")),
    ];
    for format in SourceFormat::writable() {
        ways.push(to(format, false, None));
        ways.push(to(format, true, None));
    }
    for (number, options) in ways.into_iter().enumerate() {
        let name = format!("{:?} decoded: {} raw: {}", options.to, options.decoded, options.raw);
        let mut seen: Option<BTreeMap<PathBuf, Vec<u8>>> = None;
        for (round, workers) in [1, 4, 4, 2].into_iter().enumerate() {
            let at = folder.path().join(format!("to-{number}/{round}"));
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            let named = at.join("set");
            let options = PackOptions { num_workers: Workers::Count(workers), ..options.clone() };
            match pack(&photos, &named, options) {
                Ok(packed) => assert_eq!(packed.samples, 12),
                // Some hold no images, others no arrays of different shapes.
                Err(error) => panic!("{name}: {error}"),
            }
            let now = contents(&named);
            let before = seen.get_or_insert_with(|| now.clone());
            for (file, bytes) in &now {
                let differ = before[file].iter().zip(bytes).filter(|(a, b)| a != b).count();
                assert!(before[file] == *bytes, "{name}: {file:?} differs in {differ} bytes");
            }
            assert!(before.keys().eq(now.keys()), "{name}");
        }
    }
}
