//! Reads plain data (TOML, JSON, Python dicts) key by key, so that every mistake can be named.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::SpecError;

/// One table of a spec, of which keys are taken until none is left.
pub(crate) struct Table {
    path: String,
    entries: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Table {
    /// A table that stands at `path` in the spec (empty for the top).
    pub(crate) fn new(path: impl Into<String>, value: Value) -> Result<Self, SpecError> {
        let path = path.into();
        match value {
            Value::Object(entries) => Ok(Table { path, entries, known: Vec::new() }),
            other => {
                Err(SpecError::new(path, "must be a table").value(other).allowed("a table of keys"))
            }
        }
    }

    /// The full name of a key of this table.
    #[must_use]
    pub(crate) fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// An error about a key of this table.
    #[must_use]
    pub(crate) fn error(&self, name: &str, problem: impl Into<String>) -> SpecError {
        SpecError::new(self.key(name), problem)
    }

    /// An error about a key that must be there: it may be there under a misspelt name.
    #[must_use]
    pub(crate) fn missing(&self, name: &'static str, allowed: &str) -> SpecError {
        let left = self.entries.keys().find(|key| nearest(key, &[name]).is_some());
        match left {
            Some(key) => {
                let mut error = self.error(key, "unknown key").value(&self.entries[key]);
                error.nearest = Some(name.to_owned());
                error
            }
            None => self.error(name, "is missing").allowed(allowed),
        }
    }

    /// Whether a key is there and null, which stands for "not given" elsewhere.
    #[must_use]
    pub(crate) fn is_null(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(Value::is_null)
    }

    /// The value of a key, unless absent or null.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.entries.shift_remove(name).filter(|value| !value.is_null())
    }

    /// A value of any kind that `parse` accepts; `allowed` says what that is.
    fn parse<T>(
        &mut self,
        name: &'static str,
        allowed: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match parse(&value) {
                Some(parsed) => Ok(Some(parsed)),
                None => Err(self.error(name, "is not allowed").value(&value).allowed(allowed)),
            },
        }
    }

    /// True or false.
    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, SpecError> {
        self.parse(name, "true or false", Value::as_bool)
    }

    /// Text.
    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<String>, SpecError> {
        self.parse(name, "a string", |v| v.as_str().map(str::to_owned))
    }

    /// Texts; a single one counts as a list of one.
    pub(crate) fn texts(&mut self, name: &'static str) -> Result<Option<Vec<String>>, SpecError> {
        self.parse(name, "a string or a list of strings", |v| match v {
            Value::Array(items) => items.iter().map(|x| x.as_str().map(str::to_owned)).collect(),
            single => single.as_str().map(|x| vec![x.to_owned()]),
        })
    }

    /// A whole number of at least `low`.
    pub(crate) fn whole(&mut self, name: &'static str, low: u64) -> Result<Option<u64>, SpecError> {
        self.parse(name, &format!("a whole number, at least {low}"), |v| {
            v.as_u64().filter(|n| *n >= low)
        })
    }

    /// A finite number in `low..=high`.
    pub(crate) fn number(
        &mut self,
        name: &'static str,
        low: f64,
        high: f64,
    ) -> Result<Option<f64>, SpecError> {
        let allowed = match (low.is_finite(), high.is_finite()) {
            (true, true) => format!("a number from {low} to {high}"),
            (true, false) => format!("a number, at least {low}"),
            _ => "a number".to_owned(),
        };
        self.parse(name, &allowed, |v| {
            v.as_f64().filter(|x| x.is_finite() && *x >= low && *x <= high)
        })
    }

    /// Finite numbers; a single number counts as a list of one.
    pub(crate) fn numbers(&mut self, name: &'static str) -> Result<Option<Vec<f64>>, SpecError> {
        self.parse(name, "a number or a list of numbers", |v| match v {
            Value::Array(items) => {
                items.iter().map(|x| x.as_f64().filter(|x| x.is_finite())).collect()
            }
            single => single.as_f64().map(|x| vec![x]),
        })
    }

    /// Whole numbers; a single number counts as a list of one.
    pub(crate) fn wholes(&mut self, name: &'static str) -> Result<Option<Vec<u64>>, SpecError> {
        self.parse(name, "a whole number or a list of whole numbers", |v| match v {
            Value::Array(items) => items.iter().map(Value::as_u64).collect(),
            single => single.as_u64().map(|x| vec![x]),
        })
    }

    /// One of a few names.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&'static str, T)],
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        match value.as_str().and_then(|given| choices.iter().find(|(name, _)| *name == given)) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let mut error =
                    self.error(name, "is not allowed").value(&value).allowed(quoted(&names));
                error.nearest = value
                    .as_str()
                    .and_then(|given| nearest(given, &names))
                    .map(|n| format!("\"{n}\""));
                Err(error)
            }
        }
    }

    /// A size in bytes: a number, or text such as "2GB" or "512MiB".
    pub(crate) fn bytes(&mut self, name: &'static str) -> Result<Option<u64>, SpecError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let parsed = match &value {
            Value::String(text) => parse_bytes(text),
            other => other.as_u64(),
        };
        parsed.map(Some).ok_or_else(|| {
            self.error(name, "is not a size")
                .value(&value)
                .allowed("bytes as a number, or text such as \"512MB\" or \"2GiB\"")
        })
    }

    /// Ends the reading: a key that nobody took is unknown.
    pub(crate) fn finish(self) -> Result<(), SpecError> {
        match self.entries.iter().next() {
            None => Ok(()),
            Some((name, value)) => {
                let mut error = SpecError::new(self.key(name), "unknown key").value(value);
                error.nearest = nearest(name, &self.known).map(str::to_owned);
                Err(error.allowed(self.known.join(", ")))
            }
        }
    }
}

/// The name in `known` that `given` was probably meant to be.
#[must_use]
pub(crate) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |s: &str| s.to_lowercase().replace(['_', '-', ' '], "");
    let given = plain(given);
    known
        .iter()
        .map(|name| (likeness(&given, &plain(name)), *name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.75)
        .map(|(_, name)| name)
}

/// Jaro-Winkler finds shared beginnings, the other swapped letters in short names.
fn likeness(a: &str, b: &str) -> f64 {
    strsim::jaro_winkler(a, b).max(strsim::normalized_damerau_levenshtein(a, b) + 0.1)
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// Reads `20ms`, `0.5s`, `2min` or a number of seconds; a day at most.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let unit = match text[split..].trim() {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "min" => 60.0,
        other => return Err(format!("unknown unit {other:?}; allowed: us, ms, s, min")),
    };
    text[..split]
        .parse::<f64>()
        .ok()
        // A day: longer is a slip.
        .filter(|number| number * unit <= 86_400.0)
        .map(|number| Duration::from_secs_f64(number * unit))
        .ok_or_else(|| "expected a duration such as 20ms, 0.5s or 2 (seconds)".to_owned())
}

/// "2GB", "1.5 GiB", "300kB", "17": decimal and binary units, case ignored.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..split].parse().ok()?;
    let unit = match text[split..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number * unit;
    // 2^53: beyond it a float no longer counts single bytes, and no machine has that much.
    (bytes.is_finite() && bytes <= 9_007_199_254_740_992.0).then_some(bytes as u64)
}

/// A size for people: "1.5 GB".
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 999.95 {
            let digits = usize::from(unit != "B" && value < 99.95);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// A count for people: "12,345".
#[must_use]
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts() {
        let shown = [0, 999, 1000, 12_345, 100_000, 1_234_567].map(show_count);
        assert_eq!(shown, ["0", "999", "1,000", "12,345", "100,000", "1,234,567"]);
        assert_eq!(show_count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("2GB"), Some(2_000_000_000));
        assert_eq!(parse_bytes("1.5 gib"), Some(1_610_612_736));
        assert_eq!(parse_bytes("17"), Some(17));
        for wrong in ["", "GB", "-1", "1XB", "1e400", "99999999TB", "1.2.3MB"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
        assert_eq!(show_bytes(999), "999 B");
        assert_eq!(show_bytes(1_500_000), "1.5 MB");
        assert_eq!(show_bytes(256_000_000), "256 MB");
    }

    #[test]
    fn unknown_key_names_the_nearest() {
        let mut table = Table::new("", json!({"batchsize": 3})).unwrap();
        assert_eq!(table.whole("batch_size", 1).unwrap(), None);
        let error = table.finish().unwrap_err();
        assert_eq!(
            error.to_string(),
            "batchsize = 3: unknown key; allowed: batch_size; did you mean batch_size?"
        );
    }

    #[test]
    fn a_wrong_choice_lists_the_right_ones() {
        let mut table = Table::new("run", json!({"layout": "cwh"})).unwrap();
        let error = table.choice("layout", &[("chw", 0), ("hwc", 1)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"run.layout = "cwh": is not allowed; allowed: "chw", "hwc"; did you mean "chw"?"#
        );
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(parse_duration("0.5 s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        for wrong in ["", "ms", "-1s", "1h", "1e99", "99999min"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
