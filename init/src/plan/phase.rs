//! The phases of the initrd stage as data: their order, their names in the ledger, and what a failure means.

/// One phase of the initrd stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// /proc, /sys, /dev, /run, efivarfs.
    ApiFilesystems,
    /// cgroup v2.
    Cgroup,
    /// Kernel modules of the initrd.
    Modules,
    /// The disk that holds the root of this boot.
    Disk,
    /// Which slot may boot: boot record and ESP.
    Slot,
    /// The dm-verity device over it.
    Verity,
    /// The erofs root on /sysroot.
    Root,
    /// The state partition on /sysroot/var.
    State,
    /// The baked-in images in containerd's directory on it.
    Seed,
    /// The persistent machine id.
    MachineId,
    /// First-boot configuration collected, merged and written out.
    Configuration,
    /// Mounts moved, initramfs freed, systemd executed.
    Handover,
}

/// What happens when a phase fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The boot ends here: `failure::verdict` says how.
    Stop,
    /// The boot goes on, the ledger entry and a problem say what is missing.
    GoOn,
}

impl Phase {
    /// All phases in the order in which they run.
    pub const ORDER: [Phase; 12] = [
        Phase::ApiFilesystems,
        Phase::Cgroup,
        Phase::Modules,
        Phase::Disk,
        Phase::Slot,
        Phase::Verity,
        Phase::Root,
        Phase::State,
        Phase::Seed,
        Phase::MachineId,
        Phase::Configuration,
        Phase::Handover,
    ];

    /// Ledger name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::ApiFilesystems => "init.api-filesystems",
            Phase::Modules => "init.modules",
            Phase::Disk => "init.disk",
            Phase::Slot => "init.slot",
            Phase::Verity => "init.verity",
            Phase::Root => "init.root",
            Phase::State => "init.state",
            Phase::Seed => "init.seed",
            Phase::MachineId => "init.machine-id",
            Phase::Cgroup => "init.cgroup",
            Phase::Configuration => "init.configuration",
            Phase::Handover => "init.handover",
        }
    }

    /// Only what the root needs can stop a boot. Without state, configuration or a machine id the node is
    /// still worth reaching: it comes up degraded and says so.
    #[must_use]
    pub fn on_failure(self) -> OnFailure {
        match self {
            Phase::ApiFilesystems | Phase::Disk | Phase::Verity | Phase::Root | Phase::Handover => {
                OnFailure::Stop
            }
            Phase::Modules
            | Phase::Slot
            | Phase::State
            | Phase::Seed
            | Phase::MachineId
            | Phase::Cgroup
            | Phase::Configuration => OnFailure::GoOn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_the_declaration_and_names_are_distinct() {
        assert!(Phase::ORDER.is_sorted());
        let mut names: Vec<_> = Phase::ORDER.iter().map(|p| p.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Phase::ORDER.len());
        assert!(names.iter().all(|n| n.starts_with("init.")));
    }

    #[test]
    fn each_phase_that_can_fail_has_a_section_of_the_runbook() {
        let page = include_str!("../../../docs/runbooks/boot.md");
        let has = |name: &str| page.lines().any(|line| line.strip_prefix("## ") == Some(name));
        let own = Phase::ORDER
            .iter()
            .map(|phase| phase.name())
            .chain([crate::plan::install::PHASE, crate::plan::reset::PHASE]);
        // The other stages name their phases where they run them.
        let sources = [
            include_str!("../exec/bringup.rs"),
            include_str!("../exec/change.rs"),
            include_str!("../exec/configure.rs"),
        ];
        let is_phase = |text: &&str| {
            ["bringup.", "config.", "containerd.ready", "provision."]
                .iter()
                .any(|stage| text.starts_with(stage))
                && text.chars().all(|c| c.is_ascii_lowercase() || matches!(c, '.' | '-'))
        };
        let phases: Vec<&str> =
            sources.iter().flat_map(|source| source.split('"').skip(1).step_by(2)).filter(is_phase).collect();
        assert!(phases.len() > 10, "{phases:?}");
        for name in own.chain(phases) {
            assert!(has(name), "docs/runbooks/boot.md lacks `## {name}`");
        }
    }
}
