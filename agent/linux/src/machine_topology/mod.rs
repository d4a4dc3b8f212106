//! The machine's processors and NUMA nodes, as the CPU, memory and topology managers need them.
//!
//! In: sysfs and procfs below given roots, so that a test may write a tree of another machine. Out: a [`MachineTopology`], read once at
//! the start. Invariants: the result is that of cadvisor on the same tree, its treatment of missing files included; each read is
//! bounded. A core's id is the lowest number of its processors. Two differences: a negative package id of a machine without a
//! description of its packages is 0, and columns of distances belong to the nodes in order (upstream: to ids, so gaps in ids end the
//! kubelet). Upstream: cadvisor v0.56, utils/sysinfo (`GetNodesInfo`) and machine (`GetSockets`).

mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use agent_managers::topology::machine::{MachineTopology, NodeMemory, NumaNode};
use agent_managers::topology::{Cpu, CpuTopology};
use agent_types::quantity_text::binary;
use agent_types::resources::node_allocatable::HUGEPAGES_PREFIX;
use orlop_config::formats::parse_cpu_list;

use crate::files::{FilesError, read_capped};

/// The largest file of sysfs that is read, bytes. Lists of processors are the longest ones.
const FILE_MAX: u64 = 64 << 10;
/// The largest `/proc/cpuinfo` that is read, bytes: about 2 KiB for each processor.
const CPUINFO_MAX: u64 = 64 << 20;
/// Caches of this level and below belong to one core, or to a few cores that are no group.
const CORE_CACHE_LEVEL: u32 = 2;

/// Where sysfs and procfs are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots { sys: PathBuf::from("/sys"), proc: PathBuf::from("/proc") }
    }
}

/// Reads the machine's topology.
///
/// # Errors
/// A file that upstream needs cannot be read or understood; a machine without processors.
pub fn read(roots: &Roots) -> Result<MachineTopology, FilesError> {
    let tree = Tree::open(roots)?;
    let found = match tree.node_ids() {
        ids if ids.is_empty() => tree.packages_as_nodes()?,
        ids => tree.nodes(&ids)?,
    };
    let mut cpus = BTreeMap::new();
    let mut nodes = BTreeMap::new();
    for (id, (node, cores)) in found {
        cpus.extend(cores.iter().flat_map(|core| core.cpus(id)));
        nodes.insert(id, node);
    }
    Ok(MachineTopology { cpus: CpuTopology::new(cpus, tree.sockets()?), nodes })
}

/// NUMA nodes with their cores.
type NodesWithCores = BTreeMap<u32, (NumaNode, Vec<CoreThreads>)>;

/// A core of a node: threads with the same numbers of core and package.
struct CoreThreads {
    core_id: i64,
    package_id: i64,
    /// In the order of their directories' names.
    threads: Vec<u32>,
    /// Id of the first cache that the core shares with a part of the node or with more than the node.
    uncore: Option<u32>,
}

impl CoreThreads {
    fn cpus(&self, node: u32) -> impl Iterator<Item = (u32, Cpu)> {
        let core = self.threads.iter().copied().min().unwrap_or_default();
        let socket = socket(self.package_id);
        let uncore = self.uncore.unwrap_or(socket);
        self.threads.iter().map(move |cpu| (*cpu, Cpu { core, socket, node, uncore }))
    }
}

/// The id of a package. Machines that do not describe their packages have -1 for each processor.
fn socket(package_id: i64) -> u32 {
    u32::try_from(package_id).unwrap_or(0)
}

/// A cache of a processor.
struct CpuCache {
    id: u32,
    level: u32,
    /// Number of processors that share it.
    cpus: usize,
}

struct Tree {
    nodes: PathBuf,
    cpus: PathBuf,
    cpuinfo: PathBuf,
    /// Processors that are online; `None`: the kernel has no hotplug of processors.
    online: Option<BTreeSet<u32>>,
}

impl Tree {
    fn open(roots: &Roots) -> Result<Tree, FilesError> {
        let system = roots.sys.join("devices/system");
        let cpus = system.join("cpu");
        let online = value_if_there(&cpus.join("online"), parse_cpu_list)?;
        Ok(Tree { nodes: system.join("node"), cpus, cpuinfo: roots.proc.join("cpuinfo"), online })
    }

    fn is_online(&self, cpu: u32) -> bool {
        self.online.as_ref().is_none_or(|online| online.contains(&cpu))
    }

    fn node_ids(&self) -> BTreeSet<u32> {
        names(&self.nodes).iter().filter_map(|name| text::numbered(name, "node")).collect()
    }

    fn nodes(&self, ids: &BTreeSet<u32>) -> Result<NodesWithCores, FilesError> {
        let mut nodes = NodesWithCores::new();
        for id in ids {
            let directory = self.nodes.join(format!("node{id}"));
            let cores = self.cores(&cpus_in(&directory))?;
            let memory = NodeMemory {
                total: value_if_readable(&directory.join("meminfo"), text::mem_total)?.unwrap_or(0),
                huge_pages: huge_pages(&directory.join("hugepages"))?,
            };
            let row = |row: &str| text::distances(row, ids);
            let distances = value_if_readable(&directory.join("distance"), row)?;
            nodes.insert(*id, (NumaNode { memory, distances }, cores));
        }
        Ok(nodes)
    }

    /// A kernel without NUMA: each package stands for a node without memory.
    fn packages_as_nodes(&self) -> Result<NodesWithCores, FilesError> {
        let all = cpus_in(&self.cpus);
        if all.is_empty() {
            return Err(malformed(&self.cpus, "no processor"));
        }
        let mut packages: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for cpu in all {
            if let Some(package) = self.topology(cpu, "physical_package_id")? {
                packages.entry(socket(package)).or_default().push(cpu);
            }
        }
        let mut nodes = NodesWithCores::new();
        for (id, cpus) in packages {
            nodes.insert(id, (NumaNode::default(), self.cores(&cpus)?));
        }
        Ok(nodes)
    }

    /// Cores of these processors, those offline left out.
    fn cores(&self, cpus: &[u32]) -> Result<Vec<CoreThreads>, FilesError> {
        let mut cores: Vec<CoreThreads> = Vec::new();
        for cpu in cpus.iter().copied().filter(|cpu| self.is_online(*cpu)) {
            let Some(core_id) = self.topology(cpu, "core_id")? else { continue };
            let Some(package_id) = self.topology(cpu, "physical_package_id")? else { continue };
            let same = |core: &&mut CoreThreads| (core.core_id, core.package_id) == (core_id, package_id);
            match cores.iter_mut().find(same) {
                Some(core) => core.threads.push(cpu),
                None => cores.push(CoreThreads { core_id, package_id, threads: vec![cpu], uncore: None }),
            }
        }
        self.find_uncore_caches(&mut cores);
        Ok(cores)
    }

    /// The first core whose caches cannot be read ends the search: it and the cores after it have no uncore cache, as upstream.
    fn find_uncore_caches(&self, cores: &mut [CoreThreads]) {
        let count = cores.len();
        for core in cores {
            let Some(caches) = core.threads.first().and_then(|cpu| self.caches(*cpu)) else { return };
            let of_node = count * core.threads.len();
            let is_uncore = |cache: &&CpuCache| cache.level > CORE_CACHE_LEVEL && cache.cpus != of_node;
            core.uncore = caches.iter().find(is_uncore).map(|cache| cache.id);
        }
    }

    /// The processor's caches; `None` if one of them cannot be read.
    fn caches(&self, cpu: u32) -> Option<Vec<CpuCache>> {
        let directory = self.cpus.join(format!("cpu{cpu}/cache"));
        let mut names = list(&directory)?;
        names.retain(|name| name.starts_with("index"));
        names.iter().map(|name| cache(&directory.join(name))).collect()
    }

    fn topology(&self, cpu: u32, name: &str) -> Result<Option<i64>, FilesError> {
        value_if_there(&self.cpus.join(format!("cpu{cpu}/topology/{name}")), text::number)
    }

    /// Physical packages that the machine reports, also those whose processors are all offline.
    fn sockets(&self) -> Result<usize, FilesError> {
        let reported = match contents(&self.cpuinfo, CPUINFO_MAX) {
            Ok(text) => text::packages(&text),
            Err(error) if is_missing(&error) => 0,
            Err(error) => return Err(error),
        };
        if reported > 0 {
            return Ok(reported);
        }
        let mut packages = BTreeSet::new();
        for cpu in cpus_in(&self.cpus).into_iter().filter(|cpu| self.is_online(*cpu)) {
            packages.insert(self.topology(cpu, "physical_package_id")?.unwrap_or(0));
        }
        Ok(packages.len())
    }
}

/// Numbers of the directories `cpu<n>`, in the order of their names: upstream's order, in which caches are looked for.
fn cpus_in(directory: &Path) -> Vec<u32> {
    names(directory).iter().filter_map(|name| text::numbered(name, "cpu")).collect()
}

/// A cache; `None` if one of its files cannot be read. Size and type are read for that reason only.
fn cache(directory: &Path) -> Option<CpuCache> {
    let read = |name: &str| contents(&directory.join(name), FILE_MAX).ok();
    let id = text::number(&read("id")?)?;
    text::kilobytes(&read("size")?)?;
    let level = text::number(&read("level")?)?;
    read("type")?;
    let cpus = text::mapped(&read("shared_cpu_map")?)?;
    Some(CpuCache { id, level, cpus })
}

fn huge_pages(directory: &Path) -> Result<BTreeMap<String, u64>, FilesError> {
    let mut bytes = BTreeMap::new();
    for name in names(directory) {
        let path = directory.join(&name);
        let size = text::page_bytes(&name).ok_or_else(|| malformed(&path, &name))?;
        let file = path.join("nr_hugepages");
        let pages: u64 = value(&file, &contents(&file, FILE_MAX)?, text::number)?;
        let resource = format!("{HUGEPAGES_PREFIX}{}", binary(i64::try_from(size).unwrap_or(i64::MAX)));
        bytes.insert(resource, size.saturating_mul(pages));
    }
    Ok(bytes)
}

/// Names in a directory, sorted; none if it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    list(directory).unwrap_or_default()
}

fn list(directory: &Path) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(directory).ok()?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    Some(names)
}

/// The trimmed text of a file.
fn contents(path: &Path, bytes_max: u64) -> Result<String, FilesError> {
    let bytes = read_capped(path, bytes_max)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The value of a file; `None` if there is no such file.
fn value_if_there<T>(path: &Path, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, FilesError> {
    match contents(path, FILE_MAX) {
        Ok(text) => value(path, &text, parse).map(Some),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The value of a file; `None` if it cannot be read.
fn value_if_readable<T>(path: &Path, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, FilesError> {
    contents(path, FILE_MAX).ok().map(|text| value(path, &text, parse)).transpose()
}

fn value<T>(path: &Path, text: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, FilesError> {
    parse(text).ok_or_else(|| malformed(path, text))
}

fn malformed(path: &Path, text: &str) -> FilesError {
    let shown: String = text.chars().take(100).collect();
    FilesError::at("parse", path)(io::Error::new(io::ErrorKind::InvalidData, format!("{shown:?}")))
}

fn is_missing(error: &FilesError) -> bool {
    error.source.kind() == io::ErrorKind::NotFound
}

#[cfg(test)]
mod tests;
