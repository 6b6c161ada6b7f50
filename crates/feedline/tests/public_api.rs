//! The crate's public face is the list in `public-api.txt`: what joins or leaves it is seen in a
//! review, and nothing becomes public by accident.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Public for this project's own crates only.
const HIDDEN: &str = "internals";

fn crate_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn is(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == word)
}

fn is_sign(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

fn braces(token: Option<&TokenTree>) -> Option<Vec<TokenTree>> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            Some(group.stream().into_iter().collect())
        }
        _ => None,
    }
}

fn text(tokens: &[TokenTree]) -> String {
    tokens.iter().cloned().collect::<TokenStream>().to_string()
}

/// An item: its attributes, its words up to the body, and the body.
struct Item {
    attributes: String,
    head: Vec<TokenTree>,
    body: Option<Vec<TokenTree>>,
}

impl Item {
    fn is_public(&self) -> bool {
        let restricted = matches!(self.head.get(1), Some(TokenTree::Group(group))
            if group.delimiter() == Delimiter::Parenthesis
                && !is(self.head.first(), "fn"));
        is(self.head.first(), "pub") && !restricted
    }

    /// The word that says what it is, and the name behind it.
    fn kind(&self) -> Option<(String, String)> {
        const KINDS: [&str; 9] =
            ["struct", "enum", "trait", "union", "type", "mod", "use", "fn", "impl"];
        let at = self.head.iter().position(|token| {
            KINDS.iter().any(|kind| is(Some(token), kind)) || is(Some(token), "static")
        });
        let constant = self.head.iter().position(|token| is(Some(token), "const"));
        let at = at.or(constant)?;
        let name = self.head.get(at + 1).map_or(String::new(), ToString::to_string);
        Some((self.head[at].to_string(), name))
    }
}

/// Splits a file or a body into its items; test code is passed over.
fn items(tokens: Vec<TokenTree>) -> Vec<Item> {
    let mut found = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while tokens.peek().is_some() {
        let mut attributes = String::new();
        while is_sign(tokens.peek(), '#') {
            tokens.next();
            if is_sign(tokens.peek(), '!') {
                tokens.next();
            }
            attributes += &tokens.next().map_or(String::new(), |group| group.to_string());
        }
        let (mut head, mut body) = (Vec::new(), None);
        let mut assigned = false;
        for token in tokens.by_ref() {
            if is_sign(Some(&token), ';') {
                break;
            }
            // A function's own `=` is one of its types: `impl Iterator<Item = T>`.
            let function = head.iter().any(|token| is(Some(token), "fn"));
            assigned |= is_sign(Some(&token), '=') && !function;
            let group = braces(Some(&token));
            // `use a::{b}` and `const X: T = { .. };` go on behind their braces.
            let ends =
                group.is_some() && !assigned && !head.iter().any(|token| is(Some(token), "use"));
            if ends {
                body = group;
                break;
            }
            head.push(token);
        }
        if !attributes.replace(' ', "").contains("cfg(test)") {
            found.push(Item { attributes, head, body });
        }
    }
    found
}

/// Splits at commas that are not inside `<>`.
fn between_commas(tokens: &[TokenTree]) -> Vec<Vec<TokenTree>> {
    let (mut parts, mut part, mut depth) = (Vec::new(), Vec::new(), 0i32);
    for token in tokens {
        depth += i32::from(is_sign(Some(token), '<')) - i32::from(is_sign(Some(token), '>'));
        if depth == 0 && is_sign(Some(token), ',') {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(token.clone());
        }
    }
    parts.push(part);
    parts
}

/// A field or variant without attributes and comments, its own and those inside.
fn without_attributes(tokens: &[TokenTree]) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut tokens = tokens.iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                tokens.next();
            }
            TokenTree::Group(group) => {
                let inner = without_attributes(&group.stream().into_iter().collect::<Vec<_>>());
                kept.push(Group::new(group.delimiter(), inner.into_iter().collect()).into());
            }
            other => kept.push(other.clone()),
        }
    }
    kept
}

/// An item up to its value, which does not belong to its face.
fn declaration(head: &[TokenTree]) -> String {
    // Only the first words decide: `=` may also stand between the angle brackets of a function.
    let valued =
        head.iter().take(3).any(|token| is(Some(token), "const") || is(Some(token), "static"))
            && !head.iter().any(|token| is(Some(token), "fn"));
    let end = head.iter().position(|token| valued && is_sign(Some(token), '='));
    text(&without_attributes(&head[..end.unwrap_or(head.len())]))
}

/// All modules of the crate as (path, tokens), with whether they can be reached from outside.
fn modules(
    file: &Path,
    path: &str,
    reachable: bool,
    tokens: Vec<TokenTree>,
    found: &mut Vec<(String, bool, Vec<Item>)>,
) {
    let all = items(tokens);
    let folder = match file.file_name().and_then(|name| name.to_str()) {
        Some("lib.rs" | "mod.rs") => file.parent().unwrap().to_path_buf(),
        _ => file.with_extension(""),
    };
    for item in &all {
        let Some((_, name)) = item.kind().filter(|(kind, _)| kind == "mod") else { continue };
        let hidden = path.is_empty() && name == HIDDEN;
        let inner = reachable && item.is_public() && !hidden;
        let place = if path.is_empty() { name.clone() } else { format!("{path}::{name}") };
        if let Some(body) = &item.body {
            modules(file, &place, inner, body.clone(), found);
            continue;
        }
        let candidates = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
        let Some(inner_file) = candidates.iter().find(|path| path.exists()) else { continue };
        let text = fs::read_to_string(inner_file).unwrap();
        let tokens: TokenStream = text.parse().unwrap();
        modules(inner_file, &place, inner, tokens.into_iter().collect(), found);
    }
    found.push((path.to_owned(), reachable, all));
}

/// The names that a `use` gives.
fn leaves(tokens: &[TokenTree], names: &mut BTreeSet<String>) {
    for part in between_commas(tokens) {
        match part.last() {
            Some(TokenTree::Ident(name)) => {
                names.insert(name.to_string());
            }
            Some(TokenTree::Group(group)) => {
                leaves(&group.stream().into_iter().collect::<Vec<_>>(), names);
            }
            _ => {}
        }
    }
}

/// The type that an `impl` is for: the last name before its generics.
fn implemented(head: &[TokenTree]) -> Option<(Option<String>, String)> {
    let mut depth = 0i32;
    let (mut of_trait, mut name) = (None, None);
    for token in &head[1..] {
        if is_sign(Some(token), '<') {
            depth += 1;
        } else if is_sign(Some(token), '>') {
            depth -= 1;
        } else if let (TokenTree::Ident(ident), 0) = (token, depth) {
            match ident.to_string().as_str() {
                "for" => of_trait = name.take(),
                "where" => break,
                "dyn" | "const" => {}
                other => name = Some(other.to_owned()),
            }
        }
    }
    Some((of_trait, name?))
}

/// Every public item, a line each.
fn public_items() -> Vec<String> {
    let root = crate_root().join("src/lib.rs");
    let tokens: TokenStream = fs::read_to_string(&root).unwrap().parse().unwrap();
    let mut found = Vec::new();
    modules(&root, "", true, tokens.into_iter().collect(), &mut found);
    // What a private module holds is public where a public `use` names it.
    let mut exported = BTreeSet::new();
    for (_, _, items) in found.iter().filter(|(_, reachable, _)| *reachable) {
        for item in items.iter().filter(|item| item.is_public()) {
            match item.kind() {
                Some((kind, _)) if kind == "use" => leaves(&item.head, &mut exported),
                _ => {}
            }
        }
    }
    let mut types = BTreeSet::new();
    let mut lines = BTreeSet::new();
    for (path, reachable, items) in &found {
        if path.split("::").next() == Some(HIDDEN) {
            continue;
        }
        for item in items.iter().filter(|item| item.is_public()) {
            let Some((kind, name)) = item.kind() else { continue };
            if !(*reachable || exported.contains(&name)) || path.is_empty() && name == HIDDEN {
                continue;
            }
            let open =
                if item.attributes.contains("non_exhaustive") { " (non_exhaustive)" } else { "" };
            lines.insert(format!("{path}: {}{open}", declaration(&item.head)));
            if !["struct", "enum", "trait", "union"].contains(&kind.as_str()) {
                continue;
            }
            types.insert(name.clone());
            let body = item.body.clone().unwrap_or_default();
            match kind.as_str() {
                "trait" => {
                    for method in self::items(body) {
                        lines.insert(format!("{path}: {name}: {}", declaration(&method.head)));
                    }
                }
                _ => {
                    for part in between_commas(&body) {
                        let part = without_attributes(&part);
                        let restricted = matches!(part.get(1), Some(TokenTree::Group(_)));
                        let shown = kind == "enum" || is(part.first(), "pub") && !restricted;
                        if shown && !part.is_empty() {
                            lines.insert(format!("{path}: {name}: {}", text(&part)));
                        }
                    }
                }
            }
        }
    }
    for (path, _, items) in &found {
        for item in items.iter().filter(|item| is(item.head.first(), "impl")) {
            let Some((of_trait, name)) = implemented(&item.head) else { continue };
            if !types.contains(&name) || of_trait.is_some() {
                continue;
            }
            for method in self::items(item.body.clone().unwrap_or_default()) {
                if method.is_public() {
                    lines.insert(format!("{path}: {name}: {}", declaration(&method.head)));
                }
            }
        }
    }
    lines.into_iter().collect()
}

#[test]
fn the_public_face_is_the_one_that_was_agreed_on() {
    let path = crate_root().join("public-api.txt");
    let now = public_items();
    assert!(now.len() > 300, "only {} items were found", now.len());
    if std::env::var_os("FEEDLINE_PIN").is_some() {
        fs::write(&path, now.join("\n") + "\n").unwrap();
    }
    let listed = fs::read_to_string(&path).unwrap();
    let listed: BTreeSet<&str> = listed.lines().collect();
    let now: BTreeSet<&str> = now.iter().map(String::as_str).collect();
    let added: Vec<_> = now.difference(&listed).map(|line| format!("+ {line}")).collect();
    let removed: Vec<_> = listed.difference(&now).map(|line| format!("- {line}")).collect();
    assert!(
        added.is_empty() && removed.is_empty(),
        "\n{}\n\nThe public API changed. If an outside user needs it, list it with `FEEDLINE_PIN=1 cargo test \
         --release --workspace --test suite public_api` and say so in CHANGELOG.md; else make it pub(crate).\n",
        [added, removed].concat().join("\n")
    );
}
