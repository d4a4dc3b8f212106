//! Chooses the files: the table's rules, the libraries that chosen programs are linked to, the modules that chosen
//! modules need, and the targets of chosen links. Pure: facts come through [`Listing`].

use super::contents::Contents;
use super::glob;
use super::modules::Deps;
use crate::profile::Profile;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What a path of the package tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory; made when something below it is chosen, or when named itself.
    Dir,
    /// Symbolic link with its target as written.
    Link(String),
}

/// What is known of the package tree.
pub struct Listing<'a> {
    /// Directory of shared libraries below `usr/lib` (Debian's multiarch).
    pub multiarch: &'a str,
    /// Every path below the root, without a leading slash.
    pub paths: BTreeMap<String, Kind>,
    /// Libraries a file is linked to; empty for what is no ELF file. Asked for chosen files only.
    pub needed: &'a dyn Fn(&str) -> Vec<String>,
    /// `modules.dep` of the kernel, with the directory it stands in.
    pub modules: (String, Deps),
}

/// Why a path is in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InclusionReason {
    /// Component name.
    pub component: String,
    /// Reason from the table, or what needs it.
    pub reason: String,
}

/// The choice, and the patterns that matched nothing (each is an error of the table or a changed package).
pub struct Choice {
    /// Path -> why.
    pub files: BTreeMap<String, InclusionReason>,
    /// `line: pattern`.
    pub unmatched: Vec<String>,
}

/// Chooses for a profile.
#[must_use]
pub fn choose(contents: &Contents, profile: Profile, listing: &Listing<'_>) -> Choice {
    let mut choice = Choice { files: BTreeMap::new(), unmatched: Vec::new() };
    let mut queue = Vec::new();
    let mut unmatched: BTreeMap<usize, (bool, &str)> = BTreeMap::new();
    for rule in contents.rules_for(profile) {
        let why = InclusionReason {
            component: contents.components[rule.component].name.clone(),
            reason: rule.reason.clone(),
        };
        let found: Vec<String> = if rule.library {
            library(listing, &rule.pattern).into_iter().collect()
        } else {
            listing.paths.keys().filter(|p| glob::matches(&rule.pattern, p)).cloned().collect()
        };
        // A line is fine if one of its alternatives exists: packages move files between bin and sbin.
        let entry = unmatched.entry(rule.line).or_insert((false, &rule.pattern));
        entry.0 |= !found.is_empty();
        queue.extend(found.into_iter().map(|path| (path, why.clone())));
    }
    choice.unmatched = unmatched
        .iter()
        .filter(|(_, (found, _))| !found)
        .map(|(line, (_, pattern))| format!("line {line}: {pattern}"))
        .collect();
    queue.reverse();
    while let Some((path, why)) = queue.pop() {
        if let Entry::Vacant(new) = choice.files.entry(path) {
            queue.extend(follow(listing, contents, new.key(), &why));
            new.insert(why);
        }
    }
    choice
}

// What a chosen path brings along.
fn follow(
    listing: &Listing<'_>,
    contents: &Contents,
    path: &str,
    why: &InclusionReason,
) -> Vec<(String, InclusionReason)> {
    let mut out = Vec::new();
    match listing.paths.get(path) {
        Some(Kind::Link(target)) => {
            let resolved = resolve(path, target);
            if listing.paths.contains_key(&resolved) {
                out.push((resolved, why.clone()));
            }
        }
        Some(Kind::File) => {
            let libraries = contents.components.iter().find(|c| c.name == "libraries");
            for soname in (listing.needed)(path) {
                if let Some(found) = library(listing, &soname) {
                    let component = libraries.map_or(&why.component, |c| &c.name).clone();
                    out.push((found, InclusionReason { component, reason: format!("linked by /{path}") }));
                }
            }
            let (dir, deps) = &listing.modules;
            if let Some(module) = path.strip_prefix(dir).map(|m| m.trim_start_matches('/')) {
                for need in deps.needs(module) {
                    let reason = format!("needed by {}", module.rsplit('/').next().unwrap_or(module));
                    out.push((
                        format!("{dir}/{need}"),
                        InclusionReason { component: why.component.clone(), reason },
                    ));
                }
            }
        }
        Some(Kind::Dir) | None => {}
    }
    out
}

fn library(listing: &Listing<'_>, soname: &str) -> Option<String> {
    let multiarch = listing.multiarch;
    let paths = [format!("usr/lib/{multiarch}/{soname}"), format!("usr/lib/{multiarch}/systemd/{soname}")];
    paths.into_iter().find(|path| listing.paths.contains_key(path))
}

/// Resolves a link's target against the directory of the link, inside the root.
#[must_use]
pub fn resolve(link: &str, target: &str) -> String {
    let mut parts: Vec<&str> = if target.starts_with('/') {
        Vec::new()
    } else {
        link.rsplit_once('/').map_or(Vec::new(), |(dir, _)| dir.split('/').collect())
    };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(needed: &dyn Fn(&str) -> Vec<String>) -> Listing<'_> {
        let multiarch = "x86_64-linux-gnu";
        let lib = format!("usr/lib/{multiarch}");
        let paths = [
            ("usr/bin/prog".to_owned(), Kind::File),
            ("usr/bin/other".to_owned(), Kind::File),
            ("usr/sbin/alias".to_owned(), Kind::Link("../bin/prog".to_owned())),
            (format!("{lib}/liba.so.1"), Kind::Link("liba.so.1.2".to_owned())),
            (format!("{lib}/liba.so.1.2"), Kind::File),
            (format!("{lib}/libunused.so"), Kind::File),
            ("usr/lib/modules/6/kernel/x.ko".to_owned(), Kind::File),
            ("usr/lib/modules/6/kernel/y.ko".to_owned(), Kind::File),
        ];
        let deps = Deps::parse("kernel/x.ko: kernel/y.ko\nkernel/y.ko:\n");
        let modules = ("usr/lib/modules/6".to_owned(), deps);
        Listing { multiarch, paths: paths.into(), needed, modules }
    }

    #[test]
    fn links_libraries_and_modules_follow_and_nothing_else() {
        let needed = |p: &str| if p == "usr/bin/prog" { vec!["liba.so.1".to_owned()] } else { vec![] };
        let contents = Contents::parse(
            "[a budget=1]\nusr/sbin/alias  why\nusr/lib/modules/*/kernel/x.ko*  mod\nusr/none  gone",
        )
        .expect("parses");
        let choice = choose(&contents, Profile::Release, &listing(&needed));
        let names: Vec<_> = choice.files.keys().map(|p| p.rsplit('/').next().unwrap_or_default()).collect();
        assert_eq!(names, ["prog", "x.ko", "y.ko", "liba.so.1", "liba.so.1.2", "alias"]);
        assert_eq!(choice.files["usr/bin/prog"].reason, "why");
        assert_eq!(choice.unmatched, ["line 4: usr/none"]);
    }

    #[test]
    fn link_targets_resolve_inside_the_root() {
        assert_eq!(resolve("usr/sbin/a", "../bin/b"), "usr/bin/b");
        assert_eq!(resolve("a", "/usr/b"), "usr/b");
        assert_eq!(resolve("a/b", "../../../c"), "c");
    }
}
