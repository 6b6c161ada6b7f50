//! Fields by the names that the data has for them: what all formats with named fields share.

use crate::sample::{Field, FieldKind};
use crate::spec::FieldRole;
use crate::spec::read::nearest;

/// Names are listed in messages up to this many.
const MOST_LISTED: usize = 30;

/// The names in a choice, of which one may stand for another.
pub(in crate::source) fn alternatives(wanted: &str) -> impl Iterator<Item = &str> {
    // "a;" is "a"; only a choice that is blank as a whole asks for a column without a name.
    wanted.split(';').filter(move |name| !name.trim().is_empty() || wanted.trim().is_empty())
}

/// Where a name is among those of the data: as it is written, or else but for spaces around it.
pub(in crate::source) fn position(name: &str, known: &[&str]) -> Option<usize> {
    let trimmed = || known.iter().position(|each| each.trim() == name.trim());
    known.iter().position(|each| *each == name).or_else(trimmed)
}

/// Where the first name of a choice is that the data has. `noun` is what the format calls what
/// has names.
pub(in crate::source) fn find(noun: &str, wanted: &str, known: &[&str]) -> Result<usize, String> {
    let found = alternatives(wanted).find_map(|name| position(name, known));
    found.ok_or_else(|| missing(noun, wanted, known))
}

/// What is wrong where no name of a choice is there.
pub(in crate::source) fn missing(noun: &str, wanted: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("has no {noun} {wanted:?}, nor any other");
    }
    let hint = alternatives(wanted).find_map(|name| nearest(name, known));
    let hint = hint.map_or(String::new(), |name| format!("; did you mean {name:?}?"));
    format!("has no {noun} {wanted:?}, only {}{hint}", listed(known))
}

/// Names for a message.
pub(in crate::source) fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(MOST_LISTED).map(AsRef::as_ref).collect();
    let more = if names.len() > shown.len() { ", ..." } else { "" };
    shown.join(", ") + more
}

/// The kind of a field whose bytes are said to be something.
pub(in crate::source) fn kind_of(role: FieldRole) -> FieldKind {
    match role {
        FieldRole::Image => FieldKind::EncodedImage,
        FieldRole::Text => FieldKind::Text,
        FieldRole::Bytes => FieldKind::Bytes,
    }
}

/// The first image among the fields.
pub(in crate::source) fn first_image(fields: &[Field]) -> Option<usize> {
    fields.iter().position(|field| field.kind == FieldKind::EncodedImage)
}

/// Gives a field the name that it has in every other format, unless another field has it.
pub(in crate::source) fn rename(fields: &mut [Field], at: Option<usize>, usual: &str) {
    let taken = fields.iter().any(|field| field.name == usual);
    if let Some(at) = at.filter(|_| !taken) {
        fields[at].name = usual.to_owned();
    }
}
