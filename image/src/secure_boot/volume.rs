//! The ESP's tree with signed programs and the enrolment of keys. Pure, but for the signer.

use super::disk::SignProgram;
use super::keys::EnrolmentFile;
use crate::format::fat::{Directory, FatEntry, Volume};
use anyhow::{Context, Result, bail, ensure};
use orlop_init::plan::esp::UKI_CHAIN_BYTES;
use orlop_init::plan::esp_names::{ENTRY, long_entries};

/// Attributes of an entry.
const ATTRIBUTE_DIRECTORY: u8 = 0x10;
const ATTRIBUTE_FILE: u8 = 0x20;
/// Where the loader looks for keys that it enrols by itself.
const ENROLMENT: [&str; 3] = ["loader", "keys", "auto"];

/// Signs every EFI program in every directory; returns how many there are.
pub(super) fn sign_programs(volume: &mut Volume, sign: &mut SignProgram<'_>) -> Result<usize> {
    sign_below(&mut volume.root, sign)
}

fn sign_below(directory: &mut Directory, sign: &mut SignProgram<'_>) -> Result<usize> {
    let mut signed = 0;
    for entry in directory.iter_mut() {
        match entry {
            FatEntry::Directory(_, below) => signed += sign_below(below, sign)?,
            FatEntry::File(raw, content, chain) if content.starts_with(b"MZ") => {
                let made = sign(content)?;
                let bytes = u32::try_from(made.len()).context("a program is too large")?;
                // A slot's UKI never leaves its chain.
                let is_uki = *chain >= usize::try_from(UKI_CHAIN_BYTES)?;
                ensure!(
                    !is_uki || bytes <= UKI_CHAIN_BYTES,
                    "the signed UKI has {bytes} bytes, a slot has room for {UKI_CHAIN_BYTES}: make the initrd smaller"
                );
                raw[28..32].copy_from_slice(&bytes.to_le_bytes());
                *content = made;
                signed += 1;
            }
            _ => {}
        }
    }
    Ok(signed)
}

/// Puts the enrolment of keys where the loader looks for it; another one that is there goes.
pub(super) fn put_enrolment(volume: &mut Volume, files: &[EnrolmentFile]) -> Result<()> {
    let like = volume.root.iter().find_map(|entry| match entry {
        FatEntry::Directory(raw, _) => Some(*raw),
        _ => None,
    });
    let like = like.context("the ESP has no directory")?;
    let mut directory = &mut volume.root;
    for name in ENROLMENT {
        directory = subdirectory(directory, name, like)?;
    }
    directory.retain(|entry| matches!(entry, FatEntry::Itself(_) | FatEntry::Above(_)));
    for file in files {
        let short = short_file(&file.name)?;
        let bytes = u32::try_from(file.content.len()).context("an enrolment is too long")?;
        directory.extend(long_entries(&file.name, &short).into_iter().map(FatEntry::Plain));
        let raw = entry(like, short, ATTRIBUTE_FILE, bytes);
        directory.push(FatEntry::File(raw, file.content.clone(), 0));
    }
    Ok(())
}

/// The directory of this name, which is made if it is not there.
fn subdirectory<'a>(above: &'a mut Directory, name: &str, like: [u8; ENTRY]) -> Result<&'a mut Directory> {
    let short = padded(name, "")?;
    let is_it = |entry: &FatEntry| matches!(entry, FatEntry::Directory(raw, _) if raw.starts_with(&short));
    let place = match above.iter().position(is_it) {
        Some(place) => place,
        None => {
            let dots = [
                FatEntry::Itself(entry(like, padded(".", "")?, ATTRIBUTE_DIRECTORY, 0)),
                FatEntry::Above(entry(like, padded("..", "")?, ATTRIBUTE_DIRECTORY, 0)),
            ];
            above.extend(long_entries(name, &short).into_iter().map(FatEntry::Plain));
            let raw = entry(like, short, ATTRIBUTE_DIRECTORY, 0);
            above.push(FatEntry::Directory(raw, dots.to_vec()));
            above.len() - 1
        }
    };
    match above.get_mut(place) {
        Some(FatEntry::Directory(_, below)) => Ok(below),
        _ => bail!("the ESP has no directory {name}"),
    }
}

/// An entry with the times of another one. The clusters are the writer's.
fn entry(like: [u8; ENTRY], short: [u8; 11], attributes: u8, bytes: u32) -> [u8; ENTRY] {
    let mut raw = like;
    raw[..11].copy_from_slice(&short);
    raw[11] = attributes;
    // Case of a short name without a long one.
    raw[12] = 0;
    raw[28..32].copy_from_slice(&bytes.to_le_bytes());
    raw
}

/// Short name of `NAME.EXTENSION`, whose extension is too long for one.
fn short_file(name: &str) -> Result<[u8; 11]> {
    let (base, extension) = name.rsplit_once('.').with_context(|| format!("{name} has no extension"))?;
    let extension = extension.get(..3).with_context(|| format!("{name} has a short extension"))?;
    padded(&format!("{base}~1"), extension)
}

fn padded(base: &str, extension: &str) -> Result<[u8; 11]> {
    ensure!(
        base.len() <= 8 && extension.len() <= 3 && base.is_ascii(),
        "{base} is too long for a short name"
    );
    let mut short = [b' '; 11];
    for (place, byte) in base.bytes().enumerate() {
        short[place] = byte.to_ascii_uppercase();
    }
    for (place, byte) in extension.bytes().enumerate() {
        short[8 + place] = byte.to_ascii_uppercase();
    }
    Ok(short)
}
