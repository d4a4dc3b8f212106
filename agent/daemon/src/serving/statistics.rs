//! Usage of the node, its pods and its containers, gathered on request. docs/reference/stats.md.
//!
//! ```text
//! cgroupfs, /proc ─┐
//! the runtime ─────┼─► Snapshot, Measured ─► agent_kubelet_api::stats ─► texts
//! file systems ────┘        ▲ rates and volumes remembered
//! ```
//! In: the pods with their published statuses. Out: documents. Invariants: nothing is read between two requests, except
//! by a walk of volumes that outlasts its request; a value that cannot be read is left out of the document, and the log
//! has the reason.

mod claims;
mod layers;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::eviction::{PodUse, Uses};
use agent_kubelet_api::drivers::{Runtime, Statistics as RuntimeStatistics};
use agent_kubelet_api::stats::cgroup::Extent;
use agent_kubelet_api::stats::disk::{DiskIo, Filesystem, Layer, NodeDiskUsage, TreeUsage};
use agent_kubelet_api::stats::rates::Rates;
use agent_kubelet_api::stats::{
    RuntimeUsage, ShownPod, ShownVolume, Snapshot, Usage, cadvisor, resource, summary,
};
use agent_linux::cgroup_stats::{self, Processes, Question};
use agent_linux::{disk_use, machine, node_info, task_files};
use agent_types::failure::DriverError;
use agent_types::lock::Lock;
use agent_types::pod_paths::{HOSTS_FILE, LAST_WORDS_DIR};
use agent_types::resources::cgroups::name;
use agent_types::time::{Mono, Wall};
use agent_volumes::volume_table::Published;

pub(super) use volumes::{Alarm, WAIT};

use layers::{Layers, LayersAndImages};
use volumes::{MeasureMethod, VolumeUses};

use crate::pods::pod_dirs::chain;
use crate::settings::Settings;
use crate::tasks::actor::Tasks;
use crate::volumes::csi::Csi;
use crate::volumes::local_volumes::LocalVolumes;

const STOPPED: &str = "the node is being stopped";

/// Paths of this node.
#[derive(Clone, Debug)]
pub(crate) struct StatisticsContext {
    node_name: String,
    kubepods: String,
    system: Vec<(&'static str, String)>,
    root_dir: PathBuf,
    pod_logs_dir: PathBuf,
    /// File systems count the usage of volumes that have a project quota.
    project_quotas: bool,
    started: Wall,
}

impl StatisticsContext {
    pub(crate) fn new(
        settings: &Settings,
        node_name: &str,
        kubepods: String,
        started: Wall,
    ) -> StatisticsContext {
        let kubelet = &settings.kubelet;
        let configured = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let own = configured(&kubelet.kubelet_cgroups).or_else(|| cgroup_stats::cgroup_of("self"));
        let runtime = cgroup_stats::cgroup_of_listener(&kubelet.container_runtime_endpoint);
        let parts = [
            ("kubelet", own),
            ("runtime", runtime),
            ("misc", configured(&kubelet.system_cgroups)),
            ("pods", Some(kubepods.clone())),
        ];
        // A cgroup that is the whole hierarchy is not a part of it.
        let system = parts.into_iter().filter_map(|(name, path)| Some((name, path.filter(|p| p != "/")?)));
        StatisticsContext {
            node_name: node_name.to_owned(),
            kubepods,
            system: system.collect(),
            root_dir: PathBuf::from(&settings.options.root_dir),
            pod_logs_dir: PathBuf::from(&kubelet.pod_logs_dir),
            project_quotas: settings.gates.local_storage_capacity_isolation_fs_quota_monitoring,
            started,
        }
    }
}

/// Gathers the usage, and keeps the values that later requests need.
pub(crate) struct Statistics<R> {
    place: Arc<StatisticsContext>,
    runtime: Arc<R>,
    images: Arc<R>,
    // Held for a moment only, never across an await.
    rates: Lock<Rates>,
    volumes: VolumeUses,
    /// Volumes of claims, which CSI drivers measure: a separate cache, so that a driver that hangs does not delay
    /// directories.
    told: VolumeUses,
    csi: Csi,
    local: LocalVolumes,
    layers: Layers,
    tasks: Tasks,
}

/// A snapshot, and the runtime's figures if they were requested already.
struct StatisticsSample {
    snapshot: Snapshot,
    figures: Option<Vec<RuntimeUsage>>,
}

impl<R: Runtime + RuntimeStatistics> Statistics<R> {
    /// `period`: the greatest age of disk usage (negative: never walked). `patience`: how long a request waits for a
    /// walk.
    pub(crate) fn new(
        place: StatisticsContext,
        period: orlop_config::Duration,
        patience: Duration,
        runtime: Arc<R>,
        images: Arc<R>,
        tasks: Tasks,
    ) -> Statistics<R> {
        let volumes = VolumeUses::new(period, patience, tasks.clone());
        let told = VolumeUses::new(period, patience, tasks.clone());
        let layers = Layers::new(period);
        Statistics {
            place: Arc::new(place),
            runtime,
            images,
            rates: Lock::default(),
            volumes,
            told,
            csi: Csi::new(&tasks),
            local: LocalVolumes::default(),
            layers,
            tasks,
        }
    }

    /// Includes the volumes of the node's CSI drivers; their conditions go to `alarm`, if there is one.
    pub(super) fn with_drivers(self, csi: Csi, alarm: Option<Alarm>) -> Statistics<R> {
        let told = self.told.with_alarm(alarm);
        Statistics { csi, told, ..self }
    }

    /// Includes volumes of type `local`.
    pub(super) fn with_local(self, local: LocalVolumes) -> Statistics<R> {
        Statistics { local, ..self }
    }

    /// `/metrics/resource`.
    pub(super) async fn resource_metrics(&self, shown: &[ShownPod]) -> String {
        match self.look(Extent::Resource, shown).await {
            Ok(seen) => resource::text(Some(&seen.snapshot), shown),
            Err(problem) => {
                tracing::warn!(problem, "no statistics");
                resource::text(None, shown)
            }
        }
    }

    /// `/stats/summary`.
    pub(super) async fn summary(
        &self,
        only_cpu_and_memory: bool,
        shown: &[ShownPod],
    ) -> Result<String, String> {
        let extent = if only_cpu_and_memory { Extent::CpuAndMemory } else { Extent::Summary };
        let seen = self.look(extent, shown).await?;
        let measured = match only_cpu_and_memory {
            true => None,
            false => Some(self.measure(seen.figures, shown).await?),
        };
        Ok(summary::json(summary::Inputs {
            node_name: &self.place.node_name,
            booted: cgroup_stats::boot_time(),
            started: Some(self.place.started),
            snapshot: &seen.snapshot,
            shown,
            measured: measured.as_ref(),
        }))
    }

    /// Usage of these pods for the eviction manager, with or without their use of disks.
    pub(crate) async fn uses(
        &self,
        extent: Extent,
        storage: bool,
        shown: &[ShownPod],
    ) -> Result<Uses, String> {
        let seen = self.look(extent, shown).await?;
        let measured = match storage {
            true => Some(self.measure(seen.figures, shown).await?),
            false => None,
        };
        let of = |pod: &ShownPod| {
            Some((pod.uid.as_str().into(), PodUse::of(pod, &seen.snapshot, measured.as_ref())?))
        };
        Ok(shown.iter().filter_map(of).collect())
    }

    /// The part of `/metrics` about volumes of claims. Drivers are asked as rarely as for the summary; no directory is
    /// walked.
    pub(super) async fn claim_metrics(&self, shown: &[ShownPod]) -> String {
        claims::text(shown, &self.told.of(self.of_claims(shown)).await)
    }

    /// `/metrics/cadvisor`.
    pub(super) async fn cadvisor_metrics(&self, shown: &[ShownPod]) -> String {
        let seen = self.look(Extent::Cadvisor, shown).await;
        let seen = seen.map_err(|problem| tracing::warn!(problem, "no statistics")).ok();
        let (place, at) = (self.place.clone(), self.tasks.now().wall);
        let read = self.tasks.blocking(move || (place.machine(), place.root_filesystem(at))).await;
        let (machine, root) = read.unwrap_or_default();
        cadvisor::text(cadvisor::Inputs {
            machine: machine.as_ref(),
            snapshot: seen.as_ref().map(|seen| &seen.snapshot),
            shown,
            root: root.as_ref(),
            at,
        })
    }

    /// Reads the unified hierarchy if there is one, otherwise asks the runtime.
    async fn look(&self, extent: Extent, shown: &[ShownPod]) -> Result<StatisticsSample, String> {
        let mut seen = if machine::has_cgroup_v2() {
            let question = Question {
                at: self.tasks.now().wall,
                extent,
                pods: self.place.kubepods.clone(),
                system: self.place.system.clone(),
            };
            let read = self.tasks.blocking(move || cgroup_stats::snapshot(&question)).await;
            StatisticsSample { snapshot: read.ok_or(STOPPED)?.map_err(|e| chain(&e))?, figures: None }
        } else {
            self.look_at_runtime(extent, shown).await?
        };
        self.rates.lock().apply(&mut seen.snapshot);
        Ok(seen)
    }

    async fn look_at_runtime(&self, extent: Extent, shown: &[ShownPod]) -> Result<StatisticsSample, String> {
        let figures = self.runtime.container_stats().await.map_err(|e| chain(&e))?;
        let at = self.tasks.now().wall;
        // Only the runtime knows which pod a sandbox belongs to.
        let listed = match extent {
            Extent::Cadvisor => self.runtime.list().await.map_err(|e| chain(&e))?,
            _ => Vec::new(),
        };
        let mut sandboxes: BTreeMap<String, String> = BTreeMap::new();
        for pod in listed {
            let ready = pod.sandboxes.into_iter().find(|(_, ready)| *ready);
            let key = name::key(pod.pod.uid.as_str());
            sandboxes.extend(ready.map(|(id, _)| (key, id.to_string())));
        }
        let shown = shown.to_vec();
        let read = move || {
            let (node, network) = cgroup_stats::node(at);
            let mut snapshot = Snapshot::of_runtime(node, &shown, &figures);
            if extent >= Extent::Summary {
                snapshot.network = network;
                add_processes(&mut snapshot, &sandboxes, extent, at);
            }
            StatisticsSample { snapshot, figures: Some(figures) }
        };
        self.tasks.blocking(read).await.ok_or_else(|| STOPPED.to_owned())
    }

    async fn measure(
        &self,
        figures: Option<Vec<RuntimeUsage>>,
        shown: &[ShownPod],
    ) -> Result<NodeDiskUsage, String> {
        let now = self.tasks.now();
        let fresh = if figures.is_none() { self.layers.fresh(now.mono, shown) } else { None };
        let (layers, images) = match fresh {
            Some(told) => told,
            None => self.ask_for_layers(figures, now.mono).await,
        };
        let (place, pods) = (self.place.clone(), shown.to_vec());
        let read = self.tasks.blocking(move || place.measure(&pods, layers, images, now.wall)).await;
        let mut measured = read.ok_or(STOPPED)?;
        let (walked, told) =
            tokio::join!(self.volumes.of(self.place.volumes(shown)), self.told.of(self.of_claims(shown)));
        measured.volumes = walked;
        measured.volumes.extend(told);
        Ok(measured)
    }

    /// Volumes of claims of running pods that can be measured: those of registered CSI drivers, and the file systems of
    /// volumes of type `local`.
    fn of_claims(&self, shown: &[ShownPod]) -> BTreeMap<(String, String), MeasureMethod> {
        let runs = |pod: &str| shown.iter().find(|s| s.uid == pod && !s.containers.is_empty());
        let way = |(target, of): (&String, &Published)| {
            let pod = runs(of.pod.as_str())?.key();
            let endpoint = self.csi.registered.endpoint(&of.key.driver)?;
            let (handle, target) = (of.key.handle.clone(), PathBuf::from(target));
            Some((
                (of.pod.to_string(), of.name.clone()),
                MeasureMethod::Ask { endpoint, handle, target, pod },
            ))
        };
        let local = self.local.all().into_iter();
        let local = local.filter(|((pod, _), _)| runs(pod.as_str()).is_some());
        let local = local.map(|((pod, name), path)| ((pod.to_string(), name), MeasureMethod::Look(path)));
        let published = self.csi.volumes.all_published();
        published.iter().filter_map(way).chain(local).collect()
    }

    /// The layers are part of the runtime's figures of containers, which may be known already.
    async fn ask_for_layers(&self, figures: Option<Vec<RuntimeUsage>>, now: Mono) -> LayersAndImages {
        let (figures, images) = tokio::join!(
            async {
                match figures {
                    Some(figures) => Ok(figures),
                    None => self.runtime.container_stats().await,
                }
            },
            self.images.image_filesystem()
        );
        let (figures, images) = (ok_or_log(figures), ok_or_log(images));
        let complete = figures.is_some() && images.is_some();
        let layers = figures.unwrap_or_default().into_iter().filter_map(|f| Some((f.id, f.layer?)));
        let told = (layers.collect(), images.flatten());
        if complete {
            self.layers.remember(now, &told);
        }
        told
    }
}

/// A document without the runtime's figures is better than none.
fn ok_or_log<T>(answer: Result<T, DriverError>) -> Option<T> {
    answer
        .map_err(|error| tracing::warn!(error = chain(&error), "statistics without the runtime's figures"))
        .ok()
}

/// Counts processes, and finds each pod's network through one of them. Needed where cgroups do not list their
/// processes.
fn add_processes(snapshot: &mut Snapshot, sandboxes: &BTreeMap<String, String>, extent: Extent, at: Wall) {
    let processes = cgroup_stats::processes();
    for pod in &mut snapshot.pods {
        let sandbox = sandboxes.get(&pod.pod).cloned();
        pod.containers.extend(sandbox.map(|id| (id, Usage { at, ..Usage::default() })));
        for (id, usage) in &mut pod.containers {
            let Some(found) = processes.get(id) else { continue };
            add(usage, found, extent);
        }
        let pid = pod.containers.iter().find_map(|(_, usage)| usage.tasks.first);
        pod.network = pid.and_then(|pid| cgroup_stats::network_of_process(pid, at));
    }
}

fn add(usage: &mut Usage, found: &Processes, extent: Extent) {
    usage.path.clone_from(&found.path);
    usage.tasks.processes = u64::try_from(found.pids.len()).ok();
    usage.tasks.first = found.pids.first().copied();
    if extent >= Extent::Cadvisor {
        let pids: Vec<String> = found.pids.iter().map(u32::to_string).collect();
        task_files::add(&mut usage.tasks, Path::new("/proc"), pids.iter().map(String::as_str));
    }
}

impl StatisticsContext {
    fn machine(&self) -> Option<cadvisor::Machine> {
        let facts = node_info::machine_facts(None);
        let facts =
            facts.map_err(|error| tracing::warn!(error = chain(&error), "no facts of the machine")).ok()?;
        let (cores, sockets) = machine::cores_and_sockets().unzip();
        Some(cadvisor::Machine {
            boot_id: facts.boot_id,
            machine_id: facts.machine_id,
            system_uuid: facts.system_uuid,
            cpus: facts.amounts.cpus,
            cores,
            sockets,
            memory_bytes: facts.amounts.memory_bytes,
            swap_bytes: facts.swap_bytes,
        })
    }

    fn root_filesystem(&self, at: Wall) -> Option<cadvisor::Root> {
        let (device, stat) = cgroup_stats::device_of(&self.root_dir)?;
        let disk = stat.and_then(|text| DiskIo::of_stat(&text));
        Some(cadvisor::Root { device, filesystem: filesystem(&self.root_dir, at)?, disk })
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    fn volumes(&self, shown: &[ShownPod]) -> BTreeMap<(String, String), MeasureMethod> {
        let of = |pod: &ShownPod| {
            let dir = self.pod_dir(&pod.uid);
            let of = |v: &ShownVolume| {
                let path = dir.join(v.below.as_ref()?);
                let way = if self.project_quotas && v.countable {
                    MeasureMethod::Count(path)
                } else {
                    MeasureMethod::Walk(path)
                };
                Some(((pod.uid.clone(), v.name.clone()), way))
            };
            pod.volumes.iter().filter_map(of).collect::<Vec<_>>()
        };
        shown.iter().filter(|pod| !pod.containers.is_empty()).flat_map(of).collect()
    }

    fn measure(
        &self,
        shown: &[ShownPod],
        layers: BTreeMap<String, Layer>,
        images: Option<Layer>,
        at: Wall,
    ) -> NodeDiskUsage {
        let mountpoints: BTreeSet<&String> = layers.values().chain(&images).map(|l| &l.mountpoint).collect();
        let asked = |path: &String| Some((path.clone(), filesystem(Path::new(path), at)?));
        let filesystems = mountpoints.into_iter().filter_map(asked).collect();
        let mut measured = NodeDiskUsage {
            root: filesystem(&self.root_dir, at),
            images,
            layers,
            filesystems,
            ..NodeDiskUsage::default()
        };
        for pod in shown.iter().filter(|pod| !pod.containers.is_empty()) {
            let logs = self.pod_logs_dir.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid));
            for container in &pod.containers {
                let taken = disk_use::files_of(&logs.join(&container.name), at);
                let key = (pod.uid.clone(), container.name.clone());
                measured.logs.extend(taken.map(|taken| (key, taken)));
            }
            let own = self.own_files(&pod.uid, at);
            measured.own_files.extend(own.map(|taken| (pod.uid.clone(), taken)));
        }
        measured
    }
}

impl StatisticsContext {
    /// Usage of the files below the pod's directory that the node made and that containers can write to, without
    /// volumes.
    fn own_files(&self, uid: &str, at: Wall) -> Option<TreeUsage> {
        let dir = self.pod_dir(uid);
        // A pod that mounts a hosts file of its own has none here.
        let parts = [HOSTS_FILE, LAST_WORDS_DIR]
            .map(|part| disk_use::tree(&dir.join(part), at, disk_use::LIMITS).ok());
        parts.into_iter().flatten().reduce(TreeUsage::plus)
    }
}

fn filesystem(path: &Path, at: Wall) -> Option<Filesystem> {
    let found = disk_use::filesystem(path, at);
    found.map_err(|error| tracing::warn!(error = chain(&error), "a file system cannot be asked")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_containers_leave_as_their_last_words_is_counted() {
        const MI: usize = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let place = StatisticsContext {
            node_name: "n".to_owned(),
            kubepods: String::new(),
            system: Vec::new(),
            root_dir: dir.path().to_owned(),
            pod_logs_dir: dir.path().join("logs"),
            project_quotas: false,
            started: Wall(0),
        };
        let shown = ShownPod {
            uid: "u1".to_owned(),
            containers: vec![agent_kubelet_api::stats::ShownContainer::default()],
            ..ShownPod::default()
        };
        let of_pod = || {
            let pods = std::slice::from_ref(&shown);
            place.measure(pods, BTreeMap::new(), None, Wall(7)).own_files.remove("u1")
        };
        assert_eq!(of_pod(), None);
        let own = dir.path().join("pods/u1");
        std::fs::create_dir_all(own.join(LAST_WORDS_DIR).join("c")).unwrap();
        std::fs::write(own.join(HOSTS_FILE), vec![7_u8; MI]).unwrap();
        let before = of_pod().unwrap();
        assert!(before.bytes >= MI as u64 && before.bytes < 2 * MI as u64, "{before:?}");
        // Termination messages of a running instance and of one that ended.
        for attempt in ["00000000", "00000001"] {
            std::fs::write(own.join(LAST_WORDS_DIR).join("c").join(attempt), vec![7_u8; 8 * MI]).unwrap();
        }
        let after = of_pod().unwrap();
        assert!(after.bytes >= before.bytes + 16 * MI as u64, "{before:?} {after:?}");
        assert_eq!((after.inodes, after.at), (before.inodes + 2, Wall(7)));
    }
}
