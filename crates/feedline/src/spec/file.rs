//! Specs in files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{SourceKind, SourceSpec, Spec};
use crate::error::{Error, Result, SpecError};
use crate::output_file;

/// A list of a weight for each of a million samples is 20 MB; a larger file is something else.
const LARGEST: u64 = 64 << 20;

/// Reads TOML as plain data.
pub fn read_toml(text: &str) -> Result<Value, SpecError> {
    toml::from_str(text).map_err(|error| {
        SpecError::new("", format!("not valid TOML: {}", error.to_string().trim()))
    })
}

/// Reads a spec file as plain data: JSON if its name ends in `.json`, else TOML. The paths in it
/// are as they are written.
pub fn read_file(path: &Path) -> Result<Value> {
    let failed = |source| Error::Io { what: "cannot read the spec", path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > LARGEST {
        return Err(Error::Source {
            what: path.display().to_string(),
            problem: "is larger than 64 MiB: this is no spec".to_owned(),
        });
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        let value = serde_json::from_str(&text);
        return Ok(value.map_err(|e| SpecError::new("", format!("not valid JSON: {e}")))?);
    }
    Ok(read_toml(&text)?)
}

impl Spec {
    /// Reads a spec file: JSON if its name ends in `.json`, else TOML. Relative paths in it are
    /// relative to its folder, so that a data set and its spec can be moved together.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Spec> {
        let path = path.as_ref();
        let mut spec = Spec::from_value(read_file(path)?)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        spec.sources.iter_mut().for_each(|source| source.resolve(folder));
        if let Some(quarantine) = &mut spec.quarantine {
            resolve(quarantine, folder);
        }
        Ok(spec)
    }

    /// As TOML, with a comment above each of the keys that there is a reason for.
    #[must_use]
    pub(crate) fn to_toml_with(&self, reasons: &[(String, String)]) -> String {
        let mut text = String::new();
        let mut in_tables = false;
        for line in self.to_toml().lines() {
            in_tables |= line.starts_with('[');
            let reason = reasons.iter().find(|(key, _)| {
                let rest = line.strip_prefix(key.as_str());
                !in_tables && rest.is_some_and(|rest| rest.trim_start().starts_with('='))
            });
            if let Some((_, reason)) = reason {
                text += &format!("# {}\n", reason.replace(['\n', '\r'], " "));
            }
            text += line;
            text.push('\n');
        }
        text
    }

    /// The text of a file that [`Spec::from_file`] reads, wherever it lies: paths in it are
    /// absolute. JSON if the file's name ends in `.json`, else TOML.
    pub fn for_elsewhere(&self, path: &Path) -> Result<String> {
        self.for_elsewhere_with(path, &[])
    }

    fn for_elsewhere_with(&self, path: &Path, reasons: &[(String, String)]) -> Result<String> {
        let failed =
            |source| Error::Io { what: "cannot write the spec", path: path.to_owned(), source };
        let here = std::env::current_dir().map_err(failed)?;
        let mut spec = self.clone();
        spec.sources.iter_mut().for_each(|source| source.resolve(&here));
        spec.quarantine.iter_mut().for_each(|path| resolve(path, &here));
        let paths = spec.sources.iter().filter_map(|source| source.kind.path());
        if let Some(odd) = paths.chain(spec.quarantine.as_deref()).find(|p| p.to_str().is_none()) {
            return Err(Error::Source {
                what: odd.display().to_string(),
                problem: "has a name that is not UTF-8, which a spec cannot hold".to_owned(),
            });
        }
        let json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        Ok(if json { format!("{:#}\n", spec.to_value()) } else { spec.to_toml_with(reasons) })
    }

    /// Writes the text of [`Spec::for_elsewhere`] into the file; TOML has the reasons as comments.
    pub(crate) fn write_file(&self, path: &Path, reasons: &[(String, String)]) -> Result<()> {
        let failed =
            |source| Error::Io { what: "cannot write the spec", path: path.to_owned(), source };
        let text = self.for_elsewhere_with(path, reasons)?;
        output_file::replace(path, text.as_bytes()).map_err(failed)
    }
}

impl SourceSpec {
    /// Takes relative paths as relative to `folder`.
    pub fn resolve(&mut self, folder: &Path) {
        match &mut self.kind {
            SourceKind::Path(path)
            | SourceKind::ImageFolder(path)
            | SourceKind::Flat(path)
            | SourceKind::Format { path, .. } => {
                resolve(path, folder);
            }
            SourceKind::Manifest { path, root, .. } => {
                resolve(path, folder);
                if let Some(root) = root {
                    resolve(root, folder);
                }
            }
            SourceKind::Arrays => {}
        }
    }
}

fn resolve(path: &mut PathBuf, folder: &Path) {
    // An absolute path replaces the folder; "." would only make messages longer.
    if !folder.as_os_str().is_empty() && folder != Path::new(".") {
        *path = folder.join(&*path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_file() {
        let folder =
            std::env::temp_dir().join(format!("feedline-spec-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (toml, json) = (folder.join("a.toml"), folder.join("b.json"));
        std::fs::write(&toml, "source = ['photos', '/data']\non_error = 'skip'\nquarantine = 'q'")
            .unwrap();
        std::fs::write(&json, r#"{"source": {"kind": "manifest", "path": "a.csv", "root": "r"}}"#)
            .unwrap();
        let spec = Spec::from_file(&toml).unwrap();
        assert_eq!(spec.sources[0].kind, SourceKind::Path(folder.join("photos")));
        assert_eq!(spec.sources[1].kind, SourceKind::Path("/data".into()));
        assert_eq!(spec.quarantine, Some(folder.join("q")));
        let spec = Spec::from_file(&json).unwrap();
        assert!(matches!(&spec.sources[0].kind, SourceKind::Manifest { path, root, .. }
            if *path == folder.join("a.csv") && *root == Some(folder.join("r"))));
        std::fs::write(&json, "{").unwrap();
        assert!(Spec::from_file(&json).unwrap_err().to_string().contains("not valid JSON"));
        assert!(matches!(Spec::from_file(folder.join("none.toml")), Err(Error::Io { .. })));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_spec_with_reasons_is_read_back() {
        let folder = std::env::temp_dir().join(format!("feedline-frozen-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = "source = 'photos'\nnum_workers = 3\nbatch_size = 4\n[[transforms]]\nop = 'Resize'\nsize = 3";
        let mut spec = Spec::from_toml(text).unwrap();
        let reasons = [("num_workers".to_owned(), "the fewest\nthat do".to_owned())];
        let toml = folder.join("a.toml");
        spec.write_file(&toml, &reasons).unwrap();
        let written = std::fs::read_to_string(&toml).unwrap();
        assert!(written.contains("# the fewest that do\nnum_workers = 3\n"), "{written}");
        let json = folder.join("a.json");
        spec.write_file(&json, &reasons).unwrap();
        let here = std::env::current_dir().unwrap();
        spec.sources[0].resolve(&here);
        assert_eq!(Spec::from_file(&toml).unwrap(), spec);
        assert_eq!(Spec::from_file(&json).unwrap(), spec);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "nothing else is left there");
        assert!(spec.write_file(&folder.join("none/a.toml"), &[]).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
