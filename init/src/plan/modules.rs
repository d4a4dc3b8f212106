//! The initrd's module list: text and the names that are called for in, load steps out.
//!
//! Seam: docs/internals/architecture.md, "Initrd" (`/etc/orlop/modules`). A module without patterns is always loaded; one
//! with patterns when a name fits one: the modalias of a device that is there, or the name under which the
//! kernel itself would ask for it (`fs-vfat`). What a module needs stands before it and comes with it.
//!
//! Why no crate: init stays small, and here a pattern costs at most the product of both lengths.

use super::step::BootStep;
use std::collections::BTreeSet;

/// Begins the name of a module that the line's module needs.
const NEEDS: char = '<';

/// Modules that are not loaded yet, in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modules {
    waiting: Vec<Module>,
    /// Names that were called for: no module that waits fits one of them.
    asked: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Module {
    path: String,
    /// Names of the modules that it needs.
    needs: Vec<String>,
    patterns: Vec<String>,
}

impl Modules {
    /// Reads the list: path, then patterns and needed modules (`<name`); blank lines and `#` comments are skipped.
    #[must_use]
    pub fn parse(list: &str) -> Modules {
        let module = |line: &str| {
            let mut words = line.split('#').next().unwrap_or("").split_whitespace();
            let mut module =
                Module { path: words.next()?.to_string(), needs: Vec::new(), patterns: Vec::new() };
            for word in words {
                match word.strip_prefix(NEEDS) {
                    Some(need) => module.needs.push(need.to_string()),
                    None => module.patterns.push(word.to_string()),
                }
            }
            Some(module)
        };
        Modules { waiting: list.lines().filter_map(module).collect(), asked: BTreeSet::new() }
    }

    /// What is to be loaded now that these names are called for; a module is handed out once. First what is always
    /// loaded, which needs nothing of the second part: the two can be loaded at the same time.
    pub fn take(&mut self, names: &[String]) -> (Vec<BootStep>, Vec<BootStep>) {
        let fresh: Vec<&String> = names.iter().filter(|name| !self.asked.contains(*name)).collect();
        let always = self.with_needs(|m| m.patterns.is_empty());
        let called = self.with_needs(|m| m.patterns.iter().any(|p| fresh.iter().any(|n| fits(p, n))));
        self.asked.extend(fresh.into_iter().cloned());
        let (mut first, mut second, mut later) = (Vec::new(), Vec::new(), Vec::new());
        for (i, module) in self.waiting.drain(..).enumerate() {
            let to = match (always.contains(&i), called.contains(&i)) {
                (true, _) => &mut first,
                (false, true) => &mut second,
                (false, false) => &mut later,
            };
            to.push(module);
        }
        self.waiting = later;
        (steps(first), steps(second))
    }

    /// Positions of the modules that are chosen, and of what they need. Needed ones stand before.
    fn with_needs(&self, chosen: impl Fn(&Module) -> bool) -> BTreeSet<usize> {
        let mut all = BTreeSet::new();
        for (i, module) in self.waiting.iter().enumerate().rev() {
            if !all.contains(&i) && !chosen(module) {
                continue;
            }
            all.insert(i);
            let needed = |m: &Module| module.needs.iter().any(|need| need == name(&m.path));
            all.extend(self.waiting[..i].iter().enumerate().filter(|(_, m)| needed(m)).map(|(at, _)| at));
        }
        all
    }

    /// How many have not been called for.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

fn steps(modules: Vec<Module>) -> Vec<BootStep> {
    modules
        .into_iter()
        .map(|m| BootStep::LoadModule {
            compressed: [".xz", ".zst", ".gz"].iter().any(|suffix| m.path.ends_with(suffix)),
            path: m.path,
        })
        .collect()
}

/// `*` for any text, `?` for any byte, `[a-z]` for one of a set: what modules.alias uses. Takes time in the
/// product of both lengths for every pattern.
fn fits(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut i) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while i < n.len() {
        if p.get(at) == Some(&b'*') {
            star = Some((at + 1, i));
            at += 1;
        } else if let Some(next) = one(p, at, n[i]) {
            (at, i) = (next, i + 1);
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            (at, i) = (after, from + 1);
        } else {
            return false;
        }
    }
    p[at..].iter().all(|b| *b == b'*')
}

/// The position behind the pattern's element at `at` if `byte` fits it.
fn one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => {
            let length = pattern[at + 1..].iter().position(|b| *b == b']')?;
            let set = &pattern[at + 1..at + 1 + length];
            let range = set.windows(3).any(|w| w[1] == b'-' && (w[0]..=w[2]).contains(&byte));
            (range || set.contains(&byte)).then_some(at + 2 + length)
        }
        b => (*b == byte).then_some(at + 1),
    }
}

/// `dm-verity` for `/lib/modules/6.12/kernel/drivers/md/dm-verity.ko.xz`.
#[must_use]
pub fn name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load(path: &str, compressed: bool) -> BootStep {
        BootStep::LoadModule { path: path.into(), compressed }
    }

    #[test]
    fn without_patterns_always_with_patterns_when_called_for() {
        let text = "# order matters\n/m/libata.ko pci:v*bc01sc06* \n/m/ahci.ko pci:v*bc01sc06* # disks\n\n\
            /m/dm-mod.ko\n/m/vfat.ko.xz fs-vfat\n/m/sd_mod.ko scsi:t-0x00*\n";
        let mut modules = Modules::parse(text);
        assert_eq!(modules.take(&[]), (vec![load("/m/dm-mod.ko", false)], vec![]));
        let ahci = "pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01".to_string();
        assert_eq!(
            modules.take(std::slice::from_ref(&ahci)),
            (vec![], vec![load("/m/libata.ko", false), load("/m/ahci.ko", false)])
        );
        assert_eq!((modules.take(&[ahci]), modules.waiting()), ((vec![], vec![]), 2));
        let names = ["fs-vfat".to_string(), "scsi:t-0x00".to_string()];
        let both = vec![load("/m/vfat.ko.xz", true), load("/m/sd_mod.ko", false)];
        assert_eq!(modules.take(&names), (vec![], both));
        assert_eq!(name("/lib/modules/6/dm-verity.ko.xz"), "dm-verity");
    }

    #[test]
    fn what_a_module_needs_comes_with_it() {
        let text = "/m/scsi_mod.ko -\n/m/scsi-x.ko.xz - <scsi_mod\n/m/a.ko.xz <scsi-x <scsi_mod vmbus:1*\n\
            /m/sd_mod.ko <scsi_mod scsi:t-0x00*\n/m/dm-mod.ko -\n/m/dm-verity.ko <dm-mod\n";
        let mut modules = Modules::parse(text);
        let always = vec![load("/m/dm-mod.ko", false), load("/m/dm-verity.ko", false)];
        assert_eq!(modules.take(&[]), (always, vec![]));
        let storvsc =
            vec![load("/m/scsi_mod.ko", false), load("/m/scsi-x.ko.xz", true), load("/m/a.ko.xz", true)];
        let names = ["pci:other".to_string(), "vmbus:12".to_string()];
        assert_eq!(modules.take(&names), (vec![], storvsc));
        // A name that was called for before is not looked at again; a new one is.
        assert_eq!(modules.take(&names), (vec![], vec![]));
        let disk = ["vmbus:12".to_string(), "scsi:t-0x00".to_string()];
        assert_eq!(modules.take(&disk), (vec![], vec![load("/m/sd_mod.ko", false)]));
        assert_eq!(modules.waiting(), 0);
    }

    #[test]
    fn patterns_as_the_kernel_writes_them() {
        for (pattern, name, want) in [
            ("virtio:d00000002v*", "virtio:d00000002v00001AF4", true),
            ("virtio:d00000002v*", "virtio:d00000008v00001AF4", false),
            ("acpi*:QEMU0002:*", "acpi:QEMU0002:", true),
            ("usb:v*p*d*dc*dsc*dp*ic08isc06ip50in*", "usb:v1p2d3dc00dsc00dp00ic08isc06ip50in00", true),
            ("usb:v*p*d*dc*dsc*dp*ic08isc06ip50in*", "usb:v1p2d3dc00dsc00dp00ic08isc06ip62in00", false),
            ("a[0-9b]c", "a7c", true),
            ("a[0-9b]c", "abc", true),
            ("a[0-9b]c", "acc", false),
            ("a?c*", "abc", true),
            ("", "", true),
            ("", "a", false),
            ("a[b", "ab", false),
        ] {
            assert_eq!(fits(pattern, name), want, "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn any_list_and_names(list in "[ -~\n]{0,200}", names in proptest::collection::vec("[ -~]{0,30}", 0..4)) {
            let mut modules = Modules::parse(&list);
            let before = modules.waiting();
            let (always, called) = modules.take(&names);
            prop_assert_eq!(always.len() + called.len() + modules.waiting(), before);
        }
    }
}
