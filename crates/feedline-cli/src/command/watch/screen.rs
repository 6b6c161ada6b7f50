//! The screen: drawn anew whenever figures come or the window changes.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError};

use feedline::internals::spec::{show_percent, show_time};
use feedline_view::live::{LoaderNow, Seen, Snapshot};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, RenderDirection, Sparkline, Wrap};

use super::view::{View, makers, queue, used_of};
use crate::signals::Signals;
use crate::terminal::{printable, shortened, show_count};
use feedline::internals::spec::show_bytes;

/// Columns of a figure's name, and of the figure.
const NAME: u16 = 13;
const VALUE: u16 = 22;

/// A wait that goes on for so many seconds is shown before anything else.
const LONG_WAIT: f64 = 10.0;

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
enum KeyRequest {
    End,
    Next,
    Nothing,
}

/// Shows figures until the process ends (true), or a key or a signal ends it (false).
pub(super) fn show(
    first: Snapshot,
    looks: &Receiver<Seen>,
    signals: &Signals,
    colour: bool,
) -> io::Result<bool> {
    let mut terminal = ratatui::try_init()?;
    let mut view = View::new(first);
    let shown = (|| loop {
        terminal.draw(|frame| draw(frame, &view, colour))?;
        // Woken by a key, a change of the window, or the time for a look at the channel.
        let woken = event::poll(super::BLINK * 2)?;
        if signals.received().is_some() {
            return Ok(false);
        }
        if woken && let Event::Key(key) = event::read()? {
            match request(key) {
                KeyRequest::End => return Ok(false),
                KeyRequest::Next => view.next(),
                KeyRequest::Nothing => {}
            }
        }
        match looks.try_recv() {
            Ok(Seen::Snapshot(snapshot)) => view.add(*snapshot),
            Ok(Seen::Silent(_)) => view.silent = true,
            Ok(Seen::Ended) | Err(TryRecvError::Disconnected) => return Ok(true),
            Err(TryRecvError::Empty) => {}
        }
    })();
    ratatui::restore();
    shown
}

fn request(key: KeyEvent) -> KeyRequest {
    if key.kind == KeyEventKind::Release {
        return KeyRequest::Nothing;
    }
    match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => KeyRequest::End,
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            KeyRequest::End
        }
        KeyCode::Tab | KeyCode::Char('n') => KeyRequest::Next,
        _ => KeyRequest::Nothing,
    }
}

struct Painter {
    colour: bool,
}

impl Painter {
    fn paint(&self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn quiet(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Green where nobody should care, red where somebody must, neither if nothing is known.
    fn of_wait(&self, share: Option<f64>) -> Style {
        match share {
            None => self.quiet(),
            Some(share) if share < 0.01 => self.paint(Color::Green),
            Some(share) if share < 0.1 => self.paint(Color::Yellow),
            Some(_) => self.paint(Color::Red),
        }
    }
}

fn draw(frame: &mut Frame<'_>, view: &View, colour: bool) {
    let painter = Painter { colour };
    let area = frame.area();
    let verdict = verdict(view, &painter);
    let room = usize::from(area.width.saturating_sub(4)).max(1);
    // Words that do not fit their line begin the next one.
    let lines = match verdict.0.chars().count().div_ceil(room) {
        0 | 1 => 1,
        several => several.min(4) as u16 + 1,
    };
    let rows = view.loader().map_or_else(Vec::new, |loader| rows(view, loader, &painter));
    // On a low screen the figures matter more than the frame around the sentence.
    let framed = usize::from(area.height) >= rows.len() + usize::from(lines) + 5;
    let [top, said, figures, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(if framed { lines + 2 } else { 1 }),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    heading(frame, view, &painter, top);
    if framed {
        let block = Block::new().borders(Borders::ALL).title(" verdict ").border_style(verdict.1);
        let text = Paragraph::new(verdict.0).wrap(Wrap { trim: true }).block(block);
        frame.render_widget(text, said);
    } else {
        let text = shortened(&verdict.0, usize::from(said.width), true).into_owned();
        frame.render_widget(Line::styled(text, verdict.1), said);
    }
    put_all(frame, rows, &painter, figures);
    let several = if view.snapshot.loaders.len() > 1 { " · Tab next loader" } else { "" };
    let hidden = match view.snapshot.hidden {
        0 => String::new(),
        hidden => format!(" · {hidden} more loaders not shown"),
    };
    let text = format!("q ends{several}{hidden}");
    frame.render_widget(Line::styled(text, painter.quiet()), keys);
}

fn heading(frame: &mut Frame<'_>, view: &View, painter: &Painter, area: Rect) {
    let name = view.loader().map_or("no loader is open", |loader| &loader.name);
    let state = if view.silent { "does not answer" } else { "live" };
    let width = usize::from(area.width);
    let name =
        shortened(&printable(name), width.saturating_sub(state.len() + 3), true).into_owned();
    let [left, right] =
        Layout::horizontal([Constraint::Min(1), Constraint::Length(state.len() as u16 + 2)])
            .areas(Rect { height: 1, ..area });
    frame.render_widget(Line::styled(name, Style::new().add_modifier(Modifier::BOLD)), left);
    let style = painter.paint(if view.silent { Color::Red } else { Color::Green });
    frame.render_widget(Line::styled(format!("● {state}"), style), right);
    let process = format!("process {}: {}", view.snapshot.pid, view.snapshot.program);
    let process = shortened(&printable(&process), width, true).into_owned();
    let below = Rect { y: area.y + 1, height: 1.min(area.height.saturating_sub(1)), ..area };
    frame.render_widget(Line::styled(process, painter.quiet()), below);
}

fn verdict(view: &View, painter: &Painter) -> (String, Style) {
    let Some(loader) = view.loader() else {
        return ("No loader is open in this process.".to_owned(), painter.quiet());
    };
    if let Some(waiting) = loader.waiting_seconds.filter(|seconds| *seconds >= LONG_WAIT) {
        let text = format!("The trainer has been waiting for a batch for {}.", show_time(waiting));
        return (text, painter.of_wait(Some(1.0)));
    }
    if let Some(silent) = loader.silent_seconds {
        let text = format!("No batch was handed over for {}.", show_time(silent));
        return (text, painter.paint(Color::Yellow));
    }
    match &loader.verdict {
        Some(verdict) => {
            let advice = verdict.advice.first().and_then(|advice| advice.command.as_deref());
            let advice = advice.map_or_else(String::new, |command| format!(" Try: {command}"));
            let text = printable(&format!("{}{advice}", verdict.sentence)).replace('\n', " ");
            (text, painter.of_wait(Some(verdict.wait_share)))
        }
        None => ("No batch was handed over yet.".to_owned(), painter.quiet()),
    }
}

/// A row: a name, a figure, and a picture of it where there is room.
struct Row<'a> {
    name: &'a str,
    value: String,
    picture: Picture<'a>,
}

enum Picture<'a> {
    /// Values of the last seconds, the newest at the right; the most that is drawn.
    Past(&'a std::collections::VecDeque<Option<u64>>, Option<u64>, Style),
    /// A share of one.
    Bar(f64, Style),
    /// A remark.
    Words(String),
}

fn rows<'a>(view: &'a View, loader: &'a LoaderNow, painter: &Painter) -> Vec<Row<'a>> {
    let blue = painter.paint(Color::Cyan);
    let waited = loader.wait_share;
    let mut rows = vec![
        Row {
            name: "samples/s",
            value: show_count(loader.samples_per_second.round() as u64),
            picture: Picture::Past(&view.rates, None, blue),
        },
        Row {
            name: "waited",
            value: waited.map_or_else(|| "-".to_owned(), show_percent),
            picture: Picture::Past(&view.waits, Some(1000), painter.of_wait(waited)),
        },
    ];
    if let (Some(p50), Some(p99)) = (loader.wait_p50_seconds, loader.wait_p99_seconds) {
        let longest = show_time(loader.longest_wait_seconds);
        rows.push(Row {
            name: "a wait",
            value: format!("{} (p50)", show_time(p50)),
            picture: Picture::Words(format!("p99 {}, longest {longest}", show_time(p99))),
        });
    }
    rows.extend(loader.queue.map(|found| Row {
        name: "queue",
        value: format!("{} ready", queue(found)),
        picture: Picture::Bar(found.ready as f64 / found.most.max(1) as f64, blue),
    }));
    rows.extend(loader.memory.map(|memory| Row {
        name: "memory",
        value: used_of(memory),
        picture: match memory.limit {
            0 => Picture::Words("no budget".to_owned()),
            limit => Picture::Bar(memory.used as f64 / limit as f64, blue),
        },
    }));
    let slowest = loader.stages.iter().map(|stage| stage.seconds).fold(0.0, f64::max).max(1e-12);
    rows.extend(loader.stages.iter().map(|stage| Row {
        name: &stage.name,
        value: format!("{} a sample", show_time(stage.seconds)),
        picture: Picture::Bar(stage.seconds / slowest, painter.paint(Color::Blue)),
    }));
    let snapshot = &view.snapshot;
    rows.push(Row {
        name: "batches",
        value: show_count(loader.batches),
        picture: Picture::Words(format!("of {} by {}", loader.batch_size, makers(loader))),
    });
    rows.push(Row {
        name: "process",
        value: show_bytes(snapshot.memory),
        picture: Picture::Words(snapshot.cores_busy.map_or_else(String::new, |busy| {
            format!("{busy:.1} of {} cores busy", snapshot.cores)
        })),
    });
    let latest = loader.quarantined.first();
    rows.push(Row {
        name: "quarantined",
        value: show_count(loader.failed),
        picture: Picture::Words(
            latest.map_or_else(String::new, |bad| format!("{}: {}", bad.name, bad.reason)),
        ),
    });
    rows
}

/// As many rows as there is room for; the last line says how many are not shown.
fn put_all(frame: &mut Frame<'_>, rows: Vec<Row<'_>>, painter: &Painter, area: Rect) {
    let room = usize::from(area.height);
    let shown = if rows.len() > room { room.saturating_sub(1) } else { rows.len() };
    let left = rows.len() - shown;
    let line = |number: usize| Rect { y: area.y + number as u16, height: 1, ..area };
    for (number, row) in rows.into_iter().take(shown).enumerate() {
        put(frame, row, painter, line(number));
    }
    if left > 0 && room > 0 {
        let lines = if left == 1 { "line" } else { "lines" };
        let text = format!("{left} more {lines}: enlarge the window");
        frame.render_widget(Line::styled(text, painter.quiet()), line(shown));
    }
}

fn put(frame: &mut Frame<'_>, row: Row<'_>, painter: &Painter, area: Rect) {
    let [name, value, picture] = Layout::horizontal([
        Constraint::Length(NAME),
        Constraint::Length(VALUE),
        Constraint::Min(0),
    ])
    .areas(area);
    let fits = |text: &str, width: u16| {
        shortened(&printable(text), usize::from(width.saturating_sub(1)), true).into_owned()
    };
    frame.render_widget(Line::styled(fits(row.name, NAME), painter.quiet()), name);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::from(Span::styled(fits(&row.value, VALUE), bold)), value);
    match row.picture {
        Picture::Past(values, most, style) => {
            let newest_first: Vec<Option<u64>> = values.iter().rev().copied().collect();
            let mut line = Sparkline::default()
                .data(newest_first)
                .direction(RenderDirection::RightToLeft)
                .style(style);
            if let Some(most) = most {
                line = line.max(most);
            }
            frame.render_widget(line, picture);
        }
        Picture::Bar(share, style) => {
            let width = usize::from(picture.width);
            let filled = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
            let rest = "─".repeat(width.saturating_sub(filled));
            let bar =
                [Span::styled("━".repeat(filled), style), Span::styled(rest, painter.quiet())];
            frame.render_widget(Line::from_iter(bar), picture);
        }
        Picture::Words(text) => {
            frame.render_widget(Line::raw(fits(&text, picture.width)), picture);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    pub(in super::super) fn snapshot() -> Snapshot {
        serde_json::from_value(json!({
            "pid": 4711, "program": "python train.py", "session": "s", "tick": 3, "time": 1.7e9,
            "memory": 1_500_000_000u64, "cores_busy": 3.5, "cores": 8,
            "loaders": [loader(0), loader(1)],
        }))
        .unwrap()
    }

    fn loader(id: u64) -> serde_json::Value {
        json!({
            "id": id, "name": "data/photos\u{1b}[2J", "executor": null, "workers": 4, "batch_size": 64,
            "batches": 1200, "samples": 76_800, "samples_per_second": 1920.4,
            "bytes_per_second": 1e8, "bytes_read": 1u64 << 33, "wait_share": 0.31,
            "wait_seconds": 12.0, "step_seconds": 30.0, "wait_p50_seconds": 0.001,
            "wait_p99_seconds": 0.12, "longest_wait_seconds": 2.0, "silent_seconds": null,
            "queue": {"ready": 3, "open": 6, "most": 8},
            "memory": {"used": 512_000_000, "limit": 2_000_000_000u64},
            "stages": [{"name": "read", "seconds": 0.0001}, {"name": "decode", "seconds": 0.004}],
            "failed": 2, "quarantined": [{"name": "a/torn.jpg", "reason": "cannot decode: torn"}],
            "verdict": {
                "cause": "decode", "resource": "all_cores", "limit": "decode", "signs": [],
                "sentence": "The trainer waited 31 % of the time. Cause: decode, 71 % of CPU.",
                "stall": {"reading": 0.0, "preparing": 0.31, "copying": 0.0, "none": 0.69},
                "advice": [], "wait_share": 0.31, "samples_per_second": 1920.0,
            },
        })
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, true)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = (0..height)
            .map(|y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>());
        rows.map(|row| row.trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn a_wide_and_a_narrow_screen_show_the_same_figures() {
        let mut view = View::new(snapshot());
        (0..30).for_each(|_| view.add(snapshot()));
        for (width, height) in [(100, 30), (60, 24)] {
            let screen = drawn(&view, width, height);
            for expected in [
                "process 4711: python train.py",
                "waited 31 %",
                "1,920",
                "3 of 8 ready",
                "4.0 ms a sample",
                "512 MB of 2.0 GB",
                "a/torn.jpg",
                "Tab next loader",
                "● live",
            ] {
                assert!(screen.contains(expected), "{width}: no {expected} in\n{screen}");
            }
            assert!(!screen.contains('\u{1b}'), "a name steers the terminal");
        }
    }

    #[test]
    fn a_low_screen_says_what_it_leaves_out() {
        let view = View::new(snapshot());
        let low = drawn(&view, 60, 15);
        assert!(low.contains("quarantined") && low.contains("The trainer waited"), "{low}");
        let lower = drawn(&view, 60, 10);
        assert!(lower.contains("more lines") && lower.contains("Tab next loader"), "{lower}");
        assert!(!lower.contains("quarantined"), "{lower}");
    }

    #[test]
    fn any_size_is_survived_and_silence_is_shown() {
        let mut view = View::new(snapshot());
        view.silent = true;
        assert!(drawn(&view, 60, 20).contains("does not answer"));
        for (width, height) in [(1, 1), (10, 3), (20, 5), (300, 2), (5, 100)] {
            drawn(&view, width, height);
        }
        view.silent = false;
        view.snapshot.loaders[0].waiting_seconds = Some(75.0);
        assert!(drawn(&view, 60, 20).contains("has been waiting"));
        view.snapshot.loaders[0].waiting_seconds = None;
        view.snapshot.loaders[0].wait_share = None;
        view.add(view.snapshot.clone());
        assert_eq!(view.waits.back(), Some(&None), "unknown is no zero");
        assert_eq!(Painter { colour: true }.of_wait(None).fg, None);
        let mut none = snapshot();
        none.loaders.clear();
        assert!(drawn(&View::new(none), 60, 20).contains("No loader is open"));
    }

    #[test]
    fn keys() {
        let key = |code, modifiers| request(KeyEvent::new(code, modifiers));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), KeyRequest::End);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), KeyRequest::End);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), KeyRequest::Nothing);
        assert_eq!(key(KeyCode::Tab, KeyModifiers::NONE), KeyRequest::Next);
        let mut view = View::new(snapshot());
        view.next();
        assert_eq!(view.loader().map(|loader| loader.id), Some(1));
        view.next();
        assert_eq!(view.loader().map(|loader| loader.id), Some(0));
    }
}
