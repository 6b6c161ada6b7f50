//! What a command works on: a file that describes a pipeline, or data, changed by flags.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use feedline::internals::engine::opening;
use feedline::internals::output_file::Replacement;
use feedline::internals::spec::{read_file, read_toml};
use feedline::sample::FieldKind;
use feedline::spec::SourceKind;
use feedline::store::{Files, Store};
use feedline::{Error, Spec, source};
use serde_json::{Map, Value, json};

use crate::output::Failure;

/// Keys of a spec, as flags set them.
pub(crate) type Keys = Map<String, Value>;

/// True for a file that describes a pipeline.
pub(crate) fn is_spec_file(target: &Path) -> bool {
    let extension = target.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|e| e.eq_ignore_ascii_case("toml") || e.eq_ignore_ascii_case("json"))
        && !target.is_dir()
}

/// The pipeline that `target` describes, or one over the data there that starts from `defaults`.
/// `flags` and then the `KEY=VALUE`s of `sets` go over it. Transforms among the defaults are for
/// pictures: data without any gets none.
///
/// Relative paths of a file are relative to its folder; those of flags to the working directory.
pub(crate) fn describe(
    target: &Path,
    defaults: Keys,
    flags: Keys,
    sets: &[String],
) -> Result<Spec, Failure> {
    let file = is_spec_file(target).then_some(target);
    let mut value = match file {
        Some(file) => read_file(file).map_err(|error| in_file(Some(file), error))?,
        None => {
            let mut value = defaults;
            value.insert("source".to_owned(), json!({"path": target.to_string_lossy()}));
            Value::Object(value)
        }
    };
    let changes = Value::Object(settings(flags, sets)?);
    let default_ops = file.is_none() && changes.get("transforms").is_none();
    let replaced = |key: &str| match changes.get(key) {
        Some(Value::Object(table)) => table.contains_key("path"),
        changed => changed.is_some(),
    };
    let (source_replaced, quarantine_replaced) = (replaced("source"), replaced("quarantine"));
    merge(&mut value, changes);
    let mut spec = Spec::from_value(value).map_err(|error| in_file(file, error.into()))?;
    match file.map(|file| file.parent().unwrap_or(Path::new(""))) {
        Some(folder) => {
            if !source_replaced {
                spec.sources.iter_mut().for_each(|source| source.resolve(folder));
            }
            if let Some(quarantine) = spec.quarantine.as_mut().filter(|_| !quarantine_replaced) {
                *quarantine = folder.join(&*quarantine);
            }
        }
        None if !source_replaced => {
            // Plain data has no place for a name that is not UTF-8.
            for source in &mut spec.sources {
                match &mut source.kind {
                    SourceKind::Path(path)
                    | SourceKind::ImageFolder(path)
                    | SourceKind::Flat(path)
                    | SourceKind::Manifest { path, .. }
                    | SourceKind::Format { path, .. } => *path = target.to_owned(),
                    _ => {}
                }
            }
        }
        None => {}
    }
    if default_ops && !spec.transforms.is_empty() && !has_pictures(&spec) {
        spec.transforms.clear();
    }
    Ok(spec)
}

/// Whether samples have a picture, which may have any size. Arrays, numbers and text pass as they
/// are.
fn has_pictures(spec: &Spec) -> bool {
    let store: Arc<dyn Store> = Arc::new(Files::default());
    let (Some(named), with) = (spec.sources.first(), opening(spec, &store)) else { return true };
    if spec.decode.bytes {
        return false;
    }
    // Folders and lists of images are known by their looks. What cannot be opened is named by whoever
    // opens it next.
    let opened = source::files_of(&named.kind, &with).map(|_| source::open(&named.kind, &with));
    let Some(Ok(opened)) = opened else { return true };
    let is_picture =
        |kind: &FieldKind| matches!(kind, FieldKind::EncodedImage | FieldKind::Pixels { .. });
    opened.fields().iter().any(|field| is_picture(&field.kind))
}

/// What a bare data set gets, so that the shortest command does something useful: the crop only if
/// it has pictures, see [`describe`].
pub(crate) fn bare_defaults() -> Keys {
    let mut keys = Keys::new();
    keys.insert("batch_size".to_owned(), 64.into());
    keys.insert("transforms".to_owned(), json!([{"op": "RandomResizedCrop", "size": 224}]));
    keys
}

fn in_file(file: Option<&Path>, error: Error) -> Failure {
    match (file, error) {
        (Some(file), Error::Spec(error)) => Failure::SpecFile(file.to_owned(), Box::new(error)),
        (_, error) => Failure::Library(error),
    }
}

/// Tables go into tables key by key; everything else is replaced.
pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(&key) {
                    Some(old) => {
                        // A source that is only a path is a table with that path.
                        if let (Value::String(path), true, true) =
                            (&*old, key == "source", value.is_object())
                        {
                            *old = json!({"path": path});
                        }
                        merge(old, value);
                    }
                    None => {
                        into.insert(key, value);
                    }
                }
            }
        }
        (into, from) => *into = from,
    }
}

/// Keys that are set: `flags`, and the `KEY=VALUE`s of `sets` over them.
pub(crate) fn settings(flags: Keys, sets: &[String]) -> Result<Keys, Failure> {
    let mut settings = Value::Object(flags);
    for set in sets {
        merge(&mut settings, read_set(set)?);
    }
    Ok(settings.as_object().cloned().unwrap_or_default())
}

/// Reads `key=value` with the value in TOML's syntax; text needs no quotes if it is one word.
fn read_set(text: &str) -> Result<Value, Failure> {
    let wrong = |reason: &str| {
        Failure::Usage(format!(
            "--set {text}: {reason}; examples: --set batch_size=32, --set layout=HWC, --set 'decode.mode=\"gray\"'"
        ))
    };
    let Some((key, value)) = text.split_once('=') else {
        return Err(wrong("expected KEY=VALUE"));
    };
    read_toml(text).or_else(|_| {
        let word = value.trim();
        let plain = |c: char| c.is_alphanumeric() || "_-./:+~@".contains(c);
        if word.is_empty() || !word.chars().all(plain) {
            return Err(wrong("the value is not TOML"));
        }
        read_toml(&format!("{key} = {}", json!(word))).map_err(|_| wrong("the key is not TOML"))
    })
}

/// Reads `Name` or `Name(parameter=value, ...)`, with values as in TOML or Python.
pub(crate) fn read_transform(text: &str) -> Result<Value, String> {
    let text = text.trim();
    let (name, parameters) = match text.split_once('(') {
        None => (text, ""),
        Some((name, rest)) => match rest.strip_suffix(')') {
            Some(parameters) => (name.trim(), parameters),
            None => return Err("the closing bracket is missing".to_owned()),
        },
    };
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err("expected a name, as in CenterCrop(size=224)".to_owned());
    }
    if !parameters.trim().is_empty() && !parameters.contains('=') {
        return Err(format!("name the parameters, as in {name}(size=224)"));
    }
    let table = read_toml(&format!("parameters = {{{}}}", as_toml(parameters)))
        .map_err(|_| format!("expected {name}(parameter=value, ...), with values such as 224, 0.5, [0.08, 1.0], true, \"bicubic\""))?;
    let mut op = Map::new();
    op.insert("op".to_owned(), name.into());
    if let Some(Value::Object(parameters)) = table.get("parameters") {
        op.extend(parameters.clone());
    }
    Ok(Value::Object(op))
}

/// Python's tuples, booleans and quotes as TOML has them, outside of text.
fn as_toml(text: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    let mut quote = None;
    for symbol in text.trim().trim_end_matches(',').chars().chain(std::iter::once('\0')) {
        if quote.is_none() && (symbol.is_alphanumeric() || symbol == '_') {
            word.push(symbol);
            continue;
        }
        out += match word.as_str() {
            "True" => "true",
            "False" => "false",
            other => other,
        };
        word.clear();
        match (quote, symbol) {
            (_, '\0') => {}
            (None, '(') => out.push('['),
            (None, ')') => out.push(']'),
            (None, '"' | '\'') => {
                quote = Some(symbol);
                out.push(symbol);
            }
            (Some(open), _) if symbol == open => {
                quote = None;
                out.push(symbol);
            }
            _ => out.push(symbol),
        }
    }
    out
}

/// An op as [`read_transform`] reads it.
pub(crate) fn show_transform(op: &feedline::spec::OpSpec) -> String {
    if op.params.is_empty() {
        return op.op.clone();
    }
    let parameters: Vec<String> =
        op.params.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("{}({})", op.op, parameters.join(", "))
}

/// Reads a number of workers.
pub(crate) fn read_workers(text: &str) -> Result<Value, String> {
    match text.parse::<u64>() {
        Ok(number) if number <= 1024 => Ok(number.into()),
        _ if text == "auto" => Ok("auto".into()),
        _ => Err("expected auto or a whole number from 0 to 1024".to_owned()),
    }
}

/// Where a file of the user's is, for messages and JSON.
pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// What is no file, such as /dev/null or a pipe, is written to: a rename would put a file in its
/// place.
fn device_at(path: &Path) -> Option<Metadata> {
    std::fs::metadata(path).ok().filter(|found| !found.is_file() && !found.is_dir())
}

/// Tries whether a file could be written here, and leaves nothing behind.
pub(crate) fn try_writing(path: &Path) -> Result<(), Failure> {
    if let Some(found) = device_at(path) {
        // Opening a pipe waits for its reader, who would take the closing for the end of the data.
        if found.file_type().is_fifo() {
            return Ok(());
        }
        let opened = File::options().write(true).open(path);
        return opened.map(|_| ()).map_err(|source| cannot_write(path, source));
    }
    Replacement::begin(path).map(|_| ()).map_err(|source| cannot_write(path, source))
}

pub(crate) fn cannot_write(path: &Path, source: io::Error) -> Failure {
    Failure::Library(Error::Io { what: "cannot write", path: path.to_owned(), source })
}

/// Writes a file so that it is never seen half written.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_with(path, |file| file.write_all(bytes))
}

/// The same, where `write` writes.
pub(crate) fn write_with(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    if device_at(path).is_some() {
        let written = File::options().write(true).open(path).and_then(|file| {
            let mut file = BufWriter::new(file);
            write(&mut file)?;
            file.flush()
        });
        return written.map_err(|source| cannot_write(path, source));
    }
    let written = Replacement::begin(path).and_then(|replacement| {
        if let Ok(replaced) = std::fs::metadata(path) {
            // Before there is anything to read. Some file systems have no permissions to set.
            let _ = replacement.file().set_permissions(replaced.permissions());
        }
        let mut file = BufWriter::new(replacement.file());
        write(&mut file)?;
        file.flush()?;
        drop(file);
        replacement.finish()
    });
    written.map_err(|source| cannot_write(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_stays_one() {
        let folder = std::env::temp_dir().join(format!("feedline-device-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, device: &str| {
            let link = folder.join(name);
            std::os::unix::fs::symlink(device, &link).unwrap();
            let written = write_whole(&link, b"text");
            assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
            written
        };
        assert!(write("null", "/dev/null").is_ok());
        assert!(write("full", "/dev/full").is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_pipe_is_tried_without_a_file_beside_it() {
        let folder = std::env::temp_dir().join(format!("feedline-pipe-{}", std::process::id()));
        // No file can be made beside these: its name would be longer than names may be.
        let named = |name: &str| folder.join(name.repeat(240));
        let (pipe, null) = (named("p"), named("n"));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(try_writing(&pipe).is_err());
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(try_writing(&pipe).is_ok(), "without waiting for a reader");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        assert!(try_writing(&null).is_ok());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn transforms_in_words() {
        let read = |text| read_transform(text).unwrap();
        assert_eq!(read("RandomHorizontalFlip"), json!({"op": "RandomHorizontalFlip"}));
        assert_eq!(
            read("RandomResizedCrop(size=(224, 224), scale=[0.5, 1.0], antialias=True,)"),
            json!({"op": "RandomResizedCrop", "size": [224, 224], "scale": [0.5, 1.0], "antialias": true})
        );
        let quoted = read("Resize(size=8, interpolation='(True)')");
        assert_eq!(quoted, json!({"op": "Resize", "size": 8, "interpolation": "(True)"}));
        for wrong in ["", "Resize(", "Resize(224)", "Resize(size=)", "a b", "Resize(size=1) x"] {
            assert!(read_transform(wrong).is_err(), "{wrong}");
        }
        let op = feedline::spec::OpSpec::new("Resize").with("size", 8);
        assert_eq!(show_transform(&op), "Resize(size=8)");
    }

    #[test]
    fn sets_are_toml_or_one_word() {
        assert_eq!(read_set("batch_size=32").unwrap(), json!({"batch_size": 32}));
        assert_eq!(read_set("decode.mode=gray").unwrap(), json!({"decode": {"mode": "gray"}}));
        assert_eq!(read_set("x = [1, 2]").unwrap(), json!({"x": [1, 2]}));
        for wrong in ["batch_size", "x=", "x=[1", "x=a b"] {
            assert!(matches!(read_set(wrong), Err(Failure::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn a_file_that_is_replaced_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("feedline-mode-{}", std::process::id()));
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o606)).unwrap();
        write_whole(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o606);
        std::fs::remove_file(path).unwrap();
    }
}
