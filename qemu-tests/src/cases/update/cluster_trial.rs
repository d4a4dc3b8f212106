//! A node of a cluster that tries a version: it was staged from a stick, and the firmware has started slot B.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use orlop_harness::case::CaseContext;
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::vm::machine::Vm;
use serde_json::{Value, json};

use super::published::publish_bootable;
use super::staging::{PROGRAM, STAGE_LIMIT, trust, write_stick};
use super::trial::RESTART_LIMIT_S;

/// Name of the node.
pub(super) const VM: &str = "vm";

/// The node and its cluster.
pub(super) struct ClusterTrial {
    // Dropped first: its QEMU holds the cluster's network namespace.
    node: VmNode,
    pub(super) cluster: Cluster,
}

impl ClusterTrial {
    /// Boots the node, stages the version, and waits for the reset of the machine into its trial. `trial` is `update.trial` of the
    /// NodeConfig.
    pub(super) fn begin(cx: &CaseContext<'_>, trial: &Value) -> Result<ClusterTrial> {
        let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
        let mut node = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
        let published = publish_bootable(&cx.artefacts)?;
        let stick = cx.artefacts.join("stick");
        write_stick(&stick, &published.dir)?;
        node.add_disk(stick);
        node.start_by_firmware();
        let mut config = node.configuration(Some(cluster.token()));
        config["update"] = json!({"policy": "automatic", "trial": trial});
        node.boot_as(&config)?;
        node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
        node.give_range(&cluster)?;
        await_ready(&cluster, VM, READY_LIMIT_S)?;
        let vm = node.vm()?;
        trust(vm, &published)?;
        vm.expect_restart()?;
        let shell = vm.shell()?;
        shell.must("mkdir -p /run/orlop/stick && mount -o ro /dev/vdb /run/orlop/stick")?;
        let staged = shell.run(&format!("{PROGRAM} stick"), STAGE_LIMIT)?;
        ensure!(staged.status == 0 && staged.text.contains("is staged in slot B"), "{}", staged.text);
        vm.restarted(RESTART_LIMIT_S).context("the node does not try what it has staged")?;
        Ok(ClusterTrial { node, cluster })
    }

    /// The machine.
    pub(super) fn vm(&mut self) -> Result<&mut Vm> {
        self.node.vm()
    }

    /// Waits until the Node's condition `UpdateFailed` has these words; returns its message.
    pub(super) fn await_failed(&self, words: &str, limit_s: u64) -> Result<String> {
        let client = self.cluster.client();
        let is_shown = |node: &Node| {
            let conditions = node.status.as_ref()?.conditions.as_ref()?;
            let failed = conditions.iter().find(|c| c.type_ == "UpdateFailed" && c.status == "True")?;
            failed.message.as_ref().filter(|message| message.contains(words)).cloned()
        };
        let what = format!("the condition UpdateFailed with {words:?}");
        client.wait::<Node, _>(&client.all(), limit_s, &what, |all| all.get(VM).and_then(is_shown))
    }

    /// Waits until the node is as it was: Ready, and not cordoned any more. The agent uncordons it once it has seen its Node and has
    /// examined what the trial has left, which is a minute after the return at the earliest.
    pub(super) fn await_as_before(&self, limit_s: u64) -> Result<()> {
        await_ready(&self.cluster, VM, limit_s)?;
        let client = self.cluster.client();
        client.wait::<Node, _>(&client.all(), limit_s, "the node to be uncordoned", |all| {
            let spec = all.get(VM)?.spec.as_ref()?;
            (spec.unschedulable != Some(true)).then_some(())
        })
    }
}
