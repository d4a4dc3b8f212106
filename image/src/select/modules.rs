//! Kernel module dependencies: reads `modules.dep` and orders modules for loading.

use std::collections::{BTreeMap, BTreeSet};

/// `modules.dep`: path below `/lib/modules/<version>/` -> the paths it needs (kmod's order: nearest first).
#[derive(Clone, Debug, Default)]
pub struct Deps {
    needs: BTreeMap<String, Vec<String>>,
}

impl Deps {
    /// Parses the text of `modules.dep`; lines that are none are skipped.
    #[must_use]
    pub fn parse(text: &str) -> Deps {
        let needs = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(m, deps)| (m.to_owned(), deps.split_whitespace().map(str::to_owned).collect()))
            .collect();
        Deps { needs }
    }

    /// The path of a module by name; `-` and `_` are the same.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&str> {
        let wanted = name.replace('-', "_");
        self.needs.keys().find(|path| module_name(path) == wanted).map(String::as_str)
    }

    /// What a module needs, directly and indirectly (kmod lists all of them).
    #[must_use]
    pub fn needs(&self, path: &str) -> &[String] {
        self.needs.get(path).map_or(&[], Vec::as_slice)
    }

    /// The modules named, each once, each after what it needs.
    ///
    /// # Errors
    /// The names that no module has.
    pub fn load_order(&self, names: &[&str]) -> Result<Vec<String>, Vec<String>> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        let mut unknown = Vec::new();
        for name in names {
            match self.find(name) {
                Some(path) => self.visit(path, &mut seen, &mut order),
                None => unknown.push((*name).to_owned()),
            }
        }
        if unknown.is_empty() { Ok(order) } else { Err(unknown) }
    }

    fn visit(&self, path: &str, seen: &mut BTreeSet<String>, order: &mut Vec<String>) {
        if seen.insert(path.to_owned()) {
            for need in self.needs(path).iter().rev() {
                self.visit(need, seen, order);
            }
            order.push(path.to_owned());
        }
    }
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// The names of a list file: one a line, `#` comments.
#[must_use]
pub fn names(text: &str) -> Vec<&str> {
    text.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/b/dm-verity.ko.xz: kernel/b/dm-bufio.ko.xz kernel/b/dm-mod.ko.xz\n\
        kernel/b/dm-bufio.ko.xz: kernel/b/dm-mod.ko.xz\nkernel/b/dm-mod.ko.xz:\nkernel/v/virtio_blk.ko.xz:\n";

    #[test]
    fn dependencies_come_first_and_once() {
        let order = Deps::parse(DEP).load_order(&["virtio-blk", "dm_verity", "dm-mod"]).expect("known");
        let short: Vec<_> = order.iter().map(|p| module_name(p)).collect();
        assert_eq!(short, ["virtio_blk", "dm_mod", "dm_bufio", "dm_verity"]);
    }

    #[test]
    fn unknown_names_are_all_reported() {
        let unknown = Deps::parse(DEP).load_order(&["nope", "dm-mod", "neither"]).expect_err("unknown");
        assert_eq!(unknown, ["nope", "neither"]);
    }

    #[test]
    fn list_files_have_comments() {
        assert_eq!(names("# a\nb # c\n\n d\n"), ["b", "d"]);
    }
}
