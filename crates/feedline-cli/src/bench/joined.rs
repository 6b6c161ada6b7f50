//! The evidence of several runs of one thing, as that of one long run.

use feedline::internals::tune::{Evidence, StageCost};

/// Joins runs of the same configuration. What is counted is added up, what is a mean stays one,
/// and what does not change is the last run's.
#[must_use]
pub(crate) fn joined(runs: &[&Evidence]) -> Option<Evidence> {
    let mut all = Evidence::clone(runs.last()?);
    let count = |of: fn(&Evidence) -> u64| runs.iter().map(|one| of(one)).sum::<u64>();
    let time = |of: fn(&Evidence) -> f64| runs.iter().map(|one| of(one)).sum::<f64>();
    let mean = |of: fn(&Evidence) -> Option<f64>| {
        let known: Vec<f64> = runs.iter().filter_map(|one| of(one)).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    all.batches = count(|one| one.batches);
    all.samples = count(|one| one.samples);
    all.turnovers = count(|one| one.turnovers);
    all.batches_remade = count(|one| one.batches_remade);
    all.wait_seconds = time(|one| one.wait_seconds);
    all.step_seconds = time(|one| one.step_seconds);
    all.worker_time.busy = time(|one| one.worker_time.busy);
    all.worker_time.cpu = time(|one| one.worker_time.cpu);
    all.worker_time.idle = time(|one| one.worker_time.idle);
    all.worker_time.memory = time(|one| one.worker_time.memory);
    let turnover = time(|one| one.turnover_seconds.unwrap_or(0.0) * one.turnovers as f64);
    all.turnover_seconds = (all.turnovers > 0).then(|| turnover / all.turnovers as f64);
    all.first_batch_seconds = mean(|one| one.first_batch_seconds);
    all.interpreter_lock = mean(|one| one.interpreter_lock);
    all.machine_cores_busy = mean(|one| one.machine_cores_busy);
    all.process_cores = mean(|one| one.process_cores);
    all.peak_memory = runs.iter().map(|one| one.peak_memory).max().unwrap_or(0);
    for stage in &mut all.stages {
        let weighted = |of: fn(&StageCost) -> f64| {
            let costs = runs.iter().filter_map(|one| {
                let same = one.stages.iter().find(|other| other.name == stage.name)?;
                Some((of(same) * one.samples as f64, one.samples as f64))
            });
            costs.fold((0.0, 0.0), |sum, (cost, samples)| (sum.0 + cost, sum.1 + samples))
        };
        let (seconds, samples) = weighted(|stage| stage.seconds);
        let (cpu_seconds, _) = weighted(|stage| stage.cpu_seconds);
        if samples > 0.0 {
            (stage.seconds, stage.cpu_seconds) = (seconds / samples, cpu_seconds / samples);
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_as_one_long_run() {
        let run = |samples: u64, wait: f64, decode: f64| Evidence {
            batches: samples / 10,
            samples,
            wait_seconds: wait,
            step_seconds: 1.0,
            turnovers: 2,
            turnover_seconds: Some(wait / 10.0),
            stages: vec![StageCost {
                name: "decode".to_owned(),
                seconds: decode,
                cpu_seconds: decode / 2.0,
            }],
            ..Evidence::default()
        };
        let (first, second) = (run(100, 1.0, 0.003), run(300, 3.0, 0.001));
        let all = joined(&[&first, &second]).unwrap();
        assert_eq!((all.batches, all.samples, all.turnovers), (40, 400, 4));
        assert!((all.wait_share() - 4.0 / 6.0).abs() < 1e-9);
        assert!((all.turnover_seconds.unwrap() - 0.2).abs() < 1e-9);
        assert!((all.stages[0].seconds - 0.0015).abs() < 1e-9, "{:?}", all.stages);
        assert!((all.stages[0].cpu_seconds - 0.00075).abs() < 1e-9);
        assert_eq!(joined(&[&first]), Some(first));
        assert_eq!(joined(&[]), None);
    }
}
