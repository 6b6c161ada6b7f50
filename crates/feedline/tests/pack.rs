//! Packing again: what is gone on with, what is kept, and what is refused.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use feedline::engine::{Pack, PackOptions, Packed};
use feedline::pack::record::{Given, Record, WriteOptions};
use feedline::sample::{DType, Field, FieldKind};
use feedline::spec::{SourceFormat, SourceKind};
use support::Folder;

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
    let mut writer = feedline::pack::create(format, path, fields, &options)?;
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
    support::photos(&folder, 2, 3);
    let to = Folder::new("pack-changed-to");
    for to_format in [None, Some(SourceFormat::Tar)] {
        let options = || PackOptions { to: to_format, resize: Some(16), ..PackOptions::default() };
        let to = to.path().join(format!("{to_format:?}"));
        pack(folder.path(), &to, options()).unwrap();
        assert!(pack(folder.path(), &to, options()).unwrap().kept);
        folder.write("class0/000.jpg", &support::jpeg(99, 30, 30));
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
            image_extensions: &[],
            block_memory: 1 << 20,
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
        assert!(written.unwrap_err().to_string().contains("cannot be written"));
    }
}

#[test]
fn a_full_disk_is_an_error_of_hdf5_and_no_crash() {
    let limited = "trap '' XFSZ; ulimit -f 4000; exec \"$0\" --ignored --exact \"$1\"";
    let done = std::process::Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .arg("writes_more_than_a_file_may_have")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && text.contains("1 passed"), "{:?} {text}", done.status);
}
