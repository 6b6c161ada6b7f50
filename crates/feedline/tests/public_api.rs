//! The crate's public face is the list in `public-api.txt`: what joins or leaves it is seen in a
//! review, and nothing becomes public by accident. What stands in the list can be named from
//! outside: no signature mentions a type that cannot.

#[path = "public_api/names.rs"]
mod names;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

use names::{Definition, Names, Target, is_hidden, is_public};
use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::visit::Visit;
use syn::visit_mut::VisitMut;
use syn::{Attribute, Fields, ImplItem, Item, TraitItem, Type};

/// The face of a crate: its lines, and what they mention that nobody outside can name.
struct Face {
    lines: BTreeSet<String>,
    unnameable: BTreeSet<String>,
}

struct WithoutAttributes;

impl VisitMut for WithoutAttributes {
    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        attributes.clear();
    }
}

/// The paths in a type or signature.
#[derive(Default)]
struct Mentions(Vec<Vec<String>>);

impl<'a> Visit<'a> for Mentions {
    fn visit_path(&mut self, path: &'a syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

fn face(names: &Names) -> Face {
    // The shortest public path of each definition, and further names for it.
    let mut paths: BTreeMap<Definition, String> = BTreeMap::new();
    let mut lines = BTreeSet::new();
    let mut modules = VecDeque::from([(0, "feedline".to_owned())]);
    let mut seen = BTreeSet::new();
    while let Some((module, path)) = modules.pop_front() {
        if !seen.insert(module) {
            continue;
        }
        for (name, target) in names.public(module) {
            let place = format!("{path}::{name}");
            match target {
                Target::Module(inner) => modules.push_back((inner, place)),
                Target::Item(at) => match paths.get(&at) {
                    Some(first) => drop(lines.insert(format!("{place} = {first}"))),
                    None => drop(paths.insert(at, place)),
                },
            }
        }
    }
    let mut face = Face { lines, unnameable: BTreeSet::new() };
    for (at, path) in &paths {
        face.item(names, *at, path, &paths);
    }
    for (number, module) in names.modules.iter().enumerate() {
        for item in &module.impls {
            let Type::Path(of) = &*item.self_ty else { continue };
            let of: Vec<_> = of.path.segments.iter().map(|part| part.ident.to_string()).collect();
            for target in names.resolve(number, &of) {
                let Target::Item(at) = target else { continue };
                let Some(path) = paths.get(&at) else { continue };
                if let Some((of_trait, _)) = &item.trait_ {
                    let generics = &item.generics;
                    let own = &item.self_ty;
                    let shown = quote!(impl #generics #of_trait for #own);
                    // A trait of the crate's own rooms is no part of its face.
                    let inner: Vec<_> =
                        of_trait.segments.iter().map(|part| part.ident.to_string()).collect();
                    let local = names.resolve(number, &inner);
                    let hidden = !local.is_empty()
                        && !local.iter().any(
                            |target| matches!(target, Target::Item(at) if paths.contains_key(at)),
                        );
                    // Neither is one for a type of them, as in `impl From<Own> for Shown`.
                    let shown = quote_of(&shown);
                    if !hidden && face.unnameable(names, number, &shown, &paths).is_empty() {
                        face.lines.insert(format!("{path}: {shown}"));
                    }
                    continue;
                }
                for part in &item.items {
                    match part {
                        ImplItem::Fn(method)
                            if is_public(&method.vis) && !is_hidden(&method.attrs) =>
                        {
                            let mut method = method.clone();
                            WithoutAttributes.visit_signature_mut(&mut method.sig);
                            face.line(names, number, path, &method.sig, &paths);
                        }
                        ImplItem::Const(constant) if is_public(&constant.vis) => {
                            let (name, of) = (&constant.ident, &constant.ty);
                            face.line(names, number, path, &quote!(const #name: #of), &paths);
                        }
                        // What a macro makes is seen by what it is given.
                        ImplItem::Macro(made) => {
                            let (name, given) = (&made.mac.path, without_docs(&made.mac.tokens));
                            face.lines.insert(format!(
                                "{path}: {}",
                                quote_of(&quote!(#name! { #given }))
                            ));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    face
}

impl Face {
    /// Adds a line and what it mentions.
    fn line(
        &mut self,
        names: &Names,
        module: usize,
        path: &str,
        shown: &dyn ToTokens,
        paths: &BTreeMap<Definition, String>,
    ) {
        let shown = shown.to_token_stream().to_string();
        let shown = shown.trim_end_matches([';', ' ']);
        self.lines.insert(format!("{path}: {shown}"));
        self.mentions(names, module, path, shown, paths);
    }

    /// Notes the types of the crate in `shown` that have no public path.
    fn mentions(
        &mut self,
        names: &Names,
        module: usize,
        path: &str,
        shown: &str,
        paths: &BTreeMap<Definition, String>,
    ) {
        for mentioned in self.unnameable(names, module, shown, paths) {
            self.unnameable.insert(format!("{path}: {mentioned} in `{shown}`"));
        }
    }

    fn unnameable(
        &self,
        names: &Names,
        module: usize,
        shown: &str,
        paths: &BTreeMap<Definition, String>,
    ) -> Vec<String> {
        // Signatures, fields, variants and heads are parsed within what they stand in.
        let forms = [
            format!("trait X {{ {shown}; }}"),
            format!("struct X {{ {shown} }}"),
            format!("enum X {{ {shown} }}"),
            format!("{shown} {{ }}"),
            format!("{shown};"),
        ];
        let parsed = forms.iter().find_map(|form| syn::parse_str::<Item>(form).ok());
        let Some(item) = parsed.filter(|item| !matches!(item, Item::Verbatim(_) | Item::Macro(_)))
        else {
            panic!("a line of an unknown form: {shown}");
        };
        let mut mentions = Mentions::default();
        mentions.visit_item(&item);
        let mut found = Vec::new();
        for mentioned in mentions.0 {
            for target in names.resolve(module, &mentioned) {
                let Target::Item(at) = target else { continue };
                match names.item(at) {
                    _ if paths.contains_key(&at) => {}
                    // An alias is shown as what it stands for.
                    Item::Type(alias) => {
                        let (name, generics, of) = (&alias.ident, &alias.generics, &alias.ty);
                        let shown = quote_of(&quote!(type #name #generics = #of));
                        found.extend(self.unnameable(names, at.module, &shown, paths));
                    }
                    _ => found.push(mentioned.join("::")),
                }
            }
        }
        found
    }

    fn fields(
        &mut self,
        names: &Names,
        module: usize,
        path: &str,
        fields: &Fields,
        paths: &BTreeMap<Definition, String>,
    ) {
        for (number, field) in fields.iter().enumerate() {
            if is_public(&field.vis) {
                let (own, of) = (&field.ident, &field.ty);
                let shown = match own {
                    Some(name) => quote!(pub #name: #of),
                    None => {
                        let name = quote::format_ident!("field_{number}");
                        quote!(pub #name: #of)
                    }
                };
                self.line(names, module, path, &shown, paths);
            }
        }
    }

    fn item(
        &mut self,
        names: &Names,
        at: Definition,
        path: &str,
        paths: &BTreeMap<Definition, String>,
    ) {
        let open = |attributes: &[Attribute]| {
            let open =
                attributes.iter().any(|attribute| attribute.path().is_ident("non_exhaustive"));
            if open { " (non_exhaustive)" } else { "" }
        };
        let mut item = names.item(at).clone();
        let module = at.module;
        let head = match &item {
            Item::Struct(item) => {
                let (name, generics) = (&item.ident, &item.generics);
                format!("{}{}", quote!(struct #name #generics), open(&item.attrs))
            }
            Item::Enum(item) => {
                let (name, generics) = (&item.ident, &item.generics);
                format!("{}{}", quote!(enum #name #generics), open(&item.attrs))
            }
            Item::Trait(item) => {
                let (safety, name, generics) = (&item.unsafety, &item.ident, &item.generics);
                let above = &item.supertraits;
                quote!(#safety trait #name #generics: #above).to_string()
            }
            Item::Fn(item) => item.sig.to_token_stream().to_string(),
            Item::Const(item) => {
                let (name, of) = (&item.ident, &item.ty);
                quote!(const #name: #of).to_string()
            }
            Item::Type(item) => {
                let (name, generics, of) = (&item.ident, &item.generics, &item.ty);
                quote!(type #name #generics = #of).to_string()
            }
            _ => panic!("{path}: an item of an unknown kind"),
        };
        self.lines.insert(format!("{path}: {head}"));
        WithoutAttributes.visit_item_mut(&mut item);
        match &item {
            Item::Fn(item) => self.mentions(names, module, path, &quote_of(&item.sig), paths),
            Item::Const(_) | Item::Type(_) => self.mentions(names, module, path, &head, paths),
            Item::Struct(item) => self.fields(names, module, path, &item.fields, paths),
            Item::Enum(item) => {
                for variant in &item.variants {
                    self.line(names, module, path, variant, paths);
                }
            }
            Item::Trait(item) => {
                let (name, generics, above) = (&item.ident, &item.generics, &item.supertraits);
                let shown = quote_of(&quote!(trait #name #generics: #above));
                self.mentions(names, module, path, &shown, paths);
                for part in &item.items {
                    match part {
                        TraitItem::Fn(method) => {
                            let provided =
                                if method.default.is_some() { " (provided)" } else { "" };
                            let signature = &method.sig;
                            let shown = quote_of(signature);
                            self.lines.insert(format!("{path}: {shown}{provided}"));
                            self.mentions(names, module, path, &shown, paths);
                        }
                        other => self.line(names, module, path, other, paths),
                    }
                }
            }
            _ => {}
        }
    }
}

/// What a macro is given, without attributes and comments.
fn without_docs(tokens: &TokenStream) -> TokenStream {
    let mut kept = TokenStream::new();
    let mut tokens = tokens.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        let attribute = matches!(&token, TokenTree::Punct(sign) if sign.as_char() == '#')
            && matches!(tokens.peek(), Some(TokenTree::Group(_)));
        if attribute {
            tokens.next();
        } else {
            kept.extend([token]);
        }
    }
    kept
}

fn quote_of(tokens: &dyn ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

fn read(text: &str) -> Face {
    face(&Names::read(text, Path::new("lib.rs")))
}

#[test]
fn the_public_face_is_the_one_that_was_agreed_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("public-api.txt");
    let Face { lines, unnameable } = face(&Names::of_crate(&root.join("src/lib.rs")));
    assert!(lines.len() > 300, "only {} items were found", lines.len());
    if std::env::var_os("FEEDLINE_PIN").is_some() {
        fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
    let listed = fs::read_to_string(&path).unwrap();
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let added: Vec<_> = lines.difference(&listed).map(|line| format!("+ {line}")).collect();
    let removed: Vec<_> = listed.difference(&lines).map(|line| format!("- {line}")).collect();
    assert!(
        added.is_empty() && removed.is_empty(),
        "\n{}\n\nThe public API changed. If an outside user needs it, list it with `FEEDLINE_PIN=1 cargo test \
         --release --workspace --test suite public_api` and say so in CHANGELOG.md; else make it pub(crate).\n",
        [added, removed].concat().join("\n")
    );
    let unnameable: Vec<_> = unnameable.into_iter().collect();
    assert!(
        unnameable.is_empty(),
        "\n{}\n\nNobody outside can name these types: export them beside what mentions them, or hide \
         what does.\n",
        unnameable.join("\n")
    );
}

#[test]
fn what_is_public_is_decided_by_its_path() {
    let found = read(
        "
        mod hidden {
            pub struct Writer { pub rows: usize, own: u8 }
            impl Writer { pub fn begin(&self) -> usize { 0 } fn own(&self) {} }
            pub fn helper() {}
        }
        mod shown {
            pub struct Writer { pub columns: usize }
            impl Writer { pub fn finish(self) {} setters! { width: u8 } }
            pub struct Unlisted;
            pub mod inner { pub enum Kind { A, B(super::Writer) } }
        }
        mod both { pub use super::shown::inner::*; pub(crate) use super::hidden::helper; }
        pub use shown::Writer;
        pub mod renamed { pub use crate::shown::inner::Kind as Sort; pub use crate::both::*; }
        #[doc(hidden)] pub mod internals { pub use crate::hidden::*; }
        #[doc(hidden)] pub fn left_out() {}
        impl Iterator for shown::Writer { type Item = u8; }
        #[cfg(test)] pub mod tests { pub struct Planted; }
        ",
    );
    let expected = [
        "feedline::Writer: fn finish (self)",
        "feedline::Writer: impl Iterator for shown :: Writer",
        "feedline::Writer: pub columns : usize",
        "feedline::Writer: setters ! { width : u8 }",
        "feedline::Writer: struct Writer",
        "feedline::renamed::Kind: A",
        "feedline::renamed::Kind: B (super :: Writer)",
        "feedline::renamed::Kind: enum Kind",
        "feedline::renamed::Sort = feedline::renamed::Kind",
    ];
    assert_eq!(found.lines.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    assert!(found.unnameable.is_empty());
}

#[test]
fn what_cannot_be_named_is_found_wherever_it_is_mentioned() {
    let hidden = "mod hidden { pub struct Secret; pub trait Own {} } use hidden::Secret;";
    for mention in [
        "pub fn take(secret: &Secret) {}",
        "pub fn give() -> Option<hidden::Secret> { None }",
        "pub fn bounded<T: hidden::Own>(_: T) {}",
        "pub struct Shown { pub secret: Vec<Secret> }",
        "pub struct Tuple(pub Secret);",
        "pub enum Shown { A { secret: Secret } }",
        "pub trait Shown { fn make(&self) -> Secret; }",
        "pub trait Shown: hidden::Own {}",
        "pub trait Shown { type Of: hidden::Own; }",
        "pub struct Shown; impl Shown { pub fn secret(&self) -> Secret { Secret } }",
        "pub type Alias = Option<Secret>;",
        "pub const SECRET: Secret = Secret;",
        "type Alias<T> = Result<T, Secret>; pub fn fallible() -> Alias<u8> { Ok(1) }",
    ] {
        let found = read(&format!("{hidden} {mention}"));
        assert_eq!(found.unnameable.len(), 1, "{mention}: {:?}", found.unnameable);
    }
    for fine in [
        "pub struct Shown(Secret); impl hidden::Own for Shown {}",
        "pub struct Shown; impl From<Secret> for Shown { fn from(_: Secret) -> Self { Shown } }",
        "pub struct Shown; impl Shown { #[doc(hidden)] pub fn own(&self) -> Secret { Secret } }",
        "type Alias<T> = Result<T, u8>; pub fn fallible() -> Alias<u8> { Ok(1) }",
    ] {
        let found = read(&format!("{hidden} {fine}"));
        assert!(found.unnameable.is_empty(), "{fine}: {:?}", found.unnameable);
    }
}
