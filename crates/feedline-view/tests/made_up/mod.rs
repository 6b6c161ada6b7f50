//! Results that nobody measured, for looking at pictures and testing them.

use feedline::internals::tune::{
    Advice, Cause, Ceilings, Diagnosis, Evidence, Machine, Resource, Run, Spread, StageCost,
    StageRow, StallBar, TrainStep, Verdict, Workload, judge,
};
use feedline::stats::{Activity, Span};
use feedline_view::benchmark::{Benchmark, Configuration, Interval, Summary, Warning};
use serde_json::json;

/// Text that would run if a page let it.
pub(crate) const HOSTILE: &str = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\u{2028}&lt;\"'{{script}}";

fn interval(mean: f64, half: f64) -> Interval {
    Interval { mean, low: mean - half, high: mean + half }
}

fn machine() -> Machine {
    Machine {
        processor: "Example CPU 3.0 GHz".to_owned(),
        cores: 8,
        machine_cores: 16,
        memory_available: Some(31_400_000_000),
        device: None,
    }
}

fn workload() -> Workload {
    Workload { step: TrainStep::Fixed(0.1), epochs: 3, batches: Some(50), seconds: None }
}

/// What workers and the trainer would have done: `workers` make batches of 64 in `each` seconds.
pub(crate) fn timeline(workers: usize, batches: u64, each: f64, step: f64) -> Vec<Vec<Span>> {
    const PARTS: [(Activity, f64); 4] = [
        (Activity::Read, 0.1),
        (Activity::Decode, 0.6),
        (Activity::Transform, 0.24),
        (Activity::Copy, 0.06),
    ];
    let mut lanes = vec![Vec::new(); workers + 1];
    let mut free = vec![0.0_f64; workers];
    let (mut now, mut steps_ended) = (0.0_f64, Vec::new());
    let span = |activity, begin: f64, end: f64, batch| Span {
        activity,
        begin: (begin * 1e9) as u64,
        end: (end * 1e9) as u64,
        batch,
    };
    for batch in 0..batches {
        let worker = batch as usize % workers;
        // Four batches are made ahead, no more.
        let allowed =
            batch.checked_sub(4 + workers as u64).map_or(0.0, |b| steps_ended[b as usize]);
        let began = free[worker].max(allowed);
        // Some are slower, always the same ones.
        let length = each * (0.8 + 0.4 * ((batch * 37 % 101) as f64 / 101.0));
        let mut at = began;
        for round in 0..4 {
            for (activity, share) in PARTS {
                let end = at + length * share / 4.0;
                lanes[worker + 1].push(span(activity, at, end, batch));
                at = end;
            }
            if batch % 17 == 5 && round == 1 {
                lanes[worker + 1].push(span(Activity::Memory, at, at + each * 0.1, batch));
                at += each * 0.1;
            }
        }
        free[worker] = at;
        let ready = at.max(now);
        lanes[0].push(span(Activity::Wait, now, ready, batch));
        lanes[0].push(span(Activity::Step, ready, ready + step, batch));
        now = ready + step;
        steps_ended.push(now);
    }
    lanes
}

/// A run of so many workers; `speed` is what one worker does, in samples a second.
pub(crate) fn run(workers: u64, speed: f64, timed: bool) -> Run {
    let step = 0.1;
    let lanes = timeline(workers.max(1) as usize, 150, 64.0 / speed, step);
    let seconds = lanes[0].last().map_or(0.0, |span| span.end as f64 / 1e9);
    let waits: Vec<f64> = lanes[0]
        .iter()
        .filter(|span| span.activity == Activity::Wait)
        .skip(1)
        .map(|span| (span.end - span.begin) as f64 / 1e9)
        .collect();
    let first = lanes[0].first().map_or(0.0, |span| (span.end - span.begin) as f64 / 1e9);
    let memory: Vec<(f64, u64)> = (0..(seconds * 10.0) as u64)
        .map(|tick| {
            let at = tick as f64 / 10.0;
            let full = 180e6 + 95e6 * workers as f64;
            let spike = if tick % 50 == 30 { 60e6 } else { 0.0 };
            (at, (full * (1.0 - (-at).exp()) + 120e6 + 8e6 * (at * 3.0).sin() + spike) as u64)
        })
        .collect();
    Run {
        samples: 150 * 64,
        batches: 150,
        seconds,
        samples_per_second: 150.0 * 64.0 / seconds,
        first_batch_seconds: first,
        turnovers: vec![0.02, 0.024],
        evidence: Evidence {
            batch_size: 64.0,
            workers,
            cores: 8.0,
            batches: 149,
            samples: 149 * 64,
            wait_seconds: waits.iter().sum(),
            step_seconds: 14.9,
            stages: stages(),
            memory_limit: 1 << 30,
            ..Evidence::default()
        },
        steps: vec![step; 150],
        waits,
        cpu_seconds: seconds * workers as f64 * 0.9,
        peak_memory: memory.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0),
        memory,
        timeline: if timed { lanes } else { Vec::new() },
        part: None,
    }
}

fn stages() -> Vec<StageCost> {
    let stage = |name: &str, seconds: f64, cpu_seconds: f64| StageCost {
        name: name.to_owned(),
        seconds,
        cpu_seconds,
    };
    vec![
        stage("read", 0.000_31, 0.000_06),
        stage("decode", 0.001_9, 0.001_88),
        stage("transform", 0.000_64, 0.000_64),
        stage("copy", 0.000_08, 0.000_08),
    ]
}

/// Advice and a sentence as a real judge gives them.
pub(crate) fn verdict(run: &Run) -> Verdict {
    let wait_share = run.evidence.wait_share();
    Verdict {
        cause: Cause::Decode,
        resource: Resource::AllCores,
        sentence: "The trainer waited 31 % of the time. Cause: JPEG decoding, 71 % of CPU. Packing with a crop index would raise 1,450 to about 2,900 samples/s; 3 more workers would do the same.".to_owned(),
        limit: "decode".to_owned(),
        signs: vec!["All cores are busy and the GPU still waits.".to_owned()],
        stall: StallBar { reading: 0.06, preparing: 0.23, copying: 0.02, none: 0.69 },
        advice: vec![
            Advice {
                text: "Pack the photos with a crop index.".to_owned(),
                command: Some("feedline pack photos fast --crop-index".to_owned()),
                code: None,
                predicted: Some(2_900.0),
            },
            Advice {
                text: "Use three more workers.".to_owned(),
                command: None,
                code: Some("loader = feedline.Loader(\"photos\", num_workers=7)".to_owned()),
                predicted: Some(2_850.0),
            },
        ],
        wait_share,
        ..judge(&run.evidence)
    }
}

fn configuration(name: &str, workers: u64, speed: f64, timed: bool) -> Configuration {
    let runs: Vec<Run> = (0..3).map(|number| run(workers, speed, timed && number == 0)).collect();
    let one = &runs[0];
    let share = one.evidence.wait_share();
    let half = 12.0 + one.samples_per_second * 0.03;
    Configuration {
        name: name.to_owned(),
        settings: json!({"num_workers": workers, "batch_size": 64})
            .as_object()
            .cloned()
            .unwrap_or_default(),
        summary: Some(Summary {
            samples_per_second: interval(one.samples_per_second, half),
            wait_share: interval(share, share * 0.08),
            busy_share: interval(1.0 - share, share * 0.08),
            wait: Spread::of(&one.waits),
            first_batch_seconds: interval(one.first_batch_seconds, 0.02),
            turnover_seconds: Some(interval(0.022, 0.004)),
            cpu_seconds_per_sample: 0.0027,
            peak_memory: one.peak_memory,
        }),
        runs,
        ..Configuration::default()
    }
}

/// Five numbers of workers, a baseline, and one that failed.
pub(crate) fn benchmark() -> Benchmark {
    let mut configurations = vec![
        configuration("torch, 0 workers (unoptimised)", 0, 120.0, false),
        configuration("workers=1", 1, 150.0, true),
        configuration("workers=2", 2, 148.0, true),
        configuration("workers=4", 4, 128.0, true),
        configuration("workers=6", 6, 98.0, true),
        configuration("workers=8, prefetch=8, cache=memory, float32", 8, 79.0, true),
    ];
    configurations[0].settings.insert("loader".to_owned(), "torch".into());
    configurations.push(Configuration {
        name: "pinned".to_owned(),
        error: Some("no GPU was found: pinned memory needs CUDA".to_owned()),
        ..Configuration::default()
    });
    let verdict = verdict(&configurations[5].runs[0]);
    Benchmark {
        target: "photos/train".to_owned(),
        machine: machine(),
        workload: workload(),
        configurations,
        ranking: vec![5, 4, 3, 2, 1, 0],
        baseline: Some(0),
        warnings: vec![Warning {
            kind: "diminishing_returns".to_owned(),
            configuration: Some(5),
            text: "8 workers bring 3 % more than 6: fewer leave cores to others.".to_owned(),
        }],
        verdict: Some(verdict),
    }
}

/// A diagnosis with stages and ceilings.
pub(crate) fn diagnosis() -> Diagnosis {
    let run = run(4, 115.0, true);
    let total: f64 = stages().iter().map(|stage| stage.cpu_seconds).sum();
    let rows = stages().into_iter().map(|stage| StageRow {
        share: stage.cpu_seconds / total,
        ceiling: Some(8.0 / stage.cpu_seconds),
        predicted_if_free: Some(8.0 / (total - stage.cpu_seconds)),
        measured_if_free: (stage.name != "copy").then_some(7.4 / (total - stage.cpu_seconds)),
        name: stage.name,
        seconds: stage.seconds,
        cpu_seconds: stage.cpu_seconds,
    });
    Diagnosis {
        target: "photos/train".to_owned(),
        machine: machine(),
        workload: workload(),
        verdict: verdict(&run),
        stages: rows.collect(),
        ceilings: Ceilings {
            replayed: Some(41_200.0),
            prepared: Some(1_910.0),
            real: Some(1_450.0),
            step: None,
        },
        evidence: run.evidence.clone(),
        run,
    }
}

/// A benchmark with hostile texts wherever a text can be.
pub(crate) fn hostile() -> Benchmark {
    let mut found = benchmark();
    found.target = HOSTILE.to_owned();
    found.machine.processor = HOSTILE.to_owned();
    for one in &mut found.configurations {
        one.name = format!("{}{HOSTILE}", one.name);
        one.error = one.error.as_ref().map(|_| HOSTILE.to_owned());
        one.settings.insert(HOSTILE.to_owned(), format!("{HOSTILE}{}", one.name.len()).into());
    }
    found.warnings[0].text = HOSTILE.to_owned();
    if let Some(verdict) = &mut found.verdict {
        verdict.sentence = HOSTILE.to_owned();
        verdict.limit = HOSTILE.to_owned();
        verdict.signs = vec![HOSTILE.to_owned()];
        verdict.advice[0] = Advice {
            text: HOSTILE.to_owned(),
            command: Some(HOSTILE.to_owned()),
            code: Some(HOSTILE.to_owned()),
            predicted: None,
        };
    }
    found
}

/// A diagnosis with more spans than a page takes.
pub(crate) fn large() -> Diagnosis {
    let mut found = diagnosis();
    found.run.timeline = timeline(16, 8_000, 1.5, 0.1);
    found
}

/// Nothing was measured: no verdict, no run, no figure.
pub(crate) fn empty() -> Benchmark {
    Benchmark {
        target: String::new(),
        machine: Machine::default(),
        workload: Workload { step: TrainStep::None, epochs: 1, batches: None, seconds: Some(0.5) },
        configurations: vec![Configuration::default()],
        ranking: Vec::new(),
        baseline: None,
        warnings: Vec::new(),
        verdict: None,
    }
}
