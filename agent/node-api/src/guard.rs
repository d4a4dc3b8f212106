//! Who may ask, and how often.
//!
//! In: a peer as the kernel names it, the time. Out: an identity or a refusal, and tokens for calls and for lines of the log. Pure.
//! Invariants: nothing that a peer sends says who it is; each door has its own tokens, so strangers at one door take none of another's.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;

use crate::refusal::{Reason, Refusal};

/// Calls of a door at once, and then one in each period.
const CALLS: (u32, Duration) = (40, Duration::from_millis(50));
/// Calls of strangers, the same: they take no token of others. Users of the cluster have as many as the others, of their own.
const STRANGERS_CALLS: (u32, Duration) = (10, Duration::from_millis(500));
/// Lines about refused calls of a door at once, and then one in each period.
const REFUSED_LINES: (u32, Duration) = (5, Duration::from_secs(1));
/// Lines about connections that were not taken, the same.
const CLOSED_LINES: (u32, Duration) = (5, Duration::from_secs(10));
/// The context identifier of a machine's host (vsock(7), VMADDR_CID_HOST).
const HOST_CID: u32 = 2;

/// A way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The unix socket.
    Unix,
    /// The virtual socket of a machine and its host.
    Vsock,
    /// The network.
    Tcp,
    /// The virtio-serial port of a machine and its host.
    Serial,
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Door::Unix => "unix",
            Door::Vsock => "vsock",
            Door::Tcp => "tcp",
            Door::Serial => "serial",
        })
    }
}

/// Who is at the other end, by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, by the user that it runs as.
    Process {
        /// User.
        uid: u32,
        /// Process, if the kernel names it.
        pid: Option<i32>,
    },
    /// A machine.
    Machine {
        /// Context identifier.
        cid: u32,
    },
    /// An address of the network.
    Network {
        /// Address and port.
        address: SocketAddr,
    },
    /// The host of the machine, through the program that serves the virtio-serial port.
    Port,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Process { uid, pid: Some(pid) } => write!(f, "uid {uid} pid {pid}"),
            Peer::Process { uid, pid: None } => write!(f, "uid {uid}"),
            Peer::Machine { cid } => write!(f, "cid {cid}"),
            Peer::Network { address } => write!(f, "{address}"),
            Peer::Port => f.write_str("virtio-serial port"),
        }
    }
}

/// What an identity may do. Operators and administrators read and operate; administrators alone change the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads and operates.
    Operator,
    /// May do everything.
    Admin,
    /// May do what the cluster has allowed for this call.
    Cluster,
}

impl Role {
    /// Its name in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::Operator => "operator",
            Role::Admin => "admin",
            Role::Cluster => "cluster",
        }
    }
}

/// Who takes tokens of a door from the same bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerClass {
    /// May not ask.
    Stranger,
    /// A user of the cluster.
    User,
    /// Root on the node, a trusted host, an administrator of the configuration.
    Trusted,
}

impl CallerClass {
    /// The class of a caller.
    #[must_use]
    pub fn of(identity: &Result<Identity, Refusal>) -> CallerClass {
        match identity {
            Err(_) => CallerClass::Stranger,
            Ok(Identity { role: Role::Cluster, .. }) => CallerClass::User,
            Ok(Identity { role: Role::Operator | Role::Admin, .. }) => CallerClass::Trusted,
        }
    }
}

/// A peer that may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// For the log.
    pub name: String,
    /// What it may do.
    pub role: Role,
}

/// Whom the node believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The user whose processes are operators: that of the server.
    pub uid: u32,
    /// `api.vsock.trustHost`: the host of the machine, by vsock and by the virtio-serial port.
    pub vsock_host: bool,
}

/// The identity of a peer.
///
/// # Errors
/// It may not ask.
pub fn identify(peer: Peer, trust: Trust) -> Result<Identity, Refusal> {
    let refused = |message: &str| Err(Refusal::new(Reason::NotTrusted, peer.to_string(), message));
    match peer {
        Peer::Process { uid, .. } if uid == trust.uid => {
            Ok(Identity { name: format!("uid {uid}"), role: Role::Operator })
        }
        Peer::Process { .. } => refused("another user than the server's may not ask"),
        Peer::Machine { cid: HOST_CID } | Peer::Port if trust.vsock_host => {
            Ok(Identity { name: "host".to_owned(), role: Role::Admin })
        }
        Peer::Machine { cid: HOST_CID } | Peer::Port => {
            refused("this node does not trust the host of its machine")
        }
        // A process of this machine, by the loopback, or another machine of the host.
        Peer::Machine { .. } => refused("only the host of the machine may ask on vsock"),
        Peer::Network { .. } => refused("an address is no identity"),
    }
}

/// An administrator of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminKey {
    /// Name.
    pub name: String,
    /// `ed25519:` and base64.
    pub key: String,
}

/// The identity of a peer that has proved to hold a key. `fingerprint` is that of the key.
///
/// # Errors
/// The configuration does not have the key.
pub fn identify_key(
    peer: Peer,
    key: &str,
    fingerprint: &str,
    admins: &[AdminKey],
) -> Result<Identity, Refusal> {
    match admins.iter().find(|admin| admin.key == key) {
        Some(admin) => Ok(Identity { name: admin.name.clone(), role: Role::Admin }),
        None => {
            let message = format!("the key {fingerprint} is none of `api.admins`");
            Err(Refusal::new(Reason::UnknownKey, peer.to_string(), message))
        }
    }
}

/// Checks that the present configuration trusts an administrator who came when it was another one. `key` is the one that was shown.
///
/// # Errors
/// It does not.
pub fn still_trusted(
    (identity, key, door): (&Identity, &str, Door),
    admins: &[AdminKey],
    vsock_host: bool,
) -> Result<(), Refusal> {
    let (trusted, reason) = match door {
        Door::Unix => (true, Reason::NotTrusted),
        Door::Vsock | Door::Serial => (vsock_host, Reason::NotTrusted),
        Door::Tcp => {
            let known = admins.iter().any(|admin| admin.name == identity.name && admin.key == key);
            (known, Reason::UnknownKey)
        }
    };
    let message = "the configuration has changed since this connection was opened";
    if trusted { Ok(()) } else { Err(Refusal::new(reason, identity.name.clone(), message)) }
}

/// Checks that an identity may change the node.
///
/// # Errors
/// Its role is another one.
pub fn admin(identity: &Identity) -> Result<(), Refusal> {
    match identity.role {
        Role::Admin => Ok(()),
        Role::Operator | Role::Cluster => {
            let message =
                format!("it needs the role {}, this is {}", Role::Admin.name(), identity.role.name());
            Err(Refusal::new(Reason::RoleTooLow, identity.name.clone(), message))
        }
    }
}

/// Whether a connection is worth an answer: others are closed before they say anything. The host gets a refusal that it can read.
#[must_use]
pub fn is_heard(peer: Peer) -> bool {
    !matches!(peer, Peer::Machine { cid } if cid != HOST_CID)
}

/// The control group of the program that serves the virtio-serial port, as /proc names it.
const PORT_CGROUP: &str = "0::/system.slice/orlop-serial.service";

/// Whether a process is the program that serves the virtio-serial port, by its /proc/PID/cgroup. Only PID 1 starts processes there, and a
/// container cannot name the group.
#[must_use]
pub fn is_port_program(cgroup: &str) -> bool {
    cgroup.lines().any(|line| line == PORT_CGROUP)
}

/// The tokens of a door.
#[derive(Clone, Debug)]
pub struct DoorLimits {
    trusted: TokenBucket,
    users: TokenBucket,
    strangers: TokenBucket,
    refused: TokenBucket,
    closed: TokenBucket,
    unsaid: u64,
}

impl Default for DoorLimits {
    fn default() -> DoorLimits {
        DoorLimits {
            trusted: TokenBucket::new(CALLS.1, CALLS.0),
            users: TokenBucket::new(CALLS.1, CALLS.0),
            strangers: TokenBucket::new(STRANGERS_CALLS.1, STRANGERS_CALLS.0),
            refused: TokenBucket::new(REFUSED_LINES.1, REFUSED_LINES.0),
            closed: TokenBucket::new(CLOSED_LINES.1, CLOSED_LINES.0),
            unsaid: 0,
        }
    }
}

impl DoorLimits {
    /// Takes the token of a call.
    ///
    /// # Errors
    /// There is none.
    pub fn admit(&mut self, now: Mono, door: Door, class: CallerClass) -> Result<(), Refusal> {
        let (bucket, every) = match class {
            CallerClass::Stranger => (&mut self.strangers, STRANGERS_CALLS.1),
            CallerClass::User => (&mut self.users, CALLS.1),
            CallerClass::Trusted => (&mut self.trusted, CALLS.1),
        };
        bucket.reserve(now, Duration::ZERO).map(drop).map_err(|wait| Refusal {
            retry_after: wait,
            ..Refusal::new(
                Reason::TooManyCalls,
                format!("door {door}"),
                format!("more than {} calls a second", 1000 / every.as_millis()),
            )
        })
    }

    /// Whether a refused call has a line in the log; `Some` has the number of refused calls that had none since the last one.
    pub fn say_refused(&mut self, now: Mono) -> Option<u64> {
        if self.refused.reserve(now, Duration::ZERO).is_err() {
            self.unsaid = self.unsaid.saturating_add(1);
            return None;
        }
        Some(std::mem::take(&mut self.unsaid))
    }

    /// Whether a connection that was not taken has a line in the log.
    pub fn say_closed(&mut self, now: Mono) -> bool {
        self.closed.reserve(now, Duration::ZERO).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table_of_peers() {
        let process = |uid| Peer::Process { uid, pid: Some(7) };
        let machine = |cid| Peer::Machine { cid };
        for (peer, vsock_host, role, heard) in [
            (process(0), false, Some(Role::Operator), true),
            (process(0), true, Some(Role::Operator), true),
            (process(1000), true, None, true),
            (machine(2), true, Some(Role::Admin), true),
            (machine(2), false, None, true),
            (machine(1), true, None, false),
            (machine(0), true, None, false),
            (machine(3), true, None, false),
            (machine(u32::MAX), true, None, false),
            (Peer::Port, true, Some(Role::Admin), true),
            (Peer::Port, false, None, true),
        ] {
            let found = identify(peer, Trust { uid: 0, vsock_host });
            assert_eq!(found.as_ref().ok().map(|identity| identity.role), role, "{peer}");
            assert_eq!(is_heard(peer), heard, "{peer}");
            if let Err(refusal) = found {
                assert_eq!(refusal.reason, Reason::NotTrusted);
                assert_eq!(refusal.object, peer.to_string());
            }
        }
    }

    #[test]
    fn a_key_is_an_administrator_s_or_a_stranger_s() {
        let peer = Peer::Network { address: SocketAddr::from(([192, 0, 2, 1], 4711)) };
        let admins = [AdminKey { name: "ops-1".to_owned(), key: "ed25519:a".to_owned() }];
        let found = identify_key(peer, "ed25519:a", "SHA256:x", &admins).unwrap();
        assert_eq!((found.name.as_str(), found.role), ("ops-1", Role::Admin));
        let refusal = identify_key(peer, "ed25519:b", "SHA256:x", &admins).unwrap_err();
        assert_eq!(refusal.to_string(), "192.0.2.1:4711: the key SHA256:x is none of `api.admins`");
        assert_eq!(refusal.reason, Reason::UnknownKey);
        let trust = Trust { uid: 0, vsock_host: true };
        assert!(identify(peer, trust).is_err() && is_heard(peer));
    }

    #[test]
    fn only_the_unit_of_the_port_is_its_program() {
        assert!(is_port_program("0::/system.slice/orlop-serial.service\n"));
        for other in [
            "",
            "0::/",
            "0::/system.slice/orlop-serial.service/x",
            "0::/kubepods/pod1/system.slice/orlop-serial.service",
            "1:name=x:/system.slice/orlop-serial.service",
        ] {
            assert!(!is_port_program(other), "{other}");
        }
    }

    #[test]
    fn an_operator_changes_nothing() {
        let of = |role| Identity { name: "uid 0".to_owned(), role };
        assert_eq!(admin(&of(Role::Admin)), Ok(()));
        let refusal = admin(&of(Role::Operator)).unwrap_err();
        assert_eq!(refusal.reason, Reason::RoleTooLow);
        assert_eq!(refusal.to_string(), "uid 0: it needs the role admin, this is operator");
        assert_eq!(admin(&of(Role::Cluster)).unwrap_err().reason, Reason::RoleTooLow);
    }

    #[test]
    fn an_old_connection_changes_nothing_when_its_key_is_gone() {
        let admin = |name: &str, key: &str| AdminKey { name: name.to_owned(), key: key.to_owned() };
        let ops = Identity { name: "ops-1".to_owned(), role: Role::Admin };
        let by_key = |admins: &[AdminKey]| still_trusted((&ops, "k1", Door::Tcp), admins, true);
        assert_eq!(by_key(&[admin("ops-2", "k2"), admin("ops-1", "k1")]), Ok(()));
        for gone in [&[][..], &[admin("ops-1", "k2")], &[admin("ops-2", "k1")]] {
            assert_eq!(by_key(gone).unwrap_err().reason, Reason::UnknownKey, "{gone:?}");
        }
        let host = |trusted| still_trusted((&ops, "", Door::Vsock), &[], trusted);
        assert_eq!((host(true).is_ok(), host(false).unwrap_err().reason), (true, Reason::NotTrusted));
        let by_port = |trusted| still_trusted((&ops, "", Door::Serial), &[], trusted);
        assert_eq!((by_port(true).is_ok(), by_port(false).is_err()), (true, true));
    }

    #[test]
    fn a_burst_of_calls_passes_and_then_twenty_a_second() {
        let mut limits = DoorLimits::default();
        let at = |ms: u64| Mono(1_000_000_000 + ms * 1_000_000);
        let mut calls =
            |ms, class| (0..100).filter(|_| limits.admit(at(ms), Door::Unix, class).is_ok()).count();
        let trusted = [0, 49, 50, 1050].map(|ms| calls(ms, CallerClass::Trusted));
        assert_eq!(trusted, [40, 0, 1, 20]);
        // Others have tokens of their own.
        let users = [1050, 1100].map(|ms| calls(ms, CallerClass::User));
        let strangers = [1050, 1550].map(|ms| calls(ms, CallerClass::Stranger));
        assert_eq!((users, strangers), ([40, 1], [10, 1]));
        let refusal = limits.admit(at(1050), Door::Vsock, CallerClass::Trusted).unwrap_err();
        assert_eq!((refusal.reason, refusal.retry_after), (Reason::TooManyCalls, Duration::from_millis(50)));
        assert_eq!(refusal.to_string(), "door vsock: more than 20 calls a second");
        assert!(limits.admit(at(2000), Door::Tcp, CallerClass::Trusted).is_ok());
    }

    #[test]
    fn a_role_has_a_class() {
        let of = |role| CallerClass::of(&Ok(Identity { name: String::new(), role }));
        assert_eq!((of(Role::Operator), of(Role::Admin)), (CallerClass::Trusted, CallerClass::Trusted));
        assert_eq!(of(Role::Cluster), CallerClass::User);
        let stranger = Err(Refusal::new(Reason::NotTrusted, "x", "no"));
        assert_eq!(CallerClass::of(&stranger), CallerClass::Stranger);
    }

    #[test]
    fn lines_about_refused_calls_are_few_and_count_the_others() {
        let mut limits = DoorLimits::default();
        let at = |s: u64| Mono((100 + s) * 1_000_000_000);
        let said: Vec<Option<u64>> = (0..8).map(|_| limits.say_refused(at(0))).collect();
        assert_eq!(said, [Some(0), Some(0), Some(0), Some(0), Some(0), None, None, None]);
        assert_eq!((limits.say_refused(at(1)), limits.say_refused(at(1))), (Some(3), None));
        assert_eq!((0..8).filter(|_| limits.say_closed(at(0))).count(), 5);
    }
}
