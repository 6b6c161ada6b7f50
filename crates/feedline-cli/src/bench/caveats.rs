//! What to know before a comparison is believed.

use std::collections::BTreeSet;

use feedline::internals::spec::{show_bytes, show_count};
use feedline::internals::tune::{Machine, Run, TrainStep};
use feedline_view::benchmark::{Configuration, Warning, mean_and_deviation};

use super::ranking::workers_of;

/// A run below this length, or with fewer batches, says little.
const SHORT_SECONDS: f64 = 1.0;
const SHORT_BATCHES: u64 = 10;
/// Memory that grows by this share and by this many bytes while a run goes on is worth a word.
const GROWTH: f64 = 0.2;
const GROWTH_BYTES: f64 = 64e6;
/// In shorter runs, memory grows because workers start.
const GROWTH_SECONDS: f64 = 3.0;
/// More workers that bring less than this bring nothing.
const GAIN: f64 = 0.05;
/// More workers that are slower by this get in each other's way.
const LOSS: f64 = 0.03;
/// Cores are all in use from this share on.
const ALL_CORES: f64 = 0.9;
/// Samples that wait for bytes for this share of their time are not limited by cores.
const READING: f64 = 0.5;
/// Repeats that differ by more than this are noisy.
const NOISE: f64 = 0.07;
/// Cores that others use without anybody minding.
const OTHERS: f64 = 0.5;

/// All warnings about these configurations, which ran against `step`, in the order of the list;
/// those about all come last.
#[must_use]
pub(crate) fn warnings(
    configurations: &[Configuration],
    machine: &Machine,
    step: TrainStep,
) -> Vec<Warning> {
    let mut all = Vec::new();
    // Why one failed is reported already.
    let ran = configurations.iter().enumerate().filter(|(_, one)| one.error.is_none());
    for (place, configuration) in ran {
        let mut add = |kind: &str, text: Option<String>| {
            all.extend(text.map(|text| Warning {
                kind: kind.to_owned(),
                configuration: Some(place),
                text: format!("{}: {text}", configuration.name),
            }));
        };
        add("too_short", too_short(&configuration.runs));
        add("noisy", noisy(configuration));
        add("memory_grows", memory_grows(&configuration.runs));
        let fewer = configurations.iter().filter(|other| differs_in_workers(other, configuration));
        let fewer = fewer
            .filter(|other| workers_of(other) < workers_of(configuration))
            .max_by_key(|other| workers_of(other));
        let (kind, text) = more_workers(configuration, fewer, machine);
        add(kind, text);
    }
    let of_all = [
        ("same_step", same_step(configurations, step)),
        ("in_memory", in_memory(configurations, machine)),
        ("noisy", others_at_work(configurations)),
    ];
    all.extend(of_all.into_iter().filter_map(|(kind, text)| {
        Some(Warning { kind: kind.to_owned(), configuration: None, text: text? })
    }));
    joined(all)
}

/// The same about many configurations is said once.
fn joined(all: Vec<Warning>) -> Vec<Warning> {
    let mut kept: Vec<Warning> = Vec::new();
    for kind in ["too_short", "noisy"] {
        let of_kind = |warning: &&Warning| warning.kind == kind && warning.configuration.is_some();
        let count = all.iter().filter(of_kind).count();
        let first = all.iter().find(of_kind);
        if let Some(first) = first.filter(|_| count > 2) {
            let text = first.text.clone();
            let text =
                format!("{count} configurations are {}, such as {text}", kind.replace('_', " "));
            kept.push(Warning { kind: kind.to_owned(), configuration: None, text });
        }
    }
    let said = |warning: &Warning| {
        warning.configuration.is_some() && kept.iter().any(|one| one.kind == warning.kind)
    };
    let mut others: Vec<Warning> = all.into_iter().filter(|warning| !said(warning)).collect();
    others.extend(kept);
    others
}

fn too_short(runs: &[Run]) -> Option<String> {
    let longest = runs.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let seconds = longest.seconds;
    if seconds < SHORT_SECONDS || longest.batches < SHORT_BATCHES {
        return Some(format!(
            "a run had {} batches in {seconds:.1} s, which is too short to tell; raise --seconds, --batches or --epochs",
            longest.batches
        ));
    }
    None
}

fn noisy(configuration: &Configuration) -> Option<String> {
    let rates: Vec<f64> = configuration.runs.iter().map(|run| run.samples_per_second).collect();
    let (mean, deviation) = mean_and_deviation(&rates);
    if rates.len() < 2 || mean <= 0.0 || deviation / mean <= NOISE {
        return None;
    }
    Some(format!(
        "its runs differ by {:.0} % (standard deviation); end what else runs on the machine, or raise --repeats or --seconds",
        deviation / mean * 100.0
    ))
}

/// Whether memory went on growing: each quarter of the run after the first above the one before.
fn memory_grows(runs: &[Run]) -> Option<String> {
    let growth = |run: &Run| {
        let bytes: Vec<f64> = run.memory.iter().map(|(_, bytes)| *bytes as f64).collect();
        if bytes.len() < 8 || run.seconds < GROWTH_SECONDS {
            return None;
        }
        let quarter = bytes.len() / 4;
        let means: Vec<f64> =
            (1..4).map(|n| mean_and_deviation(&bytes[n * quarter..(n + 1) * quarter]).0).collect();
        let grown = means[2] - means[0];
        let steady = means[1] - means[0] > grown / 4.0 && means[2] - means[1] > grown / 4.0;
        let much = grown > GROWTH * means[0] && grown > GROWTH_BYTES;
        (steady && much).then(|| {
            let between = run.memory[3 * quarter].0 - run.memory[quarter].0;
            grown / between.max(1e-3)
        })
    };
    let grew: Vec<f64> = runs.iter().filter_map(growth).collect();
    if grew.is_empty() || grew.len() * 2 < runs.len() {
        return None;
    }
    Some(format!(
        "memory grew by {:.0} MB a second until the end; run it longer (--seconds 60) to see whether it stops",
        mean_and_deviation(&grew).0 / 1e6
    ))
}

/// Whether two configurations are alike but for their workers.
fn differs_in_workers(a: &Configuration, b: &Configuration) -> bool {
    let rest = |configuration: &Configuration| {
        let mut settings = configuration.settings.clone();
        settings.remove("num_workers");
        settings
    };
    rest(a) == rest(b)
}

fn more_workers(
    configuration: &Configuration,
    fewer: Option<&Configuration>,
    machine: &Machine,
) -> (&'static str, Option<String>) {
    let rate = |one: &Configuration| Some(one.summary.as_ref()?.samples_per_second.mean);
    let Some(own) = rate(configuration) else { return ("", None) };
    let workers = workers_of(configuration);
    let gain =
        fewer.and_then(|other| Some((workers_of(other), own / rate(other)?.max(1e-9) - 1.0)));
    let no_gain = gain.is_none_or(|(_, gain)| gain < GAIN);
    let slower = gain.is_some_and(|(_, gain)| gain < -LOSS);
    let crowded = slower || cores_in_use(configuration) >= ALL_CORES * machine.cores as f64;
    if workers > machine.cores && no_gain && crowded && !waits_for_bytes(configuration) {
        let cores = machine.cores;
        let brought = gain.map_or_else(String::new, |(other, gain)| {
            format!(", and are {} than {other}", difference(gain))
        });
        let text = format!("{workers} workers on {cores} cores get in each other's way{brought}");
        return ("oversubscribed", Some(text));
    }
    match gain {
        // From none to one is another way of working rather than more of the same.
        Some((other, gain)) if other > 0 && gain < GAIN => {
            let text = format!("{workers} workers are {} than {other}", difference(gain));
            ("diminishing_returns", Some(text))
        }
        _ => ("", None),
    }
}

/// Cores that the runs used, the mean.
fn cores_in_use(configuration: &Configuration) -> f64 {
    let runs = configuration.runs.iter().filter(|run| run.seconds > 0.0);
    let used: Vec<f64> = runs.map(|run| run.cpu_seconds / run.seconds).collect();
    mean_and_deviation(&used).0
}

/// Whether most of a sample's time is waiting for its bytes, where cores have nothing to do.
fn waits_for_bytes(configuration: &Configuration) -> bool {
    let stages = || configuration.runs.iter().flat_map(|run| &run.evidence.stages);
    let all: f64 = stages().map(|stage| stage.seconds).sum();
    let read = stages().filter(|stage| stage.name == "read");
    let waiting: f64 = read.map(|stage| (stage.seconds - stage.cpu_seconds).max(0.0)).sum();
    waiting > 0.0 && waiting >= READING * all
}

fn difference(gain: f64) -> String {
    match (gain * 100.0).round() {
        percent if percent < 0.0 => format!("{:.0} % slower", -percent),
        0.0 => "no faster".to_owned(),
        percent => format!("only {percent:.0} % faster"),
    }
}

/// Whether batches of several sizes met the same step.
fn same_step(configurations: &[Configuration], step: TrainStep) -> Option<String> {
    let size = |one: &Configuration| {
        let set = one.settings.get("batch_size").and_then(serde_json::Value::as_u64);
        set.or_else(|| Some(one.runs.first()?.evidence.batch_size.round() as u64))
    };
    let ran = configurations.iter().filter(|one| one.summary.is_some());
    let sizes: BTreeSet<u64> = ran.filter_map(size).filter(|size| *size > 0).collect();
    if sizes.len() < 2 || !step.ignores_batch_size() || step.mean(1.0) == Some(0.0) {
        return None;
    }
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    Some(format!(
        "the training step was the same for every batch size ({}), so samples/s of different batch sizes compare only if that is true of yours; give the time of a sample (--train-step 1ms/sample), or with a target in Python the real step (--train-step module:name)",
        sizes.join(", ")
    ))
}

/// Whether runs read a part again and again, which memory then holds, of more than it holds.
fn in_memory(configurations: &[Configuration], machine: &Machine) -> Option<String> {
    let memory = machine.memory_available?;
    let runs = configurations.iter().flat_map(|one| &one.runs);
    let whole = |run: &Run| {
        let part = run.part?;
        Some((part, (run.evidence.read_bytes_per_sample * part.of as f64) as u64))
    };
    let (part, bytes) = runs.filter_map(whole).max_by_key(|(_, bytes)| *bytes)?;
    (bytes > memory).then(|| {
        format!(
            "all runs read the same {} of {} samples, which are in memory from the second time on; all of them are about {} and there is room for {}, so where reading is slow real epochs are slower: --epochs 1 reads everything",
            show_count(part.samples),
            show_count(part.of),
            show_bytes(bytes),
            show_bytes(memory)
        )
    })
}

/// What other programs used while all of this was measured.
fn others_at_work(configurations: &[Configuration]) -> Option<String> {
    let runs = configurations.iter().flat_map(|one| &one.runs);
    others_in_words(&runs.filter_map(Run::others).collect::<Vec<f64>>())
}

/// A sentence about the cores that other programs used, run by run, if they were enough to matter.
#[must_use]
pub(crate) fn others_in_words(cores: &[f64]) -> Option<String> {
    let (mean, _) = mean_and_deviation(cores);
    (mean > OTHERS).then(|| {
        format!(
            "other programs kept {mean:.1} cores busy meanwhile: figures are lower than they could be, and less sure"
        )
    })
}

#[cfg(test)]
mod tests {
    use feedline::internals::tune::{MeasuredPart, StageCost};

    use super::super::ranking::summary;
    use super::super::ranking::tests::{configuration, run};
    use super::*;

    fn machine(cores: u64) -> Machine {
        Machine { cores, machine_cores: cores, ..Machine::default() }
    }

    fn kinds(configurations: &[Configuration], cores: u64) -> Vec<(String, Option<usize>)> {
        let all = warnings(configurations, &machine(cores), TrainStep::Fixed(0.1));
        all.into_iter().map(|warning| (warning.kind, warning.configuration)).collect()
    }

    #[test]
    fn good_figures_need_no_warning() {
        let list = [configuration(&[100.0, 101.0], 1, 1), configuration(&[200.0, 199.0], 2, 1)];
        assert_eq!(kinds(&list, 2), []);
        assert_eq!(kinds(&[], 2), []);
    }

    #[test]
    fn more_workers_that_bring_nothing() {
        let list = [
            configuration(&[100.0; 2], 1, 1),
            configuration(&[103.0; 2], 2, 1),
            configuration(&[99.0; 2], 8, 1),
        ];
        let expected =
            [("diminishing_returns".to_owned(), Some(1)), ("oversubscribed".to_owned(), Some(2))];
        assert_eq!(kinds(&list, 4), expected);
        let text = &warnings(&list, &machine(4), TrainStep::None)[1].text;
        assert_eq!(
            text,
            "workers=8: 8 workers on 4 cores get in each other's way, and are 4 % slower than 2"
        );
        // Waiting for slow reads is worth more workers than cores.
        let list = [configuration(&[100.0; 2], 4, 1), configuration(&[190.0; 2], 8, 1)];
        assert_eq!(kinds(&list, 4), []);
    }

    #[test]
    fn more_workers_than_cores_are_too_many_only_where_that_shows() {
        // One configuration, nothing to compare it with: 0.4 cores were used.
        let mut one = configuration(&[100.0; 2], 8, 1);
        assert_eq!(kinds(&[one.clone()], 4), []);
        let oversubscribed = ("oversubscribed".to_owned(), Some(0));
        one.runs.iter_mut().for_each(|run| run.cpu_seconds = 3.9 * run.seconds);
        assert_eq!(kinds(&[one.clone()], 4), [oversubscribed]);
        // As fast as fewer, with cores to spare: they bring nothing, and harm nobody.
        let list = [configuration(&[100.0; 2], 4, 1), configuration(&[100.0; 2], 8, 1)];
        assert_eq!(kinds(&list, 4), [("diminishing_returns".to_owned(), Some(1))]);
        // Slower, but they wait for bytes rather than for cores.
        let mut list = [configuration(&[100.0; 2], 4, 1), configuration(&[90.0; 2], 8, 1)];
        assert_eq!(kinds(&list, 4), [("oversubscribed".to_owned(), Some(1))]);
        let stage =
            |name: &str, seconds| StageCost { name: name.to_owned(), seconds, cpu_seconds: 0.001 };
        for run in &mut list[1].runs {
            run.evidence.stages = vec![stage("read", 0.050), stage("decode", 0.004)];
        }
        assert_eq!(kinds(&list, 4), [("diminishing_returns".to_owned(), Some(1))]);
    }

    #[test]
    fn short_and_noisy_runs() {
        let mut short = run(100.0, 1, 1);
        short.seconds = 0.2;
        let mut list = [configuration(&[100.0], 1, 1)];
        list[0].runs = vec![short];
        assert_eq!(kinds(&list, 4), [("too_short".to_owned(), Some(0))]);
        let list = [configuration(&[100.0, 160.0], 1, 1)];
        assert_eq!(kinds(&list, 4), [("noisy".to_owned(), Some(0))]);
        let many =
            [0, 1, 2].map(|workers| configuration(&[100.0 + workers as f64, 160.0], workers, 1));
        let said = warnings(&many, &machine(4), TrainStep::None);
        let noisy: Vec<_> = said.iter().filter(|warning| warning.kind == "noisy").collect();
        assert_eq!((noisy.len(), noisy[0].configuration), (1, None), "said once: {said:?}");
        assert!(noisy[0].text.starts_with("3 configurations are noisy, such as workers=0: its"));
        let mut busy = run(100.0, 1, 1);
        busy.evidence.machine_cores_busy = Some(3.0);
        busy.evidence.process_cores = Some(1.0);
        let mut list = [configuration(&[100.0], 1, 1)];
        list[0].runs = vec![busy];
        list[0].summary = summary(&list[0].runs);
        assert_eq!(kinds(&list, 4), [("noisy".to_owned(), None)]);
    }

    #[test]
    fn parts_that_fit_into_memory_where_the_whole_does_not() {
        let said = |part: Option<MeasuredPart>, memory: Option<u64>| {
            let mut list = [configuration(&[100.0; 2], 1, 1)];
            for run in &mut list[0].runs {
                run.part = part;
                run.evidence.read_bytes_per_sample = 100_000.0;
            }
            let machine = Machine { memory_available: memory, ..machine(2) };
            let all = warnings(&list, &machine, TrainStep::None);
            all.into_iter().find(|warning| warning.kind == "in_memory").map(|one| one.text)
        };
        let part = Some(MeasuredPart { samples: 4000, of: 1_281_167 });
        let text = said(part, Some(64_000_000_000)).unwrap();
        assert!(text.contains("the same 4,000 of 1,281,167 samples"), "{text}");
        assert!(text.contains("about 128 GB and there is room for 64.0 GB"), "{text}");
        assert_eq!(said(part, Some(200_000_000_000)), None, "real epochs are in memory, too");
        assert_eq!(said(None, Some(1)), None);
        assert_eq!(said(part, None), None);
    }

    #[test]
    fn batch_sizes_that_met_the_same_step() {
        let of_size = |size: Option<u64>, measured: f64| {
            let mut one = configuration(&[100.0; 2], 1, 1);
            one.settings.extend(size.map(|size| ("batch_size".to_owned(), size.into())));
            one.runs.iter_mut().for_each(|run| run.evidence.batch_size = measured);
            one
        };
        let said = |list: &[Configuration], step| {
            let all = warnings(list, &machine(2), step);
            all.into_iter().find(|warning| warning.kind == "same_step").map(|one| one.text)
        };
        // What is not set is known from the batches.
        let list = [of_size(Some(64), 64.0), of_size(None, 16.0)];
        let text = said(&list, TrainStep::Fixed(0.1)).unwrap();
        assert!(text.contains("every batch size (16, 64)"), "{text}");
        assert!(text.contains("--train-step module:name"), "{text}");
        assert!(said(&list, TrainStep::Normal(0.1, 0.01)).is_some());
        for step in [TrainStep::None, TrainStep::Own, TrainStep::PerSample(0.001)] {
            assert_eq!(said(&list, step), None, "{step:?}");
        }
        let same = [of_size(Some(64), 64.0), of_size(None, 64.0)];
        assert_eq!(said(&same, TrainStep::Fixed(0.1)), None);
        // Those that failed are compared with nothing.
        let mut failed = list;
        failed[1].summary = None;
        assert_eq!(said(&failed, TrainStep::Fixed(0.1)), None);
    }

    #[test]
    fn memory_that_goes_on_growing() {
        let with = |bytes: &dyn Fn(u64) -> u64| {
            let mut grown = run(100.0, 1, 1);
            grown.memory = (0..40).map(|n| (n as f64 / 10.0, bytes(n))).collect();
            let mut one = configuration(&[100.0], 1, 1);
            one.runs = vec![grown];
            kinds(&[one], 4)
        };
        let leak = ("memory_grows".to_owned(), Some(0));
        assert_eq!(with(&|n| 100_000_000 + n * 20_000_000), [leak]);
        assert_eq!(with(&|n| 100_000_000 + n.min(12) * 20_000_000), [], "filled, then steady");
        assert_eq!(with(&|n| 1_000_000_000 + n * 1_000_000), [], "too little to matter");
    }
}
