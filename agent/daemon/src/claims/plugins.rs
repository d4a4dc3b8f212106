//! Registered plugins of DRA drivers: their connections and their reports of health.
//!
//! ```text
//! plugin watcher ─► register ─► connection ─┬─► Registered, Connected, Disconnected, Deregistered ─► owner of claims
//!                                           └─► health stream, again after 5 s ─► Health, HealthEnded ─┘
//! ```
//! In: plugins that the watcher found. Out: [`ClaimEvent`]s, clients for calls. Invariants: the owner gets registrations in the order of
//! their numbers, and no event of a plugin after its end; an endpoint of a driver has one registration, because a plugin must not receive
//! the calls of another one; a plugin that does not offer health reports is not asked for them (upstream asks every 5 s). Upstream:
//! pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_core::plugin_registrations::dra::{self, DraService};
use agent_core::plugin_registrations::refusals::Refusal;
use agent_core::resource_claims::api::{ClaimEvent, PluginId, ReportedHealth};
use agent_plugins::dra::{Connectivity, DraPlugin, DraVersion, HealthReports};
use agent_types::lock::Lock;
use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;
use agent_volumes::csi::plugin::PluginInfo;
use tokio_util::sync::CancellationToken;

use super::limits::{PLUGINS_MAX, PLUGINS_OF_DRIVER_MAX, REPORTED_MAX, STREAM_AGAIN, lines};
use super::messages;
use super::reports::GatheredReports;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

/// The node's plugins of DRA drivers; clones share them.
#[derive(Clone)]
pub struct DraPlugins {
    plugins: Arc<Lock<Plugins>>,
    to: Sender<ClaimEvent>,
    /// Gate ResourceHealthStatus.
    wants_health: bool,
    tasks: Tasks,
}

#[derive(Default)]
struct Plugins {
    /// The number of the last registration.
    last: u64,
    by_id: BTreeMap<PluginId, Registered>,
}

/// A registered plugin.
#[derive(Clone)]
pub(super) struct Registered {
    /// Name of the driver.
    pub(super) driver: Arc<str>,
    /// The plugin's client.
    pub(super) plugin: DraPlugin,
    endpoint: Arc<str>,
    end: CancellationToken,
    /// Lines of the log about the plugin.
    lines: Arc<Lock<TokenBucket>>,
}

impl Registered {
    /// Whether a line about the plugin may be written now.
    fn may_log(&self, now: Mono) -> bool {
        self.lines.lock().reserve(now, Duration::ZERO).is_ok()
    }
}

impl DraPlugins {
    /// An empty table of plugins, whose events go to `to`.
    #[must_use]
    pub(super) fn new(to: Sender<ClaimEvent>, wants_health: bool, tasks: Tasks) -> DraPlugins {
        DraPlugins { plugins: Arc::default(), to, wants_health, tasks }
    }

    /// Registers a plugin that the watcher found at `socket`, and returns the number of the registration.
    ///
    /// # Errors
    /// The reason for which the plugin cannot be registered, with upstream's text.
    pub fn register(&self, info: &PluginInfo, socket: &str) -> Result<u64, Refusal> {
        let found = dra::check(info, socket).map_err(Refusal::Invalid)?;
        let version = match found.service {
            DraService::V1 => DraVersion::V1,
            DraService::V1Beta1 => DraVersion::V1Beta1,
        };
        let mut plugins = self.plugins.lock();
        let same = |other: &Registered| *other.driver == *found.driver && *other.endpoint == *found.endpoint;
        if plugins.by_id.values().any(same) {
            let (endpoint, driver) = (&found.endpoint, &found.driver);
            return Err(Refusal::Failed(format!(
                "endpoint {endpoint} already registered for DRA driver plugin {driver}"
            )));
        }
        if plugins.by_id.len() >= PLUGINS_MAX {
            let full = format!("the node has {PLUGINS_MAX} plugins of DRA drivers, and accepts no more");
            return Err(Refusal::Failed(full));
        }
        if plugins.by_id.values().filter(|of| *of.driver == *found.driver).count() >= PLUGINS_OF_DRIVER_MAX {
            let full =
                format!("the driver has {PLUGINS_OF_DRIVER_MAX} plugins, and the node accepts no more");
            return Err(Refusal::Failed(full));
        }
        let (plugin, keeper) = DraPlugin::new(PathBuf::from(&found.endpoint), version);
        plugins.last += 1;
        let id = PluginId(plugins.last);
        let registered = Registered {
            driver: found.driver.as_str().into(),
            plugin: plugin.clone(),
            endpoint: found.endpoint.as_str().into(),
            end: CancellationToken::new(),
            lines: Arc::new(Lock::new(lines())),
        };
        plugins.by_id.insert(id, registered.clone());
        self.to.send(ClaimEvent::Registered { plugin: id, driver: found.driver.clone() });
        drop(plugins);
        tracing::info!(
            driver = found.driver,
            endpoint = found.endpoint,
            plugin = id.0,
            "DRA plugin is registered"
        );
        let this = self.clone();
        let asks_health = found.has_health && self.wants_health;
        self.tasks.start(async move {
            tokio::select! {
                // Dropping the keeper closes the connection and the stream of health.
                biased;
                () = registered.end.cancelled() => {}
                () = keeper.run() => {}
                () = this.follow_connection(id, &registered, plugin.connectivity()) => {}
                () = this.follow_health(id, &registered), if asks_health => {}
            }
        });
        Ok(id.0)
    }

    /// Ends a registration.
    pub fn deregister(&self, number: u64) {
        let id = PluginId(number);
        let mut plugins = self.plugins.lock();
        let Some(registered) = plugins.by_id.remove(&id) else { return };
        registered.end.cancel();
        self.to.send(ClaimEvent::Deregistered(id));
        drop(plugins);
        tracing::info!(driver = %registered.driver, plugin = number, "DRA plugin is gone");
    }

    /// The plugin of this number.
    pub(super) fn get(&self, id: PluginId) -> Option<Registered> {
        self.plugins.lock().by_id.get(&id).cloned()
    }

    /// Sends an event about a plugin that is still registered.
    fn send(&self, id: PluginId, event: ClaimEvent) {
        let plugins = self.plugins.lock();
        if plugins.by_id.contains_key(&id) {
            self.to.send(event);
        }
    }

    async fn follow_connection(&self, id: PluginId, of: &Registered, mut connectivity: Connectivity) {
        while let Some(connected) = connectivity.next().await {
            if of.may_log(self.tasks.now().mono) {
                tracing::info!(driver = %of.driver, plugin = id.0, connected, "connection of a DRA plugin");
            }
            let event = if connected { ClaimEvent::Connected(id) } else { ClaimEvent::Disconnected(id) };
            self.send(id, event);
        }
    }

    /// Forwards the plugin's reports, from one stream after the other.
    async fn follow_health(&self, id: PluginId, of: &Registered) {
        let mut is_known_ended = false;
        // Without a connection the loop waits for one and needs no timer.
        while of.plugin.connected().await {
            let why = match of.plugin.health().await {
                Ok(reports) => {
                    is_known_ended = false;
                    self.pass_on(id, reports).await
                }
                Err(error) => error.words(),
            };
            if of.may_log(self.tasks.now().mono) {
                tracing::info!(driver = %of.driver, plugin = id.0, why, "no health reports of a DRA plugin");
            }
            // The owner forgets the health of the plugin's devices once.
            if !std::mem::replace(&mut is_known_ended, true) {
                self.send(id, ClaimEvent::HealthEnded(id));
            }
            self.tasks.wait_until(self.tasks.now().mono.after(STREAM_AGAIN)).await;
        }
    }

    /// Forwards reports until the stream ends. Returns the reason of the end.
    async fn pass_on(&self, id: PluginId, mut reports: HealthReports) -> String {
        let mut gathered = GatheredReports::new();
        loop {
            let now = self.tasks.now().mono;
            if let Some(devices) = gathered.take_due(now) {
                self.send(id, ClaimEvent::Health { plugin: id, devices });
            }
            let (read_at, due_at) = (gathered.read_at(now), gathered.due_at());
            tokio::select! {
                // Both branches can be dropped at any await without loss.
                read = self.read(&mut reports, read_at) => match read {
                    Ok(devices) => gathered.read(devices, self.tasks.now().mono),
                    Err(why) => return why,
                },
                () = self.tasks.wait_for_deadline(due_at) => {}
            }
        }
    }

    /// Reads the next report, at this time at the earliest; the error is the reason of the stream's end.
    async fn read(&self, reports: &mut HealthReports, at: Mono) -> Result<Vec<ReportedHealth>, String> {
        self.tasks.wait_until(at).await;
        let devices = reports.next().await.map_err(|error| error.words())?;
        let devices = devices.ok_or("the stream ended")?;
        if devices.len() > REPORTED_MAX {
            return Err(format!(
                "a report has {} devices, and at most {REPORTED_MAX} are accepted",
                devices.len()
            ));
        }
        Ok(devices.into_iter().filter_map(messages::reported).collect())
    }
}
