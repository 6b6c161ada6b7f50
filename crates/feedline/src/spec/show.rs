//! Figures for people.

use super::read::show_count;

/// A time: `340 µs`, `1.2 ms`, `120 ms`, `3.4 s`, `3 min 05 s`.
#[must_use]
pub fn show_time(seconds: f64) -> String {
    match seconds {
        s if s < 0.000_999_5 => format!("{:.0} µs", s.max(0.0) * 1e6),
        s if s < 0.009_95 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s if s < 59.95 => format!("{s:.1} s"),
        s => {
            let whole = s.round() as u64;
            format!("{} min {:02} s", whole / 60, whole % 60)
        }
    }
}

/// A share: `0 %`, `4.4 %`, `38 %`.
#[must_use]
pub fn show_percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = usize::from(percent > 0.0 && percent < 9.95);
    format!("{percent:.digits$} %")
}

/// So many a second: `3.5`, `1,038`; `any number of` if there is no bound.
#[must_use]
pub fn show_rate(rate: f64) -> String {
    match rate {
        rate if !rate.is_finite() => "any number of".to_owned(),
        rate if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        rate => show_count(rate.max(0.0).round() as u64),
    }
}

/// A number of things: `1 core`, `2 cores`, `1,024 batches`.
#[must_use]
pub fn counted(number: u64, what: &str) -> String {
    let ending = match what {
        _ if number == 1 => "",
        what if what.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {what}{ending}", show_count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        let times =
            [0.0, 4e-7, 0.000_34, 0.0005, 0.001_24, 0.012, 0.34, 0.9996, 3.44, 59.96, 185.2];
        let shown = [
            "0 µs",
            "0 µs",
            "340 µs",
            "500 µs",
            "1.2 ms",
            "12 ms",
            "340 ms",
            "1.0 s",
            "3.4 s",
            "1 min 00 s",
            "3 min 05 s",
        ];
        assert_eq!(times.map(show_time), shown);
        let shares = [0.0, 0.0004, 0.044, 0.0994, 0.0996, 0.375, 1.0];
        assert_eq!(
            shares.map(show_percent),
            ["0 %", "0.0 %", "4.4 %", "9.9 %", "10 %", "38 %", "100 %"]
        );
        let rates = [0.0, 3.46, 9.96, 1038.4, f64::INFINITY];
        assert_eq!(rates.map(show_rate), ["0", "3.5", "10", "1,038", "any number of"]);
        let things = [(0, "core"), (1, "open batch"), (2, "open batch"), (1024, "GPU")];
        let things = things.map(|(number, what)| counted(number, what));
        assert_eq!(things, ["0 cores", "1 open batch", "2 open batches", "1,024 GPUs"]);
    }
}
