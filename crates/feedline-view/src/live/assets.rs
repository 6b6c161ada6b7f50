//! The files of the page, which are part of the program.

const FILES: &[(&str, &str, &str)] = &[
    ("", "text/html; charset=utf-8", include_str!("../../web/dashboard.html")),
    ("dashboard.js", "text/javascript; charset=utf-8", include_str!("../../web/dashboard.js")),
    ("dashboard.css", "text/css; charset=utf-8", include_str!("../../web/dashboard.css")),
    ("base.js", "text/javascript; charset=utf-8", include_str!("../../web/base.js")),
    ("base.css", "text/css; charset=utf-8", include_str!("../../web/base.css")),
    (
        "uplot.js",
        "text/javascript; charset=utf-8",
        include_str!("../../web/node_modules/uplot/dist/uPlot.iife.min.js"),
    ),
    (
        "uplot.css",
        "text/css; charset=utf-8",
        include_str!("../../web/node_modules/uplot/dist/uPlot.min.css"),
    ),
];

/// The content type and the text of a file.
pub(super) fn find(name: &str) -> Option<(&'static str, &'static str)> {
    FILES.iter().find(|(known, _, _)| *known == name).map(|(_, kind, text)| (*kind, *text))
}
