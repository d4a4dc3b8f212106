//! The conditions that the agent sets on its Node, and which of their states a person should look at.
//!
//! In: nothing. Out: a table; docs/reference/conditions.md is made from it. Invariant: each condition has a section of
//! docs/runbooks/node-conditions.md (a test compares).

/// A condition of the Node in the state that needs a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionRunbook {
    /// `type` of the condition, and heading of its section.
    pub kind: &'static str,
    /// The `status` that needs a look.
    pub bad: &'static str,
    /// The `reason`s with that status.
    pub reasons: &'static str,
    /// `upstream`, or `own` for a condition that upstream does not have.
    pub origin: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// All of them.
pub const CONDITIONS: &[ConditionRunbook] = &[
    ConditionRunbook {
        kind: "Ready",
        bad: "False",
        reasons: "KubeletNotReady",
        origin: "upstream",
        meaning: "the runtime, PLEG, the pod network, CSINode or the shutdown says no; the message has the words of each",
    },
    ConditionRunbook {
        kind: "MemoryPressure",
        bad: "True",
        reasons: "KubeletHasInsufficientMemory",
        origin: "upstream",
        meaning: "free memory is below an eviction threshold",
    },
    ConditionRunbook {
        kind: "DiskPressure",
        bad: "True",
        reasons: "KubeletHasDiskPressure",
        origin: "upstream",
        meaning: "free disk space or inodes are below an eviction threshold",
    },
    ConditionRunbook {
        kind: "PIDPressure",
        bad: "True",
        reasons: "KubeletHasInsufficientPID",
        origin: "upstream",
        meaning: "free process ids are below an eviction threshold",
    },
    ConditionRunbook {
        kind: "UncleanShutdown",
        bad: "True",
        reasons: "KernelPanic, WatchdogReset, ShutdownNotAwaited, ShutdownCutShort, PowerLossOrReset",
        origin: "own",
        meaning: "the last boot did not end in order; with False and PodsNotEnded it did, and pods were cut off",
    },
    ConditionRunbook {
        kind: "ShutdownNotDelayed",
        bad: "True",
        reasons: "NoDelayLock",
        origin: "own",
        meaning: "a stop of the machine now would not wait for the node's pods",
    },
    ConditionRunbook {
        kind: "UpdateProgressing",
        bad: "True",
        reasons: "WaitingForWindow, WaitingForPermit, Draining, Rebooting, OnTrial, Examining, Finishing",
        origin: "own",
        meaning: "an update is under way; the message names the version, and what it waits for",
    },
    ConditionRunbook {
        kind: "UpdateFailed",
        bad: "True",
        reasons: "UpdateFailed",
        origin: "own",
        meaning: "an update failed and the old version runs; the message names the check",
    },
];

#[cfg(test)]
mod tests {
    use super::super::conditions::PRESSURES;
    use super::*;
    use crate::node_shutdown::{NO_DELAY, UNCLEAN_SHUTDOWN};
    use crate::node_update::report::{FAILED, PROGRESSING};

    const PAGE: &str = include_str!("../../../../docs/runbooks/node-conditions.md");

    #[test]
    fn each_condition_has_a_row() {
        let pressures = PRESSURES.map(|pressure| pressure.kind);
        let own = [UNCLEAN_SHUTDOWN, NO_DELAY, PROGRESSING, FAILED, "Ready"];
        let kinds: Vec<&str> = CONDITIONS.iter().map(|row| row.kind).collect();
        for kind in pressures.iter().chain(&own) {
            assert!(kinds.contains(kind), "{kind}");
        }
        assert_eq!(kinds.len(), pressures.len() + own.len());
        for pressure in PRESSURES {
            let row = CONDITIONS.iter().find(|row| row.kind == pressure.kind).unwrap();
            assert_eq!(row.reasons, pressure.present[0]);
        }
    }

    #[test]
    fn each_condition_has_its_section_and_each_section_its_condition() {
        let sections: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let kinds: Vec<&str> = CONDITIONS.iter().map(|row| row.kind).collect();
        assert_eq!(sections, kinds);
        for section in PAGE.split("\n## ").skip(1) {
            for part in ["**Means:**", "**Check:**", "**Fix:**"] {
                assert!(section.contains(part), "{part} is missing in {section}");
            }
        }
    }
}
