//! Disks of the node with a file system of a volume's (`local` volumes that are block devices): what is on one, and what is
//! done before pods have it.
//!
//! ```text
//! blank ──mkfs──► file system ──fsck──► mounted below plugins/…/mounts ──bind──► pods
//! ```
//! In: a disk's first and last bytes, what the volume says of it. Out: [`Next`]. Invariants: a disk is formatted only if its
//! beginning and its end are zeros, or if this node had begun to format it when they were; what is on it and not known here is
//! left as it is. Upstream: mount-utils SafeFormatAndMount (it asks blkid, which an appliance need not have).

use crate::bind::{Bind, Disk};
use crate::plugin::Plugin;

/// How much of a disk's beginning, and of its end, says what is on it, bytes: file systems, partition tables and labels of
/// volume managers are there.
pub const LOOKED_AT: usize = 1 << 20;
/// What is made where the volume says nothing. Upstream: the same.
const DEFAULT: &str = "ext4";
/// Where the super block of ext2 and its kin lies (Linux, Documentation/filesystems/ext4/super.rst).
const EXT_AT: usize = 1024;
/// "Errors were left uncorrected" (fsck(8)).
const UNCORRECTED: i32 = 4;

/// Directory in which the node mounts the disks of volumes.
#[must_use]
pub fn directory(root: &str) -> String {
    format!("{root}/plugins/{}/mounts", Plugin::Local.name())
}

/// Where the node mounts a volume's disk.
#[must_use]
pub fn global(root: &str, volume: &str) -> String {
    format!("{}/{volume}", directory(root))
}

/// Directory whose files name volumes that are being formatted.
#[must_use]
pub fn begun_directory(root: &str) -> String {
    format!("{root}/plugins/{}/formatting", Plugin::Local.name())
}

/// What is on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Blank,
    /// This file system.
    FileSystem(&'static str),
    /// Something else.
    Unknown,
}

/// What the first and the last [`LOOKED_AT`] bytes of a disk say; of a smaller one all of it, twice.
#[must_use]
pub fn content(head: &[u8], tail: &[u8]) -> Content {
    if head.starts_with(b"XFSB") {
        return Content::FileSystem("xfs");
    }
    if let Some(kind) = ext(head) {
        return Content::FileSystem(kind);
    }
    let zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if !head.is_empty() && zeros(head) && zeros(tail) { Content::Blank } else { Content::Unknown }
}

/// ext2 has no journal, ext3 no feature that is not known to it.
fn ext(head: &[u8]) -> Option<&'static str> {
    let number = |at: usize| {
        let bytes = head.get(EXT_AT + at..EXT_AT + at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if number(0x38)? & 0xffff != 0xef53 {
        return None;
    }
    let (compatible, incompatible, read_only) = (number(0x5c)?, number(0x60)?, number(0x64)?);
    // filetype, recover and meta_bg; sparse_super, large_file and btree_dir.
    let new = incompatible & !0x16 != 0 || read_only & !0x7 != 0;
    Some(match compatible & 0x4 != 0 {
        _ if new => "ext4",
        true => "ext3",
        false => "ext2",
    })
}

/// What there is of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Something is mounted where it goes; whether that is this disk.
    pub mounted: Option<bool>,
    /// What is on it.
    pub content: Content,
    /// This node had begun to format it.
    pub begun: bool,
}

/// A program of the node, and what it is told.
pub type Command = (String, Vec<String>);

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is mounted.
    Nothing,
    /// It is formatted.
    Format(Command),
    /// It is looked through.
    Check(Command),
    /// It is mounted.
    Mount(Command),
}

/// What is to be done next for a disk; `checked`: it was looked through, or formatted, just now.
///
/// # Errors
/// It cannot be had like this, and why.
pub fn next(of: &Bind, seen: Seen, checked: bool) -> Result<Next, String> {
    let Bind { source, disk: Disk { global, fs_type }, .. } = of;
    match seen.mounted {
        Some(true) => return Ok(Next::Nothing),
        Some(false) => return Err(format!("another disk than {source} is mounted at {global}: unmount it")),
        None => {}
    }
    // It becomes a part of a program's name.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    if !fs_type.chars().all(plain) || fs_type.starts_with(['.', '-']) {
        return Err(format!("fsType {fs_type:?} is no name of a file system"));
    }
    let wanted = Some(fs_type.as_str()).filter(|kind| !kind.is_empty());
    let options = || of.options.iter().flat_map(|o| o.split(',')).filter(|o| !o.is_empty());
    let writable = !of.read_only && !options().any(|option| option == "ro");
    let kind = match seen.content {
        _ if seen.begun || seen.content == Content::Blank => {
            if !writable {
                return Err(format!(
                    "cannot mount unformatted disk {source} as we are manipulating it in read-only mode"
                ));
            }
            return Ok(Next::Format(format(wanted.unwrap_or(DEFAULT), source)));
        }
        Content::FileSystem(kind) => {
            if writable && !checked {
                return Ok(Next::Check((format!("fsck.{kind}"), vec!["-a".to_owned(), source.clone()])));
            }
            wanted.unwrap_or(kind)
        }
        // Perhaps the kernel knows it by this name.
        _ => wanted.ok_or_else(|| {
            format!(
                "{source} holds something that is neither ext2, ext3, ext4 nor xfs: it is left as it is. Say what it is \
                 (fsType), or wipe it if nobody needs it"
            )
        })?,
    };
    let all: Vec<&str> = options().chain(["defaults"]).collect();
    let arguments = ["-t", kind, "-o", &all.join(","), source, global].map(str::to_owned);
    Ok(Next::Mount(("mount".to_owned(), arguments.into())))
}

fn format(kind: &str, source: &str) -> Command {
    let options: &[&str] = match kind {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let arguments = options.iter().copied().chain([source]).map(str::to_owned);
    (format!("mkfs.{kind}"), arguments.collect())
}

/// What makes the file system on a mounted disk as large as the disk.
///
/// # Errors
/// It is of a kind that cannot grow, or that nobody knows.
pub fn grow(of: &Bind, content: Content) -> Result<Command, String> {
    let Bind { source, disk: Disk { global, .. }, .. } = of;
    let (program, arguments): (_, &[&str]) = match content {
        Content::FileSystem("ext2" | "ext3" | "ext4") => ("resize2fs", &[source]),
        Content::FileSystem("xfs") => ("xfs_growfs", &["-d", global]),
        Content::FileSystem(kind) => return Err(cannot_grow(kind, of)),
        Content::Blank | Content::Unknown => return Err(cannot_grow(&of.disk.fs_type, of)),
    };
    Ok((program.to_owned(), arguments.iter().map(|&argument| argument.to_owned()).collect()))
}

fn cannot_grow(kind: &str, of: &Bind) -> String {
    let (source, global) = (&of.source, &of.disk.global);
    format!("resize of format {kind} is not supported for device {source} mounted at {global}")
}

/// A program's end was no success: why the volume cannot be had; `None`: it can all the same. `code` is `None` if there is no
/// such program, or a signal ended it.
#[must_use]
pub fn failure(of: &Bind, what: &Next, code: Option<i32>, words: &str) -> Option<String> {
    let (source, global, words) = (&of.source, &of.disk.global, words.trim());
    match what {
        Next::Nothing => None,
        Next::Check(_) => (code == Some(UNCORRECTED))
            .then(|| format!("'fsck' found errors on device {source} but could not correct them: {words}")),
        Next::Format((program, _)) => Some(format!("format of disk {source:?} failed: {program}: {words}")),
        Next::Mount(_) => Some(format!("local: failed to mount device {source} at {global}: {words}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ext_head(features: [u32; 3]) -> Vec<u8> {
        let mut head = vec![0; LOOKED_AT];
        head[EXT_AT + 0x38..EXT_AT + 0x3a].copy_from_slice(&[0x53, 0xef]);
        for (n, feature) in features.into_iter().enumerate() {
            head[EXT_AT + 0x5c + 4 * n..][..4].copy_from_slice(&feature.to_le_bytes());
        }
        head
    }

    #[test]
    fn what_is_on_a_disk() {
        let zeros = vec![0; LOOKED_AT];
        let mut label = zeros.clone();
        label[LOOKED_AT - 512] = 1;
        assert_eq!(content(&zeros, &zeros), Content::Blank);
        assert_eq!(content(&zeros, &label), Content::Unknown, "a label at its end");
        assert_eq!(content(&label, &zeros), Content::Unknown);
        assert_eq!(content(&[], &[]), Content::Unknown, "nothing could be read");
        assert_eq!(content(&zeros[..512], &zeros[..512]), Content::Blank, "a small one");
        for (features, kind) in [
            ([0, 0x2, 0x3], "ext2"),
            ([0x4, 0x6, 0x3], "ext3"),
            ([0x4, 0x42, 0x3], "ext4"),
            ([0, 0x2, 0x8], "ext4"),
        ] {
            assert_eq!(content(&ext_head(features), &zeros), Content::FileSystem(kind));
        }
        assert_eq!(content(b"XFSB....", b""), Content::FileSystem("xfs"));
    }

    fn bind(fs_type: &str) -> Bind {
        let disk = Disk { global: "/g".to_owned(), fs_type: fs_type.to_owned() };
        Bind {
            source: "/dev/x".to_owned(),
            options: vec!["noatime,nodev".to_owned()],
            disk,
            ..Bind::default()
        }
    }

    fn words(next: &Next) -> String {
        match next {
            Next::Nothing => String::new(),
            Next::Format((program, all)) | Next::Check((program, all)) | Next::Mount((program, all)) => {
                format!("{program} {}", all.join(" "))
            }
        }
    }

    #[test]
    fn a_blank_disk_is_formatted_and_any_other_is_not() {
        use Content::{Blank, FileSystem, Unknown};
        let seen = |content| Seen { mounted: None, content, begun: false };
        let told = |of: &Bind, seen, checked| next(of, seen, checked).map(|n| words(&n));
        for (kind, content, checked, expected) in [
            ("", Blank, false, "mkfs.ext4 -F -m0 /dev/x"),
            ("xfs", Blank, false, "mkfs.xfs -f /dev/x"),
            ("btrfs", Blank, false, "mkfs.btrfs /dev/x"),
            ("", FileSystem("xfs"), false, "fsck.xfs -a /dev/x"),
            ("", FileSystem("xfs"), true, "mount -t xfs -o noatime,nodev,defaults /dev/x /g"),
            ("ext4", FileSystem("ext3"), true, "mount -t ext4 -o noatime,nodev,defaults /dev/x /g"),
            ("btrfs", Unknown, false, "mount -t btrfs -o noatime,nodev,defaults /dev/x /g"),
        ] {
            assert_eq!(
                told(&bind(kind), seen(content), checked),
                Ok(expected.to_owned()),
                "{kind} {content:?}"
            );
        }
        // One that this node had begun with looks like anything.
        let begun = Seen { begun: true, ..seen(Unknown) };
        assert_eq!(told(&bind(""), begun, false), Ok("mkfs.ext4 -F -m0 /dev/x".to_owned()));
        let unknown = told(&bind(""), seen(Unknown), false).unwrap_err();
        assert!(unknown.contains("left as it is"), "{unknown}");
        let mounted = |is| Seen { mounted: Some(is), ..seen(Unknown) };
        assert_eq!(next(&bind(""), mounted(true), false), Ok(Next::Nothing));
        assert!(next(&bind(""), mounted(false), false).unwrap_err().contains("another disk"));
        for kind in ["../../tmp/x", "-x", ".", "a b"] {
            assert!(next(&bind(kind), seen(Blank), false).is_err(), "{kind}");
        }
    }

    #[test]
    fn a_disk_that_is_only_read_is_neither_formatted_nor_repaired() {
        let read_only = Bind { read_only: true, ..bind("") };
        let by_option = Bind { options: vec!["ro".to_owned()], ..bind("") };
        for of in [read_only, by_option] {
            let seen = |content| Seen { mounted: None, content, begun: false };
            assert!(next(&of, seen(Content::Blank), false).unwrap_err().contains("read-only mode"));
            let mounts = next(&of, seen(Content::FileSystem("ext4")), false);
            assert!(matches!(mounts, Ok(Next::Mount(_))), "{mounts:?}");
        }
    }

    #[test]
    fn what_is_on_a_disk_grows_by_its_own_program() {
        let command =
            |content| grow(&bind("btrfs"), content).map(|(program, all)| [&[program], &all[..]].concat());
        let words = |all: &[&str]| Ok(all.iter().map(|&word| word.to_owned()).collect::<Vec<String>>());
        assert_eq!(command(Content::FileSystem("ext4")), words(&["resize2fs", "/dev/x"]));
        assert_eq!(command(Content::FileSystem("xfs")), words(&["xfs_growfs", "-d", "/g"]));
        let why = "resize of format btrfs is not supported for device /dev/x mounted at /g";
        assert_eq!(command(Content::Unknown), Err(why.to_owned()));
    }

    #[test]
    fn only_errors_that_stay_keep_a_disk_back() {
        let of = bind("");
        let check = Next::Check(("fsck.ext4".to_owned(), Vec::new()));
        for (code, fails) in [(Some(1), false), (Some(4), true), (Some(8), false), (None, false)] {
            assert_eq!(failure(&of, &check, code, "inode 12\n").is_some(), fails, "{code:?}");
        }
        let format = Next::Format(("mkfs.ext4".to_owned(), Vec::new()));
        let told = failure(&of, &format, None, "no such program\n").unwrap();
        assert_eq!(told, "format of disk \"/dev/x\" failed: mkfs.ext4: no such program");
    }
}
