//! Device plugins that the plugin watcher finds in `plugins_registry` (type `DevicePlugin`).
//!
//! In: the plugin's information about itself. Out: a connection to install, or a refusal with upstream's text. Invariants: the agent uses
//! the endpoint that the plugin names; calls of `Register` and plugins of the watcher share their limits and their numbers. Upstream:
//! plugin/v1beta1/handler.go.

use std::path::{Path, PathBuf};

use agent_core::plugin_registrations::refusals::Refusal;
use agent_managers::devices::registration::{RegistrationError, check_plugin};
use agent_plugins::devices::{ConnectError, DevicePlugin};
use agent_volumes::csi::plugin::PluginInfo;

use super::DevicePlugins;
use super::messages;

/// A device plugin with its options, not registered yet.
pub struct WatchedPlugin {
    plugin: DevicePlugin,
    resource: String,
    options: agent_managers::devices::plugin::PluginOptions,
}

impl DevicePlugins {
    /// Checks whether the plugin can be registered.
    ///
    /// # Errors
    /// The reason for which it cannot, with upstream's text.
    pub async fn look(&self, info: &PluginInfo, socket: &Path) -> Result<WatchedPlugin, Refusal> {
        check_plugin(&info.name, &info.versions).map_err(|error| Refusal::Invalid(error.to_string()))?;
        self.admitted(&info.name).await.map_err(refusal)?;
        let endpoint =
            if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
        let connected = DevicePlugin::connect(&endpoint).await.map_err(|error| match error {
            ConnectError::Dial(error) => RegistrationError::Dial(error.to_string()),
            ConnectError::Options(error) => RegistrationError::Options(error.words()),
        });
        let (plugin, options) = connected.map_err(refusal)?;
        Ok(WatchedPlugin { plugin, resource: info.name.clone(), options: messages::options(options) })
    }

    /// Registers a plugin, and returns the number of its connection.
    ///
    /// # Errors
    /// There is no room for one more resource.
    pub fn take(&self, found: WatchedPlugin) -> Result<u64, Refusal> {
        let WatchedPlugin { plugin, resource, options } = found;
        self.install(plugin, &resource, options).map_err(refusal)
    }

    /// The plugin's socket is gone: ends the connection, unless the resource has a newer one.
    pub fn forget(&self, connection: u64) {
        self.clients.lock().end_connection(connection);
    }
}

fn refusal(error: RegistrationError) -> Refusal {
    let why = error.to_string();
    match error {
        RegistrationError::TooOften(wait) => Refusal::TooOften { why, wait },
        RegistrationError::Version(_)
        | RegistrationError::ResourceName(_)
        | RegistrationError::Dial(_)
        | RegistrationError::Options(_) => Refusal::Failed(why),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agent_core::plugin_registrations::sockets::Retry;

    use super::*;

    #[test]
    fn a_plugin_that_registers_too_often_is_asked_again_when_it_may_register() {
        let wait = Duration::from_secs(12);
        assert_eq!(refusal(RegistrationError::TooOften(wait)).retry(), Retry::After(wait));
        let dial = refusal(RegistrationError::Dial("no".to_owned()));
        assert_eq!(dial, Refusal::Failed("failed to dial device plugin: no".to_owned()));
        assert_eq!(dial.retry(), Retry::BackOff);
    }
}
