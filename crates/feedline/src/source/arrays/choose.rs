//! Which arrays become fields, and whether they fit together.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Array, ArrayColumn, ArrayGroup, Element, Files, MOST_ARRAYS, Rows};
use crate::error::{Error, Fault, Result};
use crate::sample::{Field, FieldKind, Grown};
use crate::source::{BlockCache, Opening, Source, field_names, problem};
use crate::spec::FieldChoice;

/// Bytes at the start of a sample by which an image is known.
const LOOK: u64 = 16 << 20;

/// Keeps those of the length that most arrays have; refuses if two lengths are as common.
fn one_length(arrays: Vec<Array>) -> std::result::Result<Vec<Array>, String> {
    let mut lengths: Vec<(u64, usize)> = Vec::new();
    for array in &arrays {
        let samples = array.samples();
        match lengths.iter_mut().find(|(length, _)| *length == samples) {
            Some((_, count)) => *count += 1,
            None => lengths.push((samples, 1)),
        }
    }
    let most = lengths.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let mut common = lengths.iter().filter(|(_, count)| *count == most);
    match (common.next(), common.next()) {
        (Some((length, _)), None) => {
            let length = *length;
            // What is almost as long was meant to be samples.
            let almost = |samples: u64| {
                samples != length && samples > 1 && samples.abs_diff(length) <= length / 10
            };
            if let Some(odd) = arrays.iter().find(|array| almost(array.samples())) {
                return Err(format!(
                    "has {} samples in {:?} and {length} in others: choose the other fields with fields",
                    odd.samples(),
                    odd.name
                ));
            }
            Ok(arrays.into_iter().filter(|array| array.samples() == length).collect())
        }
        (None, _) => Err("has no arrays whose first axis could count samples".to_owned()),
        _ => {
            let shown = |each: &Array| format!("{:?} ({})", each.name, each.samples());
            Err(format!(
                "has arrays of different lengths, and it is not clear which are the samples: {}: name them with fields",
                field_names::listed(&arrays.iter().map(shown).collect::<Vec<_>>())
            ))
        }
    }
}

/// The arrays of a store that are wanted, in their order.
fn chosen(noun: &str, store: ArrayGroup, choices: &[FieldChoice]) -> Result<Vec<Array>> {
    let problem = |why: String| problem(&store.what, why);
    if choices.is_empty() {
        let refused = &store.refused;
        let mut taken = one_length(store.arrays).map_err(|why| match &refused[..] {
            [] => problem(why),
            [(name, _, because), ..] => problem(format!("{why}; {name} {because}")),
        })?;
        // Images come first, as everywhere; the rest is in the order of the names.
        taken.sort_by_key(|array| array.name != "image");
        // What belongs to the samples and cannot be read is not left out in silence.
        let length = taken.first().map(Array::samples);
        let missed = refused.iter().find(|(_, rows, _)| rows.is_none() || *rows == length);
        return match missed {
            None => Ok(taken),
            Some((name, _, why)) => Err(problem(format!(
                "{name} {why}; or name the arrays that are wanted with fields"
            ))),
        };
    }
    let names: Vec<&str> = store.arrays.iter().map(|array| array.name.as_str()).collect();
    let mut taken: Vec<Array> = Vec::new();
    for choice in choices {
        let wanted = || field_names::alternatives(&choice.column);
        let named = |name: &str| field_names::position(name.trim_start_matches('/'), &names);
        let Some(at) = wanted().find_map(named) else {
            let refused = |name: &str| store.refused.iter().find(|(each, ..)| each == name);
            return Err(problem(match wanted().find_map(refused) {
                Some((name, _, why)) => format!("{name} {why}"),
                None => field_names::missing(noun, &choice.column, &names),
            }));
        };
        let array = &store.arrays[at];
        if let Some(first) = taken.first()
            && first.samples() != array.samples()
        {
            return Err(problem(format!(
                "has {} samples in {:?} and {} in {:?}",
                first.samples(),
                first.name,
                array.samples(),
                array.name
            )));
        }
        taken.push(array.clone());
    }
    Ok(taken)
}

/// What a field is after what was said of it and what its first sample looks like.
fn role(
    kind: FieldKind,
    choice: Option<&FieldChoice>,
    looks: bool,
) -> std::result::Result<FieldKind, String> {
    let opaque = matches!(kind, FieldKind::Bytes | FieldKind::Text | FieldKind::EncodedImage);
    match choice.and_then(|choice| choice.role) {
        None if kind == FieldKind::Bytes && looks => Ok(FieldKind::EncodedImage),
        None => Ok(kind),
        Some(_) if !opaque => Err("holds numbers, which have no role".to_owned()),
        Some(role) => Ok(field_names::kind_of(role)),
    }
}

impl Rows {
    /// Chooses the fields of all stores, which have the same ones, and puts the stores one after
    /// the other.
    pub(in crate::source) fn open(
        format: &'static str,
        what: String,
        files: Arc<Files>,
        stores: Vec<ArrayGroup>,
        choices: &[FieldChoice],
        with: &Opening<'_>,
    ) -> Result<Rows> {
        let noun = if format == "hdf5" { "dataset" } else { "array" };
        let names = stores.iter().map(|store| store.what.clone()).collect();
        let mut columns: Vec<ArrayColumn> = Vec::new();
        let mut kinds: Vec<FieldKind> = Vec::new();
        for (number, mut store) in stores.into_iter().enumerate() {
            let what = store.what.clone();
            let problem = |why: String| problem(&what, why);
            if store.arrays.len() > MOST_ARRAYS {
                return Err(problem(format!("has more than {MOST_ARRAYS} arrays")));
            }
            if number > 0 && choices.is_empty() {
                // The first store says which arrays are fields.
                let wanted =
                    |array: &Array| columns.iter().any(|column| column.parts[0].name == array.name);
                store.arrays.retain(wanted);
                store.arrays.sort_by_key(|array| {
                    columns.iter().position(|column| column.parts[0].name == array.name)
                });
            }
            let arrays = chosen(noun, store, choices)?;
            if number == 0 {
                for array in &arrays {
                    let kind =
                        array.kind().map_err(|why| problem(format!("{:?} {why}", array.name)))?;
                    kinds.push(kind);
                    columns.push(ArrayColumn { parts: Vec::new() });
                }
            }
            if arrays.len() != columns.len() {
                return Err(problem("does not have the arrays that the first file has".to_owned()));
            }
            for (at, array) in arrays.into_iter().enumerate() {
                if array.kind().as_ref() != Ok(&kinds[at]) {
                    return Err(problem(format!(
                        "has {:?} as another type or shape than the first file: {:?} there",
                        array.name, kinds[at]
                    )));
                }
                columns[at].parts.push(array);
            }
        }
        let fields: Vec<Field> = columns
            .iter()
            .zip(&kinds)
            .enumerate()
            .map(|(at, (column, kind))| Field {
                name: choices
                    .get(at)
                    .map_or_else(|| column.parts[0].name.clone(), |choice| choice.name.clone()),
                kind: kind.clone(),
            })
            .collect();
        let mut rows = Rows {
            format,
            what,
            stores: names,
            files,
            columns,
            fields,
            ends: Vec::new(),
            blocks: None,
            cache: BlockCache::new(with.block_memory),
            fingerprint: 0,
        };
        rows.assemble(with.block_memory)?;
        rows.find_images(choices, with)?;
        Ok(rows)
    }

    /// Bytes that are images become images.
    fn find_images(&mut self, choices: &[FieldChoice], with: &Opening<'_>) -> Result<()> {
        for field in 0..self.fields.len() {
            let looks = self.fields[field].kind == FieldKind::Bytes && {
                let mut first = Grown::at_most(LOOK);
                match self.read(0, field, &mut first) {
                    Ok(()) => (with.is_image)(&first.bytes),
                    Err(Fault::Io(source)) if source.raw_os_error().is_some() => {
                        let path = PathBuf::from(&self.what);
                        return Err(Error::Io { what: "cannot read", path, source });
                    }
                    // What is damaged is reported when it is asked for.
                    Err(_) => false,
                }
            };
            let kind = role(self.fields[field].kind.clone(), choices.get(field), looks);
            let kind =
                kind.map_err(|why| self.problem(format!("{:?} {why}", self.fields[field].name)))?;
            let parts = &self.columns[field].parts;
            let fixed = parts.iter().any(|part| matches!(part.element, Element::Chars { .. }));
            if fixed && kind != FieldKind::Text {
                return Err(self.problem(format!(
                    "{:?} holds texts of one width, whose zeros at the end are lost: as bytes or images write them with different lengths",
                    self.fields[field].name
                )));
            }
            for part in &mut self.columns[field].parts {
                if let Some(spread) = &mut part.spread {
                    spread.kind = kind.clone();
                }
                if let Element::Reference { kind: inner, .. } = &mut part.element {
                    *inner = kind.clone();
                }
            }
            self.fields[field].kind = kind;
        }
        // The only image of a sample is called so, as in every other format.
        let image = field_names::first_image(&self.fields).filter(|at| {
            choices.is_empty() && field_names::first_image(&self.fields[at + 1..]).is_none()
        });
        field_names::rename(&mut self.fields, image, "image");
        Ok(())
    }
}
