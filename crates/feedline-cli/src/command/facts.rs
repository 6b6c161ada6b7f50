//! What `feedline inspect` says of fields, files, blocks and speed.

use feedline::internals::engine::{
    FieldFacts, Inspection, MOST_INFLATION, Mixing, Rate, SourceFacts,
};
use feedline::internals::spec::show_bytes;
use feedline::sample::FieldKind;
use serde_json::{Value, json};

use crate::output::{Failure, Output};
use crate::terminal::{Paint, show_count};

/// A field in words.
pub(super) fn describe_field(field: &FieldFacts) -> String {
    let kind = match &field.kind {
        FieldKind::Pixels { channels } => {
            return format!("{} ({channels} x uint8 pixels)", field.name);
        }
        FieldKind::Array { dtype, shape } if !shape.is_empty() => {
            return format!("{} ({dtype} {shape:?})", field.name);
        }
        FieldKind::Array { dtype, .. } => dtype.name(),
        FieldKind::Ragged { dtype, axes } => {
            return format!("{} ({dtype}, {axes} axes of any length)", field.name);
        }
        other => return format!("{} ({})", field.name, other.name()),
    };
    let range = field.range.map_or(String::new(), |(low, high)| format!(", {low} to {high}"));
    let distinct = match field.distinct {
        Some(1) => ", 1 value".to_owned(),
        Some(count) => format!(", {} values", show_count(count)),
        None => String::new(),
    };
    format!("{} ({kind}{range}{distinct})", field.name)
}

/// A source as JSON.
pub(super) fn source(source: &SourceFacts) -> Value {
    let files = source.files.iter().map(|file| {
        json!({
            "path": file.path.to_string_lossy(), "bytes": file.bytes, "samples": file.samples,
        })
    });
    json!({
        "name": source.name, "samples": source.samples, "format": source.format,
        "files": files.collect::<Vec<_>>(),
        "unused_columns": source.unused_columns,
    })
}

/// How a shuffle mixes, as JSON.
pub(super) fn mixing(mixing: &Mixing) -> Value {
    json!({
        "blocks": mixing.blocks,
        "block_bytes": mixing.block_bytes,
        "open_blocks": mixing.open,
        "batch_size": mixing.batch_size,
        "label_correlation": mixing.correlation,
        "variance_inflation": mixing.inflation,
        "warning": mixing.inflation.is_some_and(|inflation| inflation > MOST_INFLATION),
    })
}

/// The columns that a run would not see.
pub(super) fn show_unused(found: &Inspection, output: &mut Output) -> Result<(), Failure> {
    for source in found.sources.iter().filter(|source| !source.unused_columns.is_empty()) {
        let text = format!(
            "columns not used: {} (source.label_columns chooses those that become fields)",
            source.unused_columns.join(", ")
        );
        output.text(&text, 4)?;
    }
    Ok(())
}

/// The files of each source: how many, and how large.
pub(super) fn show_files(found: &Inspection, output: &mut Output) -> Result<(), Failure> {
    for source in &found.sources {
        let sizes = || source.files.iter().map(|file| file.bytes);
        let (Some(least), Some(most)) = (sizes().min(), sizes().max()) else {
            // A folder of chunks.
            if let Some(format) = &source.format {
                output.text(&format!("format: {format}"), 4)?;
            }
            continue;
        };
        let format =
            source.format.as_deref().map_or(String::new(), |format| format!(" ({format})"));
        let files = match source.files.len() {
            1 => format!("1 file{format} of {}", show_bytes(most)),
            count => format!(
                "{} files{format} of {} to {}",
                show_count(count as u64),
                show_bytes(least),
                show_bytes(most)
            ),
        };
        output.text(&files, 4)?;
    }
    Ok(())
}

/// What a shuffle in blocks does to batches.
pub(super) fn show_mixing(found: &Inspection, output: &mut Output) -> Result<(), Failure> {
    let Some(mixing) = &found.mixing else { return Ok(()) };
    output.line("")?;
    output.text(
        &format!(
            "read in {} blocks of up to {}, {} of them mixed at once",
            show_count(mixing.blocks),
            show_bytes(mixing.block_bytes),
            show_count(mixing.open),
        ),
        4,
    )?;
    let (Some(correlation), Some(inflation)) = (mixing.correlation, mixing.inflation) else {
        return Ok(());
    };
    output.text(
        &format!(
            "labels within a block correlate by {correlation:.3}: in shuffled batches of {} the classes' shares vary {inflation:.2} times as much as in a full shuffle",
            show_count(mixing.batch_size),
        ),
        4,
    )?;
    if inflation > MOST_INFLATION {
        let text = "Batches will be uneven. What helps: feedline pack (it shuffles), more memory for blocks (memory), or smaller blocks.";
        let text = output.terminal().paint(Paint::Bad, text);
        output.line(&text)?;
    }
    Ok(())
}

/// How fast it loads.
pub(super) fn show_rate(
    rate: Option<Rate>,
    workers: usize,
    output: &mut Output,
) -> Result<(), Failure> {
    let Some(rate) = rate else { return Ok(()) };
    output.line("")?;
    output.text(
        &format!(
            "loads {} samples/s, reading {}/s, with {workers} workers (one-second trial)",
            show_count(rate.samples as u64),
            show_bytes(rate.bytes as u64),
        ),
        4,
    )
}
