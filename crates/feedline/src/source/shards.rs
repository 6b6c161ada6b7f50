//! A pattern of names as a list of files: `{000..099}`, `{a,b}`, `*`, `?`, `[a-z]`, and folders.
//!
//! Braces are expanded first, in their order, whether the files are there or not; stars and
//! question marks stand for files that are there, sorted by name.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::source::spans::index;
use crate::source::{is_folder, may_be_file, problem};
use crate::store::Store;

/// More files than any set has; a pattern can make any number of names.
const MOST: usize = 1_000_000;

/// True if the path is a pattern and no file of that very name.
pub(in crate::source) fn is_pattern(path: &Path, store: &dyn Store) -> bool {
    let marks = path.as_os_str().as_bytes().iter().any(|byte| b"{*?[".contains(byte));
    marks && matches!(store.kind(path), Ok(None))
}

/// The files that `path` stands for: those of a pattern, those in a folder whose names end in one
/// of `endings`, or the one file that it is.
pub(in crate::source) fn expand(
    path: &Path,
    endings: &[&str],
    store: &dyn Store,
) -> Result<Vec<PathBuf>> {
    let found = if is_pattern(path, store) {
        let mut found = Vec::new();
        for name in braces(path)? {
            match is_glob(&name) {
                true => found.append(&mut glob(path, &name, store)?),
                false => found.push(name),
            }
            if found.len() > MOST {
                return Err(too_many(path));
            }
        }
        found
    } else if is_folder(path, store)? {
        let mut found = list(path, store)?;
        found.retain(|file| {
            let name = file.as_os_str().as_bytes().to_ascii_lowercase();
            endings.iter().any(|ending| name.ends_with(ending.as_bytes()))
                && may_be_file(file, store)
        });
        if found.is_empty() {
            let endings = endings.join(", ");
            return Err(problem(path, format!("has no files whose names end in {endings}")));
        }
        found
    } else {
        vec![path.to_owned()]
    };
    if found.is_empty() {
        return Err(problem(path, "matches no file"));
    }
    Ok(found.into_iter().map(fixed).collect())
}

/// The path from the root on: it leads to the same file after the working directory has changed.
pub(in crate::source) fn fixed(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn too_many(pattern: &Path) -> Error {
    problem(pattern, "stands for more than a million files: name fewer")
}

/// What is in a folder, sorted by name; files of our own and hidden ones are left out.
pub(in crate::source) fn list(folder: &Path, store: &dyn Store) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Io { what: "cannot list", path: folder.to_owned(), source };
    let mut found = Vec::new();
    let outcome = store.list(folder, &mut |entry| {
        let bytes = entry.name.as_bytes();
        if !bytes.starts_with(b".") && !bytes.ends_with(index::ENDING.as_bytes()) {
            found.push(folder.join(&entry.name));
        }
        if found.len() > MOST { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    outcome.map_err(failed)?;
    if found.len() > MOST {
        return Err(too_many(folder));
    }
    found.sort();
    Ok(found)
}

/// Expands the braces of a pattern. A brace that is not closed stands for itself, as in a shell.
fn braces(pattern: &Path) -> Result<Vec<PathBuf>> {
    // The first brace is replaced until there is none: each list is one brace shorter.
    let mut done = Vec::new();
    let mut waiting = vec![(pattern.as_os_str().as_bytes().to_vec(), 0)];
    let mut steps = 0;
    while let Some((name, from)) = waiting.pop() {
        steps += 1;
        if done.len() + waiting.len() > MOST || steps > 4 * MOST {
            return Err(too_many(pattern));
        }
        match first_brace(&name, from) {
            None => done.push(PathBuf::from(std::ffi::OsString::from_vec(name))),
            Some((start, end)) => match choices(&name[start + 1..end]) {
                Some(choices) if choices.len() > MOST => return Err(too_many(pattern)),
                Some(choices) => {
                    // From the last to the first, since the last one pushed is taken next.
                    waiting.extend(choices.iter().rev().map(|choice| {
                        ([&name[..start], choice, &name[end + 1..]].concat(), start)
                    }));
                }
                // As {x}: no choice, so it stands for itself.
                None => waiting.push((name, start + 1)),
            },
        }
    }
    Ok(done)
}

/// The first closed brace from `from` on: where it opens and closes.
fn first_brace(name: &[u8], mut from: usize) -> Option<(usize, usize)> {
    loop {
        let start = from + name.get(from..)?.iter().position(|byte| *byte == b'{')?;
        let mut depth = 0;
        for (at, byte) in name.iter().enumerate().skip(start) {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some((start, at));
            }
        }
        from = start + 1;
    }
}

/// What may stand in the place of a brace: `a,b` or `000..099` or `0..9..3`.
fn choices(inside: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, byte) in inside.iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(inside[start..at].to_vec());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !parts.is_empty() {
        parts.push(inside[start..].to_vec());
        return Some(parts);
    }
    range(std::str::from_utf8(inside).ok()?)
}

fn range(text: &str) -> Option<Vec<Vec<u8>>> {
    let parts: Vec<&str> = text.split("..").collect();
    let (first, last, step) = match parts[..] {
        [first, last] => (first, last, 1),
        [first, last, step] => (first, last, step.parse::<i64>().ok()?.checked_abs()?.max(1)),
        _ => return None,
    };
    if let ([first], [last]) = (first.as_bytes(), last.as_bytes())
        && first.is_ascii_alphabetic()
        && last.is_ascii_alphabetic()
    {
        let steps = steps(i64::from(*first), i64::from(*last), step);
        return Some(steps.map(|letter| vec![letter as u8]).collect());
    }
    // Zeros in front are kept: the longer of the two gives the width.
    let padded = |text: &str| text.trim_start_matches('-').starts_with('0') && text.len() > 1;
    let width = if padded(first) || padded(last) { first.len().max(last.len()) } else { 0 };
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    let steps = steps(first, last, step).take(MOST + 1);
    Some(steps.map(|number| format!("{number:0width$}").into_bytes()).collect())
}

/// The numbers from `first` to `last`, upwards or downwards.
fn steps(first: i64, last: i64, step: i64) -> impl Iterator<Item = i64> {
    let down = last < first;
    let inside = move |number: &i64| if down { *number >= last } else { *number <= last };
    let next = move |number: &i64| number.checked_add(if down { -step } else { step });
    std::iter::successors(Some(first), next).take_while(inside)
}

fn is_glob(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|byte| b"*?[".contains(byte))
}

/// The files that match, folder by folder. No link is followed twice: a pattern has only so many
/// parts.
fn glob(pattern: &Path, name: &Path, store: &dyn Store) -> Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::new()];
    for part in name.components() {
        let part = part.as_os_str();
        if !is_glob(Path::new(part)) {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let mut next = Vec::new();
        for folder in &found {
            if !folder.as_os_str().is_empty() && !is_folder(folder, store)? {
                continue;
            }
            let mut inside = list(folder, store)?;
            inside.retain(|path| matches(part.as_bytes(), path.file_name().unwrap_or_default()));
            next.append(&mut inside);
            if next.len() > MOST {
                return Err(too_many(pattern));
            }
        }
        found = next;
    }
    found.retain(|path| !matches!(store.kind(path), Ok(None)));
    Ok(found)
}

/// Compares a name with stars, question marks and `[a-z]`. Takes at most the product of their
/// lengths.
fn matches(mut pattern: &[u8], name: &OsStr) -> bool {
    let mut name = name.as_bytes();
    // Where to go on if what follows a star does not fit: the star takes one byte more.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        match (one(pattern, name), pattern.split_first()) {
            (_, Some((b'*', rest))) => {
                again = Some((rest, name));
                pattern = rest;
                continue;
            }
            (Some(rest), _) => {
                pattern = rest;
                name = &name[1..];
                continue;
            }
            (None, None) if name.is_empty() => return true,
            _ => {}
        }
        match again {
            Some((rest, from)) if !from.is_empty() => {
                (pattern, name) = (rest, &from[1..]);
                again = Some((rest, name));
            }
            _ => return false,
        }
    }
}

/// The pattern's rest if its first part stands for the first byte of the name.
fn one<'a>(pattern: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let byte = *name.first()?;
    let (first, rest) = pattern.split_first()?;
    match first {
        b'?' => Some(rest),
        b'[' => {
            let end = 1 + rest.get(1..)?.iter().position(|byte| *byte == b']')?;
            let (set, rest) = (&rest[..end], &rest[end + 1..]);
            let (not, set) = match set {
                [b'!' | b'^', set @ ..] => (true, set),
                _ => (false, set),
            };
            let mut found = false;
            let mut at = 0;
            while at < set.len() {
                let range = at + 2 < set.len() && set[at + 1] == b'-';
                let last = if range { set[at + 2] } else { set[at] };
                found |= (set[at]..=last).contains(&byte);
                at += if range { 3 } else { 1 };
            }
            (found != not).then_some(rest)
        }
        first => (*first == byte).then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Local;

    fn names(pattern: &str) -> Vec<String> {
        let shown = |path: PathBuf| path.to_string_lossy().into_owned();
        braces(Path::new(pattern)).unwrap().into_iter().map(shown).collect()
    }

    #[test]
    fn braces_are_those_of_a_shell() {
        assert_eq!(names("a-{008..011}.tar"), ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]);
        assert_eq!(names("{3..1}"), ["3", "2", "1"]);
        assert_eq!(names("{0..10..5}"), ["0", "5", "10"]);
        assert_eq!(names("{a,b}{1..2}"), ["a1", "a2", "b1", "b2"]);
        assert_eq!(names("{x,y{1,2}}z"), ["xz", "y1z", "y2z"]);
        assert_eq!(names("{a..c}"), ["a", "b", "c"]);
        assert_eq!(names("a{b}c{d"), ["a{b}c{d"]);
        assert_eq!(names("{a,}x"), ["ax", "x"]);
        assert_eq!(names("{é,b}"), ["é", "b"]);
        for pattern in ["{0..9999999}", "{0..9999}{0..9999}", &"{a,b}".repeat(50)] {
            let error = braces(Path::new(pattern)).unwrap_err().to_string();
            assert!(error.contains("a million"), "{error}");
        }
        assert!(!names(&"{".repeat(2000)).is_empty());
    }

    #[test]
    fn stars_match_what_they_should() {
        let is = |pattern: &str, name: &str| matches(pattern.as_bytes(), OsStr::new(name));
        assert!(is("*.tar", "a.tar") && is("*", "") && is("a*b*c", "aXbYbZc") && is("?x", "ax"));
        assert!(!is("*.tar", "a.tar.gz") && !is("a?", "a") && !is("", "a"));
        assert!(is("x[0-9a]", "x7") && is("x[0-9a]", "xa") && !is("x[!0-9]", "x7"));
        assert!(!is(&"*a".repeat(50), &"a".repeat(49)));
    }

    #[test]
    fn files_are_found_after_the_working_directory_has_changed() {
        // Not changed here: other tests run beside this one.
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            expand(Path::new("Cargo.toml"), &[], &Local).unwrap(),
            [here.join("Cargo.toml")]
        );
        assert_eq!(
            expand(Path::new("./Cargo.t*ml"), &[], &Local).unwrap(),
            [here.join("Cargo.toml")]
        );
        assert_eq!(expand(Path::new("{a,b}.tar"), &[], &Local).unwrap()[1], here.join("b.tar"));
        let fixtures = expand(Path::new("tests/fixtures"), &[".tar"], &Local).unwrap();
        assert_eq!(fixtures, [here.join("tests/fixtures/plain.tar")]);
    }

    #[test]
    fn files_are_found_in_order() {
        let folder = std::env::temp_dir().join(format!("feedline-shards-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        for name in ["b.tar", "a.tar", "a.tar.feedline-index", ".c.tar", "n.txt", "sub/d.tar"] {
            std::fs::write(folder.join(name), b"").unwrap();
        }
        let found = |path: &str, endings: &[&str]| -> Result<Vec<String>> {
            let shown = |p: PathBuf| p.strip_prefix(&folder).unwrap().display().to_string();
            Ok(expand(&folder.join(path), endings, &Local)?.into_iter().map(shown).collect())
        };
        assert_eq!(found("", &[".tar"]).unwrap(), ["a.tar", "b.tar"]);
        assert_eq!(found("*.tar*", &[]).unwrap(), ["a.tar", "b.tar"]);
        assert_eq!(found("{b,a}.tar", &[]).unwrap(), ["b.tar", "a.tar"]);
        assert_eq!(found("*/*.tar", &[]).unwrap(), ["sub/d.tar"]);
        assert!(found("x*", &[]).unwrap_err().to_string().contains("matches no file"));
        assert!(found("", &[".lmdb"]).unwrap_err().to_string().contains("end in .lmdb"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
