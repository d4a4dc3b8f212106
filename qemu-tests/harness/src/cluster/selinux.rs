//! SELinux in a booted VM, whose image has none: the kernel is told to have it, and is given a policy while it runs.
//!
//! In: a case's directory, a VM's shell. Out: a policy in force that refuses nothing, and the file that says what containers'
//! files are labelled. Invariant: nothing of it outlives the boot.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::vm::shell::Shell;

/// What the kernel is told: SELinux in AppArmor's place, and nothing is refused.
pub const KERNEL: &str = "security=selinux enforcing=0";
/// What files of containers are labelled.
pub const FILES: &str = "system_u:object_r:container_file_t";
/// Where the policy is brought to, in the guest.
pub const POLICY: &str = "/var/lib/kubelet/policy";

/// Labels are all that it is for: what it does not know is allowed.
const SOURCE: &str = include_str!("selinux.conf");

/// Makes the policy as a file of `dir`.
///
/// # Errors
/// What `checkpolicy` says.
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

/// Loads the policy that was brought to [`POLICY`], and has the agent start anew with it.
///
/// # Errors
/// What the guest says.
pub fn load(shell: &mut Shell) -> Result<()> {
    // The root is read-only: what the policy's packages would have put there lies over it.
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
