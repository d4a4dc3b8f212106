//! CSI drivers of the node: queries the drivers that the plugin watcher finds, and writes them to Node and CSINode.
//!
//! ```text
//! plugin watcher ─► CsiRegistrar ─► ask the driver ─► Manager (this task) ─► Objects
//! ```
//! In: registrations and their ends. Out: gRPC, requests to the API server. Invariants: a driver that hangs delays no other driver; only
//! this task writes the two objects; one driver has one socket; the task retries a failed removal of an entry. Upstream: pkg/volume/csi.

pub mod limits;
pub(crate) mod objects;
pub mod volume_table;
pub mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::csi_drivers::check_plugin;
use agent_core::plugin_registrations::refusals::Refusal;
use agent_types::api::ApiServer;
use agent_types::lock::Lock;
use agent_types::time::Mono;
use agent_volumes::csi::limits::Limits;
use agent_volumes::csi::plugin::{NodeInfo, PluginInfo};
use tokio::sync::{mpsc, oneshot};

use limits::{Askers, Recount};
use objects::Objects;
use volumes::CsiVolumes;

use crate::cluster::calls::Caller;
use crate::node::node_events::NodeEvents;
use crate::tasks::actor::Tasks;
use crate::tasks::stops::AgentStops;
use crate::volumes::flex::Drivers;

/// Period between two attempts to take a driver that is gone out of the objects.
const REMOVE_AGAIN: Duration = Duration::from_secs(60);
/// First and longest wait between attempts to create the CSINode: the node is not Ready before.
const BEGIN_WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// Capacity of the channel of drivers' numbers; a sender waits until there is room.
const RECOUNTS_MAX: usize = 16;

/// What others need to know of the node's drivers; clones share it.
#[derive(Clone)]
pub struct Csi {
    /// The registered drivers.
    pub registered: Registered,
    /// Subscribers to the numbers of volumes that drivers allow on this node.
    pub limits: Askers,
    /// The drivers' volumes, and volumes that in-tree plugins share among pods.
    pub volumes: CsiVolumes,
    /// FlexVolume drivers.
    pub flex: Drivers,
    /// The cluster attaches volumes to this node, and the node waits for it (`enableControllerAttachDetach`). False on
    /// a standalone node.
    pub attaches: bool,
}

impl Csi {
    /// No driver yet, on a node whose volumes no controller attaches.
    #[must_use]
    pub fn new(tasks: &Tasks) -> Csi {
        Csi {
            registered: Registered::default(),
            limits: Askers::default(),
            volumes: CsiVolumes::new(tasks),
            flex: Drivers::default(),
            attaches: false,
        }
    }
}

/// The sockets of drivers that are registered, by their names; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Registered(Arc<Lock<BTreeMap<String, PathBuf>>>);

impl Registered {
    /// The socket of a driver.
    #[must_use]
    pub fn endpoint(&self, driver: &str) -> Option<PathBuf> {
        self.0.lock().get(driver).cloned()
    }

    fn insert(&self, driver: &str, endpoint: &Path) {
        self.0.lock().insert(driver.to_owned(), endpoint.to_owned());
    }

    fn remove(&self, driver: &str) {
        self.0.lock().remove(driver);
    }
}

/// A driver that answered.
struct Driver {
    name: String,
    /// Path of the registration socket.
    socket: String,
    endpoint: PathBuf,
    info: NodeInfo,
}

enum Request {
    Install { driver: Driver, tell: oneshot::Sender<Result<(), String>> },
    Forget { name: String, socket: String },
}

/// The way to the task of CSI drivers, for the plugin watcher; clones share it. The channel has no bound: the watcher has one registration
/// of a socket at a time, and waits for its result.
#[derive(Clone)]
pub struct CsiRegistrar(mpsc::UnboundedSender<Request>);

impl CsiRegistrar {
    /// Registers a driver that the watcher found at `socket`.
    ///
    /// # Errors
    /// Upstream's words about why the driver cannot be registered.
    pub async fn register(&self, info: &PluginInfo, socket: &str) -> Result<(), Refusal> {
        let endpoint = PathBuf::from(check_plugin(info, socket).map_err(Refusal::Invalid)?);
        let node = agent_plugins::node_info(&endpoint).await.map_err(Refusal::failed)?;
        let (tell, told) = oneshot::channel();
        let driver = Driver { name: info.name.clone(), socket: socket.to_owned(), endpoint, info: node };
        self.0.send(Request::Install { driver, tell }).map_err(|_| Refusal::failed(AgentStops))?;
        told.await.map_err(|_| Refusal::failed(AgentStops))?.map_err(Refusal::Failed)
    }

    /// The driver's socket is gone.
    pub fn forget(&self, driver: &str, socket: &str) {
        // The receiver is gone when the node stops.
        let _ = self.0.send(Request::Forget { name: driver.to_owned(), socket: socket.to_owned() });
    }
}

/// Starts the task of the node's CSI drivers.
pub fn start<A: ApiServer>(
    node_name: Arc<str>,
    caller: Caller<A>,
    node: Csi,
    node_events: NodeEvents,
    tasks: &Tasks,
) -> CsiRegistrar {
    let (to, requests) = mpsc::unbounded_channel();
    tasks.start(follow(node_name, caller, node, node_events, requests, tasks.clone()));
    CsiRegistrar(to)
}

async fn follow<A: ApiServer>(
    node_name: Arc<str>,
    caller: Caller<A>,
    node: Csi,
    node_events: NodeEvents,
    mut requests: mpsc::UnboundedReceiver<Request>,
    tasks: Tasks,
) {
    let objects = Objects::new(caller.clone(), node_name, tasks.clone());
    // A node without drivers needs a CSINode to become Ready, too.
    begin(&objects, &node_events, &tasks).await;
    let (to, mut recounts) = mpsc::channel(RECOUNTS_MAX);
    let mut manager = Manager {
        holders: BTreeMap::new(),
        gone: BTreeSet::new(),
        registered: node.registered,
        limits: Limits::default(),
        askers: node.limits.clone(),
        caller,
        objects,
        to,
        tasks: tasks.clone(),
    };
    let mut remove_at = None;
    loop {
        manager.recount();
        let deadlines = [manager.limits.deadline(), remove_at];
        let due = deadlines.into_iter().flatten().min();
        tokio::select! {
            // Every branch can be dropped at any await without loss.
            request = requests.recv() => match request {
                Some(request) => manager.requested(request).await,
                None => return,
            },
            recount = recounts.recv() => match recount {
                Some(recount) => manager.recounted(recount).await,
                None => return,
            },
            () = node.limits.asked() => manager.asked_for_limits(),
            () = at(due, &tasks) => {}
        }
        if remove_at.is_none_or(|at| at <= tasks.now().mono) {
            manager.remove_gone().await;
        }
        let is_left = !manager.gone.is_empty();
        let again = tasks.now().mono.after(REMOVE_AGAIN);
        remove_at = is_left.then(|| remove_at.filter(|at| *at > tasks.now().mono).unwrap_or(again));
    }
}

async fn at(due: Option<Mono>, tasks: &Tasks) {
    match due {
        Some(due) => tasks.wait_until(due).await,
        None => std::future::pending().await,
    }
}

/// Creates the CSINode, however long it takes.
async fn begin<A: ApiServer>(objects: &Objects<A>, node_events: &NodeEvents, tasks: &Tasks) {
    let (mut wait, longest) = BEGIN_WAIT;
    while let Err(why) = objects.begin().await {
        tracing::debug!(why, "no CSINode yet");
        // A first failure is usual: the Node may not exist yet.
        if wait == longest {
            node_events.storage(Err(format!("failed to initialize CSINode: {why}")));
        }
        tasks.wait_until(tasks.now().mono.after(wait)).await;
        wait = (wait * 2).min(longest);
    }
    node_events.storage(Ok(()));
}

struct Manager<A> {
    /// Registration sockets of drivers, by the drivers' names.
    holders: BTreeMap<String, String>,
    registered: Registered,
    /// Drivers that are gone and may still be in the node's objects.
    gone: BTreeSet<String>,
    limits: Limits,
    askers: Askers,
    caller: Caller<A>,
    objects: Objects<A>,
    to: mpsc::Sender<Recount>,
    tasks: Tasks,
}

impl<A: ApiServer> Manager<A> {
    async fn requested(&mut self, request: Request) {
        match request {
            Request::Install { driver, tell } => {
                let installed = self.install(&driver).await;
                // The asker is gone when the node stops.
                let _ = tell.send(installed);
            }
            Request::Forget { name, socket } => self.forget(name, &socket),
        }
    }

    async fn remove_gone(&mut self) {
        for driver in self.gone.clone() {
            match self.objects.remove(&driver).await {
                Ok(()) => {
                    self.gone.remove(&driver);
                }
                Err(why) => {
                    tracing::warn!(driver, why, "CSI driver is not taken out of the node's objects yet")
                }
            }
        }
    }

    fn forget(&mut self, driver: String, socket: &str) {
        if self.holders.get(&driver).is_none_or(|holder| holder != socket) {
            return;
        }
        self.holders.remove(&driver);
        self.registered.remove(&driver);
        self.limits.forgotten(&driver);
        self.askers.tell(&driver);
        self.gone.insert(driver);
    }

    /// Writes the driver into the objects.
    async fn install(&mut self, driver: &Driver) -> Result<(), String> {
        let Driver { name, socket, endpoint, info } = driver;
        if let Some(other) = self.holders.get(name).filter(|holder| *holder != socket) {
            return Err(format!("CSI driver {name:?} is already registered at socket {other}"));
        }
        self.objects.install(name, info).await?;
        self.holders.insert(name.clone(), socket.clone());
        self.registered.insert(name, endpoint);
        self.limits.registered(name, self.tasks.now().mono);
        self.gone.remove(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use agent_types::api::{ApiCall, ApiReply, ApiResult};
    use k8s_openapi::api::core::v1::Node;
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::pods::status::StatusStore;
    use crate::serving::metrics::Metrics;
    use crate::testing::VirtualClock;

    /// An API server with a Node and its CSINode, both empty.
    struct Server;

    impl ApiServer for Server {
        async fn call(&self, call: &ApiCall) -> ApiResult {
            let mut node = Node::default();
            node.metadata.name = Some("n".to_owned());
            node.metadata.uid = Some("u".to_owned());
            Ok(match call {
                ApiCall::GetNode { .. } => ApiReply::Node(Box::new(node)),
                _ => ApiReply::CsiNode(Box::new(agent_core::csi_drivers::objects::empty(&node))),
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_socket_holds_a_driver_until_it_goes() {
        let clock = Arc::new(VirtualClock::new());
        let tasks = Tasks::new(clock.clone(), CancellationToken::new());
        let (_client_to, client) = watch::channel(Some(Arc::new(Server)));
        let caller = Caller::new(tasks.clone(), client);
        let node_events = NodeEvents::new(StatusStore::default(), Metrics::new(clock), None, None, None);
        let csi = Csi::new(&tasks);
        let registered = csi.registered.clone();
        let registrar = start("n".into(), caller, csi, node_events, &tasks);
        let install = async |socket: &str| {
            let (tell, told) = oneshot::channel();
            let driver = Driver {
                name: "x".to_owned(),
                socket: socket.to_owned(),
                endpoint: PathBuf::from("/e"),
                info: NodeInfo { node_id: "id".to_owned(), ..NodeInfo::default() },
            };
            assert!(registrar.0.send(Request::Install { driver, tell }).is_ok());
            told.await.unwrap()
        };
        assert_eq!(install("/a").await, Ok(()));
        let error = install("/b").await.unwrap_err();
        assert_eq!(error, "CSI driver \"x\" is already registered at socket /a");
        registrar.forget("x", "/b");
        assert_eq!(install("/a").await, Ok(()), "the socket was made anew");
        assert_eq!(registered.endpoint("x"), Some(PathBuf::from("/e")));
        registrar.forget("x", "/a");
        assert_eq!(install("/b").await, Ok(()));
    }
}
