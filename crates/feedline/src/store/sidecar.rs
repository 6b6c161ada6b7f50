//! What is kept about a file on this machine: beside it, or in the user's cache folder.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::Sidecar;

/// Where the sidecar with this ending is.
pub(super) fn place(path: &Path, ending: &str, place: Sidecar) -> Option<PathBuf> {
    match place {
        Sidecar::Beside => {
            let mut name = path.file_name()?.to_owned();
            name.push(ending);
            Some(path.with_file_name(name))
        }
        Sidecar::InCache => {
            let folder =
                |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
            let cache =
                folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
            let full = fs::canonicalize(path).ok()?;
            let name = format!("{:016x}{ending}", xxh3_64(full.as_os_str().as_bytes()));
            Some(cache.join("feedline/index").join(name))
        }
    }
}

/// Writes under another name first, so that the file is seen whole or not at all.
pub(super) fn write_whole(
    at: &Path,
    write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = std::ffi::OsString::from(".");
    name.push(at.file_name().unwrap_or_default());
    // Other machines that share the folder have processes of the same number.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos());
    name.push(format!(".{}-{number}-{now:x}.partial", std::process::id()));
    write_under(&at.with_file_name(name), at, write)
}

/// Writes to `partial`, which must not be there, and calls it `at`.
fn write_under(
    partial: &Path,
    at: &Path,
    write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    // A new file only: a link that someone put there would lead to another file.
    let mut file = BufWriter::with_capacity(1 << 17, File::create_new(partial)?);
    let written = write(&mut file).and_then(|()| file.flush());
    drop(file);
    let written = written.and_then(|()| fs::rename(partial, at));
    if written.is_err() {
        let _ = fs::remove_file(partial);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_partial_file_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("feedline-sidecar-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (at, other, partial) =
            (folder.join("at"), folder.join("other"), folder.join("partial"));
        fs::write(&other, b"precious").unwrap();
        std::os::unix::fs::symlink(&other, &partial).unwrap();
        let mut write = |to: &mut dyn Write| to.write_all(b"content");
        assert!(write_under(&partial, &at, &mut write).is_err());
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        assert!(fs::symlink_metadata(&partial).is_ok() && !at.exists(), "it is not ours to remove");
        write_whole(&at, &mut write).unwrap();
        assert_eq!(fs::read(&at).unwrap(), b"content");
        fs::remove_dir_all(&folder).unwrap();
    }
}
