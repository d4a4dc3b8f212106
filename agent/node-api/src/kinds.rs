//! The kinds of objects, and what must be looked at for each.
//!
//! In: names of a request. Out: [`ObjectKind`]s, or the refusal. Pure.

use orlop_proto::node_api::v1alpha1::{GetRequest, KindInfo};

use crate::refusal::{Reason, Refusal};

/// Kinds of one request.
const KINDS_MAX: usize = 16;
/// Names of one request.
const NAMES_MAX: usize = 64;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// The node itself, one object.
    Node,
    /// The root that was booted.
    Slots,
    /// Phases of this boot, from the ledger.
    Boot,
    /// What is wrong.
    Problems,
    /// Services of systemd.
    Services,
    /// Processes and threads of the kernel.
    Processes,
    /// Addresses of interfaces.
    Addresses,
    /// Network interfaces.
    Links,
    /// Block devices.
    Disks,
    /// File systems of disks and in memory.
    Mounts,
    /// Memory, one object.
    Memory,
    /// The clock, one object.
    Time,
    /// What was done to the node, and is being done.
    Operations,
}

impl ObjectKind {
    /// All of them.
    pub const ALL: [ObjectKind; 13] = [
        ObjectKind::Node,
        ObjectKind::Slots,
        ObjectKind::Boot,
        ObjectKind::Problems,
        ObjectKind::Services,
        ObjectKind::Processes,
        ObjectKind::Addresses,
        ObjectKind::Links,
        ObjectKind::Disks,
        ObjectKind::Mounts,
        ObjectKind::Memory,
        ObjectKind::Time,
        ObjectKind::Operations,
    ];

    /// Its name in requests and objects.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ObjectKind::Node => "node",
            ObjectKind::Slots => "slots",
            ObjectKind::Boot => "boot",
            ObjectKind::Problems => "problems",
            ObjectKind::Services => "services",
            ObjectKind::Processes => "processes",
            ObjectKind::Addresses => "addresses",
            ObjectKind::Links => "links",
            ObjectKind::Disks => "disks",
            ObjectKind::Mounts => "mounts",
            ObjectKind::Memory => "memory",
            ObjectKind::Time => "time",
            ObjectKind::Operations => "operations",
        }
    }

    const fn about(self) -> &'static str {
        match self {
            ObjectKind::Node => "version, agent, cluster and uptime of the node",
            ObjectKind::Slots => "the root that was booted",
            ObjectKind::Boot => "phases of this boot with their times",
            ObjectKind::Problems => "what is wrong, with remedies",
            ObjectKind::Services => "services of systemd",
            ObjectKind::Processes => "processes with their memory and CPU time, the largest first",
            ObjectKind::Addresses => "addresses of interfaces",
            ObjectKind::Links => "network interfaces",
            ObjectKind::Disks => "block devices and their partitions",
            ObjectKind::Mounts => "file systems and their free space",
            ObjectKind::Memory => "memory, swap and pressure",
            ObjectKind::Time => "the clock and who vouches for it",
            ObjectKind::Operations => "reboots, shutdowns and restarts: how far they are, how they ended",
        }
    }

    fn parse(name: &str) -> Option<ObjectKind> {
        ObjectKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// systemd knows something of it.
    #[must_use]
    pub const fn needs_services(self) -> bool {
        matches!(self, ObjectKind::Node | ObjectKind::Problems | ObjectKind::Services)
    }

    /// All processes are looked at for it.
    #[must_use]
    pub const fn needs_processes(self) -> bool {
        matches!(self, ObjectKind::Processes)
    }

    /// File systems are looked at for it; one whose device is dead may not answer.
    #[must_use]
    pub const fn needs_mounts(self) -> bool {
        matches!(self, ObjectKind::Mounts | ObjectKind::Problems)
    }
}

/// The kinds with their meanings.
#[must_use]
pub fn table() -> Vec<KindInfo> {
    let info = |kind: ObjectKind| KindInfo { name: kind.name().to_owned(), about: kind.about().to_owned() };
    ObjectKind::ALL.into_iter().map(info).collect()
}

/// The kinds of a request, each once.
///
/// # Errors
/// A name that is no kind, none, or too many.
pub fn requested(request: &GetRequest) -> Result<Vec<ObjectKind>, Refusal> {
    let bad = |message: String| Err(Refusal::new(Reason::BadRequest, "request", message));
    if request.kinds.is_empty() {
        return bad("it names no kind".to_owned());
    }
    if request.kinds.len() > KINDS_MAX || request.names.len() > NAMES_MAX {
        return bad(format!("it has more than {KINDS_MAX} kinds or {NAMES_MAX} names"));
    }
    let mut kinds = Vec::new();
    for name in &request.kinds {
        let Some(kind) = ObjectKind::parse(name) else {
            let shown: String = name.chars().take(64).collect();
            return Err(Refusal::new(
                Reason::UnknownKind,
                format!("kind {shown:?}"),
                "this node has no such kind",
            ));
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kinds: &[&str], names: usize) -> GetRequest {
        GetRequest {
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            names: vec!["x".to_owned(); names],
        }
    }

    #[test]
    fn each_kind_is_found_by_its_name_and_listed() {
        for (kind, info) in ObjectKind::ALL.into_iter().zip(table()) {
            assert_eq!(info.name, kind.name());
            assert_eq!(requested(&request(&[kind.name()], 0)).unwrap(), [kind]);
        }
        assert_eq!(
            requested(&request(&["time", "node", "time"], 0)).unwrap(),
            [ObjectKind::Time, ObjectKind::Node]
        );
    }

    #[test]
    fn other_requests_are_refused_with_their_reason() {
        for (request, reason) in [
            (request(&[], 0), Reason::BadRequest),
            (request(&["node"; 17], 0), Reason::BadRequest),
            (request(&["node"], 65), Reason::BadRequest),
            (request(&["node", "pods\u{1b}[2J"], 0), Reason::UnknownKind),
            (request(&["Node"], 0), Reason::UnknownKind),
        ] {
            let refusal = requested(&request).unwrap_err();
            assert_eq!(refusal.reason, reason, "{refusal}");
            assert!(!refusal.to_string().contains('\u{1b}'), "{refusal}");
        }
    }
}
