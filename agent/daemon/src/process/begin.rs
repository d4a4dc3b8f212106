//! The process before the node exists: service manager, host, tasks, metrics, the name of the node.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_apiserver::Protocol;
use agent_linux::clock::LinuxClock;
use agent_linux::host_channel;
use agent_linux::notify::{Notifier, watchdog_interval};
use agent_types::time::Now;
use orlop_config::ledger::HostMessage;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::node::cluster_problems::ClusterProblems;
use crate::node::console::{self, ConsoleWriter, NodeConsole};
use crate::node::host_channel::Host;
use crate::node::node_settings::{self, check_machine};
use crate::process::environment::Environment;
use crate::process::node::run_dir;
use crate::serving::metrics::Metrics;
use crate::settings::Settings;
use crate::tasks::actor::Tasks;

/// State of the process before the node starts.
pub(super) struct Process {
    /// Flags and files.
    pub(super) settings: Arc<Settings>,
    /// Name of the node.
    pub(super) node_name: String,
    /// Protocol of the API server's client.
    pub(super) protocol: Protocol,
    /// The service manager.
    pub(super) notifier: Arc<Notifier>,
    /// Period of the service manager's watchdog; `None` if there is none.
    pub(super) watchdog: Option<Duration>,
    /// The agent's state for the service manager.
    pub(super) state: watch::Sender<&'static str>,
    /// The machine's outside.
    pub(super) host: Host,
    /// Shows problems with the cluster.
    pub(super) cluster_problems: ClusterProblems,
    /// The machine's consoles; `None` where orlop-initrd did not boot it.
    pub(super) console: Option<NodeConsole>,
    /// Counters.
    pub(super) metrics: Metrics,
    /// The node's tasks.
    pub(super) tasks: Tasks,
    /// When this agent began.
    pub(super) started: Now,
}

impl Process {
    /// Reports the start to service manager and host.
    ///
    /// # Errors
    /// The machine does not fit the configuration, the node has no name, or the service manager's settings are invalid.
    pub(super) async fn begin(settings: Arc<Settings>, environment: &Environment) -> anyhow::Result<Process> {
        let watchdog = watchdog_interval(
            environment.watchdog_usec.as_deref(),
            environment.watchdog_pid.as_deref(),
            std::process::id(),
        )?;
        let notifier = Arc::new(Notifier::new(environment.notify_socket.as_deref())?);
        for warning in &settings.warnings {
            tracing::warn!("{warning}");
        }
        check_machine(&settings.kubelet)?;
        let tasks = Tasks::new(Arc::new(LinuxClock), CancellationToken::new());
        let metrics = Metrics::new(Arc::new(LinuxClock));
        let started = tasks.now();
        let port = host_channel::find_port(Path::new("/sys"), Path::new("/dev"));
        let writer = ConsoleWriter::of_appliance(run_dir(), &tasks);
        let mut host = Host::new(tasks.clone(), run_dir(), port);
        if let Some(writer) = writer.clone() {
            host = host.of_appliance(writer);
        }
        for message in settings.warnings.clone() {
            host.tell(HostMessage::Problem { source: "agent".to_owned(), message });
        }
        host.stamp("agent.started", "").await;
        tracing::info!(version = env!("CARGO_PKG_VERSION"), reason = "Starting", "starting orlop-agent");
        let (state, shown) = watch::channel("waiting for the container runtime");
        let cluster_problems = ClusterProblems::default();
        tasks.start(cluster_problems.clone().follow(shown.clone(), notifier.clone(), host.clone()));
        let node_name = node_settings::node_name(&settings)?;
        let console = writer.map(|writer| {
            let deps = console::Deps {
                run_dir: run_dir().to_owned(),
                node_name: node_name.clone(),
                in_cluster: settings.cluster.is_some(),
                writer,
                cluster_problems: cluster_problems.subscribe(),
                state: shown,
            };
            console::start(deps, &tasks)
        });
        let protocol = if environment.disable_http2 { Protocol::Http1 } else { Protocol::Http2 };
        if settings.cluster.is_some() && protocol != Protocol::Http2 {
            tracing::info!(%protocol, "DISABLE_HTTP2 is set; the API server is spoken to in this protocol");
        }
        Ok(Process {
            settings,
            node_name,
            protocol,
            notifier,
            watchdog,
            state,
            host,
            cluster_problems,
            console,
            metrics,
            tasks,
            started,
        })
    }
}
