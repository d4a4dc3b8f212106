//! What a factory reset keeps, while the state partition is made anew: files as one text, with a header, behind the boot record.
//!
//! In: files below /var. Out: bytes for the boot record's partition, and back. Invariants: a text that is not whole, or of another
//! order, is none; no path leads out of the places that are kept; what does not fit is refused before anything is touched. It holds
//! keys and tokens: no `Debug` shows contents.

use super::le_u32;
use orlop_config::base64;
use orlop_config::crc32::crc32;
use orlop_config::slots::RING_BYTES;
use serde_json::{Value, json};
use std::fmt;

/// Where it begins, bytes from the start of the boot record's partition: behind the ring.
pub const CARRIED_OFFSET: u64 = RING_BYTES as u64;
/// Longest text with its header, bytes: the rest of a partition of 1 MiB.
pub const CARRIED_BYTES_MAX: usize = (1 << 20) - RING_BYTES;
/// Files and directories at most.
pub const FILES_MAX: usize = 1024;

const MAGIC: [u8; 8] = *b"ORLOPRS1";
const HEADER_BYTES: usize = 16;

/// The node's identity, below /var: files, and directories with all that is in them.
pub const KEPT_PLACES: [&str; 7] = [
    "lib/orlop/machine-id",
    // The node's documents, and those that its first boot accepted.
    "lib/orlop/config",
    // The key of its management API.
    "lib/orlop/api/key",
    "lib/orlop/update/trust",
    "lib/orlop/update/channels",
    // Its certificates in the cluster.
    "lib/kubelet/pki",
    "lib/kubelet/kubeconfig",
];

/// Records of the management API: kept if they are small. The one of the operation that orders the reset is among them.
pub const OPERATIONS_PLACE: &str = "lib/orlop/api/operations";

/// What a carried path is.
#[derive(Clone, PartialEq, Eq)]
pub enum CarriedContent {
    /// A directory.
    Directory,
    /// A file.
    File(Vec<u8>),
    /// A symbolic link.
    Link(String),
}

impl fmt::Debug for CarriedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CarriedContent::Directory => f.write_str("directory"),
            CarriedContent::File(bytes) => write!(f, "{} bytes", bytes.len()),
            CarriedContent::Link(target) => write!(f, "link to {target}"),
        }
    }
}

/// A file, directory or link that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedFile {
    /// Below /var.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// What it is.
    pub content: CarriedContent,
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarriedState {
    /// The old file system counted what projects have; the new one does the same.
    pub quotas: bool,
    /// Directories before what is in them.
    pub files: Vec<CarriedFile>,
}

/// May something be written to this path below /var? Only in [`KEPT_PLACES`] and [`OPERATIONS_PLACE`].
#[must_use]
pub fn is_kept(path: &str) -> bool {
    let is_plain = path.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains('\0');
    let is_in =
        |place: &&str| path.strip_prefix(*place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_plain && KEPT_PLACES.iter().chain([&OPERATIONS_PLACE]).any(is_in)
}

/// The bytes for the disk: a multiple of 4096.
///
/// # Errors
/// It has more files, or more bytes, than there is room for.
pub fn render(id: &str, kept: &CarriedState) -> Result<Vec<u8>, String> {
    let count = kept.files.len();
    if count > FILES_MAX {
        return Err(format!("what is kept has {count} files, and {FILES_MAX} are the most"));
    }
    let files: Vec<Value> = kept.files.iter().map(rendered).collect();
    let text = json!({ "id": id, "quotas": kept.quotas, "files": files }).to_string().into_bytes();
    let room = CARRIED_BYTES_MAX - HEADER_BYTES;
    let length = u32::try_from(text.len()).ok().filter(|_| text.len() <= room);
    let length = length.ok_or_else(|| {
        format!("what is kept needs {} KiB, and there is room for {}", text.len() >> 10, room >> 10)
    })?;
    let sum = checksum(length, &text);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(&text);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    Ok(bytes)
}

/// What is kept, if the bytes are whole and of this order.
#[must_use]
pub fn parse(bytes: &[u8], id: &str) -> Option<CarriedState> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (length, sum) = (le_u32(rest, 0)?, le_u32(rest, 4)?);
    let at = HEADER_BYTES - MAGIC.len();
    let text = rest.get(at..at.checked_add(usize::try_from(length).ok()?)?)?;
    if checksum(length, text) != sum {
        return None;
    }
    let document: Value = serde_json::from_slice(text).ok()?;
    if document["id"] != id {
        return None;
    }
    let files = document["files"].as_array().filter(|files| files.len() <= FILES_MAX)?;
    let files = files.iter().map(parsed).collect::<Option<Vec<_>>>()?;
    Some(CarriedState { quotas: document["quotas"].as_bool()?, files })
}

fn checksum(length: u32, text: &[u8]) -> u32 {
    crc32(&[&length.to_le_bytes()[..], text].concat())
}

fn rendered(file: &CarriedFile) -> Value {
    let (kind, content) = match &file.content {
        CarriedContent::Directory => ("directory", String::new()),
        CarriedContent::File(bytes) => ("file", base64::encode(bytes)),
        CarriedContent::Link(target) => ("link", target.clone()),
    };
    let (uid, gid) = file.owner;
    json!({ "path": file.path.as_str(), "mode": file.mode, "uid": uid, "gid": gid, "kind": kind, "content": content })
}

fn parsed(value: &Value) -> Option<CarriedFile> {
    let number = |name: &str| value[name].as_u64().and_then(|number| u32::try_from(number).ok());
    let (path, content) = (value["path"].as_str()?, value["content"].as_str()?);
    let content = match value["kind"].as_str()? {
        "directory" => CarriedContent::Directory,
        "file" => CarriedContent::File(base64::decode(content)?),
        "link" => CarriedContent::Link(content.to_owned()),
        _ => return None,
    };
    let mode = number("mode")? & 0o7777;
    let owner = (number("uid")?, number("gid")?);
    is_kept(path).then(|| CarriedFile { path: path.to_owned(), mode, owner, content })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(files: Vec<CarriedFile>) -> CarriedState {
        CarriedState { quotas: true, files }
    }

    fn files() -> Vec<CarriedFile> {
        let file =
            |path: &str, mode, content| CarriedFile { path: path.into(), mode, owner: (0, 3), content };
        vec![
            file("lib/orlop/machine-id", 0o644, CarriedContent::File(b"0123\n".to_vec())),
            file("lib/kubelet/pki", 0o700, CarriedContent::Directory),
            file("lib/kubelet/pki/a.pem", 0o600, CarriedContent::File(vec![0, 255, 7])),
            file("lib/kubelet/pki/current.pem", 0o777, CarriedContent::Link("a.pem".into())),
        ]
    }

    #[test]
    fn what_is_carried_comes_back_for_its_order_alone() {
        let bytes = render("1", &kept(files())).expect("fits");
        assert_eq!(bytes.len() % 4096, 0);
        assert_eq!(parse(&bytes, "1"), Some(kept(files())));
        assert_eq!(parse(&bytes, "2"), None);
        let none = CarriedState::default();
        assert_eq!(parse(&render("1", &none).expect("fits"), "1"), Some(none));
        assert_eq!(parse(&[0; 4096], "1"), None);
        let shown = format!("{:?}", files());
        assert!(shown.contains("5 bytes") && !shown.contains("0123"), "{shown}");
    }

    #[test]
    fn a_torn_write_is_none() {
        let bytes = render("1", &kept(files())).expect("fits");
        let text = bytes.iter().rposition(|b| *b != 0).expect("text") + 1;
        for at in 0..text {
            let mut torn = bytes.clone();
            torn[at] ^= 0x10;
            assert_eq!(parse(&torn, "1"), None, "{at}");
            torn[at..].fill(0);
            assert_eq!(parse(&torn, "1"), None, "{at}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let large = |bytes: usize| {
            let content = CarriedContent::File(vec![1; bytes]);
            kept(vec![CarriedFile { content, ..files().remove(0) }])
        };
        assert!(render("1", &large(500 << 10)).is_ok_and(|bytes| bytes.len() <= CARRIED_BYTES_MAX));
        let why = render("1", &large(600 << 10)).expect_err("too large");
        assert!(why.contains("800 KiB") && why.contains("767"), "{why}");
        let many = kept(vec![files().remove(0); FILES_MAX + 1]);
        assert!(render("1", &many).expect_err("too many").contains("1025 files"));
    }

    #[test]
    fn nothing_is_written_elsewhere() {
        for path in ["lib/orlop/machine-id", "lib/kubelet/pki", "lib/orlop/config/a/b"] {
            assert!(is_kept(path), "{path}");
        }
        for path in [
            "",
            "/lib/orlop/config/a",
            "lib/orlop/config/../x",
            "lib/orlop/config/./x",
            "lib/orlop/config//x",
            "lib/orlop/configs",
            "lib/orlop",
            "lib/orlop/config/a\0",
            "log/x",
        ] {
            assert!(!is_kept(path), "{path:?}");
            let file = CarriedFile { path: path.into(), ..files().remove(0) };
            assert_eq!(parse(&render("1", &kept(vec![file])).expect("fits"), "1"), None, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), length in 0u32..400) {
            let _ = parse(&bytes, "1");
            let header = [&MAGIC[..], &length.to_le_bytes()[..]].concat();
            bytes.splice(0..0, header);
            let _ = parse(&bytes, "1");
        }

        #[test]
        fn any_text_with_its_checksum(text in ".{0,200}") {
            let text = text.into_bytes();
            let length = u32::try_from(text.len()).unwrap_or(0);
            let sum = checksum(length, &text).to_le_bytes();
            let _ = parse(&[&MAGIC[..], &length.to_le_bytes()[..], &sum[..], &text[..]].concat(), "1");
        }
    }
}
