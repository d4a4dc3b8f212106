//! Ranks of the folders of the pure crates: each folder uses folders of its own rank or of a lower one, and folders of one rank use
//! each other in one direction only. A reader of a file then needs to know lower folders only.
//!
//! In: `src/lib.rs` of each crate, whose comments `// Rank N: …` stand above the modules of that rank, and the files of the crate.
//! Out: findings with the two folders and the path that names the higher one. Tests may use any folder. In the daemon only one
//! rule holds: no folder uses the composition root.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, ItemUse, Meta, Path, UseTree};

use crate::Finding;
use crate::tree::SourceFile;

/// Sources of the crates whose folders have ranks. Between crates the compiler keeps the direction.
const CRATES: &[&str] =
    &["agent/types/src/", "agent/managers/src/", "agent/kubelet-api/src/", "agent/core/src/"];

/// Sources of crates whose composition root uses every folder, and the root's folder, which no other folder uses.
const ROOTS: &[(&str, &str)] = &[("agent/daemon/src/", "process")];

/// One folder uses another: the place, and the path as the code spells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: String,
    to: String,
    file: String,
    path: String,
}

/// Breaches of the ranks that each `lib.rs` declares.
#[must_use]
pub fn ranks(files: &[SourceFile]) -> Vec<Finding> {
    let of_crates = CRATES.iter().flat_map(|sources| of_crate(files, sources));
    of_crates.chain(ROOTS.iter().flat_map(|(sources, root)| of_root(files, sources, root))).collect()
}

/// Uses of the composition root by other folders.
fn of_root(files: &[SourceFile], sources: &str, root: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for arrow in arrows(files, sources, &mut findings).into_iter().filter(|arrow| arrow.to == root) {
        let message = format!(
            "`{}` uses `{}`: only the composition root sees all others; move the name to the folder that uses it",
            arrow.from, arrow.path
        );
        findings.push(Finding::new(&arrow.file, line_of(files, &arrow), message));
    }
    findings
}

fn of_crate(files: &[SourceFile], sources: &str) -> Vec<Finding> {
    let root = format!("{sources}lib.rs");
    let Some(text) = files.iter().find(|f| f.path == root).and_then(|f| f.text.as_deref()) else {
        return vec![Finding::new(&root, 0, "is missing: nothing declares the ranks of the folders")];
    };
    let ranks = declared(text);
    let mut findings: Vec<Finding> = modules(text)
        .into_iter()
        .filter(|(_, name)| !ranks.contains_key(*name))
        .map(|(line, name)| {
            Finding::new(&root, line, format!("`{name}` has no rank: put it below a comment `// Rank N: …`"))
        })
        .collect();
    let mut level: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for arrow in arrows(files, sources, &mut findings) {
        let (Some(from), Some(to)) = (ranks.get(&arrow.from), ranks.get(&arrow.to)) else { continue };
        if to > from {
            findings.push(Finding::new(
                &arrow.file,
                line_of(files, &arrow),
                format!(
                    "`{}` of rank {from} uses `{}` of rank {to} (`{}`): move the name down, or the code up",
                    arrow.from, arrow.to, arrow.path
                ),
            ));
        } else if to == from {
            level.entry(arrow.from).or_default().insert(arrow.to);
        }
    }
    findings.extend(circles(&level).into_iter().map(|circle| {
        let message = format!(
            "{} use each other in a circle: one of the names that they take belongs to a lower folder",
            circle.join(" → ")
        );
        Finding::new(&root, 0, message)
    }));
    findings.sort();
    findings.dedup();
    findings
}

/// The ranks by folder, as the comments of `lib.rs` declare them.
fn declared(text: &str) -> BTreeMap<String, u32> {
    let mut rank = None;
    let mut ranks = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("// Rank ") {
            rank = rest.split(':').next().and_then(|number| number.parse().ok());
        } else if let (Some(name), Some(rank)) = (module(line), rank) {
            ranks.insert(name.to_owned(), rank);
        }
    }
    ranks
}

fn modules(text: &str) -> Vec<(usize, &str)> {
    text.lines().enumerate().filter_map(|(i, line)| Some((i + 1, module(line)?))).collect()
}

fn module(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "))?;
    rest.strip_suffix(';')
}

fn line_of(files: &[SourceFile], arrow: &Arrow) -> usize {
    let file = files.iter().find(|f| f.path == arrow.file);
    let needle = format!("{}::", arrow.to);
    file.and_then(|f| f.lines().find(|(_, line)| line.contains(&needle))).map_or(0, |(number, _)| number)
}

/// All uses of one folder by another, outside of tests.
fn arrows(files: &[SourceFile], sources: &str, findings: &mut Vec<Finding>) -> BTreeSet<Arrow> {
    let mut all = BTreeSet::new();
    for file in files {
        let Some(below) = file.path.strip_prefix(sources).filter(|_| file.is_rust()) else { continue };
        let module = module_path(below);
        if below == "lib.rs" || module.iter().any(|part| part == "tests") {
            continue;
        }
        match syn::parse_file(file.text.as_deref().unwrap_or_default()) {
            Ok(parsed) => {
                for path in Paths::of(&parsed, &module) {
                    let (from, to) = (module[0].clone(), path[0].clone());
                    if from != to {
                        all.insert(Arrow { from, to, file: file.path.clone(), path: path.join("::") });
                    }
                }
            }
            Err(error) => findings.push(Finding::new(&file.path, 0, format!("is not Rust: {error}"))),
        }
    }
    all
}

/// `volume/csi/mod.rs` is module `volume::csi`.
fn module_path(below: &str) -> Vec<String> {
    let parts = below.trim_end_matches(".rs").split('/');
    parts.filter(|part| *part != "mod").map(str::to_owned).collect()
}

/// Collects the paths of a file that begin at the root of the crate, each as its segments below the root.
struct Paths<'m> {
    module: &'m [String],
    /// Depth of modules inside of the file.
    inside: usize,
    found: Vec<Vec<String>>,
}

impl Paths<'_> {
    fn of(file: &File, module: &[String]) -> Vec<Vec<String>> {
        let mut paths = Paths { module, inside: 0, found: Vec::new() };
        paths.visit_file(file);
        paths.found
    }

    fn add(&mut self, segments: &[String]) {
        let supers = segments.iter().take_while(|s| *s == "super").count();
        let rest = &segments[supers..];
        if segments.first().is_some_and(|s| s == "crate") {
            self.push(segments[1..].to_vec());
        } else if let Some(up) =
            supers.checked_sub(self.inside).filter(|up| *up > 0 && *up <= self.module.len())
        {
            let base = &self.module[..self.module.len() - up];
            self.push(base.iter().chain(rest).cloned().collect());
        }
    }

    fn push(&mut self, path: Vec<String>) {
        if !path.is_empty() {
            self.found.push(path);
        }
    }

    fn tree(&mut self, prefix: &[String], tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                let longer: Vec<String> = prefix.iter().cloned().chain([path.ident.to_string()]).collect();
                self.tree(&longer, &path.tree);
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(prefix, item)),
            UseTree::Name(name) => self.leaf(prefix, Some(name.ident.to_string())),
            UseTree::Rename(name) => self.leaf(prefix, Some(name.ident.to_string())),
            UseTree::Glob(_) => self.leaf(prefix, None),
        }
    }

    fn leaf(&mut self, prefix: &[String], name: Option<String>) {
        let name = name.filter(|name| name != "self");
        let all: Vec<String> = prefix.iter().cloned().chain(name).collect();
        self.add(&all);
    }
}

impl<'a> Visit<'a> for Paths<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes = match item {
            Item::Mod(i) => &i.attrs,
            Item::Fn(i) => &i.attrs,
            Item::Use(i) => &i.attrs,
            Item::Impl(i) => &i.attrs,
            _ => &Vec::new(),
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'a ItemMod) {
        self.inside += 1;
        visit::visit_item_mod(self, module);
        self.inside -= 1;
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'a Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.add(&segments);
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && list.tokens.to_string() == "test"
}

/// Circles among folders of one rank, each once, from its first folder by name.
fn circles(level: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in level.keys() {
        let mut paths = vec![vec![start.clone()]];
        let mut seen = BTreeSet::from([start.clone()]);
        while let Some(path) = paths.pop() {
            for next in path.last().and_then(|last| level.get(last)).into_iter().flatten() {
                if next == start && path.iter().min() == Some(start) {
                    found.push(path.iter().cloned().chain([start.clone()]).collect());
                } else if seen.insert(next.clone()) {
                    paths.push(path.iter().cloned().chain([next.clone()]).collect());
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "//! Core.\n\n// Rank 0: words.\npub mod time;\npub mod types;\n\n// Rank 1: facts.\npub mod runtime;\npub mod status;\n";

    fn with(files: &[(&str, &str)]) -> Vec<String> {
        let root = SourceFile::of("a/src/lib.rs", LIB);
        let others = files.iter().map(|(path, text)| SourceFile::of(&format!("a/src/{path}"), text));
        let all: Vec<SourceFile> = std::iter::once(root).chain(others).collect();
        of_crate(&all, "a/src/").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_use_against_the_rank_is_found_however_it_is_spelled() {
        for text in [
            "use crate::runtime::Slot;",
            "use crate::{time, runtime::{Slot}};",
            "use super::super::runtime::view::*;",
            "fn f() -> crate::runtime::Slot { g() }",
            "mod inner { use super::super::super::runtime::Slot; }",
            "pub use crate::runtime as other;",
        ] {
            let found = with(&[("types/pod.rs", text)]);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains("`types` of rank 0 uses `runtime` of rank 1"), "{found:?}");
        }
        for text in [
            "use crate::time::Mono;",
            "use super::quantity::Quantity;",
            "mod inner { use super::super::quantity::Quantity; }",
            "// crate::runtime::Slot",
            "#[cfg(test)]\nmod tests { use crate::runtime::Slot; }",
        ] {
            assert_eq!(with(&[("types/pod.rs", text)]), [""; 0], "{text}");
        }
        assert_eq!(with(&[("types/tests.rs", "use crate::runtime::Slot;")]), [""; 0]);
    }

    #[test]
    fn folders_of_one_rank_use_each_other_in_one_direction() {
        let one = ("status/mod.rs", "use crate::runtime::Slot;");
        assert_eq!(with(&[one]), [""; 0]);
        let found = with(&[one, ("runtime/mod.rs", "use crate::status::Phase;")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("runtime → status → runtime use each other"), "{found:?}");
    }

    #[test]
    fn no_folder_uses_the_composition_root() {
        let file = |path: &str, text: &str| SourceFile::of(&format!("a/src/{path}"), text);
        let found =
            of_root(&[file("node/mod.rs", "use crate::process::watchdog::Owner;")], "a/src/", "process");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("`node` uses `process::watchdog::Owner`"), "{found:?}");
        let allowed = [file("process/run.rs", "use crate::node::Node;\nuse crate::process::cli;")];
        assert!(of_root(&allowed, "a/src/", "process").is_empty());
    }

    #[test]
    fn a_module_without_a_rank_is_found() {
        let root = SourceFile::of("a/src/lib.rs", "pub mod stray;\n// Rank 0: words.\npub mod time;\n");
        let found = of_crate(&[root], "a/src/");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("`stray` has no rank"), "{found:?}");
        assert_eq!(ranks(&[]).len(), CRATES.len());
    }
}
