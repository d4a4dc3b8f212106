//! The HTTPS API: builds the listener, and keeps its certificate and its client CAs current.
//!
//! ```text
//! configuration, files, certificate requests ─► serving certificate ─┐
//! clientCAFile or the kubeconfig's CA ─► client authorities ─────────┼─► agent_server::https
//! desired pods, statuses, runtime, logs ─► NodeView ─────────────────┘
//! ```
//! In: settings, the node's views. Out: a listener. Invariants: an unusable setting at the start is an error
//! that names it; an unusable file later is reported, and the earlier contents stay in use. See
//! docs/server.md.

mod files;
pub mod metrics;
pub mod pod_resources;
mod request;
mod self_signed;
pub(crate) mod statistics;
mod tools;
mod view;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use agent_apiserver::ApiClient;
use agent_kubelet_api::drivers::{Checkpoints, Exec, Runtime, Statistics as RuntimeStatistics, Streaming};
use agent_kubelet_api::server_policy::policy::AccessPolicy;
use agent_linux::directory_hints::DirectoryHints;
use agent_server::api::{Api, Paths, Streams};
use agent_server::auth::{Clock, Guard};
use agent_server::https::{Https, Limits, Spawn};
use agent_server::tls::serving::ServingKey;
use agent_server::{read_only, tls};
use agent_types::declared_features::WEBSOCKETS;
use agent_types::event::{ContainerList, EventFact, EventKind};
use agent_types::ids::PodKey;
use agent_volumes::csi::request::HEALTH_GATE;
use anyhow::Context;
use k8s_openapi::api::core::v1::NodeAddress;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};
use tokio::sync::watch;

pub(crate) use tools::LOGS;

use files::Authorities;
use statistics::{Alarm, Place, Statistics};
use view::{About, NodeView};

use crate::cluster::plan;
use crate::node::cluster_problems::Board;
use crate::node::node_events::Outlets;
use crate::pods::manager_task::DesiredPods;
use crate::pods::pod_dirs::chain;
use crate::pods::status::StatusStore;
use crate::process::cli::Settings;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;
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
    /// Addresses of the Node; `None` on a standalone node.
    pub addresses: Option<watch::Receiver<Vec<NodeAddress>>>,
    /// The cgroup in which all pods' cgroups are.
    pub kubepods: String,
    /// What is counted.
    pub metrics: Metrics,
    /// CSI drivers, which tell of their volumes.
    pub csi: Csi,
    /// Where volumes of type `local` are mounted.
    pub local_volumes: LocalVolumes,
    /// Who is told of volumes with which something is wrong.
    pub outlets: Outlets,
    /// Where trouble with the certificate is shown.
    pub board: Board,
}

impl Spawn for Tasks {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send + 'static>>) {
        self.start(task);
    }
}

/// Starts the HTTPS API, if the configuration wants one and somebody can decide who may use it, and the read-only port,
/// if it wants that.
///
/// # Errors
/// A file or a TLS setting that cannot be used.
pub async fn start<R: Runtime + Streaming + Exec + Checkpoints + RuntimeStatistics>(
    settings: &Arc<Settings>,
    node_name: &str,
    client: Option<watch::Receiver<Option<Arc<ApiClient>>>>,
    views: Views,
    (runtime, images): (Arc<R>, Arc<R>),
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let kubelet = &settings.kubelet;
    let guarded = is_guarded(kubelet, client.is_some());
    if !guarded && kubelet.read_only_port == 0 {
        return Ok(());
    }
    let hints = match DirectoryHints::new() {
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
    };
    let (addresses, board) = (views.addresses.clone(), views.board.clone());
    let process = tools::ProcessFacts::new(settings, tasks.now().wall);
    let about = About {
        node_name: node_name.to_owned(),
        configuration: configuration(kubelet),
        gates: FeatureGates::of(kubelet),
        runtime_socket: agent_cri::socket_path(&kubelet.container_runtime_endpoint)?,
    };
    let metrics = views.metrics.clone();
    let place = Place::new(settings, node_name, views.kubepods.clone(), tasks.now().wall);
    let patience = (kubelet.volume_stats_agg_period, statistics::WAIT);
    let statistics = Statistics::new(place, patience, (runtime.clone(), images), tasks.clone())
        .with_drivers(views.csi.clone(), alarm(kubelet, views.outlets.clone()))
        .with_local(views.local_volumes.clone());
    let view = NodeView::new((views, process), runtime, about, hints, statistics, tasks.clone());
    let view = Arc::new(view);
    let bind: IpAddr = kubelet.address.parse().with_context(|| format!("address {:?}", kubelet.address))?;
    if kubelet.read_only_port != 0 {
        let address = SocketAddr::new(bind, u16::try_from(kubelet.read_only_port).context("readOnlyPort")?);
        tracing::warn!(%address, "the read-only port shows this node's pods to anybody");
        let (bound, _) = watch::channel(None);
        tasks.start(read_only::serve(view.clone(), clock(tasks), address, bound, tasks.stop().clone()));
    }
    if guarded {
        let counted = (tasks, &metrics);
        let certificate = certificate(settings, node_name, client.clone(), addresses, board, counted).await?;
        let address = SocketAddr::new(bind, u16::try_from(kubelet.port).context("port")?);
        serve_https(settings, node_name, client, view, (address, certificate), tasks).await?;
    }
    Ok(())
}

/// Makes an event of it when a driver says that something is wrong with a volume, where the feature is on.
fn alarm(kubelet: &KubeletConfiguration, outlets: Outlets) -> Option<Alarm> {
    FeatureGates::of(kubelet).enabled(HEALTH_GATE).then(|| {
        let tell = move |pod: &PodKey, message| {
            outlets.event(
                pod,
                &EventFact {
                    kind: EventKind::Warning,
                    reason: "VolumeConditionAbnormal",
                    message,
                    container: None,
                    list: ContainerList::default(),
                    claim: None,
                },
            );
        };
        Arc::new(tell) as Alarm
    })
}

/// Whether there is to be an HTTPS API.
fn is_guarded(kubelet: &KubeletConfiguration, in_cluster: bool) -> bool {
    let decidable = in_cluster || !AccessPolicy::new(kubelet).needs_api_server();
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

async fn serve_https<R: Runtime + Streaming + Exec + Checkpoints + RuntimeStatistics>(
    settings: &Arc<Settings>,
    node_name: &str,
    client: Option<watch::Receiver<Option<Arc<ApiClient>>>>,
    view: Arc<NodeView<R>>,
    (address, certificate): (SocketAddr, watch::Receiver<Option<ServingKey>>),
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let kubelet = &settings.kubelet;
    let client = client.unwrap_or_else(|| watch::channel(None).1);
    let authorities = client_authorities(settings, client.clone(), tasks).await?;
    let (asks, authorities) = match authorities {
        Some(view) => (true, view),
        None => (false, watch::channel(None).1),
    };
    let (tls, ignored) = tls::server_config(kubelet, agent_apiserver::provider(), certificate, asks)?;
    for setting in ignored {
        tracing::warn!(setting, "a TLS setting has no effect");
    }
    let guard = Guard::new(AccessPolicy::new(kubelet), node_name, client, authorities, clock(tasks));
    let spawner: Arc<dyn Spawn> = Arc::new(tasks.clone());
    let idle = kubelet.streaming_connection_idle_timeout.to_std();
    let gates = FeatureGates::of(kubelet);
    let extended = gates.enabled(WEBSOCKETS);
    let streams = Streams { idle, spawner: spawner.clone(), extended };
    let handler = Arc::new(Api::new(view, guard, paths(kubelet, &gates), streams, clock(tasks)));
    let https = Https { tls, limits: Limits::default(), handler, spawner };
    let (bound, _) = watch::channel(None);
    tasks.start(https.serve(address, bound, tasks.stop().clone()));
    Ok(())
}

fn paths(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> Paths {
    Paths {
        debugging: kubelet.enable_debugging_handlers,
        system_log: kubelet.enable_system_log_handler,
        system_log_query: kubelet.enable_system_log_query,
        profiling: kubelet.enable_profiling_handler,
        debug_flags: kubelet.enable_debug_flags_handler,
        split_logs: gates.enabled("PodLogsQuerySplitStreams"),
    }
}

/// As `/configz` shows it; the headers of `staticPodURL` are secrets.
fn configuration(kubelet: &KubeletConfiguration) -> serde_json::Value {
    let mut value = serde_json::to_value(kubelet).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("staticPodURLHeader");
    }
    value
}

/// Who may sign client certificates: `clientCAFile`; for a node that joined with a token and names no file, the cluster's
/// own CA, which the kubeconfig holds.
async fn client_authorities(
    settings: &Arc<Settings>,
    client: watch::Receiver<Option<Arc<ApiClient>>>,
    tasks: &Tasks,
) -> anyhow::Result<Option<tls::clients::AuthoritiesView>> {
    let file = &settings.kubelet.authentication.x509.client_ca_file;
    if !file.is_empty() {
        let path = PathBuf::from(file);
        let first = files::read_authorities(&path).await.with_context(|| {
            format!("unable to load client CA file {}: authentication.x509.clientCAFile", path.display())
        })?;
        return Ok(Some(files::follow(Authorities::File(path), Some(first), tasks)));
    }
    let joined = settings.cluster.as_ref().filter(|cluster| cluster.join.is_some());
    Ok(joined.map(|cluster| {
        let source = Authorities::Kubeconfig(cluster.kubeconfig.clone(), client);
        files::follow(source, None, tasks)
    }))
}

/// The serving certificate, in upstream's order: `tlsCertFile`, a request to the cluster's signer (`serverTLSBootstrap`), a
/// self-signed one (cmd/kubelet/app/server.go, `InitializeTLS`).
async fn certificate(
    settings: &Arc<Settings>,
    node_name: &str,
    client: Option<watch::Receiver<Option<Arc<ApiClient>>>>,
    addresses: Option<watch::Receiver<Vec<NodeAddress>>>,
    board: Board,
    (tasks, metrics): (&Tasks, &Metrics),
) -> anyhow::Result<watch::Receiver<Option<ServingKey>>> {
    let kubelet = &settings.kubelet;
    if !kubelet.tls_cert_file.is_empty() {
        let pair = (PathBuf::from(&kubelet.tls_cert_file), PathBuf::from(&kubelet.tls_private_key_file));
        let first = files::read_pair(&pair).await.context("tlsCertFile, tlsPrivateKeyFile")?;
        return Ok(files::follow_pair(pair, first, tasks));
    }
    let cert_dir = PathBuf::from(&settings.options.cert_dir);
    match (client, addresses) {
        (Some(client), Some(addresses)) if kubelet.server_tls_bootstrap => {
            let config = plan::serving_certificate(node_name);
            request::start(&cert_dir, config, client, addresses, board, (tasks, metrics))
        }
        _ => {
            let (name, now) = (node_name.to_owned(), tasks.now().wall);
            let dir = cert_dir.clone();
            let made = tasks.blocking(move || self_signed::ensure(&dir, &name, now)).await;
            let pair = made.context("the node is being stopped")??;
            let first = files::read_pair(&pair).await.with_context(|| cert_dir.display().to_string())?;
            Ok(files::follow_pair(pair, first, tasks))
        }
    }
}
