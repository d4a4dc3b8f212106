//! The connections to registered plugins: their lists, and the agent's calls.
//!
//! In: plugins that stated their options, questions. Out: [`DeviceEvent`]s. Invariants: a resource has one connection, the newest; the
//! lists of a connection that are passed on have a bounded rate, and its end waits for none of them; the stream of a connection that is
//! replaced is closed (upstream leaves it open and takes its lists); a stream that ends is not begun again, because the
//! plugin has to register again; a call has a time limit, so its task ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_core::pod_worker::effect::PRE_START_TIME;
use agent_core::resource_managers::{ASK_TIME, DeviceEvent};
use agent_managers::devices::allocation::AllocateQuestion;
use agent_managers::devices::choice::PreferredQuestion;
use agent_managers::devices::plugin::{AllocateResponse, Connection, PluginDevice, PluginOptions};
use agent_managers::devices::registration::RegistrationError;
use agent_managers::devices::start::StartError;
use agent_plugins::PluginError;
use agent_plugins::devices::{DeviceLists, DevicePlugin};
use agent_types::ids::PodUid;
use agent_types::runtime::placement::PreStartCall;
use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;
use orlop_proto::device_plugin::v1beta1::ContainerAllocateResponse;
use tokio_util::sync::CancellationToken;

use super::DevicePlugins;
use super::limits::{ALLOCATE_BYTES_MAX, ListSize, NAMES_MAX};
use super::newest_list::NewestList;
use super::registrations::{Admission, Registrations};
use super::{limits, messages};

/// A registered plugin.
struct Client {
    plugin: DevicePlugin,
    resource: String,
    /// Size of the list that was passed on last.
    list: ListSize,
    /// Size of its last list.
    newest: ListSize,
    /// Ends the stream of lists.
    end: CancellationToken,
}

/// All registered plugins.
pub(super) struct Clients {
    /// The number of the last registration.
    last: u64,
    by_connection: BTreeMap<u64, Client>,
    pub(super) registrations: Registrations,
    /// Lines of the log about registrations that fail.
    failure_lines: TokenBucket,
    /// Names that metrics show.
    named: BTreeSet<String>,
}

impl Clients {
    /// No plugin yet.
    pub(super) fn new() -> Clients {
        Clients {
            last: 0,
            by_connection: BTreeMap::new(),
            registrations: Registrations::new(),
            failure_lines: limits::failure_lines(),
            named: BTreeSet::new(),
        }
    }

    /// True if the name may become a label of metrics.
    pub(super) fn may_name(&mut self, resource: &str) -> bool {
        self.named.contains(resource)
            || (self.named.len() < NAMES_MAX && self.named.insert(resource.to_owned()))
    }

    /// True if a log line about a registration that fails may be written now.
    pub(super) fn may_log_failure(&mut self, now: Mono) -> bool {
        self.failure_lines.reserve(now, Duration::ZERO).is_ok()
    }

    /// Ends a connection, if it is still the current one.
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

    fn insert(
        &mut self,
        plugin: DevicePlugin,
        resource: &str,
        end: CancellationToken,
    ) -> Result<u64, RegistrationError> {
        self.registrations.registered(resource)?;
        self.end(resource);
        self.last += 1;
        let (resource, list, newest) = (resource.to_owned(), ListSize::default(), ListSize::default());
        self.by_connection.insert(self.last, Client { plugin, resource, list, newest, end });
        Ok(self.last)
    }

    /// Accepts the size of a connection's newest list. The list that was passed on still takes its own memory.
    fn accept(&mut self, connection: u64, newest: ListSize) -> Result<(), String> {
        let passed = self.by_connection.get(&connection).map(|client| client.list).unwrap_or_default();
        let others = self.by_connection.iter().filter(|(number, _)| **number != connection);
        newest.max(passed).check(others.map(|(_, client)| client.list.max(client.newest)))?;
        if let Some(client) = self.by_connection.get_mut(&connection) {
            client.newest = newest;
        }
        Ok(())
    }

    /// The newest list is passed on, in the place of the one before.
    fn passed_on(&mut self, connection: u64) {
        if let Some(client) = self.by_connection.get_mut(&connection) {
            client.list = client.newest;
        }
    }
}

impl DevicePlugins {
    /// Waits until a plugin of this resource may be asked. The answer is whether the resource registered before.
    ///
    /// # Errors
    /// There is no room for one more resource, or too many registrations came.
    pub(super) async fn admitted(&self, resource: &str) -> Result<bool, RegistrationError> {
        let now = self.node.tasks.now().mono;
        let Admission { is_known, wait } = self.clients.lock().registrations.admit(resource, now)?;
        self.node.tasks.wait_until(now.after(wait)).await;
        Ok(is_known)
    }

    /// The plugin is registered from now on: its lists are followed. Returns the number of its connection.
    ///
    /// # Errors
    /// There is no room for one more resource.
    pub(super) fn install(
        &self,
        plugin: DevicePlugin,
        resource: &str,
        options: PluginOptions,
    ) -> Result<u64, RegistrationError> {
        let end = CancellationToken::new();
        let connection = {
            // The lock makes the pod manager receive registrations in the order of their numbers.
            let mut clients = self.clients.lock();
            let connection = clients.insert(plugin.clone(), resource, end.clone())?;
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
        Ok(connection)
    }

    /// Forwards the plugin's lists until the stream ends. Returns the reason of the end.
    async fn follow(&self, connection: u64, plugin: DevicePlugin) -> String {
        let mut lists = match plugin.lists().await {
            Ok(lists) => lists,
            Err(status) => return status.message().to_owned(),
        };
        let mut newest = NewestList::new();
        loop {
            let now = self.node.tasks.now().mono;
            if let Some(devices) = newest.take_due(now) {
                self.pass_on(connection, devices);
            }
            let (read_at, due_at) = (newest.read_at(now), newest.due_at(now));
            tokio::select! {
                // Both branches can be dropped at any await without loss.
                read = self.read(connection, &mut lists, read_at) => match read {
                    Ok((size, devices)) => newest.read(devices, size, self.node.tasks.now().mono),
                    Err(why) => {
                        if let Some(devices) = newest.take() {
                            self.pass_on(connection, devices);
                        }
                        return why;
                    }
                },
                () = self.node.tasks.wait_for_deadline(due_at) => {}
            }
        }
    }

    /// Reads the next list, at this time at the earliest.
    async fn read(
        &self,
        connection: u64,
        lists: &mut DeviceLists,
        at: Mono,
    ) -> Result<(ListSize, Vec<PluginDevice>), String> {
        self.node.tasks.wait_until(at).await;
        let list = lists.next().await.map_err(|status| status.message().to_owned())?;
        let list = list.ok_or("the stream of lists ended")?;
        let size = messages::list_size(&list);
        self.clients.lock().accept(connection, size)?;
        Ok((size, list.into_iter().map(messages::device).collect()))
    }

    fn pass_on(&self, connection: u64, devices: Vec<PluginDevice>) {
        self.clients.lock().passed_on(connection);
        self.send(DeviceEvent::Listed { connection: Connection(connection), devices });
    }

    fn plugin(&self, connection: Connection) -> Option<DevicePlugin> {
        self.clients.lock().by_connection.get(&connection.0).map(|client| client.plugin.clone())
    }

    pub(super) fn ask_preferred(&self, ask: u64, uid: PodUid, question: PreferredQuestion) {
        let this = self.clone();
        self.node.tasks.start(async move {
            let PreferredQuestion { connection, resource, available, must_include, size } = question;
            let answer = match this.plugin(connection) {
                Some(plugin) => {
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
                Some(plugin) => allocated(plugin.allocate(&ids, ASK_TIME).await),
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
    /// The first failure, with upstream's text.
    pub async fn pre_start(&self, calls: &[PreStartCall]) -> Result<(), String> {
        for PreStartCall { connection, resource, ids } in calls {
            let called = match self.plugin(Connection(*connection)) {
                Some(plugin) => plugin.pre_start(ids, PRE_START_TIME).await.map_err(|error| error.words()),
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

/// Error text for a plugin that ended between the question and the call.
fn stopped(resource: &str) -> String {
    format!("endpoint {resource} has been stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_show_a_limited_number_of_names() {
        let mut clients = Clients::new();
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
