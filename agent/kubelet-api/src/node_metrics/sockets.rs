//! Protocols, sockets and tracked connections: `netstat`, `snmp`, `snmp6`, `sockstat` and `nf_conntrack` of /proc/net.

use std::collections::BTreeMap;

use super::{KernelFiles, NodeFacts, file_number, is_name, number, single};
use crate::stats::exposition::{Exposition, Kind};

/// Protocols of /proc/net/sockstat and sockstat6, as the kernel names them.
const PROTOCOLS: [&str; 10] =
    ["FRAG", "FRAG6", "RAW", "RAW6", "TCP", "TCP6", "UDP", "UDP6", "UDPLITE", "UDPLITE6"];
/// Their counts.
const COUNTS: [&str; 6] = ["alloc", "inuse", "mem", "memory", "orphan", "tw"];

pub(super) fn netstat<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let text = |name: &str| files.text(&format!("proc/net/{name}")).unwrap_or_default();
    let mut fields = BTreeMap::new();
    for name in ["netstat", "snmp"] {
        pairs_of_lines(&text(name), &mut fields);
    }
    for line in text("snmp6").lines() {
        let mut words = line.split_ascii_whitespace();
        if let (Some(name), Some(value)) = (words.next(), words.next().and_then(number))
            && let Some((protocol, field)) = name.split_once('6')
        {
            fields.insert(format!("{protocol}6_{field}"), value);
        }
    }
    fields.retain(|field, _| is_shown(field));
    for (field, value) in &fields {
        let (name, help) = (format!("node_netstat_{field}"), format!("{field} of /proc/net."));
        single(out, (&name, Kind::Untyped, &help), Some(*value));
    }
    !fields.is_empty()
}

/// Lines come in pairs: `Tcp: ` and names, `Tcp: ` and values.
fn pairs_of_lines(text: &str, fields: &mut BTreeMap<String, f64>) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((protocol, names)), Some((_, values))) = (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
            if let Some(value) = number(value) {
                fields.insert(format!("{protocol}_{name}"), value);
            }
        }
    }
}

/// node_exporter's choice of the fields.
fn is_shown(field: &str) -> bool {
    let Some((protocol, name)) = field.split_once('_') else { return false };
    let is_chosen = match protocol {
        "Ip" => name == "Forwarding",
        "Ip6" | "IpExt" => matches!(name, "InOctets" | "OutOctets"),
        "Icmp" | "Icmp6" => matches!(name, "InMsgs" | "OutMsgs"),
        "TcpExt" => {
            name.starts_with("Listen")
                || name.starts_with("Syncookies")
                || matches!(name, "TCPSynRetrans" | "TCPTimeouts" | "TCPOFOQueue" | "TCPRcvQDrop")
        }
        "Tcp" => matches!(
            name,
            "ActiveOpens" | "InSegs" | "OutSegs" | "OutRsts" | "PassiveOpens" | "RetransSegs" | "CurrEstab"
        ),
        "Udp" | "Udp6" => {
            matches!(name, "InDatagrams" | "OutDatagrams" | "NoPorts" | "RcvbufErrors" | "SndbufErrors")
        }
        _ => false,
    };
    is_name(field) && (is_chosen || matches!(name, "InErrors" | "InErrs"))
}

pub(super) fn sockstat<F: KernelFiles>(files: &F, facts: &NodeFacts, out: &mut Exposition) -> bool {
    let mut counts: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    let mut used = None;
    for file in ["proc/net/sockstat", "proc/net/sockstat6"] {
        for line in files.text(file).unwrap_or_default().lines() {
            let Some((protocol, rest)) = line.split_once(':') else { continue };
            let words: Vec<&str> = rest.split_ascii_whitespace().collect();
            let pairs = words.chunks_exact(2).filter_map(|pair| Some((pair[0], number(pair[1])?)));
            let known = PROTOCOLS.into_iter().find(|known| *known == protocol);
            for (name, value) in pairs {
                if protocol == "sockets" && name == "used" {
                    used = Some(value);
                }
                if let (Some(protocol), Some(name)) = (known, COUNTS.into_iter().find(|known| *known == name))
                {
                    counts.insert((protocol, name), value);
                }
            }
        }
    }
    // Sizes of pages are exact.
    #[allow(clippy::cast_precision_loss)]
    let page = facts.page_bytes as f64;
    for ((protocol, name), value) in &counts {
        let family = format!("node_sockstat_{protocol}_{name}");
        single(out, (&family, Kind::Gauge, &format!("{name} of {protocol} in /proc/net.")), Some(*value));
        if *name == "mem" {
            let help = format!("Memory of the buffers of {protocol}, bytes.");
            single(out, (&format!("{family}_bytes"), Kind::Gauge, &help), Some(value * page));
        }
    }
    let has_used = single(out, ("node_sockstat_sockets_used", Kind::Gauge, "Sockets in use."), used);
    has_used || !counts.is_empty()
}

pub(super) fn conntrack<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let setting = |name: &str| file_number(files, &format!("proc/sys/net/netfilter/{name}"));
    let entries = setting("nf_conntrack_count");
    let help = "Connections that are tracked.";
    let has_data = single(out, ("node_nf_conntrack_entries", Kind::Gauge, help), entries);
    let help = "Connections that may be tracked.";
    single(out, ("node_nf_conntrack_entries_limit", Kind::Gauge, help), setting("nf_conntrack_max"));
    let table = files.text("proc/net/stat/nf_conntrack").unwrap_or_default();
    let sums = columns(&table);
    for (column, help) in [
        ("drop", "Packets that were dropped because they could not be tracked."),
        ("early_drop", "Tracked connections that were forgotten to make room."),
        ("found", "Look-ups that found a connection."),
        ("ignore", "Packets that are not tracked."),
        ("insert", "Connections that were added."),
        ("insert_failed", "Connections that could not be added."),
        ("invalid", "Packets that cannot be tracked."),
        ("search_restart", "Look-ups that began again because the table grew."),
    ] {
        let name = format!("node_nf_conntrack_stat_{column}");
        single(out, (&name, Kind::Gauge, help), sums.get(column).copied());
    }
    has_data
}

/// Sums of the columns over all processors; the numbers are hexadecimal.
fn columns(text: &str) -> BTreeMap<&str, f64> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for line in lines {
        for (name, value) in names.iter().zip(line.split_ascii_whitespace()) {
            if let Ok(value) = u64::from_str_radix(value, 16) {
                // Counters of packets lose less than one in 10^15.
                #[allow(clippy::cast_precision_loss)]
                let value = value as f64;
                *sums.entry(*name).or_default() += value;
            }
        }
    }
    sums
}
