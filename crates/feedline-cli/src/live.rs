//! Lets a loader of a command be looked at while it runs: by `feedline watch`, and in a browser if
//! that was asked for.

use feedline::{Error, Loader};
use feedline_view::live::{self, About, LiveError, Watched};

use crate::output::{Failure, Output};

/// A loader that can be looked at, for as long as this is kept.
pub(crate) struct Live {
    _watched: Option<Watched>,
}

impl Live {
    /// Over a loader that is about to run. `dashboard` is the port of its page, if there is to be
    /// one, 0 for any; its address goes to standard error.
    pub(crate) fn over(
        loader: &Loader,
        dashboard: Option<u16>,
        output: &Output,
    ) -> Result<Self, Failure> {
        let board = live::board();
        let about = About {
            name: loader.source_names().join(" + "),
            batch_size: loader.spec().batch_size,
            quarantine: loader.spec().quarantine.clone(),
        };
        let watched = board.as_ref().map(|board| board.watch(about, loader.monitor()));
        if let Some(complaint) = live::complaint() {
            output.note(&complaint);
        }
        live::attach();
        let live = Live { _watched: watched };
        if let Some(port) = dashboard {
            let board = board.ok_or(LiveError::Forked);
            let address = board.and_then(|board| live::serve(&board, port));
            let address =
                address.map_err(|error| Failure::Library(Error::System(error.to_string())))?;
            output.announce(&format!("dashboard: {address}"));
        }
        Ok(live)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        live::detach();
    }
}
