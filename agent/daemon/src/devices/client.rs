//! The connections to registered plugins: lists that come, questions that go.
//!
//! In: plugins that stated their options, questions. Out: [`DeviceEvent`]s. Invariants: a resource has one connection, the newest; the
//! stream of a connection that is replaced is closed (upstream leaves it open and takes its lists); a stream that ends, for whatever
//! reason, is not begun again, because the plugin has to register again; a call has a time limit, so its task ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_core::pod_worker::effect::PRE_START_TIME;
use agent_core::resource_managers::{ASK_TIME, DeviceEvent};
use agent_managers::devices::allocation::AllocateQuestion;
use agent_managers::devices::choice::PreferredQuestion;
use agent_managers::devices::plugin::{AllocateResponse, Connection, PluginOptions};
use agent_managers::devices::start::StartError;
use agent_plugins::PluginError;
use agent_plugins::devices::{DeviceLists, DevicePlugin};
use agent_types::ids::PodUid;
use agent_types::runtime::placement::PreStartCall;
use orlop_proto::device_plugin::v1beta1::ContainerAllocateResponse;
use tokio_util::sync::CancellationToken;

use super::DevicePlugins;
use super::limits::{ALLOCATE_BYTES_MAX, LIST_GAP, ListSize, NAMES_MAX, RESOURCES_MAX};
use super::messages;

/// A registered plugin.
struct Client {
    plugin: DevicePlugin,
    resource: String,
    /// Size of its last list.
    list: ListSize,
    /// Ends the stream of lists.
    end: CancellationToken,
}

/// All registered plugins.
#[derive(Default)]
pub(super) struct Clients {
    /// The number of the last registration.
    last: u64,
    by_connection: BTreeMap<u64, Client>,
    /// Resources that registered since the start of the agent. Each of them costs memory and a line of the Node, also without its plugin.
    seen: BTreeSet<String>,
    /// Names that metrics show.
    named: BTreeSet<String>,
}

impl Clients {
    /// Whether the name may become a label of metrics.
    pub(super) fn may_name(&mut self, resource: &str) -> bool {
        self.named.contains(resource)
            || (self.named.len() < NAMES_MAX && self.named.insert(resource.to_owned()))
    }

    /// Whether there is room for a plugin of this resource.
    pub(super) fn has_room_for(&self, resource: &str) -> bool {
        self.seen.contains(resource) || self.seen.len() < RESOURCES_MAX
    }

    /// Ends a connection, if it is still there.
    pub(super) fn end_connection(&mut self, connection: u64) {
        if let Some(client) = self.by_connection.remove(&connection) {
            client.end.cancel();
        }
    }

    /// Ends the stream of this resource's plugin.
    fn end(&mut self, resource: &str) {
        let ended = self.by_connection.extract_if(.., |_, client| client.resource == resource);
        ended.for_each(|(_, client)| client.end.cancel());
    }

    fn insert(&mut self, plugin: DevicePlugin, resource: &str, end: CancellationToken) -> u64 {
        self.end(resource);
        self.seen.insert(resource.to_owned());
        self.last += 1;
        let client = Client { plugin, resource: resource.to_owned(), list: ListSize::default(), end };
        self.by_connection.insert(self.last, client);
        self.last
    }

    /// Accepts the size of a connection's list.
    fn accept(&mut self, connection: u64, list: ListSize) -> Result<(), String> {
        let others = self.by_connection.iter().filter(|(number, _)| **number != connection);
        list.check(others.map(|(_, client)| client.list))?;
        if let Some(client) = self.by_connection.get_mut(&connection) {
            client.list = list;
        }
        Ok(())
    }
}

impl DevicePlugins {
    /// The plugin is registered from now on: its lists are followed. Returns the number of its connection.
    pub(super) fn install(&self, plugin: DevicePlugin, resource: &str, options: PluginOptions) -> u64 {
        let end = CancellationToken::new();
        let connection = {
            // The pod manager learns of registrations in the order of their numbers.
            let mut clients = self.clients.lock();
            let connection = clients.insert(plugin.clone(), resource, end.clone());
            let resource = resource.to_owned();
            self.send(DeviceEvent::Connected { connection: Connection(connection), resource, options });
            connection
        };
        tracing::info!(resource, connection, "device plugin is registered");
        let (this, resource) = (self.clone(), resource.to_owned());
        self.node.tasks.start(async move {
            let why = tokio::select! {
                // Dropping the stream closes it.
                biased;
                () = end.cancelled() => "a newer registration replaces it, or its socket is gone".to_owned(),
                why = this.follow(connection, plugin) => why,
            };
            tracing::info!(resource, connection, why, "device plugin is gone");
            this.clients.lock().by_connection.remove(&connection);
            this.send(DeviceEvent::Ended { connection: Connection(connection) });
        });
        connection
    }

    /// Passes the plugin's lists on until the stream ends; the reason of the end.
    async fn follow(&self, connection: u64, mut plugin: DevicePlugin) -> String {
        let mut lists = match plugin.lists().await {
            Ok(lists) => lists,
            Err(status) => return status.message().to_owned(),
        };
        loop {
            match self.next(connection, &mut lists).await {
                Ok(event) => self.send(event),
                Err(why) => return why,
            }
            self.node.tasks.wait_until(self.node.tasks.now().mono.after(LIST_GAP)).await;
        }
    }

    async fn next(&self, connection: u64, lists: &mut DeviceLists) -> Result<DeviceEvent, String> {
        let list = lists.next().await.map_err(|status| status.message().to_owned())?;
        let list = list.ok_or("the stream of lists ended")?;
        self.clients.lock().accept(connection, messages::list_size(&list))?;
        let devices = list.into_iter().map(messages::device).collect();
        Ok(DeviceEvent::Listed { connection: Connection(connection), devices })
    }

    fn plugin(&self, connection: Connection) -> Option<DevicePlugin> {
        self.clients.lock().by_connection.get(&connection.0).map(|client| client.plugin.clone())
    }

    pub(super) fn ask_preferred(&self, ask: u64, uid: PodUid, question: PreferredQuestion) {
        let this = self.clone();
        self.node.tasks.start(async move {
            let PreferredQuestion { connection, resource, available, must_include, size } = question;
            let answer = match this.plugin(connection) {
                Some(mut plugin) => {
                    let asked = plugin.preferred(&available, &must_include, size, ASK_TIME);
                    asked.await.map_err(|error| error.words())
                }
                None => Err(stopped(&resource)),
            };
            this.send(DeviceEvent::Preferred { ask, uid, answer });
        });
    }

    pub(super) fn ask_allocate(&self, ask: u64, uid: PodUid, question: AllocateQuestion) {
        let this = self.clone();
        self.node.tasks.start(async move {
            let AllocateQuestion { connection, resource, ids } = question;
            let began = this.node.tasks.now().mono;
            let answer = match this.plugin(connection) {
                Some(mut plugin) => allocated(plugin.allocate(&ids, ASK_TIME).await),
                None => Err(stopped(&resource)),
            };
            let took: Duration = this.node.tasks.now().mono.since(began);
            this.node.node_events.metrics().devices_allocated(&resource, took);
            this.send(DeviceEvent::Allocated { ask, uid, answer });
        });
    }

    /// Reports the start of a container to the plugins of its devices.
    ///
    /// # Errors
    /// The first failure, in upstream's words.
    pub async fn pre_start(&self, calls: &[PreStartCall]) -> Result<(), String> {
        for PreStartCall { connection, resource, ids } in calls {
            let called = match self.plugin(Connection(*connection)) {
                Some(mut plugin) => {
                    plugin.pre_start(ids, PRE_START_TIME).await.map_err(|error| error.words())
                }
                None => Err(stopped(resource)),
            };
            called.map_err(|error| StartError::PreStart(error).to_string())?;
        }
        Ok(())
    }
}

fn allocated(
    answer: Result<Option<ContainerAllocateResponse>, PluginError>,
) -> Result<Option<AllocateResponse>, String> {
    let answer = answer.map_err(|error| error.words())?.map(messages::response);
    match answer.as_ref().map(|answer| answer.encoded.len()) {
        Some(bytes) if bytes > ALLOCATE_BYTES_MAX => Err(format!(
            "the plugin's answer has {bytes} bytes, and at most {ALLOCATE_BYTES_MAX} are accepted"
        )),
        _ => Ok(answer),
    }
}

/// The plugin went away between the question and the call.
fn stopped(resource: &str) -> String {
    format!("endpoint {resource} has been stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_show_a_limited_number_of_names() {
        let mut clients = Clients::default();
        assert!((0..NAMES_MAX).all(|number| clients.may_name(&format!("example.com/{number}"))));
        assert!(!clients.may_name("example.com/more"));
        assert!(clients.may_name("example.com/0"), "a name that is known");
    }

    #[test]
    fn an_answer_that_is_too_large_is_an_error() {
        let answer = |bytes: usize| ContainerAllocateResponse {
            envs: [("A".to_owned(), "x".repeat(bytes))].into(),
            ..ContainerAllocateResponse::default()
        };
        assert!(allocated(Ok(Some(answer(1000)))).is_ok_and(|answer| answer.is_some()));
        assert!(allocated(Ok(Some(answer(ALLOCATE_BYTES_MAX)))).is_err());
        assert_eq!(allocated(Ok(None)), Ok(None));
    }
}
