//! Block devices as volumes: their paths on the node.
//!
//! ```text
//! the driver's device, or the node's ◄── pods/<uid>/volumeDevices/<plugin>/<volume>      (link: containers have this one)
//!                                    ◄── plugins/<plugin>/volumeDevices/<volume>[/dev]/<uid>   (bind mount, held by a loop device)
//! ```
//! In: plugin, PersistentVolume, pod. Out: paths. Invariant: two volumes, or two pods, never share a path.
//! Upstream: pkg/volume/csi/csi_block.go, pkg/volume/local, pkg/volume/util/volumepathhandler.

use crate::plugin::Plugin;

/// Below a pod's directory and below a plugin's.
pub const DEVICES: &str = "volumeDevices";
/// A CSI volume's devices, below its directory.
pub const DEV: &str = "dev";
/// What is written down of a CSI volume, below its directory.
pub const DATA: &str = "data";
/// Where CSI drivers stage.
pub const STAGING: &str = "staging";
/// Where CSI drivers publish.
pub const PUBLISH: &str = "publish";

/// Directory of all devices of a plugin.
#[must_use]
pub fn directory(root: &str, plugin: Plugin) -> String {
    format!("{root}/plugins/{}/{DEVICES}", plugin.name())
}

/// Directory in which the node keeps a volume's device for its pods.
#[must_use]
pub fn global(root: &str, plugin: Plugin, volume: &str) -> String {
    let below = if plugin == Plugin::Csi { format!("/{DEV}") } else { String::new() };
    format!("{}/{volume}{below}", directory(root, plugin))
}

/// Where containers of a pod find a volume's device, below the pod's directory.
#[must_use]
pub fn below(plugin: Plugin, volume: &str) -> String {
    format!("{DEVICES}/{}/{volume}", plugin.directory())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_upstreams() {
        assert_eq!(global("/k", Plugin::Csi, "pv"), "/k/plugins/kubernetes.io/csi/volumeDevices/pv/dev");
        assert_eq!(
            global("/k", Plugin::Local, "pv"),
            "/k/plugins/kubernetes.io/local-volume/volumeDevices/pv"
        );
        assert_eq!(below(Plugin::Csi, "pv"), "volumeDevices/kubernetes.io~csi/pv");
    }
}
