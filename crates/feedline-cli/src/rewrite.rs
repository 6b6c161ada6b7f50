//! Changes some keys of a spec file and leaves the rest as its author wrote it.

use serde_json::Value;
use toml_edit::{DocumentMut, Item};

/// A key, its new value and why.
pub(crate) struct Change {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) reason: String,
}

/// What a comment of ours begins with: the next time it is replaced.
const MARK: &str = "# tuned: ";

/// TOML with the keys changed; each has its reason in a comment above it. Comments, order and layout
/// of everything else stay.
pub(crate) fn toml(text: &str, changes: &[Change]) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let table = document.as_table_mut();
    for change in changes {
        let value = match &change.value {
            Value::Number(number) => {
                let whole = number.as_i64().ok_or_else(|| format!("{number} is too large"))?;
                toml_edit::Value::from(whole)
            }
            Value::String(text) => toml_edit::Value::from(text.as_str()),
            other => return Err(format!("{other} is no number and no text")),
        };
        match table.get_mut(&change.key) {
            Some(Item::Value(old)) => {
                let decor = old.decor().clone();
                *old = value;
                *old.decor_mut() = decor;
            }
            _ => {
                table.insert(&change.key, Item::Value(value));
            }
        }
        let Some(mut key) = table.key_mut(&change.key) else { continue };
        let decor = key.leaf_decor_mut();
        let before = decor.prefix().and_then(|prefix| prefix.as_str()).unwrap_or("").to_owned();
        let mut prefix: String =
            before.split_inclusive('\n').filter(|line| !line.starts_with(MARK)).collect();
        prefix += &format!("{MARK}{}\n", change.reason.replace(['\n', '\r'], " "));
        decor.set_prefix(prefix);
    }
    Ok(document.to_string())
}

/// JSON with the keys changed.
pub(crate) fn json(text: &str, changes: &[Change]) -> Result<String, String> {
    let mut value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Some(table) = value.as_object_mut() else { return Err("is no object".to_owned()) };
    for change in changes {
        table.insert(change.key.clone(), change.value.clone());
    }
    Ok(format!("{value:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, value: impl Into<Value>, reason: &str) -> Change {
        Change { key: key.to_owned(), value: value.into(), reason: reason.to_owned() }
    }

    #[test]
    fn comments_and_layout_stay() {
        let text = "# my pipeline\nsource = 'photos'   # here\n\n# by hand\nnum_workers=7 # many\nshuffle = true\n\n[[transforms]]\nop = 'Resize'  # small\nsize = 8\n";
        let changes =
            [change("num_workers", 2, "the fewest"), change("memory", "8.8 MB", "held 7\nMB")];
        let once = toml(text, &changes).unwrap();
        assert_eq!(
            once,
            "# my pipeline\nsource = 'photos'   # here\n\n# by hand\n# tuned: the fewest\nnum_workers=2 # many\nshuffle = true\n# tuned: held 7 MB\nmemory = \"8.8 MB\"\n\n[[transforms]]\nop = 'Resize'  # small\nsize = 8\n"
        );
        // Again: the reason is replaced.
        let twice = toml(&once, &[change("num_workers", 3, "one more")]).unwrap();
        assert_eq!(twice.matches("# tuned: ").count(), 2, "{twice}");
        assert!(twice.contains("# by hand\n# tuned: one more\nnum_workers=3 # many\n"), "{twice}");
        assert!(toml("a = ", &changes).is_err());
    }

    #[test]
    fn json_gets_the_keys() {
        let changed =
            json("{\"source\": \"a\", \"num_workers\": 1}", &[change("num_workers", 2, "")]);
        let value: Value = serde_json::from_str(&changed.unwrap()).unwrap();
        assert_eq!(value, serde_json::json!({"source": "a", "num_workers": 2}));
        assert!(json("[]", &[]).is_err() && json("{", &[]).is_err());
    }
}
