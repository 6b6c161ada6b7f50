//! Lines: throughput and wait against workers, memory over time.

use crate::benchmark::Interval;
use feedline::internals::spec::show_bytes;
use plotters::prelude::*;

use super::{
    BLACK_TEXT, Dash, Drawn, Entry, GRID, LINES, Paper, SMALL, Sample, show_count, show_percent,
};
use crate::findings::{MemoryLine, Point, Scaling, axis_end, wanted_by_all};

const DASHED: Dash = (8.0, 5.0);
const DOTTED: Dash = (2.0, 4.0);

/// A line to draw.
struct Line {
    name: String,
    colour: RGBColor,
    dash: Option<Dash>,
    /// Places, values and their intervals.
    points: Vec<(f64, f64, Option<Interval>)>,
}

/// What lines are drawn between.
struct Frame<'a> {
    x: (f64, f64),
    /// Where the x axis has labels: everywhere, or at whole numbers only.
    whole: bool,
    top: f64,
    x_label: &'a str,
    y_label: &'a str,
    show: &'a dyn Fn(&f64) -> String,
}

fn measured(found: &[Scaling], pick: impl Fn(&Point) -> Interval) -> Vec<Line> {
    let lines = found.iter().enumerate();
    lines
        .map(|(place, line)| Line {
            name: line.name.clone(),
            colour: LINES[place % LINES.len()],
            dash: None,
            points: line
                .points
                .iter()
                .map(|point| (point.workers as f64, pick(point).mean, Some(pick(point))))
                .collect(),
        })
        .collect()
}

fn workers(found: &[Scaling]) -> (f64, f64) {
    let all = || found.iter().flat_map(|line| &line.points).map(|point| point.workers as f64);
    let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let room = ((high - low) * 0.04).max(0.05);
    (low - room, high + room)
}

/// Samples a second against the number of workers, beside what more workers would ideally bring.
pub(super) fn throughput<B: DrawingBackend>(paper: &Paper<'_, B>, found: &[Scaling]) -> Drawn<B> {
    let mut lines = measured(found, |point| point.rate);
    let best = axis_end(found.iter().flat_map(|line| &line.points).map(|point| point.rate), 1e-9);
    let x = workers(found);
    let mut top = best;
    if let Some(one) = found.iter().find_map(|line| line.of_one) {
        let ends = [1.0_f64.max(x.0.ceil()), (best * 1.2 / one).min(x.1.floor())];
        let points = ends.map(|workers| (workers, workers * one, None)).to_vec();
        lines.push(Line {
            name: "if each worker brought as much".to_owned(),
            // No measured line is black.
            colour: BLACK_TEXT,
            dash: Some(DOTTED),
            points,
        });
    }
    // A trainer that could use far more would only squeeze the rest.
    if let Some(wanted) = wanted_by_all(found).filter(|wanted| *wanted < best * 3.0) {
        top = top.max(wanted);
        let points = [x.0, x.1].map(|workers| (workers, wanted, None)).to_vec();
        lines.push(Line {
            name: "what the trainer can use".to_owned(),
            colour: BLACK_TEXT,
            dash: Some(DASHED),
            points,
        });
    }
    let show = |value: &f64| show_count(*value);
    draw(
        paper,
        &lines,
        &Frame {
            x,
            whole: true,
            top: top * 1.22,
            x_label: "workers",
            y_label: "samples/s",
            show: &show,
        },
    )
}

/// The share of waiting against the number of workers.
pub(super) fn wait<B: DrawingBackend>(paper: &Paper<'_, B>, found: &[Scaling]) -> Drawn<B> {
    let lines = measured(found, |point| point.wait);
    let most = axis_end(found.iter().flat_map(|line| &line.points).map(|point| point.wait), 0.02);
    let show = |value: &f64| show_percent(*value);
    draw(
        paper,
        &lines,
        &Frame {
            x: workers(found),
            whole: true,
            top: most * 1.12,
            x_label: "workers",
            y_label: "time that the trainer waited",
            show: &show,
        },
    )
}

/// Memory over time.
pub(super) fn memory<B: DrawingBackend>(
    paper: &Paper<'_, B>,
    found: &[MemoryLine<'_>],
) -> Drawn<B> {
    let lines: Vec<Line> = found
        .iter()
        .enumerate()
        .map(|(place, line)| Line {
            name: line.name.to_owned(),
            colour: LINES[place % LINES.len()],
            dash: (place >= LINES.len()).then_some(DASHED),
            points: line
                .seconds
                .iter()
                .zip(&line.bytes)
                .map(|(at, bytes)| (*at, *bytes as f64, None))
                .collect(),
        })
        .collect();
    let end = found.iter().filter_map(|line| line.seconds.last()).copied().fold(0.1, f64::max);
    let top = found.iter().flat_map(|line| &line.bytes).copied().max().unwrap_or(1).max(1) as f64;
    let show = |value: &f64| show_bytes(value.max(0.0).round() as u64);
    draw(
        paper,
        &lines,
        &Frame {
            x: (0.0, end),
            whole: false,
            top: top * 1.1,
            x_label: "seconds",
            y_label: "memory",
            show: &show,
        },
    )
}

fn draw<B: DrawingBackend>(paper: &Paper<'_, B>, lines: &[Line], frame: &Frame<'_>) -> Drawn<B> {
    let (width, _) = paper.area.dim_in_pixel();
    let entry = |line: &Line| Entry {
        name: line.name.clone(),
        colour: line.colour,
        sample: Sample::Line(line.dash),
    };
    let entries: Vec<_> = lines.iter().map(entry).collect();
    let taken =
        paper.legend(&entries, (paper.px(16.0), paper.px(8.0)), width as i32 - paper.px(32.0))?;
    let small = paper.text(SMALL, &BLACK_TEXT);
    let ticks = (0..=5).map(|tick| (frame.show)(&(frame.top * f64::from(tick) / 5.0)));
    let widest = ticks.map(|text| paper.width(&text, &small)).max().unwrap_or(0);
    let mut chart = ChartBuilder::on(paper.area)
        .margin(paper.px(10.0))
        .margin_top(taken + paper.px(14.0))
        .margin_right(paper.px(20.0))
        .x_label_area_size(paper.px(40.0))
        .y_label_area_size(widest + paper.px(36.0))
        .build_cartesian_2d(frame.x.0..frame.x.1, 0.0..frame.top)?;
    let whole = |value: &f64| {
        if value.fract().abs() < 1e-6 { show_count(value.round()) } else { String::new() }
    };
    let plain = |value: &f64| show_count(*value);
    chart
        .configure_mesh()
        .x_desc(frame.x_label)
        .y_desc(frame.y_label)
        .x_labels(9)
        .y_labels(6)
        .x_label_formatter(if frame.whole { &whole } else { &plain })
        .y_label_formatter(&|value| (frame.show)(value))
        .label_style(small.clone())
        .axis_desc_style(small)
        .bold_line_style(paper.line(GRID, 1.0))
        .light_line_style(WHITE)
        .axis_style(paper.line(BLACK_TEXT, 1.0))
        .draw()?;
    for line in lines {
        let style = paper.line(line.colour, 2.0);
        let points = || line.points.iter().map(|(x, y, _)| (*x, *y));
        if let Some((dash, gap)) = line.dash {
            let (dash, gap) = (paper.px(dash), paper.px(gap));
            chart.draw_series(DashedLineSeries::new(points(), dash, gap, style))?;
        } else {
            chart.draw_series(LineSeries::new(points(), style))?;
        }
        for (x, y, interval) in &line.points {
            let Some(interval) = interval else { continue };
            let half = paper.px(4.0);
            let thin = paper.line(line.colour, 1.3);
            // An interval that ends above the axes is cut there.
            let high = interval.high.min(frame.top);
            let bar = ErrorBar::new_vertical(*x, interval.low, *y, high, thin, half as u32 * 2);
            chart.draw_series(std::iter::once(bar))?;
            chart.draw_series(std::iter::once(Circle::new(
                (*x, *y),
                half,
                line.colour.filled(),
            )))?;
        }
    }
    Ok(())
}
