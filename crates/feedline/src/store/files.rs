//! Files on this machine, of which those that are read in parts stay open.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::local::{self, with_path};
use super::{Hint, Local, Store};
use crate::error::Fault;
use crate::sample::{Location, Room};

/// Far below the 1,024 that a process may usually have open.
const MOST: usize = 256;

/// Files on this machine. One that is read in parts, as a shard is, is opened once: a part then
/// takes one system call. Whole files are read as [`Local`] does.
#[derive(Debug, Default)]
pub struct Files {
    open: RwLock<HashMap<PathBuf, Arc<File>>>,
}

impl Files {
    fn open(&self, path: &Path) -> Result<Arc<File>, Fault> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(path) {
            return Ok(file.clone());
        }
        drop(open);
        let file = local::open_path(path)?;
        local::size_of(&file)?;
        let file = Arc::new(file);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MOST {
            // Any one will do: in a random order all are as likely to be needed.
            let other = open.keys().next().cloned();
            other.and_then(|other| open.remove(&other));
        }
        open.insert(path.to_owned(), file.clone());
        Ok(file)
    }
}

impl Store for Files {
    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let Some((start, length)) = location.range else { return Local.read(location, room) };
        let file = with_path(location, |path| self.open(path))?;
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
            Some(_) => match with_path(location, |path| self.open(path)) {
                Ok(file) => local::hint(&file, location),
                Err(_) => Hint::Near,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Grown(Vec<u8>);

    impl Room for Grown {
        fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
            self.0 = vec![0; bytes as usize];
            Ok(&mut self.0)
        }
    }

    #[test]
    fn parts_are_read_from_one_open_file_and_too_many_are_closed() {
        let name = format!("feedline-open-files-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let files = Files::default();
        for number in 0..MOST + 20 {
            let name = format!("{number}");
            std::fs::write(folder.join(&name), format!("{number:08}")).unwrap();
            let part = |range| Location { root: &folder, path: Path::new(&name), range };
            let mut room = Grown(Vec::new());
            files.read(&part(Some((4, 4))), &mut room).unwrap();
            assert_eq!(room.0, format!("{:04}", number % 10_000).as_bytes());
            assert!(files.read(&part(Some((4, 5))), &mut room).is_err());
            files.read(&part(None), &mut room).unwrap();
            assert_eq!(room.0.len(), 8);
        }
        assert_eq!(files.open.read().unwrap().len(), MOST);
        let part = Location { root: &folder, path: Path::new(""), range: Some((0, 1)) };
        assert!(files.read(&part, &mut Grown(Vec::new())).is_err(), "a folder");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
