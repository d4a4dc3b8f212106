//! Texts of sysfs and procfs about processors and NUMA nodes.
//!
//! In: the text of one file, or a name. Out: a value; `None`: the text has another form. Upstream: cadvisor, utils/sysfs and
//! utils/sysinfo.

use std::collections::{BTreeMap, BTreeSet};

/// The number in a name such as `cpu12`.
pub(super) fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// `MemTotal` of `Node 0 MemTotal:  32817192 kB`, bytes.
pub(super) fn mem_total(meminfo: &str) -> Option<u64> {
    let (_, rest) = meminfo.split_once("MemTotal:")?;
    let (number, _) = rest.trim_start().split_once(" kB")?;
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// Size of a page, bytes, of the directory `hugepages-2048kB`.
pub(super) fn page_bytes(directory: &str) -> Option<u64> {
    let kilobytes = directory.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    kilobytes.parse::<u64>().ok()?.checked_mul(1024)
}

/// Distances by node id. The file has one column for each node that the kernel has online, ascending.
pub(super) fn distances(row: &str, nodes: &BTreeSet<u32>) -> Option<BTreeMap<u32, u64>> {
    let columns: Option<Vec<u64>> = row.split(' ').map(|column| column.parse().ok()).collect();
    Some(nodes.iter().copied().zip(columns?).collect())
}

/// Level of a cache, or another plain number.
pub(super) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// `32768K`.
pub(super) fn kilobytes(size: &str) -> Option<u64> {
    size.strip_suffix('K')?.parse().ok()
}

/// The number of processors in a map such as `ff,000000ff`.
pub(super) fn mapped(map: &str) -> Option<usize> {
    let words = map.split(',').map(|word| u64::from_str_radix(word.trim(), 16).ok());
    words.map(|word| word.and_then(|word| usize::try_from(word.count_ones()).ok())).sum()
}

/// Physical packages in `/proc/cpuinfo`; 0 on architectures whose file does not have them.
pub(super) fn packages(cpuinfo: &str) -> usize {
    let id = |line: &str| -> Option<u64> {
        let (name, value) = line.split_once(':')?;
        (name.trim_end() == "physical id").then(|| value.trim().parse().ok())?
    };
    cpuinfo.lines().filter_map(id).collect::<BTreeSet<u64>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, number) in [("cpu12", Some(12)), ("cpu", None), ("cpufreq", None), ("cpu1x", None)] {
            assert_eq!(numbered(name, "cpu"), number, "{name}");
        }
        assert_eq!(page_bytes("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(page_bytes("hugepages-kB"), None);
    }

    #[test]
    fn amounts() {
        assert_eq!(mem_total("Node 0 MemTotal:       16 kB\nNode 0 MemFree: 1 kB"), Some(16384));
        assert_eq!(mem_total("Node 0 MemTotal: 16"), None);
        assert_eq!(kilobytes("32768K"), Some(32768));
        assert_eq!(kilobytes("32M"), None);
        assert_eq!((mapped("ff,000000ff"), mapped("00000001"), mapped("x")), (Some(16), Some(1), None));
    }

    #[test]
    fn columns_of_distances_are_the_nodes_in_order() {
        let nodes = BTreeSet::from([0, 2]);
        assert_eq!(distances("10 21", &nodes), Some(BTreeMap::from([(0, 10), (2, 21)])));
        assert_eq!(distances("10  21", &nodes), None);
        assert_eq!(distances("", &nodes), None);
    }

    #[test]
    fn packages_are_counted_once() {
        let cpuinfo = "processor\t: 0\nphysical id\t: 0\nsiblings\t: 2\n\nprocessor\t: 1\nphysical id\t: 0\n";
        assert_eq!(packages(cpuinfo), 1);
        assert_eq!(packages("processor\t: 0\nBogoMIPS\t: 50.00\n"), 0);
    }
}
