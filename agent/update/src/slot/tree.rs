//! The verity tree of a slot: the list of the digests of its blocks, which the signed root hash vouches for.
//!
//! Format: superblock, then the levels, the one with a single block first, the digests of the data last; cryptsetup's version 1.

use orlop_config::release::{RootTree, VERITY_ALGORITHM};
use orlop_init::plan::verity::Superblock;
use std::ops::Range;

use super::blocks::{BLOCK, BlockDigest, DIGEST, at, digest};

/// Digests of a block of the tree.
const DIGESTS: u64 = (BLOCK / DIGEST) as u64;

/// Why a tree is not that of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeFault {
    /// Another length than the number of blocks asks for.
    #[error("it has {found} bytes, and {want} are expected")]
    Length {
        /// Bytes of it.
        found: u64,
        /// Bytes that it should have.
        want: u64,
    },
    /// The superblock says something else than the release document.
    #[error("its superblock is not that of the release")]
    Superblock,
    /// A block of it does not lead to the root hash; its number, the superblock is 0.
    #[error("its block {0} does not lead to the root hash")]
    Block(u64),
}

/// Blocks of each level, the one with a single block first; none for a single block of data.
fn levels(blocks: u64) -> Vec<u64> {
    let (mut sizes, mut below) = (Vec::new(), blocks);
    while below > 1 {
        below = below.div_ceil(DIGESTS);
        sizes.push(below);
    }
    sizes.reverse();
    sizes
}

/// Bytes of the tree over so many blocks, with its superblock.
#[must_use]
pub fn tree_bytes(blocks: u64) -> u64 {
    (1 + levels(blocks).iter().sum::<u64>()) * BLOCK as u64
}

/// Where the digests of the data stand in such a tree, bytes; nowhere for a single block of data.
#[must_use]
pub fn leaf_range(blocks: u64) -> Range<u64> {
    if blocks <= 1 {
        return 0..0;
    }
    let leaves = levels(blocks).last().copied().unwrap_or(0) * BLOCK as u64;
    let start = tree_bytes(blocks) - leaves;
    start..start + blocks * DIGEST as u64
}

/// A tree that leads to the root hash of a release.
#[derive(Clone, PartialEq, Eq)]
pub struct VerityTree {
    bytes: Vec<u8>,
    root: BlockDigest,
    blocks: u64,
}

impl std::fmt::Debug for VerityTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerityTree").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl VerityTree {
    /// Checks a tree from its root hash down.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(bytes: Vec<u8>, root: &RootTree) -> Result<VerityTree, TreeFault> {
        let (found, want) = (bytes.len() as u64, tree_bytes(root.blocks));
        if found != want {
            return Err(TreeFault::Length { found, want });
        }
        let block = BLOCK as u64;
        let fits = Superblock::parse(&bytes).is_ok_and(|sb| {
            sb.algorithm == VERITY_ALGORITHM
                && (u64::from(sb.data_block), u64::from(sb.hash_block)) == (block, block)
                && (sb.data_blocks, sb.salt.as_slice()) == (root.blocks, root.salt.0.as_slice())
        });
        if !fits {
            return Err(TreeFault::Superblock);
        }
        // The digests of a level's blocks, one after another.
        let mut above = root.hash.0.to_vec();
        let mut blocks = bytes.chunks_exact(BLOCK).zip(0u64..).skip(1);
        for size in levels(root.blocks) {
            let mut level = Vec::new();
            let count = usize::try_from(size).unwrap_or(usize::MAX);
            for ((content, number), within) in blocks.by_ref().take(count).zip(0u32..) {
                if digest(&root.salt.0, content) != at(&above, within) {
                    return Err(TreeFault::Block(number));
                }
                level.extend_from_slice(content);
            }
            above = level;
        }
        Ok(VerityTree { bytes, root: root.hash.0, blocks: root.blocks })
    }

    /// What stands on the hash partition.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The digests of the blocks of the data, one after another.
    #[must_use]
    pub fn leaves(&self) -> Vec<u8> {
        let range = leaf_range(self.blocks);
        let index = |n| usize::try_from(n).unwrap_or(usize::MAX);
        if range.is_empty() {
            return self.root.to_vec();
        }
        self.bytes.get(index(range.start)..index(range.end)).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use orlop_config::release::HexDigest;

    pub(crate) const SALT: [u8; 32] = [0x5a; 32];

    /// A tree as the image builder makes it, written from the format's description: the tree that is checked here and the one
    /// of the builder must not be the same code.
    pub(crate) fn grown(data: &[u8]) -> (Vec<u8>, RootTree) {
        let blocks = data.len() / BLOCK;
        let mut level: Vec<u8> = data.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect();
        let mut above: Vec<Vec<u8>> = Vec::new();
        while level.len() > DIGEST {
            level.resize(level.len().next_multiple_of(BLOCK), 0);
            let next = level.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect();
            above.insert(0, std::mem::replace(&mut level, next));
        }
        let root: BlockDigest = level.try_into().expect("one digest");
        let mut bytes = vec![0; BLOCK];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"verity\0\0");
        put(8, &1u32.to_le_bytes());
        put(12, &1u32.to_le_bytes());
        put(16, &root[16..]);
        put(32, b"blake2b-256");
        put(64, &4096u32.to_le_bytes());
        put(68, &4096u32.to_le_bytes());
        put(72, &(blocks as u64).to_le_bytes());
        put(80, &32u16.to_le_bytes());
        put(88, &SALT);
        bytes.extend(above.concat());
        let algorithm = VERITY_ALGORITHM.to_owned();
        let (hash, salt) = (HexDigest(root), HexDigest(SALT));
        (bytes, RootTree { algorithm, hash, salt, blocks: blocks as u64 })
    }

    pub(crate) fn data(blocks: usize) -> Vec<u8> {
        (0..blocks * BLOCK).map(|i| u8::try_from(i / BLOCK % 251).expect("below 251")).collect()
    }

    #[test]
    fn leaves_are_those_of_the_data() {
        for blocks in [1, 2, 128, 129, 300] {
            let data = data(blocks);
            let (bytes, root) = grown(&data);
            assert_eq!(bytes.len() as u64, tree_bytes(root.blocks), "{blocks}");
            let tree = VerityTree::check(bytes.clone(), &root).expect("sound");
            let want: Vec<u8> = data.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect();
            assert_eq!((tree.leaves(), tree.bytes()), (want, bytes.as_slice()), "{blocks}");
        }
        // A slot of 512 MiB.
        assert_eq!(tree_bytes(131_072), (1 + 1 + 8 + 1024) * 4096);
    }

    /// The root hash of 16,385 blocks that another program computed; image/src/format/verity.rs has the same.
    #[test]
    fn a_root_that_another_program_computed() {
        let (bytes, root) = grown(&data(16_385));
        assert_eq!(root.hash.to_string(), "6b3be44da9598bbd40ce282665eaef32b7940bc7e8c03e64ec63aea8eea677c0");
        assert!(VerityTree::check(bytes, &root).is_ok());
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is() {
        let (good, root) = grown(&data(300));
        for at in (BLOCK..good.len()).step_by(1021) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let number = (at / BLOCK) as u64;
            assert_eq!(VerityTree::check(bad, &root), Err(TreeFault::Block(number)), "{at}");
        }
        let mut bad = good.clone();
        bad[88] ^= 1;
        assert_eq!(VerityTree::check(bad, &root), Err(TreeFault::Superblock));
        let (found, want) = (good.len() as u64 - 1, good.len() as u64);
        let short = good[1..].to_vec();
        assert_eq!(VerityTree::check(short, &root), Err(TreeFault::Length { found, want }));
        assert!(VerityTree::check(Vec::new(), &root).is_err());
    }
}
