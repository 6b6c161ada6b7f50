//! Lying bars: configurations compared, and where the trainer's time goes.

use crate::benchmark::Interval;
use feedline::internals::tune::StallBar;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{
    ACTIVITY_COLOURS, BLACK_TEXT, Drawn, Entry, GRID, LINES, NORMAL, Paper, SMALL, Sample,
    show_count, show_percent,
};
use crate::findings::{Compared, axis_end};

/// Samples a second of each configuration with its confidence interval, the best first.
pub(super) fn configurations<B: DrawingBackend>(
    paper: &Paper<'_, B>,
    shown: &[(Compared<'_>, Interval)],
) -> Drawn<B> {
    let style = paper.text(NORMAL, &BLACK_TEXT);
    let mark = |row: &Compared<'_>| match (row.best, row.baseline) {
        (true, _) => " (best)",
        (_, true) => " (baseline)",
        _ => "",
    };
    let label = |row: &Compared<'_>| format!("{}{}", row.name, mark(row));
    let widest = shown.iter().map(|(row, _)| paper.width(&label(row), &style)).max().unwrap_or(0);
    let room = widest.min(paper.px(270.0)) + paper.px(14.0);
    let end = axis_end(shown.iter().map(|(_, rate)| *rate), 1e-9) * 1.03;
    // The means stand in a column of their own: at a bar's end, or a whisker's, a number would
    // seem to be that place's.
    let values = shown.iter().map(|(_, rate)| paper.width(&show_count(rate.mean), &style));
    let column = values.max().unwrap_or(0) + paper.px(12.0);
    let last = shown.len() as f64 - 0.5;
    let mut chart = ChartBuilder::on(paper.area)
        .margin(paper.px(8.0))
        .margin_right(column.max(paper.px(20.0)) + paper.px(8.0))
        .x_label_area_size(paper.px(40.0))
        .y_label_area_size(room)
        .build_cartesian_2d(0.0..end, last..-0.5)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_labels(6)
        .x_desc("samples/s, with 95 % confidence intervals")
        .x_label_formatter(&|value| show_count(*value))
        .label_style(paper.text(SMALL, &BLACK_TEXT))
        .axis_desc_style(paper.text(SMALL, &BLACK_TEXT))
        .bold_line_style(paper.line(GRID, 1.0))
        .light_line_style(WHITE)
        .axis_style(paper.line(BLACK_TEXT, 1.0))
        .draw()?;
    for (place, (row, rate)) in shown.iter().enumerate() {
        let (at, colour) = (
            place as f64,
            if row.best {
                LINES[2]
            } else if row.baseline {
                LINES[6]
            } else {
                LINES[0]
            },
        );
        let bar = [(0.0, at - 0.31), (rate.mean, at + 0.31)];
        chart.draw_series(std::iter::once(Rectangle::new(bar, colour.filled())))?;
        let ink = paper.line(BLACK_TEXT, 1.2);
        if rate.high > rate.low {
            // An interval that ends outside of the axes is cut there, and has no end.
            let mut lines = vec![[(rate.low, at), (rate.high.min(end), at)]];
            let ends = [rate.low, rate.high].into_iter().filter(|value| *value <= end);
            lines.extend(ends.map(|value| [(value, at - 0.14), (value, at + 0.14)]));
            chart.draw_series(lines.into_iter().map(|line| PathElement::new(line, ink)))?;
        }
        let (x, y) = chart.backend_coord(&(end, at));
        paper.write(show_count(rate.mean), (x + column, y), HPos::Right, &style)?;
        let (x, y) = chart.backend_coord(&(0.0, at));
        let mark = mark(row);
        let left = room - paper.px(12.0) - paper.width(mark, &style);
        let name = format!("{}{mark}", paper.cut(row.name, &style, left));
        paper.write(name, (x - paper.px(8.0), y), HPos::Right, &style)?;
    }
    Ok(())
}

/// Where the trainer's time goes, as one bar. Without a step nobody waits: it is where the time goes.
pub(super) fn stall<B: DrawingBackend>(
    paper: &Paper<'_, B>,
    stall: &StallBar,
    has_step: bool,
) -> Drawn<B> {
    let names = if has_step {
        ["waiting: reading", "waiting: preparing", "waiting: copying", "not waiting"]
    } else {
        ["reading", "preparing", "copying", "between batches"]
    };
    let parts = [
        (names[0], stall.reading, ACTIVITY_COLOURS[2]),
        (names[1], stall.preparing, ACTIVITY_COLOURS[3]),
        (names[2], stall.copying, ACTIVITY_COLOURS[5]),
        (names[3], stall.none, ACTIVITY_COLOURS[1]),
    ];
    let mut chart = ChartBuilder::on(paper.area)
        .margin(paper.px(8.0))
        .margin_left(paper.px(20.0))
        .margin_right(paper.px(24.0))
        .margin_bottom(paper.px(30.0))
        .x_label_area_size(paper.px(26.0))
        .build_cartesian_2d(0.0..1.0, 0.0..1.0)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_labels(6)
        .x_label_formatter(&|share| show_percent(*share))
        .label_style(paper.text(SMALL, &BLACK_TEXT))
        .axis_style(paper.line(BLACK_TEXT, 1.0))
        .draw()?;
    let mut from = 0.0;
    for (name, share, colour) in parts {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        chart.draw_series(std::iter::once(Rectangle::new(
            [(from, 0.04), (from + share, 0.96)],
            colour.filled(),
        )))?;
        let ink = if name == names[3] { WHITE } else { BLACK };
        let style = paper.text(NORMAL, &ink);
        let (left, y) = chart.backend_coord(&(from, 0.5));
        let (right, _) = chart.backend_coord(&(from + share, 0.5));
        let text = show_percent(share);
        if right - left > paper.width(&text, &style) + paper.px(8.0) {
            paper.write(text, ((left + right) / 2, y), HPos::Center, &style)?;
        }
        from += share;
    }
    let (width, height) = paper.area.dim_in_pixel();
    let entries = parts.map(|(name, share, colour)| Entry {
        name: format!("{name} {}", show_percent(share)),
        colour,
        sample: Sample::Area,
    });
    let at = (paper.px(20.0), height as i32 - paper.px(26.0));
    paper.legend(&entries, at, width as i32 - paper.px(40.0))?;
    Ok(())
}
