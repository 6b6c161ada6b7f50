//! Files on this machine, of which those that are read in parts stay open.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::local::{self, with_path};
use super::{Hint, Local, Store};
use crate::catalog;
use crate::error::Fault;
use crate::handles::OpenFiles;
use crate::sample::{Location, Room};

/// Files on this machine. One that is read in parts, as a shard is, is opened once: a part then
/// takes one system call. Whole files are read as [`Local`] does.
#[derive(Debug, Default)]
pub struct Files {
    open: OpenFiles,
}

impl Files {
    fn open(&self, path: &Path, stamp: Option<u64>) -> Result<Arc<File>, Fault> {
        self.open.get(path, stamp, || {
            let file = local::open_path(path)?;
            local::size_of(&file)?;
            let found = catalog::stamp(&file)?;
            match stamp.is_none_or(|stamp| stamp == found) {
                true => Ok((file, found)),
                false => Err(catalog::changed()),
            }
        })
    }
}

impl Store for Files {
    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let Some((start, length)) = location.range else { return Local.read(location, room) };
        let file = with_path(location, |path| self.open(path, location.stamp))?;
        let out = room.make(length)?;
        file.read_exact_at(out, start).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                Fault::corrupt("file", format!("ends before byte {}", start.saturating_add(length)))
            }
            _ => Fault::Io(error),
        })
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        Local.size(location)
    }

    fn hint(&self, location: &Location<'_>) -> Hint {
        match location.range {
            None => Local.hint(location),
            Some(_) => match with_path(location, |path| self.open(path, location.stamp)) {
                Ok(file) => local::hint(&file, location),
                Err(_) => Hint::Near,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::{most_open, tests::TURN};
    use crate::sample::Grown;

    #[test]
    fn parts_are_read_from_one_open_file_and_too_many_are_closed() {
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let name = format!("feedline-open-files-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let files = Files::default();
        for number in 0..most_open() + 20 {
            let name = format!("{number}");
            std::fs::write(folder.join(&name), format!("{number:08}")).unwrap();
            let path = Path::new(&name);
            let part = |range| Location { root: &folder, path, range, stamp: None };
            let mut room = Grown::default();
            files.read(&part(Some((4, 4))), &mut room).unwrap();
            assert_eq!(room.bytes, format!("{:04}", number % 10_000).as_bytes());
            assert!(files.read(&part(Some((4, 5))), &mut room).is_err());
            files.read(&part(None), &mut room).unwrap();
            assert_eq!(room.bytes.len(), 8);
        }
        // Other tests of this process keep files too.
        let open = files.open.len();
        assert!(open > 0 && open <= most_open(), "{open}");
        let range = Some((0, 1));
        let part = Location { root: &folder, path: Path::new(""), range, stamp: None };
        assert!(files.read(&part, &mut Grown::default()).is_err(), "a folder");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_was_replaced_is_not_read_at_the_old_places() {
        let name = format!("feedline-replaced-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let stamp = || Some(catalog::stamp(&File::open(&path).unwrap()).unwrap());
        let read = |files: &Files, stamp| {
            let part = Location { root: Path::new(""), path: &path, range: Some((0, 3)), stamp };
            let mut room = Grown::default();
            files.read(&part, &mut room).map(|()| room.bytes)
        };
        std::fs::write(&path, "one").unwrap();
        let (old, first) = (Files::default(), stamp());
        assert_eq!(read(&old, first).unwrap(), b"one");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "later").unwrap();
        assert_eq!(read(&old, first).unwrap(), b"one", "it is still open");
        let error = read(&Files::default(), first).unwrap_err().to_string();
        assert!(error.contains("has changed since the data set was opened"), "{error}");
        assert_eq!(read(&old, stamp()).unwrap(), b"lat", "another source means the new one");
        assert!(read(&old, first).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
