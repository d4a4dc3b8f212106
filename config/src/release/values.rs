//! Values of documents that JSON has no form for: bytes, digests, times, names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fault::DocumentFault;
use crate::base64;

/// Longest name, bytes.
const NAME_BYTES_MAX: usize = 64;
/// Seconds of a day.
const DAY: u64 = 86_400;
/// Seconds until the year 10000, which needs one digit more.
const SECONDS_LIMIT: u64 = 253_402_300_800;

/// Bytes, in a document as base64.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Base64Bytes(pub Vec<u8>);

impl fmt::Debug for Base64Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64::encode(&self.0))
    }
}

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Base64Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        base64::decode(&text)
            .map(Base64Bytes)
            .ok_or_else(|| serde::de::Error::custom("a value is not base64"))
    }
}

/// A digest of 32 bytes, in a document as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HexDigest(pub [u8; 32]);

impl fmt::Display for HexDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HexDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for HexDigest {
    type Err = HexDigestError;

    fn from_str(text: &str) -> Result<HexDigest, HexDigestError> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut digest = [0; 32];
        if text.len() != 64 {
            return Err(HexDigestError);
        }
        for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => (high << 4) | low,
                _ => return Err(HexDigestError),
            };
        }
        Ok(HexDigest(digest))
    }
}

/// A text that is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest has 64 lower-case hexadecimal digits")]
pub struct HexDigestError;

impl Serialize for HexDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HexDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HexDigest, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A second of UTC, since 1970, before the year 10000; in a document as `2026-11-30T09:30:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcSecond(u64);

impl UtcSecond {
    /// So many seconds after 1970 began; times after the year 9999 are its last second.
    #[must_use]
    pub fn new(seconds: u64) -> UtcSecond {
        UtcSecond(seconds.min(SECONDS_LIMIT - 1))
    }

    /// Seconds since 1970 began.
    #[must_use]
    pub fn seconds(self) -> u64 {
        self.0
    }

    /// So many seconds later.
    #[must_use]
    pub fn after(self, seconds: u64) -> UtcSecond {
        UtcSecond::new(self.0.saturating_add(seconds))
    }
}

/// A text that is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a time has the form 2026-11-30T09:30:00Z")]
pub struct UtcSecondError;

/// Days of the years before `year` since 1970; `year` is 1970 or later.
fn days_before(year: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969)
}

/// Days of the months.
fn months(year: u64) -> [u64; 12] {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

impl fmt::Display for UtcSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / DAY, self.0 % DAY);
        // A year has at most 366 days, so this is never too late; it is too early by a few years at most.
        let mut year = 1970 + days / 366;
        while days_before(year + 1) <= days {
            year += 1;
        }
        let mut day = days - days_before(year);
        let mut month = 1;
        for length in months(year) {
            if day < length {
                break;
            }
            day -= length;
            month += 1;
        }
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(f, "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{:02}Z", day + 1, second % 60)
    }
}

impl FromStr for UtcSecond {
    type Err = UtcSecondError;

    fn from_str(text: &str) -> Result<UtcSecond, UtcSecondError> {
        let bytes = text.as_bytes();
        let form = b"0000-00-00T00:00:00Z";
        let fits =
            |(byte, form): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == form };
        if bytes.len() != form.len() || !bytes.iter().zip(form).all(fits) {
            return Err(UtcSecondError);
        }
        let number = |at: usize, digits: usize| {
            bytes[at..at + digits].iter().fold(0, |n, digit| n * 10 + u64::from(*digit - b'0'))
        };
        let (year, month, day) = (number(0, 4), number(5, 2), number(8, 2));
        let (hour, minute, second) = (number(11, 2), number(14, 2), number(17, 2));
        if year < 1970 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
            return Err(UtcSecondError);
        }
        let mut days = days_before(year);
        for (before, length) in (1..).zip(months(year)) {
            if before == month {
                if !(1..=length).contains(&day) {
                    return Err(UtcSecondError);
                }
                break;
            }
            days += length;
        }
        Ok(UtcSecond((days + day - 1) * DAY + hour * 3600 + minute * 60 + second))
    }
}

impl Serialize for UtcSecond {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UtcSecond {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UtcSecond, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// True for what names a channel, a file or a key. Names become parts of paths: letters, digits, `.`, `_` and `-`, the first
/// one a letter or a digit.
#[must_use]
pub fn is_document_name(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let starts = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    starts && name.len() <= NAME_BYTES_MAX && name.bytes().all(good)
}

pub(super) fn check_name(field: &str, name: &str) -> Result<(), DocumentFault> {
    if is_document_name(name) {
        return Ok(());
    }
    let why =
        format!("must be a name of at most {NAME_BYTES_MAX} letters, digits, dots, underscores and hyphens");
    Err(DocumentFault::field(field, why))
}

/// A list of a document is bounded.
pub(super) fn check_count(field: &str, count: usize, max: usize) -> Result<(), DocumentFault> {
    if count <= max {
        return Ok(());
    }
    Err(DocumentFault::field(field, format!("has {count} entries, and at most {max} are read")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_that_another_program_computed() {
        // `date -u -d @N +%FT%TZ`
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(UtcSecond::new(seconds).to_string(), text);
            assert_eq!(text.parse::<UtcSecond>(), Ok(UtcSecond::new(seconds)));
        }
    }

    #[test]
    fn texts_that_are_no_times() {
        for bad in [
            "",
            "2026-11-30",
            "2026-11-30T09:30:00",
            "2026-11-30 09:30:00Z",
            "2026-11-30T09:30:00+01:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:60Z",
            "1969-12-31T23:59:59Z",
            "2026-1a-01T00:00:00Z",
        ] {
            assert_eq!(bad.parse::<UtcSecond>(), Err(UtcSecondError), "{bad}");
        }
    }

    #[test]
    fn digests_are_hexadecimal() {
        let text = "00ff".repeat(16);
        assert_eq!(text.parse::<HexDigest>().map(|d| d.to_string()), Ok(text.clone()));
        for bad in [text.to_uppercase(), text[1..].to_owned(), format!("{text}0"), "é".repeat(32)] {
            assert_eq!(bad.parse::<HexDigest>(), Err(HexDigestError), "{bad}");
        }
    }

    #[test]
    fn names_stay_within_their_directory() {
        let long = "a".repeat(65);
        for bad in ["", ".", "..", ".hidden", "a/b", "-x", "a b", "a\0", "é", &long] {
            assert!(check_name("name", bad).is_err(), "{bad}");
        }
        for good in ["a", "root.verity.gz", "x86-64", "a..b"] {
            assert_eq!(check_name("name", good), Ok(()));
        }
    }

    proptest! {
        #[test]
        fn every_time_is_read_back(seconds in 0..SECONDS_LIMIT) {
            prop_assert_eq!(UtcSecond::new(seconds).to_string().parse::<UtcSecond>(), Ok(UtcSecond::new(seconds)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<UtcSecond>();
            let _ = text.parse::<HexDigest>();
        }
    }
}
