//! Disks of a real iSCSI target in a booted VM: the kernel's initiator, open-iscsi's programs, udev's links.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Secret};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready, uid_of};
use orlop_harness::cluster::flags::ADDRESS;
use orlop_harness::cluster::iscsi_target::{self, IQN, PASSWORD, PORTS, USER};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::VmNode;
use serde_json::{Value, json};

use crate::cases::volumes::claims::{create, put_claim, put_volume};
use crate::cases::volumes::csi_block::{as_device, put_device};
use crate::cases::volumes::shared_vm::{Fixture, HERE, LIMIT_S, await_words, boot, delete, pod};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/iscsi-target",
    150,
    "disks of a real target are logged in to over both portals with CHAP, formatted once, mounted and mapped, over kills of the agent; sessions end with the last disk, and a second login finds the data",
    target_disks,
)];

const VM: &str = "vm";
/// The logs of both sides' programs and of the kernel.
const SAID: &str = "journalctl -u kubelet -u iscsid -n 100 --no-pager -q; journalctl -k -n 40 --no-pager -q; \
                    ls -l /dev/disk/by-path /dev/sd*; true";
/// The unit with a file system, and the one that is a device.
const UNITS: [u32; 2] = [1, 2];
const UNIT_BYTES: u64 = 16 << 20;
/// The words in the file system, and on the device.
const WORDS: [&str; 2] = ["kept", "raw"];

fn portal() -> String {
    format!("{ADDRESS}:{}", PORTS[0])
}

fn source(lun: u32) -> Value {
    json!({"iscsi": {"targetPortal": portal(), "portals": [format!("{ADDRESS}:{}", PORTS[1])], "iqn": IQN,
        "lun": lun, "chapAuthSession": true, "secretRef": {"name": "iscsi-target", "namespace": "default"}}})
}

fn await_in_use(cluster: &Cluster, luns: &[u32]) -> Result<()> {
    let unique = |lun: &u32| format!("kubernetes.io/iscsi/{}:{IQN}:{lun}", portal());
    let wanted: BTreeSet<String> = luns.iter().map(unique).collect();
    let client = cluster.client();
    client.wait::<Node, _>(&client.all(), LIMIT_S, &format!("units {luns:?} in use"), |all| {
        let status = all.get(VM)?.status.as_ref()?;
        let of_target = status.volumes_in_use.iter().flatten().filter(|name| name.contains("iscsi"));
        (of_target.cloned().collect::<BTreeSet<_>>() == wanted).then_some(())
    })
}

/// Mount point of a disk's file system for all pods.
fn global(lun: u32) -> String {
    let root = "/var/lib/kubelet/plugins/kubernetes.io/iscsi/iface-default";
    format!("{root}/{}-{IQN}-lun-{lun}", portal())
}

/// Number of mounts at the path.
fn mounted(vm: &mut VmNode, at: &str) -> Result<usize> {
    let table = vm.vm()?.shell()?.must("cat /proc/self/mountinfo")?;
    Ok(table.lines().filter(|line| line.split(' ').nth(4) == Some(at)).count())
}

fn target_disks(cx: &mut CaseContext<'_>) -> Result<()> {
    let artefacts = cx.artefacts.clone();
    let fixture = cx.shared_or(boot)?;
    let done = disks(fixture);
    if done.is_err() {
        // The logs of both sides' programs are on the VM's disk only.
        let said = fixture.vm.vm()?.shell()?.must(SAID)?;
        fs::write(artefacts.join("journal"), said).context("write what the VM said")?;
    }
    done
}

fn disks(Fixture { vm, target, cluster }: &mut Fixture) -> Result<()> {
    let [lun, raw] = UNITS;
    for unit in UNITS {
        target.put_unit(unit, UNIT_BYTES)?;
    }
    let secret = json!({"metadata": {"name": "iscsi-target"}, "type": "kubernetes.io/iscsi-chap",
        "stringData": {"node.session.auth.username": USER, "node.session.auth.password": PASSWORD}});
    let client = cluster.client();
    client.create::<Secret>(&client.of("default"), secret)?;
    put_volume(cluster, "disk-of-target", &source(lun), "ReadWriteOnce")?;
    put_claim(cluster, "disk-of-target", "ReadWriteOnce")?;
    put_device(cluster, "raw-of-target", &source(raw))?;

    // Without the initiator's programs the pod's event reports this; the pod runs as soon as they exist.
    create(cluster, pod("mounts", "disk-of-target"))?;
    await_words(cluster, "mounts", "this node has no program \"iscsiadm\"", |m, words| m.contains(words))?;
    iscsi_target::install(vm.vm()?.shell()?)?;
    await_pod_ready(cluster, "mounts", LIMIT_S)?;
    await_in_use(cluster, &[lun])?;
    ensure!(mounted(vm, &global(lun))? == 1, "{} is not mounted once", global(lun));
    // Drivers of clouds find their disks by such a name.
    let by_id = vm.vm()?.shell()?.must("ls /dev/disk/by-id")?;
    ensure!(by_id.lines().any(|link| link.starts_with("scsi-")), "disks have no names: {by_id}");
    let sessions = target.sessions()?;
    ensure!(sessions == PORTS.len(), "{sessions} sessions over {} portals", PORTS.len());
    let of_pod = format!(
        "/var/lib/kubelet/pods/{}/volumes/kubernetes.io~iscsi/pv-disk-of-target",
        uid_of(cluster, "mounts")?
    );
    ensure!(mounted(vm, &of_pod)? == 1, "{of_pod} is not mounted once");
    vm.vm()?.shell()?.must(&format!("echo {} > {of_pod}/words && sync {of_pod}/words", WORDS[0]))?;

    // Another agent maps another unit of the same sessions, and does not touch the first.
    vm.while_agent_is_dead(|| create(cluster, as_device(pod("maps", "raw-of-target"))))?;
    await_pod_ready(cluster, "maps", LIMIT_S)?;
    await_in_use(cluster, &UNITS)?;
    ensure!(mounted(vm, &global(lun))? == 1, "{} is not mounted once any more", global(lun));
    ensure!(target.sessions()? == sessions, "{} sessions, and not {sessions}", target.sessions()?);
    let link = format!(
        "/var/lib/kubelet/pods/{}/volumeDevices/kubernetes.io~iscsi/pv-raw-of-target",
        uid_of(cluster, "maps")?
    );
    vm.vm()?.shell()?.must(&format!("echo {} | dd of={link} conv=notrunc,fsync status=none", WORDS[1]))?;
    let written = target.begins(raw, WORDS[1].len())?;
    ensure!(written == WORDS[1].as_bytes(), "the target has {written:?}");

    // The first pod is deleted while the agent is dead: the second pod keeps the sessions, which end with it.
    vm.while_agent_is_dead(|| delete(cluster, "mounts"))?;
    await_pod_gone(cluster, "mounts", LIMIT_S)?;
    await_in_use(cluster, &[raw])?;
    ensure!(mounted(vm, &global(lun))? == 0, "{} is still mounted", global(lun));
    ensure!(target.sessions()? == sessions, "a session of another pod's disk has ended");
    delete(cluster, "maps")?;
    await_pod_gone(cluster, "maps", LIMIT_S)?;
    await_in_use(cluster, &[])?;
    let left = target.sessions()?;
    ensure!(left == 0, "{left} sessions are left");
    let links = "ls /dev/disk/by-path | grep -c iscsi; true";
    let links = vm.vm()?.shell()?.must(links)?;
    ensure!(links.trim() == "0", "{links} links to units are left");

    // A new log-in, and no second formatting.
    create(cluster, pod("again", "disk-of-target"))?;
    await_pod_ready(cluster, "again", LIMIT_S)?;
    let found = vm.vm()?.shell()?.must(&format!("cat {}/words", global(lun)))?;
    ensure!(found.trim() == WORDS[0], "what was written is lost: {found:?}");
    delete(cluster, "again")?;
    await_pod_gone(cluster, "again", LIMIT_S)?;
    await_in_use(cluster, &[])?;
    ensure!(target.sessions()? == 0, "{} sessions are left", target.sessions()?);
    let log = vm.vm()?.shell()?.must(&format!("journalctl -u kubelet --grep {PASSWORD} -q; true"))?;
    ensure!(log.trim().is_empty(), "a Secret is in the agent's log: {log}");
    cluster.ensure_nothing_forbidden().context("at the end")
}
