//! A real iSCSI target next to a cluster's control plane (tgt, in user space), and the real initiator (open-iscsi) for
//! a booted VM, whose image has only the kernel's part.
//!
//! ```text
//! tgtd ── two portals ── cluster0 ── TAP ── VM: iscsi_tcp ◄─ iscsid ◄─ iscsiadm ◄─ agent
//! files of the cluster's directory = units
//! ```
//! In: a cluster, a VM's shell. Out: units, and the number of the target's sessions. The programs come from packages
//! of the host's distribution, without an installation. Invariant: only the initiator's files survive a reboot.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::flags::ADDRESS;
use super::host_debs;
use super::plane::Cluster;
use crate::process::must;
use crate::run::Run;
use crate::vm::shell::Shell;

/// Name of the target.
pub const IQN: &str = "iqn.2026-01.example.e2e:disks";
/// The initiator's user name.
pub const USER: &str = "u";
/// The initiator's password. iscsiadm accepts twelve to sixteen characters.
pub const PASSWORD: &str = "hush-hush-hush";
/// Ports of its portals.
pub const PORTS: [u16; 2] = [3260, 3261];
/// Name of the program in its supervisor.
const NAME: &str = "tgtd";
/// Directory of the initiator's files in the guest.
const HOME: &str = "/var/lib/kubelet/iscsi";
/// The name of a dynamic linker there.
const LINKER: &str = "ld.so";

/// The target.
pub struct Target {
    run: Arc<Run>,
    root: PathBuf,
    dir: PathBuf,
}

impl Target {
    /// Starts it, without units.
    ///
    /// # Errors
    /// If it cannot be had, or does not answer.
    pub fn start(cluster: &mut Cluster) -> Result<Target> {
        let run = Arc::clone(cluster.run());
        let root = host_debs::unpacked(&run, &["tgt"])?;
        let dir = cluster.dir().join(NAME);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let target = Target { run, root, dir };
        let portals = PORTS.map(|port| format!("portal={ADDRESS}:{port}")).join(",");
        let program = target.program("tgtd");
        let argv = [&program, "-f", "--iscsi", &portals].map(str::to_owned);
        let (libraries, socket) = (host_debs::library_path(&target.root), target.socket());
        let plane = cluster.plane()?;
        plane.start_program(
            NAME,
            &argv,
            &[("LD_LIBRARY_PATH", libraries.as_str()), ("TGT_IPC_SOCKET", socket.as_str())],
        )?;
        for _ in 0..300 {
            if target.tell("target", "new", &["--targetname", IQN]).is_ok() {
                target.allow()?;
                return Ok(target);
            }
            ensure!(plane.is_running(NAME), "the iSCSI target ended");
            plane.pass(Duration::from_millis(100))?;
        }
        bail!("the iSCSI target does not answer after 30 s")
    }

    fn program(&self, name: &str) -> String {
        self.root.join("usr/sbin").join(name).display().to_string()
    }

    /// The first part of its socket's path.
    fn socket(&self) -> String {
        self.dir.join("socket").display().to_string()
    }

    fn tell(&self, mode: &str, op: &str, more: &[&str]) -> Result<String> {
        let mut tell = Command::new(self.program("tgtadm"));
        tell.args(["--lld", "iscsi", "--tid", "1", "--mode", mode, "--op", op]).args(more);
        tell.env("TGT_IPC_SOCKET", self.socket());
        must(&self.run, &mut tell)
    }

    /// Accepts every initiator with the password.
    fn allow(&self) -> Result<()> {
        let mut account = Command::new(self.program("tgtadm"));
        account.args(["--lld", "iscsi", "--mode", "account", "--op", "new", "--user", USER]);
        account.args(["--password", PASSWORD]).env("TGT_IPC_SOCKET", self.socket());
        must(&self.run, &mut account)?;
        self.tell("account", "bind", &["--user", USER])?;
        self.tell("target", "bind", &["--initiator-address", "ALL"]).map(drop)
    }

    /// Makes the unit `lun`, filled with zeros. The target itself has number 0.
    ///
    /// # Errors
    /// The target's message.
    pub fn put_unit(&self, lun: u32, bytes: u64) -> Result<()> {
        let file = self.unit(lun);
        fs::File::create(&file)
            .and_then(|f| f.set_len(bytes))
            .with_context(|| format!("make {}", file.display()))?;
        let (lun, file) = (lun.to_string(), file.display().to_string());
        self.tell("logicalunit", "new", &["--lun", &lun, "--backing-store", &file]).map(drop)
    }

    fn unit(&self, lun: u32) -> PathBuf {
        self.dir.join(format!("unit-{lun}"))
    }

    /// The first bytes of a unit, as the target keeps them.
    ///
    /// # Errors
    /// If it is shorter.
    pub fn begins(&self, lun: u32, bytes: usize) -> Result<Vec<u8>> {
        let (file, mut content) = (self.unit(lun), vec![0; bytes]);
        let opened = fs::File::open(&file).with_context(|| format!("open {}", file.display()))?;
        opened.read_exact_at(&mut content, 0).with_context(|| format!("read {}", file.display()))?;
        Ok(content)
    }

    /// Number of its sessions.
    ///
    /// # Errors
    /// The target's message.
    pub fn sessions(&self) -> Result<usize> {
        Ok(sessions(&self.tell("conn", "show", &[])?))
    }
}

/// Counts the sessions in the target's list of connections.
fn sessions(text: &str) -> usize {
    text.lines().filter(|line| line.trim_start().starts_with("Session:")).count()
}

/// The initiator's programs with their libraries, and the path of each file in the guest.
///
/// # Errors
/// If the packages are not available.
pub fn initiator(run: &Arc<Run>) -> Result<Vec<(PathBuf, String)>> {
    let root = host_debs::unpacked(run, &["open-iscsi"])?;
    let sbin = ["usr/sbin", "sbin"].map(|dir| root.join(dir));
    let mut files: Vec<PathBuf> = Vec::new();
    for name in ["iscsiadm", "iscsid"] {
        let program = sbin.iter().map(|dir| dir.join(name)).find(|path| path.exists());
        let program = program.with_context(|| format!("open-iscsi has no {name}"))?;
        files.extend(host_debs::libraries(run, &root, &program)?);
        files.push(program);
    }
    files.push(root.join("etc/iscsi/iscsid.conf"));
    files.sort_unstable();
    files.dedup();
    files.into_iter().map(|file| Ok((file.clone(), place(&file)?))).collect()
}

/// Path of a file in the guest.
fn place(file: &Path) -> Result<String> {
    let name = file.file_name().and_then(|n| n.to_str()).context("a file without a name")?;
    Ok(format!("{HOME}/{}", if name.starts_with("ld-linux") { LINKER } else { name }))
}

/// Makes the directory for the files of [`initiator`].
///
/// # Errors
/// The guest's message.
pub fn make_home(shell: &mut Shell) -> Result<()> {
    shell.must(&format!("mkdir -p {HOME}")).map(drop)
}

/// Installs `iscsiadm` and a running `iscsid` from the guest's files, until the guest is switched off.
///
/// # Errors
/// The guest's message.
pub fn install(shell: &mut Shell) -> Result<()> {
    let run = |name: &str| format!("{HOME}/{LINKER} --library-path {HOME} {HOME}/{name}");
    // The root is read-only: an overlay adds the files that the package would install.
    let over = |dir: &str, name: &str| {
        format!(
            "mkdir -p /run/{name}-work && mount -t overlay -o \
             lowerdir={dir},upperdir=/run/{name},workdir=/run/{name}-work overlay {dir}"
        )
    };
    for command in [
        "mkdir -p /run/iscsi-etc/iscsi /run/iscsi-sbin".to_owned(),
        format!("cat {HOME}/iscsid.conf > /run/iscsi-etc/iscsi/iscsid.conf"),
        "echo InitiatorName=iqn.2026-01.example.e2e:node > /run/iscsi-etc/iscsi/initiatorname.iscsi"
            .to_owned(),
        "echo '#!/usr/bin/bash' > /run/iscsi-sbin/iscsiadm".to_owned(),
        format!("echo 'exec {} \"$@\"' >> /run/iscsi-sbin/iscsiadm", run("iscsiadm")),
        "chmod 755 /run/iscsi-sbin/iscsiadm".to_owned(),
        // An overlay does not show mounts below it.
        "touch /run/iscsi-machine-id && mount --bind /etc/machine-id /run/iscsi-machine-id".to_owned(),
        over("/etc", "iscsi-etc"),
        "mount --bind /run/iscsi-machine-id /etc/machine-id".to_owned(),
        "modprobe iscsi_tcp".to_owned(),
        format!("systemd-run -q --collect --unit=iscsid {} -f", run("iscsid")),
        // Last: from now on the agent finds it.
        over("/usr/sbin", "iscsi-sbin"),
    ] {
        shell.must(&command)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_a_target() {
        let text = "Session: 2\n    Connection: 0\n        Initiator: iqn.x\n        IP Address: 172.30.0.10\n\
                    Session: 1\n    Connection: 0\n";
        assert_eq!((sessions(text), sessions("")), (2, 0));
    }

    #[test]
    fn places_in_the_guest() {
        let of = |path: &str| place(Path::new(path)).unwrap();
        assert_eq!(of("/x/sbin/iscsid"), "/var/lib/kubelet/iscsi/iscsid");
        assert_eq!(of("/lib64/ld-linux-x86-64.so.2"), "/var/lib/kubelet/iscsi/ld.so");
    }
}
