//! Fault plans: the faults that a seed turns on, and their frequencies.
//!
//! Swarm testing: every run enables a random subset, so that combinations which never meet in an everything-on run do
//! meet in some seed.

use crate::rng::Rng;

/// Faults of the world. Each chance is per mille of the named occasion; 0 turns the fault off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// An effect fails and changes nothing.
    pub error_before_apply: u64,
    /// An effect is applied, its answer is lost: the caller sees `DeadlineExceeded`.
    pub reply_lost: u64,
    /// The connection breaks during a call to the runtime: the caller sees `Interrupted` at once. Half of these calls are
    /// still applied, within the time that a cancelled call may take.
    pub connection_lost: u64,
    /// An effect takes up to this many extra milliseconds before it is applied.
    pub slow_ms_max: u64,
    /// The agent is killed right after issuing an effect (crash point 1: before apply).
    pub crash_before_apply: u64,
    /// The agent is killed after an effect was applied, before its answer (crash point 2).
    pub crash_before_ack: u64,
    /// The agent is killed right after an answer arrived, before it is processed (crash point 3).
    pub crash_before_process: u64,
    /// A call of a dead incarnation is still applied, at any time before its deadline.
    pub zombie_applies: u64,
    /// A hint of the event stream is lost.
    pub hint_lost: u64,
    /// A hint of the event stream arrives twice.
    pub hint_duplicated: u64,
    /// Per simulated second: the event stream breaks and comes back later.
    pub stream_drop: u64,
    /// Per simulated second: a random container is killed (137).
    pub container_killed: u64,
    /// Per simulated second: a random sandbox dies.
    pub sandbox_dies: u64,
    /// Per simulated second: the machine reboots.
    pub reboot: u64,
    /// Faults of the API server and of the network to it.
    pub api: ApiFaults,
}

/// Faults of the API server and of the network to it. Each chance is per mille of the named occasion; 0 turns the fault
/// off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiFaults {
    /// A call is answered with 429, 500, 503 or 504 and changes nothing.
    pub refused: u64,
    /// A call is applied; the answer is 500 or 504, or none comes.
    pub answer_lost: u64,
    /// A call never arrives; its caller waits until its time limit.
    pub call_lost: u64,
    /// A call is applied after its caller has given up.
    pub late: u64,
    /// A call takes up to this many extra milliseconds to arrive.
    pub slow_ms_max: u64,
    /// Per simulated second: nothing reaches the server for up to 90 s; watches may or may not survive it.
    pub partition: u64,
    /// Per simulated second: connections are dead. The agent notices this only when it closes them, or after 45 s.
    pub dead: u64,
    /// Per simulated second: a watch ends; it is resumed at its version.
    pub watch_closed: u64,
    /// Per simulated second: the server forgets its history; resumed watches get 410.
    pub history_lost: u64,
    /// A bookmark is lost.
    pub bookmark_lost: u64,
    /// The first list of an incarnation comes from a server that lags behind.
    pub stale_list: u64,
    /// Per simulated second: the server is restored to a state up to two minutes old, versions included.
    pub restored: u64,
    /// Number of changes that the server remembers; 0 for its default.
    pub window: usize,
}

impl Faults {
    /// A random subset with random strengths.
    #[must_use]
    pub fn from_rng(rng: &mut Rng) -> Faults {
        let mut some = |max: u64| if rng.chance(500) { rng.between(1, max) } else { 0 };
        Faults {
            error_before_apply: some(120),
            reply_lost: some(120),
            connection_lost: some(80),
            slow_ms_max: some(20_000),
            crash_before_apply: some(40),
            crash_before_ack: some(40),
            crash_before_process: some(40),
            zombie_applies: some(900),
            hint_lost: some(400),
            hint_duplicated: some(300),
            stream_drop: some(30),
            container_killed: some(60),
            sandbox_dies: some(30),
            reboot: some(8),
            api: ApiFaults::from_rng(rng),
        }
    }
}

impl ApiFaults {
    fn from_rng(rng: &mut Rng) -> ApiFaults {
        let window = if rng.chance(300) { 20 } else { 0 };
        let mut some = |max: u64| if rng.chance(500) { rng.between(1, max) } else { 0 };
        ApiFaults {
            refused: some(200),
            answer_lost: some(200),
            call_lost: some(100),
            late: some(60),
            slow_ms_max: some(8_000),
            partition: some(20),
            dead: some(10),
            watch_closed: some(60),
            history_lost: some(40),
            bookmark_lost: some(1_000),
            stale_list: some(500),
            restored: some(5),
            window,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_differ_and_replay() {
        let plan = |seed| Faults::from_rng(&mut Rng::new(seed));
        assert_eq!(plan(3), plan(3));
        let distinct: std::collections::BTreeSet<String> =
            (0..20).map(|s| format!("{:?}", plan(s))).collect();
        assert!(distinct.len() > 15);
    }
}
