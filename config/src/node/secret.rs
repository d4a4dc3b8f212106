//! A text that is used and never shown.
//!
//! Invariant: neither `Debug` nor serialisation gives it away; only [`Secret::reveal`] does.

use crate::field::{Describe, Kind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What stands in its place.
pub const MASK: &str = "<secret>";

/// A text that is used and never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes a text.
    #[must_use]
    pub fn new(text: &str) -> Secret {
        Secret(text.to_owned())
    }

    /// The text, for its one use.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Describe for Secret {
    const KIND: &'static Kind = &Kind::Str;
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_it() {
        let secret = Secret::new("abcdef.0123456789abcdef");
        assert_eq!(format!("{secret:?}"), MASK);
        assert_eq!(serde_json::to_string(&secret).expect("renders"), format!("\"{MASK}\""));
        assert_eq!(secret.reveal(), "abcdef.0123456789abcdef");
    }
}
