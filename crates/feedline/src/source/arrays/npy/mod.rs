//! NumPy's .npy and .npz: arrays whose first axis is the samples.
//!
//! A file is one array, called by its name without `.npy`, or a field for each part of a record.
//! In a folder or a list of files, names that end in `-NUMBER`, `_NUMBER` or `.NUMBER` are shards
//! of one array if there are several (`x-000.npy`, `x-001.npy`); all other files are arrays of
//! their own, so `x.npy` and `y.npy` of one length are the fields `x` and `y`. Rows of different
//! lengths are `NAME.data.npy` (bytes or numbers) or `NAME.text.npy`, one long array, and
//! `NAME.offsets.npy`, which says where each starts and the last ends; `NAME.shapes.npy` has their
//! shapes. A .npz is what such a folder would be.

mod array;
pub(in crate::source) mod header;
mod npz;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ArrayGroup, Files, Rows, join};
use crate::error::{Error, Result};
use crate::source::{Opening, Source, is_folder, problem, shards};
use crate::spec::FieldChoice;
use crate::store::Store;
use array::{NpyPlace, arrays, header_of};

/// Opens files, a folder of them, or a pattern.
pub(in crate::source) fn open(
    path: &Path,
    choices: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Arc<dyn Source>> {
    let groups = groups(path, &**with.store)?;
    let mut files = Files::new(with.store);
    for (_, path) in groups.iter().flatten() {
        files.add(path)?;
    }
    let files = Arc::new(files);
    let mut stores = Vec::new();
    let mut makers = Makers { next: 0, block_memory: with.block_memory };
    let mut number = 0;
    for group in groups {
        let mut found = Vec::new();
        let what = match &group[..] {
            [(_, only)] => only.display().to_string(),
            _ => path.display().to_string(),
        };
        for (name, path) in group {
            let wrong = |why: String| problem(&path, why);
            if has_ending(&path, "npz") {
                found.extend(npz::arrays_of(&files, number, &mut makers).map_err(wrong)?);
            } else {
                let stored =
                    NpyPlace { file: number, offset: 0, length: files.bytes(number), packed: None };
                let header = header_of(&files, &stored).map_err(wrong)?;
                found.extend(arrays(&files, &stored, &header, &name, &mut makers).map_err(wrong)?);
            }
            number += 1;
        }
        let arrays = join(found).map_err(|why| problem(path, why))?;
        stores.push(ArrayGroup { what, arrays, refused: Vec::new() });
    }
    let what = path.display().to_string();
    Ok(Arc::new(Rows::open("npy", what, files, stores, choices, with)?))
}

/// Numbers those who make blocks, and knows how large a block may be.
struct Makers {
    next: u64,
    block_memory: u64,
}

impl Makers {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The files of each store: name of an array and where it is. A .npz has no name.
type Group = Vec<(String, PathBuf)>;

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending))
}

/// The .npy and .npz files of a folder, sorted.
fn files_in(folder: &Path, store: &dyn Store) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Io { what: "cannot read", path: folder.to_owned(), source };
    let mut found = Vec::new();
    let outcome = store.list(folder, &mut |entry| {
        let path = folder.join(entry.name);
        if has_ending(&path, "npy") || has_ending(&path, "npz") {
            found.push(path);
        }
        ControlFlow::Continue(())
    });
    outcome.map_err(failed)?;
    found.sort();
    Ok(found)
}

fn groups(path: &Path, store: &dyn Store) -> Result<Vec<Group>> {
    if is_folder(path, store)? {
        let files = files_in(path, store)?;
        if !files.is_empty() {
            return grouped(path, files);
        }
    }
    let listed = shards::expand(path, &[".npy", ".npz"], store)?;
    let mut groups = Vec::new();
    let mut folders = !listed.is_empty();
    for each in &listed {
        folders = folders && is_folder(each, store)?;
    }
    if folders {
        for folder in listed {
            groups.extend(grouped(&folder, files_in(&folder, store)?)?);
        }
        return Ok(groups);
    }
    grouped(path, listed)
}

/// `x-003` as `x` and `003`.
fn numbered(stem: &str) -> Option<(&str, &str)> {
    let digits = stem.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (name, number) = stem.split_at(stem.len() - digits);
    match name.strip_suffix(['-', '_', '.']) {
        _ if number.is_empty() => None,
        Some(name) if !name.is_empty() => Some((name, number)),
        _ if name.is_empty() => Some(("data", number)),
        _ => None,
    }
}

/// Sorts files into stores, by the rule above.
fn grouped(what: &Path, files: Vec<PathBuf>) -> Result<Vec<Group>> {
    let (packed, plain): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|path| has_ending(path, "npz"));
    if !packed.is_empty() && !plain.is_empty() {
        return Err(problem(what, "has both .npy and .npz files: name those that are meant"));
    }
    if !packed.is_empty() {
        return Ok(packed.into_iter().map(|path| vec![(String::new(), path)]).collect());
    }
    if plain.is_empty() {
        return Err(problem(what, "has no .npy or .npz files"));
    }
    let mut stems = Vec::new();
    for path in plain {
        match path.file_stem().and_then(|stem| stem.to_str()) {
            Some(stem) => stems.push((stem.to_owned(), path.clone())),
            None => return Err(problem(&path, "has a name that is not text")),
        }
    }
    // Arrays by name, and of each its files by number.
    let mut arrays: BTreeMap<String, Vec<(String, PathBuf)>> = BTreeMap::new();
    for (stem, path) in &stems {
        if let Some((name, number)) = numbered(stem) {
            arrays.entry(name.to_owned()).or_default().push((number.to_owned(), path.clone()));
        }
    }
    if !arrays.values().any(|shards| shards.len() > 1) {
        return Ok(vec![stems]);
    }
    for (stem, path) in stems {
        if numbered(&stem).is_none() {
            arrays.entry(stem).or_default().push((String::new(), path));
        }
    }
    let numbers = |shards: &[(String, PathBuf)]| -> Vec<String> {
        shards.iter().map(|(number, _)| number.clone()).collect()
    };
    let mut each = arrays.iter();
    let Some((first, shards)) = each.next() else { return Ok(Vec::new()) };
    if let Some((name, _)) = each.find(|(_, others)| numbers(others) != numbers(shards)) {
        return Err(problem(
            what,
            format!("has other shards of {name:?} than of {first:?}: name those that are meant"),
        ));
    }
    let count = shards.len();
    let store = |at: usize| -> Group {
        arrays.iter().map(|(name, shards)| (name.clone(), shards[at].1.clone())).collect()
    };
    Ok((0..count).map(store).collect())
}

#[cfg(test)]
pub(in crate::source) mod tests;
