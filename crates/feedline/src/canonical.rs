//! Hashes of settings that stay the same from one version of feedline to the next.
//!
//! A saved state is compared with such hashes years later. So they are made of bytes that only this
//! file decides: no name of a Rust type, field or variant goes in, and no `Debug` text. Each value
//! has a tag, whole numbers have eight bytes, floats go in by their bits, and lists, tables and
//! texts have their length before them, so that no two values have the same bytes. A change here
//! refuses every saved state: it needs a raise of `VERSION` in `order/state.rs`.

use serde_json::Value;
use xxhash_rust::xxh3::Xxh3Default;

/// Takes values one after the other.
pub(crate) struct CanonicalHash(Xxh3Default);

impl CanonicalHash {
    /// `what` is hashed: hashes of different things never agree by chance.
    pub(crate) fn new(what: &str) -> Self {
        let mut hash = CanonicalHash(Xxh3Default::new());
        hash.text(what);
        hash
    }

    fn tagged(&mut self, tag: u8, bits: u64) {
        self.0.update(&[tag]);
        self.0.update(&bits.to_le_bytes());
    }

    /// A whole number.
    pub(crate) fn whole(&mut self, number: u64) {
        self.tagged(b'u', number);
    }

    /// A float. A whole one has the bytes of the whole number, as both mean the same in a setting;
    /// minus zero is itself.
    pub(crate) fn float(&mut self, number: f64) {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if number.fract() != 0.0 || number.abs() > EXACT || number.to_bits() == (-0.0f64).to_bits()
        {
            self.tagged(b'f', number.to_bits());
        } else if number < 0.0 {
            self.tagged(b'i', number as i64 as u64);
        } else {
            self.whole(number as u64);
        }
    }

    /// A text.
    pub(crate) fn text(&mut self, text: &str) {
        self.tagged(b's', text.len() as u64);
        self.0.update(text.as_bytes());
    }

    /// The beginning of a list; its items follow.
    pub(crate) fn list(&mut self, items: usize) {
        self.tagged(b'l', items as u64);
    }

    /// Plain data. A table's keys go in by name, whatever order they were written in.
    pub(crate) fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.tagged(b'n', 0),
            Value::Bool(yes) => self.tagged(b'b', u64::from(*yes)),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(whole), _) => self.whole(whole),
                (None, Some(negative)) => self.tagged(b'i', negative as u64),
                (None, None) => self.float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                self.list(items.len());
                items.iter().for_each(|item| self.value(item));
            }
            Value::Object(entries) => {
                let mut sorted: Vec<_> = entries.iter().collect();
                sorted.sort_by_key(|(name, _)| *name);
                self.tagged(b't', sorted.len() as u64);
                for (name, value) in sorted {
                    self.text(name);
                    self.value(value);
                }
            }
        }
    }

    /// The hash as 16 digits.
    pub(crate) fn finish(&self) -> String {
        format!("{:016x}", self.0.digest())
    }
}

/// The hash of one value.
pub(crate) fn hash(what: &str, value: &Value) -> String {
    let mut hash = CanonicalHash::new(what);
    hash.value(value);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_hash_is_the_one_that_was_written_down() {
        let value = json!({
            "op": "Resize", "size": [224], "p": 0.5, "bias": -3, "on": true, "fill": null
        });
        assert_eq!(hash("pixels", &value), "31833b3c347531fb");
    }

    #[test]
    fn what_means_the_same_has_the_same_hash() {
        let same = |a: &Value, b: &Value| hash("x", a) == hash("x", b);
        assert!(same(&json!({"a": 1, "b": 2}), &json!({"b": 2, "a": 1})));
        assert!(same(&json!([1, -2, 0]), &json!([1.0, -2.0, 0.0])));
    }

    #[test]
    fn what_differs_has_another_hash() {
        let values = [
            json!(null),
            json!(false),
            json!(true),
            json!(0),
            json!(-0.0),
            json!(1),
            json!(-1),
            json!(0.5),
            json!(f64::from_bits(0.5f64.to_bits() + 1)),
            json!(u64::MAX),
            json!(1e300),
            json!(""),
            json!("1"),
            json!([]),
            json!([1]),
            json!([[], 1]),
            json!([[1]]),
            json!(["a", "b"]),
            json!(["ab"]),
            json!(["ab", ""]),
            json!({}),
            json!({"a": "b"}),
            json!({"ab": ""}),
            json!({"a": {"b": null}}),
            json!({"a": {}, "b": null}),
        ];
        for (at, one) in values.iter().enumerate() {
            assert_ne!(hash("x", one), hash("y", one));
            for other in &values[..at] {
                assert_ne!(hash("x", one), hash("x", other), "{one} {other}");
            }
        }
    }
}
