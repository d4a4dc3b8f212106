//! NodeConfig `update`: where releases come from, and when and how a node takes them. docs/reference/update.md is the operator's page.

use crate::duration::Duration;
use crate::field::{config_enum, config_struct};

const MINUTE_NS: i64 = 60 * 1_000_000_000;
const DAY_NS: i64 = 24 * 60 * MINUTE_NS;

config_struct! {
    /// Where releases come from, and what the node does with them.
    pub struct Update {
        /// `https://` URL of the directory with releases, or `oci://` with registry and repository; empty: none.
        source: String = String::new(), "source";
        /// Name of the channel.
        channel: String = "stable".to_owned(), "channel";
        /// What the node does by itself.
        policy: UpdatePolicy = UpdatePolicy::Manual, "policy";
        /// The one version that the node takes, in place of the channel's choice; empty: the channel's.
        version: String = String::new(), "version";
        /// What the node does with a drive that is labelled for updates.
        usb: UpdateDrives = UpdateDrives::Allow, "usb";
        /// When the node may reboot for an update, UTC; none: at any time.
        windows: Vec<RebootWindow> = Vec::new(), "windows";
        /// How the reboots of several nodes are kept apart.
        coordination: RebootCoordination = RebootCoordination::None, "coordination";
        /// The group of nodes whose reboots are kept apart.
        group: String = "default".to_owned(), "group";
        /// How pods leave before the reboot.
        drain: UpdateDrain = UpdateDrain::default(), "drain";
        /// How a version is tried.
        trial: UpdateTrial = UpdateTrial::default(), "trial";
    }
}

config_enum! {
    /// What a node does by itself with releases.
    pub enum UpdatePolicy {
        /// Nothing: a person asks.
        Manual = "manual",
        /// It writes them into the slot that does not run; nothing boots them.
        Stage = "stage",
        /// It writes them, and boots them on trial when it may.
        Automatic = "automatic",
    }
}

config_enum! {
    /// What a node does with a drive that is labelled for updates.
    pub enum UpdateDrives {
        /// It takes the release of the drive, if it is signed.
        Allow = "allow",
        /// Nothing.
        Ignore = "ignore",
    }
}

config_struct! {
    /// A time in each week.
    pub struct RebootWindow {
        /// On these days; none: on every day.
        days: Vec<WindowDay> = Vec::new(), "days";
        /// Time of the day at which it begins, UTC, `02:30`.
        start: String = String::new(), "start", required;
        /// Its length, minutes; it may last past midnight.
        minutes: u32 = 60, "minutes", required, range(1, 10_080);
    }
}

config_enum! {
    /// A day of the week.
    pub enum WindowDay {
        /// Monday.
        Monday = "mon",
        /// Tuesday.
        Tuesday = "tue",
        /// Wednesday.
        Wednesday = "wed",
        /// Thursday.
        Thursday = "thu",
        /// Friday.
        Friday = "fri",
        /// Saturday.
        Saturday = "sat",
        /// Sunday.
        Sunday = "sun",
    }
}

config_enum! {
    /// How the reboots of several nodes are kept apart.
    pub enum RebootCoordination {
        /// They are not.
        None = "none",
        /// By a ConfigMap that the nodes share.
        Shared = "shared",
        /// By an annotation of each Node.
        Permit = "permit",
    }
}

config_struct! {
    /// How pods leave before the reboot.
    pub struct UpdateDrain {
        /// The node is cordoned and its pods are evicted; false: the shutdown ends them.
        enabled: bool = true, "enabled";
        /// How long a PodDisruptionBudget is obeyed.
        timeout: Duration = Duration::from_mins(10), "timeout", range(0, DAY_NS);
        /// What follows then.
        on_timeout: DrainTimeout = DrainTimeout::Abort, "onTimeout";
    }
}

config_enum! {
    /// What follows when a budget is obeyed no longer.
    pub enum DrainTimeout {
        /// The update is put off.
        Abort = "abort",
        /// The node reboots, and the shutdown ends the pods.
        Continue = "continue",
    }
}

config_struct! {
    /// How a version is tried.
    pub struct UpdateTrial {
        /// From the boot to a node that is as good as before.
        deadline: Duration = Duration::from_mins(10), "deadline", range(MINUTE_NS, DAY_NS);
        /// As good as before without a break, before the version is committed.
        soak: Duration = Duration::from_mins(1), "soak", range(0, DAY_NS);
        /// Longest wait for a cluster that is away, from the boot.
        hold_max: Duration = Duration::from_mins(360), "holdMax", range(0, DAY_NS);
    }
}
