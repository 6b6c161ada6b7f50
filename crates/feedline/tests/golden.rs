//! States and batches that earlier builds wrote: both stay as they are while `VERSION` does.
//!
//! `golden/pins.json` holds, for each pipeline below, the state after two batches and the hashes of
//! the batches of two epochs. Only committed files go in, so nothing but feedline changes them.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Folder, arrays};
use feedline::internals::order::VERSION;
use feedline::{Loader, Spec, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Each with `$DATA` in place of the folder of the data. Together they have every op, layout and
/// type of elements, every kind of order, and sources that lie in files, shards, blocks and memory.
const PIPELINES: &[(&str, &str)] = &[
    (
        "train",
        r#"{"source": "$DATA/photos", "batch_size": 4, "shuffle": true, "seed": 7, "transforms": [
            {"op": "RandomResizedCrop", "size": 16}, {"op": "RandomHorizontalFlip"},
            {"op": "ToDtype", "dtype": "float32", "scale": true},
            {"op": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]}"#,
    ),
    (
        "eval",
        r#"{"source": "$DATA/photos", "batch_size": 4, "last_batch": "short", "layout": "HWC",
            "transforms": [{"op": "Resize", "size": 20, "interpolation": "bicubic"},
            {"op": "CenterCrop", "size": [16, 12]}, {"op": "ToDtype", "dtype": "float16"}]}"#,
    ),
    (
        "manifest",
        r#"{"source": "$DATA/photos/list.csv", "batch_size": 3, "weights": "balanced", "seed": 3,
            "decode": {"mode": "gray", "exact": true, "max_pixels": 100000}, "layout": "channels_last",
            "transforms": [{"op": "RandomCrop", "size": 12, "padding": 2, "pad_if_needed": true},
            {"op": "RandomVerticalFlip", "p": 0.3}]}"#,
    ),
    (
        "mix of sources",
        r#"{"source": [{"path": "$DATA/photos", "weight": 3}, {"path": "$DATA/more", "weight": 1.5}],
            "batch_size": 4, "num_samples": 18, "shuffle": true, "last_batch": "drop",
            "transforms": [{"op": "Resize", "size": [9, 11], "interpolation": "nearest"}]}"#,
    ),
    (
        "joined sources",
        r#"{"source": ["$DATA/photos", "$DATA/more"], "batch_size": 5, "subset": "3:-1:2",
            "last_batch": "wrap", "transforms": [{"op": "Resize", "size": [8, 8], "antialias": false}]}"#,
    ),
    (
        "arrays",
        r#"{"source": {"kind": "arrays"}, "batch_size": 4, "replacement": true, "num_samples": 14,
            "seed": 18446744073709551615,
            "transforms": [{"op": "RandomCrop", "size": 6}, {"op": "ToDtype", "dtype": "bfloat16", "scale": true}]}"#,
    ),
    (
        "plain arrays, weighted",
        r#"{"source": {"kind": "arrays"}, "batch_size": 4, "num_samples": 9, "last_batch": "pad",
            "weights": [1, 0.5, 0.25, 0, 3, 1e-3, 1, 1, 1, 1, 1, 0.1]}"#,
    ),
    (
        "arrays, chosen",
        r#"{"source": {"kind": "arrays"}, "batch_size": 3, "shuffle": true, "subset": [5, 2, 2, 9, 11, 0, 7]}"#,
    ),
    (
        "table with fields",
        r#"{"source": {"path": "$DATA/table.jsonl", "fields": ["id", "text", "tokens"]}, "batch_size": 2,
            "shuffle": true}"#,
    ),
    (
        "columns",
        r#"{"source": "$DATA/plain.parquet", "batch_size": 2, "shuffle": true,
            "transforms": [{"op": "Pad", "padding": [1, 2], "fill": 7, "padding_mode": "constant"}]}"#,
    ),
    (
        "shard",
        r#"{"source": "$DATA/plain.tar", "batch_size": 2, "shuffle": true, "decode": {"mode": "bytes"}}"#,
    ),
    (
        "blocks",
        r#"{"source": "$DATA/packed.parquet", "batch_size": 2, "shuffle": true, "memory": "300MB",
            "open_blocks": 1}"#,
    ),
    (
        "mixup",
        r#"{"source": "$DATA/photos", "batch_size": 4, "shuffle": true, "transforms": [
            {"op": "Resize", "size": [8, 8]}, {"op": "ToDtype", "dtype": "float32", "scale": true},
            {"op": "MixUp", "alpha": 0.4}]}"#,
    ),
    (
        "cutmix or mixup, second of two ranks",
        r#"{"source": "$DATA/photos", "batch_size": 2, "shuffle": true, "rank": 1, "world_size": 2,
            "transforms": [{"op": "RandomResizedCrop", "size": 8, "scale": [0.3, 1.0], "ratio": [0.9, 1.1]},
            {"op": "ToDtype", "dtype": "float32", "scale": true},
            {"op": "RandomChoice", "p": [0.25, 0.75], "transforms": [
                {"op": "MixUp", "num_classes": 10}, {"op": "CutMix", "num_classes": 10, "alpha": 0.7}]}]}"#,
    ),
    (
        "uneven last batch on three ranks",
        r#"{"source": "$DATA/photos", "batch_size": 2, "rank": 2, "world_size": 3,
            "transforms": [{"op": "CenterCrop", "size": 8}]}"#,
    ),
    (
        "bad samples",
        r#"{"source": "$DATA/spoilt", "batch_size": 3, "shuffle": true, "on_error": "skip",
            "decode": {"allow_truncated": true, "exif_orientation": true},
            "transforms": [{"op": "Resize", "size": 12, "max_size": 20}, {"op": "CenterCrop", "size": 12}]}"#,
    ),
    (
        "colours and shapes",
        r#"{"source": "$DATA/photos", "batch_size": 4, "seed": 11, "transforms": [
            {"op": "ColorJitter", "brightness": 0.4, "contrast": 0.3, "saturation": [0.5, 1.5], "hue": 0.1},
            {"op": "RandomGrayscale", "p": 0.2}, {"op": "GaussianBlur", "kernel_size": 3, "sigma": [0.2, 1.0]},
            {"op": "RandomRotation", "degrees": 20, "interpolation": "bilinear", "fill": [1, 2, 3]},
            {"op": "RandomAffine", "degrees": 5, "translate": [0.1, 0.2], "scale": [0.8, 1.2], "shear": 4},
            {"op": "Resize", "size": [12, 12]}, {"op": "ToDtype", "dtype": "float32", "scale": true},
            {"op": "RandomErasing", "p": 0.8, "value": 0.5}]}"#,
    ),
    (
        "policies",
        r#"{"source": "$DATA/photos", "batch_size": 4, "seed": 12, "transforms": [
            {"op": "RandAugment", "num_ops": 3, "magnitude": 7}, {"op": "TrivialAugmentWide"},
            {"op": "Grayscale", "num_output_channels": 3}, {"op": "RandomCrop", "size": 10}]}"#,
    ),
];

const WHAT_TO_DO: &str = "\
Saved states would be refused, or go on with other batches. Either this was not meant: undo it. Or it \
was: raise VERSION in crates/feedline/src/order/state.rs, add `States have version <number>: <what \
changed and why>` to CHANGELOG.md (and an entry to docs/correctness.md if batches were wrong), and pin \
anew with `FEEDLINE_PIN=1 cargo test --release --workspace --test golden`.";

#[derive(Serialize, Deserialize)]
struct Pins {
    version: u64,
    pipelines: BTreeMap<String, Pin>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Pin {
    state: Value,
    batches: Vec<String>,
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Copies of the committed files: class folders, a manifest, shards and tables.
fn data() -> Folder {
    let folder = Folder::new("golden");
    let fixture = |name: &str| fs::read(here("fixtures").join(name)).unwrap();
    let images = ["baseline.jpg", "progressive.jpg", "gray.jpg", "colors.png", "lossless.webp"];
    let mut lines = "path,label\n".to_owned();
    for number in 0..11 {
        let name = images[number % images.len()];
        let (class, ending) = (["ant", "bee", "cat"][number % 3], name.split('.').nth(1).unwrap());
        let path = format!("{class}/{number:02}.{ending}");
        folder.write(&format!("photos/{path}"), &fixture(name));
        if number < 6 {
            folder.write(&format!("more/{path}"), &fixture(name));
        }
        let bytes = fixture(name);
        let kept = if number % 4 == 2 { &bytes[..bytes.len() / 20] } else { &bytes };
        folder.write(&format!("spoilt/{path}"), kept);
        lines += &format!("{path},{}\n", number * number % 5);
    }
    folder.write("photos/list.csv", lines.as_bytes());
    for name in ["table.jsonl", "plain.parquet", "plain.tar", "packed.parquet"] {
        folder.write(name, &fixture(name));
    }
    folder
}

fn loader(data: &Folder, text: &str) -> Loader {
    let text = text.replace("$DATA", data.path().to_str().unwrap());
    let mut spec = Spec::from_json(&text).unwrap();
    spec.num_workers = feedline::spec::Workers::Count(2);
    spec.rank = spec.rank.or(Some(0));
    spec.world_size = spec.world_size.or(Some(1));
    if text.contains(r#""kind": "arrays""#) {
        return Loader::from_spec_over(spec, vec![arrays(12)]).unwrap();
    }
    Loader::from_spec(spec).unwrap()
}

fn hashes(loader: &mut Loader, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        for batch in loader.epoch() {
            found.push(format!("{:016x}", batch.unwrap().hash()));
            if found.len() == count {
                break;
            }
        }
    }
    found
}

fn pin(data: &Folder, text: &str) -> Pin {
    let mut begun = loader(data, text);
    hashes(&mut begun, 2);
    let state = serde_json::to_value(begun.state()).unwrap();
    let mut whole = loader(data, text);
    let count = 2 * usize::try_from(whole.len()).unwrap();
    Pin { state, batches: hashes(&mut whole, count) }
}

#[test]
fn states_and_batches_stay_as_they_are_while_the_version_does() {
    let path = here("golden/pins.json");
    let pinned: Option<Pins> =
        fs::read_to_string(&path).ok().map(|text| serde_json::from_str(&text).unwrap());
    // What was pinned at this version is never overwritten.
    let mut pins = pinned
        .filter(|pins| pins.version == VERSION || std::env::var_os("FEEDLINE_PIN").is_none())
        .unwrap_or(Pins { version: VERSION, pipelines: BTreeMap::new() });
    assert_eq!(
        pins.version, VERSION,
        "VERSION was raised: pin anew with `FEEDLINE_PIN=1 cargo test --release --workspace --test golden`"
    );
    let data = data();
    let mut changed = Vec::new();
    let mut added = false;
    for (name, text) in PIPELINES {
        let now = pin(&data, text);
        let then = pins.pipelines.entry((*name).to_owned()).or_insert_with(|| {
            added = true;
            now.clone()
        });
        if then.batches != now.batches {
            changed.push(format!("the batches of {name:?} changed"));
        }
        if then.state != now.state {
            changed.push(format!(
                "the state of {name:?} changed:\n   from {}\n     to {}",
                then.state, now.state
            ));
        }
        // The promise itself: what an earlier build saved is resumed with the very next batch.
        let mut resumed = loader(&data, text);
        match State::from_json(&then.state.to_string()).and_then(|state| resumed.resume(&state)) {
            Ok(()) => {
                let rest = &then.batches[2..];
                if hashes(&mut resumed, rest.len()) != rest {
                    changed.push(format!("a saved state of {name:?} goes on with other batches"));
                }
            }
            Err(error) => changed.push(format!("a saved state of {name:?} is refused: {error}")),
        }
    }
    let gone = pins.pipelines.keys().filter(|name| !PIPELINES.iter().any(|(own, _)| own == name));
    changed.extend(gone.map(|name| format!("{name:?} is pinned and not tried")));
    assert!(changed.is_empty(), "\n{}\n\n{WHAT_TO_DO}\n", changed.join("\n"));
    if added {
        assert!(
            std::env::var_os("FEEDLINE_PIN").is_some(),
            "a pipeline is not pinned: `FEEDLINE_PIN=1 cargo test --release --workspace --test golden`"
        );
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = serde_json::to_string_pretty(&pins).unwrap();
        fs::write(&path, text + "\n").unwrap();
    }
}

#[test]
fn the_changelog_says_why_the_version_was_raised() {
    let changelog = fs::read_to_string(here("../../../CHANGELOG.md")).unwrap();
    assert!(changelog.contains(&format!("States have version {VERSION}")), "{WHAT_TO_DO}");
}
