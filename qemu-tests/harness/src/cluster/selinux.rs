//! SELinux in a booted VM whose image has no policy: a kernel argument enables SELinux, and the running system loads a
//! policy.
//!
//! In: a case's directory, a VM's shell. Out: a loaded policy that refuses nothing, and the file that defines the
//! labels of containers' files. Invariant: nothing of the policy survives a reboot.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::vm::shell::Shell;

/// Kernel arguments: SELinux in AppArmor's place, permissive.
pub const KERNEL: &str = "security=selinux enforcing=0";
/// Label of containers' files.
pub const FILES: &str = "system_u:object_r:container_file_t";
/// Path of the policy in the guest.
pub const POLICY: &str = "/var/lib/kubelet/policy";

/// The policy only defines labels: unknown classes are allowed.
const SOURCE: &str = include_str!("selinux.conf");

/// Compiles the policy into a file of `dir`.
///
/// # Errors
/// The message of `checkpolicy`.
pub fn policy(dir: &Path) -> Result<std::path::PathBuf> {
    let (source, made) = (dir.join("policy.conf"), dir.join("policy"));
    fs::write(&source, SOURCE).with_context(|| format!("write {}", source.display()))?;
    let mut compile = Command::new("checkpolicy");
    // The version that kernels from 5.8 on and checkpolicy from 3.2 on have in common.
    compile.args(["-M", "-U", "allow", "-c", "33", "-o"]).arg(&made).arg(&source);
    let done = compile.output().context("run checkpolicy")?;
    ensure!(done.status.success(), "checkpolicy: {}", String::from_utf8_lossy(&done.stderr));
    Ok(made)
}

/// Loads the policy from [`POLICY`], and restarts the agent with it.
///
/// # Errors
/// The guest's message.
pub fn load(shell: &mut Shell) -> Result<()> {
    // The root is read-only: an overlay adds the files that the policy's packages would install.
    let contexts = "/run/selinux-share/containers/selinux/contexts";
    for command in [
        "mountpoint -q /sys/fs/selinux || mount -t selinuxfs selinuxfs /sys/fs/selinux".to_owned(),
        format!("cat {POLICY} > /sys/fs/selinux/load"),
        "mkdir -p /run/selinux-share/containers/selinux /run/selinux-work".to_owned(),
        format!("echo 'process = \"system_u:system_r:container_t:s0\"' > {contexts}"),
        format!("echo 'file = \"{FILES}:s0\"' >> {contexts}"),
        "mount -t overlay -o lowerdir=/usr/share,upperdir=/run/selinux-share,workdir=/run/selinux-work overlay \
         /usr/share"
            .to_owned(),
        "systemctl restart kubelet".to_owned(),
    ] {
        shell.must(&command)?;
    }
    Ok(())
}
