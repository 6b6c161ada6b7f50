//! A simple model of the stages: how fast each could go, and what would be gained without it.

use super::evidence::Evidence;
use super::result::StageRow;

/// What each stage costs, its ceiling, and what the model says of a loader without it. Samples take
/// workers for as long as they take, and cores for as long as they compute; the scarcer of both
/// decides. The model is set to what was measured of everything together.
#[must_use]
pub fn stage_rows(evidence: &Evidence) -> Vec<StageRow> {
    let makers = evidence.workers.max(1) as f64;
    let cores = evidence.cores.max(1.0);
    let waits = |name: &str| name == "read";
    // Who has to share its core takes longer; what it costs is the time on it. Reading also waits.
    let time = |stage: &super::StageCost| match waits(&stage.name) || stage.cpu_seconds <= 0.0 {
        true => stage.seconds,
        false => stage.cpu_seconds,
    };
    let rate = |time: f64, cpu: f64| {
        let by_workers = if time > 0.0 { makers / time } else { f64::INFINITY };
        let by_cores = if cpu > 0.0 { cores / cpu } else { f64::INFINITY };
        by_workers.min(by_cores)
    };
    let all_time: f64 = evidence.stages.iter().map(time).sum();
    let all_cpu: f64 = evidence.stages.iter().map(|stage| stage.cpu_seconds).sum();
    let whole = rate(all_time, all_cpu);
    let real = evidence.ceilings.real.unwrap_or_else(|| evidence.rate());
    let scale = if whole.is_finite() && real > 0.0 { real / whole } else { 1.0 };
    let known = |rate: f64| {
        let most = evidence.ceilings.replayed.unwrap_or(f64::INFINITY);
        Some((rate * scale).min(most)).filter(|rate| rate.is_finite() && *rate > 0.0)
    };
    let rows = evidence.stages.iter().map(|stage| StageRow {
        name: stage.name.clone(),
        seconds: stage.seconds,
        cpu_seconds: stage.cpu_seconds,
        share: if all_cpu > 0.0 { stage.cpu_seconds / all_cpu } else { 0.0 },
        ceiling: known(rate(time(stage), stage.cpu_seconds)),
        predicted_if_free: known(rate(all_time - time(stage), all_cpu - stage.cpu_seconds)),
        measured_if_free: None,
    });
    rows.collect()
}

/// Less work cannot be slower: what was measured below this share of everything real is noise.
const NOISE: f64 = 0.97;

/// What to know of stages that were measured as slower without them.
pub(crate) fn noise(stages: &[StageRow], real: Option<f64>) -> Vec<String> {
    let Some(real) = real else { return Vec::new() };
    let below = |stage: &&StageRow| stage.measured_if_free.is_some_and(|free| free < NOISE * real);
    let remarks = stages.iter().filter(below).map(|stage| {
        format!(
            "{} if it were free: {:.0} samples/s were measured, less than everything real ({real:.0}). That is noise of the machine; nothing is gained there.",
            stage.name,
            stage.measured_if_free.unwrap_or(0.0)
        )
    });
    remarks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Ceilings, StageCost};

    #[test]
    fn less_work_that_is_slower_is_noise() {
        let row = |name: &str, measured_if_free| StageRow {
            name: name.to_owned(),
            measured_if_free,
            ..StageRow::default()
        };
        let rows = [row("read", Some(90.0)), row("decode", Some(99.0)), row("copy", None)];
        let said = noise(&rows, Some(100.0));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("read if it were free: 90 samples/s were measured"),
            "{said:?}"
        );
        assert!(noise(&rows, None).is_empty());
    }

    #[test]
    fn the_scarcer_of_workers_and_cores_decides() {
        let stage = |name: &str, seconds, cpu_seconds| StageCost {
            name: name.to_owned(),
            seconds,
            cpu_seconds,
        };
        let ceilings = Ceilings { real: Some(500.0), ..Ceilings::default() };
        let mut evidence = Evidence {
            workers: 4,
            cores: 4.0,
            stages: vec![stage("read", 0.004, 0.0), stage("decode", 0.003, 0.003)],
            ceilings,
            ..Evidence::default()
        };
        evidence.stages.push(stage("transform", 0.001, 0.001));
        let rows = stage_rows(&evidence);
        let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-6, "{a:?} {b}");
        assert_eq!(rows[1].share, 0.75);
        // Without reading, 4 workers at 4 ms each; without decoding, at 5 ms.
        near(rows[0].predicted_if_free, 1000.0);
        near(rows[1].predicted_if_free, 800.0);
        near(rows[2].ceiling, 4000.0);
        evidence.ceilings.replayed = Some(900.0);
        near(stage_rows(&evidence)[0].predicted_if_free, 900.0);
        // Many workers on two cores: cores decide, and reading costs nothing.
        (evidence.workers, evidence.cores, evidence.ceilings.replayed) = (64, 2.0, None);
        let rows = stage_rows(&evidence);
        near(rows[0].predicted_if_free, 500.0);
        near(rows[1].predicted_if_free, 2000.0);
    }
}
