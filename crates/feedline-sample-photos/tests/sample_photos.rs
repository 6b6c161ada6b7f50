//! The sample photos: the same bytes for any number of threads, never half a set.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use feedline_sample_photos::{Error, SamplePhotos};

/// A folder of its own for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("feedline-photos-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn few() -> SamplePhotos {
    SamplePhotos { count: 12, classes: 3, ..SamplePhotos::default() }
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn bytes_do_not_depend_on_the_number_of_threads() {
    let (one, five) = (Folder::new("one"), Folder::new("five"));
    let seen = AtomicU64::new(0);
    let count = |done: u64| _ = seen.fetch_max(done, Ordering::Relaxed);
    let summary = few().write_with(&one.0, 1, &count).unwrap();
    assert_eq!(few().write_with(&five.0, 5, &|_| {}).unwrap(), summary);
    assert_eq!(files(&one.0), files(&five.0));
    assert_eq!(files(&one.0).len(), 13, "12 photos and the marker");
    assert_eq!(seen.into_inner(), 12);
    let other = Folder::new("seed");
    SamplePhotos { seed: 1, ..few() }.write(&other.0, &|_| {}).unwrap();
    assert!(files(&other.0).iter().all(|(name, bytes)| files(&one.0).get(name) != Some(bytes)));
}

/// Whoever changes this raises `GENERATION`: sets that were made before are then made anew.
#[test]
fn bytes_are_those_of_this_generation() {
    let folder = Folder::new("pinned");
    few().write(&folder.0, &|_| {}).unwrap();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let is_photo = |name: &Path| name.extension().is_some_and(|end| end == "jpg");
    for (name, bytes) in files(&folder.0).iter().filter(|(name, _)| is_photo(name)) {
        for byte in name.as_os_str().as_encoded_bytes().iter().chain(bytes) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    assert_eq!(hash, 0xaceb_5729_c35e_b46c);
}

#[test]
fn bytes_per_pixel_are_those_of_photographs() {
    let folder = Folder::new("sizes");
    let photos = SamplePhotos { count: 60, ..SamplePhotos::default() };
    let summary = photos.write(&folder.0, &|_| {}).unwrap();
    let per_pixel = summary.bytes as f64 / summary.pixels as f64;
    assert!((0.4..0.65).contains(&per_pixel), "{per_pixel} bytes per pixel");
    let pixels = summary.pixels as f64 / summary.photos as f64;
    assert!((0.85..1.15).contains(&(pixels / (500.0 * 375.0))), "{pixels} pixels");
}

#[test]
fn a_whole_set_is_kept_and_a_broken_one_completed() {
    let folder = Folder::new("kept");
    let first = few().write(&folder.0, &|_| {}).unwrap();
    let whole = files(&folder.0);
    let again = few().write(&folder.0, &|_| {}).unwrap();
    assert!(again.kept && !first.kept);
    assert_eq!((again.bytes, again.pixels), (first.bytes, first.pixels));

    let photo = whole.keys().find(|name| name.extension().is_some_and(|end| end == "jpg")).unwrap();
    fs::remove_file(folder.0.join(photo)).unwrap();
    fs::write(folder.0.join(photo).with_file_name(".00000.jpg.1.partial"), b"half").unwrap();
    assert!(!few().write(&folder.0, &|_| {}).unwrap().kept);
    assert_eq!(files(&folder.0), whole);
}

#[test]
fn other_content_is_refused_and_left_alone() {
    let folder = Folder::new("foreign");
    fs::create_dir_all(&folder.0).unwrap();
    fs::write(folder.0.join("thesis.txt"), b"years of work").unwrap();
    let error = few().write(&folder.0, &|_| {}).unwrap_err();
    assert!(matches!(error, Error::Folder { .. }), "{error}");
    assert!(error.to_string().contains("other files"), "{error}");
    assert_eq!(files(&folder.0).len(), 1);

    let set = Folder::new("parameters");
    few().write(&set.0, &|_| {}).unwrap();
    let before = files(&set.0);
    let error = SamplePhotos { seed: 9, ..few() }.write(&set.0, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("12 photos, 3 classes, seed 0"), "{error}");
    assert_eq!(files(&set.0), before);
}

#[test]
fn impossible_parameters_are_refused_by_name() {
    let folder = Folder::new("wrong");
    for (photos, key) in [
        (SamplePhotos { count: 0, ..few() }, "count"),
        (SamplePhotos { classes: 0, ..few() }, "classes"),
        (SamplePhotos { quality: 0, ..few() }, "quality"),
        (SamplePhotos { mean_width: 1, ..few() }, "width"),
        (SamplePhotos { mean_height: u32::MAX, ..few() }, "height"),
    ] {
        let error = photos.write(&folder.0, &|_| {}).unwrap_err();
        assert!(matches!(&error, Error::Parameter { name, .. } if *name == key), "{error}");
    }
    assert!(!folder.0.exists());
}
