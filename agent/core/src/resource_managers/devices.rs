//! Events of device plugins and requests to them as plain values, and the devices of containers for the pods' workers.
//!
//! ```text
//! plugins ──DeviceEvent──► pod manager ──DeviceAction──► plugins, checkpoint
//!                               └──ContainerDevices in the placement──► pod workers
//! ```
//! In: connections, lists and answers of plugins. Out: questions, the checkpoint's text, [`ContainerDevices`]. Invariants: a question
//! has a number that its answer repeats, so that a late answer is never used for another question; the numbers of connections grow.
//! Upstream: pkg/kubelet/cm/devicemanager.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_managers::checkpoint;
use agent_managers::devices::allocation::{AllocateQuestion, AllocationStep};
use agent_managers::devices::choice::PreferredQuestion;
use agent_managers::devices::inventory::NodeDevices;
use agent_managers::devices::manager::{DeviceManager, DeviceState};
use agent_managers::devices::plugin::{AllocateResponse, Connection, PluginDevice, PluginOptions};
use agent_managers::devices::run_options::RunOptions;
use agent_managers::placement::PlaceStep;
use agent_managers::request::ContainerRequest;
use agent_types::ids::PodUid;
use agent_types::pod;
use agent_types::runtime::config::{Device, Mount};
use agent_types::runtime::placement::{ContainerDevices, PreStartCall};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{ResourceManagers, pod_request};

/// Time limit of a plugin for `Allocate` and for `GetPreferredAllocation`. Upstream waits without end, and all admissions wait too.
pub const ASK_TIME: Duration = Duration::from_secs(120);
/// Error text of gRPC for a call that took longer.
pub const ASK_TIMED_OUT: &str = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";

/// An event of a device plugin.
#[derive(Clone, Debug)]
pub enum DeviceEvent {
    /// A plugin registered.
    Connected {
        /// Number of the registration, larger than all earlier ones.
        connection: Connection,
        /// Resource of the plugin.
        resource: String,
        /// Answer to `GetDevicePluginOptions`.
        options: PluginOptions,
    },
    /// A plugin sent its list.
    Listed {
        /// Number of the registration.
        connection: Connection,
        /// All devices of the plugin.
        devices: Vec<PluginDevice>,
    },
    /// The stream of lists ended, or the plugin's socket vanished.
    Ended {
        /// Number of the registration.
        connection: Connection,
    },
    /// The answer to [`DeviceAction::AskPreferred`].
    Preferred {
        /// Number of the question.
        ask: u64,
        /// Pod of the question.
        uid: PodUid,
        /// Devices that the plugin prefers, or the call's error.
        answer: Result<BTreeSet<String>, String>,
    },
    /// The answer to [`DeviceAction::AskAllocate`].
    Allocated {
        /// Number of the question.
        ask: u64,
        /// Pod of the question.
        uid: PodUid,
        /// The first response, `None` if there is none, or the call's error.
        answer: Result<Option<AllocateResponse>, String>,
    },
    /// The answer to [`DeviceAction::WriteCheckpoint`].
    Written(Result<(), String>),
}

/// Requests of the device manager to its shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceAction {
    /// Call `GetPreferredAllocation`, within [`ASK_TIME`].
    AskPreferred {
        /// Number of the question.
        ask: u64,
        /// Pod that needs the devices.
        uid: PodUid,
        /// Content of the question.
        question: PreferredQuestion,
    },
    /// Call `Allocate`, within [`ASK_TIME`].
    AskAllocate {
        /// Number of the question.
        ask: u64,
        /// Pod that needs the devices.
        uid: PodUid,
        /// Content of the question.
        question: AllocateQuestion,
    },
    /// Replace the checkpoint. One at a time.
    WriteCheckpoint(String),
}

/// The time since the zero of the monotonic clock.
fn since_zero(at: Mono) -> Duration {
    Duration::from_nanos(at.0)
}

impl ResourceManagers {
    /// The same managers with the device manager's state of an earlier agent.
    #[must_use]
    pub fn with_devices(mut self, earlier: Option<DeviceState>, now: Now) -> ResourceManagers {
        // Without a topology manager nothing uses hints.
        let nodes = self.managers.topology.as_ref().map(|topology| topology.nodes.mask()).unwrap_or_default();
        self.managers.devices = DeviceManager::start(nodes, earlier, since_zero(now.mono));
        self.note_amounts(now);
        self
    }

    /// A plugin registered.
    pub fn connected(
        &mut self,
        connection: Connection,
        resource: &str,
        options: PluginOptions,
        now: Now,
    ) -> bool {
        self.managers.devices.connect_as(connection, resource, options);
        self.note_amounts(now)
    }

    /// A plugin sent its list; false if its connection is not the current one.
    pub fn listed(&mut self, connection: Connection, devices: Vec<PluginDevice>, now: Now) -> bool {
        let is_current = self.managers.devices.list(connection, devices).is_some();
        self.note_amounts(now) || is_current
    }

    /// The stream of a plugin ended; false if its connection is not the current one.
    pub fn ended(&mut self, connection: Connection, now: Now) -> bool {
        let was_current = self.managers.devices.end(connection, since_zero(now.mono));
        self.note_amounts(now);
        was_current
    }

    /// Removes the resources whose plugins are away for too long; true if there were some.
    pub fn remove_expired(&mut self, now: Now) -> bool {
        self.note_amounts(now)
    }

    /// Time at which [`ResourceManagers::remove_expired`] removes the next resource.
    #[must_use]
    pub fn next_removal(&self) -> Option<Mono> {
        let at = self.managers.devices.next_removal()?;
        u64::try_from(at.as_nanos()).ok().map(|at| Mono(at.saturating_add(1)))
    }

    /// Computes the amounts for the node status; true if resources were removed.
    fn note_amounts(&mut self, now: Now) -> bool {
        let NodeDevices { capacity, allocatable, removed } =
            self.managers.devices.node_devices(since_zero(now.mono));
        let any_removed = !removed.is_empty();
        // A name stays here until its plugin returns: each Node status must show the amount zero.
        self.node_devices.removed.extend(removed);
        self.node_devices.removed.retain(|name| !capacity.contains_key(name));
        (self.node_devices.capacity, self.node_devices.allocatable) = (capacity, allocatable);
        any_removed
    }

    /// A plugin answered, or the checkpoint was written: continues the pod's placement; `None` if it did not wait for this. A refused pod
    /// loses all its resources, unless its containers run (`runs`): then [`ResourceManagers::keep_only`] frees them later.
    pub fn answered(
        &mut self,
        uid: &PodUid,
        runs: bool,
        answer: impl FnOnce(&mut DeviceManager, &str) -> AllocationStep,
    ) -> Option<PlaceStep> {
        let step = self.managers.answered(uid.as_str(), |devices| answer(devices, uid.as_str()))?;
        if matches!(step, PlaceStep::Refused(_)) && !runs {
            self.managers.take_back(uid.as_str());
        }
        Some(step)
    }

    /// Begins to allocate the devices that a container of an admitted pod lacks when it is about to be created.
    pub fn allocate_at_start(&mut self, p: &Pod, container: &str) -> AllocationStep {
        self.managers.begin_at_start(&pod_request(p), container)
    }

    /// A plugin answered, or the checkpoint was written: continues the allocation for the start of a container.
    pub fn answered_at_start(
        &mut self,
        uid: &PodUid,
        answer: impl FnOnce(&mut DeviceManager, &str) -> AllocationStep,
    ) -> AllocationStep {
        self.managers.answered_at_start(uid.as_str(), |devices| answer(devices, uid.as_str()))
    }

    /// Resources of which the container has devices.
    #[must_use]
    pub fn resources_of(&self, uid: &PodUid, container: &str) -> BTreeSet<String> {
        let records = self.managers.devices.records().container(uid.as_str(), container);
        records.into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// The container does not start: it has devices of these resources only, as before [`ResourceManagers::allocate_at_start`].
    pub fn undo_start(&mut self, uid: &PodUid, container: &str, had: &BTreeSet<String>) {
        self.managers.devices.undo(uid.as_str(), container, had);
    }

    /// Gives up the placement of a pod that is not wanted any more, and frees its resources.
    pub fn give_up(&mut self, uid: &PodUid) {
        self.managers.take_back(uid.as_str());
    }

    /// True if a container has devices.
    #[must_use]
    pub fn has_devices(&self) -> bool {
        self.managers.devices.records().iter().next().is_some()
    }

    /// The content for the device manager's checkpoint.
    #[must_use]
    pub fn device_checkpoint(&self) -> String {
        checkpoint::devices::write(&self.managers.devices.state())
    }

    /// Resources among the pod's limits that the device manager counts. No other check of amounts applies to them.
    #[must_use]
    pub fn managed_resources<'p>(&self, p: &'p Pod) -> BTreeSet<&'p str> {
        if self.managers.devices.is_unused() {
            return BTreeSet::new();
        }
        let limits = pod::init_containers(p).iter().chain(pod::containers(p)).flat_map(limits);
        limits.filter(|name| self.managers.devices.manages(name)).collect()
    }

    /// Containers of a pod that ran when the agent started (`ran`): they keep their devices, and no plugin is asked. A container without
    /// devices was admitted before its plugin registered (simulation, devices, seed 3). Upstream uses the running containers; here all
    /// containers of a pod with a running one count, because the first list of the runtime has no names.
    pub(super) fn running_containers(p: &Pod, ran: bool) -> BTreeSet<String> {
        let containers = pod::init_containers(p).iter().chain(pod::containers(p)).filter(|_| ran);
        containers.map(|c| c.name.clone()).collect()
    }

    /// The devices of the pod's containers.
    pub(super) fn devices_of(&self, uid: &str, pod: Option<&Pod>) -> BTreeMap<String, ContainerDevices> {
        let devices = &self.managers.devices;
        let wants_some = |pod: &&Pod| !self.managed_resources(pod).is_empty();
        let Some(pod) = pod.filter(wants_some) else { return BTreeMap::new() };
        let of_container = |container: &ContainerRequest| {
            let manages = |name: &String| devices.manages(name);
            let asks = container.devices.limits.keys().any(manages);
            asks.then(|| (container.name.clone(), container_devices(devices, uid, container)))
        };
        pod_request(pod).containers.iter().filter_map(of_container).collect()
    }
}

fn limits(container: &Container) -> impl Iterator<Item = &str> {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.into_iter().flat_map(BTreeMap::keys).map(String::as_str)
}

fn container_devices(devices: &DeviceManager, uid: &str, container: &ContainerRequest) -> ContainerDevices {
    let RunOptions { envs, mounts, devices: nodes, annotations, cdi_devices } =
        devices.run_options(uid, &container.name).unwrap_or_default();
    let mount = |mount: agent_managers::devices::run_options::DeviceMount| Mount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        readonly: mount.read_only,
        ..Mount::default()
    };
    let node = |node: agent_managers::devices::run_options::DeviceNode| Device {
        container_path: node.container_path,
        host_path: node.host_path,
        permissions: node.permissions,
    };
    // A pod with a worker is active until its containers have ended; after that the worker creates no container.
    let pre_start = devices.start_work(uid, container, true).map_err(|error| error.to_string());
    let call = |question: agent_managers::devices::start::PreStartQuestion| PreStartCall {
        connection: question.connection.0,
        resource: question.resource,
        ids: question.ids,
    };
    let lacks_some = pre_start.as_ref().is_ok_and(|work| work.allocate);
    ContainerDevices {
        envs,
        mounts: mounts.into_iter().map(mount).collect(),
        devices: nodes.into_iter().map(node).collect(),
        annotations,
        cdi_devices,
        pre_start: pre_start.map(|work| work.pre_start.into_iter().map(call).collect()),
        lacks_some,
        health: devices.health(uid, &container.name),
    }
}
