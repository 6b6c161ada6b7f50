//! A spec back to plain data: only what differs from the defaults.

use serde_json::{Map, Value, json};

use super::{
    LAST_BATCH, LAYOUTS, OnError, OpSpec, OpenBlocks, SourceSpec, Spec, Subset, Weights, Workers,
};

fn name_of<T: PartialEq>(names: &[(&'static str, T)], wanted: &T) -> &'static str {
    names.iter().find(|(_, value)| value == wanted).map_or("", |(name, _)| name)
}

impl Spec {
    /// As plain data, which [`Spec::from_value`] reads back to an equal spec.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let default = Spec::default();
        let mut table = Map::new();
        let mut put = |name: &str, differs: bool, value: Value| {
            if differs {
                table.insert(name.to_owned(), value);
            }
        };
        let sources: Vec<Value> = self.sources.iter().map(SourceSpec::to_value).collect();
        match <[Value; 1]>::try_from(sources) {
            Ok([single]) => put("source", true, single),
            Err(several) => put("source", !several.is_empty(), several.into()),
        }
        let decode = json!({
            "mode": match &self.decode {
                decode if decode.bytes => "bytes",
                decode if decode.gray => "gray",
                _ => "rgb",
            },
            "exif_orientation": self.decode.exif_orientation,
            "max_pixels": self.decode.max_pixels,
            "allow_truncated": self.decode.allow_truncated,
            "allow_damaged": self.decode.allow_damaged,
            "exact": self.decode.exact,
        });
        put("batch_size", self.batch_size != default.batch_size, self.batch_size.into());
        put("shuffle", self.shuffle, true.into());
        let open_blocks: Value = match self.open_blocks {
            OpenBlocks::Count(count) => count.into(),
            OpenBlocks::All | OpenBlocks::Auto => "all".into(),
        };
        put("open_blocks", self.open_blocks != OpenBlocks::Auto, open_blocks);
        put("seed", self.seed != 0, self.seed.into());
        put("replacement", self.replacement, true.into());
        put("num_samples", self.num_samples.is_some(), self.num_samples.into());
        put(
            "last_batch",
            self.last_batch != default.last_batch,
            name_of(&LAST_BATCH, &self.last_batch).into(),
        );
        put("rank", self.rank.is_some(), self.rank.into());
        put("world_size", self.world_size.is_some(), self.world_size.into());
        put("layout", self.layout != default.layout, name_of(&LAYOUTS, &self.layout).into());
        if let Workers::Count(count) = self.num_workers {
            put("num_workers", true, count.into());
        }
        put("prefetch_factor", self.prefetch_factor.is_some(), self.prefetch_factor.into());
        put("memory", self.memory.is_some(), self.memory.into());
        put("on_error", self.on_error == OnError::Skip, "skip".into());
        put("max_failures", self.max_failures.is_some(), self.max_failures.into());
        if let Some(path) = &self.quarantine {
            put("quarantine", true, path.to_string_lossy().into_owned().into());
        }
        put("in_order", !self.in_order, false.into());
        match &self.weights {
            Some(Weights::Balanced) => put("weights", true, "balanced".into()),
            Some(Weights::Each(weights)) => put("weights", true, weights.clone().into()),
            None => {}
        }
        match &self.subset {
            Some(Subset::Indices(indices)) => put("subset", true, indices.clone().into()),
            Some(Subset::Slice(start, stop, step)) => {
                let text = |bound: &Option<i64>| bound.map_or(String::new(), |n| n.to_string());
                put("subset", true, format!("{}:{}:{step}", text(start), text(stop)).into());
            }
            None => {}
        }
        if let Some(cache) = &self.cache {
            let hold = if cache.decoded { "decoded" } else { "encoded" };
            put(
                "cache",
                true,
                json!({"hold": hold, "limit": cache.limit, "required": cache.required}),
            );
        }
        put("decode", self.decode != default.decode, decode);
        let ops: Vec<Value> = self.transforms.iter().map(OpSpec::to_value).collect();
        put("transforms", !ops.is_empty(), ops.into());
        Value::Object(table)
    }

    /// As TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Nulls have no TOML form; a table without them always has one.
        toml::to_string(&without_nulls(self.to_value())).unwrap_or_default()
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(entries) => Value::Object(
            entries
                .into_iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k, without_nulls(v)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_survives_json_and_toml() {
        let text = r#"
            source = [{path = "a", weight = 2.0}, {kind = "manifest", path = "b.csv", label_columns = ["y"], weight = 1.0}]
            batch_size = 3
            shuffle = true
            seed = 9
            num_samples = 11
            last_batch = "wrap"
            rank = 1
            world_size = 4
            layout = "channels_last"
            num_workers = 0
            prefetch_factor = 3
            memory = "1GB"
            on_error = "skip"
            max_failures = 5
            quarantine = "bad.jsonl"
            in_order = false
            cache = {hold = "decoded", limit = "2MB", required = false}
            decode = {mode = "gray", max_pixels = 100}
            transforms = ["ToDtype", {op = "Resize", size = [3, 4]}]
        "#;
        let spec = Spec::from_toml(text).unwrap();
        assert_eq!(Spec::from_value(spec.to_value()).unwrap(), spec);
        assert_eq!(Spec::from_toml(&spec.to_toml()).unwrap(), spec);
        let spec = Spec::from_toml(
            "source = 'a'\nweights = [1.0, 2.5]\nsubset = '-5::2'\nreplacement = true",
        )
        .unwrap();
        assert_eq!(Spec::from_toml(&spec.to_toml()).unwrap(), spec);
    }

    #[test]
    fn contradictions_are_named() {
        for (text, message) in [
            ("batch_size = 3", "source: is missing"),
            ("source = 'a'\nbatch_size = 0", "batch_size = 0: is not allowed"),
            (
                "source = 'a'\nrank = 2\nworld_size = 2",
                "rank = 2: is not below world_size; allowed: 0 to 1",
            ),
            ("source = [{path='a', weight=1}, 'b']", "some sources have a weight"),
            ("source = [{path='a', weight=1}, {path='b', weight=0}]", "source[1].weight = 0"),
            ("source = 'a'\nquarantine = 'q'", "unless on_error"),
            ("source = 'a'\ndrop_last = true\nlast_batch = 'wrap'", "contradicts last_batch"),
            ("source = 'a'\nweights = [0, 0]", "not all 0"),
            ("source = 'a'\nsubset = '3'", "a slice such as"),
            (
                "source = 'a'\nnum_workers = -1",
                "num_workers = -1: is not allowed; allowed: \"auto\"",
            ),
            ("source = 'a'\ncache = 'disk'", "cache = \"disk\""),
            ("source = {kind = 'image-folder', path = 'a'}", "did you mean \"image_folder\"?"),
            ("source = 'a'\ntransforms = [{size = 3}]", "transforms[0]: has no op"),
            ("source = ", "not valid TOML"),
        ] {
            let error = Spec::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
