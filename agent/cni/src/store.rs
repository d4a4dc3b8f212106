//! Reservations on disk, in the format of the reference plugin `host-local`, so that either can go on with the other's.
//!
//! ```text
//! <data dir>/<network>/lock                  flock, held while anything here is read or written
//!                      10.88.0.2             container id, CR LF, interface
//!                      last_reserved_ip.0    the address given last from range set 0
//! ```
//! Invariants: an address file appears with its content (written to another file, then renamed), so a kill leaves
//! the whole reservation or none; a file without content is one that a killed host-local left, and its address is free.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::failure::Failure;
use crate::ipam::{Lease, Owner, Reservations};

const LOCK: &str = "lock";
const LAST: &str = "last_reserved_ip.";
/// No address, so no reader takes it for a reservation.
const UNFINISHED: &str = ".unfinished";

/// The reservations of one network, locked.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Store {
    /// Makes the directory if it is missing, and waits for the lock.
    ///
    /// # Errors
    /// Directory or lock cannot be made.
    pub fn open(data_dir: &Path, network: &str) -> Result<Store, Failure> {
        let dir = data_dir.join(network);
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&dir);
        made.map_err(failed("make directory", &dir))?;
        let path = dir.join(LOCK);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed("open", &path))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| failed("lock", &path)(errno.into()))?;
        Ok(Store { dir, _lock: lock })
    }

    /// What is reserved.
    ///
    /// # Errors
    /// The directory cannot be read; a file that cannot be read counts as an address of an unknown container.
    pub fn read(&self) -> Result<Reservations, Failure> {
        let mut known = Reservations::default();
        for name in self.names()? {
            let path = self.dir.join(&name);
            if let Some(set) = name.strip_prefix(LAST).and_then(|set| set.parse().ok()) {
                let text = fs::read_to_string(&path).unwrap_or_default();
                known.last.extend(text.trim().parse::<IpAddr>().ok().map(|ip| (set, ip)));
            } else if let Ok(ip) = name.parse::<IpAddr>() {
                let text = match fs::read(&path) {
                    Err(e) if e.kind() == ErrorKind::NotFound => continue,
                    Err(_) => "?".to_owned(),
                    Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                };
                known.owners.extend(owner(&text).map(|owner| (ip, owner)));
            }
        }
        Ok(known)
    }

    /// Writes that the container has the address. One that was [`kept`](Lease::kept) is there already.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn reserve(&self, lease: &Lease, container: &str, interface: &str) -> Result<(), Failure> {
        if lease.kept {
            return Ok(());
        }
        // First, so that an address that was given is not soon given again, also if a later step fails.
        self.write(&format!("{LAST}{}", lease.set), &lease.ip.to_string())?;
        self.write(&lease.ip.to_string(), &format!("{container}\r\n{interface}"))
    }

    /// Makes or replaces a file, whole.
    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        use io::Write as _;
        let (unfinished, path) = (self.dir.join(UNFINISHED), self.dir.join(name));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(failed("write", &unfinished))?;
        fs::rename(&unfinished, &path).map_err(failed("make", &path))
    }

    /// Gives back what the container's interface has; nothing is no mistake.
    ///
    /// # Errors
    /// A file cannot be removed; the others are.
    pub fn release(&self, container: &str, interface: &str) -> Result<(), Failure> {
        self.remove(|owner| owner.is(container, interface))
    }

    /// Gives back addresses that belong to none of these.
    ///
    /// # Errors
    /// A file cannot be removed; the others are.
    pub fn retain(&self, valid: &BTreeSet<(&str, &str)>) -> Result<(), Failure> {
        self.remove(|owner| !valid.iter().any(|(container, interface)| owner.is(container, interface)))
    }

    fn remove(&self, which: impl Fn(&Owner) -> bool) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for (ip, _) in self.read()?.owners.iter().filter(|(_, owner)| which(owner)) {
            let path = self.dir.join(ip.to_string());
            match fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => outcome = Err(failed("remove", &path)(e)),
                _ => {}
            }
        }
        outcome
    }

    fn names(&self) -> Result<Vec<String>, Failure> {
        let entries = fs::read_dir(&self.dir).map_err(failed("read directory", &self.dir))?;
        Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }
}

/// The container that an address file names; `None` if the file is empty.
fn owner(text: &str) -> Option<Owner> {
    let mut lines = text.trim().lines().map(str::trim);
    let container = lines.next().filter(|id| !id.is_empty())?.to_owned();
    Some(Owner { container, interface: lines.next().map(str::to_owned) })
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Failure {
    move |source| Failure::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ip: &str, set: usize) -> Lease {
        let of = |text: &str| text.parse().expect("an address");
        Lease { ip: of(ip), prefix: 24, gateway: of("10.1.0.1"), set, kept: false }
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("there")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_format_is_host_locals() {
        let data = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(data.path(), "n").expect("opened");
        store.reserve(&lease("10.1.0.2", 0), "c1", "eth0").expect("reserved");
        store.reserve(&lease("fd00::2", 1), "c1", "eth0").expect("reserved");
        let dir = data.path().join("n");
        assert_eq!(names(&dir), ["10.1.0.2", "fd00::2", "last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
        assert_eq!(fs::read_to_string(dir.join("10.1.0.2")).expect("read"), "c1\r\neth0");
        assert_eq!(fs::read_to_string(dir.join("last_reserved_ip.1")).expect("read"), "fd00::2");
        store.release("c1", "eth1").expect("nothing to do");
        assert_eq!(store.read().expect("read").owners.len(), 2);
        for _ in 0..2 {
            store.release("c1", "eth0").expect("given back, and once more");
        }
        assert_eq!(names(&dir), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
    }

    #[test]
    fn what_a_kill_leaves_is_mended() {
        let data = tempfile::tempdir().expect("temporary directory");
        let dir = data.path().join("n");
        fs::create_dir(&dir).expect("directory");
        for (name, content) in [
            ("10.1.0.2", ""),
            ("10.1.0.3", "c3\r\neth0"),
            ("10.1.0.4", "c4"),
            (".unfinished", "c5\r\neth0"),
            ("last_reserved_ip.0", "10.1"),
        ] {
            fs::write(dir.join(name), content).expect("fixture");
        }
        let store = Store::open(data.path(), "n").expect("opened");
        let known = store.read().expect("read");
        let owners: Vec<_> =
            known.owners.iter().map(|(ip, o)| (ip.to_string(), o.container.as_str())).collect();
        assert_eq!(owners, [("10.1.0.3".to_owned(), "c3"), ("10.1.0.4".to_owned(), "c4")]);
        assert!(known.last.is_empty());
        store.reserve(&lease("10.1.0.2", 0), "c2", "eth0").expect("over the empty one");
        assert!(!dir.join(".unfinished").exists());
        store.retain(&BTreeSet::from([("c2", "eth0"), ("c4", "net1")])).expect("collected");
        let left: Vec<_> = store.read().expect("read").owners.into_values().map(|o| o.container).collect();
        assert_eq!(left, ["c2", "c4"]);
    }

    #[test]
    fn one_at_a_time() {
        let data = tempfile::tempdir().expect("temporary directory");
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let data = data.path().to_owned();
                std::thread::spawn(move || {
                    for m in 0..10 {
                        let store = Store::open(&data, "n").expect("opened");
                        let known = store.read().expect("read").owners.len();
                        let ip = format!("10.1.0.{}", known + 2);
                        store.reserve(&lease(&ip, 0), &format!("c{n}-{m}"), "eth0").expect("reserved");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        let store = Store::open(data.path(), "n").expect("opened");
        assert_eq!(store.read().expect("read").owners.len(), 80);
    }
}
