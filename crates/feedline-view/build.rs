//! Sees that the page's one library is there before the compiler looks for it.

use std::path::Path;

fn main() {
    let library = "web/node_modules/uplot/dist/uPlot.iife.min.js";
    println!("cargo::rerun-if-changed={library}");
    if !Path::new(library).exists() {
        println!(
            "cargo::error=crates/feedline-view/{library} is missing: run `make prepare` in the root, or `npm ci` in crates/feedline-view/web"
        );
    }
}
