//! One pipeline, written as TOML, as JSON and step by step, is one spec. The Python package's
//! arguments are compared with the same TOML file in `tests/python/test_spec.py`.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use feedline::spec::{
    CacheSpec, DecodeSpec, LastBatch, OnError, OpSpec, SourceKind, SourceSpec, Subset,
};
use feedline::{Loader, Spec};

const TOML: &str = include_str!("../../../tests/python/pipeline.toml");

const JSON: &str = r#"{
    "source": {"kind": "manifest", "path": "train.csv", "label_columns": ["label"], "root": "photos"},
    "batch_size": 32,
    "shuffle": true,
    "seed": 7,
    "subset": "0:1000:2",
    "num_samples": 400,
    "last_batch": "pad",
    "rank": 1,
    "world_size": 4,
    "layout": "channels_last",
    "num_workers": 3,
    "prefetch_factor": 2,
    "memory": 2000000000,
    "cache": {"hold": "decoded", "limit": 500000000, "required": false},
    "on_error": "skip",
    "max_failures": 10,
    "quarantine": "bad.jsonl",
    "decode": {"mode": "gray", "exif_orientation": true, "max_pixels": 50000000, "exact": true},
    "transforms": [
        {"op": "RandomResizedCrop", "size": 224, "scale": [0.25, 1.0]},
        {"op": "RandomHorizontalFlip", "p": 0.25},
        {"op": "ToDtype", "scale": true},
        {"op": "Normalize", "mean": [0.5], "std": [0.25]}
    ]
}"#;

#[test]
fn toml_json_and_builder_describe_the_same() {
    let manifest = SourceSpec::from(SourceKind::Manifest {
        path: PathBuf::from("train.csv"),
        path_column: None,
        label_columns: Some(vec!["label".to_owned()]),
        root: Some(PathBuf::from("photos")),
    });
    let built = Loader::builder(manifest)
        .batch_size(32)
        .shuffle(true)
        .seed(7)
        .subset(Subset::parse("0:1000:2").unwrap())
        .num_samples(400)
        .last_batch(LastBatch::Pad)
        .rank(1, 4)
        .layout(feedline::spec::Layout::ChannelsLast)
        .num_workers(3)
        .prefetch_factor(2)
        .memory(2_000_000_000)
        .cache(CacheSpec::default().with(|cache| {
            cache.decoded = true;
            cache.limit = Some(500_000_000);
            cache.required = false;
        }))
        .on_error(OnError::Skip)
        .max_failures(10)
        .quarantine(PathBuf::from("bad.jsonl"))
        .decode(DecodeSpec::default().with(|decode| {
            decode.gray = true;
            decode.bytes = false;
            decode.exif_orientation = true;
            decode.max_pixels = Some(50_000_000);
            decode.allow_truncated = false;
            decode.allow_damaged = false;
            decode.exact = true;
        }))
        .transform(
            OpSpec::new("RandomResizedCrop").with("size", 224).with("scale", vec![0.25, 1.0]),
        )
        .transform(OpSpec::new("RandomHorizontalFlip").with("p", 0.25))
        .transform(OpSpec::new("ToDtype").with("scale", true))
        .transform(OpSpec::new("Normalize").with("mean", vec![0.5]).with("std", vec![0.25]));
    let toml = Spec::from_toml(TOML).unwrap();
    let json = Spec::from_json(JSON).unwrap();
    assert_eq!(toml, json);
    assert_eq!(toml, *built.spec());
    assert_eq!(Spec::from_toml(&toml.to_toml()).unwrap(), toml);
    assert_eq!(Spec::from_json(&toml.to_value().to_string()).unwrap(), toml);
}

#[test]
fn a_seed_that_is_null_is_refused_rather_than_0() {
    let wrong = Spec::from_json(r#"{"source": "photos", "seed": null}"#).unwrap_err();
    assert_eq!(wrong.key, "seed");
    assert!(wrong.to_string().contains("left out, it is 0"), "{wrong}");
    assert_eq!(Spec::from_json(r#"{"source": "photos", "memory": null}"#).unwrap().seed, 0);
}
