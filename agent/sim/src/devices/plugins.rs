//! Device plugins: their registrations, their lists of devices, their ends.
//!
//! In: random numbers. Out: events for the agent. Invariants, as in the daemon: a registration reaches the agent before the end of the
//! registration that it replaces; lists of a connection come in order; no event for one agent reaches the next agent.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_core::resource_managers::{ASK_TIME, DeviceEvent};
use agent_managers::devices::inventory::STOP_GRACE;
use agent_managers::devices::plugin::{Connection, HEALTHY, PluginDevice, PluginOptions};
use agent_types::time::Mono;

use super::{Devices, PluginEvent, Question, RESOURCES};
use crate::node::NodeEvent;
use crate::rng::Rng;
use crate::world::{Event, World};

/// Number of devices of a plugin without faults: enough for most pods, too few for all.
pub(super) const DEVICES: u64 = 8;
/// The world may see the removal of a resource later than the agent, by at most this time.
const SLACK: Duration = Duration::from_secs(2);

/// Behaviour of a plugin for one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Well,
    /// After seconds, sometimes after the time limit of the question.
    Late,
    Never,
    /// With an error, or without a response.
    Fails,
    /// With unknown devices, with too few, or with devices left out.
    Lies,
}

/// A plugin, and the state of its resource in the agent.
#[derive(Clone, Debug)]
pub(super) struct FakePlugin {
    pub(super) manner: Manner,
    options: PluginOptions,
    devices: Vec<PluginDevice>,
    has_nodes: bool,
    /// Connection to the agent; `None` while the plugin is away.
    pub(super) connection: Option<Connection>,
    /// No list arrives before this time.
    listed_at: Mono,
    /// The resource as the agent knows it.
    told: KnownResource,
}

/// A resource as the agent knows it.
#[derive(Clone, Debug, Default)]
struct KnownResource {
    connection: Option<Connection>,
    /// Time since which the agent knows that the plugin is away.
    away: Option<Mono>,
    healthy: BTreeSet<String>,
    /// The agent has a list, or a checkpoint that names the resource.
    listed: bool,
    /// The last time at which the resource may have had no plugin.
    unknown_at: Mono,
}

impl FakePlugin {
    pub(super) fn new(rng: &mut Rng) -> FakePlugin {
        let mut plugin = FakePlugin {
            manner: Manner::Well,
            options: PluginOptions::default(),
            devices: Vec::new(),
            has_nodes: rng.chance(500),
            connection: None,
            listed_at: Mono(0),
            told: KnownResource::default(),
        };
        plugin.devices = plugin.list(rng, true);
        plugin
    }

    /// A list of devices as the plugin sends it.
    fn list(&self, rng: &mut Rng, calm: bool) -> Vec<PluginDevice> {
        let count = if calm { DEVICES } else { rng.below(DEVICES + 3) };
        let first = if calm || !rng.chance(200) { 0 } else { DEVICES };
        let mut all = Vec::new();
        for n in first..first + count {
            let health = if calm || !rng.chance(200) { HEALTHY } else { "Unhealthy" };
            let nodes = match n % 2 {
                _ if !self.has_nodes => BTreeSet::new(),
                _ if !calm && rng.chance(50) => BTreeSet::from([0, 1, 9]),
                node => BTreeSet::from([i64::try_from(node).unwrap_or(0)]),
            };
            let device = PluginDevice { id: format!("d{n:02}"), health: health.to_owned(), nodes };
            if !calm && rng.chance(50) {
                all.push(PluginDevice { health: "Unhealthy".to_owned(), ..device.clone() });
            }
            all.push(device);
        }
        all
    }

    /// A new agent has read the checkpoint; `known`: the checkpoint names the resource.
    pub(super) fn agent_starts(&mut self, now: Mono, known: bool) {
        let unknown_at = if known { self.told.unknown_at } else { now };
        self.told = KnownResource { away: Some(now), listed: known, unknown_at, ..KnownResource::default() };
        self.connection = None;
    }

    fn note_managed(&mut self, now: Mono) {
        let gone = |away: Mono| now.since(away) + SLACK >= STOP_GRACE;
        if self.told.away.is_some_and(gone) {
            self.told.listed = false;
        }
        if !self.told.listed {
            self.told.unknown_at = now;
        }
    }

    /// The last time at which the resource may have had no plugin.
    pub(super) fn unknown_at(&self) -> Mono {
        self.told.unknown_at
    }

    /// True if the agent may ask this plugin now.
    pub(super) fn is_open(&self, connection: Connection) -> bool {
        self.told.connection == Some(connection) && self.told.away.is_none()
    }

    /// The agent is connected to the plugin.
    pub(super) fn is_there(&self) -> bool {
        self.connection.is_some_and(|connection| self.is_open(connection))
    }

    /// The plugin wants `PreStartContainer`.
    pub(super) fn wants_pre_start(&self) -> bool {
        self.options.pre_start_required
    }

    /// Devices that the agent knows as healthy.
    pub(super) fn healthy(&self) -> &BTreeSet<String> {
        &self.told.healthy
    }

    /// The plugin does not answer from now on.
    pub(super) fn hang(&mut self) {
        self.manner = Manner::Never;
    }

    pub(super) fn behave(&mut self) {
        self.manner = Manner::Well;
    }
}

impl Devices {
    pub(super) fn plugin(&mut self, resource: &str) -> Option<(&mut FakePlugin, &mut Rng)> {
        Some((self.plugins.get_mut(resource)?, &mut self.rng))
    }
}

impl World {
    pub(super) fn news(&mut self, after_ms: u64, event: DeviceEvent) {
        let incarnation = self.incarnation;
        self.queue.after(
            Duration::from_millis(after_ms),
            Event::Plugin(PluginEvent::Arrive { incarnation, event }),
        );
    }

    fn register_later(&mut self, resource: &str, after_ms: u64) {
        let event = PluginEvent::Register { resource: resource.to_owned() };
        self.queue.after(Duration::from_millis(after_ms), Event::Plugin(event));
    }

    /// The agent serves its registration socket: each plugin notices it after some time.
    pub(crate) fn socket_is_served(&mut self) {
        for resource in RESOURCES {
            let Some(devices) = &mut self.devices else { return };
            let most = if devices.calm || devices.rng.chance(700) { 3_000 } else { 400_000 };
            let wait = devices.rng.between(20, most);
            self.register_later(resource, wait);
        }
    }

    /// The plugin calls `Register` if an agent runs. All plugins call it when an agent starts.
    pub(super) fn register(&mut self, resource: &str) {
        let (now, is_up) = (self.queue.now(), self.node.is_some());
        let Some(devices) = self.devices.as_mut().filter(|_| is_up) else { return };
        devices.connections += 1;
        let connection = Connection(devices.connections);
        let calm = devices.calm;
        let Some((plugin, rng)) = devices.plugin(resource) else { return };
        if !calm {
            let manners = [Manner::Well, Manner::Late, Manner::Never, Manner::Fails, Manner::Lies];
            plugin.manner = rng.pick(&manners).copied().filter(|_| rng.chance(600)).unwrap_or(Manner::Well);
        }
        plugin.options =
            PluginOptions { pre_start_required: rng.chance(400), preferred_allocation: rng.chance(500) };
        let options = plugin.options;
        let replaced = plugin.connection.replace(connection);
        plugin.note_managed(now);
        (plugin.told.connection, plugin.told.away) = (Some(connection), None);
        let first = if calm || !rng.chance(50) { Some(rng.between(1, 500)) } else { None };
        let resource = resource.to_owned();
        let event = DeviceEvent::Connected { connection, resource: resource.clone(), options };
        self.tell(NodeEvent::Devices(event));
        if let Some(connection) = replaced {
            let wait = self.rng.between(1, 50);
            self.news(wait, DeviceEvent::Ended { connection });
        }
        if let Some(wait) = first {
            self.send_list(&resource, wait);
        }
    }

    fn send_list(&mut self, resource: &str, after_ms: u64) {
        let (now, incarnation) = (self.queue.now(), self.incarnation);
        let Some((plugin, _)) = self.devices.as_mut().and_then(|devices| devices.plugin(resource)) else {
            return;
        };
        let Some(connection) = plugin.connection else { return };
        let at =
            now.after(Duration::from_millis(after_ms)).max(plugin.listed_at.after(Duration::from_millis(1)));
        plugin.listed_at = at;
        let event = DeviceEvent::Listed { connection, devices: plugin.devices.clone() };
        self.queue.at(at, Event::Plugin(PluginEvent::Arrive { incarnation, event }));
    }

    /// The plugin's process ends.
    fn vanish(&mut self, resource: &str) {
        let taken =
            self.devices.as_mut().and_then(|d| d.plugins.get_mut(resource)).and_then(|p| p.connection.take());
        if let Some(connection) = taken {
            let wait = self.rng.between(1, 100);
            self.news(wait, DeviceEvent::Ended { connection });
        }
    }

    /// Faults of plugins that no call causes, once a second.
    pub(crate) fn plugins_second(&mut self) {
        let now = self.queue.now();
        let Some(devices) = &mut self.devices else { return };
        for plugin in devices.plugins.values_mut() {
            plugin.note_managed(now);
        }
        if devices.calm {
            return;
        }
        let Some(resource) = devices.rng.pick(&RESOURCES).copied() else { return };
        let dice = devices.rng.below(1000);
        let Some((plugin, rng)) = devices.plugin(resource) else { return };
        match dice {
            0..20 => {
                plugin.devices = plugin.list(rng, false);
                let back =
                    if rng.chance(700) { rng.between(500, 60_000) } else { rng.between(200_000, 500_000) };
                self.vanish(resource);
                self.register_later(resource, back);
            }
            20..80 => {
                plugin.devices = plugin.list(rng, false);
                self.send_list(resource, 5);
            }
            80..100 => self.register_later(resource, 1),
            _ => {}
        }
    }

    /// Plugins have faults from now on.
    pub(crate) fn plugins_go_wild(&mut self) {
        if let Some(devices) = &mut self.devices {
            devices.calm = false;
        }
    }

    /// Plugins have no faults from now on, and all their devices.
    pub(crate) fn calm_plugins(&mut self) {
        for resource in RESOURCES {
            let Some(devices) = &mut self.devices else { return };
            devices.calm = true;
            let Some((plugin, rng)) = devices.plugin(resource) else { return };
            plugin.behave();
            plugin.devices = plugin.list(rng, true);
            if plugin.connection.is_some() {
                self.send_list(resource, 5);
            } else {
                self.register_later(resource, 500);
            }
        }
    }

    /// An event of a plugin reaches the agent.
    pub(super) fn note_arrival(&mut self, event: &DeviceEvent) {
        let now = self.queue.now();
        let Some(devices) = &mut self.devices else { return };
        match event {
            DeviceEvent::Listed { connection, devices: list } => {
                let Some(plugin) = devices.plugins.values_mut().find(|p| p.is_open(*connection)) else {
                    return;
                };
                plugin.note_managed(now);
                plugin.told.listed = true;
                // If a list has a device several times, the last entry counts.
                for device in list {
                    plugin.told.healthy.remove(&device.id);
                    if device.health == HEALTHY {
                        plugin.told.healthy.insert(device.id.clone());
                    }
                }
                plugin.told.healthy.retain(|id| list.iter().any(|device| device.id == *id));
            }
            DeviceEvent::Ended { connection } => {
                if let Some(plugin) = devices.plugins.values_mut().find(|p| p.is_open(*connection)) {
                    plugin.told.away = Some(now);
                    plugin.told.healthy.clear();
                }
            }
            DeviceEvent::Allocated { ask, uid, .. } => {
                let is_open = devices.open.get(uid) == Some(ask);
                let incarnation = self.incarnation;
                let own = |q: &&mut Question| q.ask == *ask && q.uid == *uid && q.incarnation == incarnation;
                if let Some(question) = devices.questions.values_mut().find(own) {
                    question.is_stale = !is_open || now > question.at.after(ASK_TIME);
                }
            }
            DeviceEvent::Connected { .. } | DeviceEvent::Preferred { .. } | DeviceEvent::Written(_) => {}
        }
    }
}
