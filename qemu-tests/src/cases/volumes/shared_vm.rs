//! Volumes that need a VM: a machine whose second disk has a driver, a policy and an initiator for the cases that need
//! them, and a disk that grows (the test machine may lack CAP_SYS_RESOURCE).
//!
//! Cases: `volumes/disk-grows`, `volumes/huge-pages`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_event, await_pod_gone, await_pod_ready, await_ready, uid_of};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::iscsi_target::{self, Target};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::cluster::selinux::{self, KERNEL, POLICY};
use orlop_harness::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use orlop_harness::run::Run;
use serde_json::{Value, json};

use crate::cases::volumes::claims::{create, put_claim, put_volume};
use crate::cases::volumes::csi_claims::{await_grown, is_to_grow, touch};
use crate::cases::volumes::power_cut::PROGRAM;

/// The cases that share the machine.
pub(crate) const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("volumes-vm") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/disk-grows",
        90,
        "what is on a disk of the VM grows under its pod when the disk and its claim have grown",
        disk_grows,
    ),
    HERE.case(
        "volumes/huge-pages",
        60,
        "a pod has an emptyDir of huge pages, within its limit, over a kill of the agent, and leaves nothing",
        huge_pages,
    ),
];

const VM: &str = "vm";
/// Limit of a step under TCG on a busy machine, seconds.
pub(crate) const LIMIT_S: u64 = 90;

/// A pod of the VM with the claim's file system at `/d`.
pub(crate) fn pod(name: &str, claim: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        "containers": [{"name": "c", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
            "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}})
}

/// Waits for a mount event about the pod whose message fulfils `fits` for `words`.
pub(crate) fn await_words(
    cluster: &Cluster,
    about: &str,
    words: &str,
    fits: fn(&str, &str) -> bool,
) -> Result<()> {
    let client = cluster.client();
    client.wait::<Event, _>(&client.of("default"), LIMIT_S, &format!("{words:?} about {about}"), |all| {
        all.values()
            .any(|e| {
                e.reason.as_deref() == Some("FailedMount")
                    && e.involved_object.name.as_deref() == Some(about)
                    && e.message.as_deref().is_some_and(|m| fits(m, words))
            })
            .then_some(())
    })
}

pub(crate) fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.kubectl(&["delete", "pod", name, "--wait=false"]).map(drop)
}

/// The machine.
pub(crate) struct Fixture {
    // Dropped first: it has a wire of the cluster.
    pub(crate) vm: VmNode,
    pub(crate) target: Target,
    pub(crate) cluster: Cluster,
}

/// Boots it; driver, policy and initiator are there, and none of them is in force.
pub(crate) fn boot(run: &Arc<Run>, artefacts: &Path) -> Result<Fixture> {
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let target = Target::start(&mut cluster)?;
    let own = std::env::current_exe().context("find this program")?;
    let mut files: Vec<(PathBuf, String)> =
        vec![(own, PROGRAM.to_owned()), (selinux::policy(artefacts)?, POLICY.to_owned())];
    files.extend(iscsi_target::initiator(run)?);
    let files: Vec<(&Path, &str)> = files.iter().map(|(file, to)| (file.as_path(), to.as_str())).collect();
    let disk = SecondDisk::make(artefacts, &files, &[])?;
    let mut vm = VmNode::plug(&mut cluster, artefacts, VM)?;
    vm.add_disk(disk.file());
    vm.tell_kernel(KERNEL);
    vm.configure("featureGates", json!({"SELinuxMount": true}));
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    let shell = vm.vm()?.shell()?;
    iscsi_target::make_home(shell)?;
    disk.unpack(shell)?;
    Ok(Fixture { vm, target, cluster })
}

/// Size of the file system at a directory.
fn bytes_of(vm: &mut VmNode, at: &str) -> Result<u64> {
    let text = vm.vm()?.shell()?.must(&format!("mountpoint -q {at} && stat -f -c '%b %S' {at}"))?;
    let mut figures = text.split_whitespace().map(str::parse::<u64>);
    let (blocks, bytes) = (figures.next().context("no blocks")??, figures.next().context("no size")??);
    Ok(blocks * bytes)
}

fn disk_grows(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster, .. } = cx.shared_or(boot)?;
    let (file, mib) =
        ("/var/lib/kubelet/disk", |from: u32| format!("bs=1M seek={from} count=16 conv=notrunc"));
    let shell = vm.vm()?.shell()?;
    shell.must(&format!("dd if=/dev/zero of={file} {} status=none", mib(0)))?;
    let device = shell.must(&format!("modprobe loop; losetup -f --show {file}"))?.trim().to_owned();
    let here = json!([{"matchExpressions": [{"key": LABEL.0, "operator": "In", "values": [LABEL.1]}]}]);
    let source =
        json!({"local": {"path": device}, "nodeAffinity": {"required": {"nodeSelectorTerms": here}}});
    put_volume(cluster, "disk", &source, "ReadWriteOnce")?;
    put_claim(cluster, "disk", "ReadWriteOnce")?;
    create(cluster, pod("disk", "disk"))?;
    await_pod_ready(cluster, "disk", LIMIT_S)?;
    let at = "/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/pv-disk";
    let before = bytes_of(vm, at)?;
    ensure!(before < 16 << 20, "16 MiB have {before}");
    let shell = vm.vm()?.shell()?;
    shell.must(&format!("dd if=/dev/zero of={file} {} status=none && losetup -c {device}", mib(16)))?;
    is_to_grow(cluster, "disk", "32Mi")?;
    touch(cluster, "disk", "1")?;
    await_grown(cluster, "disk", "32Mi", LIMIT_S)?;
    await_event(cluster, "FileSystemResizeSuccessful", "disk", LIMIT_S)?;
    let after = bytes_of(vm, at)?;
    ensure!(after > 24 << 20, "32 MiB have {after}");
    delete(cluster, "disk")?;
    await_pod_gone(cluster, "disk", LIMIT_S)?;
    ensure!(bytes_of(vm, at).is_err(), "the disk is still mounted");
    vm.vm()?.shell()?.must(&format!("losetup -d {device}"))?;
    cluster.ensure_nothing_forbidden()
}

fn huge_pages(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster, .. } = cx.shared_or(boot)?;
    let reserve = |vm: &mut VmNode, pages: u32| -> Result<()> {
        let told = "echo {pages} > /proc/sys/vm/nr_hugepages && systemctl restart kubelet";
        vm.vm()?.shell()?.must(&told.replace("{pages}", &pages.to_string()))?;
        // The kernel allocates as many pages as it finds.
        let capacity = format!("{}Mi", 2 * pages);
        let client = cluster.client();
        client.wait::<Node, _>(&client.all(), LIMIT_S, &format!("{capacity} of huge pages"), |all| {
            let all = all.get(VM)?.status.as_ref()?.capacity.as_ref()?;
            let there = all.get("hugepages-2Mi").map_or("0", |q| q.0.as_str());
            (there == capacity || (pages == 0 && there == "0")).then_some(())
        })
    };
    reserve(vm, 8)?;
    let mut huge = pod("huge", "");
    huge["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {"medium": "HugePages-2Mi"}}]);
    huge["spec"]["containers"][0]["resources"] = json!({"limits": {"hugepages-2Mi": "4Mi", "memory": "64Mi", "cpu": "500m"}, "requests": {"cpu": "10m"}});
    create(cluster, huge)?;
    await_pod_ready(cluster, "huge", LIMIT_S)?;
    let uid = uid_of(cluster, "huge")?;
    let at = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/data");
    let mounted = |vm: &mut VmNode| -> Result<Vec<String>> {
        let table = vm.vm()?.shell()?.must("cat /proc/mounts")?;
        let mut of = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let of = of.by_ref().filter(|line| line.get(1) == Some(&at.as_str()));
        Ok(of.map(|line| format!("{} {}", line[2], line[3])).collect())
    };
    let before = mounted(vm)?;
    ensure!(
        before.len() == 1 && before[0].starts_with("hugetlbfs ") && before[0].contains("pagesize=2M"),
        "{at} is mounted as {before:?}"
    );
    let limit =
        format!("cat /sys/fs/cgroup/kubepods.slice/*/*pod{}.slice/hugetlb.2MB.max", uid.replace('-', "_"));
    let limit = vm.vm()?.shell()?.must(&limit)?;
    ensure!(limit.trim() == (4 << 20).to_string(), "the pod's limit is {limit:?}");
    vm.vm()?.shell()?.must("systemctl kill -s KILL kubelet")?;
    await_ready(cluster, VM, LIMIT_S)?;
    delete(cluster, "huge")?;
    await_pod_gone(cluster, "huge", LIMIT_S)?;
    let left = mounted(vm)?;
    ensure!(left.is_empty(), "left {left:?}");
    reserve(vm, 0)?;
    cluster.ensure_nothing_forbidden()
}
