//! What a few runs tell of the true value.

use super::result::Interval;

/// Student's t for 95 % confidence on both sides, by degrees of freedom from 1 on.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The t of so many degrees of freedom; beyond the table the largest of what follows, so that an
/// interval is never too narrow.
fn student(freedom: usize) -> f64 {
    match freedom {
        0 => 0.0,
        1..=30 => STUDENT[freedom - 1],
        31..=60 => 2.042,
        _ => 2.0,
    }
}

/// The mean of values and their standard deviation, which is 0 for one value.
#[must_use]
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>();
    (mean, if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 })
}

impl Interval {
    /// The mean of these values and where the true one is with 95 % confidence, if they are drawn
    /// about it alike. One value tells nothing of its spread: both ends are the value.
    #[must_use]
    pub fn of(values: &[f64]) -> Interval {
        let (mean, deviation) = mean_and_deviation(values);
        let freedom = values.len().saturating_sub(1);
        let half = student(freedom) * deviation / (values.len().max(1) as f64).sqrt();
        Interval { mean, low: mean - half, high: mean + half }
    }

    /// How far the true value may be from the mean. An end that was cut off where values cannot be
    /// does not count.
    #[must_use]
    pub fn half(&self) -> f64 {
        (self.high - self.mean).max(self.mean - self.low)
    }

    /// Whether both may be the same value.
    #[must_use]
    pub fn overlaps(&self, other: &Interval) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_in_the_textbook() {
        // t = 4.303 for three values; their deviation is 1, so half is 4.303 / sqrt(3).
        let three = Interval::of(&[9.0, 10.0, 11.0]);
        assert!((three.half() - 2.4843).abs() < 1e-3 && three.mean == 10.0, "{three:?}");
        assert_eq!(Interval::of(&[7.0]), Interval { mean: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(Interval::of(&[]), Interval::default());
        let narrow = Interval::of(&[10.0; 50]);
        assert_eq!((narrow.low, narrow.high), (10.0, 10.0));
        assert!(student(31) >= 2.040 && student(1000) >= 1.962);
    }

    #[test]
    fn intervals_overlap_or_not() {
        let of = |low: f64, high: f64| Interval { mean: (low + high) / 2.0, low, high };
        assert!(of(1.0, 2.0).overlaps(&of(1.5, 3.0)) && of(1.5, 3.0).overlaps(&of(1.0, 2.0)));
        assert!(of(1.0, 4.0).overlaps(&of(2.0, 3.0)) && !of(1.0, 2.0).overlaps(&of(2.1, 3.0)));
    }
}
