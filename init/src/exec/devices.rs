//! Block devices: kernel uevents, and /sys/class/block read into `plan::disk::Disk`.
//!
//! Subscribe first, then scan: a device that appears between the two is seen twice, never missed. Lost
//! messages (ENOBUFS) count as an event, so the next scan finds what they were about.

use super::clock::boottime_ms;
use super::error::InitError;
use crate::plan::disk::Disk;
use crate::plan::{gpt, uevent};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Kernel's multicast group of uevents (2 is udev's).
const KERNEL_GROUP: u32 = 1;
/// Devices that never hold this system's partitions.
const NOT_DISKS: [&str; 7] = ["loop", "ram", "zram", "dm-", "fd", "sr", "nbd"];

/// A subscription to the kernel's uevents.
#[derive(Debug)]
pub struct Uevents(OwnedFd);

impl Uevents {
    /// Subscribes.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn subscribe() -> Result<Uevents, InitError> {
        let fail = |e| InitError::Kernel("subscribe to kernel uevents", e);
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let fd = socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol).map_err(fail)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP)).map_err(fail)?;
        Ok(Uevents(fd))
    }

    /// Waits for a block device or one that calls for a driver; false if `deadline_ms` (CLOCK_BOOTTIME) passes first.
    ///
    /// # Errors
    /// The socket failed.
    pub fn wait_device(&self, deadline_ms: u64) -> Result<bool, InitError> {
        loop {
            if self.drain()? {
                return Ok(true);
            }
            let left = deadline_ms.saturating_sub(boottime_ms());
            if left == 0 {
                return Ok(false);
            }
            let timeout =
                PollTimeout::try_from(i32::try_from(left).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(InitError::Kernel("wait for kernel uevents", e)),
            }
        }
    }

    /// Reads all that is queued; was there anything to look at?
    fn drain(&self) -> Result<bool, InitError> {
        let mut buffer = [0u8; 8192];
        let mut seen = false;
        loop {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(n) => {
                    seen |= uevent::parse(&buffer[..n]).is_some_and(|e| e.subsystem == "block" || e.modalias)
                }
                Err(Errno::ENOBUFS) => seen = true,
                Err(Errno::EAGAIN) => return Ok(seen),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(InitError::Kernel("read kernel uevents", e)),
            }
        }
    }
}

/// All disks with their partition tables, by name.
#[must_use]
pub fn scan() -> Vec<Disk> {
    scan_in(Path::new("/sys/class/block"), Path::new("/dev"))
}

fn scan_in(class: &Path, dev: &Path) -> Vec<Disk> {
    let mut names: Vec<String> = match fs::read_dir(class) {
        Ok(entries) => entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect(),
        Err(_) => Vec::new(),
    };
    names.sort();
    let whole = |name: &&String| {
        !class.join(name).join("partition").exists() && !NOT_DISKS.iter().any(|p| name.starts_with(p))
    };
    names.iter().filter(whole).filter_map(|name| disk(class, dev, name)).collect()
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn disk(class: &Path, dev: &Path, name: &str) -> Option<Disk> {
    let sys = class.join(name);
    // Always in units of 512 bytes; the sector size does not matter.
    let bytes = number(&sys.join("size"))?.checked_mul(512).filter(|b| *b > 0)?;
    let sector =
        number(&sys.join("queue/logical_block_size")).and_then(|s| u32::try_from(s).ok()).unwrap_or(512);
    let device = File::open(dev.join(name)).ok();
    let table = gpt::read_table(bytes, sector, |offset, length| {
        let mut buffer = vec![0; length];
        device.as_ref()?.read_exact_at(&mut buffer, offset).ok()?;
        Some(buffer)
    });
    Some(Disk { name: name.to_string(), bytes, sector, table, nodes: partition_nodes(&sys) })
}

/// Partitions are subdirectories of their disk with a file `partition`.
fn partition_nodes(sys: &Path) -> Vec<(u32, (u64, u64))> {
    let Ok(entries) = fs::read_dir(sys) else { return Vec::new() };
    let node = |dir: &Path| {
        let partition = u32::try_from(number(&dir.join("partition"))?).ok()?;
        let text = fs::read_to_string(dir.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some((partition, (major.parse().ok()?, minor.parse().ok()?)))
    };
    entries.flatten().filter_map(|e| node(&e.path())).collect()
}

/// Reads `N` bytes at `offset` of a device.
///
/// # Errors
/// Opening or reading failed, or the device is shorter.
pub fn read_at(path: &str, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0; length];
    File::open(path)?.read_exact_at(&mut buffer, offset)?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::gpt::GptError;

    #[test]
    fn sysfs_is_read_into_disks() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (class, dev) = (dir.path().join("class"), dir.path().join("dev"));
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("parent"))
                .and_then(|()| fs::write(path, text))
                .expect("fixture");
        };
        write("class/vda/size", "2048\n");
        write("class/vda/queue/logical_block_size", "4096\n");
        write("class/vda/vda2/partition", "2\n");
        write("class/vda/vda2/dev", "254:2\n");
        write("class/vda2/partition", "2\n");
        write("class/loop0/size", "2048\n");
        write("class/sdb/size", "0\n");
        write("dev/vda", &"\0".repeat(1 << 20));
        let disks = scan_in(&class, &dev);
        assert_eq!(disks.len(), 1);
        let d = &disks[0];
        assert_eq!((d.name.as_str(), d.bytes, d.sector), ("vda", 1 << 20, 4096));
        assert_eq!((&d.table, d.nodes.as_slice()), (&Err(GptError::None), &[(2, (254, 2))][..]));
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let events = Uevents::subscribe().expect("netlink");
        let deadline = boottime_ms() + 20;
        // Other devices may come and go on the machine that runs the test; the deadline holds either way.
        while events.wait_device(deadline).expect("poll") {}
        assert!(boottime_ms() >= deadline);
    }
}
