//! Where the last records of a file begin, read from its end.

/// Looks for the place after which there are so many newlines, block by block towards the beginning.
#[derive(Clone, Copy, Debug)]
pub struct TailScan {
    /// Newlines that may still be passed.
    left: u64,
}

impl TailScan {
    /// For the last `records` records.
    #[must_use]
    pub fn new(records: u64) -> TailScan {
        TailScan { left: records }
    }

    /// Absorbs the block that ends where the one before began (the first: at the file's end). `offset` is where it
    /// begins in the file. Answers where to begin reading once that is known; if no block says so, at 0.
    pub fn block(&mut self, offset: u64, bytes: &[u8]) -> Option<u64> {
        for (at, _) in bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            match self.left.checked_sub(1) {
                Some(left) => self.left = left,
                None => return Some(offset + at as u64 + 1),
            }
        }
        None
    }
}
