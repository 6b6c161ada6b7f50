//! The architecture as a test: who may know whom, where `unsafe` may live, what folders are called.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

/// What every module may import.
const FOUNDATION: [&str; 13] = [
    "error",
    "buffer",
    "canonical",
    "catalog",
    "guard",
    "image",
    "layout",
    "output_file",
    "random",
    "sample",
    "spec",
    "store",
    "observe",
];

/// The only modules that may know all the stages, besides the crate's root.
const CONDUCTORS: [&str; 2] = ["engine", "internals"];

/// Crates of the front ends, which the engine crate must not know; its tests use the photos.
const FRONT_END_CRATES: [&str; 10] = [
    "pyo3",
    "numpy",
    "dlpark",
    "clap",
    "indicatif",
    "axum",
    "plotters",
    "feedline_cli",
    "feedline_sample_photos",
    "feedline_view",
];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 10] = [
    "utils", "util", "helpers", "helper", "common", "misc", "manager", "managers", "shared",
    "stuff",
];

/// A source file: its path from the root of the repository, and its text.
struct Source {
    path: String,
    text: String,
}

/// A path such as `crate::decode::jpeg` or `pyo3::prelude` as far as it matters.
struct Mention {
    line: usize,
    target: Target,
}

enum Target {
    /// A name at the root of this crate: a module, or something exported again there.
    Root(String),
    /// The first segment of any other path.
    Outside(String),
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below `folder` (from the root of the repository) that end with `ending`.
fn files_below(folder: &str, ending: &str) -> Vec<Source> {
    let root = repository();
    let (mut folders, mut found) = (vec![root.join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                let name = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
                found.push(Source {
                    path: name,
                    text: fs::read_to_string(&path).unwrap_or_default(),
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn tokens(source: &Source) -> Vec<TokenTree> {
    TokenStream::from_str(&source.text)
        .unwrap_or_else(|error| panic!("{}: {error}", source.path))
        .into_iter()
        .collect()
}

/// `src/decode/jpeg.rs` as `[decode, jpeg]`; the crate's root as `[]`.
fn module_path(path: &str) -> Vec<String> {
    let inside = path.split_once("/src/").map_or(path, |(_, inside)| inside);
    let mut parts: Vec<_> = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

fn ident(token: Option<&TokenTree>) -> Option<&Ident> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident),
        _ => None,
    }
}

fn is_punctuation(token: Option<&TokenTree>, symbol: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == symbol)
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punctuation(tokens.get(at), ':') && is_punctuation(tokens.get(at + 1), ':')
}

fn inside(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<Vec<TokenTree>> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => {
            Some(group.stream().into_iter().collect())
        }
        _ => None,
    }
}

/// The names that follow a `::`: one, or the first of each branch of `{a::b, c}`. A branch that
/// starts with `super` or `self` only goes where the path already was.
fn names_at(tokens: &[TokenTree], at: usize) -> Vec<(usize, String)> {
    if let Some(ident) = ident(tokens.get(at)) {
        return vec![(ident.span().start().line, ident.to_string())];
    }
    if is_punctuation(tokens.get(at), '*') {
        let line = tokens[at].span().start().line;
        return vec![(line, "*".to_owned())];
    }
    let Some(branches) = inside(tokens.get(at), Delimiter::Brace) else { return Vec::new() };
    let starts =
        (0..branches.len()).filter(|&at| at == 0 || is_punctuation(branches.get(at - 1), ','));
    starts.flat_map(|start| names_at(&branches, start)).collect()
}

/// `#[cfg(test)]`, also within `all(...)`.
fn is_test_attribute(tokens: &[TokenTree], at: usize) -> bool {
    if !is_punctuation(tokens.get(at), '#') {
        return false;
    }
    let Some(attribute) = inside(tokens.get(at + 1), Delimiter::Bracket) else { return false };
    let Some(condition) = inside(attribute.get(1), Delimiter::Parenthesis) else { return false };
    let is =
        |token: Option<&TokenTree>, name: &str| ident(token).is_some_and(|ident| ident == name);
    let in_all = is(condition.first(), "all")
        && inside(condition.get(1), Delimiter::Parenthesis)
            .is_some_and(|parts| parts.iter().any(|part| is(Some(part), "test")));
    is(attribute.first(), "cfg") && (is(condition.first(), "test") || in_all)
}

/// The place after the item that starts at `at`: after its body or its semicolon.
fn after_item(tokens: &[TokenTree], mut at: usize) -> usize {
    while at < tokens.len() {
        at += 1;
        if is_punctuation(tokens.get(at - 1), ';')
            || inside(tokens.get(at - 1), Delimiter::Brace)
                .is_some_and(|_| !is_path_separator_before(tokens, at))
        {
            break;
        }
    }
    at
}

/// The braces of `use a::{b}` end no item.
fn is_path_separator_before(tokens: &[TokenTree], after_group: usize) -> bool {
    after_group >= 3 && is_path_separator(tokens, after_group - 3)
}

/// Collects every path in `tokens`, which belong to `module`; test code is passed over.
fn collect_mentions(tokens: &[TokenTree], module: &[String], found: &mut Vec<Mention>) {
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(tokens, at) {
            at = after_item(tokens, at + 2);
            continue;
        }
        if let TokenTree::Group(group) = &tokens[at] {
            let stream: Vec<_> = group.stream().into_iter().collect();
            let named = (at >= 2 && group.delimiter() == Delimiter::Brace)
                .then(|| (ident(tokens.get(at - 2)), ident(tokens.get(at - 1))));
            match named {
                Some((Some(keyword), Some(name))) if keyword == "mod" => {
                    collect_mentions(&stream, &[module, &[name.to_string()]].concat(), found);
                }
                _ => collect_mentions(&stream, module, found),
            }
            at += 1;
            continue;
        }
        if let (Some(first), false) = (ident(tokens.get(at)), continues_path(tokens, at)) {
            at = collect_path(tokens, at, first, module, found);
        } else {
            at += 1;
        }
    }
}

/// Whether the name at `at` is a later segment of a path. `use ::name` and `-> ::name` start one.
fn continues_path(tokens: &[TokenTree], at: usize) -> bool {
    if at < 3 || !is_path_separator(tokens, at - 2) {
        return false;
    }
    match &tokens[at - 3] {
        TokenTree::Ident(before) => {
            !["use", "as", "dyn", "for", "impl", "in", "return"].iter().any(|word| before == word)
        }
        TokenTree::Punct(before) => {
            before.as_char() == '>' && !(at > 3 && is_punctuation(tokens.get(at - 4), '-'))
        }
        _ => false,
    }
}

/// Reads the path that starts with `first` and returns the place to go on from.
fn collect_path(
    tokens: &[TokenTree],
    at: usize,
    first: &Ident,
    module: &[String],
    found: &mut Vec<Mention>,
) -> usize {
    let line = first.span().start().line;
    let mut next = at + 1;
    let mut place = match first.to_string().as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module[..module.len().saturating_sub(1)].to_vec(),
        name => {
            let after_use = at > 0 && ident(tokens.get(at - 1)).is_some_and(|ident| ident == "use");
            if is_path_separator(tokens, next) || after_use {
                found.push(Mention { line, target: Target::Outside(name.to_owned()) });
            }
            return next;
        }
    };
    while is_path_separator(tokens, next)
        && ident(tokens.get(next + 2)).is_some_and(|ident| ident == "super")
    {
        place.pop();
        next += 3;
    }
    if is_path_separator(tokens, next) && place.is_empty() {
        for (line, name) in names_at(tokens, next + 2) {
            found.push(Mention { line, target: Target::Root(name) });
        }
        next += 2;
    }
    next
}

/// Names that the root exports again, each with the module it comes from: `pub use error::Error`.
fn exports(root: &[TokenTree]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (at, token) in root.iter().enumerate() {
        if ident(Some(token)).is_none_or(|ident| ident != "use") {
            continue;
        }
        let mut start = at + 1;
        if ident(root.get(start))
            .is_some_and(|ident| ["crate", "self"].iter().any(|name| ident == name))
        {
            start += 3;
        }
        let Some(module) = ident(root.get(start)) else { continue };
        let rest: Vec<_> =
            root[start..].iter().take_while(|token| !is_punctuation(Some(token), ';')).collect();
        let mut names = Vec::new();
        leaf_names(&rest, &mut names);
        found.extend(names.into_iter().map(|name| (name, module.to_string())));
    }
    found
}

/// The last name of each branch of a `use`.
fn leaf_names(tokens: &[&TokenTree], names: &mut Vec<String>) {
    for branch in tokens.split(|token| is_punctuation(Some(token), ',')) {
        match branch.last() {
            Some(TokenTree::Ident(ident)) => names.push(ident.to_string()),
            Some(TokenTree::Group(group)) => {
                let stream: Vec<_> = group.stream().into_iter().collect();
                leaf_names(&stream.iter().collect::<Vec<_>>(), names);
            }
            _ => {}
        }
    }
}

fn may_import(from: &str, to: &str) -> bool {
    from == to || FOUNDATION.contains(&to) || CONDUCTORS.contains(&from)
}

/// Imports between stages, and imports of front ends, in the sources of the engine crate.
fn forbidden_imports(sources: &[Source]) -> Vec<String> {
    let root = sources.iter().find(|source| source.path.ends_with("/src/lib.rs"));
    let exports = root.map(|root| exports(&tokens(root))).unwrap_or_default();
    let modules: BTreeSet<_> =
        sources.iter().filter_map(|source| module_path(&source.path).first().cloned()).collect();
    let mut problems = Vec::new();
    for source in sources {
        let module = module_path(&source.path);
        let mut mentions = Vec::new();
        collect_mentions(&tokens(source), &module, &mut mentions);
        for Mention { line, target } in mentions {
            let place = format!("{}:{line}", source.path);
            match target {
                Target::Outside(name) if FRONT_END_CRATES.contains(&name.as_str()) => {
                    problems.push(format!("{place}: the engine crate must not know `{name}`"));
                }
                Target::Outside(_) => {}
                Target::Root(name) => {
                    // The root itself may know everything.
                    let Some(from) = module.first() else { continue };
                    if name == "*" && !CONDUCTORS.contains(&from.as_str()) {
                        problems.push(format!("{place}: `{from}` imports the whole crate"));
                        continue;
                    }
                    let to = exports.get(&name).unwrap_or(&name);
                    if modules.contains(to) && !may_import(from, to) {
                        problems.push(format!("{place}: `{from}` must not import `{to}`"));
                    }
                }
            }
        }
    }
    problems
}

fn mentions_unsafe(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == "unsafe",
        TokenTree::Group(group) => mentions_unsafe(group.stream()),
        _ => false,
    })
}

/// The paths in the marked list of ARCHITECTURE.md.
fn listed_unsafe_modules(document: &str) -> BTreeSet<String> {
    let start =
        document.find("<!-- unsafe-modules -->").expect("ARCHITECTURE.md has the marked list");
    let list = document[start..].lines().skip(1).take_while(|line| !line.starts_with("<!--"));
    // A line is a folder and files in it.
    list.filter_map(|line| line.trim().strip_prefix("- "))
        .flat_map(|line| {
            let mut names = line.split('`').skip(1).step_by(2);
            let folder = names.next().unwrap_or_default();
            names.map(move |name| format!("{folder}{name}"))
        })
        .collect()
}

/// `unsafe` outside its modules, and entries of the list that are not true any more.
fn misplaced_unsafe(sources: &[Source], listed: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut found = BTreeSet::new();
    for source in sources {
        let stream: TokenStream = tokens(source).into_iter().collect();
        let text: String = stream.to_string().split_whitespace().collect();
        if !mentions_unsafe(stream) {
            continue;
        }
        found.insert(source.path.clone());
        if !text.contains("#![allow(unsafe_code)]") {
            problems.push(format!("{}: `unsafe` without #![allow(unsafe_code)]", source.path));
        }
        if !listed.contains(&source.path) {
            problems.push(format!("{}: `unsafe`, but not in ARCHITECTURE.md's list", source.path));
        }
    }
    let stale = listed.difference(&found);
    problems
        .extend(stale.map(|path| format!("ARCHITECTURE.md lists {path}, which has no `unsafe`")));
    problems
}

/// Methods of a path that ask the file system.
const ASKING: [&str; 8] = [
    "is_dir",
    "is_file",
    "exists",
    "try_exists",
    "canonicalize",
    "read_dir",
    "read_link",
    "symlink_metadata",
];

/// System calls that reach files.
const CALLS: [&str; 6] = ["open", "openat", "mmap", "stat", "fopen", "pread"];

/// Mentions of the file system outside of tests: `std::fs` and its kin, and `path.is_dir()`.
fn file_systems(tokens: &[TokenTree], found: &mut Vec<usize>) {
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(tokens, at) {
            at = after_item(tokens, at + 2);
            continue;
        }
        if let TokenTree::Group(group) = &tokens[at] {
            file_systems(&group.stream().into_iter().collect::<Vec<_>>(), found);
        }
        if let Some(name) = ident(tokens.get(at)) {
            let line = name.span().start().line;
            let asked = is_punctuation(at.checked_sub(1).and_then(|at| tokens.get(at)), '.')
                && ASKING.iter().any(|word| name == word)
                && inside(tokens.get(at + 1), Delimiter::Parenthesis)
                    .is_some_and(|of| of.is_empty());
            let module = (name == "std" || name == "unix" || name == "os")
                && is_path_separator(tokens, at + 1)
                && names_at(tokens, at + 3).iter().any(|(_, name)| name == "fs");
            let mapped = name == "memmap2"
                && is_path_separator(tokens, at + 1)
                && names_at(tokens, at + 3).iter().any(|(_, name)| name != "MmapMut");
            // `std` by another name, `Path::exists(p)`, and libraries that open a path themselves.
            let renamed =
                name == "std" && ident(tokens.get(at + 1)).is_some_and(|next| next == "as");
            let in_full = name == "Path"
                && is_path_separator(tokens, at + 1)
                && names_at(tokens, at + 3)
                    .iter()
                    .any(|(_, name)| ASKING.iter().any(|word| name == word));
            let opens = name == "from_path" || name == "output_file";
            let system = name == "libc"
                && is_path_separator(tokens, at + 1)
                && names_at(tokens, at + 3)
                    .iter()
                    .any(|(_, name)| CALLS.iter().any(|call| name == call));
            if asked || module || mapped || renamed || in_full || opens || system {
                found.push(line);
            }
        }
        at += 1;
    }
}

/// Sources that know a file system beside the store.
fn sources_beside_the_store(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| !source.path.ends_with("/tests.rs")) {
        let mut found = Vec::new();
        file_systems(&tokens(source), &mut found);
        problems.extend(found.into_iter().map(|line| {
            format!("{}:{line}: a source knows no file system but the store", source.path)
        }));
    }
    problems
}

/// Folders and files whose name says nothing.
fn empty_names<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut problems = BTreeSet::new();
    for path in paths {
        for part in path.split('/') {
            let name = part.split('.').next().unwrap_or(part);
            if EMPTY_NAMES.contains(&name) {
                problems.insert(format!("{path}: `{part}` does not say what is inside"));
            }
        }
    }
    problems.into_iter().collect()
}

fn none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn stages_do_not_know_each_other_or_the_front_ends() {
    let sources = files_below("crates/feedline/src", ".rs");
    assert!(sources.len() > 5, "the sources were not found");
    none(forbidden_imports(&sources));
}

#[test]
fn sources_know_no_file_system_but_the_store() {
    let sources = files_below("crates/feedline/src/source", ".rs");
    assert!(sources.len() > 5, "the sources were not found");
    none(sources_beside_the_store(&sources));
    for violation in [
        "use std::fs;",
        "use std::fs::File;",
        "use std::{fs, io};",
        "use std::os::unix::fs::FileExt;",
        "use std::os::unix::{ffi::OsStrExt, fs::FileExt};",
        "fn f() { std::fs::read(path); }",
        "fn f(path: &Path) { if path.is_dir() { g() } }",
        "fn f(path: &Path) { !path.exists() }",
        "use memmap2::Mmap;",
        "use std as s;",
        "fn f(path: &Path) { path.symlink_metadata() }",
        "fn f(path: &Path) { Path::exists(path) }",
        "fn f(path: &Path) { csv::Reader::from_path(path) }",
        "use crate::output_file::create;",
        "fn f() { unsafe { libc::open(path, libc::O_RDONLY) } }",
        "#[cfg(test)] mod tests { use std::fs; } use std::fs;",
    ] {
        assert_eq!(sources_beside_the_store(&planted(violation)).len(), 1, "{violation}");
    }
    for innocent in [
        "#[cfg(test)] mod tests { use std::fs; }",
        "fn f(store: &dyn Store) { store.is_file(path) && found.is_folder() }",
        "use memmap2::MmapMut; // std::fs",
    ] {
        none(sources_beside_the_store(&planted(innocent)));
    }
}

#[test]
fn the_engine_crate_depends_on_no_front_end() {
    let manifest = fs::read_to_string(repository().join("crates/feedline/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    for section in ["dependencies", "build-dependencies"] {
        let Some(dependencies) = manifest.get(section).and_then(toml::Value::as_table) else {
            continue;
        };
        for (name, value) in dependencies {
            let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(name);
            assert!(
                !FRONT_END_CRATES.contains(&package.replace('-', "_").as_str()),
                "{section}: {name}"
            );
        }
    }
}

#[test]
fn the_sample_photos_know_no_other_crate_of_the_project() {
    let path = repository().join("crates/feedline-sample-photos/Cargo.toml");
    let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
    let dependencies = manifest["dependencies"].as_table().unwrap();
    assert!(dependencies.keys().all(|name| !name.starts_with("feedline")), "{dependencies}");
    assert!(!manifest.contains_key("dev-dependencies"));
}

#[test]
fn unsafe_stays_in_its_modules() {
    let document = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    none(misplaced_unsafe(&files_below("crates", ".rs"), &listed_unsafe_modules(&document)));
}

#[test]
fn names_say_what_is_inside() {
    let folders = ["crates", "python", "tests", "benchmarks", "examples"];
    let sources: Vec<_> = folders
        .iter()
        .flat_map(|folder| [".rs", ".py", ".pyi"].map(|ending| files_below(folder, ending)))
        .flatten()
        .collect();
    none(empty_names(sources.iter().map(|source| source.path.as_str())));
}

/// A crate with the given text in `decode/jpeg.rs`, beside an innocent `order` and `engine`.
fn planted(text: &str) -> Vec<Source> {
    let source = |path: &str, text: &str| Source {
        path: format!("crates/feedline/src/{path}"),
        text: text.to_owned(),
    };
    vec![
        source(
            "lib.rs",
            "pub mod order; pub use engine::{Loader, run::Other}; pub use error::Error;",
        ),
        source("order/mod.rs", "use crate::error::Error; use super::random::Draws;"),
        source("engine/mod.rs", "use crate::order::Order; use crate::decode::jpeg;"),
        source("error.rs", "pub struct Error;"),
        source("decode/jpeg.rs", text),
    ]
}

#[test]
fn planted_imports_are_found() {
    for violation in [
        "use crate::order::Order;",
        "use crate::{error::Error, order};",
        "use crate::{error::{Error, Fault}, order::{Order, Rank}};",
        "fn f() { let x = crate::order::Order::new(); }",
        "fn f() { println!(\"{}\", crate::order::N); }",
        "use super::super::order::Order;",
        "use super::super::{error::Error, order};",
        "mod inner { use super::super::super::order::Order; }",
        "impl Trait for crate::engine::Pool {}",
        "use crate::Loader;",
        "use crate::Other;",
        "use crate::*;",
        "pub(in crate::order) fn f() {}",
        "use pyo3::prelude::*;",
        "fn f() -> ::numpy::Array {}",
        "use ::clap::Parser;",
        "use clap;",
        "#[cfg(test)] mod tests { } use crate::order::Order;",
        "#[cfg(test)] use crate::{error::Error}; use crate::order::Order;",
        "#[cfg(feature = \"x\")] mod x { use crate::order::Order; }",
    ] {
        assert_eq!(forbidden_imports(&planted(violation)).len(), 1, "{violation}");
    }
    let found = forbidden_imports(&planted("\n\nuse crate::order::Order;"));
    assert_eq!(found, ["crates/feedline/src/decode/jpeg.rs:3: `decode` must not import `order`"]);
}

#[test]
fn innocent_code_is_left_alone() {
    for innocent in [
        "use crate::error::Error; use crate::{buffer::Slab, image, spec::OpSpec, Error};",
        "// use crate::order::Order;\n/* crate::order */ /// crate::order::Order\nfn f() {}",
        "const TEXT: &str = \"use crate::order::Order\";",
        "#[cfg(test)] mod tests { use crate::order::Order; }",
        "#[cfg(all(test, unix))] #[allow(dead_code)] mod tests { use crate::order::Order; }",
        "#[cfg(test)] use crate::order::Order;",
        "#[cfg(test)] use crate::{order::{A, B}};",
        "use super::order::Local; pub(super) fn f() {} use self::order::X; fn g() { order::x(); }",
        "use crate::decode::png; use super::png::Reader; mod inner { use super::super::png; }",
        "fn f() { let order = std::sync::atomic::Ordering::Relaxed; lib::crate_::order(); }",
    ] {
        none(forbidden_imports(&planted(innocent)));
    }
}

#[test]
fn planted_unsafe_and_names_are_found() {
    let jpeg = "crates/feedline/src/decode/jpeg.rs".to_owned();
    let nothing = BTreeSet::new();
    let listed = BTreeSet::from([jpeg.clone()]);
    let bare = planted("fn f() { unsafe { g() } }");
    let allowed = planted("#![allow(unsafe_code)] unsafe impl Send for X {}");
    assert_eq!(misplaced_unsafe(&bare, &nothing).len(), 2);
    assert_eq!(misplaced_unsafe(&bare, &listed).len(), 1);
    assert_eq!(misplaced_unsafe(&allowed, &nothing).len(), 1);
    assert_eq!(
        misplaced_unsafe(&planted("// unsafe\nfn f() { \"unsafe\"; }"), &listed).len(),
        1,
        "stale entry"
    );
    none(misplaced_unsafe(&allowed, &listed));
    let document = "# A\n<!-- unsafe-modules -->\n- `crates/feedline/src/`: `decode/jpeg.rs`, `b.rs`\n<!-- /unsafe-modules -->\n- `src/`: `c.rs`";
    let listed = BTreeSet::from([jpeg, "crates/feedline/src/b.rs".to_owned()]);
    assert_eq!(listed_unsafe_modules(document), listed);

    let paths =
        ["crates/x/src/utils/mod.rs", "python/feedline/helpers.py", "crates/x/src/commonest.rs"];
    assert_eq!(empty_names(paths.into_iter()).len(), 2);
}

/// Cargo does not look for tests by itself where several files are one binary.
#[test]
fn every_file_of_tests_is_part_of_a_binary() {
    for name in ["feedline", "feedline-cli"] {
        let folder = repository().join("crates").join(name);
        let suite = fs::read_to_string(folder.join("tests/suite.rs")).unwrap();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for entry in fs::read_dir(folder.join("tests")).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_stem().unwrap().to_str().unwrap();
            let known = suite.contains(&format!("\nmod {file};"))
                || manifest.contains(&format!("[[test]]\nname = \"{file}\""));
            let is_source = path.extension().is_some_and(|ending| ending == "rs");
            assert!(known || !is_source, "{name}: {file}.rs is not run");
        }
    }
}
