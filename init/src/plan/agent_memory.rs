//! Limits of the agent's memory on a small machine. The unit's are for machines of 2 GiB and more: where they are a large part of
//! the machine or more than it has, a leak of the agent would cost the pods. The text of /proc/meminfo in, a drop-in of the
//! agent's unit out. docs/internals/image.md has the reasons.
//!
//! Invariant: a larger machine never has a smaller limit, and no machine a larger one than the unit's.

use orlop_config::procfs;

/// Drop-in of the agent's unit.
pub const DROP_IN: &str = "/run/systemd/system/kubelet.service.d/10-orlop-memory.conf";

const MIB: u64 = 1 << 20;
/// The unit's limits, MiB.
const UNIT: AgentMemory = AgentMemory { high_mib: 512, max_mib: 1024 };
/// The parts of the machine's memory that a small machine's limits are.
const HIGH_SHARE: u64 = 4;
const MAX_SHARE: u64 = 2;
/// The smallest limits, MiB. The agent has 16 MiB with 100 pods, 40 with 300, and at most 103 in a flood of strangers. A pod's shim
/// takes at least 5 MiB: whatever pods fit into a machine, the agent needs less for them than its part.
const LEAST: AgentMemory = AgentMemory { high_mib: 64, max_mib: 128 };

/// The limits of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentMemory {
    /// `MemoryHigh=`, MiB: above it the kernel takes back caches and slows the agent down.
    pub high_mib: u64,
    /// `MemoryMax=`, MiB: at it a process of the agent's group is killed.
    pub max_mib: u64,
}

/// The limits of a machine with so many bytes of memory.
#[must_use]
pub fn limits(total: u64) -> AgentMemory {
    let part = |share: u64, least: u64, most: u64| (total / MIB / share).clamp(least, most);
    AgentMemory {
        high_mib: part(HIGH_SHARE, LEAST.high_mib, UNIT.high_mib),
        max_mib: part(MAX_SHARE, LEAST.max_mib, UNIT.max_mib),
    }
}

/// The drop-in's text for a machine with this `meminfo`; `None` if the unit's limits are right or `meminfo` has no total.
#[must_use]
pub fn drop_in(meminfo: &str) -> Option<String> {
    let limits = limits(procfs::kilobytes(meminfo, "MemTotal")?);
    let AgentMemory { high_mib, max_mib } = limits;
    (limits != UNIT).then(|| format!("[Service]\nMemoryHigh={high_mib}M\nMemoryMax={max_mib}M\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_gives_the_agent_a_part_of_it() {
        // Memory of the machine in MiB; MemoryHigh, MemoryMax in MiB.
        let table = [
            (0, 64, 128),
            (200, 64, 128),
            (440, 110, 220),
            (976, 244, 488),
            (2047, 511, 1023),
            (2048, 512, 1024),
            (1 << 20, 512, 1024),
        ];
        for (mib, high_mib, max_mib) in table {
            assert_eq!(limits(mib * MIB), AgentMemory { high_mib, max_mib }, "{mib} MiB");
        }
        assert_eq!(limits(u64::MAX), UNIT);
    }

    #[test]
    fn a_larger_machine_never_has_smaller_limits() {
        let all: Vec<AgentMemory> = (0..4096).map(|mib| limits(mib * MIB)).collect();
        assert!(
            all.is_sorted_by_key(|limits| limits.high_mib) && all.is_sorted_by_key(|limits| limits.max_mib)
        );
        assert!(all.iter().all(|limits| limits.high_mib < limits.max_mib));
    }

    #[test]
    fn the_drop_in_is_for_machines_that_the_units_limits_do_not_fit() {
        let of = |mib: u64| drop_in(&format!("MemTotal:       {} kB\nMemFree: 1 kB\n", mib * 1024));
        assert_eq!(of(460).as_deref(), Some("[Service]\nMemoryHigh=115M\nMemoryMax=230M\n"));
        assert_eq!(of(2048), None);
        for bad in ["", "MemFree: 1 kB\n", "MemTotal: x kB\n"] {
            assert_eq!(drop_in(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_units_limits_are_these() {
        let unit = include_str!("../../../image/rootfs/common/usr/lib/systemd/system/kubelet.service");
        for line in [format!("MemoryHigh={}M", UNIT.high_mib), format!("MemoryMax={}G", UNIT.max_mib / 1024)]
        {
            assert!(unit.lines().any(|found| found == line), "{line}");
        }
    }
}
