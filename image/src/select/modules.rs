//! Kernel module dependencies and names: reads `modules.dep` and `modules.alias`, orders modules for loading and
//! says what each is called for by.

use super::glob;
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
    /// It stays compressed.
    pub packed: bool,
}

/// A module as it is in the initrd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedModule {
    /// Path below `/lib/modules/<version>/`, as in `modules.dep`.
    pub path: String,
    /// It stays compressed: all that need it do.
    pub packed: bool,
    /// What its line of `/etc/orlop/modules` has behind the path.
    pub words: Vec<String>,
}

/// What is known of one module while the list is read.
struct Called<'a> {
    always: bool,
    packed: bool,
    own: BTreeSet<&'a str>,
}

/// The wanted modules and what they need, each after what it needs. A module's words are the patterns that call for it
/// and `<name` for each module that it needs; `-` fits nothing and stands for a module that comes with others only.
///
/// # Errors
/// The names that no module has, and those of modules that drive no device although they should.
pub fn initrd(
    deps: &Deps,
    aliases: &str,
    wanted: &[InitrdModule<'_>],
) -> Result<Vec<PackedModule>, Vec<String>> {
    let names: Vec<&str> = wanted.iter().map(|w| w.name).collect();
    let order = deps.load_order(&names)?;
    let mut calls: BTreeMap<&str, Called<'_>> = BTreeMap::new();
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
        // What is always loaded brings what it needs always.
        for path in deps.needs(path).iter().map(String::as_str).chain([path]) {
            let called = calls.entry(path).or_insert_with(|| Called {
                always: false,
                packed: true,
                own: BTreeSet::new(),
            });
            called.always |= own.is_empty();
            called.packed &= module.packed;
        }
        if let Some(called) = calls.get_mut(path) {
            called.own.extend(&own);
        }
    }
    if !silent.is_empty() {
        return Err(silent);
    }
    Ok(order.into_iter().map(|path| listed(deps, calls.get(path.as_str()), path)).collect())
}

fn listed(deps: &Deps, called: Option<&Called<'_>>, path: String) -> PackedModule {
    let mut words = Vec::new();
    if let Some(called) = called.filter(|called| !called.always) {
        words.extend(deps.needs(&path).iter().map(|need| format!("<{}", stem(need))));
        words.extend(called.own.iter().map(|pattern| (*pattern).to_owned()));
        if called.own.is_empty() {
            words.push("-".to_owned());
        }
    }
    PackedModule { packed: called.is_some_and(|called| called.packed), path, words }
}

/// The buses whose devices init looks at (`init/src/exec/drivers.rs`), as modaliases begin.
const BUSES: [&str; 8] = ["pci:", "virtio:", "usb:", "scsi:", "acpi", "vmbus:", "xen:", "mmc:"];

// The modaliases of `modules.alias` (`alias PATTERN MODULE`) that are devices on a bus.
fn devices<'a>(aliases: &'a str, module: &str) -> Vec<&'a str> {
    aliases
        .lines()
        .filter_map(|line| line.strip_prefix("alias ")?.split_once(' '))
        .filter(|(pattern, name)| {
            name.replace('-', "_") == module && BUSES.iter().any(|bus| pattern.starts_with(bus))
        })
        .map(|(pattern, _)| pattern)
        .collect()
}

/// The lines of `image/initrd-hardware.txt` (a module, the modalias of a device, what it is) whose device calls for no
/// such module of the initrd.
#[must_use]
pub fn undriven<'a>(hardware: &'a str, modules: &[PackedModule]) -> Vec<&'a str> {
    let driven = |line: &str| {
        let mut words = line.split_whitespace();
        let (Some(module), Some(modalias)) = (words.next(), words.next()) else { return false };
        let wanted = module.replace('-', "_");
        modules
            .iter()
            .filter(|m| module_name(&m.path) == wanted)
            .any(|m| m.words.is_empty() || m.words.iter().any(|pattern| glob::matches(pattern, modalias)))
    };
    hardware
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !driven(line))
        .collect()
}

/// `dm-verity` for `kernel/drivers/md/dm-verity.ko.xz`.
fn stem(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

fn module_name(path: &str) -> String {
    stem(path).replace('-', "_")
}

/// The entries of a list file: a module a line, then what it is loaded for, and `packed`; `#` comments.
#[must_use]
pub fn wanted(text: &str) -> Vec<InitrdModule<'_>> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split('#').next().unwrap_or("").split_whitespace();
            let name = words.next()?;
            let (packed, when): (Vec<&str>, Vec<&str>) = words.partition(|word| *word == "packed");
            Some(InitrdModule { name, when, packed: !packed.is_empty() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

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
            InitrdModule { name: "b", when: vec![], packed: false },
            InitrdModule { name: "d", when: vec!["device", "fs-d"], packed: true },
        ];
        assert_eq!(wanted("# a\nb # c\n\n d device packed fs-d\n"), want);
    }

    /// `path=words`, and a mark behind the path of one that stays compressed.
    fn lines(modules: &[PackedModule]) -> Vec<String> {
        let mark = |m: &PackedModule| if m.packed { " packed" } else { "" };
        modules.iter().map(|m| format!("{}{}={}", m.path, mark(m), m.words.join(","))).collect()
    }

    #[test]
    fn a_line_names_what_its_module_needs() {
        let deps = Deps::parse(
            "k/a.ko: k/lib-x.ko\nk/b.ko: k/lib-x.ko\nk/c.ko: k/base.ko\nk/lib-x.ko:\nk/base.ko:\n",
        );
        let aliases = "# x\nalias pci:v1* a\nalias crypto-a a\nalias vmbus:v2* b\nalias platform:b b\n";
        let list = wanted("a device\nb device fs-b\nc\n");
        let got = initrd(&deps, aliases, &list).expect("known");
        let want = [
            "k/lib-x.ko=-",
            "k/a.ko=<lib-x,pci:v1*",
            "k/b.ko=<lib-x,fs-b,vmbus:v2*",
            "k/base.ko=",
            "k/c.ko=",
        ];
        assert_eq!(lines(&got), want);
        assert_eq!(initrd(&deps, aliases, &wanted("c device")), Err(vec!["c (drives no device)".to_owned()]));
        // What is always loaded brings its dependencies always, in whichever order they are listed.
        for list in ["lib-x\na device\n", "a device\nlib-x\n"] {
            let got = initrd(&deps, aliases, &wanted(list)).expect("known");
            assert_eq!(lines(&got)[0], "k/lib-x.ko=", "{list}");
        }
        // What one unpacked module needs is not packed.
        let got = initrd(&deps, aliases, &wanted("a device packed\nb device\nc packed\n")).expect("known");
        let packed: Vec<&str> = got.iter().filter(|m| m.packed).map(|m| m.path.as_str()).collect();
        assert_eq!(packed, ["k/a.ko", "k/base.ko", "k/c.ko"]);
    }

    #[test]
    fn a_device_that_calls_for_no_module_is_named() {
        let deps = Deps::parse("k/hv_x.ko.xz:\nk/always.ko:\n");
        let aliases = "alias vmbus:32* hv_x\n";
        let modules = initrd(&deps, aliases, &wanted("hv_x device\nalways\n")).expect("known");
        let hardware = "# module, modalias\nhv-x vmbus:3226 a disk\nalways pci:v1 anything\nhv_x vmbus:99 no\n\
            absent vmbus:3226\nhv_x\n";
        assert_eq!(undriven(hardware, &modules), ["hv_x vmbus:99 no", "absent vmbus:3226", "hv_x"]);
    }

    /// Each module that a machine of the list is to boot with is in the initrd's list, for its devices.
    #[test]
    fn the_committed_lists_belong_together() {
        Arch::ALL.into_iter().for_each(belong_together);
    }

    fn belong_together(arch: Arch) {
        let list = arch.fill(include_str!("../../initrd-modules.txt"));
        let list = wanted(&list);
        let hardware = arch.fill(include_str!("../../initrd-hardware.txt"));
        let lines = hardware.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut modules = BTreeSet::new();
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert!(words.len() > 2 && BUSES.iter().any(|bus| words[1].starts_with(bus)), "{line}");
            let entry = list.iter().find(|m| m.name == words[0]);
            assert!(entry.is_some_and(|m| m.when.contains(&"device")), "{line}");
            modules.insert(words[0]);
        }
        // The other way round: no driver of the list is without a device that proves its pattern.
        for module in list.iter().filter(|m| m.when.contains(&"device")) {
            assert!(modules.contains(module.name), "{} is not in initrd-hardware.txt", module.name);
        }
    }
}
