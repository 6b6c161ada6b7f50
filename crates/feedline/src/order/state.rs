//! Where a run stands: small, plain, and checked before it is believed.

use serde::{Deserialize, Serialize};

use serde_json::Value;

use super::{Described, Pick};
use crate::canonical;
use crate::error::{Error, Result};

/// The version of the state's form, of what `canonical.rs` and `engine/identity.rs` hash, and of
/// everything that decides what a batch contains. `tests/golden.rs` holds all of it to this number.
pub const VERSION: u64 = 3;

/// Epochs beyond this are a mistake, and would wrap around soon.
pub const MOST_EPOCHS: u64 = 1 << 62;

/// What must be the same for a state to make sense. Each part is compared by itself, so that a
/// refusal can name the part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// Names and labels of the samples, or the arrays themselves, hashed.
    pub data: String,
    /// How the order is computed, hashed.
    pub order: String,
    /// Decoding, transforms and layout, hashed.
    pub pixels: String,
    /// The seed.
    pub seed: u64,
    /// Rows of all ranks' batches together.
    pub global_batch: u64,
    /// `on_error` decides whether a bad sample is replaced.
    pub on_error: String,
    /// What was hashed, in words, to name what differs.
    #[serde(default)]
    pub described: Described,
}

impl Identity {
    /// The identity of a loader with these settings: `data` says which samples there are, `order`
    /// how they are drawn, `pixels` what becomes of them. Their names are for good.
    #[must_use]
    pub(crate) fn new(
        data: &Value,
        order: &Value,
        pixels: &Value,
        (seed, global_batch): (u64, u64),
        on_error: &str,
    ) -> Self {
        Identity {
            data: canonical::hash("data", data),
            order: canonical::hash("order", order),
            pixels: canonical::hash("pixels", pixels),
            seed,
            global_batch,
            on_error: on_error.to_owned(),
            // The transforms first: of settings at great length, those are what people look for.
            described: Described::new(&[("pixels", pixels), ("order", order), ("data", data)]),
        }
    }
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
    pub(crate) identity: Identity,
    /// Samples that failed so far, as (source, index).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<(u64, u64)>,
}

impl State {
    /// Reads a state from JSON. One of another version is named as such, whatever else it holds.
    pub fn from_json(text: &str) -> Result<State> {
        let wrong = |error: serde_json::Error| {
            Error::State(format!("this is no state of feedline: {error}"))
        };
        let value: Value = serde_json::from_str(text).map_err(wrong)?;
        if let Some(version) = value.get("feedline_state").and_then(Value::as_u64) {
            check_version(version).map_err(Error::State)?;
        }
        serde_json::from_value(value).map_err(wrong)
    }

    /// A state at the given place.
    #[must_use]
    pub(crate) fn new(
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
    pub(crate) fn check(&self, identity: &Identity, batches: u64) -> Result<(), String> {
        let (theirs, ours) = (&self.identity, identity);
        check_version(self.feedline_state)?;
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
        for (part, what, unseen, theirs_hash, ours_hash) in [
            (
                "data",
                "the data set is not the same",
                "its samples' names or labels differ",
                &theirs.data,
                &ours.data,
            ),
            (
                "order",
                "the order is made differently",
                "by its weights, its subset or how the data lie in blocks",
                &theirs.order,
                &ours.order,
            ),
            (
                "pixels",
                "the pixels are made differently",
                "by decode, transforms or layout",
                &theirs.pixels,
                &ours.pixels,
            ),
        ] {
            if theirs_hash != ours_hash {
                let seen = theirs.described.differences(&ours.described, part);
                let why = if seen.is_empty() { unseen } else { &seen };
                return Err(format!("{what}: {why}"));
            }
        }
        if theirs.on_error != ours.on_error {
            return Err(format!(
                "on_error is not the same: {:.20?} in the state, {:?} here",
                theirs.on_error, ours.on_error
            ));
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

fn check_version(version: u64) -> Result<(), String> {
    if version == VERSION {
        return Ok(());
    }
    Err(format!(
        "the state has version {version}, this feedline reads version {VERSION}; resume with the feedline that wrote it"
    ))
}
