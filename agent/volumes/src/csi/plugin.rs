//! Reports of a CSI driver about itself and about its node.

use std::collections::BTreeMap;

/// What a plugin says that it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginInfo {
    /// `CSIPlugin` and others.
    pub kind: String,
    /// Name of the driver.
    pub name: String,
    /// Path of the socket that serves the rest; empty is the one that was asked.
    pub endpoint: String,
    /// Versions of the plugin's interface.
    pub versions: Vec<String>,
}

/// What a CSI driver says of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// What it calls the node.
    pub node_id: String,
    /// Most volumes at once; 0 if it does not say.
    pub volumes_max: i64,
    /// Where the node is, to the driver.
    pub topology: BTreeMap<String, String>,
}
