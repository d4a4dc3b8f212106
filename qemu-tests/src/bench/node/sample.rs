//! What the kernel says about processes, memory and disks of a machine at one moment.
//!
//! In: lines `FILE:LINE` of files in /proc and /sys, as `grep -H` writes them in a guest ([`GATHER`]), or as
//! [`read_below`] does for a native node. Out: [`NodeSample`]. Invariant: parsing is total; a line of another form is
//! skipped, and what the lines lack is `None` or absent. Linux: Documentation/filesystems/proc.rst,
//! Documentation/admin-guide/iostats.rst, Documentation/admin-guide/cgroup-v2.rst.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use orlop_config::procfs;

/// Shell command that prints the lines, the machine's clock first and last. Few programs are started: under emulation each
/// costs a tenth of a second.
pub(in crate::bench) const GATHER: &str = "(cd /proc; \
    grep -sH '^cpu ' stat; grep -sH '' uptime; \
    grep -sH '' [0-9]*/stat [0-9]*/cgroup; \
    grep -sH -e '^Pss:' -e '^Pss_Shmem:' [0-9]*/smaps_rollup; \
    grep -sH '^write_bytes:' [0-9]*/io; \
    grep -sH '' meminfo diskstats /sys/fs/cgroup/cgroup.stat \
    /sys/module/dm_bufio/parameters/current_allocated_bytes; \
    grep -sH '^cpu ' stat; grep -sH '' uptime)";

/// Files of a process that the lines are of.
const OF_PROCESS: [&str; 3] = ["cgroup", "smaps_rollup", "io"];

/// One process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProcessSample {
    /// Its parent.
    pub(super) parent: i32,
    /// Its name, at most 15 bytes.
    pub(super) name: String,
    /// Its start, clock ticks of the machine's life: distinguishes it from a later one with the same id.
    pub(super) started_ticks: u64,
    /// Its processor time, clock ticks.
    pub(super) ticks: u64,
    /// That of the children that it has reaped.
    pub(super) reaped_ticks: u64,
    /// Its lines of `cgroup`; none if it ended after its `stat` was read.
    pub(super) cgroups: String,
    /// Its memory with its share of shared pages, KiB. Kernel threads have none.
    pub(super) pss_kib: Option<u64>,
    /// The part of it that is in tmpfs files or shared without a file: `meminfo` counts these pages, too. KiB.
    pub(super) pss_shmem_kib: Option<u64>,
    /// Bytes that it, and the children that it has reaped, have made the kernel write to disks.
    pub(super) written_bytes: Option<u64>,
}

/// The machine's time, and how busy it was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MachineClock {
    /// Its age, seconds.
    pub(super) uptime_s: Option<f64>,
    /// Processor time of all processors in user mode, kernel and interrupts, clock ticks.
    pub(super) busy_ticks: Option<u64>,
}

/// A machine, or the processes of a native node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeSample {
    /// By their ids.
    pub(super) processes: BTreeMap<i32, ProcessSample>,
    /// When the sample began: the times of the processes are read first.
    pub(super) begin: MachineClock,
    /// When it ended: under emulation a sample takes seconds of processor time.
    pub(super) end: MachineClock,
    /// `meminfo`, KiB.
    pub(super) meminfo: BTreeMap<String, u64>,
    /// Sectors of 512 bytes that were written, by block device.
    pub(super) written_sectors: BTreeMap<String, u64>,
    /// Cgroups below the root.
    pub(super) cgroups: Option<u64>,
    /// Removed ones that still hold memory.
    pub(super) dying_cgroups: Option<u64>,
    /// Blocks of hashes that dm-verity keeps, bytes.
    pub(super) verity_bytes: Option<u64>,
}

/// Reads the lines.
pub(super) fn parse(text: &str) -> NodeSample {
    let mut sample = NodeSample::default();
    for line in text.lines() {
        let Some((file, line)) = line.split_once(':') else { continue };
        if let Some((pid, file)) = file.split_once('/')
            && let Ok(pid) = pid.parse::<i32>()
        {
            sample.processes.entry(pid).or_default().take(file, line);
        } else {
            sample.take(file, line);
        }
    }
    // One that ended between two of the files.
    sample.processes.retain(|_, process| !process.name.is_empty());
    sample
}

/// The lines of all processes below `root` in the tree of processes, `root` not among them, and of the machine's age.
pub(super) fn read_below(root: i32) -> String {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut uptime = String::new();
    lines_of("uptime", &mut uptime);
    let mut stats = String::new();
    pids.for_each(|pid| lines_of(&format!("{pid}/stat"), &mut stats));
    let all = parse(&stats);
    let below = all.below(root);
    let is_below = |line: &&str| {
        let pid = line.split_once('/').and_then(|(pid, _)| pid.parse::<i32>().ok());
        pid.is_some_and(|pid| below.contains(&pid))
    };
    let mut text = uptime;
    text.extend(stats.lines().filter(is_below).map(|line| format!("{line}\n")));
    for pid in &below {
        OF_PROCESS.iter().for_each(|file| lines_of(&format!("{pid}/{file}"), &mut text));
    }
    lines_of("uptime", &mut text);
    text
}

/// Appends the lines of a file of /proc; none if its process has ended.
fn lines_of(file: &str, text: &mut String) {
    let content = fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
    for line in content.lines() {
        let _ = writeln!(text, "{file}:{line}");
    }
}

impl ProcessSample {
    fn take(&mut self, file: &str, line: &str) {
        match file {
            "stat" => _ = self.take_stat(line),
            "cgroup" => {
                self.cgroups.push_str(line);
                self.cgroups.push('\n');
            }
            "smaps_rollup" => {
                let kib = |name: &str| procfs::kilobytes(line, name).map(|bytes| bytes / 1024);
                self.pss_kib = self.pss_kib.or(kib("Pss"));
                self.pss_shmem_kib = self.pss_shmem_kib.or(kib("Pss_Shmem"));
            }
            "io" => {
                let bytes = line.strip_prefix("write_bytes:").and_then(|bytes| bytes.trim().parse().ok());
                self.written_bytes = self.written_bytes.or(bytes);
            }
            _ => {}
        }
    }

    fn take_stat(&mut self, line: &str) -> Option<()> {
        let stat = procfs::process_stat(line)?;
        let (before, after) = line.rsplit_once(')')?;
        let reaped = after.split_whitespace().skip(13).take(2);
        self.reaped_ticks = reaped.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        before.split_once('(')?.1.clone_into(&mut self.name);
        (self.parent, self.ticks, self.started_ticks) = (stat.parent, stat.cpu_ticks, stat.started_ticks);
        Some(())
    }
}

impl NodeSample {
    fn take(&mut self, file: &str, line: &str) {
        let mut words = line.split_whitespace();
        match file {
            "uptime" => {
                self.end.uptime_s = words.next().and_then(|seconds| seconds.parse().ok());
                self.begin.uptime_s = self.begin.uptime_s.or(self.end.uptime_s);
            }
            "stat" => {
                // user nice system idle iowait irq softirq
                let ticks: Vec<u64> = words.skip(1).take(7).filter_map(|ticks| ticks.parse().ok()).collect();
                if let [user, nice, system, _, _, interrupts, soft] = ticks[..] {
                    self.end.busy_ticks = Some(user + nice + system + interrupts + soft);
                    self.begin.busy_ticks = self.begin.busy_ticks.or(self.end.busy_ticks);
                }
            }
            "meminfo" => {
                let name = words.next().and_then(|name| name.strip_suffix(':'));
                if let (Some(name), Some(Ok(kib))) = (name, words.next().map(str::parse::<u64>)) {
                    self.meminfo.insert(name.to_owned(), kib);
                }
            }
            "diskstats" => {
                let device = words.nth(2);
                if let (Some(device), Some(Ok(sectors))) = (device, words.nth(6).map(str::parse::<u64>)) {
                    self.written_sectors.insert(device.to_owned(), sectors);
                }
            }
            "/sys/fs/cgroup/cgroup.stat" => {
                let (name, number) = (words.next(), words.next().and_then(|number| number.parse().ok()));
                match name {
                    Some("nr_descendants") => self.cgroups = number,
                    Some("nr_dying_descendants") => self.dying_cgroups = number,
                    _ => {}
                }
            }
            "/sys/module/dm_bufio/parameters/current_allocated_bytes" => {
                self.verity_bytes = words.next().and_then(|bytes| bytes.parse().ok());
            }
            _ => {}
        }
    }

    fn below(&self, root: i32) -> BTreeSet<i32> {
        let mut found = BTreeSet::from([root]);
        loop {
            let more: Vec<i32> = self
                .processes
                .iter()
                .filter(|(pid, process)| !found.contains(*pid) && found.contains(&process.parent))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                break;
            }
            found.extend(more);
        }
        found.remove(&root);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_gives_its_part() {
        let text = "12/stat:12 (a b) c) S 1 12 12 0 -1 4194560 100 0 0 0 30 12 200 300 20 0 5 0 1234 1 2 3\n\
            12/cgroup:0::/system.slice/a.service\n\
            12/smaps_rollup:Pss:                 20480 kB\n\
            12/smaps_rollup:Pss_Anon:             9000 kB\n\
            12/smaps_rollup:Pss_Shmem:             480 kB\n\
            12/io:write_bytes: 4096\n\
            13/cgroup:0::/\n\
            stat:cpu  10 1 20 1000 5 2 3 0 0 0\n\
            meminfo:MemTotal:        1000000 kB\n\
            meminfo:HugePages_Total:       0\n\
            diskstats: 254       0 vda 1 2 3 4 5 6 70 8 0 9 10 0 0 0 0 0 0\n\
            uptime:12.50 40.00\n\
            uptime:13.00 40.00\n\
            stat:cpu  12 1 20 1000 5 2 3 0 0 0\n\
            /sys/fs/cgroup/cgroup.stat:nr_descendants 40\n\
            /sys/fs/cgroup/cgroup.stat:nr_subsys_cpu 7\n\
            /sys/fs/cgroup/cgroup.stat:nr_dying_descendants 2\n\
            /sys/module/dm_bufio/parameters/current_allocated_bytes:1048576\n";
        let sample = parse(text);
        let process = ProcessSample {
            parent: 1,
            name: "a b) c".into(),
            started_ticks: 1234,
            ticks: 42,
            reaped_ticks: 500,
            cgroups: "0::/system.slice/a.service\n".into(),
            pss_kib: Some(20480),
            pss_shmem_kib: Some(480),
            written_bytes: Some(4096),
        };
        let want = NodeSample {
            processes: BTreeMap::from([(12, process)]),
            begin: MachineClock { uptime_s: Some(12.5), busy_ticks: Some(36) },
            end: MachineClock { uptime_s: Some(13.0), busy_ticks: Some(38) },
            meminfo: BTreeMap::from([("MemTotal".into(), 1_000_000), ("HugePages_Total".into(), 0)]),
            written_sectors: BTreeMap::from([("vda".into(), 70)]),
            cgroups: Some(40),
            dying_cgroups: Some(2),
            verity_bytes: Some(1 << 20),
        };
        assert_eq!(sample, want);
    }

    #[test]
    fn other_lines_are_skipped() {
        for text in
            ["", "x", "12/stat:", "12/stat:12 (a", "stat:cpu 1 2", "meminfo:MemTotal:", "diskstats:1 2"]
        {
            assert_eq!(parse(text), NodeSample::default(), "{text}");
        }
        // A name with a line break is two lines.
        let text = "12/stat:12 (a\n12/stat:b) S 1 1 1 0 -1 0 0 0 0 0 3 4 0 0 20 0 1 0 99 1 2 3\n";
        assert_eq!(parse(text), NodeSample::default());
    }

    #[test]
    fn only_descendants_are_below() {
        let process = |parent| ProcessSample { parent, name: "x".into(), ..Default::default() };
        let processes = BTreeMap::from([
            (1, process(0)),
            (2, process(5)),
            (3, process(1)),
            (5, process(3)),
            (7, process(0)),
        ]);
        let sample = NodeSample { processes, ..Default::default() };
        assert_eq!(sample.below(3), BTreeSet::from([2, 5]));
        assert_eq!(sample.below(9), BTreeSet::new());
        // A process is not its own ancestor, whatever the text says.
        let circle = NodeSample {
            processes: BTreeMap::from([(4, process(6)), (6, process(4))]),
            ..Default::default()
        };
        assert_eq!(circle.below(4), BTreeSet::from([6]));
    }

    /// The kernel and the grep of this machine.
    #[test]
    fn the_command_is_understood() {
        let output = std::process::Command::new("sh").arg("-c").arg(GATHER).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let sample = parse(&String::from_utf8_lossy(&output.stdout));
        let own = i32::try_from(std::process::id()).unwrap();
        let of_own = sample.processes.get(&own);
        let shared = of_own.and_then(|process| process.pss_kib.zip(process.pss_shmem_kib));
        assert!(shared.is_some_and(|(all, shmem)| shmem < all), "{of_own:?}");
        assert!(sample.meminfo.contains_key("MemTotal"));
        assert!(sample.begin.uptime_s.is_some() && sample.begin.uptime_s <= sample.end.uptime_s);
        assert!(sample.begin.busy_ticks.is_some() && sample.begin.busy_ticks <= sample.end.busy_ticks);
    }

    #[test]
    fn this_process_is_below_its_parent() {
        let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let sample = parse(&read_below(parent));
        assert!(sample.processes.contains_key(&own) && !sample.processes.contains_key(&parent));
        assert!(!sample.processes[&own].cgroups.is_empty(), "what is without groups is left out");
        assert!(sample.begin.uptime_s.is_some() && sample.begin.uptime_s <= sample.end.uptime_s);
    }
}
