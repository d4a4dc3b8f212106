//! The node as its API shows it.
//!
//! In: views of desired pods and statuses, the runtime, log files. Out: [`NodeApi`]. Invariant: reads have no side
//! effects, but that PLEG is told of a read of its metrics.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::pleg::PlegEvent;
use agent_kubelet_api::drivers::{Runtime, Statistics as RuntimeStatistics, Streaming};
use agent_kubelet_api::stats::ShownPod;
use agent_kubelet_api::stats::shown::shown;
use agent_linux::container_log::ContainerLog;
use agent_linux::directory_hints::DirectoryHints;
use agent_linux::machine;
use agent_server::api::{Check, LogPieces, LogRequest, MetricsOf, NodeApi, StreamRequest, StreamTo};
use agent_server::body::Broken;
use agent_types::ids::{PodKey, PodUid};
use agent_types::pod;
use agent_types::runtime::containers::Containers;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, SandboxState};
use bytes::Bytes;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use orlop_config::kubelet::FeatureGates;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::Views;
use super::os_metrics::OsMetrics;
use super::statistics::Statistics;
use super::tools::ProcessFacts;
use crate::cluster::plan::KUBELET_VERSION;
use crate::pods::desired_pods::DesiredPods;
use crate::pods::pod_dirs::chain;
use crate::pods::status::{PodView, PodViews, StatusStore};
use crate::runtime::exec_inputs;
use crate::serving::metrics::{Metrics, Scrape};
use crate::serving::pod_resources::ClaimsReader;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

/// Pieces that wait for a client; a slow client delays only its own log.
const PIECES_MAX: usize = 4;
/// CRI's number of `CONTAINER_RUNNING`.
const RUNNING: i32 = 1;

/// The view.
pub(super) struct NodeView<R> {
    pub(super) process: ProcessFacts,
    desired: watch::Receiver<DesiredPods>,
    statuses: StatusStore,
    health: watch::Receiver<Result<(), String>>,
    pleg: Sender<PlegEvent>,
    device_plugins: watch::Receiver<Result<(), String>>,
    pub(super) runtime: Arc<R>,
    about: Arc<NodeConstants>,
    hints: DirectoryHints,
    metrics: Metrics,
    claims: ClaimsReader,
    statistics: Statistics<R>,
    operating_system: OsMetrics,
    pub(super) tasks: Tasks,
}

/// Values that do not change while the node runs.
pub(super) struct NodeConstants {
    pub(super) node_name: String,
    /// The configuration in `/configz`.
    pub(super) configuration: Value,
    pub(super) gates: FeatureGates,
    /// The runtime's socket.
    pub(super) runtime_socket: PathBuf,
    /// Directory of pods (`--root-dir`).
    pub(super) root_dir: String,
}

impl<R: Runtime> NodeView<R> {
    pub(super) fn new(
        views: Views,
        process: ProcessFacts,
        runtime: Arc<R>,
        about: NodeConstants,
        hints: DirectoryHints,
        statistics: Statistics<R>,
        tasks: Tasks,
    ) -> NodeView<R> {
        let Views {
            desired, statuses, health, pleg, device_plugins, metrics, claims, cluster_problems, ..
        } = views;
        let operating_system = OsMetrics::new(&about.root_dir, cluster_problems, tasks.clone());
        NodeView {
            process,
            desired,
            statuses,
            health,
            pleg,
            device_plugins,
            runtime,
            about: Arc::new(about),
            hints,
            metrics,
            claims,
            statistics,
            operating_system,
            tasks,
        }
    }

    /// The pods with their published statuses.
    fn shown(&self) -> Vec<ShownPod> {
        let desired = self.desired.borrow().clone();
        let statuses = self.statuses.subscribe();
        let statuses = statuses.borrow();
        desired.iter().map(|(uid, pod)| shown(pod, statuses.get(uid).map(|view| &*view.status))).collect()
    }

    async fn running_pod(&self, uid: &PodUid) -> Result<Option<Pod>, String> {
        let (key, found) = self.runtime.inspect(uid).await.map_err(|e| chain(&e))?;
        let Some(key) = key else { return Ok(None) };
        let running = found.containers.into_iter().filter(|c| c.state == ContainerState::Running);
        let containers: Vec<Container> = running
            .map(|c| Container { name: c.name, image: Some(c.image), ..Container::default() })
            .collect();
        Ok((!containers.is_empty()).then(|| running_pod(&key, containers)))
    }
}

fn running_pod(key: &PodKey, containers: Vec<Container>) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(key.namespace.to_string()),
            uid: Some(key.uid.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers, ..PodSpec::default() }),
        status: None,
    }
}

impl<R: Runtime + Streaming + RuntimeStatistics> NodeApi for NodeView<R> {
    async fn health(&self) -> Vec<Check> {
        let device_plugins = self.device_plugins.borrow().clone();
        let syncloop = self.health.borrow().clone();
        vec![("ping", Ok(())), ("log", Ok(())), ("syncloop", syncloop), ("device-plugin", device_plugins)]
    }

    async fn pods(&self) -> Vec<Pod> {
        let desired = self.desired.borrow().clone();
        let statuses = self.statuses.subscribe();
        let statuses = statuses.borrow();
        let shown = |(uid, pod): (&PodUid, &Arc<Pod>)| {
            let mut pod = Pod::clone(pod);
            if let Some(view) = statuses.get(uid) {
                pod.status = Some(PodStatus::clone(&view.status));
            }
            pod
        };
        desired.iter().map(shown).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<(Arc<Pod>, Arc<PodStatus>)> {
        let desired = self.desired.borrow();
        let is = |pod: &&Arc<Pod>| {
            let key = pod::key(pod);
            &*key.namespace == namespace && &*key.name == name
        };
        let pod = desired.values().find(is)?.clone();
        let statuses = self.statuses.subscribe();
        let status = statuses.borrow().get(&pod::key(&pod).uid).map(|view| view.status.clone());
        Some((pod, status.unwrap_or_default()))
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, String> {
        let listed = self.runtime.list().await.map_err(|e| chain(&e))?;
        let mut pods = Vec::new();
        for listed in listed.iter().filter(|l| l.containers.values().any(|state| *state == RUNNING)) {
            pods.extend(self.running_pod(&listed.pod.uid).await?);
        }
        Ok(pods)
    }

    async fn metrics(&self, of: MetricsOf) -> String {
        match of {
            MetricsOf::Probes => return self.metrics.probes_text(),
            MetricsOf::Slis => return self.metrics.slis_text(),
            MetricsOf::OperatingSystem => return self.operating_system.text().await,
            MetricsOf::Node => {}
        }
        // A list that this causes is in the next text.
        self.pleg.send(PlegEvent::Scraped);
        let (about, metrics) = (self.about.clone(), self.metrics.clone());
        let (desired, statuses) = (self.desired.clone(), self.statuses.subscribe());
        let claims = (self.claims)();
        let text = self.tasks.blocking(move || {
            let (desired, statuses) = (desired.borrow().clone(), statuses.borrow().clone());
            metrics.text(&Scrape {
                node_name: &about.node_name,
                version: KUBELET_VERSION,
                cgroup_version: if machine::has_cgroup_v2() { 2 } else { 1 },
                gates: &about.gates,
                desired: &desired,
                statuses: &statuses,
                claims: &claims,
            })
        });
        // `None` means that the node is being stopped; then the result is not used.
        text.await.unwrap_or_default() + &self.statistics.claim_metrics(&self.shown()).await
    }

    fn checked(&self, check: &str, healthy: bool) {
        self.metrics.checked(check, healthy);
    }

    fn requested(&self, method: &str, path: &str) {
        self.metrics.request_began(method, path);
    }

    fn answered(&self, method: &str, path: &str, took: Duration) {
        self.metrics.request_ended(method, path, took);
    }

    async fn summary(&self, only_cpu_and_memory: bool) -> Result<String, String> {
        self.statistics.summary(only_cpu_and_memory, &self.shown()).await
    }

    async fn resource_metrics(&self) -> String {
        self.statistics.resource_metrics(&self.shown()).await
    }

    async fn cadvisor_metrics(&self) -> String {
        self.statistics.cadvisor_metrics(&self.shown()).await
    }

    fn configuration(&self) -> Value {
        self.about.configuration.clone()
    }

    async fn open_log(&self, request: LogRequest) -> Result<LogPieces, String> {
        let uid: PodUid = request.uid.as_str().into();
        let (_, found) = self.runtime.inspect(&uid).await.map_err(|e| chain(&e))?;
        let container = found.containers.into_iter().find(|c| c.id.as_str() == request.container_id);
        let container = container.ok_or_else(|| {
            format!("unable to retrieve container logs for containerd://{}", request.container_id)
        })?;
        let path = Path::new(&container.log_path);
        let log = ContainerLog::open(path, &request.options, &self.hints).await.map_err(|e| chain(&e))?;
        let (to, pieces) = mpsc::channel(PIECES_MAX);
        let ended = ended(self.statuses.subscribe(), uid, request.container_id);
        self.tasks.start(async move {
            if let Err(error) = log.send(&to, |piece| Ok(Bytes::from(piece)), ended).await {
                let problem = chain(&error);
                tracing::warn!(container = request.container, problem, "a log is not read to its end");
                // An error means that the client is gone; then the message is not needed.
                let _ = to.send(Err(Broken(problem))).await;
            }
        });
        Ok(pieces)
    }

    async fn stream_url(&self, request: StreamRequest) -> Result<String, String> {
        let uid: PodUid = request.uid.as_str().into();
        let (_, found) = self.runtime.inspect(&uid).await.map_err(|e| chain(&e))?;
        let url = match request.to {
            StreamTo::Exec(name, options) => {
                let id = running(found.containers, &name)?.id;
                let url = self.runtime.exec_url(&id, &options).await;
                if options.stdin && url.is_ok() {
                    let socket = self.about.runtime_socket.clone();
                    self.tasks.start(exec_inputs::follow(socket, id, self.tasks.clone()));
                }
                url
            }
            StreamTo::Attach(name, options) => {
                self.runtime.attach_url(&running(found.containers, &name)?.id, &options).await
            }
            StreamTo::Ports(ports) => {
                let ready = found.sandboxes.into_iter().find(|s| s.state == SandboxState::Ready);
                let sandbox = ready.ok_or_else(|| "the pod has no sandbox that is ready".to_owned())?;
                self.runtime.port_forward_url(&sandbox.id, &ports).await
            }
        };
        url.map_err(|e| chain(&e))
    }

    fn took_websocket(&self, subresource: &'static str) {
        self.metrics.took_websocket(subresource);
    }
}

/// The running instance of a container.
pub(super) fn running(containers: Containers, name: &str) -> Result<ContainerObserved, String> {
    let is = |c: &ContainerObserved| c.name == name && c.state == ContainerState::Running;
    containers.into_iter().find(is).ok_or_else(|| format!("container not found ({name:?})"))
}

/// Returns once the container does not run any more.
async fn ended(mut statuses: watch::Receiver<PodViews>, uid: PodUid, container_id: String) {
    let stopped = |views: &PodViews| !views.get(&uid).is_some_and(|view| runs(view, &container_id));
    // An error means that the node is being stopped.
    let _ = statuses.wait_for(stopped).await;
}

fn runs(view: &PodView, container_id: &str) -> bool {
    pod::container_statuses(&view.status).any(|container| {
        let is_it = container.container_id.as_deref().is_some_and(|id| id.ends_with(container_id));
        is_it && container.state.as_ref().is_some_and(|state| state.running.is_some())
    })
}
