//! What is known of a target before anything is run.

use std::ffi::OsStr;
use std::path::Path;

use feedline::{Loader, Spec};

use super::child;
use super::children::{Surroundings, Trouble};
use super::configurations::{Settings, Subject};
use super::job::{Answer, Job};
use crate::host::ObjectKind;
use crate::output::Failure;
use crate::terminal::show_count;

/// What is known of the target.
pub(crate) struct Known {
    pub(crate) subject: Subject,
    /// The spec, if the engine reads it.
    pub(crate) spec: Option<Spec>,
    /// Settings that all configurations start from.
    pub(crate) base: Settings,
    pub(crate) heading: String,
}

impl Known {
    /// Looks at the target of `job`, so that its mistakes are reported before anything is run. `asked`
    /// are settings that were asked for.
    pub(crate) fn of(
        target: &OsStr,
        job: &Job,
        asked: &Settings,
        surroundings: &Surroundings<'_>,
    ) -> Result<Known, Stop> {
        match job.python {
            true => Known::of_code(target, job, asked.clone(), surroundings),
            false => Known::of_data(Path::new(target), job, asked.clone()),
        }
    }

    fn of_data(target: &Path, job: &Job, mut base: Settings) -> Result<Known, Stop> {
        let probe = Job { settings: base.clone(), ..job.clone() };
        let spec = child::describe(target, &probe)?;
        let loader = Loader::from_spec(spec.clone()).map_err(Failure::from)?;
        base.insert("batch_size".to_owned(), spec.batch_size.into());
        let heading = format!(
            "{}: {} samples in batches of {}",
            loader.source_names().join(" + "),
            show_count(loader.samples()),
            spec.batch_size
        );
        Ok(Known { subject: Subject::Native, spec: Some(spec), base, heading })
    }

    fn of_code(
        target: &OsStr,
        job: &Job,
        mut base: Settings,
        surroundings: &Surroundings<'_>,
    ) -> Result<Known, Stop> {
        let facts = match surroundings.ask(target, job, &mut |_| {})? {
            Answer::Facts(facts) => facts,
            _ => return Err(Stop::from(Trouble::Failed("no answer".to_owned()))),
        };
        let samples = facts
            .samples
            .map_or_else(String::new, |count| format!(" of {} samples", show_count(count)));
        if let Some(shuffle) = job.flags.get("shuffle") {
            base.insert("shuffle".to_owned(), shuffle.clone());
        }
        let subject = match facts.kind {
            ObjectKind::Dataset => {
                base.entry("batch_size").or_insert_with(|| 64.into());
                Subject::Dataset { torch: facts.torch }
            }
            ObjectKind::TorchLoader => Subject::TorchLoader,
            ObjectKind::Loader => Subject::Loader,
        };
        let heading = format!("{}: {}{samples}", target.to_string_lossy(), facts.name);
        Ok(Known { subject, spec: None, base, heading })
    }
}

/// Why nothing was run.
pub(crate) enum Stop {
    Interrupted(i32),
    Failure(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failure(failure)
    }
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Interrupted(code) => Stop::Interrupted(code),
            Trouble::Failed(reason) => Stop::Failure(feedline::Error::System(reason).into()),
        }
    }
}
