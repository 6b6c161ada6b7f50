//! Paths in commands that are advised.

use std::path::{Component, Path, PathBuf};

/// A word as a shell reads it.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:+~@=,".contains(c);
    match word {
        "" => "''".to_owned(),
        word if word.chars().all(plain) && !word.starts_with('~') => word.to_owned(),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A path as a word of a command: never taken for a flag.
fn path_word(path: &Path) -> String {
    let text = path.display().to_string();
    shell_word(&if text.starts_with('-') { format!("./{text}") } else { text })
}

/// Without what leads nowhere: `.`, `..` after a name, and separators at the end.
fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match (part, clean.components().next_back()) {
            (Component::CurDir, _) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => {
                clean.pop();
            }
            (Component::ParentDir, Some(Component::RootDir)) => {}
            _ => clean.push(part),
        }
    }
    clean
}

/// The data as a word of a command.
pub(super) fn source(path: &str) -> String {
    match path {
        "" => "DATA".to_owned(),
        path => path_word(Path::new(path)),
    }
}

/// A folder beside the data, never inside it, that is called after it: `photos-packed` for `photos`
/// and for `photos/`, `../packed` for `.`, whose name is not known here.
pub(super) fn beside(path: &str, ending: &str) -> String {
    if path.is_empty() {
        return format!("DATA-{ending}");
    }
    let clean = cleaned(Path::new(path));
    match (clean.file_name(), clean.components().next_back()) {
        (Some(name), _) => {
            let mut name = name.to_owned();
            name.push(format!("-{ending}"));
            path_word(&clean.with_file_name(name))
        }
        // All of the machine: nothing lies beside that.
        (None, Some(Component::RootDir | Component::Prefix(_))) => "DESTINATION".to_owned(),
        _ => path_word(&clean.join("..").join(ending)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_lies_beside_the_data() {
        for (source, destination) in [
            ("photos", "photos-packed"),
            ("photos/", "photos-packed"),
            ("photos//", "photos-packed"),
            ("photos/.", "photos-packed"),
            ("./photos/train/..", "photos-packed"),
            ("/data/photos/", "/data/photos-packed"),
            ("/data/../photos", "/photos-packed"),
            ("../photos/", "../photos-packed"),
            ("list.csv", "list.csv-packed"),
            (".", "../packed"),
            ("./", "../packed"),
            ("photos/..", "../packed"),
            ("..", "../../packed"),
            ("../..", "../../../packed"),
            ("a b/", "'a b-packed'"),
            ("it's", r"'it'\''s-packed'"),
            ("-x", "./-x-packed"),
            ("~x", "'~x-packed'"),
            ("/", "DESTINATION"),
            ("", "DATA-packed"),
        ] {
            assert_eq!(beside(source, "packed"), destination, "{source:?}");
        }
        assert_eq!(source("-x"), "./-x");
        assert_eq!(source("photos/"), "photos/");
        assert_eq!(source("a b"), "'a b'");
        assert_eq!(source(""), "DATA");
    }
}
