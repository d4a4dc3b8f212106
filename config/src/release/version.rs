//! Version of an image: three numbers.
//!
//! Only such versions are published: systemd-boot, a person and this type sort them alike.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `X.Y.Z`, each a decimal number below a million without leading zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReleaseVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

/// A number of a version is below this.
const NUMBER_LIMIT: u32 = 1_000_000;

/// A text that is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no version: three numbers below a million are expected, as in 1.20.3")]
pub struct VersionError(String);

impl FromStr for ReleaseVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<ReleaseVersion, VersionError> {
        // A message does not repeat a text of any length.
        let refused = || VersionError(text.chars().take(40).collect());
        let mut numbers = text.split('.').map(number);
        match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => {
                Ok(ReleaseVersion { major, minor, patch })
            }
            _ => Err(refused()),
        }
    }
}

fn number(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    if !plain || !canonical {
        return None;
    }
    text.parse().ok().filter(|n| *n < NUMBER_LIMIT)
}

impl fmt::Display for ReleaseVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Serialize for ReleaseVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ReleaseVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ReleaseVersion, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers_and_nothing_else() {
        for good in ["0.0.0", "1.20.3", "999999.0.10"] {
            assert_eq!(good.parse::<ReleaseVersion>().map(|v| v.to_string()).as_deref(), Ok(good));
        }
        let long = "1".repeat(1000);
        for bad in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "1.2.x",
            "01.2.3",
            "1.2.3-rc1",
            "1.2.-3",
            "+1.2.3",
            " 1.2.3",
            "1000000.0.0",
            "1..2",
            "1.2.99999999999",
            &long,
        ] {
            let refused = bad.parse::<ReleaseVersion>().expect_err(bad).to_string();
            assert!(refused.contains("is no version") && refused.len() < 200, "{refused}");
        }
    }

    #[test]
    fn numbers_are_compared_and_not_texts() {
        let sorted = ["0.1.9", "0.1.10", "0.2.0", "1.0.0", "10.0.0"];
        let mut versions: Vec<ReleaseVersion> =
            sorted.iter().rev().map(|v| v.parse().expect("a version")).collect();
        versions.sort();
        assert_eq!(versions.iter().map(ToString::to_string).collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn in_documents_it_is_a_text() {
        let version: ReleaseVersion = serde_json::from_str("\"1.20.3\"").expect("a version");
        assert_eq!(serde_json::to_string(&version).expect("a text"), "\"1.20.3\"");
        assert!(serde_json::from_str::<ReleaseVersion>("1.2").is_err());
    }
}
