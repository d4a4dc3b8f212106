//! Calls of a flexVolume driver: the command, its arguments, and the options as JSON.
//!
//! In: a [`Flex`], a [`Record`], results of an earlier step. Out: [`Call`]s. Invariants: options of the
//! volume win over the node's own, as upstream; only `mount` contains the pod, its group and the Secret; no
//! log contains a call.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Flex, Record};

/// How long a driver may take for a call.
const LIMIT: Duration = Duration::from_secs(120);
/// How long it may wait for a device. Upstream: the same.
const WAIT_LIMIT: Duration = Duration::from_secs(600);

/// What a driver can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    /// What it can do.
    Init,
    /// Asks for the volume's name. The agent keeps its own name for the volume.
    GetVolumeName,
    /// Attach it to a node.
    Attach,
    /// Whether it is.
    IsAttached,
    /// Wait until the device is there.
    WaitForAttach,
    /// Mount the device for all pods.
    MountDevice,
    /// Mount the volume for a pod.
    Mount,
    /// Unmount a pod's.
    Unmount,
    /// Unmount the device.
    UnmountDevice,
    /// Detach it from a node.
    Detach,
    /// Make what is on it larger.
    ExpandFs,
}

impl Command {
    /// As the driver hears it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Command::Init => "init",
            Command::GetVolumeName => "getvolumename",
            Command::Attach => "attach",
            Command::IsAttached => "isattached",
            Command::WaitForAttach => "waitforattach",
            Command::MountDevice => "mountdevice",
            Command::Mount => "mount",
            Command::Unmount => "unmount",
            Command::UnmountDevice => "unmountdevice",
            Command::Detach => "detach",
            Command::ExpandFs => "expandfs",
        }
    }

    /// How long it may take. Upstream has a limit for `waitforattach` alone.
    #[must_use]
    pub fn limit(self) -> Duration {
        if self == Command::WaitForAttach { WAIT_LIMIT } else { LIMIT }
    }
}

/// One call of a driver.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// Command of the driver.
    pub command: Command,
    /// What follows the command.
    pub arguments: Vec<String>,
}

/// It may hold a Secret: only the command is shown.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({} …)", self.command.word())
    }
}

impl Call {
    fn new<const N: usize>(command: Command, arguments: [&str; N]) -> Call {
        Call { command, arguments: arguments.map(str::to_owned).into() }
    }

    /// What it can do.
    #[must_use]
    pub fn init() -> Call {
        Call::new(Command::Init, [])
    }

    /// Unmount a pod's volume.
    #[must_use]
    pub fn unmount(path: &str) -> Call {
        Call::new(Command::Unmount, [path])
    }

    /// The command and its arguments, as the program gets them.
    #[must_use]
    pub fn line(&self) -> Vec<String> {
        [self.command.word().to_owned()].into_iter().chain(self.arguments.iter().cloned()).collect()
    }
}

impl Flex {
    fn options(&self, more: BTreeMap<String, String>) -> String {
        let pairs = [
            ("kubernetes.io/fsType", self.fs_type.as_str()),
            ("kubernetes.io/readwrite", if self.read_only { "ro" } else { "rw" }),
            ("kubernetes.io/pvOrVolumeName", &self.volume),
        ];
        let mut all: BTreeMap<String, String> =
            pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        all.extend(more);
        all.extend(self.options.clone());
        serde_json::Value::from_iter(all).to_string()
    }

    fn plain(&self) -> String {
        self.options(BTreeMap::new())
    }

    /// What the volume is called.
    #[must_use]
    pub fn get_volume_name(&self) -> Call {
        Call::new(Command::GetVolumeName, [&self.plain()])
    }

    /// Attach it to this node.
    #[must_use]
    pub fn attach(&self) -> Call {
        Call::new(Command::Attach, [&self.plain(), &self.node])
    }

    /// Whether it is attached to this node.
    #[must_use]
    pub fn is_attached(&self) -> Call {
        Call::new(Command::IsAttached, [&self.plain(), &self.node])
    }

    /// Wait until `device`, as which it was attached, is there.
    #[must_use]
    pub fn wait_for_attach(&self, device: &str) -> Call {
        Call::new(Command::WaitForAttach, [device, &self.plain()])
    }

    /// Mount `device` for all pods.
    #[must_use]
    pub fn mount_device(&self, device: &str) -> Call {
        Call::new(Command::MountDevice, [&self.global, device, &self.plain()])
    }

    /// Make what is on `device`, which is mounted at `path`, larger: from `had` to `wanted` bytes.
    #[must_use]
    pub fn expand_fs(&self, device: &str, path: &str, (had, wanted): (i64, i64)) -> Call {
        let (had, wanted) = (had.to_string(), wanted.to_string());
        Call::new(Command::ExpandFs, [&self.plain(), device, path, &wanted, &had])
    }

    /// Mount it for the pod, at `path`.
    #[must_use]
    pub fn mount(&self, path: &str, group: Option<u32>, secret: &BTreeMap<String, Vec<u8>>) -> Call {
        let pairs = [
            ("kubernetes.io/pod.name", &self.pod),
            ("kubernetes.io/pod.namespace", &self.namespace),
            ("kubernetes.io/pod.uid", &self.uid),
            ("kubernetes.io/serviceAccount.name", &self.account),
        ];
        let mut more: BTreeMap<String, String> =
            pairs.into_iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        for (name, value) in secret {
            more.insert(format!("kubernetes.io/secret/{name}"), STANDARD.encode(value));
        }
        if let Some(group) = group {
            more.insert("kubernetes.io/mounterArgs.FsGroup".to_owned(), group.to_string());
        }
        Call::new(Command::Mount, [path, &self.options(more)])
    }
}

impl Record {
    /// Unmount the device.
    #[must_use]
    pub fn unmount_device(&self) -> Call {
        Call::new(Command::UnmountDevice, [&self.global])
    }

    /// Detach it from `node`.
    #[must_use]
    pub fn detach(&self, node: &str) -> Call {
        Call::new(Command::Detach, [&self.volume, node])
    }
}
