//! The ring of the boot record: 64 blocks of 4 KiB, each a whole record with a sequence number and a checksum.
//!
//! In: the ring's bytes. Out: the record with the highest sequence whose checksum holds, and the write of the next one.
//! Invariant: a write goes to another block than the record that counts. So after a write of which any part has reached
//! the disk, the old record or the new one counts.
//!
//! A block, little-endian: magic (8 bytes), sequence (8), length of the payload (4), CRC-32 of these 20 bytes and the
//! payload (4), zeros (8), payload. What stands behind the payload does not count.

use super::record::RecordError;
use crate::crc32::crc32;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of the ring.
pub const BLOCKS: usize = 64;
/// Bytes of the ring, from the beginning of its partition.
pub const RING_BYTES: usize = BLOCK_BYTES * BLOCKS;
/// Longest payload of a block, bytes.
pub const PAYLOAD_BYTES_MAX: usize = BLOCK_BYTES - HEADER_BYTES;

const MAGIC: [u8; 8] = *b"ORLOPBR1";
const SEQUENCE: usize = 8;
const LENGTH: usize = 16;
const CRC: usize = 20;
const HEADER_BYTES: usize = 32;

/// Where the record that counts stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPosition {
    /// Number of its block, from 0.
    pub block: usize,
    /// Its sequence number.
    pub sequence: u64,
}

/// The record that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRecord<'a> {
    /// Where it stands.
    pub position: RingPosition,
    /// Its content.
    pub payload: &'a [u8],
}

/// One block for the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingWrite {
    /// Where it will stand.
    pub position: RingPosition,
    /// Bytes from the partition's start.
    pub offset: u64,
    /// [`BLOCK_BYTES`] bytes.
    pub bytes: Vec<u8>,
}

/// The record with the highest sequence whose checksum holds; none in a ring that was never written.
#[must_use]
pub fn latest(ring: &[u8]) -> Option<RingRecord<'_>> {
    let blocks = ring.chunks_exact(BLOCK_BYTES).take(BLOCKS).enumerate();
    let mut found: Vec<(u64, usize, &[u8])> =
        blocks.filter_map(|(block, bytes)| Some((sequence(bytes)?, block, bytes))).collect();
    // From the newest on: most of the time one checksum is computed.
    found.sort_unstable_by_key(|(sequence, block, _)| (*sequence, *block));
    found.into_iter().rev().find_map(|(sequence, block, bytes)| {
        Some(RingRecord { position: RingPosition { block, sequence }, payload: payload(bytes)? })
    })
}

/// The write of a payload behind the record that counts.
///
/// # Errors
/// The payload is longer than [`PAYLOAD_BYTES_MAX`], or no higher sequence exists.
pub fn next(latest: Option<RingPosition>, payload: &[u8]) -> Result<RingWrite, RecordError> {
    let (block, sequence) = match latest {
        None => (0, 1),
        Some(last) => {
            let sequence = last.sequence.checked_add(1).ok_or(RecordError::NoSequence)?;
            ((last.block + 1) % BLOCKS, sequence)
        }
    };
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= PAYLOAD_BYTES_MAX);
    let length = length.ok_or(RecordError::TooLong(payload.len()))?;
    let mut bytes = vec![0; BLOCK_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[SEQUENCE..LENGTH].copy_from_slice(&sequence.to_le_bytes());
    bytes[LENGTH..CRC].copy_from_slice(&length.to_le_bytes());
    bytes[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
    let sum = checksum(&bytes[..CRC], payload);
    bytes[CRC..CRC + 4].copy_from_slice(&sum.to_le_bytes());
    let offset = (block * BLOCK_BYTES) as u64;
    Ok(RingWrite { position: RingPosition { block, sequence }, offset, bytes })
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    crc32(&[header, payload].concat())
}

/// The sequence of a block that looks like a record.
fn sequence(block: &[u8]) -> Option<u64> {
    if !block.starts_with(&MAGIC) {
        return None;
    }
    Some(u64::from_le_bytes(block.get(SEQUENCE..LENGTH)?.try_into().ok()?))
}

/// The payload of a block whose checksum holds.
fn payload(block: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?));
    let length = usize::try_from(word(LENGTH)?).ok().filter(|length| *length <= PAYLOAD_BYTES_MAX)?;
    let payload = block.get(HEADER_BYTES..HEADER_BYTES + length)?;
    (word(CRC)? == checksum(block.get(..CRC)?, payload)).then_some(payload)
}
