//! Kernel module dependencies and names: reads `modules.dep` and `modules.alias`, orders modules for loading and
//! says what each is called for by.

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

/// A module of the initrd's list: its name, and when it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitrdModule<'a> {
    /// Module.
    pub name: &'a str,
    /// Names that call for it; empty: always. `device` stands for the devices it drives.
    pub when: Vec<&'a str>,
}

/// The wanted modules and what they need, each after what it needs, with the patterns that call for it: a
/// dependency has the patterns of all modules that need it.
///
/// # Errors
/// The names that no module has, and those of modules that drive no device although they should.
pub fn initrd(
    deps: &Deps,
    aliases: &str,
    wanted: &[InitrdModule<'_>],
) -> Result<Vec<(String, Vec<String>)>, Vec<String>> {
    let names: Vec<&str> = wanted.iter().map(|w| w.name).collect();
    let order = deps.load_order(&names)?;
    let mut calls: BTreeMap<&str, Option<BTreeSet<&str>>> = BTreeMap::new();
    let mut silent = Vec::new();
    for module in wanted {
        let Some(path) = deps.find(module.name) else { continue };
        let mut own: BTreeSet<&str> = module.when.iter().copied().filter(|w| *w != "device").collect();
        if module.when.contains(&"device") {
            own.extend(devices(aliases, &module_name(path)));
        }
        if own.is_empty() && !module.when.is_empty() {
            silent.push(format!("{} (drives no device)", module.name));
        }
        for path in deps.needs(path).iter().map(String::as_str).chain([path]) {
            let all = calls.entry(path).or_insert_with(|| Some(BTreeSet::new()));
            match all {
                Some(all) if !own.is_empty() => all.extend(&own),
                // Once always, it stays so.
                _ => *all = None,
            }
        }
    }
    if !silent.is_empty() {
        return Err(silent);
    }
    let patterns = |path: &str| match calls.get(path) {
        Some(Some(all)) => all.iter().map(|p| (*p).to_owned()).collect(),
        _ => Vec::new(),
    };
    Ok(order.into_iter().map(|path| (path.clone(), patterns(&path))).collect())
}

// The modaliases of `modules.alias` (`alias PATTERN MODULE`) that are devices on a bus.
fn devices<'a>(aliases: &'a str, module: &str) -> Vec<&'a str> {
    aliases
        .lines()
        .filter_map(|line| line.strip_prefix("alias ")?.split_once(' '))
        .filter(|(pattern, name)| {
            name.replace('-', "_") == module
                && ["pci:", "virtio:", "usb:", "scsi:", "acpi"].iter().any(|bus| pattern.starts_with(bus))
        })
        .map(|(pattern, _)| pattern)
        .collect()
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// The entries of a list file: a module a line, then what it is loaded for; `#` comments.
#[must_use]
pub fn wanted(text: &str) -> Vec<InitrdModule<'_>> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split('#').next().unwrap_or("").split_whitespace();
            Some(InitrdModule { name: words.next()?, when: words.collect() })
        })
        .collect()
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
        let want = [
            InitrdModule { name: "b", when: vec![] },
            InitrdModule { name: "d", when: vec!["device", "fs-d"] },
        ];
        assert_eq!(wanted("# a\nb # c\n\n d device fs-d\n"), want);
    }

    #[test]
    fn dependencies_are_called_for_with_what_needs_them() {
        let deps =
            Deps::parse("k/a.ko: k/lib.ko\nk/b.ko: k/lib.ko\nk/c.ko: k/base.ko\nk/lib.ko:\nk/base.ko:\n");
        let aliases = "# x\nalias pci:v1* a\nalias crypto-a a\nalias usb:v2* b\n";
        let list = wanted("a device\nb device fs-b\nc\n");
        let got = initrd(&deps, aliases, &list).expect("known");
        let got: Vec<String> = got.iter().map(|(path, p)| format!("{path}={}", p.join(","))).collect();
        let want = [
            "k/lib.ko=fs-b,pci:v1*,usb:v2*",
            "k/a.ko=pci:v1*",
            "k/b.ko=fs-b,usb:v2*",
            "k/base.ko=",
            "k/c.ko=",
        ];
        assert_eq!(got, want);
        assert_eq!(initrd(&deps, aliases, &wanted("c device")), Err(vec!["c (drives no device)".to_owned()]));
        // What is always loaded brings its dependencies always, in whichever order they are listed.
        for list in ["lib\na device\n", "a device\nlib\n"] {
            let got = initrd(&deps, aliases, &wanted(list)).expect("known");
            assert_eq!(got[0], ("k/lib.ko".to_owned(), vec![]), "{list}");
        }
    }
}
