//! The banner: who the node is, how it is reached, and what is wrong with it. Pure.
//!
//! In: the node's name and image, its state, addresses, cluster and problems. Out: at most 12 lines of printable ASCII.

use agent_types::time::Mono;

use super::problem::ConsoleProblem;
use super::text::clean;

/// State of an agent that is ready.
pub const RUNNING: &str = "running";
/// Longest line, characters.
const LINE_CHARS_MAX: usize = 480;
/// Longest reason of a Node that is not ready, characters.
const REASON_CHARS_MAX: usize = 240;
/// Problems in a banner; the number of the others follows.
const PROBLEMS_MAX: usize = 6;
/// Addresses in a banner.
const ADDRESSES_MAX: usize = 4;

/// What stays the same for a whole boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTitle {
    /// Name of the node.
    pub name: String,
    /// `IMAGE_VERSION` of the image, empty if unknown.
    pub version: String,
    /// The partition of the root and the beginning of its hash, empty if unknown ([`root_of`]).
    pub root: String,
    /// What the firmware trusts, by the ledger's detail of `init.trust`; empty if it knows no Secure Boot.
    pub firmware: String,
}

impl NodeTitle {
    /// The first line. `now` is the time since the machine was switched on.
    #[must_use]
    pub fn line(&self, now: Mono) -> String {
        let seconds = now.0 / 1_000_000_000;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let root = if self.root.is_empty() { String::new() } else { format!(" -- {}", self.root) };
        let text = format!(
            "-- {} -- Orlop {}{root} -- up {hours:02}:{minutes:02}:{seconds:02} --",
            self.name, self.version
        );
        clean(&text, LINE_CHARS_MAX)
    }
}

/// The root that was booted, by the ledger's detail of `init.verity`: its slot (`A` or `B`; empty for a partition that is none), the
/// partition and the root hash. `None` for another text.
#[must_use]
pub fn booted_root(verity: &str) -> Option<(&'static str, &str, &str)> {
    let (partition, hash) = verity.split_once(" root hash ")?;
    let partition = partition.rsplit('/').next().unwrap_or(partition);
    // docs/internals/architecture.md, "Disk": the roots are partitions 2 and 4.
    let slot = match partition.chars().next_back() {
        Some('2') => "A",
        Some('4') => "B",
        _ => "",
    };
    Some((slot, partition, hash))
}

/// `slot A (vda2), root hash 0123456789ab` from the ledger's detail of `init.verity`. Empty for another text.
#[must_use]
pub fn root_of(verity: &str) -> String {
    let Some((slot, partition, hash)) = booted_root(verity) else { return String::new() };
    let place = if slot.is_empty() { "root".to_owned() } else { format!("slot {slot}") };
    format!("{place} ({partition}), root hash {}", hash.get(..12).unwrap_or(hash))
}

/// The node's place in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterPlace {
    /// The configuration names no cluster.
    Standalone,
    /// It names one; whether the API server shows the node as ready.
    Member {
        /// The Node's condition Ready.
        ready: bool,
    },
}

/// What may change.
#[derive(Clone, Copy, Debug)]
pub struct BannerFacts<'a> {
    /// What the agent does.
    pub state: &'static str,
    /// What the firmware trusts; empty if it knows no Secure Boot.
    pub firmware: &'a str,
    /// The node's addresses.
    pub addresses: &'a [String],
    /// Its place in a cluster.
    pub cluster: ClusterPlace,
    /// Why the Node is not ready, by its condition; empty if the API server has no such condition.
    pub not_ready: &'a str,
    /// Problems, the most important first.
    pub problems: &'a [&'a ConsoleProblem],
}

/// The lines after the first one.
#[must_use]
pub fn content(facts: &BannerFacts<'_>) -> Vec<String> {
    let ready = if facts.state == RUNNING { "ready" } else { facts.state };
    let mut lines = vec![format!("node agent: {ready}")];
    let addresses = match facts.addresses {
        [] => "none: this machine has no address (check cables, DHCP, and `network` of the NodeConfig)"
            .to_owned(),
        all => all.iter().take(ADDRESSES_MAX).cloned().collect::<Vec<_>>().join(", "),
    };
    lines.push(format!("addresses: {addresses}"));
    lines.push(format!("cluster: {}{}", cluster(facts.cluster), why_not_ready(facts)));
    if !facts.firmware.is_empty() {
        lines.push(format!("firmware: {}", facts.firmware));
    }
    for problem in facts.problems.iter().take(PROBLEMS_MAX) {
        lines.push(format!("problem: {}", problem.line()));
    }
    match facts.problems.len().checked_sub(PROBLEMS_MAX) {
        Some(more) if more > 0 => lines.push(format!("problem: {more} more")),
        _ if facts.problems.is_empty() => lines.push("no problem is known".to_owned()),
        _ => {}
    }
    lines.iter().map(|line| format!("   {}", clean(line, LINE_CHARS_MAX))).collect()
}

fn cluster(place: ClusterPlace) -> &'static str {
    match place {
        ClusterPlace::Standalone => "none, a standalone node",
        ClusterPlace::Member { ready: true } => "joined, the Node is Ready",
        ClusterPlace::Member { ready: false } => "the Node is NOT READY",
    }
}

/// The reason of a Node that is not ready. One that the API server does not have yet has the first problem's.
fn why_not_ready(facts: &BannerFacts<'_>) -> String {
    if facts.cluster != (ClusterPlace::Member { ready: false }) {
        return String::new();
    }
    match (facts.not_ready, facts.problems.first()) {
        ("", None) => String::new(),
        ("", Some(problem)) => format!(": see the problem with {}", problem.subject),
        (message, _) => format!(": {}", clean(message, REASON_CHARS_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(
        state: &'static str,
        addresses: &[&str],
        cluster: ClusterPlace,
        problems: &[ConsoleProblem],
    ) -> String {
        let addresses: Vec<String> = addresses.iter().map(|a| (*a).to_owned()).collect();
        let problems: Vec<&ConsoleProblem> = problems.iter().collect();
        let facts = BannerFacts {
            state,
            firmware: "",
            addresses: &addresses,
            cluster,
            not_ready: "",
            problems: &problems,
        };
        content(&facts).join("\n")
    }

    #[test]
    fn a_healthy_node() {
        let title = NodeTitle {
            name: "edge-7".to_owned(),
            version: "0.4.0".to_owned(),
            root: root_of("/dev/vda2 root hash 0123456789abcdef0123"),
            firmware: String::new(),
        };
        assert_eq!(
            title.line(Mono(3_723_000_000_000)),
            "-- edge-7 -- Orlop 0.4.0 -- slot A (vda2), root hash 0123456789ab -- up 01:02:03 --"
        );
        let place = ClusterPlace::Member { ready: true };
        assert_eq!(
            render(RUNNING, &["192.0.2.17", "fd00::17"], place, &[]),
            "   node agent: ready\n   addresses: 192.0.2.17, fd00::17\n   cluster: joined, the Node is Ready\n   no problem is known"
        );
    }

    #[test]
    fn a_firmware_with_secure_boot_has_a_line() {
        let cluster = ClusterPlace::Standalone;
        let firmware = "Secure Boot on (keys: Orlop db 1a2b3c4d)";
        let facts =
            BannerFacts { state: RUNNING, firmware, addresses: &[], cluster, not_ready: "", problems: &[] };
        let lines = content(&facts);
        assert_eq!(lines[3], "   firmware: Secure Boot on (keys: Orlop db 1a2b3c4d)");
        assert_eq!(lines.len(), 5, "{lines:?}");
    }

    #[test]
    fn a_node_that_is_not_ready_has_its_reason() {
        let problem = ConsoleProblem::new("cluster, identity", "no token", "");
        let line = |ready: bool, not_ready: &str, problems: &[&ConsoleProblem]| {
            let cluster = ClusterPlace::Member { ready };
            let facts =
                BannerFacts { state: RUNNING, firmware: "", addresses: &[], cluster, not_ready, problems };
            content(&facts).remove(2)
        };
        let not_ready = "   cluster: the Node is NOT READY";
        assert_eq!(line(false, "", &[]), not_ready);
        assert_eq!(line(false, "cni\nplugin", &[&problem]), format!("{not_ready}: cni plugin"));
        let want = format!("{not_ready}: see the problem with cluster, identity");
        assert_eq!(line(false, "", &[&problem]), want);
        assert_eq!(line(true, "old", &[&problem]), "   cluster: joined, the Node is Ready");
    }

    #[test]
    fn the_root_of_each_slot() {
        assert_eq!(root_of("/dev/nvme0n1p4 root hash ab"), "slot B (nvme0n1p4), root hash ab");
        assert_eq!(root_of("/dev/sda12 root hash é"), "slot A (sda12), root hash é");
        assert_eq!(root_of("something else"), "");
    }

    #[test]
    fn problems_are_bounded_in_number_and_cleaned() {
        let problem = |n: usize| ConsoleProblem::new(&format!("pod {n}"), "bad\u{1b}[0m\nword", "do this");
        let many: Vec<ConsoleProblem> = (0..9).map(problem).collect();
        let text = render("waiting", &[], ClusterPlace::Standalone, &many);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 10, "{text}");
        assert_eq!(lines[0], "   node agent: waiting");
        assert!(lines[1].starts_with("   addresses: none: this machine has no address"));
        assert_eq!(lines[3], "   problem: pod 0: bad [0m word; do this");
        assert_eq!(lines[9], "   problem: 3 more");
        assert!(text.bytes().all(|b| b == b'\n' || b == b' ' || b.is_ascii_graphic()));
        let six: Vec<ConsoleProblem> = (0..6).map(problem).collect();
        let text = render("waiting", &[], ClusterPlace::Standalone, &six);
        assert!(!text.contains("more") && !text.contains("no problem"), "{text}");
    }
}
