//! What depends on whether a person is watching: colour, progress, the width of tables.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) use feedline::internals::spec::show_count;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What is known about the streams of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    colour_out: bool,
    colour_err: bool,
    stderr_is_terminal: bool,
    /// Columns, if standard output is a terminal.
    width: Option<usize>,
    /// The locale's encoding is UTF-8, so that more than ASCII can be shown.
    unicode: bool,
}

/// What a colour means.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Paint {
    Heading,
    Bad,
    Bar,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Paint::Heading => "\x1b[1m",
            Paint::Bad => "\x1b[1;31m",
            Paint::Bar => "\x1b[36m",
        }
    }
}

impl Terminal {
    pub(crate) fn detect() -> Self {
        // https://no-color.org: any value but an empty one.
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let (stdout, stderr) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        let width =
            terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
        Terminal {
            colour_out: stdout && !plain,
            colour_err: stderr && !plain,
            stderr_is_terminal: stderr,
            width: width.filter(|_| stdout),
            unicode: locale_is_unicode(|name| std::env::var(name).ok()),
        }
    }

    /// Columns for a chart: all there are, within what the eye can follow.
    pub(crate) fn chart_width(&self) -> usize {
        self.width.unwrap_or(80).clamp(40, 110)
    }

    /// `text` with line breaks between words where the terminal ends, and `indent` spaces before
    /// all lines but the first. Elsewhere (a file, a pipe) it stays one line.
    pub(crate) fn wrapped(&self, text: &str, indent: usize) -> String {
        let Some(width) = self.width.filter(|width| *width > indent + 20) else {
            return text.to_owned();
        };
        let mut wrapped = String::new();
        let mut column = 0;
        for word in text.split(' ') {
            if column > indent && column + 1 + word.width() > width {
                wrapped += &format!("\n{}", " ".repeat(indent));
                column = indent;
            } else if column > 0 {
                wrapped.push(' ');
                column += 1;
            }
            wrapped += word;
            column += word.width();
        }
        wrapped
    }

    /// A screen can be drawn on standard output.
    pub(crate) fn has_screen(&self) -> bool {
        self.width.is_some() && self.unicode
    }

    /// Standard output shows colours.
    pub(crate) fn has_colour(&self) -> bool {
        self.colour_out
    }

    /// Whether standard error is a terminal, where somebody watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.stderr_is_terminal
    }

    pub(crate) fn is_unicode(&self) -> bool {
        self.unicode
    }

    /// `text` for standard error.
    pub(crate) fn paint_error(&self, paint: Paint, text: &str) -> String {
        painted(self.colour_err, paint, text)
    }

    /// `text` for standard output.
    pub(crate) fn paint(&self, paint: Paint, text: &str) -> String {
        painted(self.colour_out, paint, text)
    }
}

/// POSIX: the first of these that is set and not empty names the locale.
fn locale_is_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let names = ["LC_ALL", "LC_CTYPE", "LANG"];
    let locale = names.into_iter().filter_map(variable).find(|value| !value.is_empty());
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

fn painted(colour: bool, paint: Paint, text: &str) -> String {
    if colour { format!("{}{text}\x1b[0m", paint.code()) } else { text.to_owned() }
}

/// `text` with control characters spelled out, so that a file's name cannot steer the terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let steers = |symbol: char| symbol.is_control() && symbol != '\n';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let spell = |symbol: char| {
        if steers(symbol) { symbol.escape_default().to_string() } else { symbol.into() }
    };
    Cow::Owned(text.chars().map(spell).collect())
}

/// How far the work is, for a person or for a log.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The bar waits: what is done at once needs none.
    waits: AtomicBool,
    /// Milliseconds from `start` to the next plain line; `u64::MAX` for never.
    next_line: AtomicU64,
    start: Instant,
    done: AtomicU64,
    total: u64,
    unit: &'static str,
}

/// A bar that is gone within a blink only unsettles.
const BAR_AFTER: Duration = Duration::from_millis(400);

/// Between two lines in a log: enough to see life, too little to fill it.
const LINE_EVERY: Duration = Duration::from_secs(5);

impl Progress {
    pub(crate) fn new(terminal: &Terminal, total: u64, unit: &'static str, quiet: bool) -> Self {
        let bar = if terminal.stderr_is_terminal && !quiet {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
            let colour = if terminal.colour_err { ":.cyan" } else { "" };
            let template = format!(
                "{{wide_bar{colour}}} {{human_pos}}/{{human_len}} {unit} {{rate}} eta {{eta}}"
            );
            let symbols = if terminal.unicode { "━╸ " } else { "=> " };
            match ProgressStyle::with_template(&template) {
                Ok(style) => {
                    bar.with_style(style.progress_chars(symbols).with_key("rate", show_rate))
                }
                Err(_) => bar,
            }
        } else {
            ProgressBar::hidden()
        };
        let plain = !terminal.stderr_is_terminal && !quiet;
        let waits = AtomicBool::new(terminal.stderr_is_terminal && !quiet);
        let first = if plain { LINE_EVERY.as_millis() as u64 } else { u64::MAX };
        Progress {
            bar,
            waits,
            next_line: first.into(),
            start: Instant::now(),
            done: 0.into(),
            total,
            unit,
        }
    }

    /// `done` of the total are done; an older, smaller number from another thread is ignored.
    pub(crate) fn set(&self, done: u64) {
        let done = self.done.fetch_max(done, Ordering::Relaxed).max(done);
        if self.waits.load(Ordering::Relaxed)
            && self.start.elapsed() >= BAR_AFTER
            && self.waits.swap(false, Ordering::Relaxed)
        {
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(15));
            // Only now does the style know which stream its colours are for.
            self.bar.set_style(self.bar.style());
        }
        self.bar.set_position(done);
        let next = self.next_line.load(Ordering::Relaxed);
        if next == u64::MAX {
            return;
        }
        let now = self.start.elapsed().as_millis() as u64;
        let following = now + LINE_EVERY.as_millis() as u64;
        let due = now >= next
            && self
                .next_line
                .compare_exchange(next, following, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if due {
            let (total, unit) = (show_count(self.total), self.unit);
            let percent = done.saturating_mul(100) / self.total.max(1);
            let pace = show_pace(done, self.total, now as f64 / 1000.0);
            // A closed standard error only loses the progress.
            let _ = writeln!(
                io::stderr(),
                "{} of {total} {unit} ({percent} %){pace}",
                show_count(done)
            );
        }
    }

    /// Does something that may print, with the bar out of its way.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// The bar goes; the result takes its place.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// The rate since the start and what that leaves, for a line in a log; nothing before the first.
fn show_pace(done: u64, total: u64, seconds: f64) -> String {
    if done == 0 || seconds <= 0.0 {
        return String::new();
    }
    let rate = done as f64 / seconds;
    let left = show_seconds(total.saturating_sub(done) as f64 / rate);
    let rate = if rate < 10.0 { format!("{rate:.1}") } else { show_count(rate.round() as u64) };
    format!(", {rate}/s, {left} left")
}

fn show_rate(state: &ProgressState, text: &mut dyn std::fmt::Write) {
    // The bar draws on without a rate if this fails.
    let _ = write!(text, "{:.0}/s", state.per_sec());
}

/// Rows under a heading. The first column is for names, the others are for figures.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Table::headed(&heading)
    }

    pub(crate) fn headed(heading: &[&str]) -> Self {
        Table { rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.cells(cells.into());
    }

    /// A row whose last cells may be missing or of another number.
    pub(crate) fn cells(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| printable(cell).replace('\n', "\\n")).collect());
    }

    /// Names are shortened in their middle until a row fits the terminal's width. Elsewhere (a
    /// file, a pipe) nothing is shortened.
    pub(crate) fn render(&self, terminal: &Terminal) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        if let Some(limit) = terminal.width {
            let figures: usize = widths.iter().skip(1).map(|width| width + 2).sum();
            if let Some(names) = widths.first_mut() {
                *names = (*names).min(limit.saturating_sub(figures).max(8));
            }
        }
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let cell = shortened(cell, width, terminal.unicode);
                let gap = " ".repeat(width - cell.width().min(width));
                line +=
                    &if column == 0 { format!("{cell}{gap}") } else { format!("  {gap}{cell}") };
            }
            let line = line.trim_end();
            text +=
                &if number == 0 { terminal.paint(Paint::Heading, line) } else { line.to_owned() };
            text.push('\n');
        }
        text
    }
}

/// At most `width` columns of `text`: its beginning and its end say more than its middle.
pub(crate) fn shortened(text: &str, width: usize, unicode: bool) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let gap = if unicode { "…" } else { ".." };
    let room = width.saturating_sub(gap.width());
    let take = |symbols: &mut dyn Iterator<Item = char>, room: usize| {
        let mut used = 0;
        let fits = |symbol: &char| {
            used += symbol.width().unwrap_or(0);
            used <= room
        };
        symbols.take_while(fits).collect::<String>()
    };
    let start = take(&mut text.chars(), room / 2);
    let end: String = take(&mut text.chars().rev(), room - room / 2).chars().rev().collect();
    Cow::Owned(format!("{start}{gap}{end}"))
}

/// `1 batch`, `2 batches`.
pub(crate) fn show_batches(count: u64) -> String {
    match count {
        1 => "1 batch".to_owned(),
        count => format!("{} batches", show_count(count)),
    }
}

/// `1 worker`, `2 workers`.
pub(crate) fn show_number(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", show_count(count))
}

/// A duration for people: `340 ms`, `9.9 s`, `3 min 05 s`.
pub(crate) fn show_seconds(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1000.0)
    } else if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        let whole = seconds.round() as u64;
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Terminal = Terminal {
        colour_out: false,
        colour_err: false,
        stderr_is_terminal: false,
        width: None,
        unicode: true,
    };

    #[test]
    fn the_locale_decides_what_can_be_shown() {
        let locale = |set: &'static [(&str, &str)]| {
            locale_is_unicode(|name| {
                set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
            })
        };
        assert!(locale(&[("LANG", "en_GB.UTF-8")]) && locale(&[("LC_CTYPE", "C.utf8")]));
        assert!(!locale(&[]) && !locale(&[("LANG", "C")]));
        assert!(!locale(&[("LC_ALL", "POSIX"), ("LANG", "en_GB.UTF-8")]));
        assert!(locale(&[("LC_ALL", ""), ("LANG", "en_GB.UTF-8")]));
    }

    #[test]
    fn figures_for_people() {
        assert_eq!([0.34, 9.94, 185.0].map(show_seconds), ["340 ms", "9.9 s", "3 min 05 s"]);
    }

    #[test]
    fn lines_in_a_log_have_a_rate_and_the_time_left() {
        assert_eq!(show_pace(0, 100, 5.0), "");
        assert_eq!(show_pace(6000, 10_000, 5.0), ", 1,200/s, 3.3 s left");
        assert_eq!(show_pace(10, 500, 5.0), ", 2.0/s, 4 min 05 s left");
        assert_eq!(show_pace(11, 10, 5.0), ", 2.2/s, 0 ms left");
    }

    #[test]
    fn lines_break_between_words_on_a_terminal_only() {
        let text = "batch: image float32 [64, 3, 224, 224], label int64 [64]";
        assert_eq!(PLAIN.wrapped(text, 4), text);
        let wrapped = Terminal { width: Some(30), ..PLAIN }.wrapped(text, 4);
        assert!(wrapped.lines().all(|line| line.width() <= 30), "{wrapped}");
        assert_eq!(wrapped.replace("\n   ", ""), text);
    }

    #[test]
    fn a_table_fits_the_terminal_and_hides_no_escape_codes() {
        let mut table = Table::new(["file", "bytes"]);
        table.row(["photos/train/00_amber_disc/00001.jpg".into(), "7".into()]);
        table.row(["写真\x1b[2J".into(), "123456".into()]);
        let wide = table.render(&PLAIN);
        assert!(wide.contains("00_amber_disc") && !wide.contains('\x1b'), "{wide}");
        let narrow = table.render(&Terminal { width: Some(24), ..PLAIN });
        assert!(narrow.lines().all(|line| line.width() <= 24), "{narrow}");
        assert!(narrow.contains("photos/") && narrow.contains(".jpg  "), "{narrow}");
        let ascii = table.render(&Terminal { width: Some(24), unicode: false, ..PLAIN });
        assert!(ascii.contains("..") && !ascii.contains('…'), "{ascii}");
    }
}
