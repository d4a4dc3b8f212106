//! The mount table: a pod's mounts, the order of their removal, and whether containers can share them.
//!
//! In: `/proc/self/mountinfo`. Out: mount points. Invariant: only mounts below the pod's own directory.
//!
//! Why no crate: `procfs-core` reads these lines among all of /proc; five fields are used here, and a line that is none must not hide
//! the others.

/// Option of a file system with one SELinux label.
const CONTEXT: &str = "context=";

/// One line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Path of the mount point.
    pub path: String,
    /// Type of the file system.
    pub kind: String,
    /// Numbers of its device (`8:16`): mounts of one file system have the same.
    pub device: String,
    /// The SELinux label of all of its files (`context=`), if it was mounted with one.
    pub label: Option<String>,
    /// Mounts below it come to its peers, and theirs to it (`shared:`, mount_namespaces(7)).
    pub shared: bool,
}

/// Parses `mountinfo` (proc_pid_mountinfo(5)). Lines that are none are skipped.
#[must_use]
pub fn parse(text: &str) -> Vec<MountPoint> {
    text.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(2);
            let (device, path) = (left.next()?.to_owned(), unescape(left.nth(1)?));
            let shared = left.skip(1).any(|field| field.starts_with("shared:"));
            let mut right = right.split(' ');
            let kind = right.next()?.to_owned();
            Some(MountPoint { path, kind, device, label: right.nth(1).and_then(label), shared })
        })
        .collect()
}

/// What `context=` says among a file system's own options. It is quoted if it has commas.
fn label(options: &str) -> Option<String> {
    let from = match options.strip_prefix(CONTEXT) {
        Some(rest) => rest,
        None => options.split_once(&format!(",{CONTEXT}"))?.1,
    };
    let text = match from.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => from.split(',').next(),
    };
    text.map(str::to_owned)
}

/// Spaces, tabs, line ends and backslashes are octal.
fn unescape(text: &str) -> String {
    let mut plain = text.to_owned();
    for (code, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(code, character);
    }
    plain
}

/// Mount points below `directory`, the newest first: a mount on or in another one is ended before that one.
#[must_use]
pub fn below(table: &[MountPoint], directory: &str) -> Vec<String> {
    let inside = |path: &str| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
    table.iter().rev().filter(|m| inside(&m.path)).map(|m| m.path.clone()).collect()
}

/// What is to be done for a directory before containers can share mounts below it (`mountPropagation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing: the directory lies on a shared mount.
    Shared,
    /// The directory becomes a shared mount of its own.
    Bind,
    /// Nothing can be done: so many mounts lie below the directory, and a mount at the directory would hide them.
    Held(usize),
}

/// Whether the directory lies on a shared mount. `directory` is absolute and leads over no link.
#[must_use]
pub fn sharing(table: &[MountPoint], directory: &str) -> Sharing {
    let holds = |mounted: &str| {
        let rest = directory.strip_prefix(mounted.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match (table.iter().rev().find(|m| holds(&m.path)), below(table, directory).len()) {
        (Some(mount), _) if mount.shared => Sharing::Shared,
        (_, 0) => Sharing::Bind,
        (_, held) => Sharing::Held(held),
    }
}

/// The file system mounted at `path`, the topmost one.
#[must_use]
pub fn kind_at<'t>(table: &'t [MountPoint], path: &str) -> Option<&'t str> {
    table.iter().rev().find(|m| m.path == path).map(|m| m.kind.as_str())
}

/// The device of the file system mounted at `path`, the topmost one.
#[must_use]
pub fn device_at<'t>(table: &'t [MountPoint], path: &str) -> Option<&'t str> {
    table.iter().rev().find(|m| m.path == path).map(|m| m.device.as_str())
}

/// The SELinux label of the file system mounted at `path`, the topmost one, if it was mounted with one.
#[must_use]
pub fn label_at<'t>(table: &'t [MountPoint], path: &str) -> Option<&'t str> {
    table.iter().rev().find(|m| m.path == path).and_then(|m| m.label.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
23 1 8:1 / / rw - ext4 /dev/sda1 rw
30 23 0:30 / /pods/u1/volumes/a rw,relatime shared:1 - tmpfs tmpfs rw,size=1k
31 30 0:31 / /pods/u1/volumes/a/in\\040side rw - tmpfs tmpfs rw
32 23 0:32 / /pods/u10/volumes/a rw - tmpfs tmpfs rw
nonsense
33 23 0:33 / /pods/u1/volumes/a rw - overlay overlay rw
";

    #[test]
    fn mounts_of_one_pod_the_newest_first() {
        let table = parse(TABLE);
        assert_eq!(table.len(), 5);
        let expected = ["/pods/u1/volumes/a", "/pods/u1/volumes/a/in side", "/pods/u1/volumes/a"];
        assert_eq!(below(&table, "/pods/u1"), expected);
        assert!(below(&table, "/pods/u").is_empty());
        assert_eq!(kind_at(&table, "/pods/u1/volumes/a"), Some("overlay"));
        assert_eq!(kind_at(&table, "/pods/u1/volumes"), None);
        assert_eq!(device_at(&table, "/pods/u1/volumes/a"), Some("0:33"));
    }

    #[test]
    fn a_directory_is_shared_if_the_mount_is_that_it_lies_on() {
        let table = parse(
            "23 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
             24 23 8:2 / /var rw,relatime master:1 - ext4 /dev/sda2 rw\n\
             25 24 8:3 / /var/lib rw shared:7 master:2 - ext4 /dev/sda3 shared:rw\n\
             26 24 0:9 / /var/log/pods/u rw - tmpfs tmpfs rw,shared:9\n",
        );
        for (directory, expected) in [
            ("/", Sharing::Shared),
            ("/variable", Sharing::Shared),
            ("/var", Sharing::Held(2)),
            ("/var/log", Sharing::Held(1)),
            ("/var/log/pods/u", Sharing::Bind),
            ("/var/log/pods/u2", Sharing::Bind),
            ("/var/lib", Sharing::Shared),
            ("/var/lib/kubelet", Sharing::Shared),
        ] {
            assert_eq!(sharing(&table, directory), expected, "{directory}");
        }
        assert_eq!(sharing(&[], "/var"), Sharing::Bind);
    }

    #[test]
    fn labels_of_mounts() {
        for (options, expected) in [
            ("rw,seclabel,data=ordered", None),
            (r#"rw,context="u:object_r:t:s0:c1,c2",nodev"#, Some("u:object_r:t:s0:c1,c2")),
            ("context=u:object_r:t:s0,rw", Some("u:object_r:t:s0")),
            ("rw,context=u:object_r:t:s0", Some("u:object_r:t:s0")),
            ("rw,rootcontext=u:object_r:t:s0,defcontext=x", None),
        ] {
            let table = parse(&format!("30 23 0:30 / /v rw,relatime - ext4 /dev/loop0 {options}\n"));
            assert_eq!(label_at(&table, "/v"), expected, "{options}");
            assert_eq!(label_at(&table, "/w"), None);
        }
    }
}
