//! A logical unit of an iSCSI target (`iscsi`): its names, and the arguments of `iscsiadm`.
//!
//! In: the volume's source. Out: names, arguments of iscsiadm(8). Invariant: only that program gets a
//! target's credentials: they are neither in logs nor in errors nor on disk. Upstream:
//! pkg/volume/iscsi/iscsi_util.go.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::json;

/// The program.
pub const PROGRAM: &str = "iscsiadm";
/// Port of a portal that names none (IANA).
const PORT: u16 = 3260;
/// `iscsiInterface` of a volume that names none.
const INTERFACE: &str = "default";
/// "session exists" (iscsiadm(8), EXIT STATUS).
pub const SESSION_EXISTS: i32 = 15;
/// "session could not be found" and "no records found": the session or record to remove is not there.
const NOT_THERE: [i32; 2] = [2, 21];
/// The way of an interface that names none.
const TCP: &str = "tcp";
/// What iscsiadm shows for a parameter without a value.
const EMPTY: &str = "<empty>";

/// Keys of a Secret for discovery.
const DISCOVERY: [&str; 4] = [
    "discovery.sendtargets.auth.username",
    "discovery.sendtargets.auth.password",
    "discovery.sendtargets.auth.username_in",
    "discovery.sendtargets.auth.password_in",
];
/// Keys of a Secret for sessions.
const SESSION: [&str; 4] = [
    "node.session.auth.username",
    "node.session.auth.password",
    "node.session.auth.username_in",
    "node.session.auth.password_in",
];

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iscsi {
    /// `targetPortal`, as it was written.
    portal: String,
    /// All portals with their ports, each once; the first is the one above.
    pub portals: Vec<String>,
    /// Name of the target.
    pub iqn: String,
    /// Number of the unit.
    pub lun: i32,
    /// `iscsiInterface`.
    base: String,
    /// `initiatorName`: the node calls itself so, by an interface of its own.
    initiator: Option<String>,
    /// `chapAuthDiscovery`.
    pub chap_discovery: bool,
    /// `chapAuthSession`.
    pub chap_session: bool,
}

/// What is known of a Secret, by its keys.
pub type Chap = BTreeMap<String, String>;

/// A call of iscsiadm.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The last one is a secret.
    secret: bool,
}

impl Command {
    fn new(arguments: &[&str]) -> Command {
        Command { arguments: arguments.iter().map(|&a| a.to_owned()).collect(), secret: false }
    }

    /// The agent shows neither the last argument nor the program's output about it.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.secret
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.arguments.len() - usize::from(self.secret && !self.arguments.is_empty());
        write!(f, "{PROGRAM} {}", self.arguments[..shown].join(" "))?;
        if self.secret { f.write_str(" ***") } else { Ok(()) }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn with_port(portal: &str) -> String {
    // One of the sixth version is in brackets; upstream takes any colon for a port's.
    let port = match portal.rsplit_once(']') {
        Some((_, after)) => after.starts_with(':'),
        None => portal.contains(':'),
    };
    if port { portal.to_owned() } else { format!("{portal}:{PORT}") }
}

impl Iscsi {
    /// What a volume says: `targetPortal` and `portals`, `iqn`, `lun`, `iscsiInterface`, `initiatorName`, `chapAuthDiscovery`
    /// and `chapAuthSession`.
    #[must_use]
    pub fn new(
        (portal, more): (String, Vec<String>),
        iqn: String,
        lun: i32,
        interface: Option<String>,
        initiator: Option<String>,
        (chap_discovery, chap_session): (bool, bool),
    ) -> Iscsi {
        let mut portals: Vec<String> = Vec::new();
        for portal in [&portal].into_iter().chain(&more).filter(|p| !p.is_empty()).map(|p| with_port(p)) {
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        let base = interface.filter(|i| !i.is_empty()).unwrap_or_else(|| INTERFACE.to_owned());
        let initiator = initiator.filter(|name| !name.is_empty());
        Iscsi { portal, portals, iqn, lun, base, initiator, chap_discovery, chap_session }
    }

    /// What follows the plugin in its unique name.
    #[must_use]
    pub fn handle(&self) -> String {
        format!("{}:{}:{}", self.portal, self.iqn, self.lun)
    }

    fn first(&self) -> &str {
        self.portals.first().map_or("", String::as_str)
    }

    /// The interface of its sessions: one of its own if the node is to call itself otherwise there.
    #[must_use]
    pub fn interface(&self, volume: &str) -> String {
        match &self.initiator {
            Some(_) => format!("{}:{volume}", self.first()),
            None => self.base.clone(),
        }
    }

    /// The interface that the volume names: its sessions' own, or what that is made from.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Where the node has it, below the plugin's directory.
    pub(super) fn directory(&self, volume: &str) -> Vec<String> {
        vec![
            format!("iface-{}", self.interface(volume)),
            format!("{}-{}-lun-{}", self.first(), self.iqn, self.lun),
        ]
    }

    /// It wants to see a Secret.
    #[must_use]
    pub fn wants_secret(&self) -> bool {
        self.chap_discovery || self.chap_session
    }

    pub(super) fn for_upstream(&self, volume: &str) -> Vec<u8> {
        let text = json!({"VolName": volume, "Portals": self.portals, "Iqn": self.iqn, "Lun": self.lun.to_string(),
            "InitIface": self.base, "Iface": self.interface(volume),
            "InitiatorName": self.initiator.as_deref().unwrap_or_default()});
        text.to_string().into_bytes()
    }

    /// The name that the node is to call itself, if it is not its own.
    #[must_use]
    pub fn initiator(&self) -> Option<&str> {
        self.initiator.as_deref()
    }

    pub(super) fn show_interface(&self) -> Command {
        Command::new(&["-m", "iface", "-I", &self.base, "-o", "show"])
    }

    pub(super) fn new_interface(&self, volume: &str) -> Command {
        Command::new(&["-m", "iface", "-I", &self.interface(volume), "-o", "new"])
    }

    pub(super) fn set_interface(&self, volume: &str, key: &str, value: &str) -> Command {
        let name = self.interface(volume);
        Command::new(&["-m", "iface", "-I", &name, "-o", "update", "-n", key, "-v", value])
    }

    /// Removes the interface that was made for the volume; `None`: there is none.
    pub(super) fn delete_interface(&self, volume: &str) -> Option<Command> {
        self.initiator.as_ref()?;
        Some(Command::new(&["-m", "iface", "-I", &self.interface(volume), "-o", "delete"]))
    }

    pub(super) fn discovery(&self, volume: &str, portal: &str, what: &[&str]) -> Command {
        let name = self.interface(volume);
        let first = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &name];
        Command::new(&[&first, what].concat())
    }

    pub(super) fn node(&self, volume: &str, portal: &str, what: &[&str]) -> Command {
        let name = self.interface(volume);
        Command::new(&[&["-m", "node", "-p", portal, "-T", &self.iqn, "-I", &name], what].concat())
    }

    /// Keeps iscsid from a login by itself when the machine starts.
    pub(super) fn by_hand(&self, portal: &str) -> Command {
        let change = ["-o", "update", "-n", "node.startup", "-v", "manual"];
        Command::new(&[&["-m", "node", "-p", portal, "-T", &self.iqn], &change[..]].concat())
    }

    fn chap(&self, keys: &[&str; 4], chap: &Chap, one: &dyn Fn(&[&str]) -> Command) -> Vec<Command> {
        let method = keys[0].replace("username", "authmethod");
        let mut all = vec![one(&["-o", "update", "-n", &method, "-v", "CHAP"])];
        for key in keys {
            if let Some(value) = chap.get(*key).filter(|value| !value.is_empty()) {
                all.push(Command { secret: true, ..one(&["-o", "update", "-n", key, "-v", value]) });
            }
        }
        all
    }

    pub(super) fn chap_of_discovery(&self, volume: &str, portal: &str, chap: &Chap) -> Vec<Command> {
        match self.chap_discovery {
            true => self.chap(&DISCOVERY, chap, &|what| self.discovery(volume, portal, what)),
            false => Vec::new(),
        }
    }

    pub(super) fn chap_of_session(&self, volume: &str, portal: &str, chap: &Chap) -> Vec<Command> {
        match self.chap_session {
            true => self.chap(&SESSION, chap, &|what| self.node(volume, portal, what)),
            false => Vec::new(),
        }
    }

    /// What ends all of its sessions, in this order. What is not there is a success: [`is_gone`].
    #[must_use]
    pub fn logout(&self, volume: &str) -> Vec<Command> {
        let of = |portal: &String| {
            [self.node(volume, portal, &["--logout"]), self.node(volume, portal, &["-o", "delete"])]
        };
        self.portals.iter().flat_map(of).chain(self.delete_interface(volume)).collect()
    }

    /// Name of the link to its device below /dev/disk/by-path, by a portal.
    #[must_use]
    pub fn link(&self, portal: &str, transport: &str) -> Link {
        let Iscsi { iqn, lun, .. } = self;
        Link { end: format!("ip-{portal}-iscsi-{iqn}-lun-{lun}"), by_adapter: transport != TCP }
    }
}

/// What links to a device are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    end: String,
    /// An adapter on the PCI bus has the session: its place comes first.
    by_adapter: bool,
}

impl Link {
    /// The first of these names that is one.
    #[must_use]
    pub fn choose<'n>(&self, names: &'n [String]) -> Option<&'n str> {
        let is = |name: &&str| match name.strip_suffix(self.end.as_str()) {
            Some(way) if self.by_adapter => way.starts_with("pci-") && way.ends_with('-'),
            way => way == Some(""),
        };
        names.iter().map(String::as_str).filter(is).min()
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/dev/disk/by-path/{}{}", if self.by_adapter { "pci-*-" } else { "" }, self.end)
    }
}

/// How an interface's sessions go (`iface.transport_name`), of what iscsiadm shows of it.
#[must_use]
pub fn transport(shown: &str) -> Option<&str> {
    let name = shown.lines().find_map(|line| line.strip_prefix("iface.transport_name = "))?.trim();
    Some(if name == EMPTY { TCP } else { name })
}

/// What an interface of a volume's own has from the one that it is made from.
///
/// # Errors
/// A line that is none of iscsiadm's.
pub fn parameters(shown: &str) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for line in shown.lines().filter(|line| line.starts_with("iface.") && !line.contains(EMPTY)) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [key, "=", value] = fields[..] else { return Err(format!("invalid iface setting: {line}")) };
        // Its name cannot be changed.
        if key != "iface.iscsi_ifacename" {
            all.insert(key.to_owned(), value.to_owned());
        }
    }
    Ok(all)
}

/// iscsiadm, asked to take something away, ended with this code: it is not there.
#[must_use]
pub fn is_gone(code: Option<i32>) -> bool {
    code.is_some_and(|code| NOT_THERE.contains(&code))
}
