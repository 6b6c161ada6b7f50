//! The page of a benchmark or a diagnosis: one HTML file that needs nothing else.

use crate::benchmark::{Benchmark, Warning};
use feedline::internals::tune::{Ceilings, Diagnosis, Machine, StageRow, Verdict};
use serde::Serialize;

use crate::findings::{
    ACTIVITIES, Compared, Findings, MemoryLine, Recorded, Scaling, activity_number, lane_name,
    newest, wanted_by_all, workload_text,
};
use crate::page::Page;

/// Spans in a page, of all its timelines: about a megabyte.
const MOST_SPANS: usize = 60_000;
/// Spans of one timeline, however many there are.
const FEWEST_SPANS: usize = 4_000;

/// A report of what was found.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    title: &'a str,
    pub(crate) findings: Findings<'a>,
}

/// What the page's script finds.
#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    version: &'static str,
    target: &'a str,
    machine: &'a Machine,
    workload: String,
    has_step: bool,
    verdict: Option<&'a Verdict>,
    warnings: &'a [Warning],
    configurations: Vec<Compared<'a>>,
    scaling: Vec<Scaling>,
    /// Samples a second that the trainer could use, if all lines of `scaling` have it in common.
    wanted: Option<f64>,
    memory: Vec<MemoryLine<'a>>,
    memory_limit: Option<u64>,
    stages: &'a [StageRow],
    ceilings: Option<&'a Ceilings>,
    activities: Vec<&'static str>,
    timelines: Vec<Drawn<'a>>,
}

/// A timeline as the page draws it.
#[derive(Serialize)]
struct Drawn<'a> {
    name: &'a str,
    lanes: Vec<DrawnLane>,
    left_out: usize,
}

/// Spans, one number after the other: the activity, microseconds since the last span's begin,
/// microseconds that it took, the batch.
#[derive(Serialize)]
struct DrawnLane {
    name: String,
    spans: Vec<u64>,
}

impl<'a> Report<'a> {
    /// Of a benchmark.
    #[must_use]
    pub fn of_benchmark(title: &'a str, benchmark: &'a Benchmark) -> Self {
        Report { title, findings: Findings::Benchmark(benchmark) }
    }

    /// Of a diagnosis.
    #[must_use]
    pub fn of_diagnosis(title: &'a str, diagnosis: &'a Diagnosis) -> Self {
        Report { title, findings: Findings::Diagnosis(diagnosis) }
    }

    /// The page, as one HTML file.
    pub fn html(&self) -> Result<String, serde_json::Error> {
        let findings = self.findings;
        let recorded = findings.recorded();
        let each = (MOST_SPANS / recorded.len().max(1)).max(FEWEST_SPANS);
        let (warnings, stages, ceilings, limit) = match findings {
            Findings::Benchmark(found) => (found.warnings.as_slice(), &[][..], None, None),
            Findings::Diagnosis(found) => {
                let limit = Some(found.evidence.memory_limit).filter(|limit| *limit > 0);
                (&[][..], found.stages.as_slice(), Some(&found.ceilings), limit)
            }
        };
        let scaling = findings.scaling();
        let data = Data {
            title: self.title,
            version: env!("CARGO_PKG_VERSION"),
            target: findings.target(),
            machine: findings.machine(),
            workload: workload_text(findings.workload()),
            has_step: findings.has_step(),
            verdict: findings.verdict(),
            warnings,
            configurations: findings.compared(),
            wanted: wanted_by_all(&scaling),
            scaling,
            memory: findings.memory(),
            memory_limit: limit,
            stages,
            ceilings,
            activities: ACTIVITIES.iter().map(|(_, name)| *name).collect(),
            timelines: recorded.iter().map(|recorded| drawn(recorded, each)).collect(),
        };
        let page = Page {
            template: include_str!("../../web/report.html"),
            title: self.title,
            style: include_str!("../../web/report.css"),
            script: concat!(
                include_str!("../../web/timeline.js"),
                "\n",
                include_str!("../../web/report.js")
            ),
            connects: false,
        };
        page.render(&data)
    }
}

fn drawn<'a>(recorded: &Recorded<'a>, most: usize) -> Drawn<'a> {
    let (lanes, left_out) = newest(&recorded.run.timeline, most);
    let lanes = lanes.iter().enumerate().map(|(place, lane)| {
        let mut last = 0;
        let spans = lane.iter().flat_map(|span| {
            let begin = span.begin / 1000;
            let since = begin - last;
            last = begin;
            let took = (span.end / 1000).saturating_sub(begin);
            [activity_number(span.activity) as u64, since, took, span.batch]
        });
        DrawnLane { name: lane_name(recorded.run, place), spans: spans.collect() }
    });
    Drawn { name: recorded.name, lanes: lanes.collect(), left_out }
}
