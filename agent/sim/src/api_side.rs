//! The API server's side of the world: the server, the network to it, and automatic actions of other clients.
//!
//! In: the world's clock and random numbers. Out: changes of the server, watch events on their way to the agent.
//! Invariants: a backup has the state of a past moment; a lost event is never delivered later in another order.

use std::collections::VecDeque;
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::node_status::NodeInput;
use agent_types::ids::PodUid;
use agent_types::resources::machine::{HostNetwork, InterfaceAddress, MachineFacts};
use agent_types::resources::node_allocatable::MachineAmounts;
use agent_types::runtime::status::RuntimeStatus;
use agent_types::time::Mono;
use serde_json::Value;

use crate::api_calls::ApiEvent;
use crate::api_checks::ApiChecks;
use crate::api_watch::{WatchKind, Watches};
use crate::cluster::NODE;
use crate::fake_api::resource::text;
use crate::fake_api::{FakeApi, Key, Resource, Selector};
use crate::node::NodeEvent;
use crate::world::{Event, World};

/// Both watches.
pub(crate) const WATCHES: [WatchKind; 2] = [WatchKind::Pods, WatchKind::Node];
/// Time between two backups, seconds.
const BACKUP_S: u64 = 10;
/// Number of backups that are kept.
const BACKUPS: usize = 12;
/// The agent notices a dead connection after this time, seconds, if it does not close it before.
const DEAD_S: u64 = 45;

/// The API server and the network to it.
#[derive(Default)]
pub struct ApiSide {
    /// The server.
    pub server: FakeApi,
    /// Number of calls about statuses and mirror pods. Calls for events and heartbeats do not count.
    pub pod_calls: u64,
    /// The server was restored to an earlier state, or showed one: the agent terminated the pods that this state lacks.
    pub went_back: bool,
    pub(crate) checks: ApiChecks,
    pub(crate) watches: Watches,
    backups: VecDeque<FakeApi>,
    /// No call reaches the server until this time.
    pub(crate) cut_until: Option<Mono>,
    /// Connections are dead until this time.
    pub(crate) dead_until: Option<Mono>,
    seconds: u64,
    /// This incarnation has listed the pods.
    listed: bool,
}

impl ApiSide {
    /// True if a call can reach the server.
    pub(crate) fn is_reachable(&self) -> bool {
        self.cut_until.is_none() && self.dead_until.is_none()
    }
}

/// UIDs of the pods that have not ended on this server.
fn going_on(server: &FakeApi) -> Vec<PodUid> {
    let (pods, _) = server.list(Resource::Pods, &Selector::node(NODE));
    let over = |pod: &Value| matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    pods.iter().filter(|pod| !over(pod)).map(|pod| text(pod, "/metadata/uid").into()).collect()
}

impl World {
    /// Makes the node part of a cluster; call it before the agent starts.
    pub fn join(&mut self) {
        self.api = Some(Box::default());
    }

    /// Changes the API server on behalf of another client; the checkers and the watches see the change.
    pub fn on_server<T>(
        &mut self,
        act: impl FnOnce(&mut FakeApi, agent_types::time::Wall) -> T,
    ) -> Option<T> {
        let wall = self.now().wall;
        let result = act(&mut self.api.as_mut()?.server, wall);
        self.server_changed(None);
        Some(result)
    }

    /// Shows a change to the checkers, then to the watches.
    pub(crate) fn server_changed(&mut self, by: Option<&agent_types::api::ApiCall>) {
        let Some(api) = &mut self.api else { return };
        let now = self.queue.now();
        for event in api.checks.changes(&api.server, by) {
            self.checks.note(now, &event);
        }
        for which in WATCHES {
            self.pump(which);
        }
    }

    /// Sends new changes to the agent if its watch is open.
    pub(crate) fn pump(&mut self, which: WatchKind) {
        let Some(api) = &mut self.api else { return };
        if !api.is_reachable() {
            return;
        }
        match api.watches.news(which, &api.server) {
            Ok(news) => {
                for heard in news {
                    self.deliver(which, heard);
                }
            }
            Err(_) => self.try_watch_in(which, None, Duration::from_secs(1)),
        }
    }

    fn deliver(&mut self, which: WatchKind, heard: crate::api_watch::WatchDelivery) {
        let at = self.queue.now().after(Duration::from_millis(self.rng.between(1, 30)));
        let Some(api) = &mut self.api else { return };
        let at = api.watches.in_order(which, at);
        self.queue.at(at, Event::Api(ApiEvent::Heard { incarnation: self.incarnation, heard }));
    }

    pub(crate) fn try_watch_in(&mut self, which: WatchKind, from: Option<u64>, wait: Duration) {
        let incarnation = self.incarnation;
        self.queue.after(wait, Event::Api(ApiEvent::Watch { incarnation, which, from }));
    }

    /// The driver opens a watch: it resumes at a version, or starts with a list.
    pub(crate) fn try_watch(&mut self, which: WatchKind, from: Option<u64>) {
        let stale = self.rng.chance(self.faults.api.stale_list);
        let Some(api) = &mut self.api else { return };
        if !api.is_reachable() {
            return self.lost(which);
        }
        match from {
            Some(version) if version <= api.server.version() => {
                api.watches.resume(which, version);
                self.pump(which);
            }
            Some(_) => self.lost(which),
            None => {
                // Only the first list of an incarnation can be behind what it has seen.
                let old = api
                    .backups
                    .back()
                    .filter(|old| stale && !api.listed && old.version() <= api.server.version());
                api.went_back |= old.is_some_and(|old| old.version() < api.server.version());
                let now = self.queue.now();
                if which == WatchKind::Pods && !api.listed {
                    for pod in going_on(old.unwrap_or(&api.server)) {
                        self.checks.note(now, &TraceEvent::ApiListedFirst { pod });
                    }
                }
                let heard = api.watches.list(which, old.unwrap_or(&api.server));
                api.listed |= which == WatchKind::Pods;
                self.deliver(which, heard);
                self.pump(which);
            }
        }
    }

    /// The connection of a watch broke: the driver reports the loss and lists again after a while.
    fn lost(&mut self, which: WatchKind) {
        use crate::api_watch::WatchDelivery;
        use agent_types::api::WatchEvent;
        let why = "connection lost".to_owned();
        self.deliver(
            which,
            match which {
                WatchKind::Pods => WatchDelivery::Pods(WatchEvent::Lost(why)),
                WatchKind::Node => WatchDelivery::Node(WatchEvent::Lost(why)),
            },
        );
        let wait = Duration::from_millis(self.rng.between(800, 30_000));
        self.try_watch_in(which, None, wait);
    }

    /// Makes new connections; watches continue at their versions.
    pub(crate) fn reconnect(&mut self) {
        let Some(api) = &mut self.api else { return };
        api.dead_until = None;
        for which in WATCHES {
            self.break_watch(which, true);
        }
    }

    fn break_watch(&mut self, which: WatchKind, resumes: bool) {
        let Some(version) = self.api.as_mut().and_then(|api| api.watches.close(which)) else { return };
        if resumes {
            self.try_watch_in(which, Some(version), Duration::from_millis(20));
        } else {
            self.lost(which);
        }
    }

    /// An incarnation starts: both watches start with a list, and the machine reports its own state.
    pub(crate) fn start_api(&mut self) {
        if self.node.is_none() {
            return; // The agent died in its first step.
        }
        let Some(api) = &mut self.api else { return };
        (api.watches, api.listed) = (Watches::default(), false);
        for which in WATCHES {
            self.try_watch_in(which, None, Duration::from_millis(5));
        }
        let machine = MachineFacts {
            machine_id: "m".to_owned(),
            architecture: "amd64".to_owned(),
            amounts: MachineAmounts {
                cpus: 4,
                memory_bytes: 16 << 30,
                hugepages: Vec::new(),
                ephemeral_storage_bytes: Some(64 << 30),
            },
            ..MachineFacts::default()
        };
        let eth0 = InterfaceAddress { interface: "eth0".to_owned(), ip: [192, 0, 2, 1].into() };
        let network = HostNetwork {
            addresses: vec![eth0],
            default_v4: vec!["eth0".to_owned()],
            ..HostNetwork::default()
        };
        for input in [
            NodeInput::Network(network),
            NodeInput::Machine(Ok(machine)),
            NodeInput::Pleg(Ok(())),
            NodeInput::Storage(Ok(())),
        ] {
            self.tell(NodeEvent::Input(Box::new(input)));
        }
        self.runtime_is_ready();
    }

    fn runtime_is_ready(&mut self) {
        let asked = self.queue.now();
        let input = NodeInput::Runtime { asked, result: Ok(RuntimeStatus::ready()) };
        self.tell(NodeEvent::Input(Box::new(input)));
    }

    /// Changes and faults of the server that need no call, once a second.
    pub(crate) fn api_second(&mut self) {
        let now = self.queue.now();
        let Some(api) = &mut self.api else { return };
        api.seconds += 1;
        let seconds = api.seconds;
        if self.faults.api.stale_list + self.faults.api.restored > 0 && seconds.is_multiple_of(BACKUP_S) {
            if api.backups.len() == BACKUPS {
                api.backups.pop_front();
            }
            api.backups.push_back(api.server.backup());
        }
        if seconds.is_multiple_of(5) {
            self.runtime_is_ready();
            self.collect_garbage();
        }
        if seconds.is_multiple_of(60) && !self.rng.chance(self.faults.api.bookmark_lost) {
            self.bookmarks();
        }
        self.network_second(now);
        self.server_second();
    }

    fn bookmarks(&mut self) {
        let Some(api) = &mut self.api else { return };
        if api.is_reachable() {
            for which in WATCHES {
                api.watches.bookmark(which, &api.server);
            }
        }
    }

    fn network_second(&mut self, now: Mono) {
        let (partition, dead) = (self.faults.api.partition, self.faults.api.dead);
        let closed = self.faults.api.watch_closed;
        let Some(api) = &mut self.api else { return };
        if api.cut_until.is_some_and(|until| until <= now) {
            api.cut_until = None;
            let survives = self.rng.chance(500);
            for which in WATCHES {
                if survives { self.pump(which) } else { self.break_watch(which, true) }
            }
        } else if self.rng.chance(partition) {
            let length = Duration::from_millis(self.rng.between(500, 90_000));
            let breaks = self.rng.chance(500);
            if let Some(api) = &mut self.api {
                api.cut_until = Some(now.after(length));
            }
            for which in WATCHES.into_iter().filter(|_| breaks) {
                self.break_watch(which, false);
            }
        }
        let Some(api) = &mut self.api else { return };
        if api.dead_until.is_some_and(|until| until <= now) {
            self.reconnect();
        } else if self.rng.chance(dead) {
            api.dead_until = Some(now.after(Duration::from_secs(DEAD_S)));
        }
        for which in WATCHES {
            if self.rng.chance(closed) {
                self.break_watch(which, true);
            }
        }
    }

    fn server_second(&mut self) {
        let (forgets, restored) = (self.faults.api.history_lost, self.faults.api.restored);
        let Some(api) = &mut self.api else { return };
        if self.rng.chance(forgets) {
            api.server.forget_history();
        }
        if self.rng.chance(restored) {
            let backups: Vec<FakeApi> = api.backups.iter().cloned().collect();
            if let Some(backup) = self.rng.pick(&backups) {
                self.restore(backup);
            }
        }
    }

    /// Restores the server from `backup`; every connection breaks.
    fn restore(&mut self, backup: &FakeApi) {
        self.disturb();
        self.remember_told();
        let Some(api) = &mut self.api else { return };
        api.server.restore(backup);
        api.went_back = true;
        // Later backups belong to a history that the restore has undone.
        api.backups.retain(|b| b.version() <= backup.version());
        let now = self.queue.now();
        for event in api.checks.anew(&api.server) {
            self.checks.note(now, &event);
        }
        for which in WATCHES {
            self.break_watch(which, false);
        }
    }

    /// Network and server have no faults from now on.
    pub fn heal_api(&mut self) {
        let Some(api) = &mut self.api else { return };
        let window = FakeApi::default().window;
        api.server.window = window;
        if api.cut_until.is_some() || api.dead_until.is_some() {
            api.cut_until = None;
            self.reconnect();
        }
    }

    /// The garbage collector: deletes mirror pods whose Node is gone. This world has no other owners.
    fn collect_garbage(&mut self) {
        let Some(api) = &self.api else { return };
        let node = api.server.object(&Key::new(Resource::Nodes, "", NODE));
        let uid = node.map_or("", |node| text(node, "/metadata/uid")).to_owned();
        let orphan = |pod: &Value| {
            let owner = text(pod, "/metadata/ownerReferences/0/uid");
            let of_node = text(pod, "/metadata/ownerReferences/0/kind") == "Node";
            let deleting = !text(pod, "/metadata/deletionTimestamp").is_empty();
            of_node && owner != uid && !deleting
        };
        let pods = api.server.list(Resource::Pods, &Selector::default()).0;
        let orphans: Vec<Key> = pods.iter().filter(|pod| orphan(pod)).map(|pod| key_of(pod)).collect();
        for key in orphans {
            self.disturb();
            self.on_server(|server, now| server.remove_object(now, &key, None));
        }
    }
}

/// The key of a stored pod.
#[must_use]
pub fn key_of(pod: &Value) -> Key {
    Key::new(Resource::Pods, text(pod, "/metadata/namespace"), text(pod, "/metadata/name"))
}
