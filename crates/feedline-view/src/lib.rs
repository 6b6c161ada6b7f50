//! Pictures and pages of what a loader does.
//!
//! [`Report`] is what `feedline bench` or `feedline diagnose` found, to be shown: as a page that
//! needs nothing else ([`Report::html`]), as plots for papers ([`Report::pictures`]), as a trace for
//! Perfetto ([`Report::write_trace`]). [`live`] shows a running loader to a browser, to
//! `feedline watch` and to Prometheus.
//!
//! [`benchmark`] is what is compared; `findings` puts results into the rows and lines that are drawn; `page` makes one HTML file of a
//! template, styles, scripts and data; `plot/` draws SVG and PNG.

pub mod benchmark;
mod findings;
pub mod live;
mod page;
mod plot;
mod report;
pub mod trace;

pub use plot::{Format, Picture, PictureError};
pub use report::Report;
