//! Network interfaces of the node: /proc/net/dev and /sys/class/net.

use std::collections::BTreeMap;

use super::{DEVICES_MAX, KernelFiles, NodeFacts, file_number, flag, number};
use crate::stats::exposition::{Exposition, Kind};

const CLASS: &str = "sys/class/net";
/// Names of interfaces that lead into pods: a beginning, and the number of hexadecimal digits behind it (0: anything). The traffic of
/// these interfaces is that of the pods in `/metrics/cadvisor`, and there may be hundreds of them. In this order: the node's own plugin
/// and the reference plugins, Calico, Cilium, Amazon's plugin, Azure's, OVN-Kubernetes.
const OF_PODS: [(&str, usize); 6] =
    [("veth", 0), ("cali", 11), ("lxc", 12), ("eni", 11), ("azv", 11), ("", 15)];
/// `IFF_UP` of an interface's flags.
const UP: u64 = 1;

/// Families of the columns of /proc/net/dev, in their order.
const COLUMNS: [(&str, &str); 16] = [
    ("node_network_receive_bytes_total", "Bytes that were received."),
    ("node_network_receive_packets_total", "Packets that were received."),
    ("node_network_receive_errs_total", "Received packets with errors."),
    ("node_network_receive_drop_total", "Received packets that were dropped."),
    ("node_network_receive_fifo_total", "Received packets for which there was no buffer."),
    ("node_network_receive_frame_total", "Received packets with errors of their frame."),
    ("node_network_receive_compressed_total", "Compressed packets that were received."),
    ("node_network_receive_multicast_total", "Packets for groups that were received."),
    ("node_network_transmit_bytes_total", "Bytes that were sent."),
    ("node_network_transmit_packets_total", "Packets that were sent."),
    ("node_network_transmit_errs_total", "Sent packets with errors."),
    ("node_network_transmit_drop_total", "Packets that were dropped before they were sent."),
    ("node_network_transmit_fifo_total", "Packets to be sent for which there was no buffer."),
    ("node_network_transmit_colls_total", "Collisions."),
    ("node_network_transmit_carrier_total", "Packets that were lost with the carrier."),
    ("node_network_transmit_compressed_total", "Compressed packets that were sent."),
];

/// Families of files of /sys/class/net, whose numbers may be hexadecimal.
const FILES: [(&str, &str, Kind, &str); 16] = [
    ("addr_assign_type", "node_network_address_assign_type", Kind::Gauge, "Where the address is from."),
    ("carrier", "node_network_carrier", Kind::Gauge, "Whether there is a carrier."),
    (
        "carrier_changes",
        "node_network_carrier_changes_total",
        Kind::Counter,
        "How often the carrier came and went.",
    ),
    (
        "carrier_down_count",
        "node_network_carrier_down_changes_total",
        Kind::Counter,
        "How often the carrier went.",
    ),
    (
        "carrier_up_count",
        "node_network_carrier_up_changes_total",
        Kind::Counter,
        "How often the carrier came.",
    ),
    ("dev_id", "node_network_device_id", Kind::Gauge, "Number of the interface on its card."),
    ("dormant", "node_network_dormant", Kind::Gauge, "Whether the interface waits for another event."),
    ("flags", "node_network_flags", Kind::Gauge, "Bits of the interface (IFF_*)."),
    ("ifindex", "node_network_iface_id", Kind::Gauge, "Number of the interface."),
    ("iflink", "node_network_iface_link", Kind::Gauge, "Number of the interface to which it is linked."),
    ("link_mode", "node_network_iface_link_mode", Kind::Gauge, "Who ends the dormant state."),
    ("mtu", "node_network_mtu_bytes", Kind::Gauge, "Largest packet, bytes."),
    ("name_assign_type", "node_network_name_assign_type", Kind::Gauge, "Where the name is from."),
    ("netdev_group", "node_network_net_dev_group", Kind::Gauge, "Group of the interface."),
    ("tx_queue_len", "node_network_transmit_queue_length", Kind::Gauge, "Packets that may wait to be sent."),
    ("type", "node_network_protocol_type", Kind::Gauge, "Kind of the hardware (ARPHRD_*)."),
];

pub(super) fn netdev<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let interfaces = counters(&files.text("proc/net/dev").unwrap_or_default());
    for (at, (name, help)) in COLUMNS.into_iter().enumerate() {
        let samples = interfaces
            .iter()
            .filter_map(|(device, columns)| Some((vec![("device", device.as_str())], *columns.get(at)?)));
        out.family((name, Kind::Counter, help), samples, None);
    }
    let unhandled: Vec<(&str, f64)> = interfaces
        .keys()
        .filter_map(|name| {
            Some((name.as_str(), file_number(files, &format!("{CLASS}/{name}/statistics/rx_nohandler"))?))
        })
        .collect();
    let samples = unhandled.into_iter().map(|(device, count)| (vec![("device", device)], count));
    let help = "Received packets that no part of the kernel wanted.";
    out.family(("node_network_receive_nohandler_total", Kind::Counter, help), samples, None);
    !interfaces.is_empty()
}

/// The columns of each interface, at most [`DEVICES_MAX`].
fn counters(net_dev: &str) -> BTreeMap<String, Vec<f64>> {
    let line = |line: &str| {
        // Names may have colons, numbers have none.
        let (name, columns) = line.rsplit_once(':')?;
        let columns: Vec<f64> = columns.split_ascii_whitespace().map_while(number).collect();
        let name = name.trim();
        (is_shown(name) && columns.len() == COLUMNS.len()).then(|| (name.to_owned(), columns))
    };
    net_dev.lines().filter_map(line).take(DEVICES_MAX).collect()
}

fn is_shown(interface: &str) -> bool {
    // A name is a part of a path.
    !interface.is_empty() && !is_of_pod(interface) && !interface.contains('/') && !interface.starts_with('.')
}

fn is_of_pod(interface: &str) -> bool {
    let is_hexadecimal = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    OF_PODS.iter().any(|(prefix, digits)| {
        let rest = interface.strip_prefix(prefix);
        rest.is_some_and(|rest| *digits == 0 || (rest.len() == *digits && is_hexadecimal(rest)))
    })
}

pub(super) fn netclass<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let word = |name: &str, file: &str| {
        let text = files.text(&format!("{CLASS}/{name}/{file}")).unwrap_or_default();
        text.trim().to_owned()
    };
    // A file of the directory that is no interface (`bonding_masters`) has no number. The oldest come first, as in /proc/net/dev:
    // the machine's own interfaces are shown, however many others there are.
    let mut numbered: Vec<(u64, String)> = files
        .names(CLASS)
        .into_iter()
        .filter(|name| is_shown(name))
        .filter_map(|name| Some((word(&name, "ifindex").parse::<u64>().ok()?, name)))
        .collect();
    numbered.sort();
    numbered.truncate(DEVICES_MAX);
    let interfaces: Vec<InterfaceWords> = numbered
        .iter()
        .map(|(_, name)| InterfaceWords {
            address: word(name, "address"),
            adminstate: admin_state(&word(name, "flags")),
            broadcast: word(name, "broadcast"),
            duplex: word(name, "duplex"),
            ifalias: word(name, "ifalias"),
            operstate: word(name, "operstate"),
            name,
        })
        .collect();
    for (file, name, kind, help) in FILES {
        let values: Vec<(&str, f64)> =
            interfaces.iter().filter_map(|i| Some((i.name, integer(&word(i.name, file))?))).collect();
        let samples = values.into_iter().map(|(device, value)| (vec![("device", device)], value));
        out.family((name, kind, help), samples, None);
    }
    let info = interfaces.iter().map(|i| (i.labels(), 1.0));
    out.family(("node_network_info", Kind::Gauge, "Network interfaces; always 1."), info, None);
    // An interface without a speed has -1, or no file that can be read.
    let speeds: Vec<(&str, f64)> =
        interfaces.iter().filter_map(|i| Some((i.name, integer(&word(i.name, "speed"))?))).collect();
    let speeds =
        speeds.into_iter().map(|(device, megabits)| (vec![("device", device)], megabits * 1e6 / 8.0));
    out.family(("node_network_speed_bytes", Kind::Gauge, "Speed, bytes a second."), speeds, None);
    let up = interfaces.iter().map(|i| (vec![("device", i.name)], flag(i.operstate == "up")));
    out.family(("node_network_up", Kind::Gauge, "Whether the interface's state is up."), up, None);
    !interfaces.is_empty()
}

/// Words of one interface.
struct InterfaceWords<'a> {
    name: &'a str,
    address: String,
    adminstate: &'static str,
    broadcast: String,
    duplex: String,
    ifalias: String,
    operstate: String,
}

impl InterfaceWords<'_> {
    fn labels(&self) -> Vec<(&str, &str)> {
        vec![
            ("address", self.address.as_str()),
            ("adminstate", self.adminstate),
            ("broadcast", self.broadcast.as_str()),
            ("device", self.name),
            ("duplex", self.duplex.as_str()),
            ("ifalias", self.ifalias.as_str()),
            ("operstate", self.operstate.as_str()),
        ]
    }
}

fn admin_state(flags: &str) -> &'static str {
    match hexadecimal(flags).or_else(|| flags.parse().ok()) {
        Some(flags) if flags & UP == UP => "up",
        Some(_) => "down",
        None => "unknown",
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// A whole number, decimal or with `0x`.
#[allow(clippy::cast_precision_loss)] // Flags and counters of interfaces are far below 2^53.
fn integer(text: &str) -> Option<f64> {
    hexadecimal(text).map(|n| n as f64).or_else(|| Some(text.parse::<i64>().ok()? as f64))
}

#[cfg(test)]
mod tests {
    use super::is_shown;

    #[test]
    fn interfaces_of_pods_are_left_out() {
        for interface in [
            "veth0",
            "vethab12cd34",
            "cali0123456789a",
            "lxc0123456789ab",
            "eni0123456789a",
            "azv0123456789a",
        ] {
            assert!(!is_shown(interface), "{interface}");
        }
        for interface in ["0123456789abcde", "", ".", "..", "a/b"] {
            assert!(!is_shown(interface), "{interface}");
        }
        for interface in [
            "lo",
            "eth0",
            "enp1s0",
            "eno1",
            "eni0",
            "cilium_host",
            "cni0",
            "bond0.5",
            "lxcbr0",
            "calico",
            "eth0:1",
        ] {
            assert!(is_shown(interface), "{interface}");
        }
    }
}
