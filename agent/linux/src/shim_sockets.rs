//! The sockets on which shims are asked, as the kernel and the bundles name them.
//!
//! In: a shim's process id, the directory of all bundles. Out: whether a bundle names a socket of the shim. containerd writes the
//! address of the shim that holds a container into the container's bundle: as JSON into `bootstrap.json`, and versions before 2.0 as
//! text into `address` (`restoreBootstrapParams` of its core/runtime/v2). A shim that several pods share is named by the bundles of
//! all of them, and works in that of the first one. Invariant: in doubt a socket counts as named, so that no shim is ended because
//! something cannot be read; what a pod does with sockets of its own can spare a shim, and never end one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

/// Files of a bundle with the address of its shim.
const ADDRESS_FILES: [&str; 2] = ["bootstrap.json", "address"];
/// How an address begins; the path follows.
const SCHEME: &str = "unix://";
/// Longest such file, bytes. containerd's have some hundred.
const ADDRESS_BYTES_MAX: u64 = 64 * 1024;
/// Longest list of sockets that is read, bytes. A pod in the host's network may have as many sockets as it likes.
const SOCKETS_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most descriptors of a shim that are looked at. A container needs some ten.
const DESCRIPTORS_MAX: usize = 10_000;

/// Whether one of `named` is a socket of the process; true in doubt.
pub(crate) fn is_asked_on(pid: i32, named: &BTreeSet<String>) -> bool {
    if named.is_empty() {
        return false;
    }
    of_process(pid).is_none_or(|own| own.iter().any(|path| named.contains(path)))
}

/// The sockets that the bundles name; `None` if a bundle cannot be read.
pub(crate) fn named_by(bundles: &Path) -> Option<BTreeSet<String>> {
    let entries = match fs::read_dir(bundles) {
        Ok(entries) => entries,
        // The runtime has never run a container.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(BTreeSet::new()),
        Err(_) => return None,
    };
    let mut named = BTreeSet::new();
    for entry in entries {
        let bundle = entry.ok()?.path();
        for file in ADDRESS_FILES {
            match read(&bundle.join(file), ADDRESS_BYTES_MAX) {
                Ok(text) => named.extend(addresses(&text?)),
                // Not there yet, or not there any more.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => return None,
            }
        }
    }
    Some(named)
}

/// The paths of the addresses in a file of a bundle.
fn addresses(text: &str) -> Vec<String> {
    let path = |rest: &str| rest.split(['"', '\n', ' ']).next().unwrap_or_default().to_owned();
    text.split(SCHEME).skip(1).map(path).filter(|path| !path.is_empty()).collect()
}

/// Paths of the sockets that the process has open; `None` if they cannot be found.
fn of_process(pid: i32) -> Option<BTreeSet<String>> {
    let mut inodes = BTreeSet::new();
    for (count, entry) in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.enumerate() {
        if count >= DESCRIPTORS_MAX {
            return None;
        }
        // A descriptor that was closed meanwhile is none.
        let Ok(target) = fs::read_link(entry.ok()?.path()) else { continue };
        inodes.extend(target.to_str().and_then(socket_inode));
    }
    let table = read(Path::new(&format!("/proc/{pid}/net/unix")), SOCKETS_BYTES_MAX).ok()??;
    Some(paths(&table, &inodes))
}

/// The number in `socket:[NUMBER]`.
fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Paths of these sockets in /proc/net/unix: `Num RefCount Protocol Flags Type St Inode Path`.
fn paths(table: &str, inodes: &BTreeSet<u64>) -> BTreeSet<String> {
    let path = |line: &str| {
        let mut fields = line.split_whitespace().skip(6);
        let inode = fields.next()?.parse::<u64>().ok()?;
        if inodes.contains(&inode) { fields.next().map(str::to_owned) } else { None }
    };
    table.lines().filter_map(path).collect()
}

/// The whole file, with signs in place of what is no text; `None` if it is longer than `max` bytes.
fn read(path: &Path, max: u64) -> io::Result<Option<String>> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(max + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= max).then(|| String::from_utf8_lossy(&content).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn addresses_are_read_in_both_forms() {
        let json = r#"{"version":3,"address":"unix:///run/containerd/s/ab12","protocol":"ttrpc"}"#;
        assert_eq!(addresses(json), ["/run/containerd/s/ab12"]);
        assert_eq!(addresses("unix:///run/containerd/s/ab12\n"), ["/run/containerd/s/ab12"]);
        for other in ["", "{}", "vsock://3:1024", "unix://", r#"{"address":"unix://"}"#] {
            assert_eq!(addresses(other), [""; 0], "{other}");
        }
    }

    #[test]
    fn sockets_are_found_by_their_inodes() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 1017 /run/containerd/s/ab\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 1018 /run/containerd/s/cd\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 1019\n\
                     short\n";
        let of = |inodes: &[u64]| paths(table, &inodes.iter().copied().collect());
        assert_eq!(of(&[1017, 1019, 7]), BTreeSet::from(["/run/containerd/s/ab".to_owned()]));
        assert!(of(&[]).is_empty());
        assert_eq!(
            (socket_inode("socket:[17]"), socket_inode("pipe:[17]"), socket_inode("/x")),
            (Some(17), None, None)
        );
    }

    #[test]
    fn a_process_is_asked_on_the_sockets_that_it_has_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listening = UnixListener::bind(&path).unwrap();
        let named = BTreeSet::from([path.display().to_string()]);
        let own = std::process::id().cast_signed();
        assert!(is_asked_on(own, &named));
        assert!(!is_asked_on(own, &BTreeSet::new()));
        assert!(!is_asked_on(own, &BTreeSet::from(["/other".to_owned()])));
        drop(listening);
        assert!(!is_asked_on(own, &named));
        assert!(is_asked_on(i32::MAX, &named), "a process that cannot be looked at is in doubt");
    }

    #[test]
    fn bundles_name_sockets_and_what_cannot_be_read_is_no_list() {
        let dir = tempfile::tempdir().unwrap();
        let bundles = dir.path().join("k8s.io");
        assert_eq!(named_by(&bundles), Some(BTreeSet::new()));
        for name in ["a", "b", "starting"] {
            fs::create_dir_all(bundles.join(name)).unwrap();
        }
        fs::write(bundles.join("a/bootstrap.json"), r#"{"address":"unix:///s/1"}"#).unwrap();
        fs::write(bundles.join("b/address"), "unix:///s/2").unwrap();
        assert_eq!(named_by(&bundles), Some(BTreeSet::from(["/s/1", "/s/2"].map(str::to_owned))));
        fs::create_dir(bundles.join("starting/bootstrap.json")).unwrap();
        assert_eq!(named_by(&bundles), None, "it is no file");
    }
}
