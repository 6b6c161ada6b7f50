//! What packing would bring, predicted from a trial with some of the samples.

use super::evidence::Ceilings;

/// Samples a second that whole loaders made of the same few samples, in turns and with their bytes in
/// memory: as they are, and packed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PackTrial {
    /// As they are.
    pub before: f64,
    /// Packed.
    pub after: f64,
}

impl PackTrial {
    /// Samples a second of all data, packed; `None` if the trial says nothing. Preparing becomes as
    /// many times as fast as it did in the trial, and reading stays as it is. It is never more than
    /// the trial itself gave, nor more than can be handed over.
    #[must_use]
    pub(crate) fn predict(self, ceilings: &Ceilings) -> Option<f64> {
        let PackTrial { before, after } = self;
        let real = ceilings.real.unwrap_or(before);
        if [before, after, real].iter().any(|rate| !rate.is_finite() || *rate <= 0.0) {
            return None;
        }
        let prepared = ceilings.prepared.map_or(real, |prepared| prepared.max(real));
        let reading = 1.0 / real - 1.0 / prepared;
        let preparing = before / after / prepared;
        let most = ceilings.replayed.unwrap_or(f64::INFINITY);
        Some((1.0 / (reading + preparing)).min(after).min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_believed_as_far_as_the_whole_goes() {
        let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-6, "{a:?} {b}");
        let with = |replayed, prepared, real| Ceilings { replayed, prepared, real, step: None };
        let trial = PackTrial { before: 1000.0, after: 3000.0 };
        near(trial.predict(&with(None, None, Some(1000.0))), 3000.0);
        // Few samples were faster than all are: the trial shows how many times, not how many.
        near(trial.predict(&with(None, None, Some(500.0))), 1500.0);
        // Others had the machine during the trial: no more is promised than was seen.
        near(trial.predict(&with(None, None, Some(2000.0))), 3000.0);
        // Half of the time is reading, which packing leaves as it is: 1 ms of 2, and a third of 1.
        near(trial.predict(&with(None, Some(1000.0), Some(500.0))), 750.0);
        // More cannot be handed over.
        let wild = PackTrial { before: 100.0, after: 22_280.0 };
        near(wild.predict(&with(Some(2400.0), Some(110.0), Some(110.0))), 2400.0);
        // Prepared and real are the same but for noise.
        near(trial.predict(&with(None, Some(990.0), Some(1000.0))), 3000.0);
        for nothing in [0.0, f64::INFINITY, f64::NAN] {
            let trial = PackTrial { after: nothing, ..trial };
            assert_eq!(trial.predict(&with(None, None, Some(1000.0))), None);
        }
    }
}
