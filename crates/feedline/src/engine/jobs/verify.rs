//! Reads and decodes every sample once and says which are bad: a run of the engine whose batches
//! hold nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::engine::flow::Cursor;
use crate::engine::plan::Plan;
use crate::engine::run::Engine;
use crate::error::{Result, SampleError};
use crate::spec::Spec;

/// What a check went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Samples that were checked.
    pub samples: u64,
    /// How many of them are bad.
    pub bad: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// A data set that can be checked: all samples of a spec's sources, also those that its `subset`
/// leaves out.
pub struct Verify {
    plan: Arc<Plan>,
}

impl Verify {
    /// Opens the sources. Of the rest of the spec, `decode`, `num_workers` and `memory` count.
    pub fn open(spec: &Spec) -> Result<Verify> {
        Ok(Verify { plan: Arc::new(Plan::to_check(spec)?) })
    }

    /// Samples of all sources.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.plan.order.samples()
    }

    /// Threads that will check.
    #[must_use]
    pub fn num_workers(&self) -> usize {
        self.plan.workers
    }

    /// What the sources are called.
    #[must_use]
    pub fn source_names(&self) -> Vec<String> {
        self.plan.sources.iter().map(|source| source.name()).collect()
    }

    /// Checks every sample. `progress` hears how many are done; `bad` gets the bad ones in their
    /// order and may end the check.
    pub fn run(
        &self,
        progress: &dyn Fn(u64),
        bad: &mut dyn FnMut(SampleError) -> ControlFlow<()>,
    ) -> Result<Verified> {
        let mut engine = Engine::new(self.plan.clone(), Cursor::at(0, 0));
        let mut verified = Verified::default();
        'all: for _ in 0..self.plan.batches.count() {
            let mut done = engine.next(None)?;
            let mut outcome = std::mem::take(&mut done.outcome);
            verified.samples += done.rows;
            engine.discard(done);
            if let Some((_, error)) = outcome.error {
                return Err(error);
            }
            outcome.failures.sort_by_key(|failure| failure.row);
            for failure in outcome.failures {
                verified.bad += 1;
                if bad(failure.error).is_break() {
                    break 'all;
                }
            }
            progress(verified.samples);
        }
        verified.bytes = engine.monitor().stats().work.bytes_read;
        Ok(verified)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Workers;

    /// A folder of 60 grey images of very different sizes, every seventh of them cut.
    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("feedline-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..60usize {
            let side = 1 + number * number % 97 * 6;
            let mut bytes = format!("P5 {side} {side} 255\n").into_bytes();
            bytes.resize(bytes.len() + side * side, number as u8);
            bytes.truncate(bytes.len() - usize::from(number % 7 == 0));
            std::fs::write(folder.join(format!("{number:02}.pgm")), bytes).unwrap();
        }
        folder
    }

    #[test]
    fn finds_the_bad_ones_in_order_with_little_memory() {
        let folder = folder("verify");
        let wanted: Vec<u64> = (0..60).step_by(7).collect();
        // The largest sample takes 1.4 MB, so eight workers have to stand in line for 1.6 MB.
        for (workers, memory) in [(0, None), (8, None), (8, Some(1_600_000)), (3, Some(1_600_000))]
        {
            let spec = Spec {
                sources: vec![folder.clone().into()],
                num_workers: Workers::Count(workers),
                memory,
                ..Spec::default()
            };
            let mut found = Vec::new();
            let verified = Verify::open(&spec)
                .unwrap()
                .run(&|_| {}, &mut |error| {
                    found.push(error.index);
                    ControlFlow::Continue(())
                })
                .unwrap();
            assert_eq!(found, wanted, "{workers} workers, memory {memory:?}");
            assert_eq!((verified.samples, verified.bad), (60, wanted.len() as u64));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_too_large_does_not_depend_on_what_came_before() {
        let folder = folder("verify-history");
        let bad = |sources: Vec<crate::spec::SourceSpec>, workers| {
            let num_workers = Workers::Count(workers);
            let memory = Some(1_100_000);
            let spec = Spec { sources, num_workers, memory, ..Spec::default() };
            let mut found = Vec::new();
            let mut take = |error: SampleError| {
                found.push(error.path.unwrap());
                ControlFlow::Continue(())
            };
            Verify::open(&spec).unwrap().run(&|_| {}, &mut take).unwrap();
            found
        };
        // Each file by itself, through a manifest of one line, has no history.
        let mut alone = Vec::new();
        for number in 0..60 {
            let one = folder.join("one.csv");
            std::fs::write(&one, format!("path\n{number:02}.pgm\n")).unwrap();
            alone.extend(bad(vec![one.into()], 1));
        }
        // More than those that are cut, and not all: the limit lies among the sizes.
        assert!((10..60).contains(&alone.len()), "{}", alone.len());
        for workers in [1, 2, 3, 8] {
            assert_eq!(bad(vec![folder.clone().into()], workers), alone, "{workers} workers");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn ends_when_asked_and_names_what_does_not_fit() {
        let folder = folder("verify-end");
        let mut spec = Spec { sources: vec![folder.clone().into()], ..Spec::default() };
        let verify = Verify::open(&spec).unwrap();
        let verified = verify.run(&|_| {}, &mut |_| ControlFlow::Break(())).unwrap();
        assert_eq!(verified.bad, 1);
        spec.memory = Some(1_100_000);
        let mut reasons = Vec::new();
        let verify = Verify::open(&spec).unwrap();
        verify
            .run(&|_| {}, &mut |error| {
                reasons.push(error.to_string());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(reasons.iter().any(|reason| reason.contains("raise memory")), "{reasons:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
