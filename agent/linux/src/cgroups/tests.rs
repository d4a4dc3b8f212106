//! Against directories that look like a hierarchy.

use std::collections::BTreeMap;
use std::path::Path;

use agent_core::resources::cgroups::CpuMax;

use super::*;

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
