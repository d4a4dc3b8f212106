//! CSI drivers of the node: which plugins are registered, and how the Node and CSINode objects list them.
//!
//! ```text
//! sockets in plugins_registry ─► Registrations ─► ask the plugin ─► Node and CSINode ─► the plugin is told
//!                                     ▲                 └─ failed: 0.5 s doubling to 2m2s ─┘
//!                                     └─ the socket is gone: the driver leaves both objects
//! ```
//! Upstream: pkg/kubelet/pluginmanager, pkg/volume/csi, pkg/volume/csi/nodeinfomanager.

pub mod objects;
pub mod registrations;

use agent_volumes::csi::plugin::PluginInfo;

/// The kind of plugin that is a CSI driver.
pub const CSI_PLUGIN: &str = "CSIPlugin";

/// Checks what a plugin says that it is. The answer is the socket of its driver.
///
/// # Errors
/// Upstream's words about why it cannot be registered.
pub fn check_plugin(info: &PluginInfo, socket: &str) -> Result<String, String> {
    if info.kind != CSI_PLUGIN {
        let kind = &info.kind;
        return Err(format!(
            "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {socket}"
        ));
    }
    let endpoint = if info.endpoint.is_empty() { socket } else { &info.endpoint };
    let refused = |why: String| {
        Err(format!(
            "RegisterPlugin error -- plugin validation failed with err: validation failed for CSI Driver {} at \
             endpoint {endpoint}: {why}",
            info.name
        ))
    };
    if info.name.is_empty() {
        return refused("the driver has no name".to_owned());
    }
    if info.versions.is_empty() {
        return refused("Plugin returned an empty list for supported versions".to_owned());
    }
    let major = |version: &String| version.trim_start_matches('v').split('.').next()?.parse::<u32>().ok();
    if !info.versions.iter().filter_map(major).any(|major| major == 1) {
        return refused(format!("None of the versions specified {:?} are supported", info.versions));
    }
    Ok(endpoint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_looked_at_before_they_are_registered() {
        let info = |kind: &str, name: &str, versions: &[&str], endpoint: &str| PluginInfo {
            kind: kind.to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            versions: versions.iter().map(|v| (*v).to_owned()).collect(),
        };
        let check = |info: PluginInfo| check_plugin(&info, "/r/x.sock");
        assert_eq!(check(info(CSI_PLUGIN, "x", &["1.0.0"], "/p/csi.sock")), Ok("/p/csi.sock".to_owned()));
        assert_eq!(check(info(CSI_PLUGIN, "x", &["0.3", "v1.9"], "")), Ok("/r/x.sock".to_owned()));
        for (bad, words) in [
            (
                info("DevicePlugin", "x", &["v1beta1"], ""),
                "no handler registered for plugin type: DevicePlugin at socket /r/x.sock",
            ),
            (info(CSI_PLUGIN, "x", &[], ""), "empty list"),
            (info(CSI_PLUGIN, "x", &["2.0.0", "one", ""], ""), "None of the versions"),
            (info(CSI_PLUGIN, "", &["1.0.0"], ""), "no name"),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.starts_with("RegisterPlugin error -- ") && error.contains(words), "{error}");
        }
    }
}
