//! The emergency reserve: a preallocated file on the state partition that is given up when the partition is full, so
//! that the node's own records (the agent's, containerd's) can still be written. Sizes in, decisions out.
//!
//! Invariant: the reserve is made only where it does not itself make the partition full.

/// Where it is, relative to /var.
pub const FILE: &str = "lib/orlop/reserve";

/// Enough for what the node writes in days: containerd's metadata, sandboxes, the agent's records.
const BYTES_MAX: u64 = 64 << 20;
/// A small partition keeps less.
const SHARE: u64 = 32;
/// This much must be free, in reserves, for it to be made.
const ROOM: u64 = 4;

/// Size on a file system of `total` bytes.
#[must_use]
pub fn bytes(total: u64) -> u64 {
    BYTES_MAX.min(total / SHARE)
}

/// Whether it may be made with `available` bytes free.
#[must_use]
pub fn has_room(available: u64, total: u64) -> bool {
    let bytes = bytes(total);
    bytes > 0 && available >= bytes.saturating_mul(ROOM)
}

/// The message to a person about a full partition. `released` is the size of the reserve that was given up, if any.
#[must_use]
pub fn full_message(device: &str, free: u64, released: Option<u64>) -> String {
    let then = match released {
        Some(bytes) => format!(
            "the emergency reserve of {} MiB was released for the node's own records; free space soon, nothing else \
             was deleted",
            bytes >> 20
        ),
        None => {
            "there is no emergency reserve left: new pods will not start until space is freed; nothing was \
                 deleted"
                .to_string()
        }
    };
    format!("state partition {device} is full ({} KiB free): {then}", free / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn made_only_where_there_is_room() {
        // Total, available, size, made; MiB.
        let table = [
            (100_000, 50_000, 64, true),
            (100_000, 256, 64, true),
            (100_000, 255, 64, false),
            (512, 64, 16, true),
            (512, 63, 16, false),
            (512, 0, 16, false),
            (0, 0, 0, false),
        ];
        for (total, available, size, made) in table {
            assert_eq!(bytes(total * MIB), size * MIB, "{total}");
            assert_eq!(has_room(available * MIB, total * MIB), made, "{total} {available}");
        }
    }

    #[test]
    fn the_message_says_what_is_left() {
        let with = full_message("/dev/vda6", 4096, Some(64 * MIB));
        assert!(with.contains("full (4 KiB free)") && with.contains("64 MiB was released"), "{with}");
        let without = full_message("/dev/vda6", 0, None);
        assert!(without.contains("no emergency reserve left") && without.contains("nothing was deleted"));
    }
}
