//! The result as a table, as CSV, as Markdown.

use feedline::internals::spec::show_bytes;
use feedline::internals::spec::{show_percent, show_time};
use feedline::internals::tune::TrainStep;
use feedline_view::benchmark::{Benchmark, Configuration, Summary};
use serde_json::Value;

use super::ranking::{equals, workers_of};
use crate::output::{Failure, Output};
use crate::terminal::{Table, show_count};

/// One run does not show how far others would be apart.
fn is_repeated(configuration: &Configuration) -> bool {
    configuration.runs.len() > 1
}

fn has_step(benchmark: &Benchmark) -> bool {
    benchmark.workload.step != TrainStep::None
}

fn rate(configuration: &Configuration, summary: &Summary) -> String {
    let (mean, half) = (summary.samples_per_second.mean, summary.samples_per_second.half());
    let shown = if mean < 10.0 { format!("{mean:.1}") } else { show_count(mean.round() as u64) };
    match is_repeated(configuration) {
        true => format!("{shown} ±{:.0}%", half / mean.max(1e-9) * 100.0),
        false => shown,
    }
}

/// How many times as fast as the baseline it is.
fn factor(benchmark: &Benchmark, summary: &Summary) -> Option<f64> {
    let baseline = benchmark.configurations.get(benchmark.baseline?)?.summary.as_ref()?;
    let base = baseline.samples_per_second.mean;
    (base > 0.0).then(|| summary.samples_per_second.mean / base)
}

const COLUMNS: [&str; 9] = [
    "configuration",
    "samples/s",
    "",
    "wait mean/p50/p99",
    "busy",
    "first",
    "turn",
    "CPU",
    "memory",
];

fn cells(benchmark: &Benchmark, configuration: &Configuration, mark: &str) -> Vec<String> {
    let name = format!("{mark}{}", configuration.name);
    let Some(summary) = &configuration.summary else {
        let what = if configuration.is_missing() { "interrupted" } else { "failed" };
        return vec![name, what.to_owned()];
    };
    vec![
        name,
        rate(configuration, summary),
        factor(benchmark, summary).map_or_else(String::new, |factor| format!("{factor:.1}x")),
        waits([summary.wait.mean, summary.wait.p50, summary.wait.p99]),
        match has_step(benchmark) {
            true => show_percent(summary.busy_share.mean),
            false => "-".to_owned(),
        },
        show_time(summary.first_batch_seconds.mean),
        summary.turnover_seconds.map_or_else(|| "-".to_owned(), |turn| show_time(turn.mean)),
        show_time(summary.cpu_seconds_per_sample),
        show_bytes(summary.peak_memory),
    ]
}

/// Times side by side; the unit is said once where they share it, as tables are wide enough.
fn waits(seconds: [f64; 3]) -> String {
    let shown = seconds.map(show_time);
    let parts = shown.each_ref().map(|time| time.split_once(' ').unwrap_or((time, "")));
    match parts {
        [(a, unit), (b, second), (c, third)] if unit == second && unit == third => {
            format!("{a}/{b}/{c} {unit}")
        }
        _ => shown.join("/"),
    }
}

/// What the columns are.
fn legend(benchmark: &Benchmark) -> String {
    let mut parts = vec!["wait: before a step"];
    if has_step(benchmark) {
        parts.push("busy: share of the time that the trainer worked");
    }
    parts.extend([
        "first: until the first batch",
        "turn: between epochs",
        "CPU: a sample's processor time",
    ]);
    if benchmark.configurations.iter().any(is_repeated) {
        parts.push("±: 95 % confidence");
    }
    parts.join("; ")
}

/// Everything as text. `recipe` are the lines that make the best one.
pub(crate) fn text(
    benchmark: &Benchmark,
    recipe: &[String],
    output: &mut Output,
) -> Result<(), Failure> {
    let best = benchmark.ranking.first().copied();
    let mut table = Table::headed(&COLUMNS);
    for (place, configuration) in benchmark.configurations.iter().enumerate() {
        let mark = if Some(place) == best { "* " } else { "  " };
        table.cells(cells(benchmark, configuration, mark));
    }
    output.table(&table)?;
    output.line("")?;
    output.text(&legend(benchmark), 0)?;
    output.line("")?;
    for trouble in troubles(benchmark) {
        output.text(&trouble, 8)?;
    }
    if let Some(sentence) = best_sentence(benchmark) {
        output.heading(&sentence)?;
    }
    recipe.iter().try_for_each(|line| output.exact(&format!("  {line}")))?;
    if let Some(verdict) = &benchmark.verdict {
        output.text(&format!("With it: {}", verdict.sentence), 2)?;
    }
    if !benchmark.warnings.is_empty() {
        output.line("")?;
    }
    for warning in &benchmark.warnings {
        output.text(&format!("warning: {}", warning.text), 9)?;
    }
    Ok(())
}

/// Those that failed, and those of which an interrupt left runs out, a line for each.
fn troubles(benchmark: &Benchmark) -> impl Iterator<Item = String> {
    benchmark.configurations.iter().filter_map(|one| match (&one.error, &one.interrupted) {
        (Some(error), _) => Some(format!("failed: {}: {error}", one.name)),
        (None, Some(done)) => Some(format!("interrupted: {}: {done}", one.name)),
        (None, None) => None,
    })
}

/// The names of those without which an interrupted comparison has no best.
pub(crate) fn missing(benchmark: &Benchmark) -> Vec<&str> {
    let missing = benchmark.configurations.iter().filter(|one| one.is_missing());
    missing.map(|one| one.name.as_str()).collect()
}

/// Names the best in a sentence, or says what is missing for that.
pub(crate) fn best_sentence(benchmark: &Benchmark) -> Option<String> {
    let missing = missing(benchmark);
    if !missing.is_empty() {
        let names = missing.join(" and ");
        return Some(format!("No best is named: interrupted before {names} had a run."));
    }
    let best = benchmark.configurations.get(*benchmark.ranking.first()?)?;
    let summary = best.summary.as_ref()?;
    let samples = show_count(summary.samples_per_second.mean.round() as u64);
    let mut text = format!("Best: {}: {samples} samples/s", best.name);
    let baseline = benchmark.baseline.filter(|base| benchmark.ranking.first() != Some(base));
    let baseline = baseline.and_then(|place| benchmark.configurations.get(place));
    if let (Some(baseline), Some(factor)) = (baseline, factor(benchmark, summary)) {
        text += &format!(", {factor:.1} times {}", baseline.name);
    }
    if has_step(benchmark) {
        text +=
            &format!(", the trainer busy {} of the time", show_percent(summary.busy_share.mean));
    }
    let equals = equals(&benchmark.configurations, &benchmark.ranking);
    let names: Vec<&str> =
        equals.iter().map(|place| benchmark.configurations[*place].name.as_str()).collect();
    if !names.is_empty() {
        let as_good = match names.len() {
            1 => "is as good and costs more",
            _ => "are as good and cost more",
        };
        text += &format!("; {} {as_good}", names.join(" and "));
    }
    Some(text + ".")
}

const FIGURES: [&str; 17] = [
    "samples_per_second",
    "samples_per_second_low",
    "samples_per_second_high",
    "times_baseline",
    "busy_share",
    "wait_share",
    "wait_mean_seconds",
    "wait_p50_seconds",
    "wait_p99_seconds",
    "first_batch_seconds",
    "turnover_seconds",
    "cpu_seconds_per_sample",
    "peak_memory_bytes",
    "runs",
    "workers",
    "settings",
    "error",
];

/// A line for each configuration, in the order of the list.
pub(crate) fn csv(benchmark: &Benchmark) -> String {
    let mut text = format!("rank,configuration,{}\n", FIGURES.join(","));
    for (place, configuration) in benchmark.configurations.iter().enumerate() {
        let rank = benchmark.ranking.iter().position(|ranked| *ranked == place);
        let mut fields = vec![rank.map_or_else(String::new, |rank| (rank + 1).to_string())];
        fields.push(configuration.name.clone());
        match &configuration.summary {
            None => fields.extend(std::iter::repeat_n(String::new(), 13)),
            Some(summary) => {
                let rate = summary.samples_per_second;
                let repeated = |end: f64| is_repeated(configuration).then_some(end);
                let of_step = |share: f64| has_step(benchmark).then_some(share);
                let figures = [
                    Some(rate.mean),
                    repeated(rate.low),
                    repeated(rate.high),
                    factor(benchmark, summary),
                    of_step(summary.busy_share.mean),
                    of_step(summary.wait_share.mean),
                    Some(summary.wait.mean),
                    Some(summary.wait.p50),
                    Some(summary.wait.p99),
                    Some(summary.first_batch_seconds.mean),
                    summary.turnover_seconds.map(|turn| turn.mean),
                    Some(summary.cpu_seconds_per_sample),
                    Some(summary.peak_memory as f64),
                ];
                let shown =
                    |figure: Option<f64>| figure.map_or_else(String::new, |f| f.to_string());
                fields.extend(figures.map(shown));
            }
        }
        fields.push(configuration.runs.len().to_string());
        fields.push(workers_of(configuration).to_string());
        fields.push(Value::Object(configuration.settings.clone()).to_string());
        let interrupted =
            configuration.interrupted.as_ref().map(|done| format!("interrupted: {done}"));
        fields.push(configuration.error.clone().or(interrupted).unwrap_or_default());
        let line: Vec<String> = fields.iter().map(|field| csv_field(field)).collect();
        text += &format!("{}\n", line.join(","));
    }
    text
}

fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

/// A table for a page or an issue, and below it what else is to be known.
pub(crate) fn markdown(benchmark: &Benchmark) -> String {
    let mut columns = COLUMNS;
    columns[2] = "relative";
    let escape = |cell: &String| cell.replace('|', "\\|").replace('\n', " ");
    let line = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(escape).collect::<Vec<_>>().join(" | "))
    };
    let mut text = line(&columns.map(str::to_owned));
    text += &format!("|---{}|\n", "|---:".repeat(columns.len() - 1));
    let best = benchmark.ranking.first().copied();
    for (place, configuration) in benchmark.configurations.iter().enumerate() {
        let mut cells = cells(benchmark, configuration, "");
        cells.resize(columns.len(), String::new());
        if Some(place) == best {
            cells[0] = format!("**{}**", cells[0]);
        }
        text += &line(&cells);
    }
    if let Some(sentence) = best_sentence(benchmark) {
        text += &format!("\n{sentence}\n");
    }
    let warnings = benchmark.warnings.iter().map(|warning| format!("warning: {}", warning.text));
    let items: String = troubles(benchmark)
        .chain(warnings)
        // What looks like a tag would not be shown.
        .map(|item| format!("- {}\n", item.replace('\n', " ").replace('<', "&lt;")))
        .collect();
    if !items.is_empty() {
        text += &format!("\n{items}");
    }
    text
}

#[cfg(test)]
mod tests {
    use feedline::internals::tune::{Machine, Run, TrainStep, Workload};
    use feedline_view::benchmark::Warning;
    use serde_json::Map;

    use super::super::configurations::name_of;
    use super::super::ranking::{ranking, summary};
    use super::*;

    fn benchmark() -> Benchmark {
        let make = |workers: u64, rate: f64| {
            let run = Run {
                samples: 100,
                batches: 10,
                seconds: 1.0,
                samples_per_second: rate,
                waits: vec![0.002; 9],
                steps: vec![0.01; 10],
                peak_memory: 30_000_000,
                ..Run::default()
            };
            let settings: Map<String, Value> =
                [("num_workers".to_owned(), workers.into())].into_iter().collect();
            let runs = vec![run.clone(), run];
            let (name, summary) = (name_of(&settings), summary(&runs));
            Configuration { name, settings, summary, runs, ..Configuration::default() }
        };
        let mut failed = make(9, 0.0);
        (failed.summary, failed.runs) = (None, Vec::new());
        failed.error = Some("no \"room\", sorry".to_owned());
        let configurations = vec![make(0, 100.0), make(2, 310.0), failed];
        Benchmark {
            target: "my photos".to_owned(),
            machine: Machine::default(),
            workload: Workload {
                step: TrainStep::Fixed(0.01),
                epochs: 1,
                batches: None,
                seconds: None,
            },
            ranking: ranking(&configurations),
            configurations,
            baseline: Some(0),
            warnings: Vec::new(),
            verdict: None,
        }
    }

    #[test]
    fn the_best_is_named() {
        let sentence = best_sentence(&benchmark()).unwrap();
        assert_eq!(
            sentence,
            "Best: workers=2: 310 samples/s, 3.1 times workers=0, the trainer busy 83 % of the time."
        );
    }

    #[test]
    fn an_interrupted_comparison_names_no_best_and_says_what_is_missing() {
        let mut broken = benchmark();
        broken.configurations[0].interrupted = Some("2 of 3 runs over".to_owned());
        (broken.configurations[1].summary, broken.configurations[1].runs) = (None, Vec::new());
        broken.configurations[1].interrupted = Some("0 of 3 runs over".to_owned());
        broken.ranking = ranking(&broken.configurations);
        assert_eq!(cells(&broken, &broken.configurations[1], ""), ["workers=2", "interrupted"]);
        assert_eq!(cells(&broken, &broken.configurations[2], ""), ["workers=9", "failed"]);
        let sentence = "No best is named: interrupted before workers=2 had a run.";
        assert_eq!(best_sentence(&broken).unwrap(), sentence);
        assert_eq!(missing(&broken), ["workers=2"]);
        let csv = csv(&broken);
        assert!(csv.lines().skip(1).all(|line| line.starts_with(",workers=")), "{csv}");
        assert!(csv.contains(",interrupted: 0 of 3 runs over\n"), "{csv}");
        let markdown = markdown(&broken);
        assert!(markdown.contains("| workers=2 | interrupted |"), "{markdown}");
        assert!(markdown.contains(sentence) && !markdown.contains("**"), "{markdown}");
        assert!(markdown.contains("\n- interrupted: workers=0: 2 of 3 runs over\n"), "{markdown}");
    }

    #[test]
    fn waits_share_their_unit() {
        assert_eq!(waits([0.0031, 0.0026, 0.0038]), "3.1/2.6/3.8 ms");
        assert_eq!(waits([0.026, 28e-6, 0.119]), "26 ms/28 µs/119 ms");
        assert_eq!(waits([0.0; 3]).matches('/').count(), 2);
    }

    #[test]
    fn csv_and_markdown_hold_a_line_for_each() {
        let csv = csv(&benchmark());
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().take(3).all(|line| line.split(',').count() == FIGURES.len() + 2));
        assert!(lines[2].starts_with("1,workers=2,310,"), "{csv}");
        assert!(lines[3].ends_with("\"no \"\"room\"\", sorry\""), "{csv}");
        let mut warned = benchmark();
        warned.warnings = vec![Warning { text: "it\nis".to_owned(), ..Warning::default() }];
        let markdown = markdown(&warned);
        let below = "\n- failed: workers=9: no \"room\", sorry\n- warning: it is\n";
        assert!(markdown.ends_with(below), "{markdown}");
        assert!(markdown.contains("| **workers=2** | 310 ±0% | 3.1x |"), "{markdown}");
        let table: Vec<&str> = markdown.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(table.len(), 5);
        let bars = table[0].matches('|').count();
        assert!(table.iter().all(|line| line.matches('|').count() == bars), "{markdown}");
    }

    #[test]
    fn one_run_has_no_interval_and_no_step_no_busy_trainer() {
        let mut benchmark = benchmark();
        let shown = cells(&benchmark, &benchmark.configurations[1], "");
        assert_eq!((&*shown[1], &*shown[4]), ("310 ±0%", "83 %"));
        assert!(legend(&benchmark).contains("95 % confidence"));
        for one in &mut benchmark.configurations {
            one.runs.truncate(1);
        }
        let shown = cells(&benchmark, &benchmark.configurations[1], "");
        assert_eq!(shown[1], "310");
        assert!(!legend(&benchmark).contains("confidence"));
        assert!(csv(&benchmark).lines().nth(2).unwrap().starts_with("1,workers=2,310,,,3.1,0.8"));
        benchmark.workload.step = TrainStep::None;
        let shown = cells(&benchmark, &benchmark.configurations[1], "");
        assert_eq!(shown[4], "-");
        assert!(!best_sentence(&benchmark).unwrap().contains("busy"));
        assert!(!legend(&benchmark).contains("busy: "));
        assert!(csv(&benchmark).lines().nth(2).unwrap().starts_with("1,workers=2,310,,,3.1,,,"));
    }
}
