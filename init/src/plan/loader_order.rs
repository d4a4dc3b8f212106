//! systemd-boot's order of entries, as far as two UKIs of this image differ: which of them it boots.
//!
//! In: the slots' states on the ESP and their versions (`IMAGE_VERSION` in the UKI's `.osrel`; `IMAGE_ID` is the same).
//! Out: the slot that the loader takes. Upstream: systemd 257, `src/boot/boot.c` (`boot_entry_compare`) and
//! `src/fundamental/string-util-fundamental.c` (`strverscmp_improved`); the arbiter relies on it only where the versions of
//! both slots are known, and is right without it.

use super::esp_names::{EntryState, file_name};
use orlop_config::slots::SlotName;
use std::cmp::Ordering;

/// A UKI as the loader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderEntry<'a> {
    /// Its slot.
    pub slot: SlotName,
    /// Its state.
    pub state: EntryState,
    /// Its version.
    pub version: &'a str,
}

/// The slot that the loader boots by itself; none if it sees no entry.
#[must_use]
pub fn chosen(entries: &[LoaderEntry<'_>]) -> Option<SlotName> {
    let visible = entries.iter().filter(|entry| entry.state.is_visible());
    visible.min_by(|a, b| order(a, b)).map(|entry| entry.slot)
}

/// Does this version in this slot stand before that one in the other slot, as long as neither has used up its tries? None
/// if a version is unknown.
#[must_use]
pub fn is_newer(slot: SlotName, version: &str, other: &str) -> Option<bool> {
    if version.is_empty() || other.is_empty() {
        return None;
    }
    let entry = |slot, version| LoaderEntry { slot, state: EntryState::Good, version };
    Some(order(&entry(slot, version), &entry(slot.other(), other)).is_lt())
}

/// The order of the loader's menu: the first one is booted.
#[must_use]
pub fn order(a: &LoaderEntry<'_>, b: &LoaderEntry<'_>) -> Ordering {
    let used_up = |state| matches!(state, EntryState::Tried | EntryState::Behind);
    let id = |entry: &LoaderEntry<'_>| file_name(entry.slot, entry.state);
    used_up(a.state)
        .cmp(&used_up(b.state))
        .then_with(|| compare_versions(a.version, b.version).reverse())
        .then_with(|| compare_versions(&id(a), &id(b)).reverse())
}

/// The order of versions, the older one first.
#[must_use]
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        a = trimmed(a, |c| !is_of_version(c));
        b = trimmed(b, |c| !is_of_version(c));
        let early = behind(&mut a, &mut b, b'~');
        if early.is_ne() {
            return early;
        }
        if a.is_empty() || b.is_empty() {
            return a.len().min(1).cmp(&b.len().min(1));
        }
        for separator in *b"-^." {
            match behind(&mut a, &mut b, separator) {
                Ordering::Equal => {}
                different => return different,
            }
        }
        let starts_with_digit = |text: &[u8]| text.first().is_some_and(u8::is_ascii_digit);
        let compared = if starts_with_digit(a) || starts_with_digit(b) {
            let (x, y) = (taken(&mut a, |c| c.is_ascii_digit()), taken(&mut b, |c| c.is_ascii_digit()));
            let (x, y, any) =
                (trimmed(x, |c| c == b'0'), trimmed(y, |c| c == b'0'), (!x.is_empty(), !y.is_empty()));
            any.0.cmp(&any.1).then(x.len().cmp(&y.len())).then(x.cmp(y))
        } else {
            // A longer word with the same beginning is newer: as slices are compared.
            taken(&mut a, |c| c.is_ascii_alphabetic()).cmp(taken(&mut b, |c| c.is_ascii_alphabetic()))
        };
        if compared.is_ne() {
            return compared;
        }
    }
}

fn is_of_version(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"~-^.".contains(&c)
}

/// Where one of them alone begins with the separator, it is older; where both do, both lose it.
fn behind<'a>(a: &mut &'a [u8], b: &mut &'a [u8], separator: u8) -> Ordering {
    let (x, y) = (*a, *b);
    let begin = (x.first() == Some(&separator), y.first() == Some(&separator));
    if begin == (true, true) {
        (*a, *b) = (&x[1..], &y[1..]);
    }
    begin.1.cmp(&begin.0)
}

fn trimmed(text: &[u8], skip: impl Fn(u8) -> bool) -> &[u8] {
    let from = text.iter().position(|c| !skip(*c)).unwrap_or(text.len());
    &text[from..]
}

/// Takes the bytes at the beginning for which it holds.
fn taken<'a>(text: &mut &'a [u8], is: impl Fn(u8) -> bool) -> &'a [u8] {
    let all = *text;
    let (front, rest) = all.split_at(all.iter().position(|c| !is(*c)).unwrap_or(all.len()));
    *text = rest;
    front
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// From systemd's description of the order, with what is between them there.
    const OLDER_FIRST: [&str; 12] = [
        "122.1",
        "123~rc1-1",
        "123",
        "123-a",
        "123-a.1",
        "123-1",
        "123-1.1",
        "123^post1",
        "123.a-1",
        "123.1-1",
        "123a-1",
        "124-1",
    ];

    #[test]
    fn versions_in_systemds_order() {
        for (n, a) in OLDER_FIRST.iter().enumerate() {
            for (m, b) in OLDER_FIRST.iter().enumerate() {
                assert_eq!(compare_versions(a, b), n.cmp(&m), "{a} {b}");
            }
        }
        for (a, b, want) in [
            ("", "", Ordering::Equal),
            ("", "0", Ordering::Less),
            ("", "~", Ordering::Greater),
            ("0.2.0", "0.10.0", Ordering::Less),
            ("0.02.0", "0.2.0", Ordering::Equal),
            ("123_a", "123a", Ordering::Equal),
            ("1.0.0-rc.1", "1.0.0", Ordering::Greater),
            ("1.0.0~rc.1", "1.0.0", Ordering::Less),
            ("0", "00", Ordering::Equal),
            ("a", "b", Ordering::Less),
        ] {
            assert_eq!((compare_versions(a, b), compare_versions(b, a)), (want, want.reverse()), "{a} {b}");
        }
    }

    fn pair<'a>(a: (EntryState, &'a str), b: (EntryState, &'a str)) -> [LoaderEntry<'a>; 2] {
        let entry = |slot, (state, version)| LoaderEntry { slot, state, version };
        [entry(SlotName::A, a), entry(SlotName::B, b)]
    }

    #[test]
    fn which_slot_is_booted() {
        use EntryState::{Behind, Good, Hidden, ToTry, Tried};
        let (a, b) = (Some(SlotName::A), Some(SlotName::B));
        for (first, second, want) in [
            // Towards a newer version: the try, then back.
            ((Good, "1"), (ToTry, "2"), b),
            ((Good, "1"), (Tried, "2"), a),
            // Towards an older one.
            ((Behind, "2"), (ToTry, "1"), b),
            ((Behind, "2"), (Tried, "1"), a),
            // Not so: a newer one that was tried would come again.
            ((Behind, "1"), (Tried, "2"), b),
            ((Good, "2"), (ToTry, "1"), a),
            // Two good ones, and one that stands behind.
            ((Good, "1"), (Good, "2"), b),
            ((Good, "2"), (Good, "1"), a),
            ((Good, "1"), (Behind, "2"), a),
            ((Behind, "2"), (Good, "1"), b),
            // The same version: the name decides, from the end of the alphabet.
            ((Good, "1"), (Good, "1"), b),
            ((Good, "1"), (ToTry, "1"), b),
            ((ToTry, "1"), (Good, "1"), b),
            ((Good, "1"), (Hidden, "2"), a),
            ((Hidden, "1"), (Tried, "2"), b),
            ((Hidden, "1"), (Hidden, "2"), None),
        ] {
            assert_eq!(chosen(&pair(first, second)), want, "{first:?} {second:?}");
        }
        assert_eq!(is_newer(SlotName::A, "2", "1"), Some(true));
        assert_eq!(is_newer(SlotName::B, "1", "1"), Some(true));
        assert_eq!(is_newer(SlotName::A, "1", "1"), Some(false));
        assert_eq!(is_newer(SlotName::A, "", "1"), None);
    }

    proptest! {
        #[test]
        fn any_versions(a in "[0-9a-z~^._-]{0,8}", b in "[0-9a-z~^._-]{0,8}", c in "\\PC{0,6}") {
            prop_assert_eq!(compare_versions(&a, &b), compare_versions(&b, &a).reverse());
            prop_assert_eq!(compare_versions(&a, &a), Ordering::Equal);
            let _ = compare_versions(&a, &c);
        }
    }
}
