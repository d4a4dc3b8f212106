//! The ESP's tree with a UKI file for each slot: slot A's with the image's UKI, slot B's hidden and empty.
//!
//! In: the ESP's tree as mkosi makes it, with one UKI in `EFI/Linux`. Out: the same tree with two files there, whose names
//! init and the loader know (`init/src/plan/esp_names.rs`) and whose chains have 64 MiB each: an update writes a UKI into its
//! chain and changes a name; no table of the volume changes again.

use super::fat::{Directory, FatEntry, Volume};
use anyhow::{Context, Result, bail, ensure};
use orlop_config::slots::SlotName;
use orlop_init::plan::esp::UKI_CHAIN_BYTES;
use orlop_init::plan::esp_names::{ENTRY, EntryState, file_name, long_entries, short_name};

/// Gives the tree both files.
///
/// # Errors
/// `EFI/Linux` has not exactly one file, or it is larger than its chain will be.
pub fn two_slots(mut volume: Volume) -> Result<Volume> {
    let efi = below(&mut volume.root, b"EFI        ").context("the ESP has no directory EFI")?;
    let linux = below(efi, b"LINUX      ").context("the ESP has no directory EFI/Linux")?;
    let mut files = linux.iter().filter_map(|entry| match entry {
        FatEntry::File(raw, content, _) => Some((*raw, content.clone())),
        _ => None,
    });
    let (Some((raw, uki)), None) = (files.next(), files.next()) else {
        bail!("EFI/Linux has not exactly one UKI");
    };
    let bytes = u32::try_from(uki.len()).ok().filter(|bytes| (1..=UKI_CHAIN_BYTES).contains(bytes));
    let bytes = bytes.with_context(|| {
        format!(
            "the UKI has {} bytes, a slot has room for {UKI_CHAIN_BYTES}: make the initrd smaller",
            uki.len()
        )
    })?;
    linux.retain(|entry| matches!(entry, FatEntry::Itself(_) | FatEntry::Above(_)));
    ensure!(linux.len() == 2, "EFI/Linux is damaged");
    let mut add = |slot, state, content, bytes| -> Result<()> {
        let short = short_name(slot, state);
        linux.extend(long_entries(&file_name(slot, state), &short).into_iter().map(FatEntry::Plain));
        linux.push(FatEntry::File(named(raw, short, bytes), content, usize::try_from(UKI_CHAIN_BYTES)?));
        Ok(())
    };
    add(SlotName::A, EntryState::Good, uki, bytes)?;
    add(SlotName::B, EntryState::Hidden, Vec::new(), UKI_CHAIN_BYTES)?;
    Ok(volume)
}

/// The directory with this short name.
fn below<'a>(directory: &'a mut Directory, short: &[u8; 11]) -> Option<&'a mut Directory> {
    directory.iter_mut().find_map(|entry| match entry {
        FatEntry::Directory(raw, below) if raw.starts_with(short) => Some(below),
        _ => None,
    })
}

/// The entry with another name and length; times and attributes stay.
fn named(mut raw: [u8; ENTRY], short: [u8; 11], bytes: u32) -> [u8; ENTRY] {
    raw[..11].copy_from_slice(&short);
    // Case of a short name without a long one.
    raw[12] = 0;
    raw[28..32].copy_from_slice(&bytes.to_le_bytes());
    raw
}

#[cfg(test)]
mod tests {
    use super::super::fat::tests::volume;
    use super::super::fat::{Piece, write};
    use super::*;
    use orlop_init::plan::esp::EspDirectory;

    const MIB: u64 = 1 << 20;

    fn on(pieces: &[Piece]) -> impl Fn(u64, usize) -> Option<Vec<u8>> {
        move |offset: u64, length: usize| {
            let mut out = vec![0; length];
            for piece in pieces {
                let end = piece.offset + piece.bytes.len() as u64;
                let (from, to) = (piece.offset.max(offset), end.min(offset + length as u64));
                if from < to {
                    let [a, b, c, d] = [from - offset, to - offset, from - piece.offset, to - piece.offset]
                        .map(|n| usize::try_from(n).expect("small"));
                    out[a..b].copy_from_slice(&piece.bytes[c..d]);
                }
            }
            Some(out)
        }
    }

    #[test]
    fn init_finds_both_files_with_whole_chains() {
        let made = two_slots(volume()).expect("one UKI");
        for sector in [512, 4096] {
            let pieces = write(&made, 264 * MIB, sector, 4096).expect("fits");
            let read = on(&pieces);
            let directory = EspDirectory::read(&read).expect("sound");
            let geometry = directory.geometry();
            assert_eq!((geometry.sector, geometry.cluster), (sector as usize, 4096));
            let [a, b] = SlotName::ALL.map(|slot| *directory.entry(slot).expect("an entry"));
            assert_eq!((a.state, a.bytes), (EntryState::Good, 100_000));
            assert_eq!((b.state, b.bytes), (EntryState::Hidden, UKI_CHAIN_BYTES));
            for entry in [a, b] {
                let whole = geometry.is_contiguous(&read, entry.first_cluster, UKI_CHAIN_BYTES);
                assert_eq!(whole, Ok(true), "{entry:?}");
            }
            let uki = read(geometry.offset(a.first_cluster), 8).expect("content");
            assert_eq!(uki, [0, 1, 2, 3, 4, 5, 6, 7]);
            // One sector holds both, so that one write changes either.
            for slot in SlotName::ALL {
                assert!(directory.renamed(slot, EntryState::Tried, 9).is_ok(), "{slot}");
            }
        }
    }

    #[test]
    fn without_one_uki_there_are_no_slots() {
        let linux = |volume: &mut Volume, change: &dyn Fn(&mut Directory)| {
            let efi = below(&mut volume.root, b"EFI        ").expect("EFI");
            change(below(efi, b"LINUX      ").expect("Linux"));
        };
        let changes: [&dyn Fn(&mut Directory); 2] =
            [&|entries| entries.retain(|entry| !matches!(entry, FatEntry::File(..))), &|entries| {
                entries.push(entries[3].clone())
            }];
        for change in changes {
            let mut other = volume();
            linux(&mut other, change);
            assert!(two_slots(other).is_err());
        }
        let mut large = volume();
        linux(&mut large, &|entries| {
            let FatEntry::File(_, content, _) = &mut entries[3] else { panic!("a file") };
            content.resize(UKI_CHAIN_BYTES as usize + 1, 1);
        });
        assert!(two_slots(large).expect_err("too large").to_string().contains("room for"));
    }
}
