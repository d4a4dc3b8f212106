//! What the machine and its cgroups use, read for each request.
//!
//! In: where in the hierarchy the pods are. Out: [`Snapshot`]. Invariants: nothing is read between two requests; a
//! cgroup that goes away meanwhile is left out, a file that it does not have is an amount left out. Linux,
//! Documentation/admin-guide/cgroup-v2.rst.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use agent_kubelet_api::stats::cgroup::{self, Extent};
use agent_kubelet_api::stats::host::{self, Network};
use agent_kubelet_api::stats::usage::{Cpu, Tasks};
use agent_kubelet_api::stats::{PodUsage, Snapshot, Usage};
use agent_types::resources::cgroups::name;
use agent_types::time::Wall;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::stat::{major, minor};

use crate::cgroup_dir::{Buffer, CgroupDir};
use crate::files::FilesError;
use crate::task_files;

/// Where the unified hierarchy is mounted.
const ROOT: &str = "/sys/fs/cgroup";
const PROC: &str = "/proc";
/// QoS classes lie between the pods' common cgroup and a pod's.
const LEVELS: usize = 3;
/// The list of a cgroup's processes.
const PROCESSES: &str = "cgroup.procs";
/// The interface whose figures stand for all of a pod or of the node; a pod without it has only the list of its
/// interfaces. Upstream: `defaultNetworkInterfaceName`.
const DEFAULT_INTERFACE: &str = "eth0";

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
    let mut reader = Reader { root, proc, question, buffer: Buffer::default(), devices: BTreeMap::new() };
    let (mut pods, mut groups) = (Vec::new(), Vec::new());
    if let Some(mut top) = CgroupDir::open(root, &question.pods) {
        if question.extent >= Extent::Cadvisor && top.path() != "/" {
            groups.push(reader.usage(&top));
        }
        reader.below(&mut top, LEVELS, &mut pods, &mut groups);
    }
    let whole = question.extent >= Extent::Summary;
    if whole {
        for pod in &mut pods {
            pod.network = network_of_pod(proc, pod, question.at);
        }
    }
    let mut node = host::usage(question.at, |name| read(proc, name));
    if let Some(of_root) = reader.usage_at("/") {
        if of_root.cpu.total_ns.is_some() {
            // Finer than the ticks of /proc/stat.
            node.cpu = Cpu { psi: node.cpu.psi.or(of_root.cpu.psi), ..of_root.cpu };
        }
        node.io.devices = of_root.io.devices;
    }
    let system = if question.extent == Extent::Resource { &[][..] } else { &question.system };
    let system = system.iter().filter_map(|(name, path)| Some((*name, reader.usage_at(path)?)));
    let system = system.filter(|(_, usage)| usage.cpu.total_ns.is_some()).collect();
    let network = whole.then(|| network(proc, "self", question.at)).flatten();
    Ok(Snapshot { node, network, system, groups, pods })
}

/// The machine's own account, where pods' cgroups cannot be read.
#[must_use]
pub fn node(at: Wall) -> (Usage, Option<Network>) {
    let proc = Path::new(PROC);
    (host::usage(at, |name| read(proc, name)), network(proc, "self", at))
}

/// A container's processes, found by /proc: the cgroup may be in any hierarchy.
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
    network(Path::new(PROC), &pid.to_string(), at)
}

/// The cgroup of a process in the unified hierarchy; `self` for this one.
#[must_use]
pub fn cgroup_of(process: &str) -> Option<String> {
    let text = read(&Path::new(PROC).join(process), "cgroup")?;
    text.lines().find_map(|line| Some(line.strip_prefix("0::")?.to_owned()))
}

/// The cgroup of the process that listens on `unix:///…`; `None` without a unified hierarchy, or
/// without such a process.
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

fn network(proc: &Path, process: &str, at: Wall) -> Option<Network> {
    let text = read(&proc.join(process), "net/dev")?;
    let default = DEFAULT_INTERFACE.to_owned();
    Some(Network { at, default, interfaces: host::interfaces(&text) })
}

/// All of a pod's containers share its network: the first process of any of them will do.
fn network_of_pod(proc: &Path, pod: &PodUsage, at: Wall) -> Option<Network> {
    let pid = pod.containers.iter().find_map(|(_, usage)| usage.tasks.first)?;
    network(proc, &pid.to_string(), at)
}

struct Reader<'a> {
    root: &'a Path,
    proc: &'a Path,
    question: &'a Question,
    buffer: Buffer,
    /// Names by major and minor number: the same few devices are in every cgroup.
    devices: BTreeMap<(u32, u32), String>,
}

/// A cgroup's files, but for the list of processes, which may be those below it.
struct Opened<'a> {
    dir: &'a CgroupDir,
    processes: Option<&'a str>,
    buffer: &'a mut Buffer,
}

impl cgroup::Files for Opened<'_> {
    fn read(&mut self, name: &str) -> Option<&str> {
        match name {
            PROCESSES => self.processes,
            name => self.dir.read(name, self.buffer),
        }
    }
}

impl Reader<'_> {
    fn below(
        &mut self,
        dir: &mut CgroupDir,
        levels: usize,
        pods: &mut Vec<PodUsage>,
        groups: &mut Vec<Usage>,
    ) {
        for name in dir.names() {
            let pod = name::pod_of(&name);
            if pod.is_none() && levels <= 1 {
                continue;
            }
            let Some(mut child) = dir.below(&name) else { continue };
            match pod {
                Some(pod) => pods.push(self.pod(pod, &mut child)),
                None => {
                    // Classes of pods; without cgroups of their own nothing here is known to be one.
                    if self.question.extent >= Extent::Cadvisor && dir.path() != "/" {
                        groups.push(self.usage(&child));
                    }
                    self.below(&mut child, levels - 1, pods, groups);
                }
            }
        }
    }

    /// A pod's own cgroup has no processes but those of its containers.
    fn pod(&mut self, pod: String, dir: &mut CgroupDir) -> PodUsage {
        let containers = self.containers(dir);
        let mut usage = self.usage(dir);
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
    fn containers(&mut self, pod: &mut CgroupDir) -> Vec<(String, Usage)> {
        let mut containers = Vec::new();
        for name in pod.names() {
            let Some(id) = cgroup::container_of(&name) else { continue };
            let Some(mut dir) = pod.below(&name) else { continue };
            let processes = self.wants_processes().then(|| self.processes_below(&mut dir, LEVELS));
            containers.push((id.to_owned(), self.usage_with(&dir, processes.as_deref())));
        }
        containers
    }

    fn usage_at(&mut self, path: &str) -> Option<Usage> {
        let dir = CgroupDir::open(self.root, path)?;
        // The summary shows since when the parts of the node exist; for pods and containers it takes that from their
        // statuses.
        Some(Usage { created: dir.created(), ..self.usage(&dir) })
    }

    /// A cgroup that consists of others has no number of processes: those are counted in the cgroups below it.
    fn usage(&mut self, dir: &CgroupDir) -> Usage {
        let wanted = self.wants_processes();
        let processes = wanted.then(|| dir.read(PROCESSES, &mut self.buffer)).flatten().map(str::to_owned);
        let mut usage = self.usage_with(dir, processes.as_deref());
        if usage.tasks.processes == Some(0) && usage.tasks.threads.is_some_and(|threads| threads > 0) {
            let Tasks { threads, threads_max, .. } = usage.tasks;
            usage.tasks = Tasks { threads, threads_max, ..Tasks::default() };
        }
        usage
    }

    fn wants_processes(&self) -> bool {
        self.question.extent >= Extent::Summary
    }

    fn usage_with(&mut self, dir: &CgroupDir, processes: Option<&str>) -> Usage {
        let Question { extent, at, .. } = *self.question;
        let mut files = Opened { dir, processes, buffer: &mut self.buffer };
        let mut usage = cgroup::usage(extent, at, &mut files);
        if extent >= Extent::Cadvisor {
            dir.path().clone_into(&mut usage.path);
            usage.created = dir.created();
            for device in &mut usage.io.devices {
                let known = self.devices.entry((device.major, device.minor));
                known
                    .or_insert_with(|| name_of_device(device.major, device.minor))
                    .clone_into(&mut device.name);
            }
            task_files::add(&mut usage.tasks, self.proc, processes.unwrap_or_default().lines());
        }
        usage
    }

    fn processes_below(&mut self, dir: &mut CgroupDir, levels: usize) -> String {
        let mut all = dir.read(PROCESSES, &mut self.buffer).unwrap_or_default().to_owned();
        if levels > 0 {
            for name in dir.names() {
                if let Some(mut child) = dir.below(&name) {
                    all.push_str(&self.processes_below(&mut child, levels - 1));
                }
            }
        }
        all
    }
}

/// `/sys/dev/block/253:0` leads to a directory with the device's name; empty without one.
fn name_of_device(major: u32, minor: u32) -> String {
    let target = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).unwrap_or_default();
    target.file_name().map(|name| format!("/dev/{}", name.to_string_lossy())).unwrap_or_default()
}

/// The block device that a path's file system is on, and what it has done (its file `stat`); `None` if it is on none.
#[must_use]
pub fn device_of(path: &Path) -> Option<(String, Option<String>)> {
    let number = std::fs::metadata(path).ok()?.dev();
    let (major, minor) = (u32::try_from(major(number)).ok()?, u32::try_from(minor(number)).ok()?);
    let name = name_of_device(major, minor);
    let stat = || read(Path::new("/sys/dev/block"), &format!("{major}:{minor}/stat"));
    (!name.is_empty()).then(|| (name, stat()))
}

fn directories(dir: &Path) -> impl Iterator<Item = (String, PathBuf)> + use<> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

fn read(dir: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(dir.join(file)).ok()
}

#[cfg(test)]
mod tests;
