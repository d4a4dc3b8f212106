//! One VM from its first boot on: the ledger, the verified root, cgroups, a reset, a second boot, a full disk.
//! The cases share the VM and build on one another in this order; each can also run alone.
//!
//! Cases: `boot/ledger`, `boot/verity-root`, `boot/cgroup2`, `boot/power-reset`, `boot/second-boot`, `boot/state-full`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::{HostMessage, LedgerEntry};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::disk;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;

/// Defaults of all cases that use the shared VM.
pub(crate) const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("vm") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "boot/ledger",
        45,
        "every phase is stamped in order, the sample pod runs, its output arrives",
        ledger,
    ),
    HERE.case(
        "boot/verity-root",
        2,
        "PID 1 is systemd, / is a dm-verity erofs that cannot be made writable",
        verity_root,
    ),
    HERE.case("boot/cgroup2", 2, "cgroup v2 only, all its controllers delegated", cgroup2),
    HERE.case("boot/power-reset", 45, "reset while running: the pod is back, by itself", power_reset),
    HERE.case(
        "boot/second-boot",
        50,
        "powered off and on: machine-id and images are kept, a disk that has grown is used, the ESP's configuration read on purpose, and there is swap",
        second_boot,
    ),
    HERE.case(
        "boot/state-full",
        110,
        "a full state partition: the pod runs on the reserve; without it the agent is ready, and all recovers",
        state_full,
    ),
];

/// How long a boot to the running pod may take under TCG on a busy machine, seconds.
pub(crate) const BOOT_LIMIT_S: u64 = 150;

/// Waits until the machine's card has an address: a standalone node's agent does not wait for one.
pub(crate) fn await_network(vm: &mut Vm) -> Result<()> {
    vm.await_network().context("the node's network").map(drop)
}

/// A standalone node with the sample pod, whose output goes to the host channel.
pub(crate) fn config_with_pod() -> String {
    "apiVersion: orlop/v1alpha1\n\
     kind: NodeConfig\n\
     console:\n  podOutput: true\n\
     staticPods:\n\
     - apiVersion: v1\n  kind: Pod\n  metadata:\n    name: hello\n    namespace: default\n  spec:\n\
     \x20   terminationGracePeriodSeconds: 2\n    containers:\n    - name: hello\n\
     \x20     image: localhost/orlop/hello:1\n      imagePullPolicy: Never\n"
        .to_owned()
}

/// The VM that the group shares.
pub(crate) struct Node {
    // Dropped first: QEMU must end before its disk is removed.
    vm: Option<Vm>,
    lab: Lab,
}

impl Node {
    fn start(run: &Arc<Run>, artefacts: &Path) -> Result<Node> {
        let lab = Lab::new(run, artefacts)?;
        let vm = lab.boot(Firmware::Direct, Some(&config_with_pod()))?;
        vm.await_phase("pod.running", BOOT_LIMIT_S)?;
        Ok(Node { vm: Some(vm), lab })
    }

    pub(crate) fn vm(&mut self) -> Result<&mut Vm> {
        self.vm.as_mut().context("the VM is off: an earlier case of the group failed")
    }

    pub(crate) fn must(&mut self, command: &str) -> Result<String> {
        self.vm()?.shell()?.must(command)
    }
}

pub(crate) fn node<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Node> {
    cx.shared_or(Node::start)
}

/// One line per entry, times in seconds.
pub(crate) fn render(entries: &[LedgerEntry]) -> Vec<String> {
    let seconds = |ms: u64| format!("{}.{:03}", ms / 1000, ms % 1000);
    entries
        .iter()
        .map(|e| {
            let took = e.took_ms.map_or(String::new(), |t| format!(" (took {})", seconds(t)));
            format!("{:>8}  {}{took} {}", seconds(e.at_ms), e.phase, e.detail)
        })
        .collect()
}

fn entries(vm: &Vm) -> Vec<LedgerEntry> {
    vm.messages()
        .into_iter()
        .filter_map(|m| match m {
            HostMessage::Ledger(e) => Some(e),
            _ => None,
        })
        .collect()
}

const INIT_PHASES: [&str; 11] = [
    "init.api-filesystems",
    "init.cgroup",
    "init.modules",
    "init.disk",
    "init.slot",
    "init.verity",
    "init.root",
    "init.state",
    "init.machine-id",
    "init.configuration",
    "init.handover",
];

fn ledger(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let line = node.vm()?.await_message("the pod's output", 60, |m| match m {
        HostMessage::PodOutput { pod, line, .. } => Some((pod, line)),
        _ => None,
    })?;
    ensure!(line.0.starts_with("default/hello") && !line.1.is_empty(), "pod output {line:?}");
    let seen = entries(node.vm()?);
    for line in render(&seen) {
        say::line(format!("  {line}"));
    }
    let position =
        |phase: &str| seen.iter().position(|e| e.phase == phase).with_context(|| format!("no {phase}"));
    // The agent starts while containerd does.
    let orders: [&[&str]; 2] = [
        &["kernel", INIT_PHASES[0], "init.handover", "containerd.ready", "pod.running"],
        &["init.handover", "agent.started", "agent.ready", "pod.running"],
    ];
    for order in [&INIT_PHASES[..]].iter().chain(&orders) {
        let mut last = 0;
        for phase in *order {
            let entry = &seen[position(phase)?];
            ensure!(entry.ok, "{phase} failed: {}", entry.detail);
            let at = entry.at_ms;
            ensure!(at >= last, "{phase} at {at} ms comes before its predecessor at {last} ms");
            last = at;
        }
    }
    position("systemd.started")?;
    ensure!(seen.iter().any(|e| e.phase.starts_with("bringup.")), "no bringup step is stamped");
    let problems: Vec<_> =
        node.vm()?.messages().into_iter().filter(|m| matches!(m, HostMessage::Problem { .. })).collect();
    ensure!(problems.is_empty(), "problems: {problems:?}");
    // The file has the same entries as the channel.
    let file = orlop_config::ledger::Ledger::parse(&node.must("cat /run/orlop/boot.json")?)
        .context("parse boot.json")?;
    for entry in &seen {
        ensure!(file.entries.iter().any(|e| e.phase == entry.phase), "{} is not in boot.json", entry.phase);
    }
    Ok(())
}

fn verity_root(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let name = node.must("cat /proc/1/comm")?;
    ensure!(name.trim() == "systemd", "PID 1 is {name}");
    // Fields of mountinfo: id, parent, major:minor, root, mount point, options, …, `-`, type, source, options.
    let mounts = node.must("cat /proc/self/mountinfo")?;
    let root = mounts.lines().find(|l| l.split(' ').nth(4) == Some("/")).context("no / in mountinfo")?;
    let words: Vec<&str> = root.split(' ').collect();
    ensure!(root.contains(" - erofs ") && words[5].split(',').any(|o| o == "ro"), "root: {root}");
    let (device, uuid) = (words[2], node.must(&format!("cat /sys/dev/block/{}/dm/uuid", words[2]))?);
    ensure!(uuid.contains("VERITY"), "the root's device {device} is {uuid:?}");
    for attempt in ["mount -o remount,rw /", "touch /x", "touch /usr/bin/x", "rm /usr/bin/orlop-agent"] {
        let output = node.vm()?.shell()?.run(attempt, std::time::Duration::from_secs(30))?;
        ensure!(output.status != 0, "`{attempt}` succeeded: {}", output.text);
    }
    Ok(())
}

fn cgroup2(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let mounts = node.must("cat /proc/mounts")?;
    let cgroups: Vec<&str> = mounts.lines().filter(|l| l.contains(" cgroup")).collect();
    let [only] = cgroups.as_slice() else { anyhow::bail!("cgroup mounts: {cgroups:?}") };
    for part in [" /sys/fs/cgroup cgroup2 ", "nsdelegate", "memory_recursiveprot"] {
        ensure!(only.contains(part), "{part} is not in {only}");
    }
    let words = |text: String| {
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words
    };
    let there = words(node.must("cat /sys/fs/cgroup/cgroup.controllers")?);
    for needed in ["cpu", "cpuset", "io", "memory", "pids"] {
        ensure!(there.iter().any(|c| c == needed), "no controller {needed}: {there:?}");
    }
    let delegated = words(node.must("cat /sys/fs/cgroup/cgroup.subtree_control")?);
    ensure!(there == delegated, "there are {there:?}, delegated are {delegated:?}");
    // The controllers of the agent's and the runtime's own groups, which the pods' groups inherit.
    for unit in ["kubelet.service", "containerd.service"] {
        let inside = words(node.must(&format!("cat /sys/fs/cgroup/system.slice/{unit}/cgroup.controllers"))?);
        ensure!(there == inside, "{unit} has {inside:?} of {there:?}");
    }
    Ok(())
}

fn power_reset(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let vm = node.vm()?;
    vm.reset()?;
    let entry = vm.await_phase("pod.running", BOOT_LIMIT_S).context("after the reset")?;
    say::line(format!("  pod running {:.1} s after the reset boot's kernel", entry.at_ms as f64 / 1000.0));
    vm.await_message("the pod's output after the reset", 60, |m| match m {
        HostMessage::PodOutput { pod, .. } if pod.starts_with("default/hello") => Some(()),
        _ => None,
    })
}

/// A configuration without content on the ESP, where a person would put one.
const CONFIGURE_ESP: &str = "mkdir -p /tmp/esp && mount -t vfat /dev/vda1 /tmp/esp && mkdir -p /tmp/esp/orlop && \
     printf 'apiVersion: orlop/v1alpha1\nkind: NodeConfig\nswap: {size: 64Mi}\n' > /tmp/esp/orlop/node-config.yaml && umount /tmp/esp";

fn second_boot(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let id = node.must("cat /etc/machine-id")?;
    ensure!(id.trim().len() == 32 && id.trim().bytes().all(|b| b.is_ascii_hexdigit()), "machine-id {id:?}");
    let blobs = "ls /var/lib/containerd/io.containerd.content.v1.content/blobs/sha256 | sort";
    let images = node.must(blobs)?;
    ensure!(!images.trim().is_empty(), "no images in containerd's store");
    node.must("echo kept > /var/lib/orlop-e2e-marker && sync")?;
    node.must(CONFIGURE_ESP)?;
    let size = "stat -f -c '%b' /var";
    let before = node.must(size)?;
    node.vm.take().context("the VM is off")?.power_off(120)?;
    disk::grow(&node.lab.disk(), 256)?;
    // The first boot is over: without it the file on the ESP would count for nothing (boot/drive-later).
    node.lab.tell_kernel("orlop.drive=always");
    let vm = node.lab.boot(Firmware::Direct, Some(&config_with_pod()))?;
    vm.await_phase("pod.running", BOOT_LIMIT_S).context("at the second boot")?;
    node.vm = Some(vm);
    ensure!(node.must("cat /etc/machine-id")? == id, "another machine-id");
    ensure!(node.must(blobs)? == images, "other images");
    ensure!(node.must("cat /var/lib/orlop-e2e-marker")?.trim() == "kept", "the state partition was not kept");
    let (before, after): (u64, u64) = (before.trim().parse()?, node.must(size)?.trim().parse()?);
    ensure!(
        after > before + (128 << 20) / 4096,
        "the state partition did not grow: {before} to {after} blocks"
    );
    let ledger = node.must("cat /run/orlop/boot.json")?;
    ensure!(
        ledger.contains("ESP /dev/vda1:/orlop/node-config.yaml"),
        "no configuration from the ESP: {ledger}"
    );
    let swaps = node.must(
        "cat /proc/swaps; stat -c %a /var/lib/orlop/swapfile; grep failSwapOn /run/orlop/kubelet.yaml",
    )?;
    let words: Vec<&str> = swaps.split_whitespace().skip(5).collect();
    ensure!(
        words[..]
            == ["/var/lib/orlop/swapfile", "file", "65532", words[3], "-2", "600", "failSwapOn:", "false"],
        "no swap as the ESP's configuration wants it: {swaps}"
    );
    stopped_in_order(node)
}

/// At the end of the last boot containerd was there until the agent had ended.
fn stopped_in_order(node: &mut Node) -> Result<()> {
    let journal = node.must("journalctl --boot=-1 --output=cat _PID=1")?;
    let line =
        |said: &str| journal.lines().position(|l| l.starts_with(said)).with_context(|| said.to_owned());
    let [agent, containerd] = [line("Stopped kubelet.service")?, line("Stopping containerd.service")?];
    ensure!(agent < containerd, "containerd was stopped before the agent:\n{journal}");
    Ok(())
}

/// Uses all space of /var that root can use, to the last block. Once is not always enough: the file system frees
/// reserved blocks when all is written.
fn fill(node: &mut Node, file: &str) -> Result<()> {
    let fill = format!(
        "for size in 64k 4k 4k 4k 4k; do \
         dd if=/dev/zero bs=$size 2>/dev/null >> /var/{file}; sync; \
         [ $(stat -f -c %a /var) = 0 ] && break; done; stat -f -c %a /var"
    );
    let free = node.vm()?.shell()?.run(&fill, std::time::Duration::from_secs(240))?;
    ensure!(free.text.trim() == "0", "blocks left after filling: {}", free.text);
    Ok(())
}

/// Resets, and waits for init's message about the full partition and for the agent.
fn reset_while_full(node: &mut Node, said: &str) -> Result<()> {
    let vm = node.vm()?;
    vm.reset()?;
    let problem = vm.await_message("a word about the full state partition", BOOT_LIMIT_S, |m| match m {
        HostMessage::Problem { source, message } if message.contains("is full") => {
            Some(format!("{source}: {message}"))
        }
        _ => None,
    })?;
    say::line(format!("  {problem}"));
    ensure!(problem.contains(said), "the message does not say: {said}");
    vm.await_phase("agent.ready", BOOT_LIMIT_S).context("with a full state partition")?;
    ensure!(node.must("cat /var/precious")?.trim() == "precious", "data was lost");
    Ok(())
}

fn state_full(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    node.must("echo precious > /var/precious && sync")?;
    fill(node, "filler")?;
    reset_while_full(node, "emergency reserve of")?;
    let ran = node.vm()?.await_phase("pod.running", BOOT_LIMIT_S).context("on the emergency reserve")?;
    say::line(format!("  pod running at {:.1} s on the reserve", ran.at_ms as f64 / 1000.0));
    // Now without a reserve: the released blocks are used as well.
    fill(node, "filler2")?;
    reset_while_full(node, "no emergency reserve left")?;
    let restarts = node.must("systemctl show -P NRestarts kubelet orlop-bringup")?;
    let numbers: Vec<u32> = restarts.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    ensure!(numbers.len() == 2 && numbers.iter().all(|n| *n <= 8), "restarts of agent, bringup: {restarts}");
    let bringups = entries(node.vm()?).iter().filter(|e| e.phase == "bringup.images").count();
    ensure!(bringups <= 2, "bringup ran {bringups} times");
    node.must("rm -f /var/filler /var/filler2 && sync")?;
    node.vm()?.await_phase("pod.running", BOOT_LIMIT_S).context("after space was freed")?;
    ensure!(node.must("cat /var/precious")?.trim() == "precious", "data was lost");
    Ok(())
}
