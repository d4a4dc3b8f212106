//! What the gate takes from texts of the kernel and from statuses of pods.
//!
//! In: files of /proc, records of the kernel's log, statuses. Out: facts of [`check`](super::check). Pure; no text makes it panic.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::check::{CheckSeen, GatePod};

/// Bit of `/proc/sys/kernel/tainted`: the kernel has had an oops (TAINT_DIE).
const TAINT_DIE: u64 = 1 << 7;
/// Bit of a row's flags in `/proc/net/route`: it has a gateway (RTF_GATEWAY).
const ROUTE_GATEWAY: u32 = 0x2;
/// Bit of a row's flags in `/proc/net/arp`: the address is known (ATF_COM).
const ARP_COMPLETE: u32 = 0x2;
/// Longest text of a pod that is shown, characters.
const WORDS_MAX: usize = 200;

/// A pod, as far as the gate is concerned. A pod that has ended well counts as ready.
#[must_use]
pub fn gate_pod(pod: &Pod, status: Option<&PodStatus>) -> GatePod {
    let meta = &pod.metadata;
    let name = format!(
        "{}/{}",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default()
    );
    let seen = match status {
        None => CheckSeen::Red("it has not begun".to_owned()),
        Some(status) if is_ready(status) => CheckSeen::Green,
        Some(status) => CheckSeen::Red(why(status)),
    };
    GatePod { name, seen }
}

fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready || status.phase.as_deref() == Some("Succeeded")
}

fn why(status: &PodStatus) -> String {
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut waiting = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or("it waits");
        let message = waiting.message.as_deref().map_or_else(String::new, |message| format!(": {message}"));
        Some(format!("container {} waits: {reason}{message}", container.name))
    });
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let words = waiting.next().or_else(|| status.message.clone());
    words.unwrap_or_else(|| format!("its phase is {phase}")).chars().take(WORDS_MAX).collect()
}

/// The kernel has had an oops, by the text of `/proc/sys/kernel/tainted`.
#[must_use]
pub fn has_oops(tainted: &str) -> bool {
    tainted.trim().parse::<u64>().is_ok_and(|bits| bits & TAINT_DIE != 0)
}

/// What a record of the kernel's log says about a block of the root that is not as it was signed. Programs can write to that log as
/// well: their records do not count.
#[must_use]
pub fn verity_error(record: &str) -> Option<String> {
    let (prefix, text) = record.split_once(';')?;
    let priority: u64 = prefix.split(',').next()?.parse().ok()?;
    let line = text.lines().next().unwrap_or_default();
    let is_it = priority < 8 && line.contains("device-mapper: verity") && line.contains("corrupt");
    is_it.then(|| line.chars().take(WORDS_MAX).collect())
}

/// Is this mount point writable, by the text of `/proc/self/mounts`? None if nothing is mounted there.
#[must_use]
pub fn is_writable(mounts: &str, point: &str) -> Option<bool> {
    // The last one lies over the others.
    let mut rows = mounts.lines().rev().map(|line| line.split(' ').collect::<Vec<_>>());
    let options = rows.find_map(|row| (row.get(1) == Some(&point)).then(|| row.get(3).copied()))??;
    Some(options.split(',').any(|option| option == "rw"))
}

/// The gateway of the IPv4 default route with the lowest metric, by the text of `/proc/net/route`.
#[must_use]
pub fn gateway(route: &str) -> Option<Ipv4Addr> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let default = |line: &str| {
        let row: Vec<&str> = line.split_whitespace().collect();
        let [_, destination, gateway, flags, _, _, metric, mask, ..] = row[..] else { return None };
        let is_default = hex(destination)? == 0 && hex(mask)? == 0 && hex(flags)? & ROUTE_GATEWAY != 0;
        // The kernel prints the word as it lies in memory.
        is_default.then_some((metric.parse::<u32>().ok()?, Ipv4Addr::from(hex(gateway)?.to_ne_bytes())))
    };
    route.lines().skip(1).filter_map(default).min_by_key(|(metric, _)| *metric).map(|(_, gateway)| gateway)
}

/// Has the neighbour answered, by the text of `/proc/net/arp`?
#[must_use]
pub fn has_answered(arp: &str, neighbour: Ipv4Addr) -> bool {
    arp.lines().skip(1).any(|line| {
        let row: Vec<&str> = line.split_whitespace().collect();
        let [address, _, flags, ..] = row[..] else { return false };
        let flags = flags.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
        address.parse::<Ipv4Addr>() == Ok(neighbour) && flags.is_some_and(|flags| flags & ARP_COMPLETE != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn pods_are_ready_or_say_why_not() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": "web"}})).unwrap();
        let seen = |status: serde_json::Value| {
            let status: PodStatus = serde_json::from_value(status).expect("a status");
            gate_pod(&pod, Some(&status)).seen
        };
        let red = |words: &str| CheckSeen::Red(words.to_owned());
        assert_eq!(seen(json!({"conditions": [{"type": "Ready", "status": "True"}]})), CheckSeen::Green);
        assert_eq!(seen(json!({"phase": "Succeeded"})), CheckSeen::Green);
        assert_eq!(seen(json!({"phase": "Running"})), red("its phase is Running"));
        let state = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
        let status = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let want = red("container c waits: ImagePullBackOff: no such image");
        assert_eq!(seen(json!({"phase": "Pending", "containerStatuses": [status]})), want);
        let absent = gate_pod(&pod, None);
        assert_eq!((absent.name.as_str(), absent.seen), ("ns/web", red("it has not begun")));
    }

    #[test]
    fn the_kernels_words() {
        assert!(has_oops("4736\n") && !has_oops("4608\n") && !has_oops("") && !has_oops("x"));
        let record =
            "4,903,5140900,-;device-mapper: verity: 254:2: data block 812 is corrupted\n SUBSYSTEM=x";
        assert_eq!(
            verity_error(record).as_deref(),
            Some("device-mapper: verity: 254:2: data block 812 is corrupted")
        );
        for other in [
            "12,903,5140900,-;device-mapper: verity: 254:2: data block 812 is corrupted",
            "6,1,1,-;device-mapper: verity: sha256 using shash",
            "",
            ";",
        ] {
            assert_eq!(verity_error(other), None, "{other}");
        }
        let mounts = "/dev/vda7 /var ext4 rw,relatime 0 0\ntmpfs /run tmpfs rw 0 0\n";
        assert_eq!((is_writable(mounts, "/var"), is_writable(mounts, "/srv")), (Some(true), None));
        let remounted = format!("{mounts}/dev/vda7 /var ext4 ro,relatime 0 0\n");
        assert_eq!(is_writable(&remounted, "/var"), Some(false));
    }

    #[test]
    fn the_gateway_and_whether_it_answers() {
        let route = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                     ens3\t00000000\t0202000A\t0003\t0\t0\t1024\t00000000\t0\t0\t0\n\
                     ens3\t0002000A\t00000000\t0001\t0\t0\t1024\t00FFFFFF\t0\t0\t0\n";
        let wanted = Ipv4Addr::new(10, 0, 2, 2);
        // As little-endian machines print it.
        if cfg!(target_endian = "little") {
            assert_eq!(gateway(route), Some(wanted));
        }
        assert_eq!(gateway("Iface\n"), None);
        let arp = |flags: &str| {
            format!(
                "IP address       HW type     Flags       HW address            Mask     Device\n\
                 10.0.2.2         0x1         {flags}         52:55:0a:00:02:02     *        ens3\n"
            )
        };
        assert!(has_answered(&arp("0x2"), wanted));
        assert!(!has_answered(&arp("0x0"), wanted) && !has_answered(&arp("0x2"), Ipv4Addr::new(10, 0, 2, 3)));
    }

    proptest! {
        #[test]
        fn any_text(text in "\\PC{0,200}|[0-9a-fA-FxX\\s,;.]{0,200}") {
            let _ = (has_oops(&text), verity_error(&text), is_writable(&text, "/var"), gateway(&text));
            let _ = has_answered(&text, Ipv4Addr::LOCALHOST);
        }
    }
}
