//! Fault plans: which of the world's faults a seed turns on, and how often each strikes.
//!
//! Swarm testing: every run enables a random subset, so that combinations which never meet in an
//! everything-on run do meet in some seed.

use crate::rng::Rng;

/// Chances are per mille of the occasion named; 0 is off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// An effect answers an error and changes nothing.
    pub error_before_apply: u64,
    /// An effect is applied, its answer is lost: the caller sees `DeadlineExceeded`.
    pub reply_lost: u64,
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
}

impl Faults {
    /// A random subset with random strengths.
    #[must_use]
    pub fn from_rng(rng: &mut Rng) -> Faults {
        let mut some = |max: u64| if rng.chance(500) { rng.between(1, max) } else { 0 };
        Faults {
            error_before_apply: some(120),
            reply_lost: some(120),
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
