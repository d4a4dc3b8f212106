//! The plugin watcher: finds plugins by their registration sockets, and passes them to the owners of their kinds.
//!
//! ```text
//! inotify, rescan ─► Registrations ─► ask, register, notify (a task for each plugin) ─► answers ─► Registrations
//!                                             └─► CSI drivers, device plugins, DRA plugins
//! ```
//! In: sockets in `<root>/plugins_registry`. Out: gRPC, calls of the owners. Invariants: a plugin that hangs delays no other plugin;
//! all calls of a registration go to the socket that was found, and not to the target of a link. Upstream: pkg/kubelet/pluginmanager.

mod registry;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::plugin_registrations::PluginKind;
use agent_core::plugin_registrations::refusals::Refusal;
use agent_core::plugin_registrations::sockets::{
    Action, PluginSockets, RegisteredPlugin, Registrations, SocketId,
};
use agent_linux::pinned_socket::PinnedSocket;
use agent_plugins::PluginError;
use agent_volumes::csi::plugin::PluginInfo;
use tokio::sync::{mpsc, watch};

use registry::{Hints, REGISTRY};

use crate::claims::plugins::DraPlugins;
use crate::devices::DevicePlugins;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;
use crate::volumes::csi::CsiRegistrar;

/// Period of a scan without an event: inotify may lose events.
const RESCAN: Duration = Duration::from_secs(60);
/// Least time between two scans of the registry.
const SCAN_GAP: Duration = Duration::from_millis(100);
/// Capacity of the channel of answers; a sender waits until there is room.
const ANSWERS_MAX: usize = 16;

/// Owners of the plugins' kinds.
#[derive(Clone)]
pub struct Handlers {
    /// CSI drivers; `None` on a node without a cluster, because a driver is registered in the node's objects.
    pub csi: Option<CsiRegistrar>,
    /// Device plugins.
    pub devices: DevicePlugins,
    /// Plugins of DRA drivers; `None`: the node has no resource claims.
    pub claims: Option<DraPlugins>,
}

/// Starts the watcher, below the kubelet's root. Returns the sockets for metrics.
pub fn start(root: PathBuf, handlers: Handlers, tasks: &Tasks) -> watch::Receiver<Arc<PluginSockets>> {
    let (to, sockets) = watch::channel(Arc::default());
    tasks.start(follow(root, handlers, to, tasks.clone()));
    sockets
}

/// The end of a registration, with success or failure.
struct RegistrationAnswer {
    path: String,
    id: SocketId,
    outcome: Result<RegisteredPlugin, Refusal>,
}

struct Watcher {
    registrations: Registrations,
    handlers: Handlers,
    to: mpsc::Sender<RegistrationAnswer>,
    sockets: watch::Sender<Arc<PluginSockets>>,
    tasks: Tasks,
}

async fn follow(root: PathBuf, handlers: Handlers, sockets: watch::Sender<Arc<PluginSockets>>, tasks: Tasks) {
    while let Err(error) = registry::make_directories(&root) {
        tracing::error!(error = %chain(&error), "plugins cannot be registered yet");
        tasks.wait_until(tasks.now().mono.after(RESCAN)).await;
    }
    let (registry, mut hints) = (root.join(REGISTRY), Hints::default());
    let (to, mut answers) = mpsc::channel(ANSWERS_MAX);
    let mut watcher =
        Watcher { registrations: Registrations::default(), handlers, to, sockets, tasks: tasks.clone() };
    // The directories belong to pods, which can change them without end.
    let mut is_second = false;
    loop {
        let (path, began) = (registry.clone(), tasks.now().mono);
        let Some(found) = tasks.blocking(move || registry::scan(&path)).await else { return };
        match found {
            Ok(found) => {
                let actions = watcher.registrations.seen(&found.sockets, tasks.now().mono);
                watcher.perform(actions);
                // A socket may have come before its directory was watched.
                is_second = hints.watch(&found) && !is_second;
                if is_second {
                    continue;
                }
            }
            Err(error) => tracing::warn!(path = %registry.display(), %error, "plugins are not seen"),
        }
        let rescan = tasks.now().mono.after(RESCAN);
        loop {
            let due = watcher.registrations.deadline().map_or(rescan, |at| at.min(rescan));
            tokio::select! {
                // Every branch can be dropped at any await without loss.
                answer = answers.recv() => match answer {
                    Some(answer) => watcher.answered(answer),
                    None => return,
                },
                () = hints.changed() => {
                    tasks.wait_until(began.after(SCAN_GAP)).await;
                    break;
                }
                () = tasks.wait_until(due) => break,
            }
        }
    }
}

impl Watcher {
    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Register { path, id } => self.register(path, id),
                Action::Forget { path, plugin } => {
                    tracing::info!(name = plugin.name, path, "plugin is gone");
                    self.handlers.forget(&plugin, &path);
                }
            }
        }
        let now = self.registrations.sockets();
        self.sockets.send_if_modified(|sockets| {
            let differ = **sockets != now;
            if differ {
                *sockets = Arc::new(now);
            }
            differ
        });
    }

    fn register(&self, path: String, id: SocketId) {
        let (handlers, to) = (self.handlers.clone(), self.to.clone());
        self.tasks.start(async move {
            let outcome = handlers.converse(&path).await;
            // The receiver is gone when the node stops.
            let _ = to.send(RegistrationAnswer { path, id, outcome }).await;
        });
    }

    fn answered(&mut self, RegistrationAnswer { path, id, outcome }: RegistrationAnswer) {
        match &outcome {
            Ok(plugin) => tracing::info!(name = plugin.name, path, "plugin is registered"),
            Err(why) => tracing::warn!(path, %why, "plugin is not registered"),
        }
        let outcome = outcome.map_err(|refusal| refusal.retry());
        let actions = self.registrations.answered(&path, id, outcome, self.tasks.now().mono);
        self.perform(actions);
    }
}

impl Handlers {
    /// Asks the plugin at a socket for its information, registers it, and sends it the result.
    async fn converse(&self, socket: &str) -> Result<RegisteredPlugin, Refusal> {
        let dial = |why: String| Refusal::Dial { socket: socket.to_owned(), why };
        // Both calls go to the socket that was found, even if the path leads elsewhere by now.
        let pinned = PinnedSocket::at(Path::new(socket)).map_err(|error| dial(chain(&error)))?;
        let info = agent_plugins::plugin_info(&pinned.path()).await.map_err(|error| match error {
            PluginError::Dial { why, .. } => dial(why),
            error => Refusal::Info { socket: socket.to_owned(), why: error.words() },
        })?;
        let registered = self.register(&info, socket).await;
        let outcome = registered.as_ref().map(|_| ()).map_err(ToString::to_string);
        let told = agent_plugins::notify(&pinned.path(), &outcome).await;
        match (registered, told) {
            (Ok(plugin), Err(error)) => {
                self.forget(&plugin, socket);
                Err(Refusal::Untold { socket: socket.to_owned(), why: error.words() })
            }
            // If the notification of a refusal fails, the refusal counts: the agent tries the plugin again later.
            (registered, _) => registered,
        }
    }

    async fn register(&self, info: &PluginInfo, socket: &str) -> Result<RegisteredPlugin, Refusal> {
        let unknown = || Refusal::Kind { kind: info.kind.clone(), socket: socket.to_owned() };
        let kind = PluginKind::of(&info.kind).ok_or_else(unknown)?;
        let number = match kind {
            PluginKind::Csi => {
                let csi = self.csi.as_ref().ok_or_else(unknown)?;
                csi.register(info, socket).await?;
                0
            }
            PluginKind::Device => {
                let found = self.devices.look(info, Path::new(socket)).await?;
                self.devices.take(found)?
            }
            PluginKind::Dra => self.claims.as_ref().ok_or_else(unknown)?.register(info, socket)?,
        };
        Ok(RegisteredPlugin { kind, name: info.name.clone(), number })
    }

    fn forget(&self, plugin: &RegisteredPlugin, socket: &str) {
        match plugin.kind {
            PluginKind::Csi => {
                if let Some(csi) = &self.csi {
                    csi.forget(&plugin.name, socket);
                }
            }
            PluginKind::Device => self.devices.forget(plugin.number),
            PluginKind::Dra => {
                if let Some(claims) = &self.claims {
                    claims.deregister(plugin.number);
                }
            }
        }
    }
}
