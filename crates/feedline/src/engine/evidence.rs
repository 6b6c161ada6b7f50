//! From counters to what those want who judge.

use serde_json::Value as Json;

use super::monitor::Stats;
use super::plan::{Pixels, Plan};
use super::work::Shared;
use crate::observe::{self, PlaceStats};
use crate::sample::{ImageFormat, Value};
use crate::spec::OpSpec;
use crate::transform::ImageShape;
use crate::tune::{Evidence, Executor, SlowPlace, StageCost, WorkerTime};

/// What happened between two looks at a loader.
pub(super) fn evidence(shared: &Shared, before: &Stats, after: &Stats) -> Evidence {
    let (old, new) = (&before.work, &after.work);
    let made = new.samples_made.saturating_sub(old.samples_made).max(1) as f64;
    let bytes = new.bytes_read.saturating_sub(old.bytes_read) as f64;
    let turnovers = new.turnovers.0.saturating_sub(old.turnovers.0);
    let turnover = (new.turnovers.1 - old.turnovers.1) / turnovers.max(1) as f64;
    // A worker in line for a sample's memory counts as busy there, and one that has no memory for
    // another batch as idle.
    let in_line = new.memory_wait_seconds - old.memory_wait_seconds;
    let short = after.flow.short_of_memory.saturating_sub(before.flow.short_of_memory);
    let worker_time = WorkerTime {
        busy: (new.busy_seconds - old.busy_seconds - in_line).max(0.0),
        cpu: new.cpu_seconds - old.cpu_seconds,
        idle: (new.idle_seconds - old.idle_seconds - short.as_secs_f64()).max(0.0),
        memory: in_line + short.as_secs_f64(),
    };
    // The very first batch waits for the start of everything: it is counted apart.
    let first = new.first_batch_seconds.filter(|_| old.batches == 0);
    // Before it came, all waiting was for it.
    let waited = match (old.batches, new.batches) {
        (_, 0) => 0.0,
        (0, _) => new.wait_seconds - first.unwrap_or(0.0),
        _ => new.wait_seconds - old.wait_seconds,
    };
    let batches = new.batches.saturating_sub(old.batches);
    let counted = batches.saturating_sub(u64::from(first.is_some()));
    let reads = observe::Histogram::quantiles_of(&new.reads, &old.reads);
    let spec = &shared.plan.spec;
    let source = spec.sources.first();
    Evidence {
        executor: if shared.plan.workers == 0 { Executor::Inline } else { Executor::Native },
        // A set that is smaller than a batch makes smaller ones.
        batch_size: shared.plan.batches.rows(0).max(1) as f64,
        workers: after.tuning.num_workers,
        cores: crate::tune::cores() as f64,
        batches: counted,
        // Those that the program has used: the steps are theirs, and the first one's are among them.
        samples: new.used.saturating_sub(old.used),
        wait_seconds: waited.max(0.0),
        step_seconds: new.step_seconds - old.step_seconds,
        first_batch_seconds: first,
        turnover_seconds: (turnovers > 0).then_some(turnover),
        turnovers,
        stages: stages(&shared.plan, old, new, &worker_time),
        worker_time,
        read_bytes_per_sample: bytes / made,
        read_p50_seconds: reads.p50,
        read_p99_seconds: reads.p99,
        slow_places: slow_places(&before.slow_places, &after.slow_places),
        memory_limit: after.flow.limit,
        memory_given: shared.plan.memory_given(),
        memory_used: after.flow.used,
        batches_remade: after.flow.remade.saturating_sub(before.flow.remade),
        encoding: encoding(&shared.plan).unwrap_or_default().to_owned(),
        source: source
            .and_then(|source| source.kind.path())
            .map_or(String::new(), |path| path.display().to_string()),
        loose: is_loose(&shared.plan),
        crop_index: shared.plan.crop_index,
        crops: crops(&shared.plan),
        stored_side: stored_side(&shared.plan.chain.canonical()),
        ..Evidence::default()
    }
}

/// The parts of a sample since `old`. Of reading it is known how much was spent on a core; the
/// others share what is left of the workers' processor time.
fn stages(
    plan: &Plan,
    old: &observe::WorkStats,
    new: &observe::WorkStats,
    time: &WorkerTime,
) -> Vec<StageCost> {
    let made = new.samples_made.saturating_sub(old.samples_made).max(1) as f64;
    let timed = new.timed.saturating_sub(old.timed);
    let mut stages: Vec<StageCost> = new
        .parts
        .iter()
        .map(|part| {
            let earlier = old.parts.iter().find(|earlier| earlier.name == part.name);
            let before = earlier.map_or(0.0, |part| part.seconds * old.timed as f64);
            let seconds = match timed {
                0 => part.seconds,
                timed => (part.seconds * new.timed as f64 - before).max(0.0) / timed as f64,
            };
            StageCost { name: part.name.to_owned(), seconds, cpu_seconds: seconds }
        })
        .collect();
    let is_read = |stage: &StageCost| stage.name == "read";
    let looked_at = new.read_cpu.1 - old.read_cpu.1;
    let on_core_reading = match looked_at > 0.0 {
        true => ((new.read_cpu.0 - old.read_cpu.0) / looked_at).clamp(0.0, 1.0),
        false => 1.0,
    };
    let mut left = time.cpu / made;
    for stage in stages.iter_mut().filter(|stage| is_read(stage)) {
        stage.cpu_seconds *= on_core_reading;
        left -= stage.cpu_seconds;
    }
    let others: f64 = stages.iter().filter(|s| !is_read(s)).map(|stage| stage.seconds).sum();
    let on_core =
        if others > 0.0 && time.cpu > 0.0 { (left / others).clamp(0.0, 1.0) } else { 1.0 };
    for stage in stages.iter_mut().filter(|stage| !is_read(stage)) {
        stage.cpu_seconds *= on_core;
    }
    if is_lent(plan)
        && let Some(place) = stages.iter().position(is_read)
    {
        let read = stages.remove(place);
        match stages.iter_mut().find(|stage| stage.name == "copy") {
            Some(copy) => {
                copy.seconds += read.seconds;
                copy.cpu_seconds += read.cpu_seconds;
            }
            None => stages.push(StageCost { name: "copy".to_owned(), ..read }),
        }
    }
    stages
}

fn slow_places(before: &[PlaceStats], after: &[PlaceStats]) -> Vec<SlowPlace> {
    let since = after.iter().filter_map(|place| {
        let old = before.iter().find(|old| old.name == place.name);
        let (reads, others, seconds) =
            old.map_or((0, 0, 0.0), |old| (old.reads, old.other_reads, old.seconds));
        // One that gave way and came back counts anew.
        let reads = place.reads.checked_sub(reads).unwrap_or(place.reads);
        (reads > 0).then(|| SlowPlace {
            name: place.name.clone(),
            reads,
            other_reads: place.other_reads.saturating_sub(others),
            seconds: (place.seconds - seconds).max(0.0) / reads as f64,
            elsewhere: place.elsewhere,
        })
    });
    let mut since: Vec<SlowPlace> = since.collect();
    let time = |place: &SlowPlace| place.reads as f64 * place.seconds;
    since.sort_by(|a, b| time(b).total_cmp(&time(a)));
    since
}

/// What images are encoded as, by the name of the first one.
fn encoding(plan: &Plan) -> Option<&'static str> {
    let image = plan.image.as_ref().filter(|image| matches!(image.pixels, Pixels::Encoded))?;
    let source = plan.sources.first()?;
    let name = match source.value(0, image.field).ok()? {
        Value::File(location) if location.range.is_none() => location.path.to_owned(),
        _ => source.origin(0)?,
    };
    Some(ImageFormat::from_extension(name.extension()?.to_str()?)?.name())
}

/// Samples lie in memory already, so that reading is nothing but copying.
fn is_lent(plan: &Plan) -> bool {
    let field = plan.read_field.unwrap_or(0);
    let value = plan.sources.first().and_then(|source| source.value(0, field).ok());
    matches!(value, Some(Value::Bytes(_)))
}

/// Samples lie in files of their own.
fn is_loose(plan: &Plan) -> bool {
    let field = plan.read_field.unwrap_or(0);
    let value = plan.sources.first().and_then(|source| source.value(0, field).ok());
    plan.spec.sources.first().is_some_and(|source| source.kind.path().is_some())
        && matches!(value, Some(Value::File(location)) if location.range.is_none())
}

/// An image as cameras make them, to see what transforms use of one.
const PHOTO: ImageShape = ImageShape { height: 768, width: 1024, channels: 3 };
/// Less than this share of it is worth being decoded alone,
const PART: f64 = 0.75;
/// on the mean of so many, as crops are drawn.
const DRAWN: u64 = 8;

/// The transforms use a part of each image that is decoded.
fn crops(plan: &Plan) -> bool {
    let encoded = plan.image.as_ref().is_some_and(|image| matches!(image.pixels, Pixels::Encoded));
    // A cache of decoded images keeps whole ones.
    if !encoded || plan.spec.cache.as_ref().is_some_and(|cache| cache.decoded) {
        return false;
    }
    let used = |position| {
        let excerpt = plan.chain.excerpt(PHOTO, 0, position, true);
        (excerpt.part.height * excerpt.part.width) as f64
    };
    let all = (DRAWN * (PHOTO.height * PHOTO.width) as u64) as f64;
    (0..DRAWN).map(used).sum::<f64>() < PART * all
}

/// The shorter side of images that leaves these transforms enough: they begin by making images
/// smaller, so that larger ones are of no use. A random part of an image needs an eighth more.
fn stored_side(ops: &[OpSpec]) -> Option<u32> {
    let flips = ["RandomHorizontalFlip", "RandomVerticalFlip"];
    let first = ops.iter().find(|op| !flips.contains(&op.op.as_str()))?;
    let size = match first.params.get("size")? {
        Json::Array(sides) => sides.iter().filter_map(Json::as_u64).max()?,
        size => size.as_u64()?,
    };
    let side = match first.op.as_str() {
        "Resize" => size,
        "RandomResizedCrop" => (size * 8).div_ceil(7).next_multiple_of(8),
        _ => return None,
    };
    u32::try_from(side).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_stored_as_large_as_they_are_used() {
        let op = |name: &str, size: Json| OpSpec::new(name).with("size", size);
        let flip = OpSpec::new("RandomHorizontalFlip");
        let blur = OpSpec::new("GaussianBlur").with("kernel_size", 5);
        for (ops, side) in [
            (vec![op("RandomResizedCrop", 224.into())], Some(256)),
            (vec![op("RandomResizedCrop", vec![448, 448].into())], Some(512)),
            (vec![flip.clone(), op("Resize", 320.into()), op("CenterCrop", 64.into())], Some(320)),
            (vec![op("Resize", vec![64, 96].into())], Some(96)),
            // These use pixels as they are.
            (vec![op("CenterCrop", 224.into()), op("Resize", 64.into())], None),
            (vec![blur, op("Resize", 64.into())], None),
            (vec![flip], None),
            (vec![], None),
        ] {
            assert_eq!(stored_side(&ops), side, "{ops:?}");
        }
    }
}
