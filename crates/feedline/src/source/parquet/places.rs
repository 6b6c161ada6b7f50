//! The places of all plain values of a file: found once, and kept as an index beside it.

use std::sync::Arc;

use super::super::columns::{Sort, sort_of};
use super::super::index::{self, Identity, Scanned};
use super::super::input::Compression;
use super::super::names::Names;
use super::super::part::{ABSENT, Column, Content, Part};
use super::super::table::{MISSING, Places};
use super::{LeafPlaces, ParquetFile, pages};
use crate::catalog;
use crate::error::Fault;
use crate::sample::FieldKind;

/// Files that are smaller are walked over each time.
const SMALLEST_INDEXED: u64 = 4 << 20;
/// Places are noted if they take no more than this, or little beside the values.
const MOST: u64 = 64 << 20;
/// Another way of finding places needs another number.
const VERSION: u64 = 1;

/// The leaves whose values lie plainly in the file.
fn plain_leaves(file: &ParquetFile) -> Vec<usize> {
    let wanted = |column: usize| {
        let sort = sort_of(file.schema.field(column).data_type()).ok()?;
        let bytes = matches!(sort, Sort::Binary | Sort::ImageStruct | Sort::Plain(FieldKind::Text));
        let &[leaf] = &file.leaves(column)[..] else { return None };
        let stored: u64 = file.chunks(leaf).map(|chunk| chunk.compressed_size() as u64).sum();
        let few = file.rows.saturating_mul(12) <= MOST.max(stored / 4);
        (bytes && few && file.chunks(leaf).all(pages::is_plain)).then_some(leaf)
    };
    (0..file.schema.fields().len()).filter_map(wanted).collect()
}

/// The places of the values of each plain leaf.
pub(super) fn find(file: &ParquetFile) -> Result<LeafPlaces, Fault> {
    let leaves = plain_leaves(file);
    if leaves.is_empty() {
        return Ok(Vec::new());
    }
    let opened = catalog::reopen(&file.path, file.stamp)?;
    let identity = Identity::of(&opened, "parquet", VERSION)?;
    let indexed = file.length >= SMALLEST_INDEXED && identity.size() == file.length;
    if let Some(known) = indexed.then(|| load(file, &identity, &leaves)).flatten() {
        return Ok(known);
    }
    let mut found = Vec::new();
    for leaf in leaves {
        if let Some(places) = pages::column(&opened, file.length, &mut file.chunks(leaf))? {
            found.push((leaf, Arc::new(places)));
        }
    }
    // Not for what was written to meanwhile.
    if indexed && Identity::of(&opened, "parquet", VERSION)? == identity {
        save(file, &identity, &found);
    }
    Ok(found)
}

fn load(file: &ParquetFile, identity: &Identity, leaves: &[usize]) -> Option<LeafPlaces> {
    let scanned = index::load(&file.path, identity)?;
    let mut found = Vec::new();
    for column in scanned.part.columns {
        let leaf = column.name.parse().ok().filter(|leaf| leaves.contains(leaf))?;
        let (mut begins, mut lengths) = (Vec::new(), Vec::new());
        if column.places.len() as u64 != file.rows {
            return None;
        }
        begins.reserve_exact(column.places.len());
        lengths.reserve_exact(column.places.len());
        for place in column.places {
            let [begin, length] = place;
            let inside = begin.checked_add(length).is_some_and(|end| end <= file.length);
            if !inside && place != ABSENT {
                return None;
            }
            begins.push(begin);
            lengths.push(if place == ABSENT { MISSING } else { u32::try_from(length).ok()? });
        }
        found.push((leaf, Arc::new(Places::Each { begins, lengths })));
    }
    Some(found)
}

fn save(file: &ParquetFile, identity: &Identity, found: &[(usize, Arc<Places>)]) {
    let column = |(leaf, places): &(usize, Arc<Places>)| {
        let mut column = Column::new(&leaf.to_string(), Content::Bytes);
        if let Places::Each { begins, lengths } = &**places {
            let place = |(begin, length): (&u64, &u32)| match *length {
                MISSING => ABSENT,
                length => [*begin, u64::from(length)],
            };
            column.places = begins.iter().zip(lengths).map(place).collect();
        }
        column
    };
    // Rows have no names; the index counts samples by them.
    let Some(names) = Names::from_parts(Vec::new(), vec![0; file.rows as usize]) else { return };
    let part = Part { names, columns: found.iter().map(column).collect(), classes: Vec::new() };
    let scanned = Scanned { part, compression: Compression::None, length: file.length };
    index::save(&file.path, identity, &scanned);
}
