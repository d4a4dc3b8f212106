//! The build as data (pure): steps, their inputs, and the keys of their results.
//!
//! A fact is a named digest: of a file of the checkout, of a compiled program, of a fetched package. A step's
//! key is made from its facts and the keys of the steps before it; an unknown fact leaves the key open until
//! the step that finds it has run. Equal keys mean equal results: nothing else may influence a step.

use crate::format::digest;
use crate::profile::Profile;
use std::collections::BTreeMap;

/// The code that makes a step's result: part of its key, so that a changed recipe runs again.
fn recipe(step: BuildStep) -> String {
    let sources: &[&str] = match step {
        BuildStep::Debs => &[include_str!("build/debs.rs")],
        BuildStep::Tools => &[include_str!("build/base.rs")],
        BuildStep::Base => &[include_str!("build/base.rs"), include_str!("arch.rs")],
        BuildStep::Compile => &[],
        BuildStep::Containers => &[include_str!("build/containers.rs"), include_str!("format/oci.rs")],
        BuildStep::Seed => {
            &[include_str!("build/seed.rs"), include_str!("bolt/mod.rs"), include_str!("bolt/write.rs")]
        }
        BuildStep::Root => &[
            include_str!("build/root.rs"),
            include_str!("build/apparmor.rs"),
            include_str!("../apparmor/containerd.template"),
            include_str!("build/bind.rs"),
            include_str!("format/bind.rs"),
            include_str!("build/modules.rs"),
            include_str!("build/prefetch.rs"),
            include_str!("build/shim_info.rs"),
            include_str!("select/closure.rs"),
            include_str!("arch.rs"),
        ],
        BuildStep::Initrd => &[
            include_str!("build/initrd.rs"),
            include_str!("format/cpio.rs"),
            include_str!("format/microcode.rs"),
            include_str!("select/modules.rs"),
            include_str!("arch.rs"),
        ],
        BuildStep::Disk => &[
            include_str!("arch.rs"),
            include_str!("build/disk.rs"),
            include_str!("build/esp.rs"),
            include_str!("format/fat.rs"),
            include_str!("format/mbr.rs"),
            include_str!("format/two_slots.rs"),
            include_str!("format/verity.rs"),
            include_str!("secure_boot/disk.rs"),
            include_str!("secure_boot/sign.rs"),
            include_str!("secure_boot/volume.rs"),
        ],
    };
    digest::bytes(sources.concat().as_bytes())
}

/// The steps, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BuildStep {
    /// mkosi and the packages of newer suites, as files.
    Debs,
    /// The build tools' tree.
    Tools,
    /// The package tree.
    Base,
    /// Agent, init's two programs and CNI plugin.
    Compile,
    /// Pause and hello images.
    Containers,
    /// containerd's directory with these images.
    Seed,
    /// The root's file tree.
    Root,
    /// Microcode, PID 1 of the initrd and its modules.
    Initrd,
    /// Disk, UKI, verity.
    Disk,
}

impl BuildStep {
    /// All, in order.
    pub const ALL: [BuildStep; 9] = [
        BuildStep::Debs,
        BuildStep::Tools,
        BuildStep::Base,
        BuildStep::Compile,
        BuildStep::Containers,
        BuildStep::Seed,
        BuildStep::Root,
        BuildStep::Initrd,
        BuildStep::Disk,
    ];

    /// Name of its cache directory and key.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BuildStep::Debs => "debs",
            BuildStep::Tools => "tools",
            BuildStep::Base => "base",
            BuildStep::Compile => "compile",
            BuildStep::Containers => "containers",
            BuildStep::Seed => "seed",
            BuildStep::Root => "root",
            BuildStep::Initrd => "initrd",
            BuildStep::Disk => "disk",
        }
    }

    /// What a person reads.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            BuildStep::Debs => "fetching mkosi, containerd, CNI plugins",
            BuildStep::Tools => "build tools (mkosi, Debian trixie)",
            BuildStep::Base => "package tree (mkosi, Debian trixie)",
            BuildStep::Compile => "compiling agent, init and CNI plugin",
            BuildStep::Containers => "container images pause and hello",
            BuildStep::Seed => "containerd seed",
            BuildStep::Root => "root file tree",
            BuildStep::Initrd => "initrd",
            BuildStep::Disk => "disk: erofs, verity, UKI (mkosi)",
        }
    }

    /// Facts it is made from; `key:STEP` is an earlier step's key.
    #[must_use]
    pub fn inputs(self) -> &'static [&'static str] {
        match self {
            BuildStep::Debs => &["arch", "lock.debs"],
            BuildStep::Tools => &["deb.mkosi", "mkosi/tools"],
            BuildStep::Base => &["arch", "debs", "lock.packages", "mkosi/base", "key:tools"],
            BuildStep::Compile => &[],
            BuildStep::Containers => &["arch", "image/containers", "rustc"],
            BuildStep::Seed => &["deb.containerd", "key:containers"],
            BuildStep::Root => &[
                "arch",
                "key:base",
                "image/contents.txt",
                "image/rootfs",
                "bin.agent",
                "bin.init",
                "bin.cni",
                "key:containers",
                "key:seed",
                "profile",
                "version",
                "trust",
            ],
            BuildStep::Initrd => &[
                "arch",
                "key:base",
                "bin.initrd",
                "image/initrd-modules.txt",
                "image/initrd-hardware.txt",
                "image/microcode.txt",
            ],
            BuildStep::Disk => &[
                "arch",
                "key:root",
                "key:initrd",
                "key:tools",
                "deb.mkosi",
                "mkosi/disk",
                "version",
                "lock.epoch",
                "secure-boot",
            ],
        }
    }
}

/// Named digests found so far.
#[derive(Clone, Debug, Default)]
pub struct Facts(pub BTreeMap<String, String>);

impl Facts {
    /// Notes one.
    pub fn set(&mut self, name: &str, digest: impl Into<String>) {
        self.0.insert(name.to_owned(), digest.into());
    }
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Step of the build.
    pub step: BuildStep,
    /// The key of its result; none while a fact is missing.
    pub key: Option<String>,
    /// The facts that are missing.
    pub open: Vec<String>,
}

/// The plan of a profile, as far as the facts reach.
#[must_use]
pub fn plan(profile: Profile, facts: &Facts) -> Vec<Planned> {
    let mut known = facts.clone();
    known.set("profile", profile.name());
    let mut out = Vec::new();
    for step in BuildStep::ALL {
        let mut inputs = vec![("recipe".to_owned(), recipe(step))];
        let mut open = Vec::new();
        for name in step.inputs() {
            match known.0.get(*name) {
                Some(digest) => inputs.push(((*name).to_owned(), digest.clone())),
                None => open.push((*name).to_owned()),
            }
        }
        let key = open.is_empty().then(|| digest::key(step.name(), &inputs));
        if let Some(key) = &key {
            known.set(&format!("key:{}", step.name()), key.clone());
        }
        out.push(Planned { step, key, open });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_facts() -> Facts {
        let mut facts = Facts::default();
        let names = BuildStep::ALL.iter().flat_map(|s| s.inputs()).filter(|n| !n.starts_with("key:"));
        for name in names {
            facts.set(name, digest::bytes(name.as_bytes()));
        }
        facts
    }

    fn keys(facts: &Facts) -> BTreeMap<&'static str, String> {
        let steps = plan(Profile::Release, facts);
        steps.into_iter().map(|p| (p.step.name(), p.key.expect("all facts known"))).collect()
    }

    #[test]
    fn a_new_agent_rebuilds_root_and_disk_only() {
        let before = keys(&all_facts());
        let mut facts = all_facts();
        facts.set("bin.agent", "other");
        let after = keys(&facts);
        let changed: Vec<_> = before.keys().filter(|k| before[*k] != after[*k]).copied().collect();
        assert_eq!(changed, ["disk", "root"]);
    }

    #[test]
    fn each_program_of_init_rebuilds_where_it_is() {
        let before = keys(&all_facts());
        for (program, where_it_is) in [("bin.init", ["disk", "root"]), ("bin.initrd", ["disk", "initrd"])] {
            let mut facts = all_facts();
            facts.set(program, "other");
            let after = keys(&facts);
            let changed: Vec<_> = before.keys().filter(|k| before[*k] != after[*k]).copied().collect();
            assert_eq!(changed, where_it_is, "{program}");
        }
    }

    #[test]
    fn a_new_package_rebuilds_what_stands_on_the_tree() {
        let before = keys(&all_facts());
        let mut facts = all_facts();
        facts.set("debs", "other");
        let after = keys(&facts);
        let changed: Vec<_> = before.keys().filter(|k| before[*k] != after[*k]).copied().collect();
        assert_eq!(changed, ["base", "disk", "initrd", "root"]);
    }

    #[test]
    fn profiles_share_all_but_root_and_disk() {
        let facts = all_facts();
        let (a, b) = (plan(Profile::Release, &facts), plan(Profile::Test, &facts));
        let changed: Vec<_> = a.iter().zip(&b).filter(|(x, y)| x.key != y.key).map(|(x, _)| x.step).collect();
        assert_eq!(changed, [BuildStep::Root, BuildStep::Disk]);
    }

    #[test]
    fn keys_of_secure_boot_make_another_disk_alone() {
        let before = keys(&all_facts());
        let mut facts = all_facts();
        facts.set("secure-boot", "other");
        let after = keys(&facts);
        let changed: Vec<_> = before.keys().filter(|k| before[*k] != after[*k]).copied().collect();
        assert_eq!(changed, ["disk"]);
    }

    /// The tools run on the build's machine, and what comes from a file of the tree alone is the same for all.
    #[test]
    fn another_architecture_has_all_of_its_own_but_the_tools() {
        let before = keys(&all_facts());
        let mut facts = all_facts();
        facts.set("arch", "other");
        let after = keys(&facts);
        let same: Vec<_> = before.keys().filter(|k| before[*k] == after[*k]).copied().collect();
        assert_eq!(same, ["compile", "tools"]);
    }

    #[test]
    fn missing_facts_leave_keys_open_with_their_names() {
        let mut facts = all_facts();
        facts.0.remove("bin.initrd");
        let steps = plan(Profile::Release, &facts);
        let open: Vec<_> = steps.iter().filter(|p| p.key.is_none()).map(|p| p.step).collect();
        assert_eq!(open, [BuildStep::Initrd, BuildStep::Disk]);
        assert_eq!(steps[7].open, ["bin.initrd"]);
    }
}
