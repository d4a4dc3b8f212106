//! When a changed key of the configuration acts, as a table. docs/reference/configuration.md has the same table for people.
//!
//! Invariant: a key acts on a running node only if its change can also be taken back on a running node. A kernel setting that no
//! document names any more keeps its value until the next boot, so it acts at the next boot only.

use super::explain::is_below;

/// When a changed key acts; the later one of two is the one that counts for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeEffect {
    /// At once; nothing is restarted.
    Live,
    /// systemd-timesyncd is restarted.
    RestartsTimesyncd,
    /// The agent is restarted; pods run on.
    RestartsKubelet,
    /// containerd and the agent are restarted; pods run on.
    RestartsContainerd,
    /// systemd-networkd takes the new files.
    Network,
    /// At the next boot.
    Reboot,
    /// Never: it belongs to the first boot.
    FirstBoot,
}

impl ChangeEffect {
    /// For people and programs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            ChangeEffect::Live => "live",
            ChangeEffect::RestartsTimesyncd => "restarts systemd-timesyncd",
            ChangeEffect::RestartsKubelet => "restarts kubelet",
            ChangeEffect::RestartsContainerd => "restarts containerd",
            ChangeEffect::Network => "network",
            ChangeEffect::Reboot => "next boot",
            ChangeEffect::FirstBoot => "first boot only",
        }
    }
}

/// Part of the configuration and its effect; the first part that holds the path counts.
const TABLE: [(&str, ChangeEffect); 29] = [
    // The name is in the node's certificates, and on the volumes of its pods.
    ("node.name", ChangeEffect::FirstBoot),
    ("node", ChangeEffect::RestartsKubelet),
    ("network.interfaces", ChangeEffect::Network),
    // networkd does not change or remove the devices that it has made, and running pods have their network from podNetwork.
    ("network", ChangeEffect::Reboot),
    ("trust", ChangeEffect::RestartsContainerd),
    ("proxy", ChangeEffect::RestartsContainerd),
    ("time", ChangeEffect::RestartsTimesyncd),
    // containerd reads them at each pull.
    ("registries.mirrors", ChangeEffect::Live),
    ("registries", ChangeEffect::RestartsKubelet),
    ("kernel", ChangeEffect::Reboot),
    ("swap", ChangeEffect::Reboot),
    // Pods keep the shim that they have; the next ones are placed by the new amount.
    ("runtime", ChangeEffect::RestartsKubelet),
    ("storage", ChangeEffect::FirstBoot),
    ("install", ChangeEffect::FirstBoot),
    ("labels", ChangeEffect::RestartsKubelet),
    ("taints", ChangeEffect::RestartsKubelet),
    // The agent does not start with another driver than the one of its running pods.
    ("kubelet.cgroupDriver", ChangeEffect::Reboot),
    ("kubelet.failSwapOn", ChangeEffect::Reboot),
    ("kubelet", ChangeEffect::RestartsKubelet),
    ("join", ChangeEffect::RestartsKubelet),
    ("staticPods", ChangeEffect::Live),
    ("files", ChangeEffect::RestartsKubelet),
    ("console", ChangeEffect::RestartsKubelet),
    ("platform", ChangeEffect::RestartsKubelet),
    // The agent tries versions by it.
    ("update", ChangeEffect::RestartsKubelet),
    // The port opens and closes with the socket's unit, as with the first administrator.
    ("api.clusterIdentities", ChangeEffect::Reboot),
    ("api", ChangeEffect::Live),
    ("apiVersion", ChangeEffect::Live),
    ("kind", ChangeEffect::Live),
];

/// Parts on which the way to the node depends: their changes are confirmed through the changed way unless an administrator says
/// otherwise. A kernel setting switches a protocol off, and a module may stop the machine. Files and authorities are such parts if a
/// kubeconfig of `join` needs them (`cluster_files`).
const WAYS_IN: [&str; 4] = ["network", "kernel", "join", "api"];

/// The effect of a change of this key; the values are JSON, `None` without the key.
#[must_use]
pub(super) fn effect(path: &str, before: Option<&str>, after: Option<&str>) -> ChangeEffect {
    let is_new_or_gone = before.is_none() || after.is_none();
    if is_below(path, "kernel.sysctls") && !is_new_or_gone {
        return ChangeEffect::Live;
    }
    let is_closed = |value: Option<&str>| value.is_none_or(|list| list == "[]");
    if path == "api.admins" && is_closed(before) != is_closed(after) {
        // The port opens and closes with the socket's unit.
        return ChangeEffect::Reboot;
    }
    let part = TABLE.iter().find(|(part, _)| is_below(path, part));
    // A key without a line acts at the next boot, when init reads all of them.
    part.map_or(ChangeEffect::Reboot, |(_, effect)| *effect)
}

/// Whether the way to the node may depend on this key.
#[must_use]
pub(super) fn is_way_in(path: &str) -> bool {
    WAYS_IN.iter().any(|part| is_below(path, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{Describe, Kind};
    use crate::node::NodeConfig;

    #[test]
    fn every_part_of_the_configuration_has_a_line_and_every_line_a_key() {
        let Kind::Object(fields) = NodeConfig::KIND else { panic!("no object") };
        for field in fields.iter() {
            assert!(TABLE.iter().any(|(part, _)| *part == field.name), "{} has no effect", field.name);
        }
        for (part, _) in TABLE {
            let top = part.split('.').next().unwrap_or_default();
            assert!(fields.iter().any(|field| field.name == top), "{part} is no key");
        }
        for (at, (part, _)) in TABLE.iter().enumerate() {
            assert!(!TABLE[..at].iter().any(|(before, _)| is_below(part, before)), "{part} is never found");
        }
    }

    #[test]
    fn the_page_has_a_row_for_each_effect() {
        let page = include_str!("../../../docs/reference/configuration.md");
        for (_, effect) in TABLE {
            assert!(page.contains(&format!("| {} |", effect.word())), "{}", effect.word());
        }
    }

    #[test]
    fn effects_of_single_keys() {
        let some = Some("1");
        for (path, before, after, expected) in [
            ("kernel.sysctls.\"net.ipv4.ip_forward\"", some, Some("2"), ChangeEffect::Live),
            ("kernel.sysctls.\"net.ipv4.ip_forward\"", None, some, ChangeEffect::Reboot),
            ("kernel.sysctls.\"net.ipv4.ip_forward\"", some, None, ChangeEffect::Reboot),
            ("kernel.modules", some, Some("2"), ChangeEffect::Reboot),
            ("api.admins", Some("[]"), Some("[1]"), ChangeEffect::Reboot),
            ("api.admins", Some("[1]"), Some("[]"), ChangeEffect::Reboot),
            ("api.admins", Some("[1]"), Some("[2]"), ChangeEffect::Live),
            ("api.clusterIdentities", Some("false"), Some("true"), ChangeEffect::Reboot),
            ("api.vsock.trustHost", some, some, ChangeEffect::Live),
            ("network.interfaces", some, some, ChangeEffect::Network),
            ("network.vlans", some, some, ChangeEffect::Reboot),
            ("node.name", some, some, ChangeEffect::FirstBoot),
            ("node.addresses", some, some, ChangeEffect::RestartsKubelet),
            ("install.disk", None, some, ChangeEffect::FirstBoot),
            ("kubelet.maxPods", some, some, ChangeEffect::RestartsKubelet),
            ("update.policy", some, some, ChangeEffect::RestartsKubelet),
            ("runtime.podsPerShim", None, some, ChangeEffect::RestartsKubelet),
            ("noSuchKey", some, some, ChangeEffect::Reboot),
        ] {
            assert_eq!(effect(path, before, after), expected, "{path}");
        }
        assert!(is_way_in("network.interfaces") && is_way_in("api.admins") && is_way_in("join.server"));
        assert!(
            is_way_in("kernel.sysctls.\"net.ipv6.conf.all.disable_ipv6\"") && is_way_in("kernel.modules")
        );
        assert!(!is_way_in("kubelet.maxPods") && !is_way_in("networks"));
    }
}
