//! Names of the two UKI files on the ESP: `orlop-<slot>_<state>.<ext>`, and their entries in a FAT directory.
//!
//! In: slot and state. Out: names, and 32-byte entries of a directory; and back, from any name. All names that are written
//! have 16 characters, so another state is other bytes at the same place. The extension `.efx` hides a file from the loader.
//! Format: Microsoft's FAT specification 1.03; counters: systemd's automatic boot assessment.

use orlop_config::slots::SlotName;

/// Bytes of a directory entry.
pub const ENTRY: usize = 32;
/// Entries of a file: two of the long name, one of the short one.
pub const ENTRIES: usize = 3;
/// Attributes of an entry that holds a part of a long name.
pub const LONG_NAME: u8 = 0x0f;
/// Mark in the number of the part that ends a long name.
const LAST_PART: u8 = 0x40;
/// Characters of a part, by their offsets in the entry.
const CHARACTERS: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
/// Longest name, parts (255 characters).
const PARTS_MAX: usize = 20;

/// State of a slot's UKI on the ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryState {
    /// `good`: without counter, for the loader one of the first.
    Good,
    /// `+1-0`: one try left.
    ToTry,
    /// `+0-1`: the loader has used the try.
    Tried,
    /// `+0-0`: whole, but behind all others in the loader's order.
    Behind,
    /// `none`, with the extension `.efx`: the loader does not see it.
    Hidden,
}

impl EntryState {
    /// All of them.
    pub const ALL: [EntryState; 5] =
        [EntryState::Good, EntryState::ToTry, EntryState::Tried, EntryState::Behind, EntryState::Hidden];

    /// Does the loader see it?
    #[must_use]
    pub fn is_visible(self) -> bool {
        self != EntryState::Hidden
    }

    /// As in the name, four characters.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            EntryState::Good => "good",
            EntryState::ToTry => "+1-0",
            EntryState::Tried => "+0-1",
            EntryState::Behind => "+0-0",
            EntryState::Hidden => "none",
        }
    }

    // As systemd-boot reads a name: `+LEFT`, `+LEFT-DONE`, or no counter at all.
    fn of(text: &str, extension: &str) -> Option<EntryState> {
        if extension == "efx" {
            return Some(EntryState::Hidden);
        }
        if extension != "efi" {
            return None;
        }
        let Some((_, counter)) = text.rsplit_once('+') else { return Some(EntryState::Good) };
        let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
        let number = |digits: &str| {
            let is = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            is.then(|| digits.bytes().any(|b| b != b'0'))
        };
        Some(match (number(left), number(done)) {
            (Some(true), Some(_)) => EntryState::ToTry,
            (Some(false), Some(true)) => EntryState::Tried,
            (Some(false), Some(false)) => EntryState::Behind,
            // No counter to the loader.
            _ => EntryState::Good,
        })
    }
}

/// The file's name.
#[must_use]
pub fn file_name(slot: SlotName, state: EntryState) -> String {
    let extension = if state.is_visible() { "efi" } else { "efx" };
    format!("orlop-{}_{}.{extension}", slot.letter(), state.text())
}

/// Slot and state of a file with this name; none if it is another file. Case does not matter.
#[must_use]
pub fn parse_name(name: &str) -> Option<(SlotName, EntryState)> {
    let name = name.to_ascii_lowercase();
    let rest = name.strip_prefix("orlop-")?;
    let (slot, rest) = SlotName::ALL
        .into_iter()
        .find_map(|slot| Some((slot, rest.strip_prefix(slot.letter())?.strip_prefix('_')?)))?;
    let (text, extension) = rest.rsplit_once('.')?;
    Some((slot, EntryState::of(text, extension)?))
}

/// The file's short name, which no other file of the directory has.
#[must_use]
pub fn short_name(slot: SlotName, state: EntryState) -> [u8; 11] {
    let mut short = *b"ORLOP~1 EFI";
    if slot == SlotName::B {
        short[6] = b'2';
    }
    if !state.is_visible() {
        short[10] = b'X';
    }
    short
}

/// The entries of a long name, in the directory's order: the last part first.
#[must_use]
pub fn long_entries(name: &str, short: &[u8; 11]) -> Vec<[u8; ENTRY]> {
    let units: Vec<u16> = name.encode_utf16().collect();
    let parts: Vec<&[u16]> = units.chunks(CHARACTERS.len()).collect();
    let entry = |(number, part): (usize, &&[u16])| {
        let mut entry = [0xff; ENTRY];
        let last = if number + 1 == parts.len() { LAST_PART } else { 0 };
        entry[0] = u8::try_from(number + 1).unwrap_or(0) | last;
        (entry[11], entry[12], entry[13]) = (LONG_NAME, 0, checksum(short));
        entry[26..28].fill(0);
        for (n, at) in CHARACTERS.into_iter().enumerate() {
            let unit = part.get(n).copied().or((n == part.len()).then_some(0));
            entry[at..at + 2].copy_from_slice(&unit.unwrap_or(0xffff).to_le_bytes());
        }
        entry
    };
    parts.iter().enumerate().rev().map(entry).collect()
}

/// Binds the parts of a long name to its short name.
#[must_use]
pub fn checksum(short: &[u8]) -> u8 {
    short.iter().fold(0, |sum: u8, byte| sum.rotate_right(1).wrapping_add(*byte))
}

/// Collects the parts of a long name in the directory's order.
#[derive(Debug, Default)]
pub struct LongName {
    /// From the end of the name on; the first is the newest.
    parts: Vec<[u16; 13]>,
    /// Number that the next part must have.
    next: u8,
    sum: u8,
}

impl LongName {
    /// Takes a part; one that does not fit ends the name.
    pub fn take(&mut self, entry: &[u8]) {
        let (Some(number), Some(sum)) = (entry.first().copied(), entry.get(13).copied()) else { return };
        if number & LAST_PART != 0 {
            *self = LongName { parts: Vec::new(), next: number & !LAST_PART, sum };
        } else if number != self.next || sum != self.sum {
            *self = LongName::default();
            return;
        }
        if self.next == 0 || self.parts.len() >= PARTS_MAX {
            *self = LongName::default();
            return;
        }
        let mut part = [0; 13];
        for (unit, at) in part.iter_mut().zip(CHARACTERS) {
            *unit = super::le_u16(entry, at).unwrap_or(0);
        }
        self.parts.push(part);
        self.next -= 1;
    }

    /// The name of the file with this short name, and of how many parts it is; none if parts are missing.
    #[must_use]
    pub fn finish(self, short: &[u8]) -> Option<(String, usize)> {
        if self.parts.is_empty() || self.next != 0 || self.sum != checksum(short) {
            return None;
        }
        let units = self.parts.iter().rev().flatten().copied().take_while(|unit| *unit != 0);
        let name = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        Some((name, self.parts.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_have_one_length_and_lead_back() {
        let mut shorts = Vec::new();
        for slot in SlotName::ALL {
            for state in EntryState::ALL {
                let name = file_name(slot, state);
                assert_eq!((name.len(), state.text().len()), (16, 4), "{name}");
                assert_eq!(parse_name(&name), Some((slot, state)));
                assert_eq!(parse_name(&name.to_uppercase()), Some((slot, state)));
                shorts.push((slot, short_name(slot, state)));
            }
        }
        assert!(shorts.iter().all(|(s, a)| shorts.iter().all(|(t, b)| s == t || a != b)));
        assert_eq!(file_name(SlotName::A, EntryState::Good), "orlop-a_good.efi");
        assert_eq!(file_name(SlotName::B, EntryState::Hidden), "orlop-b_none.efx");
    }

    #[test]
    fn other_counters_and_other_files() {
        for (name, want) in [
            ("orlop-b_+3-0.efi", Some(EntryState::ToTry)),
            ("orlop-b_+2.efi", Some(EntryState::ToTry)),
            ("orlop-b_+0.efi", Some(EntryState::Behind)),
            ("orlop-b_+0-10.efi", Some(EntryState::Tried)),
            ("orlop-b_x.efi", Some(EntryState::Good)),
            // To the loader a name without a counter.
            ("orlop-b_+x-1.efi", Some(EntryState::Good)),
            ("orlop-b_+1-x.efi", Some(EntryState::Good)),
            ("orlop-b_good.efx", Some(EntryState::Hidden)),
            ("orlop-b_good.conf", None),
            ("orlop-c_good.efi", None),
            ("orlop-b.efi", None),
            ("orlop_0.1.0.efi", None),
            ("", None),
        ] {
            assert_eq!(parse_name(name).map(|(_, state)| state), want, "{name}");
        }
    }

    fn read(entries: &[[u8; ENTRY]], short: &[u8]) -> Option<(String, usize)> {
        let mut name = LongName::default();
        entries.iter().for_each(|entry| name.take(entry));
        name.finish(short)
    }

    #[test]
    fn long_names_as_they_stand_in_a_directory() {
        let short = short_name(SlotName::A, EntryState::Good);
        let entries = long_entries("orlop-a_good.efi", &short);
        assert_eq!((entries.len() + 1, entries[0][0], entries[1][0]), (ENTRIES, 0x42, 1));
        // "efi" and its end in the first entry, then nothing.
        assert_eq!(entries[0][1..11], [b'e', 0, b'f', 0, b'i', 0, 0, 0, 0xff, 0xff]);
        assert_eq!(read(&entries, &short), Some(("orlop-a_good.efi".into(), 2)));
        assert_eq!(read(&entries[..1], &short), None);
        assert_eq!(read(&entries[1..], &short), None);
        assert_eq!(read(&entries, b"ORLOP~9 EFI"), None);
        assert_eq!(read(&[entries[1], entries[0]], &short), None);
        // The checksum of the specification's example.
        assert_eq!(checksum(b"THEQUI~1FOX"), 0x07);
    }

    proptest! {
        #[test]
        fn any_name(name in "\\PC{0,60}", left in any::<u64>(), done in any::<u64>()) {
            let _ = parse_name(&name);
            let _ = parse_name(&format!("orlop-a_{name}.efi"));
            let state = parse_name(&format!("orlop-a_+{left}-{done}.efi")).map(|(_, state)| state);
            prop_assert_eq!(state == Some(EntryState::ToTry), left > 0);
        }

        #[test]
        fn any_parts(bytes in proptest::collection::vec(any::<u8>(), 0..400), short in any::<[u8; 11]>()) {
            let mut name = LongName::default();
            bytes.chunks(ENTRY).for_each(|entry| name.take(entry));
            let _ = name.finish(&short);
        }
    }
}
