//! The key of an attachable volume: the same for all pods of the node that use the volume.

use sha2::{Digest as _, Sha256};

use crate::flex::source::Driver;
use crate::network_disk::PLUGINS;
use crate::plugin::Plugin;

/// A volume, on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeKey {
    /// Name of the driver, or of the node's own plugin (`kubernetes.io/iscsi`): no driver's has a slash. Drivers of
    /// `flexVolume` are below their plugin's name.
    pub driver: String,
    /// What the driver knows the volume by.
    pub handle: String,
}

impl VolumeKey {
    /// A volume of the node's own plugins.
    #[must_use]
    pub fn of_plugin(plugin: Plugin, handle: String) -> VolumeKey {
        VolumeKey { driver: plugin.name().to_owned(), handle }
    }

    /// The node itself mounts it, as a disk that another machine keeps.
    #[must_use]
    pub fn is_network_disk(&self) -> bool {
        PLUGINS.iter().any(|plugin| plugin.name() == self.driver)
    }

    /// A volume of a driver of `flexVolume`, whose volumes are attached to nodes.
    #[must_use]
    pub fn of_flex(driver: &Driver, volume: &str) -> VolumeKey {
        let driver = format!("{}/{}", Plugin::Flex.name(), driver.name());
        VolumeKey { driver, handle: volume.to_owned() }
    }

    /// The name of the driver of `flexVolume` whose volume it is, if it is such a one's.
    #[must_use]
    pub fn flex_driver(&self) -> Option<&str> {
        self.driver.strip_prefix(Plugin::Flex.name())?.strip_prefix('/')
    }

    /// Its name in `status.volumesInUse` and `status.volumesAttached`.
    #[must_use]
    pub fn unique_name(&self) -> String {
        if let Some(driver) = self.flex_driver() {
            return format!("{driver}/{}", self.handle);
        }
        match self.is_network_disk() {
            true => format!("{}/{}", self.driver, self.handle),
            false => format!("kubernetes.io/csi/{}^{}", self.driver, self.handle),
        }
    }

    /// Its directory below `plugins/kubernetes.io/csi`.
    #[must_use]
    pub fn directory(&self) -> String {
        format!("{}/{}", self.driver, hex::encode(Sha256::digest(self.handle.as_bytes())))
    }
}
