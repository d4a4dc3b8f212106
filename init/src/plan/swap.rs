//! The swap file of `swap.size` on the state partition: whether the one that is there will do, whether there is room for
//! another, and what the kernel wants to find at its start (linux/swap.h, `union swap_header`). Sizes in, decisions out.
//!
//! Invariant: it is made only where it leaves the partition room: no pod is evicted for want of disk because of it.

use super::reserve;
use orlop_config::procfs;

/// Where it is, relative to /var.
pub const FILE: &str = "lib/orlop/swapfile";
/// Where it is made, relative to /var: under its name it is whole.
pub const UNFINISHED: &str = "lib/orlop/swapfile.new";

/// Part of the partition's size that must stay free next to it, in addition to the emergency reserve: a kubelet evicts
/// for want of room for images at 15 % (`imagefs.available`), for other things at 10.
const FREE_PERCENT: u64 = 15;
/// `SWAP_HEADER_VERSION` 1.
const VERSION: u32 = 1;
const VERSION_AT: usize = 1024;
const UUID_AT: usize = 1036;
const MAGIC: &[u8] = b"SWAPSPACE2";

/// What is known of the partition, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Its size.
    pub total: u64,
    /// What is free on it.
    pub available: u64,
    /// What the swap file takes that is there.
    pub there: Option<u64>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The one that is there has the size.
    Keep,
    /// One of so many bytes is to be made.
    Make(u64),
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no swap: a file of {} MiB needs {} MiB free on the state partition, which has {}; make swap.size smaller or the disk \
     bigger", wanted >> 20, needs >> 20, available >> 20
)]
pub struct NoRoom {
    /// The file's size, bytes.
    pub wanted: u64,
    /// What must be free, bytes.
    pub needs: u64,
    /// What is, bytes, the file that is there included.
    pub available: u64,
}

/// The size that a text of `/run/orlop/swap` asks for, in whole pages, bytes; `None` if it is no number or no page.
#[must_use]
pub fn wanted(text: &str, page: u64) -> Option<u64> {
    let pages = text.trim().parse::<u64>().ok()?.checked_div(page)?;
    // The first page is the header.
    (pages > 1).then(|| pages.min(u64::from(u32::MAX)) * page)
}

/// Decides.
///
/// # Errors
/// [`NoRoom`].
pub fn plan(wanted: u64, room: Room) -> Result<Plan, NoRoom> {
    if room.there == Some(wanted) {
        return Ok(Plan::Keep);
    }
    // A file of another size is removed first.
    let available = room.available.saturating_add(room.there.unwrap_or(0));
    let needs =
        wanted.saturating_add(room.total / 100 * FREE_PERCENT).saturating_add(reserve::bytes(room.total));
    if available < needs { Err(NoRoom { wanted, needs, available }) } else { Ok(Plan::Make(wanted)) }
}

/// The first page of a swap area of `bytes` bytes.
#[must_use]
pub fn header(bytes: u64, page: u64, uuid: [u8; 16]) -> Vec<u8> {
    let mut header = vec![0; usize::try_from(page).unwrap_or(4096)];
    let last = u32::try_from(bytes / page - 1).unwrap_or(u32::MAX);
    let words = [VERSION, last, 0].map(u32::to_ne_bytes).concat();
    header[VERSION_AT..VERSION_AT + words.len()].copy_from_slice(&words);
    header[UUID_AT..UUID_AT + uuid.len()].copy_from_slice(&uuid);
    let magic = header.len() - MAGIC.len();
    header[magic..].copy_from_slice(MAGIC);
    header
}

/// True if the text of /proc/swaps has the file in use.
#[must_use]
pub fn is_on(swaps: &str, file: &str) -> bool {
    procfs::swaps(swaps).any(|name| name == file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn whole_pages_are_wanted() {
        let table = [
            ("1073741824\n", Some(1 << 30)),
            ("8193", Some(8192)),
            ("8191", None),
            ("0", None),
            ("", None),
            ("1Gi", None),
            ("-1", None),
            ("18446744073709551615", Some(u64::from(u32::MAX) * 4096)),
        ];
        for (text, bytes) in table {
            assert_eq!(wanted(text, 4096), bytes, "{text}");
        }
        assert_eq!(wanted("8192", 0), None);
    }

    #[test]
    fn made_only_where_it_leaves_room() {
        // Wanted, total, available, there; the decision. 8000 MiB need 1200 + 64 next to the file.
        let table = [
            (1024, 8000, 2288, None, Ok(Plan::Make(1024 * MIB))),
            (1024, 8000, 2287, None, Err(2288)),
            (1024, 8000, 0, Some(1024), Ok(Plan::Keep)),
            (1024, 8000, 1776, Some(512), Ok(Plan::Make(1024 * MIB))),
            (1024, 8000, 1775, Some(512), Err(2288)),
            (512, 8000, 752, Some(1024), Ok(Plan::Make(512 * MIB))),
        ];
        for (wanted, total, available, there, want) in table {
            let room =
                Room { total: total * MIB, available: available * MIB, there: there.map(|size| size * MIB) };
            let got = plan(wanted * MIB, room);
            assert_eq!(got.map_err(|no| no.needs / MIB), want, "{wanted} {room:?}");
        }
        assert!(plan(u64::MAX, Room { total: 0, available: u64::MAX - 1, there: None }).is_err());
    }

    #[test]
    fn what_there_is_no_room_for_is_told() {
        let room = Room { total: 400 * MIB, available: 100 * MIB, there: Some(50 * MIB) };
        let said = plan(128 * MIB, room).expect_err("no room").to_string();
        assert!(said.contains("128 MiB needs 200 MiB") && said.contains("which has 150;"), "{said}");
    }

    #[test]
    fn the_header_is_the_kernels() {
        let header = header(64 * MIB, 4096, *b"0123456789abcdef");
        assert_eq!(header.len(), 4096);
        assert_eq!(header[..1024], [0; 1024]);
        assert_eq!(crate::plan::le_u32(&header, 1024), Some(1), "version");
        assert_eq!(crate::plan::le_u32(&header, 1028), Some(16383), "the last page");
        assert_eq!(crate::plan::le_u32(&header, 1032), Some(0), "bad pages");
        assert_eq!(&header[1036..1052], b"0123456789abcdef");
        assert!(header[1052..4086].iter().all(|byte| *byte == 0));
        assert_eq!(&header[4086..], b"SWAPSPACE2");
    }

    #[test]
    fn what_is_in_use_is_known() {
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n/var/lib/orlop/swapfile file 65532 0 -2\n";
        assert!(is_on(swaps, "/var/lib/orlop/swapfile"));
        assert!(!is_on(swaps, "/var/lib/orlop/swap") && !is_on("Filename Type\n", "Filename"));
    }
}
