//! Disks of the node with a volume's file system (`local` volumes that are block devices): their contents,
//! and their preparation for pods.
//!
//! ```text
//! blank ──mkfs──► file system ──fsck──► mounted below plugins/…/mounts ──bind──► pods
//! ```
//! In: a disk's first and last bytes, the volume's file system type. Out: [`DiskStep`]. Invariants: a disk is
//! formatted only if its beginning and its end are zeros, or if this node had begun to format it and its file
//! system has never been used ([`Content::Unused`]); a begun formatting never outweighs present contents;
//! unknown contents stay as they are. Upstream: k8s.io/mount-utils, `SafeFormatAndMount` (it runs blkid,
//! which an appliance need not have).

use crate::bind::{Bind, Disk};
use crate::plugin::Plugin;

/// How much of a disk's beginning, and of its end, says what is on it, bytes: file systems, partition tables and labels of
/// volume managers are there.
pub const LOOKED_AT: usize = 1 << 20;
/// What is made where the volume says nothing. Upstream: the same.
const DEFAULT: &str = "ext4";
/// Where the super block of ext2 and its kin lies (Linux, Documentation/filesystems/ext4/super.rst).
const EXT_AT: usize = 1024;
/// The first inode that is not reserved, and with it how many are taken in an empty file system: `lost+found` has it.
const EXT_LOST_AND_FOUND: u32 = 11;
/// Where xfs says that mkfs is under way (`sb_inprogress`; XFS Algorithms & Data Structures, Superblocks).
const XFS_IN_PROGRESS: usize = 126;
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
    /// This file system, as mkfs makes it or leaves it half made: it was never mounted for writing, and no file is in it.
    Unused(&'static str),
    /// Something else.
    Unknown,
}

/// What the first and the last [`LOOKED_AT`] bytes of a disk say; of a smaller one all of it, twice.
#[must_use]
pub fn content(head: &[u8], tail: &[u8]) -> Content {
    if head.starts_with(b"XFSB") {
        // mkfs.xfs writes this flag first and takes it back last; the kernel mounts nothing that has it. A finished xfs says
        // nowhere whether it was ever mounted, so it counts as used.
        let unfinished = head.get(XFS_IN_PROGRESS).is_some_and(|flag| *flag != 0);
        return if unfinished { Content::Unused("xfs") } else { Content::FileSystem("xfs") };
    }
    if let Some(kind) = ext(head) {
        let unused = ext_is_unused(head) == Some(true);
        return if unused { Content::Unused(kind) } else { Content::FileSystem(kind) };
    }
    let zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if !head.is_empty() && zeros(head) && zeros(tail) { Content::Blank } else { Content::Unknown }
}

/// A number of ext's super block.
fn ext_number(head: &[u8], at: usize) -> Option<u32> {
    let bytes = head.get(EXT_AT + at..EXT_AT + at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// It was never mounted for writing (`s_mtime`, `s_mnt_count`; fsck sets the count back, the time stays), and no inode is taken
/// but the reserved ones, `lost+found` and the orphan file: `mke2fs -d` puts files into a file system that was never mounted.
fn ext_is_unused(head: &[u8]) -> Option<bool> {
    let number = |at| ext_number(head, at);
    let never_mounted = number(0x2c)? == 0 && number(0x34)? & 0xffff == 0;
    let taken = number(0x0)?.checked_sub(number(0x10)?)?;
    let orphan_file = u32::from(number(0x5c)? & 0x1000 != 0);
    Some(never_mounted && taken <= EXT_LOST_AND_FOUND + orphan_file)
}

/// ext2 has no journal, ext3 no feature that is not known to it.
fn ext(head: &[u8]) -> Option<&'static str> {
    let number = |at| ext_number(head, at);
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
pub struct DiskState {
    /// Something is mounted where it goes; whether that is this disk.
    pub mounted: Option<bool>,
    /// What is on it.
    pub content: Content,
    /// This node had begun to format this very disk, in this boot, and neither ended nor gave it up.
    pub begun: bool,
}

/// A program of the node, and its arguments.
pub type Command = (String, Vec<String>);

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskStep {
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
pub fn next(of: &Bind, seen: DiskState, checked: bool) -> Result<DiskStep, String> {
    let Bind { source, disk: Disk { global, fs_type }, .. } = of;
    match seen.mounted {
        Some(true) => return Ok(DiskStep::Nothing),
        Some(false) => return Err(format!("another disk than {source} is mounted at {global}: unmount it")),
        None => {}
    }
    // A driver may have named the device: what begins with a dash would be an option of the program.
    if !source.starts_with('/') {
        return Err(format!("the disk {source:?} is no absolute path: it is not touched"));
    }
    // It becomes a part of a program's name.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    if !fs_type.chars().all(plain) || fs_type.starts_with(['.', '-']) {
        return Err(format!("fsType {fs_type:?} is no name of a file system"));
    }
    let wanted = Some(fs_type.as_str()).filter(|kind| !kind.is_empty());
    let options = || of.options.iter().flat_map(|o| o.split(',')).filter(|o| !o.is_empty());
    let writable = !of.read_only && !options().any(|option| option == "ro");
    let blank = match seen.content {
        Content::Blank => true,
        Content::Unused(_) => seen.begun,
        Content::FileSystem(_) | Content::Unknown => false,
    };
    let kind = match seen.content {
        _ if blank => {
            if !writable {
                return Err(format!(
                    "cannot mount unformatted disk {source} as we are manipulating it in read-only mode"
                ));
            }
            return Ok(DiskStep::Format(format(wanted.unwrap_or(DEFAULT), source)));
        }
        Content::FileSystem(kind) | Content::Unused(kind) => {
            if writable && !checked {
                return Ok(DiskStep::Check((format!("fsck.{kind}"), vec!["-a".to_owned(), source.clone()])));
            }
            wanted.unwrap_or(kind)
        }
        // Perhaps the kernel knows it by this name.
        Content::Blank | Content::Unknown => wanted.ok_or_else(|| {
            let begun = if seen.begun { "; this node began to format it and did not end" } else { "" };
            format!(
                "{source} holds something that is neither ext2, ext3, ext4 nor xfs{begun}: it is left as it is. Say what it is \
                 (fsType), or wipe it if nobody needs it"
            )
        })?,
    };
    let all: Vec<&str> = options().chain(["defaults"]).collect();
    let arguments = ["-t", kind, "-o", &all.join(","), source, global].map(str::to_owned);
    Ok(DiskStep::Mount(("mount".to_owned(), arguments.into())))
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

/// The command that makes the file system on a mounted disk as large as the disk.
///
/// # Errors
/// Its kind cannot grow, or is unknown.
pub fn grow(of: &Bind, content: Content) -> Result<Command, String> {
    let Bind { source, disk: Disk { global, .. }, .. } = of;
    let (program, arguments): (_, &[&str]) = match content {
        Content::FileSystem("ext2" | "ext3" | "ext4") | Content::Unused("ext2" | "ext3" | "ext4") => {
            ("resize2fs", &[source])
        }
        Content::FileSystem("xfs") | Content::Unused("xfs") => ("xfs_growfs", &["-d", global]),
        Content::FileSystem(kind) | Content::Unused(kind) => return Err(cannot_grow(kind, of)),
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
pub fn failure(of: &Bind, what: &DiskStep, code: Option<i32>, words: &str) -> Option<String> {
    let (source, global, words) = (&of.source, &of.disk.global, words.trim());
    match what {
        DiskStep::Nothing => None,
        DiskStep::Check(_) => (code == Some(UNCORRECTED))
            .then(|| format!("'fsck' found errors on device {source} but could not correct them: {words}")),
        DiskStep::Format((program, _)) => {
            Some(format!("format of disk {source:?} failed: {program}: {words}"))
        }
        DiskStep::Mount(_) => Some(format!("local: failed to mount device {source} at {global}: {words}")),
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
        // 100 inodes of which 89 are free, mounted once.
        with(head, &[(0x0, 100), (0x10, 89), (0x2c, 1_790_000_000), (0x34, 1)])
    }

    /// These numbers of the super block are others.
    fn with(mut head: Vec<u8>, numbers: &[(usize, u32)]) -> Vec<u8> {
        for (at, number) in numbers {
            head[EXT_AT + at..][..4].copy_from_slice(&number.to_le_bytes());
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

    #[test]
    fn a_file_system_is_unused_only_if_it_says_so() {
        const FRESH: [(usize, u32); 2] = [(0x2c, 0), (0x34, 0)];
        const EXT4: [u32; 3] = [0x4, 0x42, 0x3];
        let is = |features, numbers: &[(usize, u32)]| content(&with(ext_head(features), numbers), &[]);
        for (features, numbers, unused) in [
            (EXT4, &FRESH[..], true),
            (EXT4, &[], false),
            // fsck has set the count back; the kernel mounted it before there was a clock.
            (EXT4, &[(0x34, 0)], false),
            (EXT4, &[(0x2c, 0)], false),
            // How often it may be mounted before fsck is in the same four bytes.
            (EXT4, &[(0x2c, 0), (0x34, 0xffff_0000)], true),
            // mke2fs -d
            (EXT4, &[FRESH[0], FRESH[1], (0x10, 88)], false),
            // The orphan file takes an inode of its own.
            ([0x1004, 0x42, 0x3], &[FRESH[0], FRESH[1], (0x10, 88)], true),
            ([0x1004, 0x42, 0x3], &[FRESH[0], FRESH[1], (0x10, 87)], false),
            // More are free than there are.
            (EXT4, &[FRESH[0], FRESH[1], (0x10, 101)], false),
        ] {
            let expected = if unused { Content::Unused("ext4") } else { Content::FileSystem("ext4") };
            assert_eq!(is(features, numbers), expected, "{features:?} {numbers:x?}");
        }
        let mut xfs = vec![0; LOOKED_AT];
        xfs[..4].copy_from_slice(b"XFSB");
        assert_eq!(content(&xfs, &[]), Content::FileSystem("xfs"), "a finished one may have been mounted");
        xfs[XFS_IN_PROGRESS] = 1;
        assert_eq!(content(&xfs, &[]), Content::Unused("xfs"));
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

    fn words(next: &DiskStep) -> String {
        match next {
            DiskStep::Nothing => String::new(),
            DiskStep::Format((program, all))
            | DiskStep::Check((program, all))
            | DiskStep::Mount((program, all)) => {
                format!("{program} {}", all.join(" "))
            }
        }
    }

    #[test]
    fn a_blank_disk_is_formatted_and_any_other_is_not() {
        use Content::{Blank, FileSystem, Unknown, Unused};
        let seen = |content| DiskState { mounted: None, content, begun: false };
        let told = |of: &Bind, seen, checked| next(of, seen, checked).map(|n| words(&n));
        for (kind, content, checked, expected) in [
            ("", Blank, false, "mkfs.ext4 -F -m0 /dev/x"),
            ("xfs", Blank, false, "mkfs.xfs -f /dev/x"),
            ("btrfs", Blank, false, "mkfs.btrfs /dev/x"),
            ("", FileSystem("xfs"), false, "fsck.xfs -a /dev/x"),
            ("", FileSystem("xfs"), true, "mount -t xfs -o noatime,nodev,defaults /dev/x /g"),
            ("ext4", FileSystem("ext3"), true, "mount -t ext4 -o noatime,nodev,defaults /dev/x /g"),
            ("btrfs", Unknown, false, "mount -t btrfs -o noatime,nodev,defaults /dev/x /g"),
            ("", Unused("ext4"), false, "fsck.ext4 -a /dev/x"),
        ] {
            assert_eq!(
                told(&bind(kind), seen(content), checked),
                Ok(expected.to_owned()),
                "{kind} {content:?}"
            );
        }
        // This node had begun to format the disk, but another node may have written to it since.
        let begun = |content| DiskState { begun: true, ..seen(content) };
        for (content, checked, expected) in [
            (FileSystem("ext4"), false, "fsck.ext4 -a /dev/x"),
            (FileSystem("xfs"), true, "mount -t xfs -o noatime,nodev,defaults /dev/x /g"),
            (Blank, false, "mkfs.ext4 -F -m0 /dev/x"),
            (Unused("ext4"), false, "mkfs.ext4 -F -m0 /dev/x"),
            (Unused("xfs"), false, "mkfs.ext4 -F -m0 /dev/x"),
        ] {
            assert_eq!(told(&bind(""), begun(content), checked), Ok(expected.to_owned()), "{content:?}");
        }
        let half = told(&bind(""), begun(Unknown), false).unwrap_err();
        assert!(half.contains("began to format it and did not end: it is left as it is"), "{half}");
        let unknown = told(&bind(""), seen(Unknown), false).unwrap_err();
        assert!(unknown.contains("left as it is"), "{unknown}");
        let mounted = |is| DiskState { mounted: Some(is), ..seen(Unknown) };
        assert_eq!(next(&bind(""), mounted(true), false), Ok(DiskStep::Nothing));
        assert!(next(&bind(""), mounted(false), false).unwrap_err().contains("another disk"));
        for kind in ["../../tmp/x", "-x", ".", "a b"] {
            assert!(next(&bind(kind), seen(Blank), false).is_err(), "{kind}");
        }
        for source in ["-x", "", "dev/x", "--help"] {
            let of = Bind { source: source.to_owned(), ..bind("") };
            assert!(next(&of, seen(Blank), false).unwrap_err().contains("no absolute path"), "{source}");
        }
    }

    #[test]
    fn a_disk_that_is_only_read_is_neither_formatted_nor_repaired() {
        let read_only = Bind { read_only: true, ..bind("") };
        let by_option = Bind { options: vec!["ro".to_owned()], ..bind("") };
        for of in [read_only, by_option] {
            let seen = |content| DiskState { mounted: None, content, begun: false };
            assert!(next(&of, seen(Content::Blank), false).unwrap_err().contains("read-only mode"));
            let mounts = next(&of, seen(Content::FileSystem("ext4")), false);
            assert!(matches!(mounts, Ok(DiskStep::Mount(_))), "{mounts:?}");
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
        let check = DiskStep::Check(("fsck.ext4".to_owned(), Vec::new()));
        for (code, fails) in [(Some(1), false), (Some(4), true), (Some(8), false), (None, false)] {
            assert_eq!(failure(&of, &check, code, "inode 12\n").is_some(), fails, "{code:?}");
        }
        let format = DiskStep::Format(("mkfs.ext4".to_owned(), Vec::new()));
        let told = failure(&of, &format, None, "no such program\n").unwrap();
        assert_eq!(told, "format of disk \"/dev/x\" failed: mkfs.ext4: no such program");
    }
}
