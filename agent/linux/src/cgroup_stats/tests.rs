//! A hierarchy made of files, and one of the kernel's.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_kubelet_api::stats::usage::Memory;

use super::*;
use crate::kernel_cgroup::KernelCgroup;

fn write(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, text) in files {
        fs::write(dir.join(name), text).unwrap();
    }
}

fn question(extent: Extent) -> Question {
    let system = vec![("kubelet", "/system.slice/agent.service".to_owned()), ("misc", "/none".to_owned())];
    Question { at: Wall(3), extent, pods: "/kubepods.slice".to_owned(), system }
}

fn hierarchy(root: &Path) -> String {
    let id = "ab".repeat(32);
    write(root, &[("cgroup.controllers", "cpu memory\n"), ("cpu.stat", "usage_usec 9\n")]);
    let pod = root.join("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice");
    write(&pod, &[("cpu.stat", "usage_usec 7\n"), ("memory.current", "100\n"), ("cgroup.procs", "")]);
    write(&root.join("kubepods.slice"), &[("cgroup.procs", ""), ("pids.current", "2\n")]);
    write(
        &pod.join(format!("cri-containerd-{id}.scope")),
        &[
            ("cpu.stat", "usage_usec 5\nuser_usec 5\n"),
            ("memory.current", "90\n"),
            ("memory.stat", "inactive_file 40\n"),
            ("memory.swap.current", "3\n"),
            ("memory.swap.max", "max\n"),
            ("cgroup.procs", ""),
            ("pids.current", "2\n"),
        ],
    );
    // As crun lays it out under systemd.
    write(&pod.join(format!("cri-containerd-{id}.scope/container")), &[("cgroup.procs", "77\n78\n")]);
    write(&root.join("kubepods.slice/kubepods-pod3.slice"), &[]);
    write(&root.join("system.slice/kubepods-pod4.slice"), &[]);
    write(&root.join("system.slice/agent.service"), &[("cpu.stat", "usage_usec 2\n")]);
    id
}

#[test]
fn pods_of_every_class_are_found_with_their_containers() {
    let (root, proc) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let id = hierarchy(root.path());
    let meminfo = "MemTotal: 10 kB\nAnonPages: 2 kB\nCached: 4 kB\nInactive(file): 1 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n";
    write(proc.path(), &[("meminfo", meminfo), ("stat", "cpu 1 1 1 1 1 1 1\n")]);
    write(&proc.path().join("77/net"), &[("dev", "eth0: 1 1 1 1 1 1 1 1 2 2 2 2 2 2 2 2\n")]);
    let mut found = snapshot_of(root.path(), proc.path(), &question(Extent::Cadvisor)).unwrap();
    found.pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    let [first, second] = &found.pods[..] else { panic!("{found:?}") };
    let whole = first.usage.as_ref().unwrap();
    assert_eq!((first.pod.as_str(), whole.cpu.total_ns), ("1_2", Some(7000)));
    let [(found_id, inside)] = &first.containers[..] else { panic!("{first:?}") };
    assert_eq!((found_id, inside.at, inside.cpu.user_ns), (&id, Wall(3), Some(5000)));
    assert_eq!((inside.memory.working_set, inside.swap.usage, inside.swap.limit), (Some(50), Some(3), None));
    assert_eq!((inside.tasks.processes, inside.tasks.first), (Some(2), Some(77)));
    let network = first.network.as_ref().unwrap();
    assert_eq!((network.default.as_str(), network.interfaces[0].sent.bytes), ("eth0", 2));
    assert_eq!((second.pod.as_str(), &second.network, &second.containers[..]), ("3", &None, &[][..]));
    let empty = second.usage.as_ref().unwrap();
    assert_eq!(
        (&empty.cpu, &empty.memory, empty.tasks.processes),
        (&Cpu::default(), &Memory::default(), None)
    );
    assert_eq!((whole.tasks.processes, whole.tasks.first), (Some(2), None), "those of its containers");
    let tasks = &found.groups[0].tasks;
    assert_eq!((tasks.processes, tasks.threads), (None, Some(2)), "they are in the cgroups below");
    let node = &found.node;
    assert_eq!(
        (node.cpu.total_ns, node.memory.working_set, node.swap.usage),
        (Some(9000), Some(5 << 10), Some(0))
    );
    let system: Vec<_> = found.system.iter().map(|(name, usage)| (*name, usage.cpu.total_ns)).collect();
    assert_eq!(system, [("kubelet", Some(2000))], "what is not there is not told");
    assert_eq!((inside.tasks.files, inside.created.is_some()), (Some(0), true), "of nobody");
    assert!(inside.path.ends_with(&format!("pod1_2.slice/cri-containerd-{id}.scope")), "{}", inside.path);
    let groups: Vec<&str> = found.groups.iter().map(|group| group.path.as_str()).collect();
    assert_eq!(groups, ["/kubepods.slice", "/kubepods.slice/kubepods-burstable.slice"]);
    let summary = snapshot_of(root.path(), proc.path(), &question(Extent::Summary)).unwrap();
    assert!(summary.system.iter().all(|(_, usage)| usage.created.is_some()), "{:?}", summary.system);
    let less = snapshot_of(root.path(), proc.path(), &question(Extent::Resource)).unwrap();
    assert!(less.system.is_empty() && less.pods.iter().all(|pod| pod.network.is_none()));
}

#[test]
fn a_machine_without_the_unified_hierarchy_says_so() {
    let root = tempfile::tempdir().unwrap();
    let error = snapshot_of(root.path(), root.path(), &question(Extent::Cadvisor)).unwrap_err();
    assert!(error.to_string().starts_with("look for "), "{error}");
}

#[test]
fn this_machine() {
    let (usage, network) = node(Wall(1));
    assert!(usage.cpu.total_ns.unwrap() > 0 && usage.memory.working_set.unwrap() > 0);
    assert!(usage.tasks.threads.unwrap() > 1 && network.is_some() && boot_time().unwrap() > Wall(0));
}

/// Cgroups of pods are made and removed all the time while they are read: a pod that stays is reported completely, and
/// one that is removed may be reported or not.
#[test]
fn cgroups_that_vanish_while_they_are_read() {
    let Some(kernel) = KernelCgroup::make("vanishing") else { return };
    let (root, id) = (kernel.root(), "cd".repeat(32));
    let pod = |n: usize| root.join(format!("kubepods.slice/kubepods-pod{n}.slice"));
    let scope = |n: usize| pod(n).join(format!("cri-containerd-{id}.scope"));
    let mut child = kernel.run_in(&scope(1));
    let done = AtomicBool::new(false);
    let (mut met, mut others) = (0, 0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in (2..10).cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                fs::create_dir_all(scope(n)).unwrap();
                fs::remove_dir(scope(n)).unwrap();
                fs::remove_dir(pod(n)).unwrap();
            }
        });
        for _ in 0..2000 {
            let found = snapshot_of(root, Path::new(PROC), &question(Extent::Summary)).unwrap();
            let stays = found.pods.iter().find(|pod| pod.pod == "1");
            let [(container, usage)] = &stays.unwrap().containers[..] else { panic!("{stays:?}") };
            assert_eq!((container, usage.tasks.first), (&id, Some(child.id())), "{stays:?}");
            let rest: Vec<_> = found.pods.iter().filter(|pod| pod.pod != "1").collect();
            others += rest.len();
            met += rest.iter().filter(|pod| pod.containers.is_empty()).count();
        }
        done.store(true, Ordering::Relaxed);
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(others > 0 && met > 0, "none was met while it went: {met} of {others}");
}
