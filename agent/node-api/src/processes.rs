//! Processes as the kernel shows them in /proc, and the pods that they belong to. Blocking; a value that is not there is empty.
//!
//! In: a root directory. Out: processes, the largest first. Invariants: at most [`PROCESSES_MAX`] are looked at; no arguments and no
//! environment are read, because they may have secrets; a process that ends meanwhile is left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use orlop_config::procfs::{kilobytes, process_stat};
use orlop_proto::node_api::v1alpha1::ProcessStatus;

/// Processes that are looked at, those with the lowest pids.
const PROCESSES_MAX: usize = 4096;
/// Bytes of a file of a process that are read. With many groups `status` is longer, as its owner likes.
const VALUE_MAX: u64 = 8192;
/// A page of memory on every architecture of the image, bytes.
const PAGE_BYTES: u64 = 4096;
/// Names of pods that are looked at.
const PODS_MAX: usize = 4096;
/// A clock tick of /proc on every architecture of the image (USER_HZ), milliseconds.
const TICK_MS: u64 = 10;
/// Characters of a cgroup's name that are shown.
const UNIT_CHARS_MAX: usize = 128;

/// All processes. `pod` is the UID of the pod.
///
/// # Errors
/// /proc cannot be read.
pub(crate) fn processes(root: &Path) -> io::Result<Vec<ProcessStatus>> {
    let directory = root.join("proc");
    let names = fs::read_dir(&directory)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut pids: Vec<u32> = names.filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    let of = |pid: &u32| {
        let text = |file: &str| beginning(&directory.join(pid.to_string()).join(file));
        process(u64::from(*pid), &text("stat"), &text("status"), &text("cgroup"))
    };
    let mut found: Vec<ProcessStatus> = pids.iter().take(PROCESSES_MAX).filter_map(of).collect();
    found.sort_by_key(|process| (Reverse(process.memory_bytes), Reverse(process.cpu_ms), process.pid));
    Ok(found)
}

/// The beginning of a file, whole lines of it; empty: the process has ended.
fn beginning(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(VALUE_MAX + 1).read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    if bytes.len() as u64 > VALUE_MAX {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        bytes.truncate(whole);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A process by its files (proc_pid_stat(5), proc_pid_status(5), cgroups(7)); `None` without the first.
fn process(pid: u64, stat: &str, status: &str, cgroup: &str) -> Option<ProcessStatus> {
    let numbers = process_stat(stat)?;
    let (before, after) = stat.rsplit_once(')')?;
    let (_, command) = before.split_once('(')?;
    // Fields after the name, the third of all first; these are there also if `status` is cut.
    let field = |number: usize| after.split_whitespace().nth(number - 3)?.parse::<u64>().ok();
    let words = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number =
        |key: &str, place: usize| -> Option<u64> { words(key)?.split_whitespace().nth(place)?.parse().ok() };
    let resident = || field(24)?.checked_mul(PAGE_BYTES);
    // `0::/path`: the only hierarchy.
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    Some(ProcessStatus {
        pid,
        parent: u64::try_from(numbers.parent).unwrap_or(0),
        command: command.to_owned(),
        state: numbers.state.to_string(),
        // Real, effective, saved and of file systems.
        user: number("Uid", 1).unwrap_or(0),
        threads: number("Threads", 0).or_else(|| field(20)).unwrap_or(0),
        cpu_ms: numbers.cpu_ticks.saturating_mul(TICK_MS),
        memory_bytes: kilobytes(status, "VmRSS").or_else(resident).unwrap_or(0),
        started_ms: numbers.started_ticks.saturating_mul(TICK_MS),
        unit: unit(cgroup),
        pod: pod_uid(cgroup).unwrap_or_default(),
    })
}

/// The innermost service or scope; else the path itself.
fn unit(cgroup: &str) -> String {
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    let unit = cgroup.rsplit('/').find(is_unit).unwrap_or(cgroup);
    unit.chars().take(UNIT_CHARS_MAX).collect()
}

/// The UID of the pod of a cgroup: `/kubepods.slice/…-podUID.slice/…`, with `_` for `-`, or `/kubepods/…/podUID/…`, as the kubelet
/// names them (pkg/kubelet/cm/pod_container_manager_linux.go).
fn pod_uid(cgroup: &str) -> Option<String> {
    let mut parts = cgroup.split('/').skip_while(|part| !part.starts_with("kubepods"));
    parts.find_map(|part| {
        let uid = match part.strip_suffix(".slice") {
            Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
            None => part.strip_prefix("pod")?.to_owned(),
        };
        let is_uid = |uid: &str| {
            (1..=64).contains(&uid.len()) && uid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        is_uid(&uid).then_some(uid)
    })
}

/// Pods by their UIDs, from the names of their directories of logs: `NAMESPACE_NAME_UID`. A container with that directory can write
/// other names there.
pub(crate) fn pod_names(root: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(root.join("var/log/pods")).into_iter().flatten().flatten().take(PODS_MAX);
    entries.filter_map(|entry| pod_name(&entry.file_name().into_string().ok()?)).collect()
}

/// UID, and `NAMESPACE/NAME`.
fn pod_name(directory: &str) -> Option<(String, String)> {
    let mut parts = directory.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && ![namespace, name, uid].contains(&"");
    is_whole.then(|| (uid.to_owned(), format!("{namespace}/{name}")))
}

/// Processes with the names of pods in the place of their UIDs.
pub(crate) fn with_pods(
    mut processes: Vec<ProcessStatus>,
    pods: &BTreeMap<String, String>,
) -> Vec<ProcessStatus> {
    for process in &mut processes {
        if let Some(name) = pods.get(&process.pod) {
            process.pod.clone_from(name);
        }
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b5d8f6e-1111-2222-3333-444455556666";

    fn put(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn stat(command: &str, ticks: u64) -> String {
        format!("7 ({command}) S 1 7 7 0 -1 0 0 0 0 0 {ticks} 5 0 0 20 0 3 0 250 0 0")
    }

    #[test]
    fn processes_are_in_order_of_their_memory_and_have_pods() {
        let dir = tempfile::tempdir().unwrap();
        let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        put(dir.path(), "proc/7/stat", &stat("a) (b", 95));
        put(dir.path(), "proc/7/status", "Name:\ta\nUid:\t0\t65534\t0\t0\nVmRSS:\t    12 kB\nThreads:\t3\n");
        let cgroup = format!("0::/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-1.scope\n");
        put(dir.path(), "proc/7/cgroup", &cgroup);
        put(dir.path(), "proc/9/stat", &stat("kubelet", 1));
        put(dir.path(), "proc/9/status", "VmRSS:\t    90 kB\n");
        put(dir.path(), "proc/9/cgroup", "0::/system.slice/kubelet.service\n");
        // One that has ended, and files that are no processes.
        put(dir.path(), "proc/11/status", "");
        put(dir.path(), "proc/meminfo", "");
        let found = processes(dir.path()).unwrap();
        let shown: Vec<(u64, &str, &str)> =
            found.iter().map(|p| (p.pid, p.command.as_str(), p.unit.as_str())).collect();
        assert_eq!(shown, [(9, "kubelet", "kubelet.service"), (7, "a) (b", "cri-containerd-1.scope")]);
        let pod = &found[1];
        assert_eq!((pod.user, pod.threads, pod.memory_bytes, pod.parent), (65534, 3, 12 << 10, 1));
        assert_eq!(
            (pod.cpu_ms, pod.started_ms, pod.state.as_str(), pod.pod.as_str()),
            (1000, 2500, "S", UID)
        );
        put(dir.path(), &format!("var/log/pods/default_web_{UID}/x/0.log"), "");
        let named = with_pods(found, &pod_names(dir.path()));
        assert_eq!((named[0].pod.as_str(), named[1].pod.as_str()), ("", "default/web"));
        assert!(processes(&dir.path().join("nowhere")).is_err());
    }

    #[test]
    fn a_process_of_many_groups_hides_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let groups = "4294967294 ".repeat(2000);
        put(dir.path(), "proc/7/stat", "7 (x) S 1 7 7 0 -1 0 0 0 0 0 1 5 0 0 20 0 3 0 250 0 90");
        let status = format!("Uid:\t5\t65534\t5\t5\nGroups:\t{groups}\nVmRSS:\t    1 kB\nThreads:\t1\n");
        put(dir.path(), "proc/7/status", &status);
        let found = processes(dir.path()).unwrap();
        assert_eq!((found[0].user, found[0].threads, found[0].memory_bytes), (65534, 3, 90 * PAGE_BYTES));
    }

    #[test]
    fn pods_of_cgroups() {
        let underscored = UID.replace('-', "_");
        for (cgroup, pod) in [
            (format!("/kubepods/besteffort/pod{UID}/0011"), Some(UID)),
            (format!("/kubepods.slice/kubepods-pod{underscored}.slice"), Some(UID)),
            ("/kubepods.slice/kubepods-burstable.slice".to_owned(), None),
            (format!("/system.slice/x-pod{underscored}.slice"), None),
            ("/kubepods/pod/x".to_owned(), None),
            (format!("/kubepods/pod{}", "x".repeat(65)), None),
            (String::new(), None),
        ] {
            assert_eq!(pod_uid(&cgroup).as_deref(), pod, "{cgroup}");
        }
        assert_eq!(
            (unit("/init.scope"), unit("/a/b"), unit("")),
            ("init.scope".into(), "/a/b".into(), "".into())
        );
    }

    #[test]
    fn other_names_are_no_pods() {
        for name in ["", "a", "a_b", "a_b_c_d", "_b_c", "a__c", "a_b_"] {
            assert_eq!(pod_name(name), None, "{name}");
        }
        assert_eq!(pod_name("a_b.c_d"), Some(("d".to_owned(), "a/b.c".to_owned())));
    }
}
