//! Against directories that look like a hierarchy, and cgroups of the kernel.

use std::collections::BTreeMap;
use std::path::Path;

use agent_types::resources::cgroups::CpuMax;

use super::*;
use crate::kernel_cgroup::KernelCgroup;

fn hierarchy(root: &Path, driver: CgroupDriver) -> LinuxCgroups {
    std::fs::write(root.join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
    LinuxCgroups { directories: Arc::new(Directories::at(root.to_owned(), driver)), systemd: None }
}

fn values() -> CgroupValues {
    CgroupValues {
        cpu_weight: Some(39),
        cpu_max: Some(CpuMax { quota_us: None, period_us: 100_000 }),
        memory_max: Some(5000),
        pids_max: Some(7),
        hugetlb: BTreeMap::from([("2MB".to_owned(), 0)]),
        ..CgroupValues::default()
    }
}

#[tokio::test]
async fn only_what_differs_is_written() {
    let root = tempfile::tempdir().unwrap();
    let cgroups = hierarchy(root.path(), CgroupDriver::Cgroupfs);
    let name = CgroupName::default().child("kubepods").child("pod1-a");
    let error = cgroups.apply(&name, &values(), false).await.unwrap_err();
    assert_eq!(error.class, Class::NotFound, "{error}");
    // The kernel would make these with the directories.
    let dir = root.path().join("kubepods/pod1-a");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(root.path().join("kubepods/cgroup.controllers"), "memory\n").unwrap();
    cgroups.apply(&name, &values(), true).await.unwrap();
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
    assert_eq!(
        (read("cpu.weight"), read("cpu.max"), read("pids.max")),
        ("39".into(), "max 100000".into(), "7".into())
    );
    assert!(!dir.join("hugetlb.2MB.max").exists(), "no such controller here");
    assert_eq!(std::fs::read_to_string(root.path().join("cgroup.subtree_control")).unwrap(), "+pids");
    assert_eq!(
        std::fs::read_to_string(root.path().join("kubepods/cgroup.subtree_control")).unwrap(),
        "+memory"
    );
    // As the kernel shows them afterwards: that is the same.
    std::fs::write(dir.join("memory.max"), "4096\n").unwrap();
    std::fs::write(dir.join("pids.max"), "8\n").unwrap();
    cgroups.apply(&name, &values(), true).await.unwrap();
    assert_eq!((read("memory.max"), read("pids.max")), ("4096\n".into(), "7".into()));
}

#[tokio::test]
async fn removal_takes_what_is_below() {
    let root = tempfile::tempdir().unwrap();
    let cgroups = hierarchy(root.path(), CgroupDriver::Systemd);
    let pods = CgroupName::default().child("kubepods");
    let dir = root.path().join("kubepods.slice/kubepods-pod1_a.slice/cri-containerd-x.scope/init");
    std::fs::create_dir_all(&dir).unwrap();
    assert_eq!(cgroups.children(&pods).await.unwrap(), ["kubepods-pod1_a.slice"]);
    for _ in 0..2 {
        cgroups.remove(&pods.child("pod1-a")).await.unwrap();
    }
    assert!(cgroups.children(&pods).await.unwrap().is_empty());
    assert!(cgroups.children(&pods.child("none")).await.unwrap().is_empty());
    // A file keeps a directory: the error says which.
    std::fs::create_dir_all(root.path().join("kubepods.slice/kubepods-pod2.slice")).unwrap();
    std::fs::write(root.path().join("kubepods.slice/kubepods-pod2.slice/file"), "").unwrap();
    let error = cgroups.remove(&pods.child("pod2")).await.unwrap_err();
    assert!(error.to_string().contains("kubepods-pod2.slice"), "{error}");
}

/// The kernel refuses to remove a cgroup with a process in it (EBUSY): the error is reported, the call can be tried
/// again, and nothing is lost. The removal of the cgroup as a whole ends its processes first.
#[test]
fn a_busy_cgroup_is_told_and_goes_with_what_is_in_it() {
    let Some(kernel) = KernelCgroup::make("busy") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directories = Arc::new(Directories::at(kernel.root().to_owned(), CgroupDriver::Cgroupfs));
    let cgroups = LinuxCgroups { directories, systemd: None };
    let name = CgroupName::default().child("kubepods").child("pod1-a");
    let dir = kernel.root().join("kubepods/pod1-a");
    let mut child = kernel.run_in(&dir.join("container"));

    let error = directories::remove(&dir).unwrap_err();
    assert_eq!(error.class, Class::Conflict, "look again: {error}");
    assert!(error.object.ends_with("pod1-a/container") && error.message.contains("busy"), "{error}");
    assert_eq!(child.try_wait().unwrap(), None, "it runs on");

    assert!(runtime.block_on(cgroups.remove(&name)).unwrap());
    assert!(!child.wait().unwrap().success(), "it was ended");
    assert!(!dir.exists() && !runtime.block_on(cgroups.remove(&name)).unwrap());
}
