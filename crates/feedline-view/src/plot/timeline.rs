//! The first seconds of a run, lane by lane.

use feedline::internals::tune::Run;
use feedline::stats::{Activity, Span};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{ACTIVITY_COLOURS, BLACK_TEXT, Drawn, Entry, GRID, Paper, SMALL, Sample};
use crate::findings::{ACTIVITIES, activity_number, lane_name};

/// Steps of the trainer that fit on paper and can be distinguished.
const STEPS: usize = 12;
/// The tint of a gap, as a sixth of the colour on white gives it.
const WAITING: RGBColor = RGBColor(248, 229, 214);
/// Lanes that fit on a page.
const LANES: usize = 17;
/// Spans narrower than this, in pixels of the page, are drawn as wide.
const NARROWEST: f64 = 0.5;

/// Workers whose stages have rows of their own; with more of them there would be too many rows.
const SPLIT_WORKERS: usize = 4;

/// A row: all of a lane, or what a worker did in one stage.
struct Row<'a> {
    name: String,
    lane: &'a [Span],
    only: Option<Activity>,
}

impl Row<'_> {
    fn spans(&self) -> impl Iterator<Item = &Span> {
        self.lane.iter().filter(|span| self.only.is_none_or(|only| span.activity == only))
    }
}

/// The trainer on top, then the workers.
fn rows(run: &Run) -> Vec<Row<'_>> {
    let split = run.timeline.len() <= SPLIT_WORKERS + 1;
    let (from, to) = window(run);
    let visible = |span: &&Span| span.end > from && span.begin < to;
    let lanes = run.timeline.iter().take(LANES).enumerate();
    lanes
        .flat_map(|(place, lane)| {
            let name = lane_name(run, place);
            let has = |activity| lane.iter().filter(visible).any(|span| span.activity == activity);
            let found: Vec<_> = ACTIVITIES.iter().filter(|(activity, _)| has(*activity)).collect();
            if place == 0 || !split || found.len() < 2 {
                return vec![Row { name, lane, only: None }];
            }
            let stage = |(activity, stage): &(Activity, &str)| Row {
                name: format!("{name}: {stage}"),
                lane,
                only: Some(*activity),
            };
            found.into_iter().map(stage).collect()
        })
        .collect()
}

/// The height of the rows.
pub(super) fn height(run: &Run) -> u32 {
    24 * rows(run).len() as u32
}

/// From when to when: from the trainer's first step, for some steps; or the first second.
fn window(run: &Run) -> (u64, u64) {
    let all = || run.timeline.iter().flatten();
    let (begin, end) = (
        all().map(|span| span.begin).min().unwrap_or(0),
        all().map(|span| span.end).max().unwrap_or(1),
    );
    let trainer = run.timeline.first().map_or(&[][..], Vec::as_slice);
    let mut steps = trainer.iter().filter(|span| span.activity == Activity::Step);
    let first = steps.next().map_or(begin, |span| span.begin);
    let last = steps.take(STEPS - 1).last().map_or(begin + 1_000_000_000, |span| span.end);
    // With its wait for the first batch, unless that is most of the picture.
    let from = if first - begin.min(first) < (last - first.min(last)) / 3 { begin } else { first };
    (from, last.clamp(from + 1, end.max(from + 1)))
}

/// Draws the window: the trainer on top, then the workers.
pub(super) fn first_seconds<B: DrawingBackend>(paper: &Paper<'_, B>, run: &Run) -> Drawn<B> {
    let (from, to) = window(run);
    let rows = rows(run);
    let visible = |span: &&Span| span.end > from && span.begin < to;
    let seen: Vec<Entry> = ACTIVITIES
        .iter()
        .enumerate()
        .filter(|(_, (activity, _))| {
            rows.iter().flat_map(Row::spans).filter(visible).any(|span| span.activity == *activity)
        })
        .map(|(place, (_, name))| Entry {
            name: if *name == "wait" { "waiting".to_owned() } else { (*name).to_owned() },
            colour: if *name == "wait" { WAITING } else { ACTIVITY_COLOURS[place] },
            sample: Sample::Area,
        })
        .collect();
    let (width, _) = paper.area.dim_in_pixel();
    paper.legend(&seen, (paper.px(16.0), paper.px(8.0)), width as i32 - paper.px(32.0))?;
    let style = paper.text(SMALL, &BLACK_TEXT);
    let widest = rows.iter().map(|row| paper.width(&row.name, &style)).max().unwrap_or(0);
    let seconds = |moment: u64| moment.saturating_sub(from) as f64 / 1e9;
    let end = seconds(to);
    let mut chart = ChartBuilder::on(paper.area)
        .margin(paper.px(8.0))
        .margin_top(paper.px(32.0))
        .margin_right(paper.px(20.0))
        .x_label_area_size(paper.px(40.0))
        .y_label_area_size(widest + paper.px(14.0))
        .build_cartesian_2d(0.0..end, rows.len() as f64..0.0)?;
    let unit = if end < 2.0 { ("milliseconds", 1000.0) } else { ("seconds", 1.0) };
    let hidden = match run.timeline.len().saturating_sub(LANES) {
        0 => String::new(),
        1 => "; 1 more worker is not shown".to_owned(),
        more => format!("; {more} more workers are not shown"),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_labels(8)
        .x_desc(format!("{}{hidden}", unit.0))
        .x_label_formatter(&|value| super::show_count(value * unit.1))
        .label_style(style.clone())
        .axis_desc_style(style.clone())
        .bold_line_style(paper.line(GRID, 1.0))
        .light_line_style(WHITE)
        .axis_style(paper.line(BLACK_TEXT, 1.0))
        .draw()?;
    let narrowest = end * NARROWEST / f64::from(width.max(1)) * paper.scale;
    for (place, row) in rows.iter().enumerate() {
        let (top, bottom) = (place as f64 + 0.14, place as f64 + 0.86);
        for span in row.spans().filter(visible) {
            let colour = ACTIVITY_COLOURS[activity_number(span.activity)];
            let (begin, stop) = (seconds(span.begin), seconds(span.end.min(to)));
            // A little ground between neighbours, where there is room.
            let seam = if stop - begin > narrowest * 16.0 { narrowest * 2.0 } else { 0.0 };
            let corners = [(begin, top), (stop.max(begin + narrowest) - seam, bottom)];
            if span.activity == Activity::Wait && stop - begin > narrowest {
                // A gap: nothing but its outline and a breath of colour.
                chart.draw_series(std::iter::once(Rectangle::new(corners, WAITING.filled())))?;
                chart.draw_series(std::iter::once(Rectangle::new(
                    corners,
                    paper.line(colour, 0.6),
                )))?;
            } else if span.activity != Activity::Wait {
                chart.draw_series(std::iter::once(Rectangle::new(corners, colour.filled())))?;
            }
        }
        let (x, y) = chart.backend_coord(&(0.0, place as f64 + 0.5));
        paper.write(row.name.clone(), (x - paper.px(8.0), y), HPos::Right, &style)?;
    }
    Ok(())
}
