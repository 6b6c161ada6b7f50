//! The places of plain values of a file: found once, and kept as an index beside it.

use std::sync::Arc;

use parquet::basic::Type;

use super::{ParquetFile, pages};
use crate::error::Fault;
use crate::source::columns::{MISSING, Places};
use crate::source::names::Names;
use crate::source::spans::index::{self, Identity, Scanned};
use crate::source::spans::input::Compression;
use crate::source::spans::part::{ABSENT, Content, ShardPart, SpanColumn};
use crate::store::{Object, Store};

/// Leaves, and where their values lie.
type LeafPlaces = Vec<(usize, Arc<Places>)>;

/// Files that are smaller are walked over each time.
const SMALLEST_INDEXED: u64 = 4 << 20;
/// Places are noted if they take no more than this, or little beside the values.
const MOST: u64 = 64 << 20;
/// Another way of finding places needs another number.
const VERSION: u64 = 1;

/// Whether the values of a leaf may lie plainly in the file, and are few enough to note them.
pub(super) fn is_plain(file: &ParquetFile, leaf: usize) -> bool {
    let stored = file.chunks(leaf).map(|chunk| chunk.compressed_size() as u64);
    let stored = stored.fold(0, u64::saturating_add);
    let few = file.rows.saturating_mul(12) <= MOST.max(stored / 4);
    few && file.chunks(leaf).all(pages::is_plain)
}

/// The places of the values of these leaves, as far as they lie plainly in the file. Whatever else
/// is needed meanwhile takes no more than `room`.
pub(super) fn find(
    store: &dyn Store,
    file: &ParquetFile,
    leaves: &[usize],
    room: u64,
) -> Result<LeafPlaces, Fault> {
    if leaves.is_empty() {
        return Ok(Vec::new());
    }
    let opened = store.reopen(&file.path, file.stamp)?;
    let opened = &*opened;
    let identity = Identity::of(opened, "parquet", VERSION)?;
    let indexed = file.length >= SMALLEST_INDEXED && identity.size() == file.length;
    let known = indexed.then(|| load(store, file, opened, &identity, leaves, room)).flatten();
    let (mut found, others) = known.unwrap_or_default();
    let before = found.len();
    for leaf in leaves {
        if found.iter().any(|(known, _)| known == leaf) {
            continue;
        }
        let chunks = &mut file.chunks(*leaf);
        if let Some(places) = pages::column(opened, file.length, file.rows, chunks, room)? {
            found.push((*leaf, Arc::new(places)));
        }
    }
    // Not for what was written to meanwhile.
    let more = found.len() > before;
    if more && indexed && Identity::of(opened, "parquet", VERSION)? == identity {
        save(store, file, &identity, &found, others);
    }
    Ok(found)
}

/// Values of an index that are compared with the file.
const COMPARED: usize = 64;

/// Whether values have their lengths before them, as far as some show.
fn is_of(opened: &dyn Object, begins: &[u64], lengths: &[u32]) -> bool {
    use std::hash::BuildHasher;
    let draws = std::hash::RandomState::new();
    let drawn = (0..COMPARED).map(|number| draws.hash_one(number) as usize % begins.len().max(1));
    let some = [0, begins.len().saturating_sub(1)].into_iter().chain(drawn);
    some.filter(|row| lengths.get(*row).is_some_and(|length| *length != MISSING)).all(|row| {
        let mut four = [0; 4];
        let before = begins[row].checked_sub(4);
        before.is_some_and(|at| opened.read_exact_at(&mut four, at).is_ok())
            && u32::from_le_bytes(four) == lengths[row]
    })
}

/// Rows of a group that is walked over to compare it with an index: at a microsecond or two each.
const WALKED: usize = 20_000;

/// Whether a group of rows, drawn anew at every start, lies where an index says it does. Larger
/// groups than [`WALKED`] are left to [`is_of`].
fn is_of_group(
    file: &ParquetFile,
    opened: &dyn Object,
    leaf: usize,
    (begins, lengths): (&[u64], &[u32]),
    room: u64,
) -> Option<()> {
    use std::hash::BuildHasher;
    let groups = file.groups().row_groups();
    let drawn = std::hash::RandomState::new().hash_one(leaf) as usize % groups.len().max(1);
    let rows = |group: usize| groups[group].num_rows() as usize;
    let start: usize = (0..drawn).map(rows).sum();
    if groups.is_empty() || rows(drawn) > WALKED {
        return Some(());
    }
    let chunks = &mut std::iter::once(groups[drawn].column(leaf));
    let walked = pages::column(opened, file.length, rows(drawn) as u64, chunks, room).ok()??;
    let Places::Each { begins: own, lengths: own_lengths } = walked else { return None };
    let end = start.checked_add(own.len())?;
    let (begins, lengths) = (begins.get(start..end)?, lengths.get(start..end)?);
    let same = |row: usize| lengths[row] == MISSING || begins[row] == own[row];
    (lengths == own_lengths && (0..own.len()).all(same)).then_some(())
}

/// What the index knows of these leaves, and of others.
fn load(
    store: &dyn Store,
    file: &ParquetFile,
    opened: &dyn Object,
    identity: &Identity,
    leaves: &[usize],
    room: u64,
) -> Option<(LeafPlaces, Vec<SpanColumn>)> {
    let scanned = index::load(store, &file.path, identity, room)?;
    let count = file.groups().file_metadata().schema_descr().num_columns();
    let (mut found, mut others) = (LeafPlaces::new(), Vec::new());
    for column in scanned.part.columns {
        let leaf = column.name.parse().ok().filter(|leaf| *leaf < count)?;
        if !leaves.contains(&leaf) {
            others.push(column);
            continue;
        }
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
        let descriptor = file.groups().file_metadata().schema_descr().column(leaf);
        let has_lengths = descriptor.physical_type() == Type::BYTE_ARRAY;
        if has_lengths && !is_of(opened, &begins, &lengths) {
            return None;
        }
        is_of_group(file, opened, leaf, (&begins, &lengths), room)?;
        found.push((leaf, Arc::new(Places::Each { begins, lengths })));
    }
    Some((found, others))
}

fn save(
    store: &dyn Store,
    file: &ParquetFile,
    identity: &Identity,
    found: &[(usize, Arc<Places>)],
    others: Vec<SpanColumn>,
) {
    let column = |(leaf, places): &(usize, Arc<Places>)| {
        let mut column = SpanColumn::new(&leaf.to_string(), Content::Bytes);
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
    let columns = found.iter().map(column).chain(others).collect();
    let part = ShardPart { names, columns, classes: Vec::new() };
    let scanned = Scanned { part, compression: Compression::None, length: file.length };
    index::save(store, &file.path, identity, &scanned);
}
