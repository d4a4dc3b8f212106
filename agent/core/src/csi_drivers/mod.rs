//! CSI drivers of the node: whether a driver may register, and how the Node and CSINode objects list the drivers. The sockets are
//! `plugin_registrations`' business.
//!
//! Upstream: pkg/volume/csi, pkg/volume/csi/nodeinfomanager.

pub mod objects;

use agent_volumes::csi::plugin::PluginInfo;

/// Checks what a plugin says that it is. The answer is the socket of its driver.
///
/// # Errors
/// Upstream's words, without those about the validation.
pub fn check_plugin(info: &PluginInfo, socket: &str) -> Result<String, String> {
    let endpoint = if info.endpoint.is_empty() { socket } else { &info.endpoint };
    let refused = |why: String| {
        Err(format!("validation failed for CSI Driver {} at endpoint {endpoint}: {why}", info.name))
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
        let info = |name: &str, versions: &[&str], endpoint: &str| PluginInfo {
            kind: "CSIPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            versions: versions.iter().map(|v| (*v).to_owned()).collect(),
        };
        let check = |info: PluginInfo| check_plugin(&info, "/r/x.sock");
        assert_eq!(check(info("x", &["1.0.0"], "/p/csi.sock")), Ok("/p/csi.sock".to_owned()));
        assert_eq!(check(info("x", &["0.3", "v1.9"], "")), Ok("/r/x.sock".to_owned()));
        for (bad, words) in [
            (info("x", &[], ""), "empty list"),
            (info("x", &["2.0.0", "one", ""], ""), "None of the versions"),
            (info("", &["1.0.0"], ""), "no name"),
        ] {
            let error = check(bad).unwrap_err();
            assert!(
                error.starts_with("validation failed for CSI Driver ") && error.contains(words),
                "{error}"
            );
        }
    }
}
