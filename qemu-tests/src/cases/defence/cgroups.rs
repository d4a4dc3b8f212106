//! The tree of cgroups in a VM: values for pods of each QoS class, a fork bomb, a killed agent, an orphaned cgroup.
//!
//! In: a VM with static pods and `podPidsLimit`. Out: the kernel's files compared with expected values, computed by
//! hand from upstream's formulas (v1.36.3, pkg/kubelet/cm, with github.com/opencontainers/cgroups v0.0.6 for systemd).
//!
//! Cases: `defence/cgroups`, `defence/pids`, `defence/cgroups-kill`, `defence/cgroups-gone`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use serde_json::{Value, json};

use crate::cases::boot::shared_vm::BOOT_LIMIT_S;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("defence-cgroups") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "defence/cgroups",
        90,
        "pods of each class, their classes and all of them have upstream's values",
        values,
    ),
    HERE.case("defence/pids", 40, "a fork bomb ends at its pod's limit, and nobody else notices", pids),
    HERE.case(
        "defence/cgroups-kill",
        40,
        "an agent that is killed finds all as it was, and removes an orphan",
        kill,
    ),
    HERE.case(
        "defence/cgroups-gone",
        40,
        "a pod that is removed leaves no cgroup, and its class has its share no more",
        gone,
    ),
];

/// Tasks that a pod may have.
const PIDS: u64 = 64;
const ROOT: &str = "/sys/fs/cgroup/kubepods.slice";
const BURSTABLE: &str = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice";
const BEST_EFFORT: &str = "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice";
/// Limit of a step in the VM under TCG.
const LIMIT: Duration = Duration::from_secs(90);
/// Directory of the loader for the machine's own shell.
const LIBRARIES: &str = "/host/lib/x86_64-linux-gnu";

struct Node {
    // Dropped first: QEMU must end before its disk is removed.
    vm: Vm,
    _lab: Lab,
}

fn pod(name: &str, resources: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {
        "terminationGracePeriodSeconds": 2,
        "containers": [{"name": "c", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never", "resources": resources}]}})
}

/// Starts programs until the kernel refuses, again and again.
fn bomb() -> Value {
    let loader = format!("{LIBRARIES}/ld-linux-x86-64.so.2");
    let run = format!("{loader} --library-path {LIBRARIES}");
    let script = format!("echo lit; for i in {{1..200}}; do {run} /host/bin/sleep 600 & done; wait");
    let mut pod = pod("bomb", json!({}));
    pod["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": "/usr"}}]);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "host", "mountPath": "/host", "readOnly": true}]);
    container["command"] = json!([loader, "--library-path", LIBRARIES, "/host/bin/bash", "-c", script]);
    pod
}

fn config() -> String {
    let amounts = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    json!({"apiVersion": "orlop/v1alpha1", "kind": "NodeConfig", "console": {"podOutput": true},
    "kubelet": {"podPidsLimit": PIDS},
    "staticPods": [
        pod("guaranteed", json!({"limits": amounts("255m", "64Mi")})),
        pod("burstable", json!({"requests": amounts("100m", "16Mi"), "limits": {"memory": "48Mi"}})),
        pod("besteffort", json!({})),
    ]})
    .to_string()
}

impl Node {
    fn start(run: &Arc<Run>, artefacts: &Path) -> Result<Node> {
        let lab = Lab::new(run, artefacts)?;
        let mut vm = lab.boot(Firmware::Direct, Some(&config()))?;
        let ran = match vm.await_phase("pod.running", BOOT_LIMIT_S) {
            Ok(ran) => ran,
            Err(error) => {
                let log = vm.shell()?.run("journalctl -u kubelet -o cat --no-pager | tail -n 40", LIMIT)?;
                return Err(error.context(format!("the agent's log:\n{}", log.text)));
            }
        };
        say::line(format!("  first pod running at {:.1} s", ran.at_ms as f64 / 1000.0));
        for name in ["guaranteed", "burstable", "besteffort"] {
            await_output(&vm, name)?;
        }
        Ok(Node { vm, _lab: lab })
    }

    fn must(&mut self, command: &str) -> Result<String> {
        Ok(self.vm.shell()?.must(command)?.trim().to_owned())
    }

    /// Repeats the command until its output is right.
    fn until(&mut self, command: &str, what: &str, is: impl Fn(&str) -> bool) -> Result<String> {
        let end = Instant::now() + LIMIT;
        loop {
            let said = self.vm.shell()?.run(command, LIMIT)?;
            let text = said.text.trim().to_owned();
            if said.status == 0 && is(&text) {
                return Ok(text);
            }
            ensure!(Instant::now() < end, "{what} did not come: `{command}` says {text:?}");
        }
    }

    /// The files of a cgroup, as `file=text` in one line.
    fn files(&mut self, dir: &str, files: &[&str]) -> Result<String> {
        let mut all = Vec::new();
        for file in files {
            all.push(format!("{file}={}", self.must(&format!("cat {dir}/{file}"))?));
        }
        Ok(all.join(" "))
    }

    /// Slices of pods right in a class' slice.
    fn pods(&mut self, class: &str) -> Result<Vec<String>> {
        let found = self.must(&format!("ls -d {class}/*-pod*.slice 2>/dev/null || true"))?;
        Ok(found.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
    }

    fn only_pod(&mut self, class: &str) -> Result<String> {
        let pods = self.pods(class)?;
        let [only] = pods.as_slice() else { bail!("pods in {class}: {pods:?}") };
        Ok(only.clone())
    }
}

fn await_output(vm: &Vm, name: &str) -> Result<()> {
    let pod_name = format!("default/{name}");
    vm.await_message(&format!("output of {name}"), BOOT_LIMIT_S, |m| match m {
        HostMessage::PodOutput { pod, .. } if pod.starts_with(&pod_name) => Some(()),
        _ => None,
    })
}

fn node<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Node> {
    cx.shared_or(Node::start)
}

fn ensure_same(what: &str, is: &str, golden: &str) -> Result<()> {
    ensure!(is == golden, "{what} is\n  {is}\nand should be\n  {golden}");
    Ok(())
}

const OF_PODS: [&str; 4] = ["cpu.weight", "cpu.max", "memory.max", "pids.max"];

fn values(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    // 255 thousandths are more than 25 hundredths: systemd counts no finer, so it is 26.
    let guaranteed = node.only_pod(ROOT)?;
    let is = node.files(&guaranteed, &OF_PODS)?;
    ensure_same(
        "a Guaranteed pod",
        &is,
        "cpu.weight=10 cpu.max=26000 100000 memory.max=67108864 pids.max=64",
    )?;
    let burstable = node.only_pod(BURSTABLE)?;
    let is = node.files(&burstable, &OF_PODS)?;
    ensure_same("a Burstable pod", &is, "cpu.weight=4 cpu.max=max 100000 memory.max=50331648 pids.max=64")?;
    let best_effort = node.only_pod(BEST_EFFORT)?;
    let is = node.files(&best_effort, &OF_PODS)?;
    ensure_same("a BestEffort pod", &is, "cpu.weight=1 cpu.max=max 100000 memory.max=max pids.max=64")?;
    let is = node.files(BURSTABLE, &OF_PODS)?;
    ensure_same("the class Burstable", &is, "cpu.weight=4 cpu.max=max 100000 memory.max=max pids.max=max")?;
    let is = node.files(BEST_EFFORT, &OF_PODS)?;
    ensure_same("the class BestEffort", &is, "cpu.weight=1 cpu.max=max 100000 memory.max=max pids.max=max")?;

    let cpus: u64 = node.must("nproc")?.parse().context("nproc")?;
    let memory = node.must("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")?;
    let memory = memory.parse::<u64>().context("MemTotal")? * 1024;
    let numbers = node.must("cat /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max")?;
    let tasks = numbers.split_whitespace().filter_map(|n| n.parse::<u64>().ok()).min().context("pid_max")?;
    let weight = 1 + (cpus * 1024 - 2) * 9999 / 262_142;
    let golden = format!("cpu.weight={weight} cpu.max=max 100000 memory.max={memory} pids.max={tasks}");
    let is = node.files(ROOT, &OF_PODS)?;
    ensure_same("all pods", &is, &golden)?;
    let is = node.files(ROOT, &["cpuset.cpus"])?;
    let online = node.must("cat /sys/devices/system/cpu/online")?;
    ensure_same("all pods' processors", &is, &format!("cpuset.cpus={online}"))?;
    let pages = format!("cd {guaranteed} && ls hugetlb.*.max | grep -v rsvd | xargs cat | sort -u");
    ensure!(node.must(&pages)? == "0", "huge pages of a pod that asked for none");

    // systemd knows them as ours, and containers are in them.
    for dir in [ROOT, BURSTABLE, &guaranteed, &burstable, &best_effort] {
        let unit = dir.rsplit('/').next().unwrap_or_default();
        let shown = node.must(&format!("systemctl show -P Transient -P ActiveState {unit}"))?;
        let words: Vec<&str> = shown.split_whitespace().collect();
        ensure!(words == ["yes", "active"] || words == ["active", "yes"], "{unit}: {shown}");
        let populated = node.must(&format!("cat {dir}/cgroup.events"))?;
        ensure!(populated.contains("populated 1"), "nothing runs in {unit}");
    }
    let log = node
        .must("journalctl -u kubelet -o cat --no-pager | grep -c 'Updated Node Allocatable limit' || true")?;
    ensure!(log == "1", "it was told {log} times that the node's limit is enforced");
    Ok(())
}

fn pids(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let calm = node.only_pod(BEST_EFFORT)?;
    let others = [node.only_pod(ROOT)?, node.only_pod(BURSTABLE)?, calm.clone()];
    let manifest = bomb().to_string();
    node.must(&format!(
        "printf %s '{}' > /etc/kubernetes/manifests/bomb.yaml",
        manifest.replace('\'', "'\\''")
    ))?;
    let find = format!("ls -d {BEST_EFFORT}/*-pod*.slice");
    let found = node.until(&find, "the bomb's cgroup", |text| text.lines().count() == 2)?;
    let bomb = found.lines().find(|dir| **dir != calm).context("the bomb's cgroup")?.trim().to_owned();
    let hit = node.until(&format!("cat {bomb}/pids.events"), "the bomb's limit", |text| text != "max 0")?;
    let most = node.must(&format!("cat {bomb}/pids.peak {bomb}/pids.max"))?;
    say::line(format!("  the bomb: {hit}, peak and limit {}", most.replace('\n', " ")));
    let numbers: Vec<u64> = most.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    ensure!(numbers.len() == 2 && numbers[0] <= PIDS && numbers[1] == PIDS, "{most}");
    for other in others {
        let events = node.must(&format!("cat {other}/pids.events"))?;
        ensure!(events == "max 0", "{other} had too few tasks: {events}");
    }
    node.must("rm /etc/kubernetes/manifests/bomb.yaml")?;
    node.until(&format!("[ ! -e {bomb} ] && echo gone"), "the end of the bomb's cgroup", |text| {
        text == "gone"
    })?;
    Ok(())
}

fn kill(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    // A cgroup of an unknown pod, with a process that does not end by itself.
    let orphan = "kubepods-besteffort-pod12345678_dead_beef_0000_000000000000.slice";
    node.must(&format!("systemd-run --quiet --slice={orphan} --unit=e2e-orphan sleep 100000"))?;
    let state = format!(
        "cd {ROOT} && for d in . */ */*/; do [ -e $d/cpu.weight ] && echo $d $(stat -c %i $d) $(cat $d/cpu.weight $d/cpu.max $d/memory.max $d/pids.max $d/cgroup.procs); done | grep -v 12345678_dead"
    );
    let before = node.must(&state)?;
    let main = node.must("systemctl show -P MainPID kubelet")?;
    // The share of the Burstable class follows from pods that the new agent does not know at first.
    let steady = format!(
        "read was < {BURSTABLE}/cpu.weight; read up rest < /proc/uptime; end=$((${{up%.*}} + 8)); systemctl kill -s KILL kubelet; while [ ${{up%.*}} -lt $end ]; do read is < {BURSTABLE}/cpu.weight; [ $is = $was ] || {{ echo $is instead of $was; break; }}; read up rest < /proc/uptime; done"
    );
    let changed = node.must(&steady)?;
    ensure!(changed.trim().is_empty(), "the class' share while the new agent began: {changed}");
    node.until("systemctl show -P MainPID kubelet", "another agent", |pid| pid != main && pid != "0")?;
    let gone = format!("[ ! -e {BEST_EFFORT}/{orphan} ] && echo gone");
    node.until(&gone, "the end of the orphan", |text| text == "gone")?;
    let unit = node.vm.shell()?.run("systemctl is-active e2e-orphan", LIMIT)?;
    ensure!(unit.text.trim() != "active", "the orphan's program runs on");
    let after = node.must(&state)?;
    ensure_same("the tree after the agent was killed", &after, &before)
}

fn gone(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let burstable = node.only_pod(BURSTABLE)?;
    let unit = burstable.rsplit('/').next().unwrap_or_default().to_owned();
    let file = node.must("grep -l '\"burstable\"\\|name: burstable' /etc/kubernetes/manifests/*")?;
    node.must(&format!("rm {file}"))?;
    node.until(&format!("[ ! -e {burstable} ] && echo gone"), "the end of the cgroup", |text| {
        text == "gone"
    })?;
    node.until(&format!("cat {BURSTABLE}/cpu.weight"), "the class' least share", |text| text == "1")?;
    let loaded = node.must(&format!("systemctl show -P LoadState -P ActiveState {unit}"))?;
    ensure!(!loaded.split_whitespace().any(|word| word == "active"), "{unit} is {loaded}");
    let left = node.must("ls /run/systemd/transient /run/systemd/system.control 2>/dev/null || true")?;
    ensure!(!left.contains(&unit), "systemd keeps files of {unit}:\n{left}");
    Ok(())
}
