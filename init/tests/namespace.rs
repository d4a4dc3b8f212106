//! The executor against a real kernel: a thread with a mount namespace and a root of its own goes from an
//! "initramfs" (a tmpfs) through the fixed mounts, a tool in a chroot and the machine id to the switched root.
//!
//! Needs root; without it the test says so and is skipped. Nothing outside the namespace is touched.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, chroot, geteuid};
use orlop_init::exec::{handover, machine_id, state, steps};
use orlop_init::plan::mounts;
use orlop_init::plan::step::BootStep;
use orlop_init::sys::child;
use std::fs;
use std::path::Path;

fn bind(from: &str, to: &str) {
    let none = None::<&str>;
    mount(Some(from), to, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).expect("bind");
}

/// Makes this thread's root a tmpfs with the build machine's programs bound on /sysroot.
fn enter_initramfs(dir: &Path) {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private");
    let at = |p: &str| format!("{}{p}", dir.display());
    mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), none).expect("initramfs");
    fs::create_dir(at("/sysroot")).expect("sysroot");
    mount(Some("tmpfs"), at("/sysroot").as_str(), Some("tmpfs"), MsFlags::empty(), none).expect("root");
    for top in ["usr", "etc", "dev", "proc", "sys", "run", "var"] {
        fs::create_dir(at(&format!("/sysroot/{top}"))).expect("directory");
    }
    bind("/usr", &at("/sysroot/usr"));
    for (link, target) in [("lib", "usr/lib"), ("lib64", "usr/lib64"), ("bin", "usr/bin")] {
        std::os::unix::fs::symlink(target, at(&format!("/sysroot/{link}"))).expect("link");
    }
    fs::write(at("/sysroot/etc/machine-id"), "").expect("file");
    fs::write(at("/init"), "the initramfs").expect("file");
    chroot(dir).and_then(|()| chdir("/")).expect("root of its own");
}

fn boot() {
    steps::apply_all(&mounts::api_filesystems()).expect("API file systems");
    // A second time is harmless: the kernel may have mounted devtmpfs already.
    steps::apply_all(&mounts::api_filesystems()[1..3]).expect("API file systems again");
    steps::apply(&mounts::firmware()).expect("optional");
    steps::apply_all(&mounts::tool_chroot()).expect("binds");
    let out = child::run_in_root("/sysroot", "/usr/bin/cat", &["/proc/self/mounts"]).expect("cat runs");
    let seen = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(seen.contains(" /run tmpfs rw,nosuid,nodev,"), "{seen}");
    for step in mounts::tool_chroot().iter().rev() {
        let BootStep::Bind { to, .. } = step else { panic!("{step:?}") };
        nix::mount::umount(to.as_str()).expect("unmounted");
    }
    steps::apply_all(&mounts::volatile_state()).expect("volatile /var");
    for _ in 0..2 {
        steps::apply_all(&state::layout()).expect("layout, twice");
    }
    let (id, new) = machine_id::persistent(Path::new("/sysroot/var/lib/orlop")).expect("machine id");
    assert!(new);
    steps::apply_all(&[
        BootStep::WriteFile { path: "/run/machine-id".into(), mode: 0o444, content: id.clone().into_bytes() },
        BootStep::Bind { from: "/run/machine-id".into(), to: "/sysroot/etc/machine-id".into() },
    ])
    .expect("bound");
    // Everything on this thread's root is about to be deleted: it must be the one made above.
    assert_eq!(fs::read_to_string("/init").expect("the initramfs"), "the initramfs");
    assert!(handover::root_is_initramfs());
    let initramfs = fs::File::open("/").expect("the initramfs");
    handover::switch_root().expect("switched");
    assert_eq!(fs::read_to_string("/etc/machine-id").expect("kept"), id);
    assert!(!fs::exists("/init").expect("root") && !fs::exists("/sysroot").expect("root"));
    assert!(fs::exists("/var/lib/orlop/kubernetes/manifests").expect("var"));
    // To /var/opt leads the image's /opt.
    fs::write("/var/opt/cni/bin/plugin", "").expect("plugins of add-ons");
    assert!(fs::exists("/var/lib/orlop/cni/bin/plugin").expect("through a link"));
    assert!(fs::exists("/proc/self/mounts").expect("proc") && fs::exists("/dev/null").expect("dev"));
    let left: Vec<_> = nix::dir::Dir::from_fd(initramfs.into())
        .expect("directory")
        .iter()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|n| n != "." && n != "..")
        .collect();
    assert_eq!(left, ["sysroot"], "the memory of the initramfs is free");
}

#[test]
fn from_the_initramfs_to_the_switched_root() {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root for a mount namespace");
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_path_buf();
    let result = std::thread::spawn(move || {
        enter_initramfs(&path);
        boot();
    })
    .join();
    assert!(result.is_ok(), "see the panic above");
}
