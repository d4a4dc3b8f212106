//! Texts of /proc that several parts of the system read. Linux: Documentation/filesystems/proc.rst, proc_pid_stat(5), fstab(5).
//!
//! In: the text of `meminfo`, `swaps`, `/proc/PID/{status,stat,mounts}`. Out: values. Invariant: total; a value that the text lacks is
//! `None`, and a line of another form is skipped. The mount table with its options (`mountinfo`) is the agent's alone:
//! `agent_volumes::mount_table`.
//!
//! Why no crate: `procfs-core` reads each file whole, and one line that it does not know hides the others.

/// An amount of `meminfo` or of a process's `status` (`<name>:   <n> kB`), bytes.
#[must_use]
pub fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Fields of a process's `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Field 3: `R`, `S`, `Z` and others.
    pub state: char,
    /// Field 4: the parent.
    pub parent: i32,
    /// Fields 14 and 15: time in user mode and in the kernel, clock ticks.
    pub cpu_ticks: u64,
    /// Field 22: the start after the machine's, clock ticks. It distinguishes a process from a later one with the
    /// same id.
    pub started_ticks: u64,
}

/// Reads a process's `stat`.
#[must_use]
pub fn process_stat(text: &str) -> Option<ProcessStat> {
    // The process chooses its name, which may hold blanks and brackets: fields count from after the last bracket.
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let user: u64 = fields.nth(9)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let started_ticks = fields.nth(6)?.parse().ok()?;
    Some(ProcessStat { state, parent, cpu_ticks: user.checked_add(system)?, started_ticks })
}

/// One line of `mounts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mounted<'a> {
    /// The device, or the name that the file system has instead.
    pub source: &'a str,
    /// Path of the mount point; blanks are octal.
    pub target: &'a str,
    /// Type of the file system.
    pub fstype: &'a str,
    options: &'a str,
}

impl Mounted<'_> {
    /// True if it is mounted with the option.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|has| has == option)
    }
}

/// Reads `mounts`. The last mount at a path is the visible one.
#[must_use]
pub fn mounts(text: &str) -> Vec<Mounted<'_>> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (source, target, fstype) = (fields.next()?, fields.next()?, fields.next()?);
            Some(Mounted { source, target, fstype, options: fields.next()? })
        })
        .collect()
}

/// Names of the devices and files in `swaps`.
pub fn swaps(text: &str) -> impl Iterator<Item = &str> {
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_bytes() {
        let status = "Name:\tagent\nVmRSS:\t    1832 kB\nVmRSSx:\t 7 kB\nRssAnon:\t  96 kB\n";
        assert_eq!(kilobytes(status, "VmRSS"), Some(1832 * 1024));
        assert_eq!(kilobytes(status, "RssAnon"), Some(96 * 1024));
        assert_eq!(kilobytes(status, "VmSwap"), None);
        assert_eq!(kilobytes("VmRSS:\n", "VmRSS"), None);
        assert_eq!(kilobytes("MemTotal:       16 kB\nMemFree: 1 kB\n", "MemTotal"), Some(16384));
        assert_eq!(kilobytes("MemTotalX: 16 kB\n", "MemTotal"), None);
        assert_eq!(kilobytes("MemTotal: 18446744073709551615 kB\n", "MemTotal"), None);
    }

    #[test]
    fn stat_is_read_after_the_name() {
        let stat = "7 (a ) b) S 3 7 7 0 -1 4194560 1 2 3 4 30 12 7 8 20 0 1 0 4711 9 9";
        let expected = ProcessStat { state: 'S', parent: 3, cpu_ticks: 42, started_ticks: 4711 };
        assert_eq!(process_stat(stat), Some(expected));
        assert_eq!((process_stat("7 (a) S 3"), process_stat("")), (None, None));
    }

    #[test]
    fn mounts_have_source_path_type_and_options() {
        let text = "/dev/vda6 /var ext4 rw,relatime 0 0\nnonsense\ntmpfs /run tmpfs rw 0 0\n";
        let table = mounts(text);
        assert_eq!(table.len(), 2);
        assert_eq!((table[0].source, table[0].target, table[0].fstype), ("/dev/vda6", "/var", "ext4"));
        assert!(table[0].has("rw") && table[0].has("relatime") && !table[0].has("rel"));
    }

    #[test]
    fn swaps_have_names() {
        let text = "Filename\tType\tSize\tUsed\tPriority\n/var/lib/orlop/swapfile file 65532 0 -2\n";
        assert_eq!(swaps(text).collect::<Vec<_>>(), ["/var/lib/orlop/swapfile"]);
        assert_eq!(swaps("Filename\tType\n").next(), None);
    }
}
