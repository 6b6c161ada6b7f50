//! A running loader, live: for a browser, for `feedline watch`, for Prometheus.
//!
//! Front ends put every loader on the [`board()`] when they make it. Nobody pays for that before
//! somebody looks: [`serve`] opens the page, [`attach()`] lets other processes of the same user ask.
//!
//! | file | |
//! |---|---|
//! | `board` | what can be watched, and the thread that looks at it once a second |
//! | `track`, `reading`, `history` | a loader's figures, its last half minute, its hour |
//! | `snapshot` | what is known at one moment, as data |
//! | `server`, `assets`, `token`, `metrics` | the page and Prometheus, on the loopback address |
//! | `attach`, `client`, `folders` | the socket of a process, those who ask it, where it lies |
//! | `listening` | what a forked child has to close |

mod assets;
mod attach;
mod board;
mod client;
mod error;
mod folders;
mod history;
mod listening;
mod metrics;
mod quarantine;
mod reading;
mod server;
mod snapshot;
mod token;
mod track;

pub use attach::{attach, detach, stay_hidden};
pub use board::{About, Board, MOST_LOADERS, Watched, board};
pub use client::{Peer, Seen, fetch, peers};
pub use error::LiveError;
pub use folders::{complaint, searched};
pub use history::{History, POINTS, Point, STAGES};
pub use listening::inherited;
pub use server::serve;
pub use snapshot::{LoaderNow, Memory, Quarantined, Queue, Snapshot, Stage};
