//! Decoded pixels in a few large files, as `feedline pack --raw` writes them.
//!
//! Every place of the index is compared with the files' lengths when the set is opened, so a
//! truncated or altered set is refused. A store reads the pixels; they are not mapped, because a
//! mapped file that is cut while it is in use ends the process with SIGBUS, where a read fails.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::catalog::{self, Catalog};
use crate::error::{Error, Fault, Result};
use crate::sample::{DType, Field, FieldKind, Location, RawIndex, Value};
use crate::source::{Opening, Source, problem};
use crate::store::{Handle, Reader};

/// A packed set of pixels.
pub(crate) struct Raw {
    folder: PathBuf,
    /// The files of pixels: their names, and their stamps when the set was opened.
    shards: Vec<(PathBuf, u64)>,
    index: RawIndex,
    fields: Vec<Field>,
    dtypes: Vec<DType>,
    classes: Vec<String>,
    fingerprint: u64,
}

impl Raw {
    /// Opens the set that `packed` describes.
    pub(crate) fn open(folder: &Path, packed: &Catalog, with: &Opening<'_>) -> Result<Raw> {
        let problem = |file: &str, why: String| {
            problem(folder.join(file), format!("{why}: the packed set is damaged, pack it again"))
        };
        // A file that is longer than its samples need would fill the memory before it is refused.
        let find = |file: &str, most: u64| {
            let path = folder.join(file);
            let failed = |source| Error::Io { what: "cannot read", path: path.clone(), source };
            let opened = with.store.open(&path).map_err(failed)?;
            let length = opened.len();
            match length > most {
                true => {
                    Err(problem(file, format!("is longer than {} samples need", packed.samples)))
                }
                false => Ok((path, opened, length)),
            }
        };
        let read = |(path, opened, length): (PathBuf, Handle, u64)| -> Result<Vec<u8>> {
            let failed = |source| Error::Io { what: "cannot read", path: path.clone(), source };
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(length as usize).map_err(|error| failed(error.into()))?;
            Reader::new(opened).take(length).read_to_end(&mut bytes).map_err(failed)?;
            Ok(bytes)
        };
        let (index, names) = RawIndex::lengths(packed.samples, packed.labels.len());
        let (index, names) = (find(RawIndex::FILE, index)?, find(RawIndex::NAMES, names)?);
        with.check_held(folder, index.2.saturating_add(names.2), (1, 1))?;
        let (bytes, names) = (read(index)?, read(names)?);
        // The pixels' own checksums take long to compare; `feedline verify` does.
        let mut noted = Vec::new();
        let is_list = |path: &str| [RawIndex::FILE, RawIndex::NAMES].contains(&path);
        packed.files_in(&**with.store, folder, &mut |entry| {
            if is_list(&entry.path) {
                noted.push((entry.path, entry.xxh3));
            }
        })?;
        for (file, bytes) in [(RawIndex::FILE, &bytes), (RawIndex::NAMES, &names)] {
            let now = catalog::show_checksum(xxhash_rust::xxh3::xxh3_64(bytes));
            if !noted.iter().any(|(path, then)| path == file && *then == now) {
                return Err(problem(file, "has changed".to_owned()));
            }
        }
        let fingerprint = xxhash_rust::xxh3::xxh3_64(&bytes);
        let index = RawIndex::parse(bytes, names)
            .filter(|index| index.len() == packed.samples && !index.is_empty())
            .ok_or_else(|| problem(RawIndex::FILE, "is not what was written".to_owned()))?;
        let mut fields = Vec::new();
        let mut dtypes = Vec::new();
        let channels = index.record(0).channels as usize;
        fields.push(Field { name: "image".to_owned(), kind: FieldKind::Pixels { channels } });
        for (name, dtype) in &packed.labels {
            let dtype = DType::from_name(dtype)
                .filter(|dtype| matches!(dtype, DType::I64 | DType::F32))
                .ok_or_else(|| problem("feedline.json", format!("has labels of type {dtype}")))?;
            dtypes.push(dtype);
            let kind = FieldKind::Array { dtype, shape: Vec::new() };
            fields.push(Field { name: name.clone(), kind });
        }
        if index.labels() != dtypes.len() {
            return Err(problem(RawIndex::FILE, "has other labels than feedline.json".to_owned()));
        }
        let (mut shards, mut lengths) = (Vec::new(), Vec::new());
        for sample in 0..index.len() {
            let record = index.record(sample);
            while shards.len() <= record.shard as usize {
                let name = RawIndex::shard(shards.len() as u32);
                let path = folder.join(&name);
                let failed = |source| Error::Io { what: "cannot open", path: path.clone(), source };
                let file = with.store.open(&path).map_err(failed)?;
                lengths.push(file.len());
                shards.push((PathBuf::from(name), file.stamp()));
            }
            let length = lengths[record.shard as usize];
            let whole = record.elements().and_then(|n| record.offset.checked_add(n));
            if whole.is_none_or(|end| end > length) || record.channels as usize != channels {
                let name = RawIndex::shard(record.shard);
                return Err(problem(&name, format!("ends before the pixels of sample {sample}")));
            }
        }
        Ok(Raw {
            folder: folder.to_owned(),
            shards,
            index,
            fields,
            dtypes,
            classes: packed.classes.clone(),
            fingerprint,
        })
    }
}

impl Source for Raw {
    fn len(&self) -> u64 {
        self.index.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        let record = self.index.record(index);
        if field > 0 {
            let bits = self.index.label(index, field - 1);
            return Ok(match self.dtypes[field - 1] {
                DType::F32 => Value::Float(f32::from_bits(bits as u32)),
                _ => Value::Int(bits as i64),
            });
        }
        let [height, width, channels] =
            [record.height, record.width, record.channels].map(|n| n as usize);
        let (path, stamp) = &self.shards[record.shard as usize];
        // Counted and compared with the file when the set was opened.
        let bytes = record.elements().unwrap_or(0);
        let location = Location {
            root: &self.folder,
            path,
            range: Some((record.offset, bytes)),
            stamp: Some(*stamp),
        };
        Ok(Value::Pixels { location, height, width, channels })
    }

    fn origin(&self, index: u64) -> Option<PathBuf> {
        Some(PathBuf::from(OsStr::from_bytes(self.index.name(index))))
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn name(&self) -> String {
        self.folder.display().to_string()
    }

    fn held(&self) -> u64 {
        self.index.held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_is_longer_than_its_samples_need_is_not_read() {
        let folder = std::env::temp_dir().join(format!("feedline-raw-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let packed = Catalog {
            feedline_pack: catalog::VERSION,
            kind: catalog::PackedKind::Raw,
            samples: 2,
            classes: Vec::new(),
            labels: vec![("label".to_owned(), "int64".to_owned())],
            table: false,
            fields: Vec::new(),
            shards: Vec::new(),
            job: serde_json::Value::Null,
            bytes: 1,
            list: String::new(),
        };
        let with = Opening {
            store: crate::source::arrays::npy::tests::local(),
            image_extensions: &[],
            block_memory: 1 << 20,
            memory: 1 << 20,
            is_image: |_| false,
        };
        let (index, names) = RawIndex::lengths(2, 1);
        assert_eq!(index, 24 + 2 * (24 + 8));
        for lengths in [[1 << 40, 16], [index, 1 << 40]] {
            for (name, length) in [RawIndex::FILE, RawIndex::NAMES].into_iter().zip(lengths) {
                std::fs::File::create(folder.join(name)).unwrap().set_len(length).unwrap();
            }
            let error = Raw::open(&folder, &packed, &with).err().unwrap().to_string();
            assert!(error.contains("is longer than 2 samples need"), "{error}");
        }
        assert!(names < 1 << 20);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
