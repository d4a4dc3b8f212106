//! What the machine and its cgroups use, read when somebody asks.
//!
//! In: where in the hierarchy the pods are. Out: [`Snapshot`]. Invariants: nothing is read between two questions; a
//! cgroup that goes away meanwhile is left out, a file that it does not have is an amount left out. Linux,
//! Documentation/admin-guide/cgroup-v2.rst.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use agent_core::stats::cgroup::{self, Extent};
use agent_core::stats::host::{self, Network};
use agent_core::stats::usage::{Cpu, DeviceIo, Tasks};
use agent_core::stats::{PodUsage, Snapshot, Usage};
use agent_core::time::Wall;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::stat::{major, minor};

use crate::files::FilesError;
use crate::task_files;

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
    let reader = Reader { root, proc, question };
    let (mut pods, mut groups) = (Vec::new(), Vec::new());
    let top = inside(root, &question.pods);
    if question.extent >= Extent::Cadvisor && top != root {
        groups.push(reader.usage(&top));
    }
    reader.below(&top, LEVELS, &mut pods, &mut groups);
    let whole = question.extent >= Extent::Summary;
    if whole {
        for pod in &mut pods {
            pod.network = network_of_pod(proc, pod, question.at);
        }
    }
    let mut node = host::usage(question.at, |name| read(proc, name));
    let of_root = reader.usage(root);
    if of_root.cpu.total_ns.is_some() {
        // Finer than the ticks of /proc/stat.
        node.cpu = Cpu { psi: node.cpu.psi.or(of_root.cpu.psi), ..of_root.cpu };
    }
    node.io.devices = of_root.io.devices;
    let system = if question.extent == Extent::Resource { &[][..] } else { &question.system };
    let system = system.iter().map(|(name, path)| (*name, reader.usage(&inside(root, path))));
    let system = system.filter(|(_, usage)| usage.cpu.total_ns.is_some()).collect();
    let network = whole.then(|| network(proc, "self", default_interface(), question.at)).flatten();
    Ok(Snapshot { node, network, system, groups, pods })
}

/// The machine's own account, where pods' cgroups cannot be read.
#[must_use]
pub fn node(at: Wall) -> (Usage, Option<Network>) {
    let proc = Path::new(PROC);
    (host::usage(at, |name| read(proc, name)), network(proc, "self", default_interface(), at))
}

/// A container's processes, whatever the hierarchies are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// The cgroup.
    pub path: String,
    /// Lowest first.
    pub pids: Vec<u32>,
}

/// Processes by the id of the container that they run in.
#[must_use]
pub fn processes() -> BTreeMap<String, Processes> {
    let mut found: BTreeMap<String, Processes> = BTreeMap::new();
    for (name, path) in directories(Path::new(PROC)) {
        let Ok(pid) = name.parse() else { continue };
        let Some(text) = read(&path, "cgroup") else { continue };
        let container = text.lines().find_map(|line| {
            let path = line.splitn(3, ':').nth(2)?;
            Some((cgroup::container_of(path.rsplit('/').next()?)?, path))
        });
        if let Some((id, path)) = container {
            let processes = found.entry(id.to_owned()).or_default();
            path.clone_into(&mut processes.path);
            processes.pids.push(pid);
        }
    }
    for processes in found.values_mut() {
        processes.pids.sort_unstable();
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

struct Reader<'a> {
    root: &'a Path,
    proc: &'a Path,
    question: &'a Question,
}

impl Reader<'_> {
    fn below(&self, dir: &Path, levels: usize, pods: &mut Vec<PodUsage>, groups: &mut Vec<Usage>) {
        for (name, path) in directories(dir) {
            match cgroup::pod_of(&name) {
                Some(pod) => pods.push(self.pod(pod, &path)),
                None if levels > 1 => {
                    // Classes of pods; without cgroups of their own nothing here is known to be one.
                    if self.question.extent >= Extent::Cadvisor && dir != self.root {
                        groups.push(self.usage(&path));
                    }
                    self.below(&path, levels - 1, pods, groups);
                }
                None => {}
            }
        }
    }

    /// A pod's own cgroup has no processes but those of its containers.
    fn pod(&self, pod: String, path: &Path) -> PodUsage {
        let containers = self.containers(path);
        let mut usage = self.usage(path);
        let of_all = |of: fn(&Tasks) -> Option<u64>| {
            let found = containers.iter().filter_map(|(_, container)| of(&container.tasks));
            found.reduce(u64::saturating_add)
        };
        usage.tasks.processes = of_all(|tasks| tasks.processes);
        usage.tasks.files = of_all(|tasks| tasks.files);
        usage.tasks.sockets = of_all(|tasks| tasks.sockets);
        PodUsage { pod, usage: Some(usage), containers, network: None }
    }

    /// A container's processes may be in a cgroup below its own: crun makes one where systemd makes the other.
    fn containers(&self, pod: &Path) -> Vec<(String, Usage)> {
        let container = |(name, path): (String, PathBuf)| {
            let usage = self.usage_with(&path, || Some(processes_below(&path, LEVELS)));
            Some((cgroup::container_of(&name)?.to_owned(), usage))
        };
        directories(pod).filter_map(container).collect()
    }

    /// Of cgroups that consist of others, processes are not told: there they are counted.
    fn usage(&self, dir: &Path) -> Usage {
        let mut usage = self.usage_with(dir, || read(dir, "cgroup.procs"));
        if usage.tasks.processes == Some(0) && usage.tasks.threads.is_some_and(|threads| threads > 0) {
            let Tasks { threads, threads_max, .. } = usage.tasks;
            usage.tasks = Tasks { threads, threads_max, ..Tasks::default() };
        }
        usage
    }

    fn usage_with(&self, dir: &Path, processes: impl Fn() -> Option<String>) -> Usage {
        let Question { extent, at, .. } = *self.question;
        let mut usage = cgroup::usage(extent, at, |name| match name {
            "cgroup.procs" => processes(),
            name => read(dir, name),
        });
        if extent >= Extent::Cadvisor {
            usage.path = dir.strip_prefix(self.root).map(|p| format!("/{}", p.display())).unwrap_or_default();
            usage.created = created(dir);
            usage.io.devices.iter_mut().for_each(name_device);
            let processes = processes().unwrap_or_default();
            task_files::add(&mut usage.tasks, self.proc, processes.lines());
        }
        usage
    }
}

fn processes_below(dir: &Path, levels: usize) -> String {
    let mut all = read(dir, "cgroup.procs").unwrap_or_default();
    if levels > 0 {
        directories(dir).for_each(|(_, path)| all.push_str(&processes_below(&path, levels - 1)));
    }
    all
}

/// A directory's date is the one of the last cgroup that was made in it; this file's is its own.
fn created(dir: &Path) -> Option<Wall> {
    let date = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    let made = date(&dir.join("cgroup.events")).into_iter().chain(date(dir)).min()?;
    let since = made.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Wall(i64::try_from(since.as_nanos()).ok()?))
}

/// `/sys/dev/block/253:0` leads to a directory with the device's name.
fn name_device(device: &mut DeviceIo) {
    let link = format!("/sys/dev/block/{}:{}", device.major, device.minor);
    let target = std::fs::read_link(link).unwrap_or_default();
    if let Some(name) = target.file_name() {
        device.name = format!("/dev/{}", name.to_string_lossy());
    }
}

/// The block device that a path's file system is on; `None` if it is on none.
#[must_use]
pub fn device_of(path: &Path) -> Option<String> {
    let number = std::fs::metadata(path).ok()?.dev();
    let (major, minor) = (u32::try_from(major(number)).ok()?, u32::try_from(minor(number)).ok()?);
    let mut device = DeviceIo { major, minor, ..DeviceIo::default() };
    name_device(&mut device);
    (!device.name.is_empty()).then_some(device.name)
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

#[cfg(test)]
mod tests;
