//! A store that fails on demand, as a broken disk does: to see what becomes of a fault anywhere in
//! a data set.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Entry, Handle, Hint, Metadata, Sidecar, Store, wrapped};
use crate::error::Fault;
use crate::sample::{Location, Room};

/// What is asked of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A folder is listed, or it is asked what is at a path.
    List,
    /// A file is opened.
    Open,
    /// Bytes are read.
    Read,
}

#[derive(Debug)]
struct Rule {
    operation: Operation,
    /// Paths that contain it are meant.
    only: String,
    /// So many go well before.
    spared: u64,
    /// So many fail then.
    failing: u64,
}

type Rules = Arc<Mutex<Vec<Rule>>>;

/// Lets what is asked of another store fail.
///
/// ```
/// use std::sync::Arc;
/// use feedline::store::{Faults, Files, Operation};
/// let faulty = Faults::new(Arc::new(Files::default()));
/// // The third read of that shard, and nothing else.
/// faulty.fail(Operation::Read, "shard-000007", 2, 1);
/// ```
pub struct Faults {
    inner: Arc<dyn Store>,
    rules: Rules,
}

fn check(rules: &Rules, operation: Operation, path: &Path) -> std::io::Result<()> {
    let mut rules = rules.lock().unwrap_or_else(PoisonError::into_inner);
    for rule in rules.iter_mut().filter(|rule| rule.operation == operation) {
        if !path.to_string_lossy().contains(&rule.only) {
            continue;
        }
        if rule.spared > 0 {
            rule.spared -= 1;
        } else if rule.failing > 0 {
            rule.failing -= 1;
            return Err(std::io::Error::from_raw_os_error(libc::EIO));
        }
    }
    Ok(())
}

impl Faults {
    /// Nothing fails yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Faults {
        Faults { inner, rules: Rules::default() }
    }

    /// Of what concerns paths that contain `text`, `spared` go well and the next `failing` fail.
    pub fn fail(&self, operation: Operation, text: &str, spared: u64, failing: u64) {
        let rule = Rule { operation, only: text.to_owned(), spared, failing };
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }

    /// True when everything that was to fail has failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.iter().all(|rule| rule.failing == 0)
    }

    fn wrap(&self, path: &Path, inner: Handle) -> Handle {
        let (path, rules) = (path.to_owned(), self.rules.clone());
        wrapped(inner, move |inner, out, at| {
            check(&rules, Operation::Read, &path)?;
            inner.read_at(out, at)
        })
    }
}

impl Store for Faults {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        check(&self.rules, Operation::Open, path)?;
        Ok(self.wrap(path, self.inner.open(path)?))
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> std::io::Result<()> {
        check(&self.rules, Operation::List, folder)?;
        self.inner.list(folder, each)
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        check(&self.rules, Operation::List, path)?;
        self.inner.find(path)
    }

    fn reopen(&self, path: &Path, stamp: u64) -> Result<Handle, Fault> {
        check(&self.rules, Operation::Open, path)?;
        Ok(self.wrap(path, self.inner.reopen(path, stamp)?))
    }

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        check(&self.rules, Operation::Read, &location.root.join(location.path))?;
        self.inner.read(location, room)
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        self.inner.size(location)
    }

    fn hint(&self, location: &Location<'_>) -> Hint {
        self.inner.hint(location)
    }

    fn sidecar(&self, path: &Path, ending: &str, place: Sidecar) -> Option<PathBuf> {
        self.inner.sidecar(path, ending, place)
    }
}
