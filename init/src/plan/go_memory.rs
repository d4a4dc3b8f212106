//! Memory settings of containerd's Go runtime, from the machine's size: GOGC, how much the heap may grow between two
//! collections, and GOMEMLIMIT, the size above which Go collects more often. The text of /proc/meminfo in, the text of an
//! environment file out. docs/decisions/containerd.md has the reasons and the figures.
//!
//! Invariant: the limit is well above what containerd needs for the pods that such a machine can run. Near the limit Go
//! spends up to half of its processor time on collections (Go's guide to the garbage collector).

use orlop_config::procfs;

/// Environment file of containerd's unit.
pub const FILE: &str = "/run/orlop/containerd.env";

const MIB: u64 = 1 << 20;
/// GOGC of machines with less memory than this, bytes, the smallest first. Larger ones have Go's default of 100: collections
/// at containerd's start cost a tenth (75) and a quarter (50) of its processor time there.
const GOGC: [(u64, u32); 2] = [(768 * MIB, 50), (4096 * MIB, 75)];
/// The part of the machine's memory that is containerd's limit. A pod takes at least 5 MiB for its shim and about 1 MiB of
/// containerd's: the machine has no room for pods that need the limit.
const LIMIT_SHARE: u64 = 8;
/// The smallest limit: several times what containerd needs without pods.
const LIMIT_MIN: u64 = 64 * MIB;

/// The settings of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoMemory {
    /// GOGC in percent; `None` is Go's default.
    pub gogc: Option<u32>,
    /// GOMEMLIMIT, MiB.
    pub limit_mib: u64,
}

/// The settings for a machine with so many bytes of memory.
#[must_use]
pub fn settings(total: u64) -> GoMemory {
    let gogc = GOGC.iter().find(|(below, _)| total < *below).map(|(_, percent)| *percent);
    GoMemory { gogc, limit_mib: (total / LIMIT_SHARE).max(LIMIT_MIN) / MIB }
}

/// The environment file's text for a machine with this `meminfo`; `None` if that has no total.
#[must_use]
pub fn environment(meminfo: &str) -> Option<String> {
    let GoMemory { gogc, limit_mib } = settings(procfs::kilobytes(meminfo, "MemTotal")?);
    let gogc = gogc.map_or(String::new(), |percent| format!("GOGC={percent}\n"));
    Some(format!("{gogc}GOMEMLIMIT={limit_mib}MiB\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_collects_more_often() {
        // Memory of the machine in MiB; GOGC, GOMEMLIMIT in MiB.
        let table = [
            (0, Some(50), 64),
            (440, Some(50), 64),
            (512, Some(50), 64),
            (767, Some(50), 95),
            (768, Some(75), 96),
            (976, Some(75), 122),
            (4095, Some(75), 511),
            (4096, None, 512),
            (1 << 20, None, 131_072),
        ];
        for (mib, gogc, limit_mib) in table {
            assert_eq!(settings(mib * MIB), GoMemory { gogc, limit_mib }, "{mib} MiB");
        }
        assert_eq!(settings(u64::MAX).gogc, None);
    }

    #[test]
    fn a_larger_machine_never_has_a_smaller_limit() {
        let limits: Vec<u64> = (0..40).map(|power| settings(MIB << power).limit_mib).collect();
        assert!(limits.is_sorted(), "{limits:?}");
        assert!(limits.iter().all(|limit| *limit >= LIMIT_MIN / MIB));
    }

    #[test]
    fn containerds_unit_reads_the_file() {
        let unit = include_str!("../../../image/rootfs/common/usr/lib/systemd/system/containerd.service");
        assert!(unit.lines().any(|line| line == format!("EnvironmentFile=-{FILE}")), "{unit}");
    }

    #[test]
    fn the_file_is_of_systemds_form() {
        let of = |kib: u64| environment(&format!("MemTotal:       {kib} kB\nMemFree: 1 kB\n"));
        assert_eq!(of(1_000_000).as_deref(), Some("GOGC=75\nGOMEMLIMIT=122MiB\n"));
        assert_eq!(of(16 << 20).as_deref(), Some("GOMEMLIMIT=2048MiB\n"));
        for bad in ["", "MemFree: 1 kB\n", "MemTotal: x kB\n"] {
            assert_eq!(environment(bad), None, "{bad}");
        }
    }
}
