//! The clock of a node of a cluster: when the API server is asked for the time, when the clock is set to that, and whether
//! dates of certificates may be judged by it.
//!
//! # For the shell
//! Send [`ClockEvent::Tick`] at the deadline, the first one at once; [`ClockEvent::Synchronized`] whenever the NTP client
//! begins or ceases to follow a server; [`ClockEvent::Trouble`] whenever the problems with the cluster change.
//! - `Look`: verify the API server in everything but the dates of its certificates, without credentials, and answer with
//!   [`ClockEvent::Looked`] exactly once, within a bounded time.
//! - `Set`: have the clock set so that it shows `wall` at the time of the step. The machine sees by itself that it was set.
//! - `RefuseNtp`: stop the NTP client until the next boot; `Synchronized(false)` says that it has ended.
//! - `Verified`: from now on the dates of the node's certificates count (true), or they do not count yet (false).
//! - `Show`: the sentence for the operator changed; it is empty when nothing needs attention.
//!
//! # Rules
//! - A right clock costs nothing before [`PATIENCE`]. Then the machine takes one look, so that an NTP server that lies is
//!   found. A problem with the cluster causes a look at once.
//! - Without NTP the API server's `Date` counts, at once if the clock is certainly wrong or a problem is there, else after
//!   [`PATIENCE`]. The sentence stays until NTP answers. A clock is certainly wrong outside of the chain's dates, and before
//!   the pinned authority or the node's own certificate begins.
//! - With NTP the clock is NTP's, unless both differ by more than [`DISPUTE`]: certificates and tokens are judged by the
//!   API server's clock, so the machine follows that one, refuses NTP, and says so.
//! - The clock is never set to a time before the image was built, nor before the server's chain begins. A chain that ended
//!   before the image, the pinned authority or the node's own certificate began proves nothing: an attacker may have found
//!   the key of an old certificate.
//!
//! Invariants: at most one look and one setting under way; pauses between looks grow to [`RETRY`]'s maximum; whatever
//! happens, dates count after [`DATES_COUNT_AFTER`]. See docs/reference/time.md. Upstream has no counterpart: a kubelet trusts its host's
//! clock.

mod machine;

#[cfg(test)]
mod tests;

use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::certificates::ServerClock;
use agent_types::time::Wall;

pub use machine::NodeClock;

/// NTP has this long to answer before the API server's clock is taken.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// NTP and the API server may differ by this much; beyond it one of them is wrong, not inexact.
pub const DISPUTE: Duration = Duration::from_secs(24 * 3600);
/// The clock may differ from the API server's by this much: `Date` has whole seconds.
pub const TOLERANCE: Duration = Duration::from_secs(1);
/// Without NTP the API server is asked again after this: a clock of a board drifts by 0.2 s an hour.
pub const PERIOD: Duration = Duration::from_secs(3600);
/// From then on dates count even if no server answers: no wait is unbounded.
pub const DATES_COUNT_AFTER: Duration = Duration::from_secs(300);
/// Pauses after looks that failed.
pub const RETRY: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(8));

/// What the machine reacts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClockEvent {
    /// The deadline has passed.
    Tick,
    /// Whether the NTP client follows a server.
    Synchronized(bool),
    /// The problems with the cluster changed: whether there is one.
    Trouble(bool),
    /// The answer to [`ClockAction::Look`].
    Looked {
        /// Latest `notBefore` of the authorities that the node pins; `None` if they are not known.
        pinned: Option<Wall>,
        /// `notBefore` of the node's own certificate; `None` without one.
        own: Option<Wall>,
        /// What the server proved and said, or why it could not be asked.
        result: Result<ServerClock, String>,
    },
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClockAction {
    /// Ask the API server; answer [`ClockEvent::Looked`].
    Look,
    /// Set the clock: it shows this at the time of the step.
    Set(Wall),
    /// Stop the NTP client until the next boot.
    RefuseNtp,
    /// Whether dates of the node's certificates count.
    Verified(bool),
    /// One sentence for the operator, with the remedy; empty if nothing needs attention.
    Show(String),
    /// For the log.
    Fact(ClockFact),
}

/// What happened, sent once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFact {
    /// The clock was set.
    Set {
        /// What it showed.
        from: Wall,
        /// What it shows.
        to: Wall,
    },
}
