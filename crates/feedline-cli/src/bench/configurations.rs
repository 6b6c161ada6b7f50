//! What is compared: a list of settings, a grid of them, or a preset that goes from the
//! unoptimised baseline to our defaults.

use serde_json::{Map, Value, json};

/// Settings of a loader by the names of its arguments, and `format` (what the data is packed as),
/// `loader` (of a Python data set) and `device`.
pub(crate) type Settings = Map<String, Value>;

/// More than this is no comparison any more, and would take hours.
const MOST: usize = 200;

/// The words of flags and of `--config`, and the arguments that they stand for.
const WORDS: [(&str, &str); 12] = [
    ("workers", "num_workers"),
    ("prefetch", "prefetch_factor"),
    ("batch", "batch_size"),
    ("batch_size", "batch_size"),
    ("executor", "executor"),
    ("cache", "cache"),
    ("format", "format"),
    ("pinned", "pin_memory"),
    ("loader", "loader"),
    ("device", "device"),
    ("persistent", "persistent_workers"),
    ("memory", "memory"),
];

/// What is run under one name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Candidate {
    /// A short name.
    pub(crate) name: String,
    /// What is set.
    pub(crate) settings: Settings,
    /// Left out without a word if it cannot be run: nobody requested it.
    pub(crate) optional: bool,
}

impl Candidate {
    /// Settings under the name that they make.
    #[must_use]
    pub(crate) fn of(settings: Settings) -> Candidate {
        Candidate { name: name_of(&settings), settings, optional: false }
    }

    fn named(name: &str, settings: Value) -> Candidate {
        let settings = match settings {
            Value::Object(settings) => settings,
            _ => Map::new(),
        };
        Candidate { name: name.to_owned(), settings, optional: false }
    }
}

/// What a preset is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A spec or a path, which the engine reads.
    Native,
    /// A Python data set; with torch or without.
    Dataset {
        /// Whether torch is installed.
        torch: bool,
    },
    /// torch's DataLoader as a program makes it.
    TorchLoader,
    /// Anything else that gives batches: there is nothing to set.
    Loader,
}

/// Configurations from the unoptimised baseline to our defaults.
#[must_use]
pub(crate) fn preset(subject: Subject, cores: u64) -> Vec<Candidate> {
    let named = Candidate::named;
    match subject {
        Subject::Native => {
            let mut list = vec![named("no workers", json!({"num_workers": 0}))];
            if cores > 1 {
                list.push(named(
                    "1 worker, prefetch 2",
                    json!({"num_workers": 1, "prefetch_factor": 2}),
                ));
            }
            list.push(named("defaults", json!({})));
            let cached = named("defaults, decoded cache", json!({"cache": "decoded"}));
            list.push(Candidate { optional: true, ..cached });
            list
        }
        Subject::Dataset { torch: true } => vec![
            named("torch, no workers", json!({"loader": "torch", "num_workers": 0})),
            named(&workers("torch", cores), json!({"loader": "torch", "num_workers": cores})),
            named(
                &workers("torch", cores).replace("worker", "persistent worker"),
                json!({
                    "loader": "torch",
                    "num_workers": cores,
                    "persistent_workers": true,
                    "prefetch_factor": 4,
                }),
            ),
            named(
                "feedline.torch.DataLoader",
                json!({"loader": "feedline.torch", "num_workers": cores}),
            ),
            named("feedline.Loader", json!({"loader": "feedline"})),
        ],
        Subject::Dataset { torch: false } => vec![
            named("no workers", json!({"loader": "feedline", "num_workers": 0})),
            named("1 worker", json!({"loader": "feedline", "num_workers": 1})),
            named("defaults", json!({"loader": "feedline"})),
        ],
        Subject::TorchLoader => vec![
            named("as it is", json!({})),
            named("feedline.torch.DataLoader", json!({"loader": "feedline.torch"})),
        ],
        Subject::Loader => vec![named("as it is", json!({}))],
    }
}

fn workers(loader: &str, count: u64) -> String {
    format!("{loader}, {count} worker{}", if count == 1 { "" } else { "s" })
}

/// Reads `workers=4,prefetch=2`: words of flags or names of arguments, and their values.
pub(crate) fn read_settings(text: &str) -> Result<Settings, String> {
    let mut settings = Map::new();
    for part in text.split(',') {
        let Some((word, value)) = part.split_once('=') else {
            return Err(format!("{part:?}: expected KEY=VALUE, as in workers=4,prefetch=2"));
        };
        let key = argument(word.trim())?;
        let value = read_value(key, value.trim())?;
        if settings.insert(key.to_owned(), value).is_some() {
            return Err(format!("{word} is there twice"));
        }
    }
    Ok(settings)
}

fn argument(word: &str) -> Result<&'static str, String> {
    let found = WORDS.iter().find(|(short, long)| *short == word || *long == word);
    found.map(|(_, long)| *long).ok_or_else(|| {
        let known: Vec<&str> = WORDS.iter().map(|(short, _)| *short).collect();
        format!("{word:?} cannot be set here; allowed: {}", known.join(", "))
    })
}

/// Reads the value of an argument, as a flag gives it.
pub(crate) fn read_value(argument: &str, text: &str) -> Result<Value, String> {
    let number = |least: u64, most: u64| match text.parse::<u64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number.into()),
        _ => Err(format!("{text:?}: expected a whole number from {least} to {most}")),
    };
    let one_of = |words: &[&str]| match words.contains(&text) {
        true => Ok(Value::from(text)),
        false => Err(format!("{text:?}: expected one of {}", words.join(", "))),
    };
    match argument {
        "num_workers" if text == "auto" => Ok("auto".into()),
        "num_workers" => number(0, 1024).map_err(|error| format!("{error}, or auto")),
        "prefetch_factor" => number(1, 10_000),
        "batch_size" => number(1, 1 << 32),
        "executor" => one_of(&["auto", "threads", "processes", "inline"]),
        "cache" => one_of(&["none", "encoded", "decoded"]),
        "loader" => one_of(&["torch", "feedline.torch", "feedline"]),
        "pin_memory" | "persistent_workers" => {
            one_of(&["true", "false"]).map(|value| Value::Bool(value == "true"))
        }
        _ if text.is_empty() => Err(format!("{argument} has no value")),
        _ => Ok(text.into()),
    }
}

/// Every combination of the values of these arguments, the last one changing fastest.
pub(crate) fn grid(axes: &[(&str, Vec<Value>)]) -> Result<Vec<Settings>, String> {
    let count = axes.iter().fold(1usize, |count, (_, values)| count.saturating_mul(values.len()));
    if count > MOST {
        return Err(format!("the grid has {count} configurations; at most {MOST} are compared"));
    }
    let mut all = vec![Map::new()];
    for (argument, values) in axes {
        all = all
            .iter()
            .flat_map(|settings| {
                values.iter().map(|value| {
                    let mut more: Settings = settings.clone();
                    more.insert((*argument).to_owned(), value.clone());
                    more
                })
            })
            .collect();
    }
    // Without workers there is nobody to work ahead or to be kept: such pairs are one.
    for settings in &mut all {
        if settings.get("num_workers").and_then(Value::as_u64) == Some(0) {
            settings.retain(|key, _| key != "prefetch_factor" && key != "persistent_workers");
        }
    }
    let mut distinct: Vec<Settings> = Vec::new();
    for settings in all {
        if !distinct.contains(&settings) {
            distinct.push(settings);
        }
    }
    Ok(distinct)
}

/// A short name for settings: "workers=4 prefetch=2".
#[must_use]
pub(crate) fn name_of(settings: &Settings) -> String {
    if settings.is_empty() {
        return "as it is".to_owned();
    }
    let parts = settings.iter().map(|(key, value)| {
        let short = WORDS.iter().find(|(_, long)| long == key).map_or(key.as_str(), |(s, _)| *s);
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match key.as_str() {
            "loader" | "format" => shown,
            _ => format!("{short}={shown}"),
        }
    });
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_words() {
        let read = read_settings("workers=4, prefetch=2,cache=decoded,pinned=true").unwrap();
        let expected =
            json!({"num_workers": 4, "prefetch_factor": 2, "cache": "decoded", "pin_memory": true});
        assert_eq!(Value::Object(read.clone()), expected);
        assert_eq!(name_of(&read), "workers=4 prefetch=2 cache=decoded pinned=true");
        assert_eq!(read_settings("num_workers=auto").unwrap()["num_workers"], "auto");
        assert_eq!(name_of(&read_settings("loader=torch,workers=0").unwrap()), "torch workers=0");
        for wrong in ["workers", "workers=", "workers=-1", "wrkers=1", "workers=1,workers=2", ""] {
            assert!(read_settings(wrong).is_err(), "{wrong}");
        }
        let error = read_settings("wrkers=1").unwrap_err();
        assert!(error.contains("\"wrkers\"") && error.contains("prefetch"), "{error}");
    }

    #[test]
    fn a_grid_has_every_pair_once() {
        let axes = [
            ("num_workers", vec![json!(0), json!(1), json!(2)]),
            ("prefetch_factor", vec![json!(1), json!(4)]),
        ];
        let names: Vec<String> = grid(&axes).unwrap().iter().map(name_of).collect();
        let expected = [
            "workers=0",
            "workers=1 prefetch=1",
            "workers=1 prefetch=4",
            "workers=2 prefetch=1",
            "workers=2 prefetch=4",
        ];
        assert_eq!(names, expected);
        let many = vec![json!(1); 20];
        assert!(grid(&[("a", many.clone()), ("b", many)]).unwrap_err().contains("400"));
        assert_eq!(grid(&[]).unwrap(), vec![Map::new()]);
    }

    #[test]
    fn presets_begin_at_the_baseline_and_end_at_the_defaults() {
        let native = preset(Subject::Native, 8);
        assert_eq!(native[0].settings["num_workers"], 0);
        assert_eq!((native[2].settings.len(), native[3].optional), (0, true));
        assert_eq!(preset(Subject::Native, 1).len(), 3);
        let python = preset(Subject::Dataset { torch: true }, 8);
        assert_eq!(python.len(), 5);
        assert_eq!(python[0].settings["loader"], "torch");
        assert_eq!(python[1].name, "torch, 8 workers");
        assert_eq!(python[4].settings, Map::from_iter([("loader".to_owned(), "feedline".into())]));
        assert!(preset(Subject::TorchLoader, 8)[0].settings.is_empty());
        assert_eq!(preset(Subject::Loader, 8).len(), 1);
    }
}
