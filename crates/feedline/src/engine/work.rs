//! One worker: the whole chain of a sample, from its bytes to its row of the batch.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::ahead::{Ahead, Reads};
use super::fields::{self, Hindrance};
use super::flow::{Failure, Flow, Grant, Next, Outcome, Slice, held_message};
use super::plan::{ImageField, Pixels, Plan, Purpose};
use super::recorded::DecodedImage;
use super::sync::Mutex;
use crate::buffer::Slab;
use crate::decode::{self, Decoder, Header};
use crate::error::{Error, Fault, SampleError, Stage};
use crate::image::{self, Excerpt, Image, PixelType, Scratch, View};
use crate::observe::{
    Activity, ConsumerCounters, Look, Pace, Part, SlowPlaces, Span, Stopwatch, Timeline, Times,
    WorkerCounters, thread_cpu,
};
use crate::order::{EpochOrder, Pick};
use crate::sample::{Location, Room, Value};
use crate::source::Source;
use crate::spec::OnError;
use crate::spec::read::show_bytes;
use crate::store::{self, Cache};
use crate::transform::ImageShape;
use crate::tune::Tuning;

/// What a slice should take: long enough to make the lock cheap, short enough to share.
const SLICE: Duration = Duration::from_millis(1);

/// How many stand-ins are tried for one bad sample. With half of the set bad, all fail once in
/// four billion rows.
const SUBSTITUTES: u32 = 32;

/// One of so many small samples is timed part by part; samples above 50 µs are all timed.
const TIMED: u64 = 16;

/// Of one in so many of those it is asked whether reading waited or worked.
const ON_CORE: u64 = 8;

/// What the workers of an engine share.
pub(super) struct Shared {
    pub(super) plan: Arc<Plan>,
    pub(super) flow: Arc<Flow>,
    /// One for each source, if samples are kept.
    pub(super) caches: Vec<Cache>,
    pub(super) counters: Vec<WorkerCounters>,
    pub(super) consumer: ConsumerCounters,
    /// Whether workers time what they do; off only to measure what that costs.
    pub(super) observed: AtomicBool,
    /// Set if what happens when is to be kept.
    pub(super) timeline: OnceLock<Timeline>,
    pub(super) ahead: Arc<Ahead>,
    pub(super) slow_places: SlowPlaces,
    /// What was changed while it runs.
    pub(super) tuning: Mutex<Tuning>,
}

/// A worker's own memory.
pub(super) struct Worker {
    shared: Arc<Shared>,
    number: usize,
    decoder: Decoder,
    encoded: Slab,
    scratch: Scratch,
    /// Bytes that the flow granted for `encoded`, `scratch` and what libraries allocate.
    granted: u64,
    /// What decoding and transforming takes of the sample that is being made, whatever is kept of
    /// those before it.
    alone: u64,
    /// Mean time of a sample, to size slices by.
    mean: Duration,
    reads: Reads,
    pace: Pace,
}

/// Bytes that one sample takes.
#[derive(Default)]
struct Need {
    /// Of the worker's own slab, for encoded bytes.
    encoded: usize,
    /// For decoding, pixels included.
    decoded: usize,
    /// For what is made of the pixels.
    rest: usize,
}

/// One sample on its way into its row.
struct Sample<'a, 'w> {
    plan: &'a Plan,
    pick: Pick,
    /// The epoch's key and the position that random draws belong to.
    draws: (u64, u64),
    out: &'a mut [u8],
    watch: &'a mut Stopwatch<'w>,
}

impl Sample<'_, '_> {
    fn transform(&mut self, mut image: Image<'_>) -> Result<(), Trouble> {
        let chain = &self.plan.chain;
        if let Some(row) = self.plan.recorded.as_ref().and_then(|all| all.row(self.draws.1))
            && row.len() == self.out.len()
        {
            self.out.copy_from_slice(row);
            self.watch.lap(Part::Transform);
            return Ok(());
        }
        let (whole, channels) = (image.excerpt(), image.view().channels);
        let shape = ImageShape { height: whole.height, width: whole.width, channels };
        let pixel_type = image.pixel_type();
        chain.run(&mut image, self.draws.0, self.draws.1, self.out).map_err(|fault| {
            in_transform(self.unlike_the_others(shape, pixel_type).unwrap_or(fault))
        })?;
        self.watch.lap(Part::Transform);
        Ok(())
    }

    /// What to say of an image whose result has another size than the batch's rows.
    fn unlike_the_others(&self, shape: ImageShape, pixel_type: PixelType) -> Option<Fault> {
        let own = self.plan.chain.output(shape, pixel_type).ok()?.shape;
        let batch = &self.plan.image.as_ref()?.output.shape;
        (own != *batch).then(|| {
            Fault::Shape(format!(
                "comes out as {own:?}, while the first image of the data set set the shape {batch:?} for all: add a Resize or a crop to the transforms"
            ))
        })
    }
}

fn in_read(fault: Fault) -> Trouble {
    Trouble::Fault(Stage::Read, fault)
}

fn in_decode(fault: Fault) -> Trouble {
    Trouble::Fault(Stage::Decode, fault)
}

fn in_transform(fault: Fault) -> Trouble {
    Trouble::Fault(Stage::Transform, fault)
}

/// Why a row was not made.
enum Trouble {
    Fault(Stage, Fault),
    /// So many bytes of scratch are needed, more than are granted.
    Memory(u64),
    /// So many bytes are needed, more than any sample may take.
    TooLarge(u64),
    Cancelled,
    /// The cache was demanded and is full.
    CacheFull(String),
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Worker {
            shared,
            number,
            decoder: Decoder::new(),
            encoded: Slab::default(),
            scratch: Scratch::default(),
            granted: 0,
            alone: 0,
            mean: Duration::from_micros(100),
            reads: Reads::default(),
            pace: Pace::default(),
        }
    }

    /// Works until the flow stops.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            let began = Instant::now();
            let next = shared.flow.take(self.number, self.granted, self.slice_rows(), true);
            shared.counters[self.number].idle(began.elapsed());
            match next {
                Next::Work(slice) => self.make(slice),
                Next::Shrink => self.give_scratch_back(),
                Next::Idle => {}
                Next::Rest => {
                    self.give_scratch_back();
                    shared.flow.rest(self.number);
                }
                Next::Stop => return self.give_scratch_back(),
            }
        }
    }

    /// Does one slice if there is one to do.
    pub(super) fn help(&mut self) -> bool {
        match self.shared.flow.take(self.number, self.granted, self.slice_rows(), false) {
            Next::Work(slice) => {
                self.make(slice);
                true
            }
            Next::Shrink => {
                self.give_scratch_back();
                true
            }
            Next::Idle | Next::Rest | Next::Stop => false,
        }
    }

    fn slice_rows(&self) -> u64 {
        (SLICE.as_nanos() / self.mean.as_nanos().max(1)).clamp(1, 1 << 20) as u64
    }

    pub(super) fn give_scratch_back(&mut self) {
        self.encoded = Slab::default();
        self.scratch.release();
        self.shared.flow.shrink(std::mem::take(&mut self.granted));
    }

    fn make(&mut self, mut slice: Slice) {
        let shared = self.shared.clone();
        let observed = shared.observed.load(Ordering::Relaxed);
        let (began, cpu) = (Instant::now(), observed.then(thread_cpu));
        let order = shared.plan.order.epoch(slice.epoch);
        let draws = crate::random::key(shared.plan.spec.seed, slice.epoch, 0);
        let rows = slice.writer.rows();
        let mut outcome = Outcome::default();
        let every = if self.mean > Duration::from_micros(50) { 1 } else { TIMED };
        for row in rows.clone() {
            let look = match (row as u64).is_multiple_of(every) {
                _ if !observed => Look::Away,
                true if every == 1 && (row as u64).is_multiple_of(ON_CORE) => Look::Cores,
                true => Look::Times,
                false => Look::Away,
            };
            match self.make_row(&shared.plan, &order, draws, &mut slice, row, look, &mut outcome) {
                Ok(()) => {}
                Err(Some(error)) => {
                    outcome.error.get_or_insert((row as u64, error));
                }
                Err(None) => break,
            }
        }
        let time = began.elapsed();
        let cpu = cpu.map_or(Duration::ZERO, |before| thread_cpu().saturating_sub(before));
        let times = Times { wall: time, cpu };
        // A mean that follows within a few slices and is not thrown by one.
        self.mean = (self.mean * 3 + time / (rows.len().max(1) as u32)) / 4;
        shared.counters[self.number].finished(rows.len() as u64, times);
        if let Some(mut whole) = shared.flow.finish(slice, outcome) {
            self.mix(&mut whole, every);
            // All rows were in hand, so there is nothing more to close.
            let _ = shared.flow.finish(whole, Outcome::default());
        }
    }

    /// Mixes a whole batch, which is a part of transforming it. Of its samples, one in `every` is
    /// timed.
    fn mix(&self, whole: &mut Slice, every: u64) {
        let (shared, began) = (&*self.shared, Instant::now());
        let cpu = shared.observed.load(Ordering::Relaxed).then(thread_cpu);
        mix(&shared.plan, whole);
        let Some(before) = cpu else { return };
        let (ended, counters) = (Instant::now(), &shared.counters[self.number]);
        let times = Times { wall: ended - began, cpu: thread_cpu().saturating_sub(before) };
        counters.finished(0, times);
        counters.part(Part::Transform, times.wall / every as u32);
        if let Some(timeline) = shared.timeline.get() {
            let (begin, end) = (timeline.at(began), timeline.at(ended));
            let span = Span { activity: Activity::Transform, begin, end, batch: whole.batch };
            timeline.worker(self.number).into_iter().for_each(|lane| lane.push(span));
        }
    }

    /// Makes one row, with a stand-in if its sample is bad and that is allowed. `Err(None)` means
    /// that the slice is not wanted any more.
    #[allow(clippy::too_many_arguments)]
    fn make_row(
        &mut self,
        plan: &Plan,
        order: &EpochOrder<'_>,
        draws: u64,
        slice: &mut Slice,
        row: usize,
        look: Look,
        outcome: &mut Outcome,
    ) -> Result<(), Option<Error>> {
        // The row that nobody sees is another rank's, and its failures are counted there.
        let unseen = row as u64 >= plan.batches.rows(slice.batch);
        let place = if unseen {
            plan.batches.before(slice.batch)
        } else {
            plan.batches.row(slice.batch, row as u64)
        };
        let mut pick = order.pick(place.position);
        let mut attempt = 0;
        // Whether all that failed were too large, which is then a matter of the setting.
        let mut all_too_large = true;
        loop {
            let mark = slice.mark();
            let made = self.make_sample(plan, pick, (draws, place.draws), slice, row, look);
            if made.is_err() {
                slice.rewind(mark);
            }
            let (stage, fault) = match made {
                Ok(()) => return Ok(()),
                // The process has no more files to give: no sample is to be skipped for that.
                Err(Trouble::Fault(stage, Fault::Io(error))) if store::is_exhausted(&error) => {
                    let error = plan.error(pick, stage, Fault::Io(error));
                    return Err(Some(Error::System(format!("{error}: raise ulimit -n"))));
                }
                Err(Trouble::Fault(stage, fault)) => {
                    all_too_large = false;
                    (stage, fault)
                }
                Err(Trouble::TooLarge(need)) => {
                    let text = format!(
                        "needs {} to read, decode and transform, and memory leaves {} for a sample: raise memory, or lower decode.max_pixels to refuse such images",
                        show_bytes(need),
                        show_bytes(plan.sample_memory)
                    );
                    (Stage::Decode, Fault::TooLarge(text))
                }
                Err(Trouble::Cancelled) => return Err(None),
                Err(Trouble::CacheFull(text)) => return Err(Some(Error::Cache(text))),
                Err(Trouble::Memory(need)) => match self.wait_for_memory(slice, row, need) {
                    Grant::Granted | Grant::Wait => continue,
                    Grant::Cancelled => return Err(None),
                    Grant::Held(bytes) => {
                        return Err(Some(Error::Memory(held_message(bytes, plan.memory))));
                    }
                    // Not the sample's fault: the batch's other rows take what it needs.
                    Grant::Never(most) => {
                        let text = format!(
                            "needs {} to decode and transform, {} are left beside the batch: raise memory, or lower batch_size",
                            show_bytes(need),
                            show_bytes(most)
                        );
                        let error = plan.error(pick, Stage::Decode, Fault::TooLarge(text));
                        if plan.purpose == Purpose::Check {
                            outcome.failures.push(Failure { row: row as u64, pick, error });
                            return Ok(());
                        }
                        return Err(Some(Error::Memory(error.to_string())));
                    }
                },
            };
            let error: SampleError = plan.error(pick, stage, fault);
            if attempt == SUBSTITUTES && all_too_large {
                return Err(Some(Error::Memory(format!(
                    "{} samples in a row do not fit, the last: {error}",
                    SUBSTITUTES + 1
                ))));
            }
            if plan.spec.on_error == OnError::Raise || attempt == SUBSTITUTES {
                return Err(Some(Error::Sample(Box::new(error))));
            }
            if !unseen {
                outcome.failures.push(Failure { row: row as u64, pick, error });
            }
            if plan.purpose == Purpose::Check {
                return Ok(());
            }
            pick = order.substitute(place, attempt);
            attempt += 1;
        }
    }

    fn wait_for_memory(&mut self, slice: &Slice, row: usize, need: u64) -> Grant {
        let began = Instant::now();
        self.give_scratch_back();
        let grant = self.shared.flow.wait_for_scratch(slice, row as u64, need);
        if grant == Grant::Granted {
            self.granted = need;
        }
        let ended = Instant::now();
        self.shared.counters[self.number].waited_for_memory(ended - began);
        if let Some(timeline) = self.shared.timeline.get() {
            let (begin, end) = (timeline.at(began), timeline.at(ended));
            let span = Span { activity: Activity::Memory, begin, end, batch: slice.batch };
            timeline.worker(self.number).into_iter().for_each(|lane| lane.push(span));
        }
        grant
    }

    fn make_sample(
        &mut self,
        plan: &Plan,
        pick: Pick,
        draws: (u64, u64),
        slice: &mut Slice,
        row: usize,
        look: Look,
    ) -> Result<(), Trouble> {
        let shared = self.shared.clone();
        let recorder = shared
            .timeline
            .get()
            .and_then(|timeline| Some((timeline, timeline.worker(self.number)?, slice.batch)));
        let mut watch = Stopwatch::start(&shared.counters[self.number], look, recorder);
        // A panic in a decoder is that sample's error. What it left behind is thrown away.
        let made = catch_unwind(AssertUnwindSafe(|| {
            self.make_fields(plan, pick, draws, slice, row, &mut watch)?;
            watch.finished();
            Ok(())
        }));
        made.unwrap_or_else(|payload| {
            self.decoder = Decoder::new();
            self.scratch = Scratch::default();
            Err(Trouble::Fault(Stage::Decode, Fault::Panic(panic_text(&*payload))))
        })
    }

    fn make_fields(
        &mut self,
        plan: &Plan,
        pick: Pick,
        draws: (u64, u64),
        slice: &mut Slice,
        row: usize,
        watch: &mut Stopwatch<'_>,
    ) -> Result<(), Trouble> {
        let source: &dyn Source = &*plan.sources[pick.source];
        self.alone = 0;
        let image_field = plan.image.as_ref().map(|image| image.field);
        let mixed_label = plan.mixing.as_ref().map(|mixing| mixing.label);
        for field in 0..plan.layout.fields().len() {
            match &plan.image {
                Some(image) if image_field == Some(field) => {
                    let value = source.value(pick.index, field).map_err(in_read)?;
                    let out = slice.writer.row(field, row);
                    let mut sample = Sample { plan, pick, draws, out, watch };
                    self.make_image(&mut sample, image, &value)?;
                }
                _ if mixed_label == Some(field) => {
                    let value = source.value(pick.index, field).map_err(in_read)?;
                    let written = slice.writer.write_class(field, row, &value);
                    written.map_err(|fault| Trouble::Fault(Stage::Collate, fault))?;
                    watch.lap(Part::Copy);
                }
                _ => self.copy_field(plan, pick, field, slice, row, watch)?,
            }
        }
        Ok(())
    }

    /// A field that is not decoded.
    fn copy_field(
        &mut self,
        plan: &Plan,
        pick: Pick,
        field: usize,
        slice: &mut Slice,
        row: usize,
        watch: &mut Stopwatch<'_>,
    ) -> Result<(), Trouble> {
        let flow = self.shared.flow.clone();
        // What was granted and is not in use may become memory of the batch.
        let held = (self.encoded.len() + self.scratch.held()) as u64;
        let unused = self.granted.saturating_sub(held);
        let mut left = unused;
        let most = plan.sample_memory.saturating_sub(self.alone);
        let written = fields::write(plan, &flow, pick, field, slice, row, (&mut left, most));
        self.granted -= unused - left;
        let length = written.map_err(|hindrance| match hindrance {
            Hindrance::Fault(stage, fault) => Trouble::Fault(stage, fault),
            // What the other fields take is needed again when the row is made again.
            Hindrance::Memory(need) => match need.saturating_add(self.alone) {
                need if need > plan.sample_memory => Trouble::TooLarge(need),
                need => Trouble::Memory(need),
            },
            Hindrance::Cancelled => Trouble::Cancelled,
        })?;
        if plan.read_field != Some(field) {
            watch.lap(Part::Copy);
            return Ok(());
        }
        watch.counters().read(length as u64);
        let time = watch.lap(Part::Read);
        self.note_read(plan, (pick, field), time, length);
        Ok(())
    }

    /// Slow reads make the engine look ahead, and the places of the slowest are kept.
    fn note_read(
        &mut self,
        plan: &Plan,
        (pick, field): (Pick, usize),
        time: Option<Duration>,
        length: usize,
    ) {
        let shared = self.shared.clone();
        let places = &shared.slow_places;
        if let Some(time) = time {
            let slow = self.pace.note(time);
            if (slow || places.any())
                && let Ok(value) = plan.sources[pick.source].value(pick.index, field)
                && let Some(location) = value.location()
            {
                match slow {
                    true => places.slow(&location, time, &self.pace),
                    false => places.other(&location),
                }
            }
        }
        if time.is_some_and(|time| self.reads.note(time, length)) {
            shared.ahead.begin(&shared, length);
        }
        shared.ahead.moved_on(length);
    }

    fn make_image(
        &mut self,
        sample: &mut Sample<'_, '_>,
        field: &ImageField,
        value: &Value<'_>,
    ) -> Result<(), Trouble> {
        let plan = sample.plan;
        if let Pixels::Array { view, pixel_type } = &field.pixels {
            let Value::Bytes(bytes) = value else {
                return Err(in_transform(Fault::Shape("is not an array".to_owned())));
            };
            let pixels = image::Pixels::from_bytes(bytes, *pixel_type).map_err(in_transform)?;
            return self.make_from_pixels(sample, pixels, *view);
        }
        if let Value::Pixels { location, height, width, channels } = *value {
            let shape = ImageShape { height, width, channels };
            return self.make_from_stored(sample, field, location, shape);
        }
        let shared = self.shared.clone();
        let cache = shared.caches.get(sample.pick.source);
        if let Some(kept) = cache.and_then(|cache| cache.get(sample.pick.index)) {
            sample.watch.counters().cache_hit();
            // What is left for the other fields does not depend on where the image comes from.
            self.alone = self.alone.max(kept.need);
            let [height, width, channels] = kept.shape.map(|n| n as usize);
            if channels > 0 {
                let view = View::interleaved(height, width, channels);
                return self.make_from_pixels(sample, image::Pixels::U8(&kept.bytes), view);
            }
            return self.make_from_encoded(sample, &kept.bytes, None, None);
        }
        match value {
            Value::Bytes(bytes) => self.make_from_encoded(sample, bytes, None, cache),
            Value::File(_) | Value::Made => {
                // The bytes leave `self` while they are used, so that the rest can be borrowed.
                let mut slab = std::mem::take(&mut self.encoded);
                let made = self.read(plan, sample.pick, value, &mut slab).and_then(|length| {
                    sample.watch.counters().read(length as u64);
                    let time = sample.watch.lap(Part::Read);
                    self.note_read(plan, (sample.pick, field.field), time, length);
                    let held = slab.len();
                    let bytes = slab.at_least(length).map_err(in_read)?;
                    self.make_from_encoded(sample, bytes, Some(held), cache)
                });
                self.encoded = slab;
                made
            }
            _ => Err(in_read(Fault::Shape("is not an image".to_owned()))),
        }
    }

    /// Reads the rows that the transforms look at, all of them with one call, and goes on from
    /// there: they stay in the cache between the two.
    fn make_from_stored(
        &mut self,
        sample: &mut Sample<'_, '_>,
        field: &ImageField,
        location: Location<'_>,
        shape: ImageShape,
    ) -> Result<(), Trouble> {
        let (plan, (key, position)) = (sample.plan, sample.draws);
        let ImageShape { height, width, channels } = shape;
        let mut excerpt = match plan.purpose {
            Purpose::Load => plan.chain.excerpt(shape, key, position, true),
            Purpose::Check => Excerpt::whole(height, width),
        };
        (excerpt.part.left, excerpt.part.width) = (0, width);
        let (begins, row) = (location.range.map_or(0, |(start, _)| start), width * channels);
        let (above, rows) = (excerpt.part.top * row, excerpt.part.height);
        let range = Some((begins + above as u64, (rows * row) as u64));
        let value = Value::File(Location { range, ..location });
        // The bytes leave `self` while they are used, so that the rest can be borrowed.
        let mut slab = std::mem::take(&mut self.encoded);
        let made = self.read(plan, sample.pick, &value, &mut slab).and_then(|length| {
            sample.watch.counters().read(length as u64);
            let time = sample.watch.lap(Part::Read);
            self.note_read(plan, (sample.pick, field.field), time, length);
            if plan.purpose == Purpose::Check {
                return Ok(());
            }
            let held = slab.len();
            let rest = plan.chain.scratch(shape, PixelType::U8);
            let encoded = room_for(length);
            self.reserve(Need { encoded, rest, ..Need::default() }, held)?;
            let pixels = image::Pixels::U8(slab.at_least(length).map_err(in_read)?);
            let view = View::interleaved(rows, width, channels);
            let image = Image::borrowed(&mut self.scratch, pixels, view).map_err(in_transform)?;
            sample.transform(image.as_excerpt(excerpt))
        });
        self.encoded = slab;
        made
    }

    fn make_from_pixels(
        &mut self,
        sample: &mut Sample<'_, '_>,
        pixels: image::Pixels<'_>,
        view: View,
    ) -> Result<(), Trouble> {
        let shape = ImageShape { height: view.height, width: view.width, channels: view.channels };
        let rest = sample.plan.chain.scratch(shape, pixels.pixel_type());
        self.reserve(Need { rest, ..Need::default() }, self.encoded.len())?;
        let image = Image::borrowed(&mut self.scratch, pixels, view).map_err(in_transform)?;
        sample.transform(image)
    }

    /// The encoded bytes lie in the worker's slab of `slab` bytes, or elsewhere if there is none.
    fn make_from_encoded(
        &mut self,
        sample: &mut Sample<'_, '_>,
        bytes: &[u8],
        slab: Option<usize>,
        cache: Option<&Cache>,
    ) -> Result<(), Trouble> {
        let plan = sample.plan;
        if let Some(decoded) = plan.recorded.as_ref().and_then(|all| all.image(sample.draws.1)) {
            return self.make_from_recorded(sample, decoded, slab);
        }
        let (header, shape) = self.prepare(plan, bytes, slab)?;
        if plan.purpose == Purpose::Check {
            let decoded = self.decoder.decode(bytes, &header, &plan.decode, &mut self.scratch);
            return decoded.map(|_| ()).map_err(in_decode);
        }
        let cache = cache.zip(plan.spec.cache.as_ref());
        if let Some((cache, spec)) = cache {
            let mut kept = true;
            if !spec.decoded {
                kept = cache.put(sample.pick.index, bytes, [0; 3], self.alone);
            } else if let Ok(image) =
                // What fails as a whole may still be good where it is looked at.
                self.decoder.decode(bytes, &header, &plan.decode, &mut self.scratch)
            {
                kept = keep_pixels(cache, sample.pick, &image, self.alone);
                if kept || !spec.required {
                    sample.watch.lap(Part::Decode);
                    return sample.transform(image);
                }
            }
            if !kept && spec.required {
                return Err(Trouble::CacheFull(no_room(cache)));
            }
        }
        let (key, position) = sample.draws;
        let wanted = plan.chain.excerpt(shape, key, position, plan.decode.exact);
        let image = self
            .decoder
            .decode_part(bytes, &header, &plan.decode, Some(wanted), &mut self.scratch)
            .map_err(in_decode)?;
        sample.watch.lap(Part::Decode);
        sample.transform(image)
    }

    /// What decoding gave before stands for what it would give.
    fn make_from_recorded(
        &mut self,
        sample: &mut Sample<'_, '_>,
        decoded: &DecodedImage,
        slab: Option<usize>,
    ) -> Result<(), Trouble> {
        let DecodedImage { pixels, view, excerpt, draws } = decoded;
        let (height, width, channels) = (excerpt.height, excerpt.width, view.channels);
        let shape = ImageShape { height, width, channels };
        let rest = sample.plan.chain.scratch(shape, PixelType::U8);
        let encoded = slab.unwrap_or(self.encoded.len());
        self.reserve(Need { encoded, rest, ..Need::default() }, encoded)?;
        let image = Image::borrowed(&mut self.scratch, image::Pixels::U8(pixels), *view);
        let image = image.map_err(in_decode)?.as_excerpt(*excerpt);
        sample.draws = *draws;
        sample.watch.lap(Part::Decode);
        sample.transform(image)
    }

    /// Reads an image's bytes into `encoded`; the memory for it is granted first.
    fn read(
        &mut self,
        plan: &Plan,
        pick: Pick,
        value: &Value<'_>,
        encoded: &mut Slab,
    ) -> Result<usize, Trouble> {
        struct Encoded<'a> {
            worker: &'a mut Worker,
            slab: &'a mut Slab,
            length: usize,
            short_of: Option<Trouble>,
        }
        impl Room for Encoded<'_> {
            fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
                let length = usize::try_from(bytes)
                    .map_err(|_| Fault::TooLarge(format!("has {bytes} bytes")))?;
                if length == 0 {
                    return Err(Fault::corrupt("image", "the file is empty"));
                }
                let need = Need { encoded: room_for(length), ..Need::default() };
                if let Err(trouble) = self.worker.reserve(need, self.slab.len()) {
                    self.short_of = Some(trouble);
                    return Err(Fault::Cancelled);
                }
                self.length = length;
                Ok(&mut self.slab.at_least(room_for(length))?[..length])
            }

            fn at_hand(&mut self) -> &mut [u8] {
                // Granted when it was made.
                self.slab.at_least(self.slab.len()).unwrap_or_default()
            }

            fn keep(&mut self, bytes: usize) {
                self.length = bytes;
            }
        }
        let mut room = Encoded { worker: self, slab: encoded, length: 0, short_of: None };
        let read = match (value, &plan.image) {
            (Value::File(location), _) => plan.store.read(location, &mut room),
            (_, Some(image)) => plan.sources[pick.source].read(pick.index, image.field, &mut room),
            _ => Ok(()),
        };
        match (read, room.short_of) {
            (_, Some(trouble)) => Err(trouble),
            (Err(fault), None) => Err(Trouble::Fault(Stage::Read, fault)),
            (Ok(()), None) => Ok(room.length),
        }
    }

    /// Looks at the header and has all the memory granted that the sample will take.
    fn prepare(
        &mut self,
        plan: &Plan,
        bytes: &[u8],
        slab: Option<usize>,
    ) -> Result<(Header, ImageShape), Trouble> {
        let header = decode::probe(bytes, &plan.decode).map_err(in_decode)?;
        let (height, width, channels) = (header.height, header.width, header.channels);
        let shape = ImageShape { height, width, channels };
        let need = Need {
            encoded: slab.map_or(0, |_| room_for(bytes.len())),
            decoded: header.memory,
            rest: plan.chain.scratch(shape, PixelType::U8),
        };
        self.reserve(need, slab.unwrap_or(self.encoded.len()))?;
        Ok((header, shape))
    }

    /// Has all the memory granted that a sample takes, beside what is kept from earlier ones in
    /// the slab for encoded bytes and in the scratch.
    fn reserve(&mut self, need: Need, slab: usize) -> Result<(), Trouble> {
        // Whether a sample can be had must depend neither on those before it nor on what is free.
        let alone = need.encoded.saturating_add(need.decoded).saturating_add(need.rest) as u64;
        if alone > self.shared.plan.sample_memory {
            return Err(Trouble::TooLarge(alone));
        }
        self.alone = self.alone.max(alone);
        let scratch = self.scratch.held_after(need.decoded, need.rest);
        let with_kept = slab.max(need.encoded).saturating_add(scratch) as u64;
        match self.shared.flow.grow(self.granted, with_kept) {
            Grant::Granted => {
                self.granted = self.granted.max(with_kept);
                Ok(())
            }
            Grant::Cancelled => Err(Trouble::Cancelled),
            // What is kept is given back before waiting, so the sample alone counts there.
            _ => Err(Trouble::Memory(alone)),
        }
    }
}

/// Mixes all rows of a batch, each with the one before it.
fn mix(plan: &Plan, whole: &mut Slice) {
    let (Some(mixing), Some(image)) = (&plan.mixing, &plan.image) else { return };
    let mixed = mixing.mix.draw(plan.spec.seed, whole.epoch, whole.batch, &image.output);
    let rows = plan.batches.rows(whole.batch) as usize;
    for field in [image.field, mixing.label] {
        let (bytes, size) = whole.writer.rows_of(field);
        if plan.rank.world == 1 {
            // The last row is about to change, and the first one needs it as it was.
            bytes.copy_within((rows - 1) * size..rows * size, rows * size);
        }
        // From the last row down, so that the one before is still as it was made.
        for row in (0..rows).rev() {
            let (own, other) = match row.checked_sub(1) {
                Some(before) => {
                    let (low, high) = bytes.split_at_mut(row * size);
                    (&mut high[..size], &low[before * size..])
                }
                None => {
                    let (low, high) = bytes.split_at_mut(rows * size);
                    (&mut low[..size], &high[..size])
                }
            };
            if field == image.field {
                mixed.images(&image.output, own, other);
            } else {
                mixed.labels(own, other);
            }
        }
    }
}

/// Room for a file: a byte more, so that the next one of the same size is seen to end in it.
fn room_for(length: usize) -> usize {
    length.saturating_add(1)
}

/// What a panic said.
pub(super) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Keeps decoded pixels for later epochs; false if there is no room.
fn keep_pixels(cache: &Cache, pick: Pick, image: &Image<'_>, need: u64) -> bool {
    let view = image.view();
    match image.pixels() {
        image::Pixels::U8(pixels)
            if view == View::interleaved(view.height, view.width, view.channels) =>
        {
            let shape = [view.height as u32, view.width as u32, view.channels as u32];
            cache.put(pick.index, &pixels[..view.elements()], shape, need)
        }
        // Turned by its EXIF tag: rare enough to decode again.
        _ => true,
    }
}

fn no_room(cache: &Cache) -> String {
    format!(
        "the data set does not fit ({} of {} are used): raise cache.limit, or set cache.required = false to keep what fits",
        show_bytes(cache.used()),
        show_bytes(cache.limit())
    )
}
