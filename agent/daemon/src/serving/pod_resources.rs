//! The pod resources API on `<root>/pod-resources/kubelet.sock`: gRPC, for exporters that label devices' figures with pods.
//! docs/reference/server.md.
//!
//! In: desired and active pods, assignments of the managers, resource claims, questions. Out: pods and containers with their own
//! processors, memory and devices. Invariants: asking changes nothing; a question beyond the rate limit is refused before anything is
//! looked at; without the socket the node goes on.

mod claims;

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_core::resource_claims::api::ClaimsView;
use agent_core::resource_managers::{MemoryPart, ResourcesView};
use agent_kubelet_api::metrics::families;
use agent_kubelet_api::pod_resources::{RateLimit, containers};
use agent_linux::files;
use agent_managers::cpu_set::CpuSet;
use agent_managers::devices::status::DeviceNodes;
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;
use orlop_proto::pod_resources::v1::pod_resources_lister_server as server_v1;
use orlop_proto::pod_resources::v1alpha1::pod_resources_lister_server as server_v1alpha1;
use orlop_proto::pod_resources::{v1, v1alpha1};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use crate::pods::desired_pods::{ActivePods, DesiredPods};
use crate::pods::pod_dirs::chain;
use crate::serving::local_connections::accepted;
use crate::serving::metrics::Metrics;
use crate::settings::Settings;
use crate::tasks::actor::Tasks;

/// Calls at once on one connection; answers are small.
const CALLS_MAX: usize = 16;
/// Connections at once: exporters keep one each.
const CONNECTIONS_MAX: usize = 32;

/// Reads the node's resource claims as they are now.
pub type ClaimsReader = Arc<dyn Fn() -> Arc<ClaimsView> + Send + Sync>;

/// The views of the node that the API shows.
#[derive(Clone)]
pub struct PodResourceViews {
    /// Pods that sources want.
    pub desired: watch::Receiver<DesiredPods>,
    /// Pods that may use something of the node.
    pub active: watch::Receiver<ActivePods>,
    /// Processors, memory and devices of device plugins.
    pub resources: watch::Receiver<Arc<ResourcesView>>,
    /// Devices of DRA drivers.
    pub claims: ClaimsReader,
}

/// The pods that the API shows. Clones share the rate limit.
#[derive(Clone)]
pub struct PodResources {
    shown: PodResourceViews,
    metrics: Metrics,
    active_only: bool,
    /// Claims of extended resources count.
    extended_claims: bool,
    // Held for a moment only.
    limit: Arc<Lock<RateLimit>>,
    tasks: Tasks,
}

impl PodResources {
    /// Of these pods.
    #[must_use]
    pub fn new(settings: &Settings, shown: PodResourceViews, metrics: Metrics, tasks: Tasks) -> PodResources {
        let active_only = settings.gates.kubelet_pod_resources_list_use_active_pods;
        let extended_claims = settings.gates.dra_extended_resource;
        PodResources { shown, metrics, active_only, extended_claims, limit: Arc::default(), tasks }
    }

    /// Serves it below the kubelet's root directory until the node stops. What keeps it from that is said.
    pub async fn start(self, root_dir: &Path) {
        let socket = root_dir.join("pod-resources").join("kubelet.sock");
        let (at, tasks) = (socket.clone(), self.tasks.clone());
        let ready = tasks.blocking(move || make_way(&at)).await;
        let listener = match ready {
            None => return,
            Some(Err(error)) => Err(error),
            Some(Ok(())) => UnixListener::bind(&socket).map_err(anyhow::Error::from),
        };
        match listener {
            Ok(listener) => tasks.start(self.serve(listener)),
            Err(error) => {
                let (socket, error) = (socket.display(), format!("{error:#}"));
                tracing::warn!(%socket, error, "nobody can ask for pods' resources");
            }
        }
    }

    async fn serve(self, listener: UnixListener) {
        let accepted = accepted("pod-resources/kubelet.sock", listener, CONNECTIONS_MAX, self.tasks.clone());
        let served = Server::builder()
            .concurrency_limit_per_connection(CALLS_MAX)
            .add_service(server_v1::PodResourcesListerServer::new(self.clone()))
            .add_service(server_v1alpha1::PodResourcesListerServer::new(self))
            .serve_with_incoming(accepted);
        if let Err(error) = served.await {
            tracing::warn!(error = %chain(&error), "nobody can ask for pods' resources any more");
        }
    }

    /// Upstream's words; a refused question is not counted.
    fn admit(&self) -> Result<(), Status> {
        let mut limit = self.limit.lock();
        match limit.allows(self.tasks.now().mono) {
            true => Ok(()),
            false => Err(Status::resource_exhausted("rejected by rate limit")),
        }
    }

    fn pods(&self, active_only: bool) -> Vec<Arc<Pod>> {
        let desired = self.shown.desired.borrow().clone();
        let active = self.shown.active.borrow();
        let is_told = |(uid, _): &(PodUid, Arc<Pod>)| !active_only || active.uids.contains(uid);
        desired.into_iter().filter(is_told).map(|(_, pod)| pod).collect()
    }

    /// The pod with what its containers have.
    fn pod_resources(&self, p: &Pod, view: &ResourcesView, claims: &ClaimsView) -> v1::PodResources {
        let of_plugins = view.devices.get(pod::uid(p));
        let (cpus, blocks) = (view.cpus.get(pod::uid(p)), view.memory.get(pod::uid(p)));
        let mut of_drivers = claims::of_pod(p, self.extended_claims, claims);
        let container = |name: &str| v1::ContainerResources {
            name: name.to_owned(),
            cpu_ids: cpus.and_then(|of| of.get(name)).map(ids).unwrap_or_default(),
            memory: blocks.and_then(|of| of.get(name)).into_iter().flatten().map(memory).collect(),
            devices: of_plugins.and_then(|of| of.get(name)).map(devices).unwrap_or_default(),
            dynamic_resources: of_drivers.remove(name).unwrap_or_default(),
        };
        v1::PodResources {
            name: pod::name(p).to_owned(),
            namespace: pod::namespace(p).to_owned(),
            containers: containers(p).map(container).collect(),
        }
    }
}

/// The directory, without the socket of the process before.
fn make_way(socket: &Path) -> anyhow::Result<()> {
    let dir = socket.parent().map(PathBuf::from).unwrap_or_default();
    files::make_dir(&dir, 0o750)?;
    match std::fs::symlink_metadata(socket) {
        Ok(found) if found.file_type().is_socket() => Ok(std::fs::remove_file(socket)?),
        Ok(_) => anyhow::bail!("something else is there; remove it"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}

fn memory(part: &MemoryPart) -> v1::ContainerMemory {
    let nodes = part.nodes.nodes().map(|id| v1::NumaNode { id: id.into() }).collect();
    v1::ContainerMemory {
        memory_type: part.resource.clone(),
        size: part.bytes,
        topology: Some(v1::TopologyInfo { nodes }),
    }
}

/// One entry for each device and NUMA node.
fn devices(of: &BTreeMap<String, DeviceNodes>) -> Vec<v1::ContainerDevices> {
    let one = |resource: &String, id: &String, node: Option<i64>| v1::ContainerDevices {
        resource_name: resource.clone(),
        device_ids: vec![id.clone()],
        topology: node.map(|id| v1::TopologyInfo { nodes: vec![v1::NumaNode { id }] }),
    };
    let mut entries = Vec::new();
    for (resource, devices) in of {
        for (id, nodes) in devices {
            let on_nodes = nodes.iter().map(|node| one(resource, id, Some(*node)));
            entries.extend(on_nodes.chain(nodes.is_empty().then(|| one(resource, id, None))));
        }
    }
    entries
}

#[tonic::async_trait]
impl server_v1::PodResourcesLister for PodResources {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.admit()?;
        self.metrics.asked_for_resources("v1", Some(&families::POD_RESOURCES_LIST));
        let pods = self.pods(self.active_only);
        let (view, claims) = (self.shown.resources.borrow().clone(), (self.shown.claims)());
        let pod_resources = pods.iter().map(|pod| self.pod_resources(pod, &view, &claims)).collect();
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.admit()?;
        self.metrics.asked_for_resources("v1", Some(&families::POD_RESOURCES_ALLOCATABLE));
        let view = self.shown.resources.borrow().clone();
        Ok(Response::new(v1::AllocatableResourcesResponse {
            cpu_ids: ids(&view.allocatable_cpus),
            memory: view.allocatable_memory.iter().map(memory).collect(),
            devices: devices(&view.allocatable_devices),
        }))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        self.admit()?;
        self.metrics.asked_for_resources("v1", Some(&families::POD_RESOURCES_GET));
        let v1::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let is = |pod: &&Arc<Pod>| pod::name(pod) == pod_name && pod::namespace(pod) == pod_namespace;
        let (view, claims) = (self.shown.resources.borrow().clone(), (self.shown.claims)());
        let found = self.pods(true).into_iter().find(|pod| is(&pod));
        let Some(pod) = found.map(|pod| self.pod_resources(&pod, &view, &claims)) else {
            self.metrics.no_resources_of("v1");
            let words = format!("pod {pod_name} in namespace {pod_namespace} not found");
            return Err(Status::new(Code::Unknown, words));
        };
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources: Some(pod) }))
    }
}

#[tonic::async_trait]
impl server_v1alpha1::PodResourcesLister for PodResources {
    async fn list(
        &self,
        _: Request<v1alpha1::ListPodResourcesRequest>,
    ) -> Result<Response<v1alpha1::ListPodResourcesResponse>, Status> {
        self.admit()?;
        self.metrics.asked_for_resources("v1alpha1", None);
        let view = self.shown.resources.borrow().clone();
        let container = |pod: &Pod, name: &str| {
            let own =
                view.devices.get(pod::uid(pod)).and_then(|of| of.get(name)).map(devices).unwrap_or_default();
            let entry = |entry: v1::ContainerDevices| v1alpha1::ContainerDevices {
                resource_name: entry.resource_name,
                device_ids: entry.device_ids,
            };
            v1alpha1::ContainerResources {
                name: name.to_owned(),
                devices: own.into_iter().map(entry).collect(),
            }
        };
        // It never knew sidecars.
        let pod = |pod: Arc<Pod>| v1alpha1::PodResources {
            name: pod::name(&pod).to_owned(),
            namespace: pod::namespace(&pod).to_owned(),
            containers: pod::containers(&pod).iter().map(|c| container(&pod, &c.name)).collect(),
        };
        let pod_resources = self.pods(false).into_iter().map(pod).collect();
        Ok(Response::new(v1alpha1::ListPodResourcesResponse { pod_resources }))
    }
}

#[cfg(test)]
mod tests;
