//! Facts of a scrape that are in no file of the kernel: answers of system calls and of systemd, and the agent's own.

use agent_types::time::Wall;

use super::filesystem::NodeMount;

/// The facts of one scrape. A fact that could not be had is `None`, and its families are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// The node's clock.
    pub now: Wall,
    /// Size of a page of memory, bytes.
    pub page_bytes: u64,
    /// `uname(2)`.
    pub uname: Option<UnameFacts>,
    /// `adjtimex(2)`.
    pub timex: Option<TimexReading>,
    /// The node's own file systems with their `statfs(2)`.
    pub filesystems: Option<Vec<MountUsage>>,
    /// Units of systemd.
    pub units: Option<SystemUnits>,
    /// Every part of the node that can have a problem, and whether it has one.
    pub problems: Vec<(&'static str, bool)>,
}

/// What `uname(2)` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnameFacts {
    /// `Linux`.
    pub sysname: String,
    /// `6.12.48`.
    pub release: String,
    /// When and how the kernel was built.
    pub version: String,
    /// `x86_64`.
    pub machine: String,
    /// The host's name.
    pub nodename: String,
    /// The host's NIS domain.
    pub domainname: String,
}

/// What `adjtimex(2)` answers, in the kernel's units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimexReading {
    /// The state of the clock is not `TIME_ERROR`.
    pub synchronized: bool,
    /// Offset of the clock, microseconds, or nanoseconds with `STA_NANO`.
    pub offset: i64,
    /// Correction of the frequency, ppm with 16 bits of fraction.
    pub freq: i64,
    /// Largest error, microseconds.
    pub maxerror: i64,
    /// Estimated error, microseconds.
    pub esterror: i64,
    /// Bits of the state.
    pub status: i64,
    /// Constant of the control loop.
    pub constant: i64,
    /// Between two ticks, microseconds.
    pub tick: i64,
    /// Frequency of the pulse per second, ppm with 16 bits of fraction.
    pub ppsfreq: i64,
    /// Its jitter, in the unit of `offset`.
    pub jitter: i64,
    /// Duration of its interval, seconds as an exponent of 2.
    pub shift: i64,
    /// Its stability, ppm with 16 bits of fraction.
    pub stabil: i64,
    /// How often its jitter was too large.
    pub jitcnt: i64,
    /// Number of its calibrations.
    pub calcnt: i64,
    /// How many of them failed.
    pub errcnt: i64,
    /// How often it was not steady.
    pub stbcnt: i64,
    /// TAI without UTC, seconds.
    pub tai: i64,
}

/// A file system and its use.
#[derive(Clone, Debug, PartialEq)]
pub struct MountUsage {
    /// The mount.
    pub mount: NodeMount,
    /// Its use, or the reason why there is none, for the label `device_error`.
    pub usage: Result<FilesystemUsage, String>,
}

/// What `statfs(2)` answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Size, bytes.
    pub size_bytes: u64,
    /// Free, bytes.
    pub free_bytes: u64,
    /// Free for others than root, bytes.
    pub available_bytes: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
}

/// What systemd says of itself and of the node's units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemUnits {
    /// systemd's own state is `running`.
    pub running: bool,
    /// How many units are in each state, by the state's name; a state that no unit is in may be absent.
    pub counts: Vec<(String, u32)>,
    /// The units that are shown.
    pub units: Vec<SystemUnit>,
}

/// One unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemUnit {
    /// `kubelet.service`.
    pub name: String,
    /// `active`, `failed`, …
    pub active_state: String,
    /// `Type=` of a service; empty for units of other kinds.
    pub service_type: String,
    /// How often systemd started the service again; `None` for units of other kinds.
    pub restarts: Option<u32>,
}
