//! From the columns that files have to the fields of a sample: which are wanted, what they are
//! called, and what they are where files differ.

use std::collections::HashMap;

use super::encoding::Encoding;
use super::part::{ABSENT, Content, ShardPart, SpanColumn, Values};
use crate::error::Result;
use crate::sample::{DType, Field, FieldKind};
use crate::source::{field_names, problem};
use crate::spec::{FieldChoice, FieldRole};

/// The chosen fields, and for each file the column of each; `None` if no sample of it has the field.
pub(in crate::source) struct Chosen {
    pub(in crate::source) fields: Vec<Field>,
    pub(in crate::source) columns: Vec<Vec<Option<SpanColumn>>>,
}

/// A field and the columns that may hold it: in each sample the first that it has.
struct Pick {
    name: String,
    columns: Vec<String>,
    role: Option<FieldRole>,
}

/// A column as all files together have it.
struct JoinedColumn {
    name: String,
    field: String,
    hidden: bool,
    kind: Option<FieldKind>,
}

/// Takes the wanted columns out of `parts`.
pub(in crate::source) fn choose(
    what: &str,
    parts: &mut [ShardPart],
    choices: &[FieldChoice],
) -> Result<Chosen> {
    let known = known_columns(parts);
    let picks = match choices {
        [] => all_of(parts, &known),
        _ => choices.iter().map(|choice| chosen(what, &known, choice)).collect::<Result<_>>()?,
    };
    if picks.is_empty() {
        return Err(problem(what, "has samples without any field"));
    }
    refuse(what, parts, &picks, choices.is_empty())?;
    let mut uses: HashMap<String, usize> = HashMap::new();
    for name in picks.iter().flat_map(|pick| &pick.columns) {
        *uses.entry(name.clone()).or_default() += 1;
    }
    let mut taken: Vec<Vec<Option<SpanColumn>>> = parts.iter().map(|_| Vec::new()).collect();
    let mut fields = Vec::new();
    for pick in &picks {
        let mut kind: Option<FieldKind> = None;
        for (part, taken) in parts.iter_mut().zip(&mut taken) {
            let samples = part.names.len() as usize;
            let mut columns = Vec::new();
            for name in &pick.columns {
                let Some(at) = part.columns.iter().position(|column| column.name == *name) else {
                    continue;
                };
                columns.push(match uses.get(name) {
                    Some(1) => part.columns.swap_remove(at),
                    _ => part.columns[at].clone(),
                });
            }
            let mut column = combine(what, pick, columns, samples)?;
            if let Some(column) = &mut column {
                if let Some(role) = pick.role {
                    adapt(what, column, &field_names::kind_of(role))?;
                }
                if let Some(own) = column.kind() {
                    kind = Some(match &kind {
                        None => own,
                        Some(kind) => general(kind, &own),
                    });
                }
            }
            taken.push(column);
        }
        let kind = kind.ok_or_else(|| problem(what, format!("has no {:?}", pick.name)))?;
        for column in taken.iter_mut().filter_map(|columns| columns.last_mut()).flatten() {
            adapt(what, column, &kind)?;
        }
        fields.push(Field { name: pick.name.clone(), kind });
    }
    if choices.is_empty() {
        let image = field_names::first_image(&fields);
        field_names::rename(&mut fields, image, "image");
    }
    Ok(Chosen { fields, columns: taken })
}

fn known_columns(parts: &[ShardPart]) -> Vec<JoinedColumn> {
    let mut known: Vec<JoinedColumn> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for column in parts.iter().flat_map(|part| &part.columns) {
        let kind = column.kind();
        let at = *numbers.entry(&column.name).or_insert(known.len());
        match known.get_mut(at) {
            None => known.push(JoinedColumn {
                name: column.name.clone(),
                field: column.field.clone(),
                hidden: column.hidden,
                kind,
            }),
            Some(there) => {
                there.kind = match (&there.kind, kind) {
                    (Some(a), Some(b)) => Some(general(a, &b)),
                    _ => None,
                };
            }
        }
    }
    known
}

/// A choice of the user.
fn chosen(what: &str, known: &[JoinedColumn], choice: &FieldChoice) -> Result<Pick> {
    let names: Vec<&str> = known.iter().map(|column| column.name.as_str()).collect();
    let mut columns: Vec<String> = Vec::new();
    for wanted in field_names::alternatives(&choice.column) {
        match field_names::position(wanted, &names) {
            Some(at) => columns.push(names[at].to_owned()),
            None => {
                let by_field = known.iter().filter(|column| column.field == wanted.trim());
                columns.extend(by_field.map(|column| column.name.clone()));
            }
        }
    }
    columns.dedup();
    if columns.is_empty() {
        return Err(problem(what, field_names::missing("field", &choice.column, &names)));
    }
    Ok(Pick { name: choice.name.clone(), columns, role: choice.role })
}

/// All columns that are not hidden. Those that want one name share it if no sample has both.
fn all_of(parts: &[ShardPart], known: &[JoinedColumn]) -> Vec<Pick> {
    let mut picks: Vec<Pick> = Vec::new();
    for column in known.iter().filter(|column| !column.hidden) {
        let name = column.name.clone();
        let single = |name: &str, field: &str| Pick {
            name: field.to_owned(),
            columns: vec![name.to_owned()],
            role: None,
        };
        match picks.iter().position(|pick| pick.name == column.field) {
            None => picks.push(single(&name, &column.field)),
            Some(at) if may_join(parts, known, &picks[at].columns, column) => {
                picks[at].columns.push(name);
            }
            // Its own name may be what another column wants to be called.
            Some(_) if picks.iter().all(|pick| pick.name != name) => {
                picks.push(single(&name, &name));
            }
            Some(_) => picks.push(single(&name, &format!("{name} ({})", picks.len()))),
        }
    }
    picks
}

fn may_join(
    parts: &[ShardPart],
    known: &[JoinedColumn],
    group: &[String],
    column: &JoinedColumn,
) -> bool {
    let same = known
        .iter()
        .filter(|other| group.contains(&other.name))
        .all(|other| other.kind.is_some() && other.kind == column.kind);
    let find = |part: &ShardPart, name: &String| part.columns.iter().position(|c| c.name == *name);
    same && parts.iter().all(|part| {
        let Some(own) = find(part, &column.name) else { return true };
        group.iter().filter_map(|name| find(part, name)).all(|other| {
            let (own, other) = (&part.columns[own], &part.columns[other]);
            (0..part.names.len() as usize).all(|at| !own.has(at) || !other.has(at))
        })
    })
}

/// Columns that are never read stop only those who want them.
fn refuse(what: &str, parts: &[ShardPart], picks: &[Pick], everything: bool) -> Result<()> {
    for pick in picks {
        let columns = parts.iter().flat_map(|part| &part.columns);
        for column in columns.filter(|column| pick.columns.contains(&column.name)) {
            if let Content::Refused(reason) = &column.content {
                let advice = if everything { ": choose the other fields with fields" } else { "" };
                let text = format!("has {:?}, which {reason}{advice}", column.name);
                return Err(problem(what, text));
            }
        }
    }
    Ok(())
}

/// One column out of several that stand for each other.
fn combine(
    what: &str,
    pick: &Pick,
    columns: Vec<SpanColumn>,
    samples: usize,
) -> Result<Option<SpanColumn>> {
    let mut columns = columns.into_iter();
    let Some(mut all) = columns.next() else { return Ok(None) };
    for mut next in columns {
        if let (Some(kind), Some(other)) = (all.kind(), next.kind()) {
            let kind = general(&kind, &other);
            adapt(what, &mut all, &kind)?;
            adapt(what, &mut next, &kind)?;
            all.content = joined(&kind, &all.content);
        }
        if all.encoding != next.encoding {
            let npy = |e: Encoding| matches!(e, Encoding::Npy | Encoding::After(_));
            if !(npy(all.encoding) && npy(next.encoding)) {
                return Err(problem(
                    what,
                    format!("has columns for {:?} that cannot stand for each other", pick.name),
                ));
            }
            all.encoding = Encoding::Npy;
        }
        if all.places.is_empty() {
            continue;
        }
        next.fill(samples);
        for at in (0..samples).filter(|at| next.has(*at)) {
            if all.has(at) {
                continue;
            }
            all.places[at] = next.places[at];
            match (&mut all.values, &next.values) {
                (Values::Int(all), Values::Int(next)) => all[at] = next[at],
                (Values::Float(all), Values::Float(next)) => all[at] = next[at],
                _ => {}
            }
            if let (Some(all), Some(next)) = (all.extra.get_mut(at), next.extra.get(at)) {
                *all = *next;
            }
        }
    }
    Ok(Some(all))
}

/// The content of places of both, given the kind that holds both.
fn joined(kind: &FieldKind, content: &Content) -> Content {
    match kind {
        FieldKind::Ragged { dtype, axes } => Content::Ragged { dtype: *dtype, axes: *axes },
        _ => content.clone(),
    }
}

fn axes_of(kind: &FieldKind) -> Option<(DType, usize)> {
    match kind {
        FieldKind::Array { dtype, shape } => Some((*dtype, shape.len())),
        FieldKind::Ragged { dtype, axes } => Some((*dtype, *axes)),
        _ => None,
    }
}

/// What holds both.
pub(in crate::source) fn general(a: &FieldKind, b: &FieldKind) -> FieldKind {
    if a == b {
        return a.clone();
    }
    let numbers = [FieldKind::scalar(DType::I64), FieldKind::scalar(DType::F32)];
    if numbers.contains(a) && numbers.contains(b) {
        return FieldKind::scalar(DType::F32);
    }
    match (axes_of(a), axes_of(b)) {
        (Some((dtype, axes)), Some(other)) if other == (dtype, axes) && axes > 0 => {
            FieldKind::Ragged { dtype, axes }
        }
        // A list that happens to have one number everywhere in a file is still a list.
        (Some((dtype, axes)), Some((other, more)))
            if dtype == other
                && axes + more == 1
                && (numbers.contains(a) || numbers.contains(b)) =>
        {
            FieldKind::Ragged { dtype, axes: 1 }
        }
        (Some(_), None) if *b == FieldKind::Text && numbers.contains(a) => FieldKind::Text,
        (None, Some(_)) if *a == FieldKind::Text && numbers.contains(b) => FieldKind::Text,
        _ => FieldKind::Bytes,
    }
}

/// Makes a column what its field is in all files.
fn adapt(what: &str, column: &mut SpanColumn, kind: &FieldKind) -> Result<()> {
    if column.kind().as_ref() == Some(kind) {
        // Where the values are known and nobody lacks one, nothing else is needed.
        return Ok(());
    }
    if let (Values::Int(values), FieldKind::Array { dtype: DType::F32, shape }) =
        (&column.values, kind)
        && shape.is_empty()
    {
        column.values = Values::Float(values.iter().map(|value| *value as f32).collect());
        return Ok(());
    }
    if let (Content::Number, Encoding::Numbers { .. }, FieldKind::Ragged { dtype, .. }) =
        (&column.content, column.encoding, kind)
    {
        column.content = Content::Array { dtype: *dtype, shape: vec![1] };
        column.values = Values::None;
        return Ok(());
    }
    let content = match kind {
        FieldKind::Ragged { .. } if column.content == Content::Number => Content::Bytes,
        // An array keeps its shape, which is known when it is read.
        FieldKind::Ragged { .. } => return Ok(()),
        FieldKind::EncodedImage => Content::Image,
        FieldKind::Text => Content::Text,
        _ => Content::Bytes,
    };
    if column.places.iter().all(|place| *place == ABSENT || *place == [0, 0]) {
        let text = format!("has numbers in {:?}, which have no bytes to be read as", column.name);
        return Err(problem(what, text));
    }
    column.content = content;
    column.encoding = column.encoding.raw();
    column.values = Values::None;
    Ok(())
}
