//! The same data in other formats, packed before it is measured.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use feedline::internals::engine::{Pack, PackOptions};
use feedline::internals::pack::TemporaryFolder;
use feedline::spec::{SourceFormat, SourceKind};
use feedline::{Error, Spec};
use serde_json::Value;

use super::configurations::Candidate;
use super::contest::Contestant;
use crate::output::{Failure, Output};
use crate::signals::Signals;
use crate::terminal::{show_count, show_seconds};

/// The data as it is.
pub(crate) const AS_IT_IS: [&str; 2] = ["folder", "original"];
/// Ways to pack that are no format of files.
const WAYS: [&str; 2] = ["crop-index", "raw"];

/// Checks the name of a format.
pub(crate) fn read_format(text: &str) -> Result<String, String> {
    let known =
        AS_IT_IS.contains(&text) || WAYS.contains(&text) || SourceFormat::to_write(text).is_some();
    if known {
        return Ok(text.to_owned());
    }
    let formats = SourceFormat::names(SourceFormat::writable());
    Err(format!("expected folder (the data as it is), crop-index, raw, {formats}"))
}

/// Where packed sets lie: a folder that the user keeps, or one that goes with this.
pub(crate) struct Shelf {
    folder: PathBuf,
    _temporary: Option<TemporaryFolder>,
}

impl Shelf {
    /// A place for what these need to be packed, if anything.
    pub(crate) fn for_these(
        candidates: &[Candidate],
        keep: Option<&Path>,
    ) -> Result<Option<Shelf>, Failure> {
        match candidates.iter().any(|one| one.settings.contains_key("format")) {
            true => Shelf::new(keep).map(Some),
            false => Ok(None),
        }
    }

    fn new(keep: Option<&Path>) -> Result<Shelf, Failure> {
        let Some(folder) = keep else {
            let temporary = TemporaryFolder::new("bench")?;
            let folder = temporary.path().to_owned();
            return Ok(Shelf { folder, _temporary: Some(temporary) });
        };
        std::fs::create_dir_all(folder).map_err(|source| {
            let path = folder.to_owned();
            Failure::Library(Error::Io { what: "cannot make the folder", path, source })
        })?;
        Ok(Shelf { folder: folder.to_owned(), _temporary: None })
    }

    /// Packs the data of `spec` in this format and returns where it is; what is there already is
    /// taken as it is. The message of an error is for the configurations that need it.
    pub(crate) fn pack(
        &self,
        spec: &Spec,
        name: &str,
        signals: &Signals,
        output: &Output,
    ) -> Result<OsString, String> {
        let [source] = &spec.sources[..] else {
            return Err("only one source at a time can be packed".to_owned());
        };
        if matches!(source.kind, SourceKind::Arrays) {
            return Err("arrays have no files that could be packed".to_owned());
        }
        let options = PackOptions {
            to: SourceFormat::to_write(name),
            crop_index: name == "crop-index",
            raw: name == "raw",
            decode: spec.decode.clone(),
            ..PackOptions::default()
        };
        let refused = |error: Error| format!("cannot be packed: {error}");
        let pack = Pack::open(source.kind.clone(), options).map_err(refused)?;
        let place = self.folder.join(name);
        output.note(&format!(
            "packing {} samples as {name} into {}",
            show_count(pack.samples()),
            place.display()
        ));
        let (progress, began) = (output.progress(pack.samples(), "samples"), Instant::now());
        let packed = pack.run(&place, &|done| progress.set(done), &|| signals.received().is_some());
        progress.finish();
        let packed = packed.map_err(refused)?;
        let took = show_seconds(began.elapsed().as_secs_f64());
        output.note(&match packed.kept {
            true => format!("{name}: was there already"),
            false => format!("{name}: packed in {took}"),
        });
        Ok(place.into_os_string())
    }
}

/// Packs what has to be packed, each format once. What cannot be is refused by itself.
pub(crate) fn contestants(
    candidates: Vec<Candidate>,
    shelf: Option<&Shelf>,
    spec: Option<&Spec>,
    signals: &Signals,
    output: &Output,
) -> Vec<Contestant> {
    let mut packed: Vec<(String, Result<OsString, String>)> = Vec::new();
    let mut contestants = Vec::new();
    for candidate in candidates {
        let format = candidate.settings.get("format").and_then(Value::as_str).map(str::to_owned);
        let place = match format.filter(|format| !AS_IT_IS.contains(&format.as_str())) {
            None => Ok(None),
            Some(format) => {
                let found = packed.iter().find(|(name, _)| *name == format);
                let place = found.map(|(_, place)| place.clone()).unwrap_or_else(|| {
                    let made = match (shelf, spec) {
                        (Some(shelf), Some(spec)) => shelf.pack(spec, &format, signals, output),
                        _ => Err("format is for specs and paths, not for Python code".to_owned()),
                    };
                    packed.push((format, made.clone()));
                    made
                });
                place.map(|place| Some(PathBuf::from(place)))
            }
        };
        let (source, refused) = match place {
            Ok(source) => (source, None),
            Err(reason) => (None, Some(reason)),
        };
        contestants.push(Contestant { candidate, source, refused });
    }
    contestants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_unless_it_is_to_be_kept() {
        let shelf = Shelf::new(None).unwrap();
        let top = shelf.folder.clone();
        let kept = top.join("kept");
        drop(Shelf::new(Some(&kept)).unwrap());
        assert!(kept.is_dir());
        drop(shelf);
        assert!(!top.exists());
    }

    #[test]
    fn formats_have_names() {
        for known in ["folder", "original", "crop-index", "raw", "tar", "parquet", "hdf5"] {
            assert_eq!(read_format(known).as_deref(), Ok(known));
        }
        assert!(read_format("floppy").unwrap_err().contains("parquet"));
    }
}
