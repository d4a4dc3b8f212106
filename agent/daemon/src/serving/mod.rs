//! The HTTPS API: builds the listener, and keeps its certificate and its client CAs current.
//!
//! ```text
//! configuration, files, certificate requests ─► serving certificate ─┐
//! clientCAFile or the kubeconfig's CA ─► client authorities ─────────┼─► agent_server::https
//! desired pods, statuses, runtime, logs ─► NodeView ─────────────────┘
//! ```
//! In: settings, the node's views. Out: a listener. Invariants: an unusable setting at the start is an error
//! that names it; an unusable file later is reported, and the earlier contents stay in use. See
//! docs/reference/server.md.

mod files;
pub(crate) mod local_connections;
pub mod metrics;
mod os_metrics;
pub mod pod_resources;
mod request;
pub(crate) mod reviews;
mod self_signed;
pub(crate) mod statistics;
mod tools;
mod view;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use agent_apiserver::ApiClient;
use agent_core::pleg::PlegEvent;
use agent_kubelet_api::drivers::{Checkpoints, Exec, Runtime, Statistics as RuntimeStatistics, Streaming};
use agent_kubelet_api::server_policy::policy::AccessPolicy;
use agent_linux::directory_hints::DirectoryHints;
use agent_server::api::{Api, Paths, Streams};
use agent_server::auth::{Clock, Guard};
use agent_server::https::{Https, Limits, Spawn};
use agent_server::tls::serving::ServingKey;
use agent_server::{read_only, tls};
use agent_types::event::{ContainerList, EventFact, EventKind};
use agent_types::ids::PodKey;
use anyhow::Context;
use k8s_openapi::api::core::v1::NodeAddress;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};
use tokio::sync::watch;

pub(crate) use tools::LOGS;

use files::Authorities;
use statistics::{Alarm, Statistics, StatisticsContext};
use view::{NodeConstants, NodeView};

use crate::cluster::plan;
use crate::node::cluster_problems::ClusterProblems;
use crate::node::node_events::NodeEvents;
use crate::pods::desired_pods::DesiredPods;
use crate::pods::pod_dirs::chain;
use crate::pods::status::StatusStore;
use crate::serving::metrics::Metrics;
use crate::serving::pod_resources::ClaimsReader;
use crate::settings::Settings;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;
use crate::volumes::csi::Csi;
use crate::volumes::local_volumes::LocalVolumes;

/// The node's views that the API shows.
pub struct Views {
    /// Pods that sources want.
    pub desired: watch::Receiver<DesiredPods>,
    /// Pods' statuses.
    pub statuses: StatusStore,
    /// Whether PLEG is healthy.
    pub health: watch::Receiver<Result<(), String>>,
    /// Receives that somebody has read the metrics.
    pub pleg: Sender<PlegEvent>,
    /// Whether device plugins can register.
    pub device_plugins: watch::Receiver<Result<(), String>>,
    /// Addresses of the Node; `None` on a standalone node.
    pub addresses: Option<watch::Receiver<Vec<NodeAddress>>>,
    /// The cgroup in which all pods' cgroups are.
    pub kubepods: String,
    /// Metrics of the node.
    pub metrics: Metrics,
    /// Resource claims, which metrics count.
    pub claims: ClaimsReader,
    /// CSI drivers, which report the usage of their volumes.
    pub csi: Csi,
    /// Paths of mounted volumes of type `local`.
    pub local_volumes: LocalVolumes,
    /// Receives the conditions of abnormal volumes.
    pub node_events: NodeEvents,
    /// Shows problems with the certificate.
    pub cluster_problems: ClusterProblems,
}

impl Spawn for Tasks {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send + 'static>>) {
        self.start(task);
    }
}

/// The driver's view of the API server; `None` until the node has an identity.
type ClientReceiver = watch::Receiver<Option<Arc<ApiClient>>>;

/// Inputs of [`start`].
pub struct Deps<R> {
    /// The node's settings.
    pub settings: Arc<Settings>,
    /// Name of the node.
    pub node_name: String,
    /// The API server; `None` on a standalone node.
    pub client: Option<ClientReceiver>,
    /// Whether NTP or the API server vouches for the clock; `None` on a standalone node.
    pub verified_clock: Option<watch::Receiver<bool>>,
    /// Views that the API shows.
    pub views: Views,
    /// CRI RuntimeService.
    pub runtime: Arc<R>,
    /// CRI ImageService.
    pub images: Arc<R>,
    /// The node's tasks.
    pub tasks: Tasks,
}

/// Starts the HTTPS API, if the configuration enables it and requests can be authorised, and the read-only port, if the
/// configuration enables it.
///
/// # Errors
/// A file or a TLS setting that cannot be used.
pub async fn start<R: Runtime + Streaming + Exec + Checkpoints + RuntimeStatistics>(
    deps: Deps<R>,
) -> anyhow::Result<()> {
    let Deps { settings, node_name, client, verified_clock, views, runtime, images, tasks } = deps;
    let kubelet = &settings.kubelet;
    let guarded = is_guarded(&settings, client.is_some());
    if !guarded && kubelet.read_only_port == 0 {
        return Ok(());
    }
    let hints = log_hints(&tasks);
    let (addresses, cluster_problems, metrics) =
        (views.addresses.clone(), views.cluster_problems.clone(), views.metrics.clone());
    let process = tools::ProcessFacts::new(&settings, tasks.now().wall);
    let about = NodeConstants {
        node_name: node_name.clone(),
        configuration: configuration(kubelet),
        gates: settings.gates.clone(),
        runtime_socket: agent_cri::socket_path(&kubelet.container_runtime_endpoint)?,
        root_dir: settings.options.root_dir.clone(),
    };
    let place = StatisticsContext::new(&settings, &node_name, views.kubepods.clone(), tasks.now().wall);
    let period = kubelet.volume_stats_agg_period;
    let statistics = Statistics::new(place, period, statistics::WAIT, runtime.clone(), images, tasks.clone())
        .with_drivers(views.csi.clone(), alarm(&settings, views.node_events.clone()))
        .with_local(views.local_volumes.clone());
    let view = Arc::new(NodeView::new(views, process, runtime, about, hints, statistics, tasks.clone()));
    let bind: IpAddr = kubelet.address.parse().with_context(|| format!("address {:?}", kubelet.address))?;
    if kubelet.read_only_port != 0 {
        let address = SocketAddr::new(bind, u16::try_from(kubelet.read_only_port).context("readOnlyPort")?);
        tracing::warn!(%address, "the read-only port shows this node's pods to anybody");
        let (bound, _) = watch::channel(None);
        tasks.start(read_only::serve(view.clone(), clock(&tasks), address, bound, tasks.stop().clone()));
    }
    if guarded {
        let server = HttpsServer { settings: settings.clone(), node_name, client, verified_clock, tasks };
        let certificate = server.certificate(addresses, cluster_problems, metrics).await?;
        let address = SocketAddr::new(bind, u16::try_from(kubelet.port).context("port")?);
        server.serve(view, address, certificate).await?;
    }
    Ok(())
}

/// Hints that a log has grown; without them logs cannot be followed.
fn log_hints(tasks: &Tasks) -> DirectoryHints {
    match DirectoryHints::new() {
        Ok((hints, reader)) => {
            tasks.start(async move {
                let error = reader.await;
                tracing::error!(error = %chain(&error), "logs are not followed any more");
            });
            hints
        }
        Err(error) => {
            let error = chain(&error);
            tracing::error!(%error, "logs cannot be followed (`kubectl logs -f`) until the agent starts again");
            DirectoryHints::none()
        }
    }
}

/// Starts `/healthz` on its own port, if the configuration names one.
///
/// # Errors
/// An address or a port that cannot be used.
pub fn start_healthz(kubelet: &KubeletConfiguration, tasks: &Tasks) -> anyhow::Result<()> {
    let bind: IpAddr = kubelet
        .healthz_bind_address
        .parse()
        .with_context(|| format!("healthzBindAddress {:?}", kubelet.healthz_bind_address))?;
    let port = u16::try_from(kubelet.healthz_port).context("healthzPort")?;
    if let Some(address) = agent_server::healthz::address(bind, port) {
        let (bound, _) = watch::channel(None);
        tasks.finish(agent_server::healthz::serve(address, bound, tasks.stop().clone()));
    }
    Ok(())
}

/// Sends an event for an abnormal volume, if the feature gate is on.
fn alarm(settings: &Settings, node_events: NodeEvents) -> Option<Alarm> {
    settings.gates.csi_volume_health.then(|| {
        let tell = move |pod: &PodKey, message| {
            node_events.event(
                pod,
                &EventFact {
                    kind: EventKind::Warning,
                    reason: "VolumeConditionAbnormal",
                    message,
                    container: None,
                    list: ContainerList::default(),
                    claim: None,
                    resource_version: None,
                },
            );
        };
        Arc::new(tell) as Alarm
    })
}

/// True if the HTTPS API can run: enabled, and requests can be authorised.
fn is_guarded(settings: &Settings, in_cluster: bool) -> bool {
    let kubelet = &settings.kubelet;
    let decidable = in_cluster || !AccessPolicy::new(kubelet, &settings.gates).needs_api_server();
    if kubelet.enable_server && !decidable {
        tracing::info!(
            "the HTTPS API is off: this node has no API server that could say who may use it; turn \
             authentication.webhook.enabled and authorization.mode: Webhook off if that is what you want"
        );
    }
    kubelet.enable_server && decidable
}

fn clock(tasks: &Tasks) -> Clock {
    let tasks = tasks.clone();
    Arc::new(move || tasks.now())
}

fn paths(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> Paths {
    Paths {
        debugging: kubelet.enable_debugging_handlers,
        system_log: kubelet.enable_system_log_handler,
        system_log_query: kubelet.enable_system_log_query,
        profiling: kubelet.enable_profiling_handler,
        debug_flags: kubelet.enable_debug_flags_handler,
        split_logs: gates.pod_logs_query_split_streams,
        checkpoint: gates.container_checkpoint,
    }
}

/// The configuration in `/configz`; the headers of `staticPodURL` are secret and left out.
fn configuration(kubelet: &KubeletConfiguration) -> serde_json::Value {
    let mut value = serde_json::to_value(kubelet).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("staticPodURLHeader");
    }
    value
}

/// Dependencies of the HTTPS server.
struct HttpsServer {
    settings: Arc<Settings>,
    node_name: String,
    client: Option<ClientReceiver>,
    verified_clock: Option<watch::Receiver<bool>>,
    tasks: Tasks,
}

impl HttpsServer {
    async fn serve<R: Runtime + Streaming + Exec + Checkpoints + RuntimeStatistics>(
        self,
        view: Arc<NodeView<R>>,
        address: SocketAddr,
        certificate: watch::Receiver<Option<ServingKey>>,
    ) -> anyhow::Result<()> {
        let Settings { kubelet, gates, .. } = &*self.settings;
        let tasks = &self.tasks;
        let client = self.client.clone().unwrap_or_else(|| watch::channel(None).1);
        let authorities = self.client_authorities(client.clone()).await?;
        let (asks, authorities) = match authorities {
            Some(view) => (true, view),
            None => (false, watch::channel(None).1),
        };
        let (tls, ignored) = tls::server_config(kubelet, agent_apiserver::provider(), certificate, asks)?;
        for setting in ignored {
            tracing::warn!(setting, "a TLS setting has no effect");
        }
        let policy = AccessPolicy::new(kubelet, gates);
        let guard = Guard::new(policy, &self.node_name, client, authorities, clock(tasks));
        let spawner: Arc<dyn Spawn> = Arc::new(tasks.clone());
        let idle = kubelet.streaming_connection_idle_timeout.to_std();
        let extended = gates.extend_web_sockets_to_kubelet;
        let streams = Streams { idle, spawner: spawner.clone(), extended };
        let handler = Arc::new(Api::new(view, guard, paths(kubelet, gates), streams, clock(tasks)));
        let https = Https { tls, limits: Limits::default(), handler, spawner };
        let (bound, _) = watch::channel(None);
        tasks.start(https.serve(address, bound, tasks.stop().clone()));
        Ok(())
    }

    /// CAs of client certificates: `clientCAFile`; for a node that joined with a token and names no file, the cluster's
    /// own CA from the kubeconfig.
    async fn client_authorities(
        &self,
        client: ClientReceiver,
    ) -> anyhow::Result<Option<tls::clients::AuthoritiesView>> {
        let file = &self.settings.kubelet.authentication.x509.client_ca_file;
        if !file.is_empty() {
            let path = PathBuf::from(file);
            let first = files::read_authorities(&path).await.with_context(|| {
                format!("unable to load client CA file {}: authentication.x509.clientCAFile", path.display())
            })?;
            return Ok(Some(files::follow(Authorities::File(path), Some(first), &self.tasks)));
        }
        let joined = self.settings.cluster.as_ref().filter(|cluster| cluster.join.is_some());
        Ok(joined.map(|cluster| {
            let source = Authorities::Kubeconfig(cluster.kubeconfig.clone(), client);
            files::follow(source, None, &self.tasks)
        }))
    }

    /// The serving certificate, in upstream's order: `tlsCertFile`, a request to the cluster's signer (`serverTLSBootstrap`), a
    /// self-signed one (cmd/kubelet/app/server.go, `InitializeTLS`).
    async fn certificate(
        &self,
        addresses: Option<watch::Receiver<Vec<NodeAddress>>>,
        cluster_problems: ClusterProblems,
        metrics: Metrics,
    ) -> anyhow::Result<watch::Receiver<Option<ServingKey>>> {
        let (kubelet, tasks) = (&self.settings.kubelet, &self.tasks);
        if !kubelet.tls_cert_file.is_empty() {
            let pair = (PathBuf::from(&kubelet.tls_cert_file), PathBuf::from(&kubelet.tls_private_key_file));
            let first = files::read_pair(&pair).await.context("tlsCertFile, tlsPrivateKeyFile")?;
            return Ok(files::follow_pair(pair, first, tasks));
        }
        let cert_dir = PathBuf::from(&self.settings.options.cert_dir);
        match (self.client.clone(), self.verified_clock.clone(), addresses) {
            (Some(client), Some(clock), Some(addresses)) if kubelet.server_tls_bootstrap => {
                request::start(request::Deps {
                    cert_dir: &cert_dir,
                    config: plan::serving_certificate(&self.node_name),
                    client,
                    clock,
                    addresses,
                    cluster_problems,
                    tasks: tasks.clone(),
                    metrics,
                })
            }
            _ => {
                let (name, now) = (self.node_name.clone(), tasks.now().wall);
                let dir = cert_dir.clone();
                let made = tasks.blocking(move || self_signed::ensure(&dir, &name, now)).await;
                let pair = made.context("the node is being stopped")??;
                let first = files::read_pair(&pair).await.with_context(|| cert_dir.display().to_string())?;
                Ok(files::follow_pair(pair, first, tasks))
            }
        }
    }
}
