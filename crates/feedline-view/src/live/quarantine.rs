//! The latest lines of a file that lists samples which failed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::Value;

use super::snapshot::Quarantined;

/// Bytes at the end of the file that are looked at.
const TAIL: u64 = 16 * 1024;

/// Samples that are shown.
const SHOWN: usize = 20;

/// Characters of a name or a reason that are shown.
const LONGEST: usize = 300;

/// The latest samples, newest first; none where the file cannot be read.
pub(super) fn latest(path: &Path) -> Vec<Quarantined> {
    tail(path).map_or_else(|_| Vec::new(), |tail| read_lines(&tail))
}

fn tail(path: &Path) -> std::io::Result<Vec<u8>> {
    // A pipe would be emptied, or waited for.
    if !path.metadata()?.is_file() {
        return Ok(Vec::new());
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    if from > 0 {
        // The first line may have lost its beginning.
        let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..begin);
    }
    Ok(bytes)
}

fn read_lines(bytes: &[u8]) -> Vec<Quarantined> {
    let text = String::from_utf8_lossy(bytes);
    let samples = text.lines().rev().filter_map(|line| {
        let value: Value = serde_json::from_str(line).ok()?;
        let cut = |text: &str| text.chars().take(LONGEST).collect::<String>();
        let name = match (value["path"].as_str(), value["index"].as_u64()) {
            (Some(path), _) => cut(path),
            (None, Some(index)) => format!("sample {index} of source {}", value["source"]),
            (None, None) => return None,
        };
        let stage = value["stage"].as_str().unwrap_or("load");
        let reason = value["reason"].as_str().unwrap_or("no reason is known");
        Some(Quarantined { name, reason: cut(&format!("cannot {stage}: {reason}")) })
    });
    samples.take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_newest_come_first_and_a_long_file_costs_no_more() {
        let path = std::env::temp_dir().join(format!("feedline-tail-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        for index in 0..5000 {
            writeln!(
                file,
                r#"{{"source":0,"index":{index},"path":"a/{index}.jpg","stage":"decode","reason":"torn"}}"#
            )
            .unwrap();
        }
        writeln!(file, r#"{{"source":1,"index":7,"path":null,"stage":"read","reason":"gone"}}"#)
            .unwrap();
        write!(file, "{{\"half a li").unwrap();
        drop(file);
        let latest = latest(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(latest.len(), SHOWN);
        assert_eq!(latest[0].name, "sample 7 of source 1");
        assert_eq!(latest[1].name, "a/4999.jpg");
        assert_eq!(latest[1].reason, "cannot decode: torn");
    }

    #[test]
    fn what_is_no_such_file_has_no_samples() {
        assert!(latest(Path::new("/nowhere/at/all")).is_empty());
        assert!(latest(Path::new("/dev/zero")).is_empty());
        assert!(read_lines(b"\xff\xfe\n[]\n{}\n{\"index\": \"x\"}\n").is_empty());
    }
}
