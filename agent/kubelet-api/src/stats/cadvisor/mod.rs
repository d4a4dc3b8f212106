//! `/metrics/cadvisor`: series of cgroups, containers and the machine, with the names, types and labels that
//! dashboards know.
//!
//! docs/reference/stats.md lists the missing series and the reasons. Upstream: cadvisor's metrics/prometheus.go.
//!
//! Invariants: a series exists only where its value was measured; every series of a cgroup has the labels
//! `container`, `id`, `image`, `name`, `namespace` and `pod`, empty where they do not apply; labels are in
//! alphabetical order.

mod series;
#[cfg(test)]
mod tests;

use agent_types::time::Wall;

use series::{AMOUNTS, SPEC};

use super::disk::{DiskIo, Filesystem};
use super::exposition::{Exposition, Kind, NO_LABELS, OwnLabels, SharedLabels, own};
use super::host::{Interface, Network, Traffic};
use super::usage::{DeviceIo, Usage};
use super::{PodUsage, ShownPod, Snapshot};

/// The machine, as it does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// /proc/sys/kernel/random/boot_id.
    pub boot_id: String,
    /// /etc/machine-id.
    pub machine_id: String,
    /// DMI's.
    pub system_uuid: String,
    /// Number of logical processors.
    pub cpus: u32,
    /// Number of cores; `None` if unknown.
    pub cores: Option<u32>,
    /// Number of packages; `None` if unknown.
    pub sockets: Option<u32>,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Swap, bytes.
    pub swap_bytes: u64,
}

/// What the text is made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The machine; `None` if it could not be read.
    pub machine: Option<&'a Machine>,
    /// Amounts; `None` if they could not be read.
    pub snapshot: Option<&'a Snapshot>,
    /// Pods of the node.
    pub shown: &'a [ShownPod],
    /// The file system of the kubelet's root directory.
    pub root: Option<&'a Root>,
    /// Time of the scrape.
    pub at: Wall,
}

/// A file system and its block device.
#[derive(Clone, Debug)]
pub struct Root {
    /// Its device, `/dev/vda3`.
    pub device: String,
    /// Size and usage of the file system.
    pub filesystem: Filesystem,
    /// Counters of the device; `None` if it has none.
    pub disk: Option<DiskIo>,
}

/// One cgroup with its labels.
struct Group<'a> {
    labels: SharedLabels,
    usage: &'a Usage,
    network: Option<&'a Network>,
}

/// The text of the endpoint.
#[must_use]
pub fn text(inputs: Inputs<'_>) -> String {
    let mut out = Exposition::default();
    let groups = inputs.snapshot.map(|snapshot| groups(snapshot, inputs.shown)).unwrap_or_default();
    amounts(&mut out, &groups, inputs.at);
    devices(&mut out, &groups);
    networks(&mut out, &groups);
    filesystem(&mut out, &inputs);
    failed(&mut out, "container_scrape_error", "container", inputs.snapshot.is_none());
    machine(&mut out, &inputs);
    failed(&mut out, "machine_scrape_error", "machine", inputs.machine.is_none());
    out.into_text()
}

fn failed(out: &mut Exposition, name: &str, what: &str, failed: bool) {
    let help = format!("1 if the {what}'s figures could not be read, 0 otherwise.");
    out.family((name, Kind::Gauge, &help), [(vec![], f64::from(u8::from(failed)))], None);
}

/// The machine, the parts of it, pods and containers.
fn groups<'a>(snapshot: &'a Snapshot, shown: &'a [ShownPod]) -> Vec<Group<'a>> {
    let plain =
        |id: &'a str, usage, network| Group { labels: labels(id, None, ["", "", ""]), usage, network };
    let mut groups = vec![plain("/", &snapshot.node, snapshot.network.as_ref())];
    let parts = snapshot.system.iter().map(|(_, usage)| usage).chain(&snapshot.groups);
    let mut parts: Vec<&Usage> = parts.filter(|usage| !usage.path.is_empty()).collect();
    parts.sort_by_key(|usage| &usage.path);
    parts.dedup_by_key(|usage| &usage.path);
    groups.extend(parts.into_iter().map(|usage| plain(&usage.path, usage, None)));
    let mut pods: Vec<&PodUsage> = snapshot.pods.iter().collect();
    pods.sort_by_key(|pod| &pod.pod);
    for pod in pods {
        let shown =
            shown.iter().find(|shown| agent_types::resources::cgroups::name::key(&shown.uid) == pod.pod);
        groups.extend(of_pod(pod, shown));
    }
    groups
}

/// A pod's own cgroup, the sandbox with the pod's network, and the containers that run.
fn of_pod<'a>(pod: &'a PodUsage, shown: Option<&'a ShownPod>) -> Vec<Group<'a>> {
    let mut groups = Vec::new();
    if let Some(usage) = &pod.usage {
        groups.push(Group { labels: labels(&usage.path, shown, ["", "", ""]), usage, network: None });
    }
    let Some(shown) = shown else { return groups };
    if let Some((id, usage)) = pod.sandbox(shown) {
        let labels = labels(&usage.path, Some(shown), ["", "", id]);
        groups.push(Group { labels, usage, network: pod.network.as_ref() });
    }
    for container in &shown.containers {
        if let Some(usage) = pod.container(&container.id) {
            let names = [container.name.as_str(), &container.image, &container.id];
            groups.push(Group { labels: labels(&usage.path, Some(shown), names), usage, network: None });
        }
    }
    groups
}

fn labels(id: &str, pod: Option<&ShownPod>, [container, image, name]: [&str; 3]) -> SharedLabels {
    let (namespace, pod) = pod.map_or(("", ""), |pod| (&pod.namespace, &pod.name));
    // The gaps between the runs are for labels of single samples: cpu, device, interface, operation, scope, …
    SharedLabels::new(&[
        &[("container", container)],
        &[("id", id), ("image", image)],
        &[("name", name), ("namespace", namespace)],
        &[("pod", pod)],
    ])
}

/// Families with one value for each cgroup, or a few that one label distinguishes.
fn amounts(out: &mut Exposition, groups: &[Group<'_>], at: Wall) {
    for (name, help, of) in SPEC {
        let samples = groups.iter().filter_map(|g| Some((&g.labels, NO_LABELS, of(g.usage)?, None)));
        out.shared((name, Kind::Gauge, help), samples);
    }
    for series in AMOUNTS {
        let samples = groups.iter().filter_map(|g| {
            let value = (series.of)(g.usage)?;
            Some((&g.labels, own(series.labels), value, Some(g.usage.at)))
        });
        match series.name {
            Some((name, kind, help)) => out.shared((name, kind, help), samples),
            None => out.more(series.more, samples),
        }
    }
    let now = at.0.div_euclid(1_000_000_000) as f64;
    let seen = groups.iter().map(|g| (&g.labels, NO_LABELS, now, Some(at)));
    let help = "When the figures of the cgroup were last read, in Unix time.";
    out.shared(("container_last_seen", Kind::Gauge, help), seen);
}

fn devices(out: &mut Exposition, groups: &[Group<'_>]) {
    type CounterOf = fn(&DeviceIo) -> u64;
    let counts: [(&str, &str, CounterOf); 4] = [
        ("container_fs_reads_bytes_total", "Bytes read from the device.", |d| d.read_bytes),
        ("container_fs_reads_total", "Reads from the device.", |d| d.reads),
        ("container_fs_writes_bytes_total", "Bytes written to the device.", |d| d.written_bytes),
        ("container_fs_writes_total", "Writes to the device.", |d| d.writes),
    ];
    let all = || groups.iter().flat_map(|g| g.usage.io.devices.iter().map(move |d| (g, d)));
    for (name, help, of) in counts {
        let samples =
            all().map(|(g, d)| (&g.labels, own(&[("device", &d.name)]), of(d) as f64, Some(g.usage.at)));
        out.shared((name, Kind::Counter, help), samples);
    }
    let numbers: Vec<(String, String)> =
        all().map(|(_, d)| (d.major.to_string(), d.minor.to_string())).collect();
    let samples = all().zip(&numbers).flat_map(|((g, d), (major, minor))| {
        [("Read", d.read_bytes), ("Write", d.written_bytes)].map(|(operation, bytes)| {
            let device: OwnLabels<'_> =
                [("device", d.name.as_str()), ("major", major), ("minor", minor), ("operation", operation)];
            (&g.labels, device, bytes as f64, Some(g.usage.at))
        })
    });
    let help = "Bytes moved between the device and the cgroup.";
    out.shared(("container_blkio_device_usage_total", Kind::Counter, help), samples);
}

fn networks(out: &mut Exposition, groups: &[Group<'_>]) {
    type Direction = fn(&Interface) -> Traffic;
    type CounterOf = fn(&Traffic) -> u64;
    let directions: [(&str, &str, Direction); 2] =
        [("receive", "received", |i| i.received), ("transmit", "sent", |i| i.sent)];
    let counts: [(&str, &str, CounterOf); 4] = [
        ("bytes", "Bytes", |t| t.bytes),
        ("errors", "Errors of what was", |t| t.errors),
        ("packets_dropped", "Packets dropped of what was", |t| t.dropped),
        ("packets", "Packets", |t| t.packets),
    ];
    let with_network = || groups.iter().filter_map(|g| Some((g, g.network?)));
    let all = || with_network().flat_map(|(g, n)| n.interfaces.iter().map(move |i| (g, n, i)));
    for (direction, done, side) in directions {
        for (name, help, of) in counts {
            let name = format!("container_network_{direction}_{name}_total");
            let samples = all().map(|(g, n, i)| {
                (&g.labels, own(&[("interface", &i.name)]), of(&side(i)) as f64, Some(n.at))
            });
            out.shared((&name, Kind::Counter, &format!("{help} {done}.")), samples);
        }
    }
}

/// For the machine only: the runtime accounts for layers, and `/stats/summary` has them.
fn filesystem(out: &mut Exposition, inputs: &Inputs<'_>) {
    let Some(Root { device, filesystem: fs, disk }) = inputs.root else { return };
    let figures = [
        ("container_fs_inodes_free", "Free inodes of the file system.", fs.inodes_free),
        ("container_fs_inodes_total", "Inodes of the file system.", fs.inodes),
        ("container_fs_limit_bytes", "Size of the file system.", Some(fs.capacity_bytes)),
        ("container_fs_usage_bytes", "Bytes in use of the file system.", Some(fs.used_bytes)),
    ];
    let labels = labels("/", None, ["", "", ""]);
    for (name, help, value) in figures {
        let sample = value.map(|value| (&labels, own(&[("device", device)]), value as f64, Some(fs.at)));
        out.shared((name, Kind::Gauge, help), sample);
    }
    let Some(disk) = disk else { return };
    let seconds = |ms: u64| ms as f64 / 1e3;
    let done = [
        ("reads_merged_total", "Reads that went into others.", disk.reads_merged as f64),
        ("sector_reads_total", "Sectors read.", disk.sectors_read as f64),
        ("read_seconds_total", "What reads waited.", seconds(disk.read_ms)),
        ("writes_merged_total", "Writes that went into others.", disk.writes_merged as f64),
        ("sector_writes_total", "Sectors written.", disk.sectors_written as f64),
        ("write_seconds_total", "What writes waited.", seconds(disk.write_ms)),
        ("io_time_seconds_total", "How long requests were under way.", seconds(disk.busy_ms)),
        ("io_time_weighted_seconds_total", "What all requests waited.", seconds(disk.waited_ms)),
    ];
    let counters = done.map(|(name, help, value)| (name, Kind::Counter, help, value));
    let now = ("io_current", Kind::Gauge, "Requests under way.", disk.in_flight as f64);
    for (name, kind, help, value) in counters.into_iter().chain([now]) {
        let name = format!("container_fs_{name}");
        out.shared((&name, kind, help), [(&labels, own(&[("device", device)]), value, Some(fs.at))]);
    }
}

fn machine(out: &mut Exposition, inputs: &Inputs<'_>) {
    let Some(machine) = inputs.machine else { return };
    let figures = [
        ("machine_cpu_cores", "Logical processors.", Some(f64::from(machine.cpus))),
        ("machine_cpu_physical_cores", "Cores.", machine.cores.map(f64::from)),
        ("machine_cpu_sockets", "Packages with cores.", machine.sockets.map(f64::from)),
        ("machine_memory_bytes", "Memory of the machine.", Some(machine.memory_bytes as f64)),
        ("machine_swap_bytes", "Swap of the machine.", Some(machine.swap_bytes as f64)),
    ];
    for (name, help, value) in figures {
        let labels = vec![
            ("boot_id", machine.boot_id.as_str()),
            ("machine_id", &machine.machine_id),
            ("system_uuid", &machine.system_uuid),
        ];
        out.family((name, Kind::Gauge, help), value.map(|value| (labels, value)), Some(inputs.at));
    }
}
