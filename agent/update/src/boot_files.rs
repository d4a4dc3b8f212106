//! Whether this node's firmware would start a release: its variables, and the signatures of the UKI at the source.
//!
//! The UKI is looked at before a byte of the slot changes. Its bytes are those of the signed list of digests, or they do not count.
//! What follows from them is [`FirmwareTrust::judge`]'s to say.

use std::fs::File;
use std::io::Read;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use orlop_config::boot_trust::{
    BootSignature, EFI_VARIABLE_BYTES_MAX, FirmwareTrust, SIGNATURES_BYTES_MAX, signature_place, signatures,
};
use orlop_config::release::{BLOCK_BYTES, ReleaseDocument, UKI_FILE, release_path};

use super::slot::area::ByteRange;
use super::slot::blocks::{BLOCK, DIGEST, digest};
use super::source::{ByteSource, SourceError};
use super::stage_error::{ASKED_MAX, StageError};

/// What the firmware trusts, by the variables in efivarfs; none on a machine without Secure Boot.
pub(crate) fn firmware_trust(variables: &Path) -> Option<FirmwareTrust> {
    FirmwareTrust::read(|name| {
        let mut bytes = Vec::new();
        let file = File::open(variables.join(name)).ok()?;
        file.take(EFI_VARIABLE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    })
}

/// Whose signatures the UKI of a release has. `digests` are those of its blocks. A file that is no EFI program has none.
pub(crate) async fn uki_signatures(
    source: &impl ByteSource,
    release: &ReleaseDocument,
    digests: &[u8],
) -> Result<Vec<BootSignature>, StageError> {
    let head = blocks(source, release, digests, 0..1).await?;
    let Ok(Some(place)) = signature_place(&head) else { return Ok(Vec::new()) };
    let end = place.offset.saturating_add(place.length.min(SIGNATURES_BYTES_MAX)).min(uki_bytes(release));
    if place.offset >= end {
        return Ok(Vec::new());
    }
    let first = place.offset / BLOCK_BYTES;
    let table = blocks(source, release, digests, first..end.div_ceil(BLOCK_BYTES)).await?;
    // Bytes behind them are none of them, whatever they look like.
    let [before, length] =
        [place.offset % BLOCK_BYTES, end - place.offset].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let table = table.get(before..).unwrap_or_default();
    Ok(signatures(&table[..table.len().min(length)]))
}

fn uki_bytes(release: &ReleaseDocument) -> u64 {
    release.file(UKI_FILE).map_or(0, |file| file.size)
}

/// Some blocks of the UKI as the signed list has them; the last one may be shorter.
async fn blocks(
    source: &impl ByteSource,
    release: &ReleaseDocument,
    digests: &[u8],
    range: Range<u64>,
) -> Result<Vec<u8>, StageError> {
    let path = release_path(release.version, &release.arch, UKI_FILE);
    let asked =
        ByteRange { from: range.start * BLOCK_BYTES, to: (range.end * BLOCK_BYTES).min(uki_bytes(release)) };
    let place = |block: u64| usize::try_from(block).unwrap_or(usize::MAX).saturating_mul(DIGEST);
    let listed = digests.get(place(range.start)..place(range.end)).unwrap_or_default();
    let mut last = None;
    for _ in 0..ASKED_MAX {
        match part(source, &path, asked).await {
            Ok(bytes) if are_listed(&bytes, &release.root.salt.0, listed) => return Ok(bytes),
            Ok(_) => last = None,
            Err(error) => last = Some(error),
        }
    }
    let other = || StageError::OtherFile { file: UKI_FILE, place: source.place() };
    Err(last.map_or_else(other, StageError::Source))
}

fn are_listed(bytes: &[u8], salt: &[u8; 32], listed: &[u8]) -> bool {
    let of = |block: &[u8]| {
        let mut whole = [0; BLOCK];
        whole[..block.len()].copy_from_slice(block);
        digest(salt, &whole)
    };
    let found: Vec<u8> = bytes.chunks(BLOCK).flat_map(of).collect();
    !found.is_empty() && found == listed
}

/// The bytes of a part of a file, or fewer.
async fn part(source: &impl ByteSource, path: &str, range: ByteRange) -> Result<Vec<u8>, SourceError> {
    let length = usize::try_from(range.to.saturating_sub(range.from)).unwrap_or(0);
    let mut bytes = Vec::new();
    let mut take = |at: u64, piece: &[u8]| -> ControlFlow<()> {
        // A source without ranges begins at 0.
        let next = range.from + bytes.len() as u64;
        let before = usize::try_from(next.saturating_sub(at)).unwrap_or(usize::MAX);
        let wanted = piece.get(before..).unwrap_or_default();
        let room = length.saturating_sub(bytes.len());
        bytes.extend_from_slice(&wanted[..wanted.len().min(room)]);
        if bytes.len() >= length { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    source.bytes(path, range, &mut take).await?;
    Ok(bytes)
}
