//! Blocks of 4 KiB, their digests, and sets of them.

use blake2::Blake2b256;
use blake2::digest::Digest as _;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Bytes of a digest.
pub const DIGEST: usize = 32;

/// Digest of a block: that of salt and block, as in the verity tree.
pub type BlockDigest = [u8; DIGEST];

/// The digest of a block.
#[must_use]
pub fn digest(salt: &[u8; 32], block: &[u8]) -> BlockDigest {
    Blake2b256::new().chain_update(salt).chain_update(block).finalize().into()
}

/// Blocks behind one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The first one.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl BlockRun {
    /// The block behind the last one.
    #[must_use]
    pub fn end(self) -> u32 {
        self.first.saturating_add(self.count)
    }

    /// Where it begins, bytes from the area's start.
    #[must_use]
    pub fn offset(self) -> u64 {
        u64::from(self.first) * BLOCK as u64
    }

    /// Bytes of it.
    #[must_use]
    pub fn bytes(self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX).saturating_mul(BLOCK)
    }
}

/// A set of blocks of an area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSet {
    words: Vec<u64>,
    blocks: u32,
}

impl BlockSet {
    /// None of an area with so many blocks.
    #[must_use]
    pub fn none(blocks: u32) -> BlockSet {
        let words = usize::try_from(blocks.div_ceil(u64::BITS)).unwrap_or(0);
        BlockSet { words: vec![0; words], blocks }
    }

    /// Adds a block of the area.
    pub fn insert(&mut self, block: u32) {
        if let Some(word) = self.words.get_mut(word(block)).filter(|_| block < self.blocks) {
            *word |= 1 << (block % u64::BITS);
        }
    }

    /// Is it there? What lies behind the area is.
    #[must_use]
    pub fn contains(&self, block: u32) -> bool {
        block >= self.blocks || self.words.get(word(block)).is_none_or(|w| w >> (block % u64::BITS) & 1 == 1)
    }

    /// The first block from `from` on that is not there.
    #[must_use]
    pub fn first_missing(&self, from: u32) -> Option<u32> {
        let mut block = from;
        while block < self.blocks {
            // A word at a time, once at its beginning.
            if block.is_multiple_of(u64::BITS) && self.words.get(word(block)) == Some(&u64::MAX) {
                block = block.saturating_add(u64::BITS);
            } else if self.contains(block) {
                block += 1;
            } else {
                return Some(block);
            }
        }
        None
    }

    /// The last block that is not there.
    #[must_use]
    pub fn last_missing(&self) -> Option<u32> {
        (0..self.blocks).rev().find(|block| !self.contains(*block))
    }
}

fn word(block: u32) -> usize {
    usize::try_from(block / u64::BITS).unwrap_or(usize::MAX)
}

/// The digests of blocks that are elsewhere on the disk, to be found by content.
#[derive(Clone, Debug, Default)]
pub struct BlockIndex {
    digests: Vec<u8>,
    /// Blocks in the order of their digests.
    order: Vec<u32>,
}

impl BlockIndex {
    /// An index over digests that stand one after another.
    #[must_use]
    pub fn new(digests: Vec<u8>) -> BlockIndex {
        let count = u32::try_from(digests.len() / DIGEST).unwrap_or(u32::MAX);
        let mut order: Vec<u32> = (0..count).collect();
        order.sort_unstable_by_key(|block| at(&digests, *block));
        BlockIndex { digests, order }
    }

    /// A block with this digest.
    #[must_use]
    pub fn find(&self, digest: &BlockDigest) -> Option<u32> {
        let found = self.order.binary_search_by_key(digest, |block| at(&self.digests, *block)).ok()?;
        self.order.get(found).copied()
    }

    /// Has this block that digest?
    #[must_use]
    pub fn is_at(&self, block: u32, digest: &BlockDigest) -> bool {
        usize::try_from(block).is_ok_and(|n| n < self.order.len()) && at(&self.digests, block) == *digest
    }
}

/// The digest of a block in a list of them; zeros behind its end.
#[must_use]
pub fn at(digests: &[u8], block: u32) -> BlockDigest {
    let start = usize::try_from(block).unwrap_or(usize::MAX).saturating_mul(DIGEST);
    let bytes = digests.get(start..start.saturating_add(DIGEST));
    bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; DIGEST])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn blocks_are_found_by_content() {
        let digests: Vec<BlockDigest> = [3u8, 1, 2, 1].map(|n| digest(&[0; 32], &[n; BLOCK])).to_vec();
        let index = BlockIndex::new(digests.concat());
        for (n, own) in digests.iter().enumerate() {
            let found = index.find(own).expect("there");
            assert_eq!(digests[found as usize], *own);
            assert!(index.is_at(u32::try_from(n).expect("small"), own));
        }
        assert_eq!(index.find(&[0; DIGEST]), None);
        assert!(!index.is_at(4, &[0; DIGEST]));
        assert_eq!(BlockIndex::default().find(&digests[0]), None);
    }

    proptest! {
        #[test]
        fn a_set_is_a_set(blocks in 1u32..300, members in proptest::collection::vec(0u32..320, 0..400), from in 0u32..320) {
            let mut set = BlockSet::none(blocks);
            members.iter().for_each(|block| set.insert(*block));
            let plain: BTreeSet<u32> = members.into_iter().filter(|block| *block < blocks).collect();
            let missing = |block: &u32| !plain.contains(block);
            for block in 0..blocks {
                prop_assert_eq!(set.contains(block), plain.contains(&block));
            }
            prop_assert_eq!(set.first_missing(from), (from..blocks).find(missing));
            prop_assert_eq!(set.last_missing(), (0..blocks).rev().find(missing));
        }
    }
}
