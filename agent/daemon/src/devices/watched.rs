//! Device plugins that the watcher of `plugins_registry` finds (type `DevicePlugin`).
//!
//! In: what a plugin says that it is. Out: a connection to install, or upstream's words about why there is none. Invariants: the endpoint is
//! used as the plugin names it; calls of `Register` and plugins of the watcher share their limits and their numbers. Upstream:
//! plugin/v1beta1/handler.go.

use std::path::{Path, PathBuf};

use agent_managers::devices::registration::{RegistrationError, check_plugin};
use agent_plugins::devices::{ConnectError, DevicePlugin};
use agent_volumes::csi::plugin::PluginInfo;

use super::DevicePlugins;
use super::limits::RESOURCES_MAX;
use super::messages;

/// The kind of plugin that is a device plugin.
pub const DEVICE_PLUGIN: &str = "DevicePlugin";

/// A device plugin that stated its options.
pub struct WatchedPlugin {
    plugin: DevicePlugin,
    resource: String,
    options: agent_managers::devices::plugin::PluginOptions,
}

impl WatchedPlugin {
    /// Resource of the plugin.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

impl DevicePlugins {
    /// Looks whether the plugin can be registered.
    ///
    /// # Errors
    /// Upstream's words about why it cannot.
    pub async fn look(&self, info: &PluginInfo, socket: &Path) -> Result<WatchedPlugin, String> {
        check_plugin(&info.name, &info.versions)
            .map_err(|error| format!("RegisterPlugin error -- plugin validation failed with err: {error}"))?;
        let failed = |error: RegistrationError| {
            format!("RegisterPlugin error -- plugin registration failed with err: {error}")
        };
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

    /// Registers a plugin.
    pub fn take(&self, found: WatchedPlugin) {
        let WatchedPlugin { plugin, resource, options } = found;
        let connection = self.install(plugin, &resource, options);
        self.clients.lock().note_watched(resource, connection);
    }

    /// The plugin's socket is gone: disconnects the plugin.
    pub fn forget(&self, resource: &str) {
        self.clients.lock().end_watched(resource);
    }
}
