//! Where a run stands: small, plain, and checked before it is believed.

use serde::{Deserialize, Serialize};

use super::Pick;

/// The version of the state's form and of everything that decides what a batch contains.
pub const VERSION: u64 = 2;

/// Epochs beyond this are a mistake, and would wrap around soon.
pub const MOST_EPOCHS: u64 = 1 << 62;

/// What must be the same for a state to make sense. Each part is compared by itself, so that a
/// refusal can name the part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Names and labels of the samples, or the arrays themselves, hashed.
    pub data: String,
    /// How the order is made, hashed.
    pub order: String,
    /// Decoding, transforms and layout, hashed.
    pub pixels: String,
    /// The seed.
    pub seed: u64,
    /// Rows of all ranks' batches together.
    pub global_batch: u64,
    /// `on_error` decides whether a bad sample is replaced.
    pub on_error: String,
}

/// Where a run stands, after the last batch that was handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The form's version.
    pub feedline_state: u64,
    /// The epoch of the next batch.
    pub epoch: u64,
    /// The number of the next batch in its epoch.
    pub batch: u64,
    /// Later batches of the epoch that were handed over already (only with `in_order = false`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delivered_ahead: Vec<u64>,
    /// What the state belongs to.
    pub identity: Identity,
    /// Samples that failed so far, as (source, index).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<(u64, u64)>,
}

impl State {
    /// A state at the given place.
    #[must_use]
    pub fn new(
        epoch: u64,
        batch: u64,
        identity: Identity,
        skipped: impl Iterator<Item = Pick>,
    ) -> Self {
        State {
            feedline_state: VERSION,
            epoch,
            batch,
            delivered_ahead: Vec::new(),
            identity,
            skipped: skipped.map(|pick| (pick.source as u64, pick.index)).collect(),
        }
    }

    /// Why this state cannot be used by a loader of `identity` with `batches` in an epoch.
    pub fn check(&self, identity: &Identity, batches: u64) -> Result<(), String> {
        let (theirs, ours) = (&self.identity, identity);
        if self.feedline_state != VERSION {
            return Err(format!(
                "the state has version {}, this feedline reads version {VERSION}; resume with the feedline that wrote it",
                self.feedline_state
            ));
        }
        if theirs.seed != ours.seed {
            return Err(format!(
                "the state was taken with seed = {}, this loader has seed = {}",
                theirs.seed, ours.seed
            ));
        }
        if theirs.global_batch != ours.global_batch {
            return Err(format!(
                "the state was taken with a global batch (batch_size x world_size) of {}, this loader has {}",
                theirs.global_batch, ours.global_batch
            ));
        }
        for (what, theirs, ours) in [
            (
                "the data set is not the same (its samples' names or labels differ)",
                &theirs.data,
                &ours.data,
            ),
            (
                "the order is made differently (shuffle, replacement, weights, subset, num_samples, last_batch or the mix)",
                &theirs.order,
                &ours.order,
            ),
            (
                "the pixels are made differently (decode, transforms or layout)",
                &theirs.pixels,
                &ours.pixels,
            ),
            ("on_error is not the same", &theirs.on_error, &ours.on_error),
        ] {
            if theirs != ours {
                return Err(format!("{what}: the state has {theirs}, this loader {ours}"));
            }
        }
        if self.batch >= batches.max(1) {
            return Err(format!(
                "the state points to batch {}, an epoch has {batches}",
                self.batch
            ));
        }
        let rising = self.delivered_ahead.windows(2).all(|pair| pair[0] < pair[1]);
        let ahead = |number: &u64| *number > self.batch && *number < batches;
        if !rising || !self.delivered_ahead.iter().all(ahead) {
            return Err("delivered_ahead must name later batches, each once, in order".to_owned());
        }
        if self.epoch > MOST_EPOCHS {
            return Err(format!("the state points to epoch {}, beyond any real run", self.epoch));
        }
        Ok(())
    }
}
