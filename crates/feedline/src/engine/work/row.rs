//! Makes one row, with stand-ins for samples that fail.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::image::Sample;
use super::{Trouble, Worker, in_read, panic_text};
use crate::decode::Decoder;
use crate::engine::fields::{self, Hindrance};
use crate::engine::flow::{Failure, Grant, Outcome, Slice, held_message};
use crate::engine::plan::{Plan, Purpose};
use crate::error::{Error, Fault, SampleError, Stage};
use crate::image::Scratch;
use crate::observe::{Look, Stopwatch, WorkPart};
use crate::order::{EpochOrder, Pick};
use crate::source::Source;
use crate::spec::OnError;
use crate::spec::read::show_bytes;
use crate::store;

/// How many stand-ins are tried for one bad sample. With half of the set bad, all fail once in
/// four billion rows.
const SUBSTITUTES: u32 = 32;

impl Worker {
    /// Makes one row, with a stand-in if its sample is bad and that is allowed. `Err(None)` means
    /// that the slice is not wanted any more.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn make_row(
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
                    watch.lap(WorkPart::Copy);
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
            watch.lap(WorkPart::Copy);
            return Ok(());
        }
        watch.counters().read(length as u64);
        let time = watch.lap(WorkPart::Read);
        self.note_read(plan, (pick, field), time, length);
        Ok(())
    }
}
