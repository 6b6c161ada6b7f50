//! One HTML file from a template, styles, scripts and data, which loads nothing from anywhere.
//!
//! The data lies in a script tag that browsers do not run, with every character escaped that could
//! end the tag. A content security policy lets only the file's own scripts and styles through, by
//! their hashes, so that a name in the data cannot become code even if a script had a mistake.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// The look that all pages share.
pub(crate) const BASE_STYLE: &str = include_str!("../web/base.css");
/// Figures, theme and plots that all pages share.
pub(crate) const BASE_SCRIPT: &str = include_str!("../web/base.js");
/// uPlot, which draws the plots.
pub(crate) const PLOT_SCRIPT: &str =
    include_str!("../web/node_modules/uplot/dist/uPlot.iife.min.js");
/// Its style.
pub(crate) const PLOT_STYLE: &str = include_str!("../web/node_modules/uplot/dist/uPlot.min.css");
/// Its licence, which goes wherever it goes.
const PLOT_LICENCE: &str = include_str!("../web/node_modules/uplot/LICENSE");

/// What a page is made of.
pub(crate) struct Page<'a> {
    /// HTML with `{{policy}}`, `{{title}}`, `{{style}}`, `{{script}}` and, if there is data,
    /// `{{data}}`, each once.
    pub template: &'a str,
    /// The title.
    pub title: &'a str,
    /// The page's own style, after the shared ones.
    pub style: &'a str,
    /// The page's own script, after the shared ones.
    pub script: &'a str,
    /// The page may talk to the server that it came from.
    pub connects: bool,
}

impl Page<'_> {
    /// The file's content. `data` is what the script finds as JSON in the element `data`.
    pub(crate) fn render(&self, data: &impl Serialize) -> Result<String, serde_json::Error> {
        let licence = format!("/*! uPlot: {} */\n", PLOT_LICENCE.replace("*/", ""));
        let style = [PLOT_STYLE, BASE_STYLE, self.style].join("\n");
        let script = [&licence, PLOT_SCRIPT, BASE_SCRIPT, self.script].join("\n");
        let connect = if self.connects { "'self'" } else { "'none'" };
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; connect-src {connect}; base-uri 'none'; form-action 'none'",
            hash(&script),
            hash(&style),
        );
        let data = data_block(&serde_json::to_string(data)?);
        let mut parts = self.template;
        let mut page = String::new();
        // Cut at the marks from left to right: what goes in is never searched for marks.
        while let Some((before, rest)) = parts.split_once("{{") {
            page.push_str(before);
            let (mark, after) = rest.split_once("}}").unwrap_or((rest, ""));
            match mark {
                "policy" => page.push_str(&policy),
                "title" => page.push_str(&escape(self.title)),
                "style" => page.push_str(&style),
                "script" => page.push_str(&script),
                "data" => page.push_str(&data),
                // The templates are part of this crate, and a test renders each.
                _ => debug_assert!(false, "{mark}"),
            }
            parts = after;
        }
        page.push_str(parts);
        Ok(page)
    }
}

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

/// Text as it may stand in HTML, also in an attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// JSON that cannot end the tag that it stands in: outside of its strings none of these
/// characters occur.
fn data_block(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{:04x}", u32::from(character));
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "</script><script>alert(1)</script><!-- \u{2028} & {{script}} \" '";

    fn page() -> String {
        let template = "<meta content=\"{{policy}}\"><title>{{title}}</title><style>{{style}}</style>\
            <script type=\"application/json\">{{data}}</script><script>{{script}}</script>";
        let page = Page { template, title: HOSTILE, style: "s{}", script: "go()", connects: false };
        page.render(&serde_json::json!({"name": HOSTILE})).unwrap()
    }

    #[test]
    fn names_cannot_become_markup() {
        let page = page();
        assert!(!page.contains("<script>alert") && !page.contains("<!--"));
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(page.contains("&lt;/script&gt;") && page.contains(r"\u003c/script\u003e"));
        let data = page.split_once("json\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["name"], HOSTILE);
    }

    #[test]
    fn the_policy_knows_what_is_in_the_page() {
        let page = page();
        let script = page.rsplit_once("<script>").unwrap().1.split_once("</script>").unwrap().0;
        assert!(script.ends_with("go()") && page.contains(&hash(script)));
        assert!(page.contains("connect-src 'none'") && page.contains("The MIT License"));
    }
}
