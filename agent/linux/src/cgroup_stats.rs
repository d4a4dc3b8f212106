//! What the machine and its cgroups use, read when somebody asks.
//!
//! In: where in the hierarchy the pods are. Out: [`Snapshot`]. Invariants: nothing is read between two questions; a
//! cgroup that goes away meanwhile is left out, a file that it does not have is an amount left out. Linux,
//! Documentation/admin-guide/cgroup-v2.rst.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use agent_core::stats::cgroup::{self, Extent};
use agent_core::stats::host::{self, Network};
use agent_core::stats::usage::Cpu;
use agent_core::stats::{PodUsage, Snapshot, Usage};
use agent_core::time::Wall;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use crate::files::FilesError;

/// Where the unified hierarchy is mounted.
const ROOT: &str = "/sys/fs/cgroup";
const PROC: &str = "/proc";
/// QoS classes lie between the pods' common cgroup and a pod's.
const LEVELS: usize = 3;
/// The interface that leads out of a pod, whichever network plugin made it. Upstream: `defaultNetworkInterfaceName`.
const POD_INTERFACE: &str = "eth0";

/// What to read.
#[derive(Clone, Debug)]
pub struct Question {
    /// Now.
    pub at: Wall,
    /// How much of each cgroup.
    pub extent: Extent,
    /// The cgroup in which all pods' cgroups are, a path inside the hierarchy.
    pub pods: String,
    /// Other parts of the machine, by upstream's names, and their cgroups.
    pub system: Vec<(&'static str, String)>,
}

/// Reads the machine and every pod.
///
/// # Errors
/// There is no unified hierarchy. A node without pods is none.
pub fn snapshot(question: &Question) -> Result<Snapshot, FilesError> {
    snapshot_of(Path::new(ROOT), Path::new(PROC), question)
}

fn snapshot_of(root: &Path, proc: &Path, question: &Question) -> Result<Snapshot, FilesError> {
    let controllers = root.join("cgroup.controllers");
    std::fs::metadata(&controllers).map_err(FilesError::at("look for", &controllers))?;
    let mut pods = Vec::new();
    below(&inside(root, &question.pods), LEVELS, question, &mut pods);
    let whole = question.extent == Extent::All;
    if whole {
        for pod in &mut pods {
            pod.network = network_of_pod(proc, pod, question.at);
        }
    }
    let mut node = host::usage(question.at, |name| read(proc, name));
    let of_root = usage(root, question);
    if of_root.cpu.total_ns.is_some() {
        // Finer than the ticks of /proc/stat.
        node.cpu = Cpu { psi: node.cpu.psi.or(of_root.cpu.psi), ..of_root.cpu };
    }
    node.io.devices = of_root.io.devices;
    let system = if question.extent == Extent::Resource { &[][..] } else { &question.system };
    let system = system.iter().map(|(name, path)| (*name, usage(&inside(root, path), question)));
    let system = system.filter(|(_, usage)| usage.cpu.total_ns.is_some()).collect();
    let network = whole.then(|| network(proc, "self", default_interface(), question.at)).flatten();
    Ok(Snapshot { node, network, system, pods })
}

/// The machine's own account, where pods' cgroups cannot be read.
#[must_use]
pub fn node(at: Wall) -> (Usage, Option<Network>) {
    let proc = Path::new(PROC);
    (host::usage(at, |name| read(proc, name)), network(proc, "self", default_interface(), at))
}

/// Processes by the id of the container that they run in, lowest first, whatever the hierarchies are.
#[must_use]
pub fn processes() -> BTreeMap<String, Vec<u32>> {
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (name, path) in directories(Path::new(PROC)) {
        let Ok(pid) = name.parse() else { continue };
        let id = read(&path, "cgroup").and_then(|text| {
            text.lines().find_map(|line| Some(cgroup::container_of(line.rsplit('/').next()?)?.to_owned()))
        });
        if let Some(id) = id {
            found.entry(id).or_default().push(pid);
        }
    }
    for pids in found.values_mut() {
        pids.sort_unstable();
    }
    found
}

/// Counters of the network namespace that a process of a pod is in.
#[must_use]
pub fn network_of_process(pid: u32, at: Wall) -> Option<Network> {
    network(Path::new(PROC), &pid.to_string(), POD_INTERFACE.to_owned(), at)
}

/// The cgroup of a process in the unified hierarchy; `self` for this one.
#[must_use]
pub fn cgroup_of(process: &str) -> Option<String> {
    let text = read(&Path::new(PROC).join(process), "cgroup")?;
    text.lines().find_map(|line| Some(line.strip_prefix("0::")?.to_owned()))
}

/// The cgroup of whoever listens on `unix:///…`; `None` without a unified hierarchy, or if nobody does.
#[must_use]
pub fn cgroup_of_listener(endpoint: &str) -> Option<String> {
    let path = endpoint.strip_prefix("unix://")?;
    let stream = UnixStream::connect(path).ok()?;
    let listener = getsockopt(&stream, PeerCredentials).ok()?;
    cgroup_of(&listener.pid().to_string())
}

/// When the machine started.
#[must_use]
pub fn boot_time() -> Option<Wall> {
    host::boot_time(&read(Path::new(PROC), "stat")?)
}

fn default_interface() -> String {
    crate::network::default_interface().unwrap_or_default()
}

fn network(proc: &Path, process: &str, default: String, at: Wall) -> Option<Network> {
    let text = read(&proc.join(process), "net/dev")?;
    Some(Network { at, default, interfaces: host::interfaces(&text) })
}

/// All of a pod's containers share its network: the first process of any of them will do.
fn network_of_pod(proc: &Path, pod: &PodUsage, at: Wall) -> Option<Network> {
    let pid = pod.containers.iter().find_map(|(_, usage)| usage.tasks.first)?;
    network(proc, &pid.to_string(), POD_INTERFACE.to_owned(), at)
}

fn below(dir: &Path, levels: usize, question: &Question, found: &mut Vec<PodUsage>) {
    for (name, path) in directories(dir) {
        match cgroup::pod_of(&name) {
            Some(pod) => found.push(PodUsage {
                pod,
                usage: Some(usage(&path, question)),
                containers: containers(&path, question),
                network: None,
            }),
            None if levels > 1 => below(&path, levels - 1, question, found),
            None => {}
        }
    }
}

fn containers(pod: &Path, question: &Question) -> Vec<(String, Usage)> {
    let container = |(name, path): (String, PathBuf)| {
        Some((cgroup::container_of(&name)?.to_owned(), usage(&path, question)))
    };
    directories(pod).filter_map(container).collect()
}

fn directories(dir: &Path) -> impl Iterator<Item = (String, PathBuf)> + use<> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn read(dir: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(dir.join(file)).ok()
}

fn usage(dir: &Path, question: &Question) -> Usage {
    cgroup::usage(question.extent, question.at, |name| read(dir, name))
}

#[cfg(test)]
mod tests;
