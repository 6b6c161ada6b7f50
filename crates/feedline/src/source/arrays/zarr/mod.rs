//! Zarr arrays, version 2 and 3: the first axis is the samples, a group is its arrays as fields.
//!
//! Metadata and chunks are read by hand rather than by `zarrs`: a chunk's declared size must not
//! be believed before its bytes are seen, and threads belong to the engine. Rows of different
//! lengths are one long array with an attribute `feedline` that names the array of their offsets.

mod blosc;
mod chunks;
mod codecs;
mod metadata;

use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::{Array, ArrayGroup, Data, Element, Files, MOST_ARRAYS, Rows, spread};
use crate::error::{Error, Result};
use crate::sample::FieldKind;
use crate::source::{BlockCache, Opening, Source, is_folder, problem, shards};
use crate::spec::FieldChoice;
use crate::store::{EntryKind, Reader, Store};
use chunks::{Chunks, Numbers, Texts};
use metadata::Metadata;

/// Groups within groups are followed so deep.
const DEEPEST: usize = 8;

/// No description of an array or a group is larger.
const LARGEST: u64 = 16 << 20;

/// Chunks that are looked for when a set is opened, so that their rows are read from their files.
const LOOKED_FOR: u64 = 16_384;

/// Opens an array, a group, or several as shards.
pub(in crate::source) fn open(
    path: &Path,
    choices: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Arc<dyn Source>> {
    let store = &**with.store;
    let mut paths = match is_folder(path, store)? {
        true => vec![shards::fixed(path.to_owned())],
        false => shards::expand(path, &[], store)?,
    };
    if let [only] = &paths[..]
        && node(only, store)?.is_none()
    {
        paths = folders(only, store)?;
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "zarr"));
        if paths.is_empty() {
            return Err(problem(
                path,
                "is no Zarr array or group: it has no zarr.json, .zarray or .zgroup",
            ));
        }
    }
    let mut files = Files::new(with.store);
    let mut stores = Vec::new();
    let mut makers = 0;
    for path in &paths {
        let what = path.display().to_string();
        let mut walk = StoreWalk {
            store: with.store,
            files: &mut files,
            makers,
            block_memory: with.block_memory,
            found: Vec::new(),
            refused: Vec::new(),
        };
        let stem = path.file_stem().map_or("data".into(), |stem| stem.to_string_lossy());
        walk.node(path, "", &stem, 0)?;
        makers = walk.makers;
        let (found, refused) = (walk.found, walk.refused);
        let arrays = joined(found).map_err(|why| problem(path, why))?;
        stores.push(ArrayGroup { what, arrays, refused });
    }
    let what = path.display().to_string();
    Ok(Arc::new(Rows::open("zarr", what, Arc::new(files), stores, choices, with)?))
}

/// The folders in a folder, sorted.
fn folders(path: &Path, store: &dyn Store) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Io { what: "cannot read", path: path.to_owned(), source };
    let mut found = Vec::new();
    let mut unknown = None;
    let outcome = store.list(path, &mut |entry| {
        let hidden = entry.name.to_string_lossy().starts_with('.');
        let child = path.join(entry.name);
        let kind = match entry.kind {
            EntryKind::Link if !hidden => store.kind(&child).unwrap_or_else(|error| {
                unknown = Some(error);
                None
            }),
            kind => Some(kind),
        };
        if !hidden && kind == Some(EntryKind::Folder) {
            found.push(child);
        }
        if found.len() > MOST_ARRAYS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    outcome.and(unknown.map_or(Ok(()), Err)).map_err(failed)?;
    if found.len() > MOST_ARRAYS {
        return Err(problem(path, format!("has more than {MOST_ARRAYS} folders")));
    }
    found.sort();
    Ok(found)
}

/// A JSON file, if it is there.
fn json(path: &Path, store: &dyn Store) -> Result<Option<Value>> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    let failed = |source| Error::Io { what: "cannot read", path: path.to_owned(), source };
    let file = match store.open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = Vec::new();
    Reader::new(file).take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > LARGEST {
        return Err(problem(path, format!("is larger than {LARGEST} bytes")));
    }
    // NumPy's fill values are written as words that JSON does not have.
    let value = serde_json::from_slice(&text).or_else(|error| {
        let text = String::from_utf8_lossy(&text);
        serde_json::from_str(&text.replace(": NaN", ": \"NaN\"")).map_err(|_| error)
    });
    value.map(Some).map_err(|error| problem(path, format!("is damaged: {error}")))
}

/// What is at a path.
enum Node {
    Group,
    Array(std::result::Result<Box<Metadata>, String>),
}

fn node(path: &Path, store: &dyn Store) -> Result<Option<Node>> {
    if let Some(value) = json(&path.join("zarr.json"), store)? {
        if value.get("zarr_format").and_then(Value::as_u64) != Some(3) {
            return Err(problem(path, "has a version of Zarr that is not known: 2 and 3 are"));
        }
        return match value.get("node_type").and_then(Value::as_str) {
            Some("group") => Ok(Some(Node::Group)),
            Some("array") => Ok(Some(Node::Array(Metadata::version_3(&value).map(Box::new)))),
            _ => Err(problem(path, "is neither an array nor a group")),
        };
    }
    if let Some(value) = json(&path.join(".zarray"), store)? {
        let attributes = json(&path.join(".zattrs"), store)?.unwrap_or(Value::Null);
        let metadata = Metadata::version_2(&value, attributes);
        return Ok(Some(Node::Array(metadata.map(Box::new))));
    }
    Ok(json(&path.join(".zgroup"), store)?.map(|_| Node::Group))
}

/// A walk through a store.
struct StoreWalk<'a> {
    store: &'a Arc<dyn Store>,
    files: &'a mut Files,
    makers: u64,
    block_memory: u64,
    found: Vec<(Array, Value)>,
    refused: Vec<(String, Option<u64>, String)>,
}

impl StoreWalk<'_> {
    fn node(&mut self, path: &Path, name: &str, stem: &str, depth: usize) -> Result<()> {
        match node(path, &**self.store)? {
            None => Ok(()),
            Some(Node::Array(metadata)) => {
                let name = if name.is_empty() { stem } else { name };
                let rows =
                    metadata.as_ref().ok().and_then(|found| found.grid.shape.first().copied());
                match metadata.and_then(|metadata| self.array(path, name, &metadata)) {
                    Ok(found) => self.found.extend(found),
                    Err(why) => self.refused.push((name.to_owned(), rows, why)),
                }
                Ok(())
            }
            Some(Node::Group) => {
                if depth > DEEPEST {
                    return Err(problem(path, format!("is a group more than {DEEPEST} deep")));
                }
                for child in folders(path, &**self.store)? {
                    let Some(own) = child.file_name().and_then(|name| name.to_str()) else {
                        continue;
                    };
                    let name =
                        if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
                    self.node(&child, &name, stem, depth + 1)?;
                }
                Ok(())
            }
        }
    }

    /// The array; none if it has no axis.
    fn array(
        &mut self,
        path: &Path,
        name: &str,
        metadata: &Metadata,
    ) -> std::result::Result<Option<(Array, Value)>, String> {
        let Some((rows, shape)) = metadata.grid.shape.split_first() else { return Ok(None) };
        let shape: Vec<usize> = shape.iter().map(|axis| *axis as usize).collect();
        let each = metadata.grid.chunk[0];
        let chunks = Chunks::new(path.to_owned(), self.store.clone(), metadata, self.block_memory);
        let (element, data) = match &metadata.element {
            Some(element) => {
                let data = match self.pieces(path, metadata) {
                    Some(places) => Data::Pieces { each, places: Arc::new(places) },
                    None => Data::Made { each, maker: Arc::new(chunks) },
                };
                (element.clone(), data)
            }
            None if !shape.is_empty() || !metadata.packing.order.is_empty() => {
                return Err("has texts along several axes, which are not read".to_owned());
            }
            None => {
                let kind = if metadata.bytes { FieldKind::Bytes } else { FieldKind::Text };
                let texts =
                    Texts { chunks: Arc::new(chunks), cache: BlockCache::new(self.block_memory) };
                let element = Element::Reference { width: 8, kind, resolve: Arc::new(texts) };
                (element, Data::Made { each, maker: Arc::new(Numbers { each }) })
            }
        };
        let mut array = Array::new(name.to_owned(), *rows, shape, element, data)?;
        self.makers += 1;
        array.maker = self.makers;
        Ok(Some((array, metadata.attributes.clone())))
    }

    /// The files of chunks that hold rows as they are, if all are there.
    fn pieces(&mut self, path: &Path, metadata: &Metadata) -> Option<Vec<(u32, u64)>> {
        let (grid, packing) = (&metadata.grid, &metadata.packing);
        let count = grid.counts().next().unwrap_or(0);
        let plain = packing.codecs.is_empty() && packing.order.is_empty() && !packing.lengths;
        if !plain || metadata.shard.is_some() || !grid.whole_rows() || count > LOOKED_FOR {
            return None;
        }
        let mut place = vec![0; grid.shape.len()];
        let mut paths = Vec::new();
        for number in 0..count {
            place[0] = number;
            let file = path.join(metadata.keys.name(&place));
            let found = self.store.find(&file).ok();
            let length = found.filter(|found| found.kind == EntryKind::File)?.len;
            if Some(length) != grid.chunk_bytes() {
                return None;
            }
            paths.push(file);
        }
        paths.iter().map(|path| Some((self.files.add(path).ok()?, 0))).collect()
    }
}

/// Arrays that belong together become one, as their attributes say.
fn joined(found: Vec<(Array, Value)>) -> std::result::Result<Vec<Array>, String> {
    let mut taken: Vec<String> = Vec::new();
    let mut arrays = Vec::new();
    let find = |name: &str| {
        found.iter().find(|(array, _)| array.name == name).map(|(array, _)| array.clone())
    };
    for (array, attributes) in &found {
        let Some(said) = attributes.get("feedline") else { continue };
        let text_of = |key: &str| said.get(key).and_then(Value::as_str);
        let Some(offsets) = text_of("offsets") else { continue };
        let missing = |name: &str| format!("has no array {name:?}, which {:?} needs", array.name);
        let shapes = match text_of("shapes") {
            Some(name) => Some(find(name).ok_or_else(|| missing(name))?),
            None => None,
        };
        taken.extend([array.name.clone(), offsets.to_owned()]);
        taken.extend(shapes.iter().map(|shapes| shapes.name.clone()));
        let offsets = find(offsets).ok_or_else(|| missing(offsets))?;
        let text = text_of("kind") == Some("text");
        arrays.push(spread(array.name.clone(), array.clone(), offsets, shapes, text)?);
    }
    arrays.extend(
        found.into_iter().map(|(array, _)| array).filter(|array| !taken.contains(&array.name)),
    );
    arrays.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(arrays)
}
