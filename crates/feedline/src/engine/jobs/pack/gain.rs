//! How much faster a packed set loads: measured, on some of the samples.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Pack;
use crate::catalog::Catalog;
use crate::engine::jobs::trial;
use crate::error::Result;
use crate::order::Permutation;
use crate::pack::TemporaryFolder;
use crate::spec::{OnError, OpSpec, SourceKind, Spec, Subset, Workers};

/// Samples that stand for all.
const SAMPLE: u64 = 256;

/// How long packing some of them may take, and each measurement. The best of several counts: what
/// else the machine does only ever slows one down.
const PACKING: Duration = Duration::from_millis(500);
const LOADING: Duration = Duration::from_millis(120);
const ROUNDS: usize = 5;

/// Samples a second for what [`Pack::trial_work`] says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gain {
    /// From the source.
    pub before: f64,
    /// From the packed set.
    pub after: f64,
}

/// What packing will bring, from a short trial.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expectation {
    /// Samples that were looked at.
    pub looked_at: u64,
    /// Bytes of the whole source.
    pub before: u64,
    /// Bytes of the whole packed set.
    pub after: u64,
    /// Seconds that packing takes.
    pub seconds: f64,
    /// Loading, before and after; `None` if no sample could be loaded.
    pub gain: Option<Gain>,
}

/// Seconds for so many samples, from rounds of some: beginning and ending take their time whatever
/// the number, so what one more sample takes is the difference of two rounds.
fn predict_seconds(rounds: &[(f64, f64)], samples: f64) -> f64 {
    match rounds {
        [(few, short), .., (many, long)] if many > few && long > short => {
            short + (long - short) / (many - few) * (samples - few).max(0.0)
        }
        [.., (count, seconds)] => seconds / count.max(1.0) * samples,
        [] => 0.0,
    }
}

/// Bytes of so many samples, likewise. A file that did not grow was one block that is not full yet:
/// then it grows as the source does, of which `before` are the bytes.
fn predict_bytes(rounds: &[(f64, f64)], samples: f64, before: f64) -> f64 {
    match rounds {
        [(few, small), .., (many, large)] if many > few && large <= small && samples > *many => {
            large.max(before)
        }
        _ => predict_seconds(rounds, samples),
    }
}

/// A folder with some samples, packed. It goes when this is dropped.
#[derive(Debug)]
pub struct PackedPart {
    /// Also holds what is on its way to become the folder.
    _around: TemporaryFolder,
    folder: PathBuf,
    chosen: Vec<u64>,
}

impl PackedPart {
    fn new() -> Result<Self> {
        let around = TemporaryFolder::new("trial")?;
        let folder = around.path().join("packed");
        Ok(PackedPart { _around: around, folder, chosen: Vec::new() })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The numbers that its samples have in the source.
    #[must_use]
    pub fn chosen(&self) -> &[u64] {
        &self.chosen
    }
}

impl Pack {
    /// Packs some samples into a temporary folder and loads them from both places: a second or two.
    pub fn expect(&self) -> Result<Expectation> {
        let part = PackedPart::new()?;
        let all = self.source.len().min(SAMPLE);
        // Samples with seconds and with bytes of each round: the first few show whether there is
        // time for more. Two are needed to see what grows with the samples.
        let (mut rounds, mut sizes) = (Vec::new(), Vec::new());
        let mut count = (self.workers as u64).min(all / 2).max(1);
        let (chosen, written) = loop {
            let _ = std::fs::remove_dir_all(&part.folder);
            let chosen = self.spread(count);
            let began = Instant::now();
            let written = self.write(&part.folder, Some(&chosen), &|_| (), &|| false)?;
            let took = began.elapsed();
            rounds.push((chosen.len() as f64, took.as_secs_f64()));
            sizes.push((chosen.len() as f64, written.after as f64));
            let long = took > PACKING / 4;
            if count == all || long && rounds.len() > 1 {
                break (chosen, written);
            }
            count = (count * if long { 2 } else { 8 }).min(all);
        };
        let samples = self.source.len() as f64;
        let before = written.before as f64 / chosen.len() as f64 * samples;
        Ok(Expectation {
            looked_at: chosen.len() as u64,
            before: before as u64,
            after: predict_bytes(&sizes, samples, before) as u64,
            seconds: predict_seconds(&rounds, samples),
            gain: self.gain(&part.folder, &chosen, false),
        })
    }

    /// Packs some samples into a temporary folder.
    pub(in crate::engine::jobs) fn some(&self, count: u64) -> Result<PackedPart> {
        self.part(count, &|_| (), &|| false)
    }

    /// Packs `count` samples of all parts of the source into a temporary folder. `progress` hears how
    /// many are done; it ends early, with an error, when `stop` says so.
    pub fn part(
        &self,
        count: u64,
        progress: &(dyn Fn(u64) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<PackedPart> {
        let mut part = PackedPart::new()?;
        part.chosen = self.spread(count);
        self.write(&part.folder, Some(&part.chosen), progress, stop)?;
        Ok(part)
    }

    /// What loading does in a trial, in words.
    #[must_use]
    pub fn trial_work(&self) -> &'static str {
        match (self.image, self.options.decoded) {
            (Some(_), false) => "RandomResizedCrop(224), flip and floats",
            (Some(_), true) if !self.options.transforms.is_empty() => {
                "the transforms, which are done already in the packed set"
            }
            _ => "loading without transforms",
        }
    }

    /// True if both sides of a trial give the same, so that their rates can be compared: what is
    /// stored as images again has lost work to packing that the source's side does not do.
    #[must_use]
    pub fn is_fair_trial(&self) -> bool {
        self.options.decoded || self.options.transforms.is_empty()
    }

    /// True if samples have an image.
    #[must_use]
    pub fn has_images(&self) -> bool {
        self.image.is_some()
    }

    /// What was gained by a set that is packed.
    #[must_use]
    pub fn measure(&self, packed: &Path) -> Option<Gain> {
        let chosen = self.spread(SAMPLE);
        self.gain(packed, &chosen, true)
    }

    /// Samples without a pattern that sizes could share.
    fn spread(&self, count: u64) -> Vec<u64> {
        let all = Permutation::new(self.source.len(), 7);
        let mut chosen: Vec<u64> =
            (0..count.clamp(1, self.source.len())).map(|number| all.apply(number)).collect();
        chosen.sort_unstable();
        chosen
    }

    /// Loads `chosen` from the source, and the packed set, of which only those are used if it
    /// `has_all`. In turns, so that what else the machine does falls on both.
    fn gain(&self, packed: &Path, chosen: &[u64], has_all: bool) -> Option<Gain> {
        // Samples that were left out move the numbers of those behind them: others stand for them.
        let samples = Catalog::read(packed).ok()??.samples;
        let mut in_packed = chosen.to_vec();
        in_packed.retain(|sample| has_all && *sample < samples);
        let mut gain = Gain::default();
        for _ in 0..ROUNDS {
            gain.before = gain.before.max(self.rate(
                self.kind.clone(),
                &self.options.transforms,
                Some(chosen),
            )?);
            let subset = Some(in_packed.as_slice()).filter(|some| !some.is_empty());
            let packed = SourceKind::Path(packed.to_owned());
            gain.after = gain.after.max(self.rate(packed, &[], subset)?);
        }
        Some(gain)
    }

    /// `decoded` are the transforms of a side whose pixels are to be as they are packed.
    fn rate(&self, source: SourceKind, decoded: &[OpSpec], subset: Option<&[u64]>) -> Option<f64> {
        let spec = Spec {
            sources: vec![source.into()],
            transforms: match self.image {
                Some(_) if !self.options.decoded => trial::usual_transforms(),
                Some(_) => decoded.to_vec(),
                None => Vec::new(),
            },
            batch_size: 32,
            shuffle: true,
            num_workers: Workers::Count(self.workers as u64),
            on_error: OnError::Skip,
            subset: subset.map(|some| Subset::Indices(some.to_vec())),
            rank: Some(0),
            world_size: Some(1),
            ..Spec::default()
        };
        Some(trial::rate(spec, LOADING).ok()??.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::{predict_bytes, predict_seconds};

    #[test]
    fn what_does_not_grow_with_the_samples_is_counted_once() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(predict_seconds(&[(4.0, 0.14), (32.0, 0.42)], 1004.0), 0.14 + 10.0);
        near(predict_seconds(&[(4.0, 0.4)], 40.0), 4.0);
        near(predict_seconds(&[(4.0, 0.4), (32.0, 0.3)], 64.0), 0.6);
        // A file with a head of 2,000 bytes, and one of a block that holds all so far.
        near(predict_bytes(&[(2.0, 2200.0), (16.0, 3600.0)], 1000.0, 0.0), 102_000.0);
        near(predict_bytes(&[(2.0, 8192.0), (16.0, 8192.0)], 100.0, 800.0), 8192.0);
        near(predict_bytes(&[(2.0, 8192.0), (16.0, 8192.0)], 1e6, 8e6), 8e6);
        near(predict_bytes(&[(2.0, 8192.0), (16.0, 8192.0)], 16.0, 9e9), 4096.0 * 2.0);
    }
}
