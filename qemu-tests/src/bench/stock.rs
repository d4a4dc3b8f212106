//! The comparison of `bench boot`: Debian 13 as installed on a server, booted in the same QEMU.
//!
//! That is: everything of priority `standard` with what it recommends ("standard system utilities"), the SSH server,
//! the default kernel with its recommended AppArmor, an initrd of initramfs-tools with `MODULES=most`, root by UUID
//! with a check before it is mounted writable, `quiet`, the network by DHCP as a hot-plugged interface. It has a
//! machine-id and host keys, so that no boot is a "first boot" for systemd. Differences to an installation: no boot
//! loader (QEMU passes the kernel, as for ours), no partition table, no swap.
//!
//! Out: a cached disk with ext4, its kernel and initrd. Only one unit is added: it writes figures to the console
//! when the start is finished, and powers off. If the kernel's arguments have `USAGE`, it takes two samples for
//! `bench node` before that.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_harness::process::must;
use orlop_harness::resource::Resource;
use orlop_harness::run::{Run, cache_dir};
use orlop_harness::say;
use orlop_harness::vm::lab::Image;
use orlop_harness::vm::machine::socket_dir;
use orlop_image::arch::Arch;
use orlop_image::qemu::{self, Boot, Bus, Disk, Machine};

use super::node::GATHER;

/// Printed before the figures.
pub const MARK: &str = "E2E-STOCK-UP";

/// Argument of the kernel: seconds between the two samples.
pub(super) const USAGE: &str = "e2e.usage";

/// Place of the disk in the cache. The disk has the script of the samples, so a change of [`GATHER`] needs a new place.
const CACHE: &str = "bench/debian-13-usage-2";
/// Places of earlier versions, which had no samples or other ones.
const OLDER_CACHES: [&str; 2] = ["bench/debian-13-standard", "bench/debian-13-usage"];

/// Time before the first sample, seconds: as long as the appliance has.
const SETTLE_S: u32 = 30;

/// The program that takes the samples.
const SAMPLER: &str = "usr/local/sbin/e2e-usage";

/// UUID of the root file system.
const ROOT: &str = "6f726c6f-7000-4000-8000-73746f636b31";

/// The command line of the installer's GRUB, with a serial console.
pub const COMMAND_LINE: &str = "root=UUID=6f726c6f-7000-4000-8000-73746f636b31 ro quiet console=ttyS0";

// The clock of both figures starts with the kernel.
const UNIT: &str = "[Unit]\nDescription=Report the start\nAfter=multi-user.target\n\
    [Service]\nType=simple\nStandardOutput=tty\nTTYPath=/dev/ttyS0\n\
    ExecStart=/bin/sh -c 'systemctl is-system-running --wait >/dev/null; \
    at=$(systemctl show -P ActiveEnterTimestampMonotonic multi-user.target); \
    echo; echo E2E-STOCK-UP kernel to multi-user $((at / 1000)) ms; /usr/local/sbin/e2e-usage; systemctl poweroff'\n\
    [Install]\nWantedBy=graphical.target multi-user.target\n";

const INTERFACES: &str = "source /etc/network/interfaces.d/*\nauto lo\niface lo inet loopback\nallow-hotplug enp0s3\n\
    iface enp0s3 inet dhcp\n";

/// Disk, kernel and initrd.
#[derive(Clone, Debug)]
pub struct Stock {
    /// Raw disk that is one ext4 file system.
    pub disk: PathBuf,
    /// Debian's kernel.
    pub kernel: PathBuf,
    /// Debian's initrd.
    pub initrd: PathBuf,
}

/// Builds it once; later runs take it from the cache.
///
/// # Errors
/// If mmdebstrap is not installed or cannot reach the archive.
pub fn build(run: &Arc<Run>) -> Result<Stock> {
    let dir = cache_dir().join(CACHE);
    let stock =
        Stock { disk: dir.join("root.raw"), kernel: dir.join("vmlinuz"), initrd: dir.join("initrd.img") };
    if dir.join("complete").exists() {
        return Ok(stock);
    }
    say::line("building a stock Debian 13 (once; about three minutes)");
    let work = run.dir().join(format!("stock-{}", run.id()));
    run.record(Resource::Dir { path: work.clone() })?;
    let tree = work.join("tree");
    fs::create_dir_all(&tree)?;
    fs::create_dir_all(&dir)?;
    debootstrap(run, &tree)?;
    furnish(run, &tree)?;
    for (file, prefix) in [(&stock.kernel, "vmlinuz-"), (&stock.initrd, "initrd.img-")] {
        fs::copy(newest(&tree.join("boot"), prefix)?, file).with_context(|| format!("copy {prefix}*"))?;
    }
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-U", ROOT, "-d"]).arg(&tree).arg(&stock.disk).arg("4G");
    must(run, &mut mkfs)?;
    Resource::Dir { path: work }.remove(run.id())?;
    // They are not used any more, and each takes more than a gigabyte.
    for older in OLDER_CACHES {
        let _ = fs::remove_dir_all(cache_dir().join(older));
    }
    fs::write(dir.join("complete"), "").context("mark the stock disk as complete")?;
    Ok(stock)
}

/// A machine that boots `disk`, a copy of it, with this memory in MiB, these processors, and further arguments of the kernel.
pub(super) fn machine(
    run: &Run,
    stock: &Stock,
    disk: &Path,
    (memory_mib, processors): (u32, u32),
    arguments: &str,
) -> Result<Machine> {
    Ok(Machine {
        arch: Arch::HOST,
        accelerator: Image::as_released()?.accelerator()?,
        memory_mib,
        processors,
        topology: None,
        boot: Boot::Direct {
            kernel: stock.kernel.clone(),
            initrd: stock.initrd.clone(),
            cmdline: format!("{COMMAND_LINE} {arguments}").trim_end().to_owned(),
        },
        disks: vec![Disk { file: disk.to_owned(), format: "raw", bus: Bus::Virtio }],
        write_log: None,
        fw_cfg: Vec::new(),
        firmware: qemu::Firmware::default(),
        network: qemu::Network::Nowhere,
        forwards: Vec::new(),
        ports: Vec::new(),
        api_port: None,
        sockets: socket_dir(run)?,
        qemu_listens: &[],
        no_reboot: true,
    })
}

/// Lines of the console before and after a sample.
pub(super) fn marks(which: &str) -> [String; 2] {
    ["BEGIN", "END"].map(|at| format!("E2E-USAGE-{at} {which}"))
}

/// The script of [`SAMPLER`]. `settle_s`: by then the work after the start is over.
fn sampler(settle_s: u32) -> String {
    let sample = |which: &str| {
        let [begin, end] = marks(which);
        format!("echo; echo {begin}\n{GATHER}\necho {end}\n")
    };
    format!(
        "#!/bin/sh\nwindow=$(sed -n 's/.*{USAGE}=\\([0-9]*\\).*/\\1/p' /proc/cmdline)\n\
         [ -n \"$window\" ] || exit 0\nsleep {settle_s}\n{}sleep $window\n{}",
        sample("first"),
        sample("second")
    )
}

fn debootstrap(run: &Arc<Run>, tree: &Path) -> Result<()> {
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--variant=standard", "--include=linux-image-amd64,initramfs-tools,openssh-server"])
        .arg("--aptopt=APT::Install-Recommends \"true\"")
        // A mirror's snapshot may be older than this machine's clock allows.
        .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
        .args(["trixie"])
        .arg(tree);
    must(run, &mut command).map(|_| ()).context("mmdebstrap (package mmdebstrap)")
}

fn furnish(run: &Arc<Run>, tree: &Path) -> Result<()> {
    fs::write(tree.join("etc/fstab"), format!("UUID={ROOT} / ext4 errors=remount-ro 0 1\n"))?;
    fs::write(tree.join("etc/network/interfaces"), INTERFACES)?;
    fs::write(tree.join("etc/machine-id"), "6f726c6f700040008000000000000001\n")?;
    fs::write(tree.join("etc/hostname"), "stock\n")?;
    fs::write(tree.join("etc/systemd/system/e2e-report.service"), UNIT)?;
    fs::write(tree.join(SAMPLER), sampler(SETTLE_S))?;
    fs::set_permissions(tree.join(SAMPLER), Permissions::from_mode(0o755))?;
    let mut enable = Command::new("chroot");
    must(run, enable.arg(tree).args(["systemctl", "enable", "e2e-report.service"])).map(|_| ())
}

fn newest(dir: &Path, prefix: &str) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| format!("read {}", dir.display()))?
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
        .collect();
    found.sort();
    found.pop().with_context(|| format!("no {prefix}* in {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A real shell. The window is the machine's own arguments, which have none.
    #[test]
    fn without_the_argument_no_sample_is_taken() {
        let script = sampler(0);
        let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        let with = script.replace("/proc/cmdline", "/dev/stdin");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("echo quiet {USAGE}=0 ro | sh -c \"$0\""), &with]);
        let output = shell.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        for mark in marks("first").into_iter().chain(marks("second")) {
            assert_eq!(lines.iter().filter(|line| **line == mark).count(), 1, "{mark}: {text}");
        }
        assert!(lines.iter().any(|line| line.starts_with("meminfo:MemTotal:")), "{text}");
    }
}
