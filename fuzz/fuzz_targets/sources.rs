//! Any bytes as a file of the format that FEEDLINE_FUZZ names: opening and reading it must end with
//! values or errors. Where a format is a folder, the bytes take the place of one of its files.
#![no_main]

#[path = "../../crates/feedline/tests/support/reading.rs"]
mod reading;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use feedline::spec::SourceFormat;
use libfuzzer_sys::fuzz_target;

/// What is fuzzed: the path that is opened, and the files that the bytes may become.
struct Place {
    format: SourceFormat,
    path: PathBuf,
    files: Vec<PathBuf>,
}

fn copy(from: &Path, to: &Path, files: &mut Vec<PathBuf>) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("a folder in memory");
        for entry in fs::read_dir(from).expect("a fixture").flatten() {
            copy(&entry.path(), &to.join(entry.file_name()), files);
        }
    } else {
        fs::copy(from, to).expect("a file in memory");
        files.push(to.to_owned());
    }
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        // The fuzzer's own hook would end the process at once.
        std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
        let name = std::env::var("FEEDLINE_FUZZ").expect("FEEDLINE_FUZZ names a format");
        let format = SourceFormat::from_name(&name).expect("FEEDLINE_FUZZ names a format");
        let fixture = std::env::var("FEEDLINE_FIXTURE").expect("FEEDLINE_FIXTURE is a path");
        let fixture = Path::new(&fixture);
        let folder = Path::new("/dev/shm").join(format!("feedline-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder in memory");
        let path = folder.join(fixture.file_name().expect("a name"));
        let mut files = Vec::new();
        copy(fixture, &path, &mut files);
        files.sort();
        Place { format, path, files }
    })
}

fuzz_target!(|data: &[u8]| {
    let place = place();
    let (which, bytes) = match (place.files.len(), data) {
        (1, data) => (0, data),
        (count, [first, rest @ ..]) => (usize::from(*first) % count, rest),
        _ => return,
    };
    let file = &place.files[which];
    let whole = (place.files.len() > 1).then(|| fs::read(file).unwrap_or_default());
    let _ = fs::write(file, bytes);
    // What a library panics about is caught inside of a source and is an error there.
    if catch_unwind(AssertUnwindSafe(|| reading::read(place.format, &place.path))).is_err() {
        std::process::abort();
    }
    if let Some(whole) = whole {
        let _ = fs::write(file, whole);
    }
});
