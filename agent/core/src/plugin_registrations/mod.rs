//! Plugins that register through sockets in `plugins_registry`: CSI drivers, device plugins, plugins of DRA drivers.
//!
//! ```text
//! sockets in plugins_registry ─► Registrations ─► ask the plugin ─► its kind's owner registers it ─► the plugin gets the result
//!                                     ▲                 └────── failed: 0.5 s doubling to 2m2s ──────┘
//!                                     └─ the socket is gone: the owner ends the registration
//! ```
//! Upstream: pkg/kubelet/pluginmanager.

pub mod dra;
pub mod refusals;
pub mod sockets;

/// Kind of a plugin, as the plugin names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginKind {
    /// `CSIPlugin`: one socket for each driver.
    Csi,
    /// `DevicePlugin`: the newest socket of a resource counts.
    Device,
    /// `DRAPlugin`: all sockets of a driver count.
    Dra,
}

impl PluginKind {
    /// The kind with this name; `None`: the kubelet does not register such plugins.
    #[must_use]
    pub fn of(name: &str) -> Option<PluginKind> {
        match name {
            "CSIPlugin" => Some(PluginKind::Csi),
            "DevicePlugin" => Some(PluginKind::Device),
            "DRAPlugin" => Some(PluginKind::Dra),
            _ => None,
        }
    }
}
