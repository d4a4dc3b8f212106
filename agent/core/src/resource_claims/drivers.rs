//! Plugins of drivers: selects the plugin to call, and the drivers that can be used.
//!
//! In: registrations and connections. Out: the plugin of a driver. Invariants: a driver may have several plugins (rolling update); the
//! most recently registered one that is connected is called, otherwise the most recently registered one. Upstream:
//! pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.

use std::collections::BTreeMap;

use super::api::PluginId;

#[derive(Clone, Debug)]
struct Plugin {
    driver: String,
    connected: bool,
}

/// All registered plugins.
#[derive(Clone, Debug, Default)]
pub(super) struct Drivers {
    plugins: BTreeMap<PluginId, Plugin>,
}

impl Drivers {
    pub(super) fn register(&mut self, plugin: PluginId, driver: &str) {
        self.plugins.insert(plugin, Plugin { driver: driver.to_owned(), connected: false });
    }

    /// Returns the driver; `None`: the plugin is not registered.
    pub(super) fn connect(&mut self, plugin: PluginId, connected: bool) -> Option<String> {
        let plugin = self.plugins.get_mut(&plugin)?;
        plugin.connected = connected;
        Some(plugin.driver.clone())
    }

    /// Returns the driver; `None`: the plugin was not registered.
    pub(super) fn deregister(&mut self, plugin: PluginId) -> Option<String> {
        self.plugins.remove(&plugin).map(|plugin| plugin.driver)
    }

    pub(super) fn driver(&self, plugin: PluginId) -> Option<&str> {
        self.plugins.get(&plugin).map(|plugin| plugin.driver.as_str())
    }

    /// Plugins of the driver, newest first.
    pub(super) fn plugins(&self, driver: &str) -> impl Iterator<Item = PluginId> {
        self.plugins.iter().rev().filter(move |(_, plugin)| plugin.driver == driver).map(|(id, _)| *id)
    }

    /// The plugin to call for the driver.
    ///
    /// # Errors
    /// No plugin of the driver is registered: upstream's text.
    pub(super) fn to_call(&self, driver: &str) -> Result<PluginId, String> {
        if driver.is_empty() {
            return Err("DRA driver name is empty".to_owned());
        }
        let is_connected = |id: &PluginId| self.plugins.get(id).is_some_and(|plugin| plugin.connected);
        let connected = self.plugins(driver).find(is_connected);
        connected
            .or_else(|| self.plugins(driver).next())
            .ok_or_else(|| format!("DRA driver {driver} is not registered"))
    }

    /// True if a plugin of the driver is connected.
    pub(super) fn is_usable(&self, driver: &str) -> bool {
        self.plugins.values().any(|plugin| plugin.driver == driver && plugin.connected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_connected_plugin_is_called_and_otherwise_the_newest() {
        let mut drivers = Drivers::default();
        assert_eq!(drivers.to_call("d"), Err("DRA driver d is not registered".to_owned()));
        assert_eq!(drivers.to_call(""), Err("DRA driver name is empty".to_owned()));
        drivers.register(PluginId(1), "d");
        drivers.register(PluginId(2), "other");
        drivers.register(PluginId(3), "d");
        assert_eq!(drivers.to_call("d"), Ok(PluginId(3)), "none is connected");
        assert!(!drivers.is_usable("d"));
        assert_eq!(drivers.connect(PluginId(1), true).as_deref(), Some("d"));
        assert_eq!(drivers.to_call("d"), Ok(PluginId(1)));
        assert!(drivers.is_usable("d"));
        drivers.connect(PluginId(3), true);
        assert_eq!(drivers.to_call("d"), Ok(PluginId(3)));
        drivers.connect(PluginId(3), false);
        drivers.connect(PluginId(1), false);
        assert_eq!(drivers.to_call("d"), Ok(PluginId(3)));
        assert_eq!(drivers.deregister(PluginId(3)).as_deref(), Some("d"));
        assert_eq!(drivers.deregister(PluginId(3)), None);
        assert_eq!(drivers.to_call("d"), Ok(PluginId(1)));
        assert_eq!(drivers.connect(PluginId(3), true), None);
    }
}
