//! The modules of a crate and what their names stand for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use quote::ToTokens;
use syn::{Attribute, Item, ItemImpl, ItemUse, UseTree, Visibility};

/// A definition: its module and its place among the module's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Definition {
    pub(super) module: usize,
    pub(super) item: usize,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Module(usize),
    Item(Definition),
}

/// A `use`, one name of it; a glob has no name.
struct Import {
    path: Vec<String>,
    name: Option<String>,
    public: bool,
}

#[derive(Default)]
pub(super) struct Module {
    pub(super) path: String,
    parent: usize,
    pub(super) items: Vec<Item>,
    pub(super) impls: Vec<ItemImpl>,
    /// Each with whether others can name it.
    modules: BTreeMap<String, (usize, bool)>,
    imports: Vec<Import>,
}

/// All modules of a crate; the first one is its root.
pub(super) struct Names {
    pub(super) modules: Vec<Module>,
}

pub(super) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string();
        text.contains("cfg (test)") || text.contains("cfg (doctest)")
    })
}

/// Whether it is left out of the manual: for this project's own crates only.
pub(super) fn is_hidden(attributes: &[Attribute]) -> bool {
    let hidden =
        |attribute: &Attribute| attribute.to_token_stream().to_string().contains("doc (hidden)");
    attributes.iter().any(hidden)
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The visibility and the name of what an item defines.
pub(super) fn defined(item: &Item) -> Option<(&Visibility, String)> {
    let (visibility, name) = match item {
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Static(item) => (&item.vis, &item.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Union(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    Some((visibility, name.to_string()))
}

impl Names {
    /// Reads a crate from its root file on.
    pub(super) fn of_crate(root: &Path) -> Names {
        let text = std::fs::read_to_string(root).unwrap();
        Names::read(&text, root)
    }

    /// Reads a crate whose root has this text; its modules' files stand beside `root`.
    pub(super) fn read(text: &str, root: &Path) -> Names {
        let mut names = Names { modules: Vec::new() };
        names.add(syn::parse_file(text).unwrap().items, root, String::new(), 0);
        names
    }

    fn add(&mut self, items: Vec<Item>, file: &Path, path: String, parent: usize) -> usize {
        let number = self.modules.len();
        self.modules.push(Module { path: path.clone(), parent, ..Module::default() });
        let folder = match file.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "mod.rs") => file.parent().unwrap().to_path_buf(),
            _ => file.with_extension(""),
        };
        for item in items.into_iter().filter(|item| !is_test(attributes(item))) {
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let inner =
                        if path.is_empty() { name.clone() } else { format!("{path}::{name}") };
                    let added = match module.content {
                        // Modules in one text have no files of their own below them here.
                        Some((_, items)) => self.add(items, file, inner, number),
                        None => {
                            let beside = [format!("{name}.rs"), format!("{name}/mod.rs")];
                            let found = beside
                                .iter()
                                .map(|file| folder.join(file))
                                .find(|file| file.exists());
                            let file = found.unwrap_or_else(|| panic!("no file of {inner}"));
                            let text = std::fs::read_to_string(&file).unwrap();
                            self.add(syn::parse_file(&text).unwrap().items, &file, inner, number)
                        }
                    };
                    self.modules[number]
                        .modules
                        .insert(name, (added, is_public(&module.vis) && !is_hidden(&module.attrs)));
                }
                Item::Use(import) => self.modules[number].import(&import),
                Item::Impl(item) => self.modules[number].impls.push(item),
                item => self.modules[number].items.push(item),
            }
        }
        number
    }

    pub(super) fn item(&self, at: Definition) -> &Item {
        &self.modules[at.module].items[at.item]
    }

    /// What a path stands for that is written in a module; nothing if it leaves the crate.
    pub(super) fn resolve(&self, module: usize, path: &[String]) -> BTreeSet<Target> {
        self.follow(module, path, &mut BTreeSet::new())
    }

    fn follow(
        &self,
        module: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> BTreeSet<Target> {
        let mut here = BTreeSet::from([Target::Module(module)]);
        for segment in path {
            let mut next = BTreeSet::new();
            for target in &here {
                let Target::Module(module) = target else { continue };
                match segment.as_str() {
                    "crate" => next.extend([Target::Module(0)]),
                    "self" => next.extend([Target::Module(*module)]),
                    "super" => next.extend([Target::Module(self.modules[*module].parent)]),
                    name => next.extend(self.named(*module, name, seen)),
                }
            }
            here = next;
        }
        here
    }

    fn named(
        &self,
        module: usize,
        name: &str,
        seen: &mut BTreeSet<(usize, String)>,
    ) -> BTreeSet<Target> {
        let mut found = BTreeSet::new();
        if !seen.insert((module, name.to_owned())) {
            return found;
        }
        let room = &self.modules[module];
        found.extend(room.modules.get(name).map(|(inner, _)| Target::Module(*inner)));
        for (item, defines) in room.items.iter().enumerate() {
            if defined(defines).is_some_and(|(_, given)| given == name) {
                found.insert(Target::Item(Definition { module, item }));
            }
        }
        for import in &room.imports {
            let path = match &import.name {
                Some(given) if given == name => import.path.clone(),
                Some(_) => continue,
                None => [import.path.as_slice(), &[name.to_owned()]].concat(),
            };
            found.extend(self.follow(module, &path, seen));
        }
        seen.remove(&(module, name.to_owned()));
        found
    }

    /// What other crates can name in a module, with the names.
    pub(super) fn public(&self, module: usize) -> BTreeSet<(String, Target)> {
        self.public_seen(module, &mut BTreeSet::new())
    }

    fn public_seen(&self, module: usize, seen: &mut BTreeSet<usize>) -> BTreeSet<(String, Target)> {
        let mut found = BTreeSet::new();
        if !seen.insert(module) {
            return found;
        }
        let room = &self.modules[module];
        for (name, (inner, public)) in &room.modules {
            if *public {
                found.insert((name.clone(), Target::Module(*inner)));
            }
        }
        for (item, defines) in room.items.iter().enumerate() {
            if let Some((visibility, name)) = defined(defines)
                && is_public(visibility)
                && !is_hidden(attributes(defines))
            {
                found.insert((name, Target::Item(Definition { module, item })));
            }
        }
        for import in room.imports.iter().filter(|import| import.public) {
            let targets = self.resolve(module, &import.path);
            match &import.name {
                Some(name) => {
                    // A `use` of two things of one name gives those of them that are public.
                    let open = targets.into_iter().filter(|target| self.may_be_exported(*target));
                    found.extend(open.map(|target| (name.clone(), target)));
                }
                None => {
                    for target in targets {
                        if let Target::Module(inner) = target {
                            found.extend(self.public_seen(inner, seen));
                        }
                    }
                }
            }
        }
        found
    }

    fn may_be_exported(&self, target: Target) -> bool {
        match target {
            // A private module cannot be re-exported; a function beside it of that name can.
            Target::Module(number) => {
                let module = &self.modules[number];
                let name = module.path.rsplit("::").next().unwrap();
                self.modules[module.parent].modules.get(name).is_some_and(|(_, public)| *public)
            }
            Target::Item(at) => defined(self.item(at)).is_some_and(|(visibility, _)| {
                is_public(visibility) && !is_hidden(attributes(self.item(at)))
            }),
        }
    }
}

impl Module {
    fn import(&mut self, import: &ItemUse) {
        let public = is_public(&import.vis);
        self.leaves(&import.tree, &mut Vec::new(), public);
    }

    fn leaves(&mut self, tree: &UseTree, path: &mut Vec<String>, public: bool) {
        let mut add = |last: String, name: Option<String>| {
            let mut path = path.clone();
            // `use a::{self}` names `a`.
            let own = last == "self" && !path.is_empty();
            let name =
                if own && name.as_deref() == Some("self") { path.last().cloned() } else { name };
            if !own && !last.is_empty() {
                path.push(last);
            }
            self.imports.push(Import { path, name, public });
        };
        match tree {
            UseTree::Name(leaf) => add(leaf.ident.to_string(), Some(leaf.ident.to_string())),
            UseTree::Rename(leaf) => add(leaf.ident.to_string(), Some(leaf.rename.to_string())),
            UseTree::Glob(_) => add(String::new(), None),
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.leaves(&tree.tree, path, public);
                path.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.leaves(tree, path, public);
                }
            }
        }
    }
}
