//! The cases of a run: the fixed set, the cases of the areas that a change touches, all others. Pure.
//!
//! `cargo selftest` runs the fixed set. `.ci/run` sets a time limit, and the runner adds cases until that limit: some
//! that several runs have left out, then those of the touched areas, then all others ([`crate::schedule`]).
//! `cargo selftest --all` runs every case.

use std::collections::BTreeSet;

use crate::case::{Case, Level};

/// An area of cases: the part of a case's name before the slash.
pub type Area = &'static str;

/// All areas.
pub const AREAS: &[Area] = &[
    "addons",
    "api",
    "arm64",
    "boot",
    "config",
    "console",
    "controlplane",
    "defence",
    "join",
    "lean",
    "lifecycle",
    "manage",
    "net",
    "places",
    "provision",
    "reset",
    "resources",
    "shutdown",
    "time",
    "trust",
    "update",
    "volumes",
];

/// Areas without a case of this level in the fixed set. A run from nothing has no time to compile what cases of the add-ons need, and
/// those of resources in VMs take a quarter of an hour next to other work. Installations and boots from emulated sticks and controllers
/// take minutes each, arm64 needs an image of its own, and the cases of consoles, configurations, control planes, small machines,
/// management, networks, platforms, factory resets, clocks, Secure Boot and slots take minutes, too.
pub const NOT_FIXED: &[(Area, Level)] = &[
    ("addons", Level::L4n),
    ("addons", Level::L4v),
    ("arm64", Level::L4v),
    ("config", Level::L4v),
    ("console", Level::L4v),
    ("controlplane", Level::L4v),
    ("lean", Level::L4v),
    ("manage", Level::L4n),
    ("manage", Level::L4v),
    ("net", Level::L4n),
    ("net", Level::L4v),
    ("places", Level::L4v),
    ("provision", Level::L4v),
    ("reset", Level::L4v),
    ("resources", Level::L4v),
    ("time", Level::L4v),
    ("trust", Level::L4v),
    ("update", Level::L4v),
];

/// The fixed set: the steadiest cases, one at least for each area and level but those of [`NOT_FIXED`]. Every run
/// includes all of them, so their sum must stay small: about five minutes on two cores without KVM.
pub const FIXED: &[&str] = &[
    "api/healthz-auth",
    "api/logs",
    "api/serving-certificate",
    "boot/cgroup2",
    "boot/flipped-byte",
    "boot/inspect",
    "boot/ledger",
    "boot/uefi",
    "boot/verity-root",
    "defence/pids",
    "defence/storage-limits",
    "join/container-fields",
    "join/control-plane",
    "join/node-ready",
    "join/pod",
    "join/pod-delete",
    "join/wrong-clock",
    "lifecycle/agent-killed-50",
    "lifecycle/cri-contract",
    "lifecycle/static-pod-add",
    "lifecycle/static-pod-change",
    "lifecycle/static-pod-remove",
    "resources/processors",
    "shutdown/power-button",
    "volumes/files",
    "volumes/huge-pages",
    "volumes/sub-path",
    "volumes/update",
];

/// Cases that have not passed yet in their present form. `.ci/run` leaves them out, because their failure says nothing about a change;
/// `--all` and `run` have them. A case leaves this list with its first pass, in the commit that mends it.
pub const UNTRIED: &[&str] = &[
    "addons/cni-replaced",
    "addons/flannel",
    "addons/flannel-vm",
    "addons/kube-router",
    "addons/kube-router-vm",
    "addons/metrics-server",
    "addons/multus",
    "addons/services-vm",
    "addons/services-vm-ipvs",
    "arm64/boot",
    "lifecycle/shared-shims",
    "manage/upgrade",
    "update/fleet",
];

/// Reason why a run includes a case. The order is the order in which the runner gives time to cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// In [`FIXED`]: the runner begins the case even if the time limit has passed.
    Fixed,
    /// The last runs had no time for the case. [`crate::schedule`] finds these in the history.
    Overdue,
    /// The change touches the case's area.
    Touched,
    /// Every other case.
    Other,
}

/// The tier of a case, in a run for a change that touches these areas. Of earlier runs this knows nothing.
#[must_use]
pub fn tier(case: &Case, touched: &BTreeSet<Area>) -> Tier {
    if FIXED.contains(&case.name) {
        Tier::Fixed
    } else if touched.contains(area(case)) {
        Tier::Touched
    } else {
        Tier::Other
    }
}

/// The area of a case.
#[must_use]
pub fn area(case: &Case) -> &'static str {
    case.name.split_once('/').map_or(case.name, |(area, _)| area)
}

/// The areas that a change of these files touches. Paths are relative to the checkout's root.
#[must_use]
pub fn touched<'a>(paths: impl IntoIterator<Item = &'a str>) -> BTreeSet<Area> {
    paths.into_iter().flat_map(areas_of).copied().collect()
}

/// Folders and files, and the areas whose cases would notice a fault in them. The longest prefix of a path decides; a path
/// without a prefix here touches every area.
const PLACES: &[(&str, &[Area])] = &[
    (".ci/", &[]),
    (".gitignore", &[]),
    ("LICENSE", &[]),
    ("README.md", &[]),
    ("agent/apiserver/", &["join", "api"]),
    ("agent/cni/", &["join", "boot", "addons"]),
    ("agent/ctl/", &["manage", "config"]),
    ("agent/ctl/src/controlplane/", &["controlplane"]),
    ("agent/node-api/", &["manage", "config"]),
    ("agent/core/src/admission/", &["join", "defence"]),
    ("agent/core/src/allocation/", &["join"]),
    ("agent/core/src/certs/", &["join", "api"]),
    ("agent/core/src/console/", &["console"]),
    ("agent/core/src/checkers/", &[]),
    ("agent/core/src/clock/", &["time", "join"]),
    ("agent/core/src/csi_drivers/", &["volumes"]),
    ("agent/core/src/eviction/", &["defence", "lean"]),
    ("agent/core/src/images/", &["defence", "join"]),
    ("agent/core/src/lease/", &["join"]),
    ("agent/kubelet-api/src/logs/", &["api", "defence"]),
    ("agent/kubelet-api/src/metrics/", &["api"]),
    ("agent/core/src/mirror_pods/", &["join"]),
    ("agent/kubelet-api/src/node_logs/", &["api"]),
    ("agent/kubelet-api/src/node_metrics/", &["manage"]),
    ("agent/core/src/node_shutdown/", &["shutdown"]),
    ("agent/core/src/node_status/", &["join"]),
    ("agent/core/src/pod_worker/", &["lifecycle", "join"]),
    ("agent/core/src/pod_actions/", &["lifecycle", "join"]),
    ("agent/core/src/probe/", &["lifecycle"]),
    ("agent/core/src/shim_groups", &["lifecycle"]),
    ("agent/types/src/resources/", &["defence", "join"]),
    ("agent/types/src/restart/", &["lifecycle"]),
    ("agent/kubelet-api/src/server_policy/", &["api"]),
    ("agent/kubelet-api/src/stats/", &["api", "defence"]),
    ("agent/core/src/resource_claims/", &["resources"]),
    ("agent/core/src/resource_managers/", &["resources"]),
    ("agent/linux/src/machine_topology/", &["resources"]),
    ("agent/managers/", &["resources"]),
    ("agent/core/src/status/", &["join", "lifecycle"]),
    ("agent/core/src/status_manager/", &["join"]),
    ("agent/kubelet-api/src/streaming/", &["api"]),
    ("agent/volumes/src/", &["volumes"]),
    ("agent/core/tests/", &[]),
    ("agent/cri/", &["lifecycle", "api"]),
    ("agent/daemon/src/cluster/", &["join"]),
    ("agent/daemon/src/cluster/clock.rs", &["time", "join"]),
    ("agent/core/src/plugin_registrations/", &["resources", "volumes"]),
    ("agent/daemon/src/claims/", &["resources"]),
    ("agent/daemon/src/devices/", &["resources"]),
    ("agent/daemon/src/plugin_watcher/", &["resources", "volumes"]),
    ("agent/daemon/src/volumes/", &["volumes"]),
    ("agent/daemon/src/node/eviction/", &["defence"]),
    ("agent/daemon/src/pods/execute/", &["volumes", "lifecycle"]),
    ("agent/daemon/src/images/", &["defence", "join"]),
    ("agent/daemon/src/pods/probes_and_hooks/", &["lifecycle", "defence"]),
    ("agent/daemon/src/serving/", &["api"]),
    ("agent/daemon/src/node/shutdown", &["shutdown"]),
    ("agent/daemon/src/pods/pod_values/", &["volumes", "join"]),
    ("agent/daemon/src/update/", &["update"]),
    ("agent/daemon/tests/", &[]),
    ("agent/faults/", &[]),
    ("agent/linux/src/cgroup", &["defence", "boot"]),
    ("agent/linux/src/disk_use.rs", &["defence", "api"]),
    ("agent/linux/src/kernel_files.rs", &["manage"]),
    ("agent/linux/src/logind", &["shutdown"]),
    ("agent/linux/src/shim", &["lifecycle"]),
    ("agent/linux/src/systemd_units.rs", &["manage"]),
    ("agent/linux/src/timex.rs", &["manage"]),
    ("agent/linux/src/volumes", &["volumes"]),
    ("agent/linux/tests/", &[]),
    ("agent/netlink/", &["join", "boot"]),
    ("agent/plugins/", &["volumes", "join"]),
    ("agent/provision/", &["provision"]),
    ("agent/server/", &["api"]),
    ("agent/sim/", &[]),
    ("agent/tidy/", &[]),
    ("agent/update/", &["update", "manage"]),
    ("clippy.toml", &[]),
    ("config/src/boot_trust/", &["boot", "trust", "update"]),
    ("config/src/change/", &["config"]),
    ("config/src/kubelet/", &["lifecycle", "join"]),
    ("config/src/node/", &["boot", "net"]),
    ("config/src/release/", &["update"]),
    ("config/src/slots/", &["boot", "update"]),
    ("config/src/slots/reset.rs", &["reset"]),
    ("deny.toml", &[]),
    ("docs/", &[]),
    ("docs/monitoring/", &["manage"]),
    ("image/", &["boot", "shutdown"]),
    ("image/apparmor/", &["boot", "defence"]),
    ("image/src/export/", &[]),
    ("image/src/secure_boot/", &["trust"]),
    ("image/src/update/", &[]),
    ("init/", &["boot", "shutdown"]),
    ("init/src/exec/disk_copy.rs", &["boot", "places"]),
    ("init/src/exec/install.rs", &["boot", "places"]),
    ("init/src/plan/install.rs", &["boot", "places"]),
    ("init/src/exec/change.rs", &["config"]),
    ("init/src/exec/configure.rs", &["provision", "config"]),
    ("init/src/exec/platform.rs", &["boot", "provision"]),
    ("init/src/exec/carried.rs", &["reset"]),
    ("init/src/exec/reset", &["reset"]),
    ("init/src/exec/slot.rs", &["boot", "update"]),
    ("init/src/exec/tpm.rs", &["boot", "trust"]),
    ("init/src/plan/arbiter", &["boot", "update"]),
    ("init/src/plan/esp", &["boot", "update"]),
    ("init/src/plan/agent_memory.rs", &["boot", "lean"]),
    ("init/src/plan/go_memory.rs", &["boot", "lean"]),
    ("init/src/plan/loader_order.rs", &["boot", "update"]),
    ("init/src/plan/carried_files.rs", &["reset"]),
    ("init/src/plan/reset", &["reset"]),
    ("init/src/plan/change.rs", &["config"]),
    ("init/src/plan/platform.rs", &["boot", "provision"]),
    ("init/src/plan/reconfigure.rs", &["provision", "config"]),
    ("init/src/plan/tpm.rs", &["boot", "trust"]),
    ("mkosi/", &["boot", "shutdown"]),
    ("qemu-tests/conformance/", &[]),
    ("qemu-tests/controlplane/", &["join", "addons"]),
    ("qemu-tests/coredns/", &["addons"]),
    ("qemu-tests/flannel", &["addons"]),
    ("qemu-tests/harness/src/cluster/", &["join", "volumes", "api"]),
    ("qemu-tests/harness/src/cluster/addons", &["addons"]),
    ("qemu-tests/harness/src/cluster/dns.rs", &["addons"]),
    ("qemu-tests/harness/src/cluster/hosted_plane.rs", &["controlplane"]),
    ("qemu-tests/harness/src/cluster/plane_images.rs", &["controlplane"]),
    ("qemu-tests/harness/src/cluster/flags.rs", &["join", "volumes", "api", "addons"]),
    ("qemu-tests/harness/src/cluster/plane.rs", &["join", "volumes", "api", "addons"]),
    ("qemu-tests/harness/src/cluster/requests", &["addons"]),
    ("qemu-tests/harness/src/cluster/wires.rs", &["join", "volumes", "api", "addons"]),
    ("qemu-tests/harness/src/conformance", &[]),
    ("qemu-tests/harness/src/native/", &["lifecycle"]),
    ("qemu-tests/harness/src/native/connect_proxy.rs", &["net"]),
    ("qemu-tests/harness/src/native/config.rs", &["lifecycle", "addons"]),
    ("qemu-tests/harness/src/native/steps.rs", &["volumes", "resources"]),
    ("qemu-tests/harness/src/vm/", &["boot", "shutdown"]),
    ("qemu-tests/harness/src/vm/screen.rs", &["console"]),
    ("qemu-tests/harness/src/vm/tpm.rs", &["trust"]),
    ("qemu-tests/kube-router/", &["addons"]),
    ("qemu-tests/metrics-server/", &["api", "addons"]),
    ("qemu-tests/multus/", &["addons"]),
    ("qemu-tests/promtool/", &["manage"]),
    ("qemu-tests/src/bench", &[]),
    ("qemu-tests/src/cases/addons", &["addons"]),
    ("qemu-tests/src/cases/api", &["api"]),
    ("qemu-tests/src/cases/arm64", &["arm64"]),
    ("qemu-tests/src/cases/boot", &["boot"]),
    ("qemu-tests/src/cases/boot/bash_pod.rs", &["boot", "defence"]),
    ("qemu-tests/src/cases/config", &["config"]),
    ("qemu-tests/src/cases/console", &["console"]),
    ("qemu-tests/src/cases/controlplane", &["controlplane"]),
    ("qemu-tests/src/cases/defence", &["defence"]),
    ("qemu-tests/src/cases/join", &["join"]),
    ("qemu-tests/src/cases/lean", &["lean"]),
    ("qemu-tests/src/cases/lifecycle", &["lifecycle"]),
    ("qemu-tests/src/cases/manage", &["manage"]),
    ("qemu-tests/src/cases/net", &["net"]),
    ("qemu-tests/src/cases/places", &["places"]),
    ("qemu-tests/src/cases/provision", &["provision"]),
    ("qemu-tests/src/cases/reset", &["reset"]),
    ("qemu-tests/src/cases/resources", &["resources"]),
    ("qemu-tests/src/cases/shutdown", &["shutdown"]),
    ("qemu-tests/src/cases/time", &["time"]),
    ("qemu-tests/src/cases/trust", &["trust"]),
    ("qemu-tests/src/cases/update", &["update"]),
    ("qemu-tests/src/cases/volumes", &["volumes"]),
    ("qemu-tests/src/cases/volumes/killed_steps.rs", &["volumes", "resources"]),
    ("rustfmt.toml", &[]),
];

fn areas_of(path: &str) -> &'static [Area] {
    let place = PLACES.iter().filter(|(prefix, _)| path.starts_with(prefix));
    place.max_by_key(|(prefix, _)| prefix.len()).map_or(AREAS, |(_, areas)| *areas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::workspace;

    #[test]
    fn the_longest_prefix_decides_and_an_unknown_path_touches_everything() {
        assert_eq!(touched(["docs/reference/boot.md", "agent/sim/src/world.rs"]), BTreeSet::new());
        assert_eq!(touched(["agent/volumes/src/plan.rs"]), BTreeSet::from(["volumes"]));
        assert_eq!(
            touched(["agent/server/src/lib.rs", "init/src/main.rs"]),
            BTreeSet::from(["api", "boot", "shutdown"])
        );
        assert_eq!(
            touched(["qemu-tests/harness/src/native/steps.rs"]),
            BTreeSet::from(["resources", "volumes"])
        );
        assert_eq!(touched(["agent/types/src/machine.rs"]), AREAS.iter().copied().collect());
        assert_eq!(touched(["Cargo.lock"]).len(), AREAS.len());
    }

    #[test]
    fn every_place_is_a_place_of_this_checkout() {
        for (prefix, areas) in PLACES {
            let path = workspace().join(prefix);
            let (dir, start) = match prefix.strip_suffix('/') {
                Some(_) => (path.as_path(), ""),
                None => (path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap()),
            };
            let mut names = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{prefix}: {e}"));
            let there = names.any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with(start));
            assert!(there, "{prefix} is not there any more");
            assert!(areas.iter().all(|area| AREAS.contains(area)), "{prefix}");
        }
    }

    #[test]
    fn a_case_outside_the_fixed_set_is_touched_by_its_area() {
        let case =
            |name| Case { name, level: Level::L4n, expected_s: 1, about: "", group: None, run: |_| Ok(()) };
        let volumes = BTreeSet::from(["volumes"]);
        assert_eq!(tier(&case("volumes/files"), &volumes), Tier::Fixed);
        assert_eq!(tier(&case("volumes/nfs"), &volumes), Tier::Touched);
        assert_eq!(tier(&case("boot/second-boot"), &volumes), Tier::Other);
    }
}
