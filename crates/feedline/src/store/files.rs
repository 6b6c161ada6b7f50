//! Files on this machine, of which those that are read in parts stay open.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::handles::OpenFiles;
use super::local::{LocalFile, with_path};
use super::{Entry, Handle, Hint, Local, Metadata, Object, Sidecar, Store, changed};
use crate::error::Fault;
use crate::sample::{Location, Room};

/// Files on this machine. One that is read in parts, as a shard is, is opened once: a part then
/// takes one system call. Whole files are read as [`Local`] does.
#[derive(Debug, Default)]
pub struct Files {
    open: OpenFiles,
}

impl Files {
    fn kept(&self, path: &Path, stamp: Option<u64>) -> Result<Arc<LocalFile>, Fault> {
        self.open.get(path, stamp, || {
            let file = LocalFile::open(path)?;
            match stamp.is_none_or(|stamp| stamp == file.stamp()) {
                true => Ok(file),
                false => Err(changed()),
            }
        })
    }
}

impl Store for Files {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        Local.open(path)
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> std::io::Result<()> {
        Local.list(folder, each)
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        Local.find(path)
    }

    fn reopen(&self, path: &Path, stamp: u64) -> Result<Handle, Fault> {
        let file = self.kept(path, Some(stamp))?;
        // One that is written to where it is stays the same file.
        match file.is_as_opened()? {
            true => Ok(file),
            false => Err(changed()),
        }
    }

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let Some(part) = location.range else { return Local.read(location, room) };
        let file = with_path(location, |path| self.kept(path, location.stamp))?;
        file.part(room.make(part.1)?, part)
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        Local.size(location)
    }

    fn hint(&self, location: &Location<'_>) -> Hint {
        match location.range {
            None => Local.hint(location),
            Some(_) => match with_path(location, |path| self.kept(path, location.stamp)) {
                Ok(file) => file.hint(location),
                Err(_) => Hint::Near,
            },
        }
    }

    fn sidecar(&self, path: &Path, ending: &str, place: Sidecar) -> Option<PathBuf> {
        Local.sidecar(path, ending, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Grown;
    use crate::store::handles::{most_open, tests::TURN};

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
        let stamp = || Some(Local.open(&path).unwrap().stamp());
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
