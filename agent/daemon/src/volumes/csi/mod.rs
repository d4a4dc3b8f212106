//! CSI drivers of the node: watches their sockets, queries the drivers, and writes them to Node and CSINode.
//!
//! ```text
//! inotify, rescan ─► Registrations ─► ask (a task each) ─► answers ─► Objects ─► tell the plugin (a task each)
//! ```
//! In: sockets in `<root>/plugins_registry`. Out: gRPC, requests to the API server. Invariants: a plugin that
//! hangs delays no other plugin; only this task writes the two objects; the task retries a failed removal of
//! an entry. Upstream: pkg/kubelet/pluginmanager.

pub mod limits;
pub(crate) mod objects;
pub mod volume_table;
pub mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::csi_drivers::check_plugin;
use agent_core::csi_drivers::registrations::{Action, Registrations, SocketId};
use agent_linux::files::{self, FilesError};
use agent_linux::path_watch::PathWatch;
use agent_linux::selinux;
use agent_types::api::ApiServer;
use agent_types::lock::Lock;
use agent_volumes::csi::limits::Limits;
use agent_volumes::csi::plugin::NodeInfo;
use agent_volumes::selinux::PLUGINS_LABEL;
use tokio::sync::mpsc;

use limits::{Askers, Recount};
use objects::Objects;
use volumes::CsiVolumes;

use crate::cluster::calls::Caller;
use crate::devices::DevicePlugins;
use crate::devices::watched::{DEVICE_PLUGIN, WatchedPlugin};
use crate::node::node_events::NodeEvents;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;
use crate::volumes::flex::Drivers;

/// Below the kubelet's root.
const REGISTRY: &str = "plugins_registry";
/// Directory of the drivers' own sockets.
const PLUGINS: &str = "plugins";
/// Mode of both directories, as upstream's.
const DIR_MODE: u32 = 0o750;
/// Period of a scan without an event: inotify may lose events.
const RESCAN: Duration = Duration::from_secs(60);
/// First and longest wait between attempts to create the CSINode: the node is not Ready before.
const BEGIN_WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// Capacity of the channel of plugins' answers; a sender waits until there is room.
const ANSWERS_MAX: usize = 16;

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

/// A plugin that answered.
enum FoundPlugin {
    Csi(Driver),
    Devices(WatchedPlugin),
}

/// A driver that answered.
struct Driver {
    name: String,
    endpoint: PathBuf,
    info: NodeInfo,
}

enum RegistrationResult {
    /// The result of a call to a plugin.
    Plugin { path: String, id: SocketId, what: PluginResult },
    /// The number of volumes that a driver allows on this node.
    Recount(Recount),
}

enum PluginResult {
    /// The plugin and its driver answered, or the reason why the driver cannot be registered.
    Asked(Result<FoundPlugin, String>),
    /// The plugin was notified of its registration.
    Told { driver: String, outcome: Result<(), String> },
    /// The plugin was notified of a refusal, or the notification failed.
    Refused(String),
}

/// Follows the node's plugins until the node stops.
pub async fn follow<A: ApiServer>(
    root: PathBuf,
    node_name: Arc<str>,
    caller: Caller<A>,
    node: Csi,
    node_events: NodeEvents,
    plugins: DevicePlugins,
    tasks: Tasks,
) {
    let registry = root.join(REGISTRY);
    let mut made = make_directories([&registry, &root.join(PLUGINS)]);
    let objects = Objects::new(caller.clone(), node_name, tasks.clone());
    // A node without drivers needs a CSINode to become Ready, too.
    begin(&objects, &node_events, &tasks).await;
    while let Err(error) = made {
        tracing::error!(error = %chain(&error), "plugins cannot be registered yet");
        tasks.wait_until(tasks.now().mono.after(RESCAN)).await;
        made = make_directories([&registry, &root.join(PLUGINS)]);
    }
    let (to, mut answers) = mpsc::channel(ANSWERS_MAX);
    let mut manager = Manager {
        registrations: Registrations::default(),
        gone: BTreeSet::new(),
        registered: node.registered,
        limits: Limits::default(),
        askers: node.limits.clone(),
        plugins,
        caller,
        objects,
        to,
        tasks: tasks.clone(),
    };
    let mut hints = PathWatch::new(&registry).ok();
    loop {
        let path = registry.clone();
        let Some(found) = tasks.blocking(move || scan(&path)).await else { return };
        match found {
            Ok(there) => {
                let actions = manager.registrations.seen(&there, tasks.now().mono);
                manager.perform(actions).await;
            }
            Err(error) => tracing::warn!(path = %registry.display(), %error, "plugins are not seen"),
        }
        // Handle events until the next scan is due. Questions to drivers do not postpone it.
        let rescan = tasks.now().mono.after(RESCAN);
        loop {
            manager.recount();
            let look = manager.registrations.deadline().map_or(rescan, |at| at.min(rescan));
            let due = manager.limits.deadline().map_or(look, |at| at.min(look));
            tokio::select! {
                // Every branch can be dropped at any await without loss.
                answer = answers.recv() => match answer {
                    Some(answer) => manager.answered(answer).await,
                    None => return,
                },
                () = node.limits.asked() => manager.asked_for_limits(),
                () = changed(&mut hints) => break,
                () = tasks.wait_until(due) => {
                    // A recount of limits does not require a scan.
                    if due == look {
                        break;
                    }
                }
            }
        }
    }
}

fn make_directories(all: [&Path; 2]) -> Result<(), FilesError> {
    for directory in all {
        files::make_dir(directory, DIR_MODE)?;
        if selinux::is_enabled()
            && let Err(error) = selinux::set_label(directory, PLUGINS_LABEL)
        {
            tracing::info!(error = %chain(&error), "plugins in containers without privileges may not come here");
        }
    }
    Ok(())
}

/// Waits for an inotify event; never returns if there is no watch.
async fn changed(hints: &mut Option<PathWatch>) {
    let Some(watch) = hints else { return std::future::pending().await };
    if let Err(error) = watch.changed().await {
        tracing::warn!(error = %chain(&error), "plugins are noticed by rescans only");
        *hints = None;
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

/// The sockets in a directory, without names that begin with a dot.
fn scan(directory: &Path) -> io::Result<BTreeMap<String, SocketId>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // The socket vanished meanwhile.
        let Ok(meta) = std::fs::symlink_metadata(entry.path()) else { continue };
        if meta.file_type().is_socket() {
            let changed = meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec());
            found.insert(entry.path().display().to_string(), (meta.ino(), changed));
        }
    }
    Ok(found)
}

/// The name of a device plugin among those of drivers, which have no slash.
fn name_of_devices(resource: &str) -> String {
    format!("{DEVICE_PLUGIN}/{resource}")
}

/// The resource of such a name.
fn resource_of(name: &str) -> Option<&str> {
    name.strip_prefix(DEVICE_PLUGIN)?.strip_prefix('/')
}

/// Asks a plugin for its registration data, and its driver for the node's data.
async fn ask(socket: &Path, plugins: &DevicePlugins) -> Result<FoundPlugin, String> {
    let info = agent_plugins::plugin_info(socket).await;
    let info = info.map_err(|e| format!("RegisterPlugin error -- failed to get plugin info: {e}"))?;
    if info.kind == DEVICE_PLUGIN {
        return plugins.look(&info, socket).await.map(FoundPlugin::Devices);
    }
    let endpoint = PathBuf::from(check_plugin(&info, &socket.display().to_string())?);
    let node = agent_plugins::node_info(&endpoint).await;
    let failed = |e: String| format!("RegisterPlugin error -- plugin registration failed with err: {e}");
    let info_of_node = node.map_err(|e| failed(e.to_string()))?;
    Ok(FoundPlugin::Csi(Driver { name: info.name, endpoint, info: info_of_node }))
}

struct Manager<A> {
    registrations: Registrations,
    registered: Registered,
    /// Drivers that are gone and may still be in the node's objects.
    gone: BTreeSet<String>,
    limits: Limits,
    askers: Askers,
    plugins: DevicePlugins,
    caller: Caller<A>,
    objects: Objects<A>,
    to: mpsc::Sender<RegistrationResult>,
    tasks: Tasks,
}

impl<A: ApiServer> Manager<A> {
    async fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Register { path, id } => self.ask(path, id),
                Action::Forget(driver) => {
                    tracing::info!(driver, "plugin is gone");
                    self.forget(driver);
                }
            }
        }
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

    fn forget(&mut self, driver: String) {
        if let Some(resource) = resource_of(&driver) {
            return self.plugins.forget(resource);
        }
        self.registered.remove(&driver);
        self.limits.forgotten(&driver);
        self.askers.tell(&driver);
        self.gone.insert(driver);
    }

    fn answer(&self, path: String, id: SocketId, what: impl Future<Output = PluginResult> + Send + 'static) {
        let to = self.to.clone();
        self.tasks.start(async move {
            let what = what.await;
            // The receiver is gone when the node stops.
            let _ = to.send(RegistrationResult::Plugin { path, id, what }).await;
        });
    }

    fn ask(&self, path: String, id: SocketId) {
        let (socket, plugins) = (PathBuf::from(&path), self.plugins.clone());
        self.answer(path, id, async move { PluginResult::Asked(ask(&socket, &plugins).await) });
    }

    async fn answered(&mut self, answer: RegistrationResult) {
        let (path, id, what) = match answer {
            RegistrationResult::Plugin { path, id, what } => (path, id, what),
            RegistrationResult::Recount(recount) => return self.recounted(recount).await,
        };
        let outcome = match what {
            PluginResult::Asked(asked) => return self.asked(path, id, asked).await,
            PluginResult::Told { driver, outcome: Ok(()) } => {
                tracing::info!(driver, path, "plugin is registered");
                Ok(driver)
            }
            PluginResult::Told { driver, outcome: Err(why) } => {
                tracing::warn!(driver, path, why, "plugin does not hear that it is registered");
                self.forget(driver);
                Err(())
            }
            PluginResult::Refused(why) => {
                tracing::warn!(path, why, "plugin is not registered");
                Err(())
            }
        };
        let actions = self.registrations.answered(&path, id, outcome, self.tasks.now().mono);
        self.perform(actions).await;
    }

    /// Handles a plugin's answer: writes the driver into the objects, then notifies the plugin.
    async fn asked(&mut self, path: String, id: SocketId, asked: Result<FoundPlugin, String>) {
        let installed = match asked {
            Ok(FoundPlugin::Devices(found)) => {
                let name = name_of_devices(found.resource());
                self.plugins.take(found);
                Ok(name)
            }
            Ok(FoundPlugin::Csi(driver)) => self.install(&path, &driver).await.map(|()| driver.name),
            Err(why) => Err(why),
        };
        let socket = PathBuf::from(&path);
        self.answer(path, id, async move {
            match installed {
                Ok(driver) => {
                    let told = agent_plugins::notify(&socket, &Ok(())).await;
                    PluginResult::Told { driver, outcome: told.map_err(|e| e.to_string()) }
                }
                Err(why) => {
                    // The notification may fail as well: the plugin is asked again later.
                    match agent_plugins::notify(&socket, &Err(why.clone())).await {
                        Ok(()) => PluginResult::Refused(why),
                        Err(e) => PluginResult::Refused(format!("{why} ({e})")),
                    }
                }
            }
        });
    }

    async fn install(&mut self, path: &str, driver: &Driver) -> Result<(), String> {
        let failed =
            |why: String| format!("RegisterPlugin error -- plugin registration failed with err: {why}");
        let Driver { name, endpoint, info } = driver;
        if let Some(other) = self.registrations.holder(name, path) {
            return Err(failed(format!("CSI driver {name:?} is already registered at socket {other}")));
        }
        self.objects.install(name, info).await.map_err(failed)?;
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
    use crate::node::NodeHandles;
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
    async fn a_place_for_plugins_is_made_as_soon_as_it_can_be() {
        let root = tempfile::tempdir().unwrap();
        let (plugins, registry) = (root.path().join(PLUGINS), root.path().join(REGISTRY));
        std::fs::write(&plugins, "in the way").unwrap();
        let clock = Arc::new(VirtualClock::new());
        let tasks = Tasks::new(clock.clone(), CancellationToken::new());
        let (_, client) = watch::channel(Some(Arc::new(Server)));
        let caller = Caller::new(tasks.clone(), client);
        let node_events = NodeEvents::new(StatusStore::default(), Metrics::new(clock), None, None, None);
        let node = NodeHandles {
            manager: tasks.mailbox().0,
            node_events: node_events.clone(),
            tasks: tasks.clone(),
        };
        let devices = DevicePlugins::new(root.path().join("device-plugins"), &node);
        let at = root.path().to_owned();
        let follow = follow(at, "n".into(), caller, Csi::new(&tasks), node_events, devices, tasks.clone());
        tasks.start(follow);
        let pass = |time| tasks.wait_until(tasks.now().mono.after(time));
        pass(RESCAN * 3).await;
        assert!(plugins.is_file(), "what is in the way is not ours to remove");
        std::fs::remove_file(&plugins).unwrap();
        pass(RESCAN + BEGIN_WAIT.1).await;
        assert!(plugins.is_dir() && registry.is_dir());
    }
}
