//! containerd of the image: its plugins, and the settings of its Go runtime. The check runs in the VM of `boot/*`.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::native::config::disabled_plugins;
use orlop_init::plan::go_memory;

use crate::cases::boot::shared_vm::{HERE, node};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "boot/containerd",
    6,
    "containerd has loaded all of its plugins but those that are off, and has Go's settings for this machine",
    containerd,
)];

/// A few that CRI does not work without, as type and id.
const NEEDED: [(&str, &str); 4] = [
    ("io.containerd.grpc.v1", "cri"),
    ("io.containerd.grpc.v1", "events"),
    ("io.containerd.sandbox.controller.v1", "shim"),
    ("io.containerd.transfer.v1", "local"),
];

fn containerd(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let list = node.must("ctr plugins ls")?;
    let plugins: Vec<(&str, &str, &str)> = list.lines().filter_map(plugin).collect();
    for needed in NEEDED {
        let is_loaded = plugins.iter().any(|(kind, id, status)| (*kind, *id) == needed && *status == "ok");
        ensure!(is_loaded, "{needed:?} is not loaded:\n{list}");
    }
    let broken: Vec<_> = plugins.iter().filter(|(_, _, status)| *status == "error").collect();
    ensure!(broken.is_empty(), "plugins that failed: {broken:?}");
    let off = off();
    let loaded: Vec<_> = plugins.iter().filter(|(kind, id, _)| off.contains(&(*kind, *id))).collect();
    ensure!(loaded.is_empty(), "plugins that are off and loaded: {loaded:?}");
    let meminfo = node.must("cat /proc/meminfo")?;
    let wanted = go_memory::environment(&meminfo).context("no MemTotal in /proc/meminfo")?;
    let environment = node.must("tr '\\0' '\\n' </proc/$(systemctl show -P MainPID containerd)/environ")?;
    for line in wanted.lines() {
        ensure!(environment.lines().any(|found| found == line), "containerd has no {line}:\n{environment}");
    }
    Ok(())
}

/// Type, id and status of a line of `ctr plugins ls`; `None` for the line of titles.
fn plugin(line: &str) -> Option<(&str, &str, &str)> {
    let mut words = line.split_whitespace();
    let (kind, id) = (words.next()?, words.next()?);
    kind.starts_with("io.containerd.").then_some((kind, id, words.last()?))
}

/// The plugins that are off, as type and id.
fn off() -> Vec<(&'static str, &'static str)> {
    disabled_plugins().into_iter().filter_map(|name| name.rsplit_once('.')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_have_type_id_and_status() {
        assert_eq!(plugin("TYPE                ID     PLATFORMS      STATUS    "), None);
        let line = "io.containerd.cri.v1      runtime        linux/amd64    ok        ";
        assert_eq!(plugin(line), Some(("io.containerd.cri.v1", "runtime", "ok")));
    }

    #[test]
    fn the_configuration_turns_nothing_off_that_cri_needs() {
        let off = off();
        assert!(off.contains(&("io.containerd.monitor.task.v1", "cgroups")), "{off:?}");
        assert!(off.contains(&("io.containerd.internal.v1", "opt")), "{off:?}");
        for needed in NEEDED {
            assert!(!off.contains(&needed), "{needed:?}");
        }
        // CRI asks for each of these types when it starts.
        for kind in ["io.containerd.image-verifier.v1", "io.containerd.nri.v1", "io.containerd.warning.v1"] {
            assert!(off.iter().all(|(of, _)| *of != kind), "{kind}");
        }
    }
}
