//! What a disk boots, judged by its bytes alone: the twin of the oracle, which shares no code with the product but the names of the slots.
//!
//! It reads as a firmware and a loader do: a partition table of which one copy is sound, a FAT volume, a directory with long names, a
//! file by its chain. Nothing is hashed: a slot is whole if its bytes are those that were published.

use orlop_config::slots::SlotName;
use serde_json::Value;

use super::BootChoice;
use super::image::DiskImage;
use super::versions::KnownVersion;

/// Bytes of an entry of the partition table.
const GPT_ENTRY: usize = 128;
/// Where a part of a long name has its characters.
const UNITS: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];

struct TwinDisk<'a> {
    image: &'a DiskImage,
    /// Entries of the partition table: ESP, root and tree of A, root and tree of B, boot record.
    table: Vec<u8>,
}

/// A file of the ESP.
struct TwinFile {
    name: String,
    cluster: u64,
    bytes: u64,
}

/// The FAT volume of the ESP.
struct TwinVolume<'a> {
    disk: &'a TwinDisk<'a>,
    cluster: u64,
    fat: u64,
    data: u64,
    root: u64,
}

/// What boots, and whether all that the record and the ESP promise is true.
pub(super) fn choice(image: &DiskImage, known: &[KnownVersion]) -> Result<BootChoice, String> {
    let disk = TwinDisk { image, table: table(image)? };
    let volume = TwinVolume::of(&disk)?;
    let root = volume.files(volume.root)?;
    let efi = volume.files(named(&root, "EFI")?.cluster)?;
    let files = volume.files(named(&efi, "LINUX")?.cluster)?;
    let record = disk.record()?;
    let (mut seen, mut good) = (Vec::new(), false);
    for (slot, letter) in [(SlotName::A, 'a'), (SlotName::B, 'b')] {
        let begin = format!("orlop-{letter}_");
        let own = files.iter().filter(|file| file.name.to_ascii_lowercase().starts_with(&begin));
        let field = |name: &str| record[letter.to_string()][name].as_str().unwrap_or_default().to_owned();
        let (state, version) = (field("state"), field("version"));
        let is_promised = ["staged", "trial", "good"].contains(&state.as_str());
        let mut is_kept = false;
        for file in own {
            let is_seen = file.name.to_ascii_lowercase().ends_with(".efi");
            // The chain of a hidden file is longer than the UKI.
            if is_promised {
                let known = KnownVersion::find(known, &version).ok_or("a version that nobody published")?;
                let content = volume.content(file.cluster, known.uki.len() as u64)?;
                is_kept |= content == known.uki && disk.holds(slot, known);
            }
            if is_seen {
                let content = volume.content(file.cluster, file.bytes)?;
                let known = known.iter().find(|known| known.uki == content);
                let known = known.ok_or_else(|| format!("{} is no UKI that was published", file.name))?;
                if !disk.holds(slot, known) {
                    return Err(format!("{} is to be seen, and slot {slot} is another", file.name));
                }
                good |= state == "good";
                seen.push((slot, file.name.clone(), known.version));
            }
        }
        if is_promised && !is_kept {
            return Err(format!("slot {slot} is {state} and not the published {version}"));
        }
    }
    if !good {
        return Err("no good slot is to be seen".to_owned());
    }
    // Entries whose tries are used up come last; then the newest version; then the name.
    let used_up = |name: &str| name.contains("_+0");
    let order = |entry: &(SlotName, String, &'static str)| (!used_up(&entry.1), entry.2, entry.1.clone());
    let first = seen.iter().max_by_key(|entry| order(entry)).ok_or("nothing is to be seen")?;
    Ok(BootChoice { slot: first.0, version: first.2.to_owned() })
}

fn named<'a>(files: &'a [TwinFile], name: &str) -> Result<&'a TwinFile, String> {
    let found = files.iter().find(|file| file.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("the ESP has no {name}"))
}

/// A little-endian number.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let field = bytes.get(at..at + length).unwrap_or_default();
    field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// CRC-32, bit by bit.
fn sum(bytes: &[u8]) -> u64 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    u64::from(!crc)
}

/// The entries of the first sound copy of the partition table.
fn table(image: &DiskImage) -> Result<Vec<u8>, String> {
    for at in [512, image.bytes() - 512] {
        let mut header = image.read(at, 92).ok_or("a short disk")?;
        let (signed, of_entries) = (number(&header, 16, 4), number(&header, 88, 4));
        header[16..20].fill(0);
        if !header.starts_with(b"EFI PART") || sum(&header) != signed {
            continue;
        }
        let length = usize::try_from(number(&header, 80, 4)).unwrap_or(0) * GPT_ENTRY;
        let entries = image.read(number(&header, 72, 8) * 512, length).unwrap_or_default();
        if !entries.is_empty() && sum(&entries) == of_entries {
            return Ok(entries);
        }
    }
    Err("both copies of the partition table are damaged".to_owned())
}

impl TwinDisk<'_> {
    fn entry(&self, number: usize) -> &[u8] {
        &self.table[number * GPT_ENTRY..(number + 1) * GPT_ENTRY]
    }

    fn start(&self, partition: usize) -> u64 {
        number(self.entry(partition), 32, 8) * 512
    }

    /// Root and tree are those of the version, and the table says so.
    fn holds(&self, slot: SlotName, version: &KnownVersion) -> bool {
        let first = if slot == SlotName::A { 1 } else { 3 };
        let halves = version.hash.0.chunks(16);
        [&version.root, &version.tree].into_iter().zip(halves).zip(first..).all(|((content, half), at)| {
            // A GUID's first three fields are little-endian.
            let mut guid = half.to_vec();
            guid[..4].reverse();
            guid[4..6].reverse();
            guid[6..8].reverse();
            let is_named = self.entry(at)[16..32] == guid[..];
            is_named && self.image.read(self.start(at), content.len()).as_ref() == Some(content)
        })
    }

    /// The newest record of the ring.
    fn record(&self) -> Result<Value, String> {
        let ring = self.image.read(self.start(5), 64 * 4096).ok_or("a short ring")?;
        let mut newest: Option<(u64, Value)> = None;
        for block in ring.chunks(4096).filter(|block| block.starts_with(b"ORLOPBR1")) {
            let (sequence, length) =
                (number(block, 8, 8), usize::try_from(number(block, 16, 4)).unwrap_or(0));
            let Some(payload) = block.get(32..32 + length.min(4096)) else { continue };
            let is_sound = sum(&[&block[..20], payload].concat()) == number(block, 20, 4);
            if is_sound && newest.as_ref().is_none_or(|(other, _)| *other < sequence) {
                newest = Some((sequence, serde_json::from_slice(payload).map_err(|e| e.to_string())?));
            }
        }
        newest.map(|(_, record)| record).ok_or_else(|| "no boot record is sound".to_owned())
    }
}

impl<'a> TwinVolume<'a> {
    fn of(disk: &'a TwinDisk<'a>) -> Result<TwinVolume<'a>, String> {
        let start = disk.start(0);
        let boot = disk.image.read(start, 512).ok_or("a short ESP")?;
        let sector = number(&boot, 11, 2);
        let fat = start + number(&boot, 14, 2) * sector;
        let data = fat + number(&boot, 16, 1) * number(&boot, 36, 4) * sector;
        let (cluster, root) = (number(&boot, 13, 1) * sector, number(&boot, 44, 4));
        if boot[510..] != [0x55, 0xaa] || cluster == 0 {
            return Err("the ESP is no FAT volume".to_owned());
        }
        Ok(TwinVolume { disk, cluster, fat, data, root })
    }

    /// So many bytes of a file, or fewer if its chain ends.
    fn content(&self, first: u64, bytes: u64) -> Result<Vec<u8>, String> {
        let (mut content, mut at) = (Vec::new(), first);
        let cut_off = || "the ESP is cut off".to_owned();
        while (content.len() as u64) < bytes && (2..0x0fff_fff8).contains(&at) {
            let length = usize::try_from(self.cluster).map_err(|e| e.to_string())?;
            let place = self.data + (at - 2) * self.cluster;
            content.extend(self.disk.image.read(place, length).ok_or_else(cut_off)?);
            let next = self.disk.image.read(self.fat + at * 4, 4).ok_or_else(cut_off)?;
            at = number(&next, 0, 4) & 0x0fff_ffff;
        }
        content.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(content)
    }

    /// The files of a directory of at most 1 MiB.
    fn files(&self, first: u64) -> Result<Vec<TwinFile>, String> {
        let (mut files, mut long) = (Vec::new(), Vec::new());
        for entry in self.content(first, 1 << 20)?.chunks(32).take_while(|entry| entry[0] != 0) {
            if entry[0] == 0xe5 {
                long.clear();
            } else if entry[11] == 0x0f {
                let units = UNITS.map(|at| u16::try_from(number(entry, at, 2)).unwrap_or(0));
                let units = units.into_iter().take_while(|unit| *unit != 0);
                long.push((entry[0] & 0x3f, char::decode_utf16(units).flatten().collect::<String>()));
            } else {
                long.sort();
                let name: String = long.drain(..).map(|(_, part)| part).collect();
                let short = String::from_utf8_lossy(&entry[..8]).trim().to_owned();
                let name = if name.is_empty() { short } else { name };
                let cluster = number(entry, 20, 2) << 16 | number(entry, 26, 2);
                files.push(TwinFile { name, cluster, bytes: number(entry, 28, 4) });
            }
        }
        Ok(files)
    }
}
