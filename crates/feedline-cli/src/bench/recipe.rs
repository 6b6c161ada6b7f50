//! What to run or to write to have a configuration: a command and a line of Python, made of the
//! same job that was measured.

use std::path::Path;

use feedline::Spec;
use feedline::internals::spec::read_file;
use feedline::spec::OpSpec;
use serde_json::Value;

use super::configurations::{Settings, Subject};
use super::job::Job;
use super::packing::AS_IT_IS;
use crate::pipeline::{self, Keys};

/// What all configurations have in common.
pub(crate) struct Recipe<'a> {
    pub(crate) target: &'a str,
    pub(crate) subject: Subject,
    pub(crate) job: &'a Job,
    /// Settings that hold unless a configuration has its own.
    pub(crate) base: &'a Settings,
    /// The pipeline, if the engine reads it.
    pub(crate) spec: Option<&'a Spec>,
    /// The folder in which packed data is kept.
    pub(crate) keep: Option<&'a Path>,
}

impl Recipe<'_> {
    /// The lines for this configuration. Those that begin with `feedline ` are for a shell, the last
    /// one is for a program.
    pub(crate) fn lines(&self, settings: &Settings) -> Vec<String> {
        let mut all = self.base.clone();
        all.extend(settings.clone());
        match self.subject {
            Subject::Native => self.native(all),
            subject => python(subject, &all),
        }
    }

    fn native(&self, settings: Settings) -> Vec<String> {
        let is_spec = pipeline::is_spec_file(Path::new(self.target));
        let mut lines = Vec::new();
        let mut packed = None;
        let format = settings.get("format").and_then(Value::as_str);
        if let Some(format) = format.filter(|format| !AS_IT_IS.contains(format)) {
            packed = Some(match self.keep {
                Some(folder) => pipeline::shown(&folder.join(format)),
                None => {
                    let how = match format {
                        "crop-index" | "raw" => format!("--{format}"),
                        format => format!("--to {format}"),
                    };
                    lines.push(format!("feedline pack {} packed {how}", quoted(self.target)));
                    "packed".to_owned()
                }
            });
        }
        let file = match is_spec {
            true => read_file(Path::new(self.target)).unwrap_or_default(),
            false => Value::Null,
        };
        let job = Job { settings, ..self.job.clone() };
        let uncached = job.is_uncached() && file.get("cache").is_some();
        // A flag can set a cache, and cannot take away the one of a file.
        if !uncached {
            lines.push(self.command(&job, is_spec, packed.as_deref()));
        }
        lines.extend(self.program(&job, is_spec, packed, &file));
        lines
    }

    fn command(&self, job: &Job, is_spec: bool, packed: Option<&str>) -> String {
        let mut words = vec![match packed.filter(|_| !is_spec) {
            Some(packed) => quoted(packed),
            None => quoted(self.target),
        }];
        let mut set = |text: String| words.push(format!("--set {}", quoted(&text)));
        if let Some(packed) = packed.filter(|_| is_spec) {
            set(format!("source={}", Value::from(packed)));
        }
        for (key, value) in job.keys() {
            match (key.as_str(), &value) {
                ("shuffle" | "transforms", _) => {}
                ("cache", value) => {
                    set(format!("cache.hold={}", shown(value.get("hold").unwrap_or(value))));
                }
                (_, value) => set(format!("{key}={}", shown(value))),
            }
        }
        job.sets.iter().for_each(|text| set(text.clone()));
        if job.flags.contains_key("shuffle") {
            words.push("--shuffle".to_owned());
        }
        if job.flags.contains_key("transforms") {
            let ops = self.ops().iter().map(pipeline::show_transform);
            words.extend(ops.map(|op| format!("--transform {}", quoted(&op))));
        }
        format!("feedline run {}", words.join(" "))
    }

    fn ops(&self) -> &[OpSpec] {
        self.spec.map_or(&[], |spec| &spec.transforms)
    }

    fn program(
        &self,
        job: &Job,
        is_spec: bool,
        packed: Option<String>,
        file: &Value,
    ) -> Option<String> {
        let changes = pipeline::settings(job.keys(), &job.sets).ok()?;
        let mut keys = match is_spec {
            true => Keys::new(),
            false => job.defaults.clone(),
        };
        for (key, change) in changes {
            // A program replaces a key as a whole.
            let mut value = keys.get(&key).or_else(|| file.get(&key)).cloned().unwrap_or_default();
            pipeline::merge(&mut value, change);
            keys.insert(key, value);
        }
        if job.is_uncached() && file.get("cache").is_some() {
            keys.insert("cache".to_owned(), Value::Null);
        }
        let mut source = keys.remove("source");
        source = packed.map(Value::from).or(source);
        if let Some(Value::Object(table)) = source.as_mut().filter(|_| !is_spec) {
            table.entry("path").or_insert_with(|| self.target.into());
        }
        let for_program = ["device", "pin_memory"];
        let more = job.settings.iter().filter(|(key, _)| for_program.contains(&key.as_str()));
        keys.extend(more.map(|(key, value)| (key.clone(), value.clone())));
        let mut arguments: Vec<String> = Vec::new();
        let target = literal(&self.target.into());
        match is_spec {
            true => {
                arguments.push(target);
                arguments.extend(source.map(|source| format!("source={}", literal(&source))));
            }
            false => arguments.push(source.map_or(target, |source| literal(&source))),
        }
        for (key, value) in &keys {
            arguments.push(match key.as_str() {
                "transforms" => format!("transforms=[{}]", self.ops_of_program()),
                key => format!("{key}={}", literal(value)),
            });
        }
        let class = if is_spec { "feedline.Loader.from_spec" } else { "feedline.Loader" };
        Some(format!("{class}({})", arguments.join(", ")))
    }

    fn ops_of_program(&self) -> String {
        let op = |op: &OpSpec| {
            let parameters: Vec<String> = op
                .params
                .iter()
                .map(|(name, value)| format!("{name}={}", literal(value)))
                .collect();
            format!("feedline.transforms.{}({})", op.op, parameters.join(", "))
        };
        self.ops().iter().map(op).collect::<Vec<_>>().join(", ")
    }
}

/// A data set goes into a loader; a loader gets other arguments. Those of torch's DataLoader are the
/// program's: only what differs from them is known here.
fn python(subject: Subject, settings: &Settings) -> Vec<String> {
    let left_out = |key: &str, value: &Value| {
        ["loader", "format"].contains(&key) || (key == "cache" && value == "none")
    };
    let loader = settings.get("loader").and_then(Value::as_str);
    let mut arguments: Vec<String> = settings
        .iter()
        .filter(|(key, value)| !left_out(key, value))
        .map(|(key, value)| match key.as_str() {
            "cache" => format!("cache={{\"hold\": {}}}", literal(value)),
            // torch's own takes numbers only.
            "num_workers" if value == "auto" && loader == Some("torch") => {
                format!("num_workers={}", feedline::internals::tune::cores())
            }
            key => format!("{key}={}", literal(value)),
        })
        .collect();
    let own = subject == Subject::TorchLoader;
    if !own && loader == Some("feedline.torch") && !settings.contains_key("num_workers") {
        // It is measured with workers, and has none unless a number is given.
        arguments.push("num_workers=\"auto\"".to_owned());
    }
    let call = |class: &str| {
        let all: Vec<String> =
            std::iter::once("dataset".to_owned()).chain(arguments.clone()).collect();
        vec![format!("{class}({})", all.join(", "))]
    };
    let in_place = |module: &str| {
        let mut line = format!("from {module} import DataLoader  # with the same arguments");
        if !arguments.is_empty() {
            line += &format!(", but {}", arguments.join(", "));
        }
        vec![line]
    };
    match loader {
        Some("torch") if own => in_place("torch.utils.data"),
        Some("feedline.torch") if own => in_place("feedline.torch"),
        Some("torch") => call("torch.utils.data.DataLoader"),
        Some("feedline.torch") => call("feedline.torch.DataLoader"),
        Some(_) => call("feedline.Loader"),
        None if arguments.is_empty() => Vec::new(),
        None => vec![format!("set {}", arguments.join(", "))],
    }
}

/// A value for `--set`.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A value as Python writes it.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
        Value::Object(table) => {
            let pairs = table.iter().map(|(key, value)| {
                format!("{}: {}", literal(&key.as_str().into()), literal(value))
            });
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}

/// A word for a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:+@%,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::job::Task;
    use serde_json::json;

    fn map(value: Value) -> Settings {
        value.as_object().unwrap().clone()
    }

    fn job(flags: Value, sets: &[&str]) -> Job {
        Job {
            task: Task::Look,
            python: false,
            defaults: pipeline::bare_defaults(),
            flags: map(flags),
            sets: sets.iter().map(|set| (*set).to_owned()).collect(),
            settings: Settings::new(),
            step: None,
            samples: None,
            spans: None,
        }
    }

    fn lines(target: &str, job: &Job, base: Value, settings: Value) -> Vec<String> {
        let spec = crate::bench::child::describe(Path::new(target), job).unwrap();
        let base = map(base);
        let subject = Subject::Native;
        let recipe = Recipe { target, subject, job, base: &base, spec: Some(&spec), keep: None };
        recipe.lines(&map(settings))
    }

    const CROP: &str = "transforms=[feedline.transforms.RandomResizedCrop(size=224)]";

    #[test]
    fn what_was_measured_is_what_is_recommended() {
        let plain = job(json!({}), &[]);
        let given =
            lines("my photos", &plain, json!({}), json!({"num_workers": 2, "cache": "decoded"}));
        assert_eq!(
            given,
            [
                "feedline run 'my photos' --set num_workers=2 --set cache.hold=decoded".to_owned(),
                format!(
                    "feedline.Loader(\"my photos\", batch_size=64, {CROP}, num_workers=2, cache={{\"hold\": \"decoded\"}})"
                ),
            ]
        );
        // The default crop is part of it.
        let given = lines("it's", &plain, json!({"batch_size": 8}), json!({"cache": "none"}));
        assert_eq!(given[0], "feedline run 'it'\\''s' --set batch_size=8");
        assert_eq!(given[1], format!("feedline.Loader(\"it's\", batch_size=8, {CROP})"));

        let ops = json!([{"op": "Resize", "size": [32, 32], "antialias": true}]);
        let flags = json!({"shuffle": true, "transforms": ops});
        let much = job(flags, &["decode.mode=gray", "subset=\":16\""]);
        let given = lines("photos", &much, json!({"batch_size": 16}), json!({"num_workers": 1}));
        assert_eq!(
            given[0],
            "feedline run photos --set batch_size=16 --set num_workers=1 --set decode.mode=gray --set 'subset=\":16\"' --shuffle --transform 'Resize(size=[32,32], antialias=true)'"
        );
        assert_eq!(
            given[1],
            "feedline.Loader(\"photos\", batch_size=16, transforms=[feedline.transforms.Resize(size=[32, 32], antialias=True)], shuffle=True, num_workers=1, decode={\"mode\": \"gray\"}, subset=\":16\")"
        );
    }

    #[test]
    fn packed_data_is_read_where_it_is() {
        let plain = job(json!({}), &[]);
        let given = lines("photos", &plain, json!({}), json!({"format": "tar"}));
        assert_eq!(given[..2], ["feedline pack photos packed --to tar", "feedline run packed"]);
        assert_eq!(given[2], format!("feedline.Loader(\"packed\", batch_size=64, {CROP})"));
        let kept = Path::new("kept");
        let base = Settings::new();
        let (target, subject, job) = ("photos", Subject::Native, &plain);
        let recipe = Recipe { target, subject, job, base: &base, spec: None, keep: Some(kept) };
        let given = recipe.lines(&map(json!({"format": "crop-index"})));
        assert_eq!(given[0], "feedline run kept/crop-index");
        let given = recipe.lines(&map(json!({"format": "folder"})));
        assert_eq!(given[0], "feedline run photos");
    }

    #[test]
    fn a_spec_stays_the_spec() {
        let folder = std::env::temp_dir().join(format!("feedline-recipe-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("my spec.toml");
        let text = "source = \"photos\"\ndecode = {exif_orientation = false}\n[cache]\nhold = \"encoded\"\n[[transforms]]\nop = \"CenterCrop\"\nsize = 16\n";
        std::fs::write(&file, text).unwrap();
        let name = file.to_str().unwrap();
        let quiet = job(json!({}), &[]);
        let given = lines(name, &quiet, json!({}), json!({"num_workers": 0}));
        assert_eq!(given[0], format!("feedline run '{name}' --set num_workers=0"));
        assert_eq!(given[1], format!("feedline.Loader.from_spec(\"{name}\", num_workers=0)"));
        let given = lines(name, &quiet, json!({}), json!({"format": "tar", "cache": "none"}));
        assert_eq!(given.len(), 2, "no flag takes the cache away: {given:?}");
        assert_eq!(
            given[1],
            format!("feedline.Loader.from_spec(\"{name}\", source=\"packed\", cache=None)")
        );
        let gray = job(json!({}), &["decode.mode=gray"]);
        let given = lines(name, &gray, json!({}), json!({"format": "raw"}));
        assert_eq!(
            given[1..],
            [
                format!("feedline run '{name}' --set 'source=\"packed\"' --set decode.mode=gray"),
                format!(
                    "feedline.Loader.from_spec(\"{name}\", source=\"packed\", decode={{\"exif_orientation\": False, \"mode\": \"gray\"}})"
                ),
            ]
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn arguments_of_python_loaders() {
        let base = map(json!({"batch_size": 32}));
        let python = Job { python: true, ..job(json!({}), &[]) };
        let subject = Subject::Dataset { torch: true };
        let recipe =
            Recipe { target: "m:d", subject, job: &python, base: &base, spec: None, keep: None };
        let torch = map(json!({"loader": "torch", "num_workers": 2, "persistent_workers": true}));
        assert_eq!(
            recipe.lines(&torch),
            [
                "torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=2, persistent_workers=True)"
            ]
        );
        let ours = map(json!({"loader": "feedline.torch"}));
        assert_eq!(
            recipe.lines(&ours),
            ["feedline.torch.DataLoader(dataset, batch_size=32, num_workers=\"auto\")"]
        );
        let auto = recipe.lines(&map(json!({"loader": "torch", "num_workers": "auto"})));
        assert!(!auto[0].contains("auto") && auto[0].contains("num_workers="), "{auto:?}");
        assert_eq!(recipe.lines(&Settings::new()), ["set batch_size=32"]);
        let none = Settings::new();
        assert!(Recipe { base: &none, ..recipe }.lines(&none).is_empty());
    }

    #[test]
    fn a_programs_own_loader_keeps_its_arguments() {
        let (base, python) = (Settings::new(), Job { python: true, ..job(json!({}), &[]) });
        let (target, subject, job) = ("m:loader", Subject::TorchLoader, &python);
        let recipe = Recipe { target, subject, job, base: &base, spec: None, keep: None };
        let lines = |settings: Value| recipe.lines(&map(settings));
        assert_eq!(
            lines(json!({"loader": "feedline.torch"})),
            ["from feedline.torch import DataLoader  # with the same arguments"]
        );
        assert_eq!(
            lines(json!({"loader": "feedline.torch", "num_workers": 2, "executor": "threads"})),
            [
                "from feedline.torch import DataLoader  # with the same arguments, but num_workers=2, executor=\"threads\""
            ]
        );
        assert!(lines(json!({"loader": "torch"}))[0].starts_with("from torch.utils.data import "));
        assert_eq!(lines(json!({"num_workers": 2})), ["set num_workers=2"]);
        assert!(lines(json!({})).is_empty(), "as it is");
    }
}
