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

    /// Takes the block that ends where the last one began (the first block: at the file's end). `offset` is
    /// its start in the file. Returns the position to read from, once known; if no block decides, it is 0.
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
