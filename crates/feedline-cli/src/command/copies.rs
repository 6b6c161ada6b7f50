//! `feedline bench --device cuda`: does a GPU get the batches, whole, and how fast?

use std::time::{Duration, Instant};

use feedline::device;
use feedline::internals::device::{Measured, copies, measure};
use feedline::internals::spec::{parse_bytes, show_bytes};
use feedline::sample::DType;
use feedline::source::{Arrays, Column};
use feedline::{DeviceLoader, Loader};
use serde_json::json;

use crate::output::{Failure, Outcome, Output};
use crate::terminal::{Table, show_seconds};

/// Largest copy: enough for any batch, and six of them still fit most machines.
const MOST: u64 = 2_000_000_000;

/// Batches that go through the prefetcher, and copied ahead.
const BATCHES: u64 = 16;
const AHEAD: usize = 2;

/// Checks and measures copies to a GPU: pageable, page-locked, beside each other, and prefetched.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The GPU: cuda, cuda:1, ...
    pub(crate) device: String,
    /// Bytes of a batch.
    pub(crate) batch: u64,
    /// Copies of each kind; the median counts.
    pub(crate) rounds: u64,
}

pub(crate) fn batch_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text) {
        Some(bytes @ 1..=MOST) => Ok(bytes),
        Some(_) => Err(format!("allowed: 1 byte to {}", show_bytes(MOST))),
        None => Err("allowed: bytes as a number, or text such as 38MB".to_owned()),
    }
}

impl Copies {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        let device = device::open(&self.device).map_err(feedline::Error::from)?;
        let copies = copies(self.rounds);
        let progress = output.progress(copies + BATCHES, "copies");
        let measured =
            measure(&device, self.batch as usize, self.rounds, &|done| progress.set(done))?;
        let (batches_wrong, prefetched) =
            self.prefetch(device.clone(), &|done| progress.set(copies + done))?;
        progress.finish();
        let whole = measured.wrong == 0 && batches_wrong == 0;
        if output.is_json() {
            let seconds = |time: Duration| time.as_secs_f64();
            output.json(&json!({
                "command": "bench",
                "device": format!("cuda:{}", device.number()),
                "name": device.name(),
                "batch_bytes": measured.bytes,
                "rounds": self.rounds,
                "pageable_seconds": seconds(measured.pageable),
                "pinned_seconds": seconds(measured.pinned),
                "queueing_seconds": seconds(measured.queueing),
                "back_seconds": seconds(measured.back),
                "both_seconds": seconds(measured.both),
                "overlap": measured.overlap(),
                "locking_seconds": seconds(measured.locking),
                "prefetch_seconds_per_batch": seconds(prefetched),
                "wrong_copies": measured.wrong,
                "wrong_batches": batches_wrong,
                "verified": whole,
            }))?;
        } else {
            let name = format!("{} (cuda:{})", device.name(), device.number());
            output.heading(&format!("{name}, copies of {}", show_bytes(self.batch)))?;
            self.print(output, &measured, prefetched)?;
            output.line(&match (measured.wrong, batches_wrong) {
                (0, 0) => "every byte came back as it was sent".to_owned(),
                (copies, batches) => {
                    format!("WRONG BYTES: {copies} copies and {batches} prefetched batches")
                }
            })?;
        }
        Ok(if whole { Outcome::Success } else { Outcome::BadSamples })
    }

    fn print(
        &self,
        output: &mut Output,
        measured: &Measured,
        prefetched: Duration,
    ) -> Result<(), Failure> {
        let mut table = Table::new(["copy", "time", "GB/s"]);
        let bytes = measured.bytes as f64;
        for (name, time, moved) in [
            ("pageable memory to the GPU", measured.pageable, bytes),
            ("page-locked memory to the GPU", measured.pinned, bytes),
            ("GPU to page-locked memory", measured.back, bytes),
            ("both ways at once", measured.both, 2.0 * bytes),
            ("loader's batches, 2 ahead", prefetched, bytes),
        ] {
            let seconds = time.as_secs_f64();
            let rate = format!("{:.2}", moved / seconds.max(1e-9) / 1e9);
            table.row([name.to_owned(), show_seconds(seconds), rate]);
        }
        output.table(&table)?;
        output.line(&format!(
            "the program is held up for {} a copy; {:.0} % of two copies in opposite directions overlap; page-locking takes {} once",
            show_seconds(measured.queueing.as_secs_f64()),
            measured.overlap() * 100.0,
            show_seconds(measured.locking.as_secs_f64()),
        ))
    }

    /// Runs a loader's batches through the prefetcher: how many differ from those on the host, and
    /// the time of one, the comparison left out.
    fn prefetch(
        &self,
        device: std::sync::Arc<dyn device::Device>,
        progress: &dyn Fn(u64),
    ) -> Result<(u64, Duration), Failure> {
        let row = (self.batch as usize / 4).max(1);
        // Four rows a batch, of the eight that there are: enough for batches to differ.
        let bytes: Vec<u8> =
            (0..8 * row).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let make = || {
            let rows = Column::new("row", DType::U8, &[8, row], bytes.clone());
            Loader::over(Arrays::new(vec![rows])?)
                .batch_size(4)
                .num_samples(4 * BATCHES)
                .replacement(true)
                .build()
        };
        let mut host = make()?;
        host.begin_epoch();
        let mut on_device = DeviceLoader::new(make()?, device, AHEAD, true)?;
        on_device.begin_epoch();
        let (mut wrong, mut times, mut done) = (0, Duration::ZERO, 0);
        loop {
            let began = Instant::now();
            let Some(batch) = on_device.next_batch() else { break };
            let (batch, _) = batch?;
            batch.hand_to_anybody().map_err(feedline::Error::from)?;
            times += began.elapsed();
            let expected = host.next_batch().transpose()?.map(|batch| batch.hash());
            wrong += u64::from(expected != Some(batch.hash().map_err(feedline::Error::from)?));
            done += 1;
            progress(done);
        }
        wrong += BATCHES.abs_diff(done);
        Ok((wrong, times / done.max(1) as u32))
    }
}
