//! The engine's order for samples that Python makes.

use feedline::internals::engine::Schedule;
use feedline::internals::order::{MOST_EPOCHS, Pick, Row};
use feedline::{Error, Spec, State};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors::{mismatch, raise, raise_spec};

/// The classes of each source's samples.
type Labels = Vec<Option<Vec<i64>>>;

/// A batch's rows: for each its source, its sample, the place that its random draws belong to, and
/// the position that it repeats or is at.
type Rows = Vec<(usize, u64, u64, u64)>;

/// An epoch, a batch's number, and the (source, index) of what was skipped.
type OrderPosition = (u64, u64, Vec<(u64, u64)>);

/// The arguments that an order was made from.
type Arguments = (String, Vec<u64>, Option<Labels>);

/// Which samples the batches of every epoch hold.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Order {
    schedule: Schedule,
    made_from: Arguments,
}

#[pymethods]
impl Order {
    /// `spec` is a description as JSON with a source of kind "arrays" for each size. `labels` are
    /// the samples' classes, for `weights="balanced"`.
    #[new]
    #[pyo3(signature = (spec, sizes, labels=None))]
    fn new(py: Python<'_>, spec: &str, sizes: Vec<u64>, labels: Option<Labels>) -> PyResult<Self> {
        let made_from = (spec.to_owned(), sizes.clone(), labels.clone());
        let schedule = py
            .detach(|| {
                let label = |pick: Pick| {
                    let labels = labels.as_ref()?.get(pick.source)?.as_ref()?;
                    labels.get(usize::try_from(pick.index).ok()?).copied()
                };
                Schedule::new(Spec::from_json(spec)?, &sizes, &label)
            })
            .map_err(|error| raise_spec(py, error))?;
        Ok(Order { schedule, made_from })
    }

    /// What does not change, as JSON.
    #[getter]
    fn about(&self) -> String {
        let spec = self.schedule.spec();
        let (rank, world_size) = self.schedule.rank();
        json!({
            "batches": self.schedule.batches(),
            "samples": self.schedule.samples(),
            "rank": rank,
            "world_size": world_size,
            "workers": self.schedule.num_workers(),
            "spec": spec.to_value(),
        })
        .to_string()
    }

    /// The rows of a batch, and how many of the last ones only fill it up.
    fn batch(&self, epoch: u64, number: u64) -> PyResult<(Rows, u64)> {
        if number >= self.schedule.batches() {
            return Err(PyIndexError::new_err("there is no such batch"));
        }
        let due = self.schedule.batch(epoch, number);
        let rows = due
            .iter()
            .map(|due| (due.pick.source, due.pick.index, due.row.draws, due.row.position));
        Ok((rows.collect(), self.schedule.padding(number)))
    }

    /// The (source, index) that stands in for the sample of a row, and for its stand-ins.
    fn substitute(
        &self,
        epoch: u64,
        draws: u64,
        position: u64,
        attempt: u32,
    ) -> PyResult<(usize, u64)> {
        if position >= self.schedule.samples() {
            return Err(PyIndexError::new_err("there is no such position"));
        }
        let row = Row { position, draws, padding: position != draws };
        let pick = self.schedule.substitute(epoch, row, attempt);
        Ok((pick.source, pick.index))
    }

    /// Where a run stands before a batch, as JSON. `data` and `pixels` say what the samples are
    /// and what becomes of them, as JSON; `skipped` are the (source, index) that failed.
    fn state(
        &self,
        epoch: u64,
        number: u64,
        data: &str,
        pixels: &str,
        skipped: Vec<(usize, u64)>,
    ) -> PyResult<String> {
        let skipped = skipped.into_iter().map(|(source, index)| Pick { source, index });
        let (data, pixels) = (settings(data)?, settings(pixels)?);
        let state = self.schedule.state((epoch, number), &data, &pixels, skipped);
        serde_json::to_string(&state).map_err(|error| mismatch(&error.to_string()))
    }

    /// Checks a state; returns its epoch, its batch's number and what was skipped.
    fn check(
        &self,
        py: Python<'_>,
        state: &str,
        data: &str,
        pixels: &str,
    ) -> PyResult<OrderPosition> {
        let (data, pixels) = (settings(data)?, settings(pixels)?);
        let checked = State::from_json(state)
            .and_then(|state| self.schedule.check(&state, &data, &pixels).map(|()| state));
        let state = checked.map_err(|error| raise(py, error))?;
        if !state.delivered_ahead.is_empty() {
            let text = "it was taken with in_order = false, which this loader does not have";
            return Err(raise(py, Error::State(text.to_owned())));
        }
        Ok((state.epoch, state.batch, state.skipped))
    }

    /// Epochs beyond this are a mistake.
    #[classattr]
    fn most_epochs() -> u64 {
        MOST_EPOCHS
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Arguments)> {
        Ok((slf.get_type().into_any(), slf.get().made_from.clone()))
    }
}

/// What the Python side compares, which it has written itself.
fn settings(text: &str) -> PyResult<Value> {
    serde_json::from_str(text).map_err(|error| mismatch(&error.to_string()))
}
