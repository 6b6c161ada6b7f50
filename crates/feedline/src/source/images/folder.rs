//! A folder of images: class folders as in torchvision's ImageFolder, or flat without labels.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Fault, Result};
use crate::sample::{DType, Field, FieldKind, Location, Value};
use crate::source::names::Names;
use crate::source::{Opening, Source, problem, walk};

/// Images below a folder.
pub(crate) struct Folder {
    root: PathBuf,
    names: Names,
    fields: Vec<Field>,
    classes: Vec<String>,
    /// Where each class ends in `names`; files of a class lie together.
    class_ends: Vec<u64>,
}

impl Folder {
    /// Subfolders are the classes, numbered in the order of their names. Every class must have
    /// at least one image, as ImageFolder demands.
    pub(crate) fn with_classes(root: &Path, with: &Opening<'_>) -> Result<Folder> {
        let mut folder = Folder::empty(root, true);
        let mut without = Vec::new();
        for class in walk::subfolders(root, &**with.store)? {
            let before = folder.names.len();
            folder.add(&class, with)?;
            let name = class.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if folder.names.len() == before {
                without.push(name.clone());
            }
            folder.classes.push(name);
            folder.class_ends.push(folder.names.len());
        }
        if folder.classes.is_empty() {
            return Err(folder.problem(
                "has no class folders; a folder of images without labels is kind = \"flat\"",
            ));
        }
        if folder.names.len() > 0 && !without.is_empty() {
            let more = without.len().saturating_sub(5);
            without.truncate(5);
            let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
            return Err(folder.problem(&format!(
                "has no image for the classes {}{rest}: remove these folders, or use a manifest",
                without.join(", ")
            )));
        }
        folder.finish(with.image_extensions)
    }

    /// All images at any depth, without labels.
    pub(crate) fn flat(root: &Path, with: &Opening<'_>) -> Result<Folder> {
        let mut folder = Folder::empty(root, false);
        folder.add(root, with)?;
        folder.finish(with.image_extensions)
    }

    fn empty(root: &Path, labels: bool) -> Folder {
        let mut fields = vec![Field { name: "image".to_owned(), kind: FieldKind::EncodedImage }];
        if labels {
            let kind = FieldKind::Array { dtype: DType::I64, shape: Vec::new() };
            fields.push(Field { name: "label".to_owned(), kind });
        }
        let names = Names::default();
        Folder { root: root.to_owned(), names, fields, classes: Vec::new(), class_ends: Vec::new() }
    }

    fn add(&mut self, below: &Path, with: &Opening<'_>) -> Result<()> {
        walk::images(below, with.image_extensions, &**with.store, &mut |path| {
            let relative = path.strip_prefix(&self.root).unwrap_or(path);
            self.names.push(relative.as_os_str().as_bytes());
            // How many more there are is not known.
            with.check_held(&self.root, self.names.held(), (1, 1))
        })
    }

    fn problem(&self, why: &str) -> Error {
        problem(&self.root, why)
    }

    fn finish(mut self, extensions: &[&str]) -> Result<Folder> {
        if self.names.len() == 0 {
            return Err(self
                .problem(&format!("has no images (files that end in {})", extensions.join(", "))));
        }
        self.names.shrink();
        Ok(self)
    }
}

impl Source for Folder {
    fn len(&self) -> u64 {
        self.names.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        Ok(match field {
            0 => {
                let path = self.names.get(index);
                Value::File(Location { root: &self.root, path, range: None, stamp: None })
            }
            _ => Value::Int(self.class_ends.partition_point(|end| *end <= index) as i64),
        })
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn fingerprint(&self) -> u64 {
        // The names hold the class folders; the root may have another name elsewhere.
        self.names.fingerprint(self.fields.len() as u64)
    }

    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn held(&self) -> u64 {
        self.names.held()
    }
}
