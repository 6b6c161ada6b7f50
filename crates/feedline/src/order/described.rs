//! What a state was taken with, in words: a refusal names what differs.
//!
//! Hashes decide whether a state fits; this is for people only. It is short whatever the settings
//! are, and what is read back may be anything: nothing in it is trusted, copied or shown at length.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Bytes of all of it as JSON, so that a state stays small.
const MOST_BYTES: usize = 2048;
/// Items of a list that are kept.
const MOST_ITEMS: usize = 32;
/// Characters of a value, as it is kept and as it is shown.
const MOST_CHARACTERS: usize = 80;
/// Differences that are named.
const MOST_SHOWN: usize = 5;
/// Tables and lists inside each other that are looked into.
const DEEPEST: usize = 8;

/// What cannot be read has no place here; the hashes compare it.
const FINGERPRINT: &str = "fingerprint";

/// The settings of a loader, shortened, by the part of its identity that they belong to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Described(Map<String, Value>);

impl Described {
    /// Each part with all its settings.
    #[must_use]
    pub(crate) fn new(parts: &[(&str, &Value)]) -> Self {
        let mut kept = Map::new();
        let mut left = MOST_BYTES;
        for (part, value) in parts {
            let value = shortened(value);
            let bytes = value.to_string().len();
            if bytes <= left {
                left -= bytes;
                kept.insert((*part).to_owned(), value);
            }
        }
        Described(kept)
    }

    /// What of `part` is another than in `ours`, a few of them; empty if nothing is seen.
    #[must_use]
    pub(crate) fn differences(&self, ours: &Described, part: &str) -> String {
        let mut found = Differences::default();
        if let (Some(theirs), Some(ours)) = (self.0.get(part), ours.0.get(part)) {
            found.compare("", theirs, ours, 0);
        }
        found.0.join("; ")
    }
}

fn shortened(value: &Value) -> Value {
    match value {
        Value::String(text) => text.chars().take(MOST_CHARACTERS).collect::<String>().into(),
        Value::Array(items) => items.iter().take(MOST_ITEMS).map(shortened).collect(),
        Value::Object(entries) => entries
            .iter()
            .filter(|(name, value)| *name != FINGERPRINT && !value.is_null())
            .map(|(name, value)| (name.clone(), shortened(value)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// Equal, but for what writing and reading does to a float's last digit.
fn same(theirs: &Value, ours: &Value) -> bool {
    match (theirs, ours) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a == b || (a - b).abs() <= 1e-12 * a.abs(),
            _ => a == b,
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => theirs == ours,
    }
}

#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn is_full(&self) -> bool {
        self.0.len() >= MOST_SHOWN
    }

    fn add(&mut self, path: &str, theirs: Option<&Value>, ours: Option<&Value>) {
        if !self.is_full() {
            let path = if path.is_empty() { String::new() } else { format!("{}: ", shown(path)) };
            self.0.push(format!("{path}{} in the state, {} here", text(theirs), text(ours)));
        }
    }

    fn compare(&mut self, path: &str, theirs: &Value, ours: &Value, depth: usize) {
        if self.is_full() || depth > DEEPEST || same(theirs, ours) {
            return;
        }
        match (theirs, ours) {
            (Value::Object(there), Value::Object(here)) if op(theirs) == op(ours) => {
                // An op is known by its place and its name.
                let path = op(ours).map_or(path.to_owned(), |op| format!("{path} {op}"));
                let inner = |name: &str| {
                    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
                };
                for (name, ours) in here {
                    match there.get(name) {
                        Some(theirs) => self.compare(&inner(name), theirs, ours, depth + 1),
                        None => self.add(&inner(name), None, Some(ours)),
                    }
                }
                for (name, theirs) in there.iter().filter(|(name, _)| !here.contains_key(*name)) {
                    if self.is_full() {
                        return;
                    }
                    self.add(&inner(name), Some(theirs), None);
                }
            }
            (Value::Array(there), Value::Array(here))
                if there.iter().chain(here).any(|item| !item.is_number()) =>
            {
                self.compare_lists(path, there, here, depth);
            }
            _ => self.add(path, Some(theirs), Some(ours)),
        }
    }

    /// Item by item, without those at both ends that are the same: one op more moves the others.
    fn compare_lists(&mut self, path: &str, there: &[Value], here: &[Value], depth: usize) {
        let alike = |(a, b): &(&Value, &Value)| same(a, b);
        let start = there.iter().zip(here).take_while(alike).count();
        let (there, here) = (&there[start..], &here[start..]);
        let end = there.iter().rev().zip(here.iter().rev()).take_while(alike).count();
        let (there, here) = (&there[..there.len() - end], &here[..here.len() - end]);
        for at in 0..there.len().max(here.len()) {
            if self.is_full() {
                return;
            }
            let path = format!("{path}[{}]", start + at);
            match (there.get(at), here.get(at)) {
                (Some(theirs), Some(ours)) => self.compare(&path, theirs, ours, depth + 1),
                (theirs, ours) => self.add(&path, theirs, ours),
            }
        }
    }
}

fn op(value: &Value) -> Option<&str> {
    value.get("op").and_then(Value::as_str)
}

/// A value as it is shown; an op with its name in front.
fn text(value: Option<&Value>) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    let mut text = String::new();
    match (op(value), value) {
        (Some(op), Value::Object(entries)) => {
            text.push_str(op);
            for (name, value) in entries.iter().filter(|(name, _)| *name != "op") {
                let comma = if text.len() == op.len() { "(" } else { ", " };
                let _ = write!(text, "{comma}{name}={value}");
            }
            if text.len() > op.len() {
                text.push(')');
            }
        }
        _ => text = value.to_string(),
    }
    shown(&text)
}

/// One line that moves no cursor and turns no text around, of bounded length.
fn shown(text: &str) -> String {
    let plain = |c: char| match c {
        c if c.is_control() => '?',
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '?',
        '\u{feff}' => '?',
        c => c,
    };
    let mut kept: String = text.chars().take(MOST_CHARACTERS).map(plain).collect();
    if text.chars().nth(MOST_CHARACTERS).is_some() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differences(there: &Value, here: &Value) -> String {
        let described = |value: &Value| Described::new(&[("pixels", value)]);
        described(there).differences(&described(here), "pixels")
    }

    #[test]
    fn a_parameter_is_named_with_both_values() {
        let chain = |size: u64| json!({"transforms": [{"op": "Resize", "size": [size], "p": 0.5}]});
        assert_eq!(
            differences(&chain(224), &chain(256)),
            "transforms[0] Resize.size: [224] in the state, [256] here"
        );
    }

    #[test]
    fn an_op_that_was_added_or_removed_hides_no_other() {
        let (a, b, c) = (json!({"op": "A"}), json!({"op": "B", "p": 1}), json!({"op": "C"}));
        assert_eq!(
            differences(&json!([a, c]), &json!([a, b, c])),
            "[1]: nothing in the state, B(p=1) here"
        );
        assert_eq!(
            differences(&json!([a, b, c]), &json!([a, c])),
            "[1]: B(p=1) in the state, nothing here"
        );
        assert_eq!(differences(&json!([a, b]), &json!([c, b])), "[0]: A in the state, C here");
        assert_eq!(
            differences(&json!({"f": [a, "m.f"]}), &json!({"f": [a, "m.g"]})),
            "f[1]: \"m.f\" in the state, \"m.g\" here"
        );
    }

    #[test]
    fn what_is_equal_or_cannot_be_read_is_not_named() {
        assert_eq!(differences(&json!({"x": 1.0}), &json!({"x": 1})), "");
        assert_eq!(differences(&json!({"x": 1.0}), &json!({"x": 1.0 + 1e-15})), "");
        assert_eq!(differences(&json!({"fingerprint": 1}), &json!({"fingerprint": 2})), "");
        assert_eq!(differences(&json!({"x": null}), &json!({})), "");
    }

    #[test]
    fn it_is_short_whatever_the_settings_are() {
        let long = json!({
            "name": "x".repeat(100_000),
            "list": vec![1; 100_000],
        });
        let many: Map<String, Value> =
            (0..10_000).map(|n| (format!("key{n}"), json!("x".repeat(50)))).collect();
        let all = Described::new(&[("a", &long), ("b", &many.into()), ("c", &json!({"x": 1}))]);
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.len() < MOST_BYTES + 100, "{}", text.len());
        // What was too long leaves room for the others.
        assert_eq!(all.0.get("c"), Some(&json!({"x": 1})));
    }

    #[test]
    fn whatever_is_read_back_is_shown_briefly_and_plainly() {
        let mut deep = json!(1);
        for _ in 0..100 {
            deep = json!({"x": [deep, "y"]});
        }
        let wide: Map<String, Value> = (0..100_000).map(|n| (format!("{n}\n"), json!(n))).collect();
        let hostile = [
            json!({"pixels": deep}),
            json!({"pixels": wide}),
            json!({"pixels": [[], [], "x".repeat(1 << 20)]}),
            json!({"pixels": {"a\u{1b}[2J": "\u{202e}\u{7}"}}),
            json!({"pixels": {"op": "\n".repeat(1000)}}),
            json!({"pixels": 7}),
            json!({}),
        ];
        let ours = Described::new(&[("pixels", &json!({"transforms": [{"op": "A"}], "x": ["y"]}))]);
        for state in hostile {
            let theirs: Described = serde_json::from_value(state).unwrap();
            let shown = theirs.differences(&ours, "pixels");
            assert!(shown.chars().count() < MOST_SHOWN * 4 * MOST_CHARACTERS, "{shown}");
            assert!(!shown.contains(['\n', '\u{1b}', '\u{202e}', '\u{7}']), "{shown}");
        }
    }
}
