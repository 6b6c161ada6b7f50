//! Runs put together, configurations ranked.

use feedline::internals::tune::{Run, Spread};
use feedline_view::benchmark::{Configuration, Interval, Summary};

/// Below this share of the best one's rate nothing is as good, however wide the intervals are.
const FAR: f64 = 0.90;
/// Above it everything is, however narrow they are: nobody would feel the difference.
const NEAR: f64 = 0.98;

/// What these runs of one configuration say together; `None` without a conclusive run.
#[must_use]
pub(crate) fn summary(runs: &[Run]) -> Option<Summary> {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.is_conclusive()).collect();
    if runs.is_empty() {
        return None;
    }
    let over = |value: &dyn Fn(&Run) -> f64| {
        not_below_zero(Interval::of(&runs.iter().map(|run| value(run)).collect::<Vec<_>>()))
    };
    let waits: Vec<f64> = runs.iter().flat_map(|run| run.waits.iter().copied()).collect();
    let turnovers: Vec<f64> = runs
        .iter()
        .filter(|run| !run.turnovers.is_empty())
        .map(|run| Spread::of(&run.turnovers).mean)
        .collect();
    let samples: u64 = runs.iter().map(|run| run.samples).sum();
    let cpu: f64 = runs.iter().map(|run| run.cpu_seconds).sum();
    let busy = within_one(over(&Run::busy_share));
    Some(Summary {
        samples_per_second: over(&|run| run.samples_per_second),
        wait_share: Interval { mean: 1.0 - busy.mean, low: 1.0 - busy.high, high: 1.0 - busy.low },
        busy_share: busy,
        wait: Spread::of(&waits),
        first_batch_seconds: over(&|run| run.first_batch_seconds),
        turnover_seconds: (!turnovers.is_empty()).then(|| not_below_zero(Interval::of(&turnovers))),
        cpu_seconds_per_sample: cpu / samples.max(1) as f64,
        peak_memory: runs.iter().map(|run| run.peak_memory).max().unwrap_or(0),
    })
}

/// Neither a rate nor a time is below 0, however far its runs are apart.
fn not_below_zero(interval: Interval) -> Interval {
    Interval { low: interval.low.max(0.0), ..interval }
}

/// A share is not above 1 either.
fn within_one(interval: Interval) -> Interval {
    Interval { high: interval.high.min(1.0), ..not_below_zero(interval) }
}

fn rate(configuration: &Configuration) -> Option<Interval> {
    configuration.summary.as_ref().map(|summary| summary.samples_per_second)
}

/// The workers that a configuration had.
#[must_use]
pub(crate) fn workers_of(configuration: &Configuration) -> u64 {
    configuration.runs.iter().map(|run| run.evidence.workers).max().unwrap_or(0)
}

/// Whether a rate is as good as the best: their intervals overlap and the means are not far apart,
/// or the means are hardly apart.
#[must_use]
pub(crate) fn as_good(rate: &Interval, best: &Interval) -> bool {
    rate.mean >= NEAR * best.mean || (rate.mean >= FAR * best.mean && rate.overlaps(best))
}

/// The places of the configurations, the best first; those without a result and those of which a
/// run failed are left out. Of all that are as good as the fastest, the best needs the fewest
/// workers, then the least memory. Empty where an interrupt left one without a run: nobody knows
/// whether that is the best.
#[must_use]
pub(crate) fn ranking(configurations: &[Configuration]) -> Vec<usize> {
    if configurations.iter().any(Configuration::is_missing) {
        return Vec::new();
    }
    let mut places: Vec<(usize, Interval)> = configurations
        .iter()
        .enumerate()
        .filter(|(_, configuration)| configuration.error.is_none())
        .filter_map(|(place, configuration)| Some((place, rate(configuration)?)))
        .collect();
    places.sort_by(|a, b| b.1.mean.total_cmp(&a.1.mean));
    let Some((_, fastest)) = places.first().copied() else { return Vec::new() };
    let (mut good, others): (Vec<_>, Vec<_>) =
        places.into_iter().partition(|(_, rate)| as_good(rate, &fastest));
    let cost = |place: usize| {
        let configuration = &configurations[place];
        let memory = configuration.summary.as_ref().map_or(0, |summary| summary.peak_memory);
        (workers_of(configuration), memory)
    };
    good.sort_by_key(|(place, _)| cost(*place));
    good.into_iter().chain(others).map(|(place, _)| place).collect()
}

/// The places of those that are as good as the first of the ranking, which is left out.
#[must_use]
pub(crate) fn equals(configurations: &[Configuration], ranking: &[usize]) -> Vec<usize> {
    let rates = ranking.iter().filter_map(|place| rate(&configurations[*place]));
    let Some(fastest) = rates.max_by(|a, b| a.mean.total_cmp(&b.mean)) else { return Vec::new() };
    let others = ranking.iter().skip(1).copied();
    others
        .filter(|place| rate(&configurations[*place]).is_some_and(|rate| as_good(&rate, &fastest)))
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use feedline::internals::tune::Evidence;

    use super::*;

    /// A made-up run: its rate, workers and memory.
    pub(in crate::bench) fn run(rate: f64, workers: u64, memory: u64) -> Run {
        Run {
            samples: 1000,
            batches: 100,
            seconds: 5.0,
            samples_per_second: rate,
            first_batch_seconds: 0.1,
            waits: vec![0.01; 99],
            steps: vec![0.03; 100],
            cpu_seconds: 2.0,
            peak_memory: memory,
            evidence: Evidence { workers, ..Evidence::default() },
            ..Run::default()
        }
    }

    pub(in crate::bench) fn configuration(
        rates: &[f64],
        workers: u64,
        memory: u64,
    ) -> Configuration {
        let runs: Vec<Run> = rates.iter().map(|rate| run(*rate, workers, memory)).collect();
        let mut settings = serde_json::Map::new();
        settings.insert("num_workers".to_owned(), workers.into());
        let name = format!("workers={workers}");
        let summary = super::summary(&runs);
        Configuration { name, settings, summary, runs, ..Configuration::default() }
    }

    #[test]
    fn runs_are_put_together() {
        let mut runs = vec![run(100.0, 2, 50), run(110.0, 2, 70)];
        runs[1].turnovers = vec![0.2, 0.4];
        let summary = super::summary(&runs).unwrap();
        assert_eq!((summary.samples_per_second.mean, summary.peak_memory), (105.0, 70));
        assert!((summary.busy_share.mean + summary.wait_share.mean - 1.0).abs() < 1e-9);
        assert!((summary.busy_share.mean - 0.75).abs() < 1e-3, "{summary:?}");
        assert_eq!((summary.wait.p50, summary.cpu_seconds_per_sample), (0.01, 0.002));
        assert!((summary.turnover_seconds.unwrap().mean - 0.3).abs() < 1e-9);
        assert_eq!(super::summary(&[]), None);
        assert_eq!(super::summary(&[Run::default()]), None, "a run without batches says nothing");
        let one = Run { batches: 1, ..run(0.0, 1, 1) };
        assert_eq!(
            super::summary(&[one]),
            None,
            "nothing is known of the time after the first batch"
        );
    }

    #[test]
    fn rates_and_times_are_not_below_zero() {
        let mut runs = vec![run(100.0, 2, 50), run(2500.0, 2, 50)];
        (runs[0].turnovers, runs[1].turnovers) = (vec![0.1], vec![9.0]);
        runs[1].first_batch_seconds = 5.0;
        let summary = super::summary(&runs).unwrap();
        let turn = summary.turnover_seconds.unwrap();
        for interval in [summary.samples_per_second, summary.first_batch_seconds, turn] {
            assert!(interval.low == 0.0 && interval.high > 2.0 * interval.mean, "{interval:?}");
        }
        // What was cut off below does not make it more certain.
        assert!(summary.samples_per_second.half() > 1300.0, "{summary:?}");
    }

    #[test]
    fn of_which_a_run_failed_is_no_best() {
        let mut list = [configuration(&[100.0; 3], 0, 1), configuration(&[900.0; 2], 2, 1)];
        list[1].error = Some("run 3 of 3 failed: out of luck".to_owned());
        assert_eq!(ranking(&list), [0]);
        assert!(equals(&list, &ranking(&list)).is_empty());
    }

    #[test]
    fn a_comparison_that_was_interrupted_before_each_had_a_run_has_no_best() {
        let mut list = [configuration(&[100.0], 0, 1), configuration(&[], 2, 1)];
        list[1].interrupted = Some("0 of 1 runs".to_owned());
        assert!(ranking(&list).is_empty());
        // Of each there is something: fewer runs than were asked for are a comparison too.
        list[0].interrupted = Some("1 of 3 runs".to_owned());
        let mut both = [list[0].clone(), configuration(&[900.0; 2], 2, 1)];
        both[1].interrupted = Some("2 of 3 runs".to_owned());
        assert_eq!(ranking(&both), [1, 0]);
        // One that failed would have failed without the interrupt as well.
        list[1].error = Some("out of luck".to_owned());
        assert_eq!(ranking(&list), [0]);
    }

    #[test]
    fn of_those_as_good_the_cheapest_is_best() {
        let list = [
            configuration(&[500.0, 501.0, 499.0], 0, 10),
            configuration(&[1000.0, 1001.0, 999.0], 8, 10),
            configuration(&[990.0, 991.0, 989.0], 4, 90),
            configuration(&[985.0, 986.0, 984.0], 4, 80),
            configuration(&[], 1, 10),
        ];
        let ranking = ranking(&list);
        assert_eq!(ranking, [3, 2, 1, 0]);
        assert_eq!(equals(&list, &ranking), [2, 1]);
        assert!(super::ranking(&[]).is_empty() && equals(&[], &[]).is_empty());
    }

    #[test]
    fn wide_intervals_do_not_make_half_the_rate_as_good() {
        let list = [configuration(&[400.0, 700.0], 0, 1), configuration(&[900.0, 1300.0], 2, 1)];
        assert_eq!(ranking(&list)[0], 1);
        let one = [configuration(&[94.0], 0, 1), configuration(&[100.0], 2, 1)];
        assert_eq!(ranking(&one)[0], 1, "one run each: only what is hardly apart is as good");
    }
}
