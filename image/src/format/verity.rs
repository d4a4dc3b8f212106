//! The dm-verity tree of a partition: blocks in, the hash partition and the root hash out.
//!
//! Format: the superblock and the tree of cryptsetup (version 1, hash type 1), as the kernel's dm-verity reads it: a
//! digest is that of salt and block; a level's digests fill whole blocks; the levels stand behind the superblock, the
//! one with a single block first. BLAKE2b with 256 bits in place of SHA-256: docs/decisions/verity-hash.md.

use blake2::Blake2b256;
use blake2::digest::Digest as _;
use std::io::{self, Read};

/// Bytes of a data block and of a hash block: a page, so that each page read costs one digest.
pub const BLOCK: usize = 4096;
/// The digest's name in the kernel's crypto API.
pub const ALGORITHM: &str = "blake2b-256";
const DIGEST: usize = 32;

/// What stands on the hash partition, and what it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Superblock and levels.
    pub bytes: Vec<u8>,
    /// The digest of everything.
    pub root: [u8; DIGEST],
}

impl Tree {
    /// The tree over all of `data`. The UUID of the superblock is the root hash's last half, as that of the hash
    /// partition.
    ///
    /// # Errors
    /// `data` cannot be read, or is not a whole number of blocks and at least one.
    pub fn over(data: &mut impl Read, salt: &[u8; 32]) -> io::Result<Tree> {
        let mut digests = Vec::new();
        let mut blocks = 0u64;
        let mut block = [0; BLOCK];
        loop {
            match fill(data, &mut block)? {
                0 => break,
                BLOCK => digests.extend(digest(salt, &block)),
                _ => return Err(io::Error::other("the partition's last block is not whole")),
            }
            blocks += 1;
        }
        let mut levels = Vec::new();
        while digests.len() > DIGEST {
            digests.resize(digests.len().next_multiple_of(BLOCK), 0);
            let above = digests.chunks(BLOCK).flat_map(|block| digest(salt, block)).collect();
            levels.push(std::mem::replace(&mut digests, above));
        }
        let root =
            <[u8; DIGEST]>::try_from(digests).map_err(|_| io::Error::other("the partition is empty"))?;
        let mut bytes = superblock(&root, blocks, salt);
        levels.iter().rev().for_each(|level| bytes.extend(level));
        Ok(Tree { bytes, root })
    }
}

/// The digests of the blocks of `data`, one after another. Zeros fill the last block.
///
/// # Errors
/// `data` cannot be read.
pub fn block_digests(data: &mut impl Read, salt: &[u8; 32]) -> io::Result<Vec<u8>> {
    let mut digests = Vec::new();
    let mut block = [0; BLOCK];
    loop {
        let have = fill(data, &mut block)?;
        if have == 0 {
            return Ok(digests);
        }
        block[have..].fill(0);
        digests.extend(digest(salt, &block));
    }
}

fn fill(data: &mut impl Read, block: &mut [u8; BLOCK]) -> io::Result<usize> {
    let mut have = 0;
    while have < BLOCK {
        match data.read(&mut block[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

fn digest(salt: &[u8; 32], block: &[u8]) -> [u8; DIGEST] {
    Blake2b256::new().chain_update(salt).chain_update(block).finalize().into()
}

fn superblock(root: &[u8; DIGEST], blocks: u64, salt: &[u8; 32]) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, b"verity\0\0");
    put(8, &1u32.to_le_bytes()); // version
    put(12, &1u32.to_le_bytes()); // hash type: the salt comes first
    put(16, &root[DIGEST / 2..]);
    put(32, ALGORITHM.as_bytes());
    put(64, &4096u32.to_le_bytes());
    put(68, &4096u32.to_le_bytes());
    put(72, &blocks.to_le_bytes());
    put(80, &32u16.to_le_bytes());
    put(88, salt);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: [u8; 32] = [0x5a; 32];

    fn data(blocks: usize) -> Vec<u8> {
        (0..blocks * BLOCK).map(|i| u8::try_from(i / BLOCK % 251).expect("below 251")).collect()
    }

    fn tree(data: &[u8]) -> Tree {
        Tree::over(&mut &data[..], &SALT).expect("whole blocks")
    }

    /// Made with Python's hashlib (`blake2b(digest_size=32)`), level by level.
    #[test]
    fn roots_that_another_program_computed() {
        for (blocks, blocks_of_tree, want) in [
            (1, 0, "2deab10187ebf0aee5c10ba0e1b4ca1349226cf69c35ee26e7b61c97cd5acadc"),
            (2, 1, "51ead1b0de73d6867fd015f7cfb466c11112ab1331ba3c169b656dd827fb364b"),
            (129, 3, "7a3fabb8e57b5dfeffa425d1ef3886a9b89fec5a2b9b5db3a710fc8056b7152d"),
            (16_385, 132, "6b3be44da9598bbd40ce282665eaef32b7940bc7e8c03e64ec63aea8eea677c0"),
        ] {
            let tree = tree(&data(blocks));
            assert_eq!(
                (hex::encode(tree.root).as_str(), tree.bytes.len() / BLOCK - 1),
                (want, blocks_of_tree)
            );
        }
    }

    #[test]
    fn the_top_comes_first_and_leads_to_the_data() {
        let data = data(300);
        let tree = tree(&data);
        let (top, below) = tree.bytes[BLOCK..].split_at(BLOCK);
        assert_eq!(digest(&SALT, top), tree.root);
        for (i, block) in below.chunks(BLOCK).enumerate() {
            assert_eq!(digest(&SALT, block), top[i * 32..][..32]);
        }
        for (i, block) in data.chunks(BLOCK).enumerate() {
            assert_eq!(digest(&SALT, block), below[i * 32..][..32]);
        }
        assert!(top[3 * 32..].iter().all(|b| *b == 0), "300 blocks are three blocks of digests");
        let fields = [&tree.bytes[..8], &tree.bytes[32..43], &tree.bytes[72..80], &tree.bytes[88..120]];
        assert_eq!(fields, [&b"verity\0\0"[..], b"blake2b-256", &300u64.to_le_bytes(), &SALT]);
        assert_eq!(tree.bytes[16..32], tree.root[16..]);
    }

    #[test]
    fn a_list_of_blocks_is_that_of_the_zero_filled_data() {
        let mut whole = data(3);
        let list = block_digests(&mut &whole[..2 * BLOCK + 1], &SALT).expect("read");
        whole[2 * BLOCK + 1..].fill(0);
        assert_eq!(list, whole.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect::<Vec<u8>>());
        assert!(block_digests(&mut &b""[..], &SALT).expect("read").is_empty());
    }

    #[test]
    fn part_of_a_block_and_nothing_are_refused() {
        for (data, why) in [(vec![0; BLOCK + 1], "not whole"), (vec![], "empty")] {
            let refused = Tree::over(&mut &data[..], &SALT).expect_err("refused").to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
