//! `feedline inspect`: the right numbers, and charts that fit.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use crate::command_line::{a_photo, command, feedline, fresh, json, photos, text};

/// Sizes of all photos, from the file system.
fn sizes(folder: &Path) -> Vec<u64> {
    let mut sizes = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sizes.extend(self::sizes(&path)),
            false if path.extension().is_some_and(|e| e == "jpg") => {
                sizes.push(fs::metadata(path).unwrap().len());
            }
            false => {}
        }
    }
    sizes.sort_unstable();
    sizes
}

#[test]
fn the_numbers_are_those_of_the_files() {
    let found = json(&["inspect", photos()], 0);
    let sizes = sizes(Path::new(photos()));
    assert_eq!((&found["samples"], sizes.len()), (&40.into(), 40));
    assert_eq!(found["bytes"], sizes.iter().sum::<u64>());
    let size = &found["file_size"];
    let median = (sizes[19] + sizes[20]) as f64 / 2.0;
    assert_eq!(
        (size["min"].as_f64(), size["max"].as_f64()),
        (Some(sizes[0] as f64), Some(sizes[39] as f64))
    );
    assert_eq!(size["median"].as_f64(), Some(median));
    assert_eq!(found["formats"], serde_json::json!({"JPEG": 40}));
    assert_eq!((&found["looked_into"], &found["failed"]), (&40.into(), &0.into()));
    let classes = found["classes"].as_array().unwrap();
    assert!(classes.len() == 4 && classes.iter().all(|class| class["samples"] == 10));
    assert_eq!(found["fields"][1]["type"], "int64");
    assert_eq!(
        (&found["fields"][1]["max"], &found["fields"][1]["distinct"]),
        (&3.0.into(), &4.into())
    );

    let some = json(&["inspect", photos(), "--sample", "7"], 0);
    assert_eq!((&some["looked_into"], &some["headers"]), (&7.into(), &7.into()));
    assert_eq!(some["file_size"], found["file_size"], "sizes are of all files");
    let shown = feedline(&["inspect", photos(), "--sample", "7"]);
    assert!(text(&shown.stdout).contains("7 of 40 files"), "{}", text(&shown.stdout));
}

#[test]
fn formats_names_and_labels_are_distinguished() {
    let folder = fresh("mixed");
    let pgm = |side: usize| {
        [format!("P5 {side} {side} 255\n").into_bytes(), vec![7; side * side]].concat()
    };
    // Beyond the part of a file that is read first, the size is still found.
    for (name, bytes) in [("a.jpg", a_photo()), ("b.jpg", pgm(4)), ("c.pgm", pgm(300))] {
        fs::write(folder.join(name), bytes).unwrap();
    }
    fs::write(folder.join("d.png"), "<html>").unwrap();
    let table = folder.join("table.csv");
    fs::write(
        &table,
        "path,label,weight\na.jpg,cat,0.5\nb.jpg,dog,1.5\nc.pgm,cat,2\nd.png,cat,3\ne.jpg,cat,4\n",
    )
    .unwrap();
    let name = table.to_str().unwrap();
    let columns = "source.label_columns=[\"label\", \"weight\"]";
    let found = json(&["inspect", name, "--set", "source.kind=manifest", "--set", columns], 0);
    assert_eq!(found["formats"], serde_json::json!({"PNM": 2, "JPEG": 1}));
    assert_eq!((&found["misnamed"], &found["failed"]), (&1.into(), &2.into()));
    assert_eq!((&found["width"]["min"], &found["width"]["max"]), (&4.0.into(), &300.0.into()));
    assert_eq!(
        found["classes"],
        serde_json::json!([{"name": "cat", "samples": 4}, {"name": "dog", "samples": 1}])
    );
    let weight = &found["fields"][2];
    assert_eq!(
        (&weight["type"], &weight["min"], &weight["max"]),
        (&"float32".into(), &0.5.into(), &4.0.into())
    );
    let shown = feedline(&["inspect", name]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("d.png") && shown.contains("e.jpg"), "{shown}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn charts_fit_and_keep_to_the_locale() {
    let unicode = feedline(&["inspect", photos()]);
    let shown = text(&unicode.stdout);
    assert!(shown.contains('█') && shown.contains("classes: 10 samples each"), "{shown}");
    assert!(shown.lines().skip(2).all(|line| line.chars().count() <= 80), "{shown}");
    let ascii = command(&["inspect", photos()]).env("LC_ALL", "C").output().unwrap();
    assert!(ascii.stdout.is_ascii() && text(&ascii.stdout).contains("####"));
    let few = feedline(&["inspect", photos(), "--top", "2"]);
    assert!(text(&few.stdout).contains("the largest 2 of 4"), "{}", text(&few.stdout));
    assert!(![unicode, ascii, few].iter().any(|output| output.stdout.contains(&0x1b)));
}
