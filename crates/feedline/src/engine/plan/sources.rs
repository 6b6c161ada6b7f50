//! Opens the sources that a spec names.

use std::sync::Arc;

use super::memory::{block_memory, each_block_memory};
use crate::decode;
use crate::error::{Error, Result, SpecError};
use crate::order::BlockEnds;
use crate::sample::{Field, FieldKind};
use crate::source::{self, Blocks, Opening, Source};
use crate::spec::{OpenBlocks, SourceKind, Spec};
use crate::store::Store;
use crate::tune;

/// Samples that are read alone count as a block, beside sources that have blocks.
const ALONE: u64 = 1024;

/// What sources are opened with: images are what can be decoded, and blocks take a quarter of the
/// memory that the spec gives. What is free counts for nothing, since it decides how many blocks are
/// shuffled together.
#[must_use]
pub fn opening<'a>(spec: &Spec, store: &'a Arc<dyn Store>) -> Opening<'a> {
    Opening {
        store,
        image_extensions: decode::EXTENSIONS,
        block_memory: block_memory(spec),
        memory: spec.memory.or_else(tune::memory_available).unwrap_or(u64::MAX),
        is_image: |bytes| decode::Format::sniff(bytes).is_some(),
    }
}

/// Opens what the spec names, and checks that the sources go together.
pub(in crate::engine) fn open_sources(
    spec: &Spec,
    store: &Arc<dyn Store>,
    given: Vec<Arc<dyn Source>>,
) -> Result<Vec<Arc<dyn Source>>> {
    let mut given = given.into_iter();
    let mut sources = Vec::new();
    for named in &spec.sources {
        sources.push(match (&named.kind, given.len()) {
            (SourceKind::Arrays, 1..) => {
                given.next().ok_or_else(|| Error::System("a source vanished".to_owned()))?
            }
            (kind, _) => {
                let block_memory = each_block_memory(spec);
                source::open(kind, &Opening { block_memory, ..opening(spec, store) })?
            }
        });
    }
    let first: &Arc<dyn Source> = &sources[0];
    for (at, other) in sources.iter().enumerate().skip(1) {
        if other.fields() != first.fields() {
            let fields = |source: &Arc<dyn Source>| {
                source.fields().iter().map(describe).collect::<Vec<_>>().join(", ")
            };
            return Err(SpecError::new(format!("source[{at}]"), format!("has {}", fields(other)))
                .allowed(format!("the fields of source[0]: {}", fields(first)))
                .into());
        }
        if other.classes() != first.classes() {
            return Err(SpecError::new(
                format!("source[{at}]"),
                "has other classes than source[0], so its label numbers mean something else",
            )
            .allowed("sources with the same classes, or manifests with numbers as labels")
            .into());
        }
    }
    Ok(sources)
}

fn describe(field: &Field) -> String {
    match &field.kind {
        FieldKind::EncodedImage => format!("{} (encoded image)", field.name),
        FieldKind::Pixels { channels } => format!("{} ({channels} x uint8 pixels)", field.name),
        FieldKind::Array { dtype, shape } => format!("{} ({dtype} {shape:?})", field.name),
        FieldKind::Ragged { dtype, axes } => {
            format!("{} ({dtype}, {axes} axes of any length)", field.name)
        }
        FieldKind::Bytes => format!("{} (bytes)", field.name),
        FieldKind::Text => format!("{} (text)", field.name),
    }
}

/// The blocks of all sources laid end to end; none if no source has any.
pub(in crate::engine) fn block_ends(spec: &Spec, sources: &[Arc<dyn Source>]) -> BlockEnds {
    let Some(bytes) = sources.iter().filter_map(|source| Some(source.blocks()?.bytes)).max() else {
        return BlockEnds::default();
    };
    let (mut ends, mut before) = (Vec::new(), 0);
    for source in sources {
        match source.blocks() {
            Some(blocks) => ends.extend(blocks.ends.iter().map(|end| before + end)),
            // Samples that are read alone are as good in any block.
            None => {
                let even = Blocks::even(source.len(), ALONE, 0);
                ends.extend(even.ends.iter().map(|end| before + end));
            }
        }
        before += source.len();
    }
    // Half of the memory, so that the next pool's blocks have room beside the last one's.
    BlockEnds { ends, room: each_block_memory(spec) / 2 / bytes.max(1) }
}

/// Refuses draws that would unpack a whole block for each sample.
pub(super) fn check_order(spec: &Spec, blocks: &BlockEnds) -> Result<(), SpecError> {
    let key = match spec {
        Spec { weights: Some(_), .. } => "weights",
        Spec { replacement: true, .. } => "replacement",
        _ => return Ok(()),
    };
    // There is room for half as many as are kept.
    let kept = blocks.room.saturating_mul(2);
    if blocks.ends.len() as u64 <= kept || spec.open_blocks == OpenBlocks::All {
        return Ok(());
    }
    Err(SpecError::new(
        key,
        format!(
            "draws samples from everywhere, but this data is read in {} blocks, of which {kept} fit into the memory for them: each sample would read a block",
            blocks.ends.len()
        ),
    )
    .allowed("more memory, a set that was packed without compression (feedline pack), or open_blocks = \"all\" to do it all the same"))
}
