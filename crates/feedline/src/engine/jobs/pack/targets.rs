//! What the samples' files are called in a packed set.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use crate::catalog::{self, ListedFile};
use crate::error::{Error, Result};
use crate::sample::{DType, Value};
use crate::source::Source;

/// A name for each sample.
pub(super) struct Targets {
    names: Vec<PathBuf>,
    /// The first sample with the same name: a manifest may list a file more than once.
    first: Vec<u64>,
}

impl Targets {
    /// No names, where samples do not become files.
    pub(super) fn none() -> Targets {
        Targets { names: Vec::new(), first: Vec::new() }
    }

    /// The names that the samples have in their source. Of a path that leads out of its folder the
    /// file's name is kept. Images that become JPEGs get its ending.
    pub(super) fn new(source: &dyn Source, image: usize, become_jpegs: bool) -> Result<Targets> {
        let mut targets = Targets::none();
        let mut known: HashMap<PathBuf, (u64, PathBuf)> = HashMap::new();
        for sample in 0..source.len() {
            let location = match source.value(sample, image) {
                Ok(Value::File(location)) if location.range.is_none() => location,
                _ => {
                    return Err(Error::Source {
                        what: source.name(),
                        problem: format!(
                            "sample {sample} does not lie in a file of its own, so it has no name in a folder: pack to a format (to) or raw pixels"
                        ),
                    });
                }
            };
            let inside =
                location.path.components().all(|part| matches!(part, Component::Normal(_)));
            let mut name = if inside {
                location.path.to_owned()
            } else {
                let file = location.path.file_name().unwrap_or_default();
                // The path's hash keeps equal names apart, and one path listed twice together.
                let hash = xxhash_rust::xxh3::xxh3_64(location.path.as_os_str().as_encoded_bytes());
                Path::new("outside").join(catalog::show_checksum(hash)).join(file)
            };
            let is_jpeg = name.extension().is_some_and(|extension| {
                extension.eq_ignore_ascii_case("jpg") || extension.eq_ignore_ascii_case("jpeg")
            });
            if become_jpegs && !is_jpeg {
                name.as_mut_os_string().push(".jpg");
            }
            let reserved = [catalog::FILE, catalog::LIST, catalog::TABLE];
            let taken = reserved.iter().any(|reserved| name == Path::new(reserved));
            let (first, path) =
                known.entry(name.clone()).or_insert_with(|| (sample, location.path.to_owned()));
            if taken || *path != location.path {
                return Err(Error::Source {
                    what: source.name(),
                    problem: format!(
                        "two files would be called {} in the packed set: rename one",
                        name.display()
                    ),
                });
            }
            targets.first.push(*first);
            targets.names.push(name);
        }
        Ok(targets)
    }

    pub(super) fn name(&self, sample: u64) -> Option<&Path> {
        self.names.get(sample as usize).map(PathBuf::as_path)
    }

    pub(super) fn first(&self, sample: u64) -> u64 {
        self.first.get(sample as usize).copied().unwrap_or(sample)
    }

    /// What a sample is called in its source.
    pub(super) fn origin(&self, source: &dyn Source, image: Option<usize>, sample: u64) -> PathBuf {
        match image.map(|image| source.value(sample, image)) {
            Some(Ok(Value::File(location))) if location.range.is_none() => location.path.to_owned(),
            _ => {
                let name = source.origin(sample);
                name.unwrap_or_else(|| PathBuf::from(format!("sample {sample}")))
            }
        }
    }

    /// Writes paths and labels of `samples`.
    pub(super) fn write_table(
        &self,
        folder: &Path,
        source: &dyn Source,
        labels: &[(usize, String, DType)],
        samples: &[u64],
    ) -> Result<ListedFile> {
        let path = folder.join(catalog::TABLE);
        let failed = |error: csv::Error| Error::Io {
            what: "cannot write",
            path: path.clone(),
            source: error.into(),
        };
        let mut table = csv::Writer::from_path(&path).map_err(failed)?;
        let head = labels.iter().map(|(_, name, _)| name.as_str());
        table.write_record(std::iter::once("path").chain(head)).map_err(failed)?;
        // Classes belong to the only column of whole numbers; of several, all are written as
        // numbers, which is what a batch holds.
        let whole = labels.iter().filter(|(_, _, dtype)| *dtype == DType::I64).count();
        for sample in samples {
            let name = self.name(*sample).unwrap_or(Path::new(""));
            let mut row = vec![name.as_os_str().as_encoded_bytes().to_vec()];
            for (field, _, _) in labels {
                row.push(match source.value(*sample, *field) {
                    Ok(Value::Int(label)) => match source.classes().get(label as usize) {
                        Some(class) if whole == 1 => class.clone().into_bytes(),
                        _ => label.to_string().into_bytes(),
                    },
                    Ok(Value::Float(label)) => label.to_string().into_bytes(),
                    _ => Vec::new(),
                });
            }
            table.write_byte_record(&row.into()).map_err(failed)?;
        }
        table.flush().map_err(|error| failed(error.into()))?;
        drop(table);
        let (bytes, xxh3) = catalog::checksum(&path)?;
        Ok(ListedFile::new(Path::new(catalog::TABLE), bytes, xxh3))
    }
}
