//! Device plugins that the plugin watcher finds in `plugins_registry` (type `DevicePlugin`).
//!
//! In: what a plugin says that it is. Out: a connection to install, or upstream's words about why there is none. Invariants: the endpoint is
//! used as the plugin names it; calls of `Register` and plugins of the watcher share their limits and their numbers. Upstream:
//! plugin/v1beta1/handler.go.

use std::path::{Path, PathBuf};

use agent_core::plugin_registrations::refusals::Refusal;
use agent_managers::devices::registration::{RegistrationError, check_plugin};
use agent_plugins::devices::{ConnectError, DevicePlugin};
use agent_volumes::csi::plugin::PluginInfo;

use super::DevicePlugins;
use super::limits::RESOURCES_MAX;
use super::messages;

/// A device plugin that stated its options.
pub struct WatchedPlugin {
    plugin: DevicePlugin,
    resource: String,
    options: agent_managers::devices::plugin::PluginOptions,
}

impl DevicePlugins {
    /// Looks whether the plugin can be registered.
    ///
    /// # Errors
    /// Upstream's words about why it cannot.
    pub async fn look(&self, info: &PluginInfo, socket: &Path) -> Result<WatchedPlugin, Refusal> {
        check_plugin(&info.name, &info.versions).map_err(|error| Refusal::Invalid(error.to_string()))?;
        let failed = |error: RegistrationError| Refusal::Failed(error.to_string());
        if !self.clients.lock().has_room_for(&info.name) {
            let full = format!("the node has {RESOURCES_MAX} device plugins, and accepts no more");
            return Err(failed(RegistrationError::Dial(full)));
        }
        let endpoint =
            if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
        let connected = DevicePlugin::connect(&endpoint).await.map_err(|error| match error {
            ConnectError::Dial(error) => RegistrationError::Dial(error.to_string()),
            ConnectError::Options(error) => RegistrationError::Options(error.words()),
        });
        let (plugin, options) = connected.map_err(failed)?;
        Ok(WatchedPlugin { plugin, resource: info.name.clone(), options: messages::options(options) })
    }

    /// Registers a plugin, and returns the number of its connection.
    #[must_use]
    pub fn take(&self, found: WatchedPlugin) -> u64 {
        let WatchedPlugin { plugin, resource, options } = found;
        self.install(plugin, &resource, options)
    }

    /// The plugin's socket is gone: ends the connection, unless the resource has a newer one.
    pub fn forget(&self, connection: u64) {
        self.clients.lock().end_connection(connection);
    }
}
