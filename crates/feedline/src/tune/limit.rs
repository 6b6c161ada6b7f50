//! What would hold the trainer up next, were it faster.

use super::evidence::Evidence;

/// The stage that a sample spends the most time in, in a few words: "decode", "reading", "your
/// code". `None` if nothing was timed.
#[must_use]
pub fn next_limit(evidence: &Evidence) -> Option<&str> {
    let stage = evidence
        .stages
        .iter()
        .filter(|stage| stage.seconds > 0.0)
        .max_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    Some(match stage.name.as_str() {
        "read" => "reading",
        "copy" => "copying",
        name => name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::StageCost;

    #[test]
    fn the_longest_stage_is_the_next_limit() {
        let stage = |name: &str, seconds: f64| StageCost {
            name: name.to_owned(),
            seconds,
            cpu_seconds: seconds / 2.0,
        };
        let mut evidence = Evidence::default();
        assert_eq!(next_limit(&evidence), None);
        evidence.stages = vec![stage("read", 3e-3), stage("decode", 2e-3), stage("copy", 0.0)];
        assert_eq!(next_limit(&evidence), Some("reading"));
        evidence.stages[1].seconds = 1.0;
        assert_eq!(next_limit(&evidence), Some("decode"));
    }
}
