//! Checks whether a plugin of a DRA driver may register.
//!
//! In: the plugin's information about itself. Out: the service to call, or upstream's error text. Upstream: pkg/kubelet/cm/dra/plugin.

use agent_volumes::csi::plugin::PluginInfo;

/// Services that the kubelet calls.
const SERVICES: [(&str, DraService); 2] =
    [("v1.DRAPlugin", DraService::V1), ("v1beta1.DRAPlugin", DraService::V1Beta1)];
/// The service of health reports.
const HEALTH: &str = "v1alpha1.DRAResourceHealth";
/// Longest name of a driver, bytes: the API server rejects longer names.
const NAME_BYTES_MAX: usize = 63;
/// Longest path of a UNIX socket, bytes.
const ENDPOINT_BYTES_MAX: usize = 107;
/// Most services of a plugin that a message lists; plugins have a handful.
const LISTED_MAX: usize = 8;

/// The service that a plugin is called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraService {
    /// `v1.DRAPlugin`.
    V1,
    /// `v1beta1.DRAPlugin`.
    V1Beta1,
}

/// A plugin of a DRA driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraRegistration {
    /// Name of the driver.
    pub driver: String,
    /// Path of the socket that serves the plugin's services.
    pub endpoint: String,
    /// The service to call: the first in the plugin's order that the kubelet has.
    pub service: DraService,
    /// True if the plugin reports the health of devices.
    pub has_health: bool,
}

/// Checks a plugin's information about itself. An empty endpoint is the registration socket.
///
/// # Errors
/// Upstream's error text, without its prefix about the validation.
pub fn check(info: &PluginInfo, socket: &str) -> Result<DraRegistration, String> {
    let endpoint = if info.endpoint.is_empty() { socket } else { &info.endpoint };
    check_name(&info.name)
        .map_err(|why| format!("invalid name of DRA driver plugin {:?}: {why}", cut(&info.name)))?;
    let driver = &info.name;
    let invalid = |why: String| {
        format!(
            "invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {}: {why}",
            cut(endpoint)
        )
    };
    if endpoint.len() > ENDPOINT_BYTES_MAX || !endpoint.starts_with('/') {
        return Err(format!(
            "the endpoint {:?} of DRA driver plugin {driver} is no path of a socket",
            cut(endpoint)
        ));
    }
    if info.versions.is_empty() {
        return Err(invalid("empty list of supported gRPC services (aka supported versions)".to_owned()));
    }
    let known =
        |version: &String| SERVICES.iter().find(|(name, _)| name == version).map(|(_, service)| *service);
    let Some(service) = info.versions.iter().find_map(known) else {
        let theirs = list(info.versions.iter().map(String::as_str));
        let ours = list(SERVICES.iter().map(|(name, _)| *name));
        return Err(invalid(format!(
            "none of services supported by the plugin ({theirs}) are supported by the kubelet ({ours})"
        )));
    };
    Ok(DraRegistration {
        driver: driver.clone(),
        endpoint: endpoint.to_owned(),
        service,
        has_health: info.versions.iter().any(|version| version == HEALTH),
    })
}

/// The API accepts only DNS subdomains as names of drivers. The name goes into a selector and into metrics, so it is checked here.
fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("it is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return Err("it is longer than 63 bytes");
    }
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if name.bytes().all(is_plain) { Ok(()) } else { Err("it is no DNS subdomain") }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(ENDPOINT_BYTES_MAX)]
}

/// A list of quoted strings as Go prints it.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.take(LISTED_MAX).map(|name| format!("{:?}", cut(name))).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, endpoint: &str, versions: &[&str]) -> PluginInfo {
        PluginInfo {
            kind: "DRAPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            versions: versions.iter().map(|v| (*v).to_owned()).collect(),
        }
    }

    #[test]
    fn the_first_known_service_in_the_plugins_order_is_called() {
        let service = |versions: &[&str]| check(&info("x", "/e", versions), "/s").map(|found| found.service);
        assert_eq!(service(&["v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(DraService::V1Beta1));
        assert_eq!(service(&["v2.DRAPlugin", "v1.DRAPlugin"]), Ok(DraService::V1));
        let found = check(&info("x", "", &["v1.DRAPlugin", HEALTH]), "/s").unwrap();
        assert_eq!((found.endpoint.as_str(), found.has_health), ("/s", true));
        assert!(!check(&info("x", "/e", &["v1.DRAPlugin"]), "/s").unwrap().has_health);
    }

    #[test]
    fn refusals_have_upstreams_words() {
        let refused = |info: PluginInfo| check(&info, "/s").unwrap_err();
        let start = "invalid supported gRPC versions of DRA driver plugin x at endpoint /e: ";
        assert_eq!(
            refused(info("x", "/e", &[])),
            format!("{start}empty list of supported gRPC services (aka supported versions)")
        );
        assert_eq!(
            refused(info("x", "/e", &["1.0.0", "a"])),
            format!(
                "{start}none of services supported by the plugin ([\"1.0.0\" \"a\"]) are supported by the kubelet \
                 ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])"
            )
        );
    }

    #[test]
    fn names_and_endpoints_of_no_driver_are_refused() {
        let long = "x".repeat(64);
        for name in ["", "a,spec.nodeName=b", "A", "a/b", long.as_str()] {
            assert!(check(&info(name, "/e", &["v1.DRAPlugin"]), "/s").is_err(), "{name}");
        }
        let long = format!("/{}", "x".repeat(107));
        for endpoint in ["e", "../e", long.as_str()] {
            assert!(check(&info("x", endpoint, &["v1.DRAPlugin"]), "/s").is_err(), "{endpoint}");
        }
    }
}
