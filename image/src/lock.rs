//! `image/image.lock` and `image/image-arm64.lock`: the inputs of an image by name, version and digest (pure).
//!
//! Policy: what the lock names is used whenever the archive still has it, and then its digest must agree. An archive
//! moves, so a version that is gone is replaced by the newest one that is new enough, with a warning and a record in
//! the manifest; a release is not built so ([`refusal`]). Only `--update-lock` writes the lock.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A package from a newer suite than the base, fetched as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deb {
    /// Package name.
    pub name: String,
    /// Why it cannot come from the base suite: the oldest upstream version that will do.
    pub at_least: String,
    /// Debian version.
    pub version: String,
    /// SHA-256 of the .deb.
    pub sha256: String,
}

/// The lock file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// When it was written, seconds since 1970: the time of every file in the image, and the least that a clock of a
    /// machine with this image can show (`/usr/lib/clock-epoch`, systemd(1)).
    pub epoch: u64,
    /// Fetched as files.
    pub debs: Vec<Deb>,
    /// Fetched as files for the build machine, on a machine of another architecture: what runs the image's programs there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_debs: Vec<Deb>,
    /// Every package of the package tree with its version.
    pub packages: BTreeMap<String, String>,
}

/// One difference between what was locked and what was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Package name.
    pub name: String,
    /// Version in the lock; none if the package is new.
    pub locked: Option<String>,
    /// Version used; none if it is gone.
    pub used: Option<String>,
}

impl Lock {
    /// Parses the lock file.
    ///
    /// # Errors
    /// The JSON error.
    pub fn parse(text: &str) -> Result<Lock, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The file's text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// apt preferences that hold every locked package at its version; a version the archive no longer has is
    /// ignored by apt.
    #[must_use]
    pub fn preferences(&self) -> String {
        let pins = self.packages.iter().map(|(name, version)| {
            format!("Package: {name}\nPin: version {version}\nPin-Priority: 1001\n\n")
        });
        pins.collect()
    }

    /// What differs between the locked packages and `used`.
    #[must_use]
    pub fn moved(&self, used: &BTreeMap<String, String>) -> Vec<Moved> {
        let names: std::collections::BTreeSet<&String> = self.packages.keys().chain(used.keys()).collect();
        names
            .into_iter()
            .filter(|name| self.packages.get(*name) != used.get(*name))
            .map(|name| Moved {
                name: name.clone(),
                locked: self.packages.get(name).cloned(),
                used: used.get(name).cloned(),
            })
            .collect()
    }
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or = |v: &Option<String>| v.clone().unwrap_or_else(|| "absent".to_owned());
        write!(f, "{}: locked {}, used {}", self.name, or(&self.locked), or(&self.used))
    }
}

/// Differences that a refusal names; it counts the others.
const NAMED: usize = 5;

/// Why a release is not built from packages that differ like this from the file `lock`; `None` if none does.
#[must_use]
pub fn refusal(lock: &str, differences: &[String]) -> Option<String> {
    if differences.is_empty() {
        return None;
    }
    let named = &differences[..differences.len().min(NAMED)];
    let more = match differences.len() - named.len() {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    Some(format!(
        "the archive no longer has the packages that {lock} names, and no release is built from others:\n  \
         {}{more}\n`orlop-image build --update-lock` takes the archive's packages and writes the lock; \
         `--accept-moved` builds from them once, and manifest.json names them",
        named.join("\n  ")
    ))
}

/// The package versions of a mkosi manifest (`packages[].{name,version}`).
///
/// # Errors
/// The JSON error, or a manifest without packages.
pub fn manifest_packages(text: &str) -> Result<BTreeMap<String, String>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
    }
    #[derive(Deserialize)]
    struct Manifest {
        packages: Vec<Package>,
    }
    let manifest: Manifest = serde_json::from_str(text)?;
    Ok(manifest.packages.into_iter().map(|p| (p.name, p.version)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn differences_are_new_gone_and_changed() {
        let lock = Lock { packages: map(&[("a", "1"), ("b", "1"), ("c", "1")]), ..Lock::default() };
        let moved = lock.moved(&map(&[("a", "1"), ("b", "2"), ("d", "1")]));
        let text: Vec<_> = moved.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["b: locked 1, used 2", "c: locked 1, used absent", "d: locked absent, used 1"]);
        assert!(lock.preferences().contains("Package: b\nPin: version 1\n"));
    }

    #[test]
    fn a_refusal_names_packages_and_both_ways_out() {
        assert_eq!(refusal("x.lock", &[]), None);
        let differences: Vec<String> = (0..7).map(|n| format!("p{n}: locked 1, used 2")).collect();
        let few = refusal("x.lock", &differences[..2]).expect("two differ");
        assert!(few.contains("\n  p0: locked 1, used 2\n  p1: locked 1, used 2\n`"), "{few}");
        assert!(few.contains("--update-lock") && few.contains("--accept-moved"), "{few}");
        let many = refusal("x.lock", &differences).expect("seven differ");
        assert!(
            many.contains("p4: ") && !many.contains("p5: ") && many.contains("\n  and 2 more\n"),
            "{many}"
        );
    }

    #[test]
    fn the_committed_lock_holds_what_the_design_asks_for() {
        for text in [include_str!("../image.lock"), include_str!("../image-arm64.lock")] {
            holds_what_the_design_asks_for(&Lock::parse(text).expect("parses"));
        }
    }

    /// The one built on the other: the lock of arm64 names the emulator for x86-64 machines.
    #[test]
    fn the_lock_of_another_architecture_names_what_runs_its_programs_here() {
        let lock = Lock::parse(include_str!("../image-arm64.lock")).expect("parses");
        let names: Vec<_> = lock.host_debs.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["qemu-user"]);
        assert!(lock.packages.contains_key("linux-image-arm64"), "{:?}", lock.packages);
        let own = Lock::parse(include_str!("../image.lock")).expect("parses");
        assert!(own.host_debs.is_empty() && !own.render().contains("host_debs"));
    }

    /// The packages that `mkosi/base/mkosi.conf` names.
    fn of_all_architectures() -> Vec<&'static str> {
        let text = include_str!("../../mkosi/base/mkosi.conf");
        let list = text.split("\nPackages=\n").nth(1).and_then(|rest| rest.split("\n[").next());
        let lines = list.expect("a list of packages").lines().map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
    }

    #[test]
    fn each_lock_has_the_packages_of_its_architecture_and_none_of_another() {
        let common = of_all_architectures();
        let cards =
            ["firmware-bnx2", "firmware-bnx2x", "firmware-intel-misc", "firmware-qlogic", "firmware-realtek"];
        assert!(cards.iter().all(|package| common.contains(package)), "{common:?}");
        let texts = [
            (Arch::Amd64, include_str!("../image.lock")),
            (Arch::Arm64, include_str!("../image-arm64.lock")),
        ];
        for (arch, text) in texts {
            let lock = Lock::parse(text).expect("parses");
            for package in common.iter().copied().chain(arch.facts().packages()) {
                assert!(lock.packages.contains_key(package), "{} without {package}", arch.facts().lock);
            }
            let others = Arch::ALL.into_iter().filter(|other| *other != arch);
            for package in others.flat_map(|other| other.facts().packages()) {
                assert!(!lock.packages.contains_key(package), "{} with {package}", arch.facts().lock);
                assert!(!common.contains(&package), "mkosi.conf names {package}");
            }
        }
    }

    fn holds_what_the_design_asks_for(lock: &Lock) {
        let names: Vec<_> = lock.debs.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["mkosi", "containerd", "containernetworking-plugins"]);
        assert!(lock.debs.iter().chain(&lock.host_debs).all(|d| d.sha256.len() == 64));
        assert!(lock.epoch > 1_795_000_000, "older than Orlop: {}", lock.epoch);
        assert_eq!(Lock::parse(&lock.render()).expect("round trip"), *lock);
    }
}
