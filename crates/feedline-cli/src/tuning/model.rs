//! How many samples a second so many workers make: a model from what a sample costs.
//!
//! A worker makes one sample after the other. While it waits for bytes another one may use its core,
//! so the rate grows with the workers until they wait no more, and then stands at what the cores do.

use feedline::internals::tune::{Evidence, StageCost, TrainStep};
use serde::{Deserialize, Serialize};

/// Workers beyond so many for each core are never advised.
const MOST_PER_CORE: f64 = 4.0;

/// What a sample costs, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// On a core.
    pub(crate) cpu: f64,
    /// Waiting for bytes, without a core.
    pub(crate) waiting: f64,
}

impl Cost {
    /// From what was measured; `None` if nothing was.
    #[must_use]
    pub(crate) fn of(evidence: &Evidence) -> Option<Cost> {
        let time = &evidence.worker_time;
        let wall: f64 = evidence.stages.iter().map(|stage| stage.seconds).sum();
        let on_core: f64 = evidence.stages.iter().map(|stage| stage.cpu_seconds).sum();
        // Waiting for memory is not in it.
        let work = time.busy;
        if wall <= 0.0 {
            let samples = evidence.samples as f64;
            return (work > 0.0 && samples > 0.0).then(|| Cost {
                cpu: time.cpu.min(work) / samples,
                waiting: (work - time.cpu).max(0.0) / samples,
            });
        }
        let waiting: f64 = evidence.stages.iter().map(StageCost::waiting).sum();
        // A stage's time includes moments without a core, which others had: the workers' processor
        // time does not.
        let cpu =
            if work > 0.0 && time.cpu > 0.0 { wall * (time.cpu / work).min(1.0) } else { on_core };
        Some(Cost { cpu: cpu.min(wall), waiting })
    }

    /// Seconds from a sample's beginning to its end.
    #[must_use]
    pub(crate) fn wall(self) -> f64 {
        self.cpu + self.waiting
    }

    /// Samples a second of so many workers on so many cores.
    #[must_use]
    pub(crate) fn rate(self, workers: f64, cores: f64) -> f64 {
        let made = workers / self.wall().max(1e-12);
        let most = cores / self.cpu.max(1e-12);
        made.min(most)
    }

    /// Workers beyond which no more samples are made on so many cores.
    #[must_use]
    pub(crate) fn useful_workers(self, cores: f64) -> u64 {
        let useful = cores * self.wall() / self.cpu.max(1e-12);
        useful.min(cores * MOST_PER_CORE).ceil().max(1.0) as u64
    }

    /// The fewest workers that make `wanted` samples a second on so many cores; `None` if no number
    /// of them does.
    #[must_use]
    pub(crate) fn workers_for(self, wanted: f64, cores: f64) -> Option<u64> {
        // Rounding must not ask for one more.
        let workers = ((wanted * self.wall() - 1e-9).ceil()).max(1.0) as u64;
        let enough = self.rate(workers as f64, cores) >= wanted * (1.0 - 1e-9);
        (enough && workers <= self.useful_workers(cores)).then_some(workers)
    }
}

/// What the trainer wants.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Demand {
    /// Seconds of a training step.
    pub(crate) step: f64,
    /// Samples of a batch.
    pub(crate) batch_size: f64,
}

impl Demand {
    /// What this step wants of batches with so many samples; a step whose length nobody knows
    /// takes as many as there are.
    #[must_use]
    pub(crate) fn of(step: TrainStep, batch_size: f64) -> Demand {
        Demand { step: step.mean(batch_size).unwrap_or(0.0), batch_size }
    }

    /// Samples a second that keep the trainer busy.
    #[must_use]
    pub(crate) fn rate(self) -> f64 {
        if self.step > 0.0 { self.batch_size / self.step } else { f64::INFINITY }
    }

    /// The share of the time that the trainer waits when it is given so many samples a second.
    #[must_use]
    pub(crate) fn wait_share(self, rate: f64) -> f64 {
        let wanted = self.rate();
        if wanted.is_infinite() { 1.0 } else { (1.0 - rate / wanted).max(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use feedline::internals::tune::WorkerTime;

    use super::*;

    #[test]
    fn the_rate_grows_to_what_the_cores_do() {
        let cost = Cost { cpu: 0.002, waiting: 0.0 };
        assert_eq!(cost.rate(1.0, 8.0), 500.0);
        assert_eq!(cost.rate(8.0, 8.0), 4000.0);
        assert_eq!(cost.rate(16.0, 8.0), 4000.0);
        assert_eq!(cost.useful_workers(8.0), 8);
        // Half of the time a worker waits for bytes: twice as many share the cores.
        let slow = Cost { cpu: 0.002, waiting: 0.002 };
        assert_eq!(slow.rate(8.0, 8.0), 2000.0);
        assert_eq!(slow.rate(16.0, 8.0), 4000.0);
        assert_eq!(slow.useful_workers(8.0), 16);
        // However long it waits, there is an end.
        assert_eq!(Cost { cpu: 0.001, waiting: 1.0 }.useful_workers(2.0), 8);
    }

    #[test]
    fn the_fewest_workers_that_do() {
        let cost = Cost { cpu: 0.002, waiting: 0.0 };
        let demand = Demand { step: 0.1, batch_size: 64.0 };
        assert_eq!(demand.rate(), 640.0);
        assert_eq!(cost.workers_for(demand.rate(), 8.0), Some(2));
        assert_eq!(cost.workers_for(500.0, 8.0), Some(1));
        assert_eq!(cost.workers_for(4000.0, 8.0), Some(8));
        assert_eq!(cost.workers_for(4001.0, 8.0), None);
        assert_eq!(demand.wait_share(640.0), 0.0);
        assert_eq!(demand.wait_share(320.0), 0.5);
        assert_eq!(demand.wait_share(9999.0), 0.0);
        assert_eq!(Demand { step: 0.0, batch_size: 4.0 }.wait_share(1e9), 1.0);
    }

    #[test]
    fn what_a_sample_costs() {
        let stage = |name: &str, seconds, cpu_seconds| StageCost {
            name: name.to_owned(),
            seconds,
            cpu_seconds,
        };
        let mut evidence = Evidence {
            stages: vec![stage("read", 0.004, 0.001), stage("decode", 0.006, 0.006)],
            worker_time: WorkerTime { busy: 10.0, cpu: 7.0, idle: 0.0, memory: 0.0 },
            ..Evidence::default()
        };
        let close = |cost: Cost, cpu: f64, waiting: f64| {
            assert!((cost.cpu - cpu).abs() < 1e-9 && (cost.waiting - waiting).abs() < 1e-9);
        };
        close(Cost::of(&evidence).unwrap(), 0.007, 0.003);
        // Somebody else had the cores for a part of the time: decoding does not wait for bytes.
        evidence.worker_time.cpu = 3.5;
        evidence.stages[1].cpu_seconds = 0.0025;
        close(Cost::of(&evidence).unwrap(), 0.0035, 0.003);
        // Waiting for memory is no part of making samples.
        evidence.worker_time.memory = 9.0;
        close(Cost::of(&evidence).unwrap(), 0.0035, 0.003);
        evidence.stages.clear();
        assert_eq!(Cost::of(&evidence), None);
        evidence.samples = 1000;
        close(Cost::of(&evidence).unwrap(), 0.0035, 0.0065);
    }
}
