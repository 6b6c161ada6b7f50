//! Bars in the terminal.

use unicode_width::UnicodeWidthStr;

use crate::terminal::{Paint, Terminal, printable, shortened, show_count};

/// Labelled counts, each with a bar.
pub(crate) struct Bars {
    title: String,
    rows: Vec<(String, u64)>,
}

impl Bars {
    pub(crate) fn new(title: impl Into<String>, rows: Vec<(String, u64)>) -> Self {
        Bars { title: title.into(), rows }
    }

    /// How often values fall between round numbers; on a scale of equal ratios if they spread far.
    pub(crate) fn histogram(
        title: impl Into<String>,
        values: &[f64],
        show: &dyn Fn(f64) -> String,
    ) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if values.is_empty() || low == high {
            let rows = values.first().map(|value| (show(*value), values.len() as u64));
            return Bars::new(title, rows.into_iter().collect());
        }
        let edges = edges(low, high);
        let mut counts = vec![0; edges.len() - 1];
        for value in values {
            let bin = edges.partition_point(|edge| edge <= value).clamp(1, counts.len());
            counts[bin - 1] += 1;
        }
        let label = |pair: &[f64]| format!("{} to {}", show(pair[0]), show(pair[1]));
        Bars::new(title, edges.windows(2).map(label).zip(counts).collect())
    }

    pub(crate) fn render(&self, terminal: &Terminal) -> String {
        let width = terminal.chart_width();
        let label = |text: &str| printable(text).replace('\n', "\\n");
        let labels: Vec<String> = self.rows.iter().map(|(text, _)| label(text)).collect();
        let widest = labels.iter().map(|text| text.width()).max().unwrap_or(0).min(width / 2);
        let counts: Vec<String> = self.rows.iter().map(|(_, count)| show_count(*count)).collect();
        let digits = counts.iter().map(String::len).max().unwrap_or(0);
        let room = width.saturating_sub(widest + digits + 5).max(8);
        let most = self.rows.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
        let mut text = terminal.paint(Paint::Heading, &self.title) + "\n";
        for ((name, shown), (_, count)) in labels.iter().zip(&counts).zip(&self.rows) {
            let name = shortened(name, widest, terminal.is_unicode());
            let gap = " ".repeat(widest - name.width().min(widest));
            let bar = bar(*count, most, room, terminal.is_unicode());
            let space = if bar.is_empty() { "" } else { " " };
            let bar = terminal.paint(Paint::Bar, &bar);
            text += &format!("  {gap}{name}  {bar}{space}{shown}\n");
        }
        text
    }
}

/// A bar of `count` on a scale where `most` fills `room`; anything above 0 shows.
fn bar(count: u64, most: u64, room: usize, unicode: bool) -> String {
    let parts = if unicode { 8 } else { 1 };
    let length = (count as f64 / most as f64 * (room * parts) as f64).round() as usize;
    let length = length.max(usize::from(count > 0));
    if !unicode {
        return "#".repeat(length);
    }
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][length % 8];
    "█".repeat(length / 8) + rest
}

/// Round numbers from at most `low` to at least `high`, about ten steps apart.
fn edges(low: f64, high: f64) -> Vec<f64> {
    if low > 0.0 && high / low > 30.0 {
        let first = (low.log10() * 3.0).floor() as i32 - 1;
        let all: Vec<f64> =
            (first..).map(in_ratios).take_while(|edge| *edge < high * 3.0).collect();
        let start = all.iter().rposition(|edge| *edge <= low).unwrap_or(0);
        let end = all.iter().position(|edge| *edge >= high).unwrap_or(all.len() - 1);
        let fine = &all[start..=end];
        // More than fifteen bars show less: then in steps of ten.
        if fine.len() <= 16 {
            return fine.to_vec();
        }
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        return (first..=last).map(|power| 10f64.powi(power)).collect();
    }
    let rough = (high - low) / 10.0;
    let unit = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (low / step).floor() as i64;
    let last = ((high / step).ceil() as i64).max(first + 1);
    (first..=last).map(|n| n as f64 * step).collect()
}

/// ..., 1, 2, 5, 10, 20, 50, ...: number 0 is 1.
fn in_ratios(number: i32) -> f64 {
    [1.0, 2.0, 5.0][number.rem_euclid(3) as usize] * 10f64.powi(number.div_euclid(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_between_round_edges() {
        let plain = |value: f64| format!("{value}");
        for values in [vec![3.0, 4.0, 99.0], vec![1.0, 5000.0], vec![1e3, 1e12], vec![0.0, 1.0]] {
            let bars = Bars::histogram("x", &values, &plain);
            assert_eq!(bars.rows.iter().map(|row| row.1).sum::<u64>(), values.len() as u64);
            assert!((2..=16).contains(&bars.rows.len()), "{:?}", bars.rows);
        }
        assert_eq!(Bars::histogram("x", &[7.0, 7.0], &plain).rows, [("7".to_owned(), 2)]);
        assert!(Bars::histogram("x", &[], &plain).rows.is_empty());
    }

    #[test]
    fn bars_fill_their_room_and_small_ones_show() {
        assert_eq!(bar(5, 10, 8, false), "####");
        assert_eq!(bar(1, 1_000_000, 8, false), "#");
        assert_eq!((bar(10, 10, 4, true), bar(0, 10, 4, true)), ("████".into(), String::new()));
    }
}
