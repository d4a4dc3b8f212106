//! SCSI disks as the kernel shows them: sessions of iSCSI targets and their hosts, units, devices that join several paths, and
//! the links that udev makes.
//!
//! In: names of targets, units, devices. Out: what sysfs and /dev say; a host that looks for a unit, a device that is taken
//! away. Invariant: a name that is written into a path is one name. Upstream: pkg/volume/util/device_util_linux.go.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::files::FilesError;
use crate::volumes::device::entries;

/// Where the kernel shows iSCSI hosts, below sysfs.
const ISCSI_HOSTS: &str = "class/iscsi_host";
/// Where it shows all SCSI hosts, below sysfs.
const SCSI_HOSTS: &str = "class/scsi_host";
/// Where it shows disks, below sysfs.
const BLOCKS: &str = "block";

/// The kernel's view.
#[derive(Clone, Debug)]
pub struct Scsi {
    sys: PathBuf,
    dev: PathBuf,
}

impl Default for Scsi {
    fn default() -> Self {
        Scsi { sys: "/sys".into(), dev: "/dev".into() }
    }
}

/// A session of a target.
struct Session {
    host: u32,
    path: PathBuf,
}

impl Scsi {
    /// The sessions of a target. A session that ends meanwhile does not count.
    fn sessions(&self, iqn: &str) -> Result<Vec<Session>, FilesError> {
        let hosts = self.sys.join(ISCSI_HOSTS);
        let mut found = Vec::new();
        for name in names(&hosts)? {
            let Some(host) = name.strip_prefix("host").and_then(|number| number.parse().ok()) else {
                continue;
            };
            let device = hosts.join(&name).join("device");
            for session in names(&device)?.into_iter().filter(|n| n.starts_with("session")) {
                let path = device.join(&session);
                let target = path.join("iscsi_session").join(&session).join("targetname");
                if read(&target).is_some_and(|name| name == iqn) {
                    found.push(Session { host, path });
                }
            }
        }
        Ok(found)
    }

    /// The portals of a target that have sessions (`address:port`), and their SCSI hosts.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn portal_hosts(&self, iqn: &str) -> Result<BTreeMap<String, u32>, FilesError> {
        let mut found = BTreeMap::new();
        for Session { host, path } in self.sessions(iqn)? {
            for name in names(&path)?.into_iter().filter(|n| n.starts_with("connection")) {
                let connection = path.join(&name).join("iscsi_connection").join(&name);
                // The one that it was asked for, and the one that the target sent it to.
                for (address, port) in [("address", "port"), ("persistent_address", "persistent_port")] {
                    let both = read(&connection.join(address)).zip(read(&connection.join(port)));
                    found.extend(both.map(|(address, port)| (portal(&address, &port), host)));
                }
            }
        }
        Ok(found)
    }

    /// The devices of a unit of a target, one for each session: `sdb`.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn devices_of(&self, iqn: &str, lun: i32) -> Result<Vec<String>, FilesError> {
        let mut found = Vec::new();
        for Session { host, path } in self.sessions(iqn)? {
            // Channel and target are always the first ones.
            let unit = path.join(format!("target{host}:0:0/{host}:0:0:{lun}/block"));
            found.extend(names(&unit)?);
        }
        Ok(found)
    }

    /// Has a host look for one unit.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn scan(&self, host: u32, lun: i32) -> Result<(), FilesError> {
        let path = self.sys.join(SCSI_HOSTS).join(format!("host{host}/scan"));
        fs::write(&path, format!("0 0 {lun}")).map_err(FilesError::at("write", &path))
    }

    /// Has all hosts look for everything. What one refuses keeps no other one back, as upstream.
    ///
    /// # Errors
    /// The directory of hosts cannot be read.
    pub fn scan_all(&self) -> Result<(), FilesError> {
        let hosts = self.sys.join(SCSI_HOSTS);
        for name in names(&hosts)? {
            let path = hosts.join(name).join("scan");
            if let Err(error) = fs::write(&path, "- - -") {
                tracing::debug!(path = %path.display(), %error, "a SCSI host does not look for disks");
            }
        }
        Ok(())
    }

    /// Names of links in a directory of links to disks (`disk/by-path`).
    ///
    /// # Errors
    /// It cannot be read.
    pub fn links(&self, directory: &str) -> Result<Vec<String>, FilesError> {
        names(&self.dev.join(directory))
    }

    /// What a link of that directory leads to; `None`: nothing.
    #[must_use]
    pub fn follow(&self, directory: &str, link: &str) -> Option<PathBuf> {
        fs::canonicalize(self.dev.join(directory).join(link)).ok()
    }

    /// The device that joins this one with others, if one does: `/dev/dm-0`.
    ///
    /// # Errors
    /// The kernel's devices cannot be read.
    pub fn joined(&self, device: &Path) -> Result<Option<String>, FilesError> {
        // It may be a link.
        let device = fs::canonicalize(device).unwrap_or_else(|_| device.to_owned());
        let Some(name) = device.file_name() else { return Ok(None) };
        let blocks = self.sys.join(BLOCKS);
        let all = names(&blocks)?.into_iter().filter(|n| n.starts_with("dm-"));
        let joins = |dm: &String| fs::symlink_metadata(blocks.join(dm).join("slaves").join(name)).is_ok();
        Ok(all.into_iter().find(joins).map(|dm| self.dev.join(dm).display().to_string()))
    }

    /// Names of the devices that `/dev/dm-…` joins.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn parts(&self, joined: &str) -> Result<Vec<String>, FilesError> {
        let name = Path::new(joined).file_name().unwrap_or_default();
        names(&self.sys.join(BLOCKS).join(name).join("slaves"))
    }

    /// Takes a SCSI device away. One that is not there, or no SCSI device, is a success.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn delete(&self, name: &str) -> Result<(), FilesError> {
        let path = self.sys.join(BLOCKS).join(name).join("device/delete");
        match fs::OpenOptions::new().write(true).open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            opened => opened
                .and_then(|mut file| io::Write::write_all(&mut file, b"1"))
                .map_err(FilesError::at("write", &path)),
        }
    }
}

/// Addresses of the sixth version are in brackets.
fn portal(address: &str, port: &str) -> String {
    match address.contains(':') && !address.starts_with('[') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Names in a directory, sorted; none, if it is not there (a kernel without that kind of device).
fn names(directory: &Path) -> Result<Vec<String>, FilesError> {
    let mut all = entries(directory)?;
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const IQN: &str = "iqn.2026-01.com.example:disk";

    /// A machine with a session of [`IQN`] through host 7, whose unit 3 is `sdb`, joined with `sdc` by `dm-0`.
    fn machine(dir: &Path) -> Scsi {
        let put = |path: &str, text: &str| {
            let path = dir.join("sys").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let host = "class/iscsi_host/host7/device";
        put(&format!("{host}/session4/iscsi_session/session4/targetname"), &format!("{IQN}\n"));
        let connection = format!("{host}/session4/connection4:0/iscsi_connection/connection4:0");
        for (name, text) in [
            ("address", "fd00::1\n"),
            ("port", "3260\n"),
            ("persistent_address", "10.0.0.1\n"),
            ("persistent_port", "3260\n"),
        ] {
            put(&format!("{connection}/{name}"), text);
        }
        put(&format!("{host}/session4/target7:0:0/7:0:0:3/block/sdb/size"), "1");
        put("class/iscsi_host/host8/device/session5/iscsi_session/session5/targetname", "iqn.other\n");
        for host in ["host7", "host8"] {
            put(&format!("class/scsi_host/{host}/scan"), "");
        }
        put("block/sdb/device/delete", "");
        put("block/loop0/size", "1");
        for name in ["sdb", "sdc"] {
            put(&format!("block/dm-0/slaves/{name}/size"), "1");
        }
        let links = dir.join("dev/disk/by-path");
        fs::create_dir_all(&links).unwrap();
        fs::write(dir.join("dev/sdb"), "").unwrap();
        symlink("../../sdb", links.join("ip-10.0.0.1")).unwrap();
        symlink("../../gone", links.join("broken")).unwrap();
        Scsi { sys: dir.join("sys"), dev: dir.join("dev") }
    }

    #[test]
    fn sessions_and_their_units_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let scsi = machine(dir.path());
        let portals: Vec<(String, u32)> = scsi.portal_hosts(IQN).unwrap().into_iter().collect();
        assert_eq!(portals, [("10.0.0.1:3260".to_owned(), 7), ("[fd00::1]:3260".to_owned(), 7)]);
        assert_eq!(scsi.devices_of(IQN, 3).unwrap(), ["sdb"]);
        assert!(
            scsi.devices_of(IQN, 4).unwrap().is_empty() && scsi.devices_of("iqn.none", 3).unwrap().is_empty()
        );
        let none = Scsi { sys: dir.path().join("none"), dev: dir.path().join("none") };
        assert!(none.portal_hosts(IQN).unwrap().is_empty() && none.links("disk/by-path").unwrap().is_empty());
        none.scan_all().unwrap();
        none.scan(7, 3).unwrap_err();
    }

    #[test]
    fn hosts_look_for_units_and_devices_are_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let scsi = machine(dir.path());
        let told = |path: &str| fs::read_to_string(dir.path().join("sys").join(path)).unwrap();
        scsi.scan(7, 3).unwrap();
        assert_eq!(
            (told("class/scsi_host/host7/scan"), told("class/scsi_host/host8/scan")),
            ("0 0 3".into(), "".into())
        );
        scsi.scan_all().unwrap();
        assert_eq!(told("class/scsi_host/host8/scan"), "- - -");
        scsi.delete("sdb").unwrap();
        assert_eq!(told("block/sdb/device/delete"), "1");
        scsi.delete("loop0").unwrap();
    }

    #[test]
    fn links_lead_to_devices_and_devices_are_joined() {
        let dir = tempfile::tempdir().unwrap();
        let scsi = machine(dir.path());
        assert_eq!(scsi.links("disk/by-path").unwrap(), ["broken", "ip-10.0.0.1"]);
        let sdb = fs::canonicalize(dir.path().join("dev/sdb")).unwrap();
        assert_eq!(scsi.follow("disk/by-path", "ip-10.0.0.1"), Some(sdb));
        assert_eq!(scsi.follow("disk/by-path", "broken"), None);
        let joined = scsi.joined(&dir.path().join("dev/disk/by-path/ip-10.0.0.1")).unwrap().unwrap();
        assert!(joined.ends_with("/dm-0"));
        assert_eq!(scsi.parts(&joined).unwrap(), ["sdb", "sdc"]);
        assert_eq!(scsi.joined(Path::new("/dev/loop0")).unwrap(), None);
    }
}
