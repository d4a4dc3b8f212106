//! Text that may be written as a number or boolean: values of kernel settings.

use crate::field::{Describe, Kind};
use serde::{Deserialize, Serialize};

/// A value kept as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Scalar(pub String);

impl Describe for Scalar {
    const KIND: &'static Kind = &Kind::Scalar;
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Scalar, D::Error> {
        Ok(Scalar(match serde_json::Value::deserialize(d)? {
            serde_json::Value::String(text) => text,
            // The kernel's booleans are numbers.
            serde_json::Value::Bool(on) => u8::from(on).to_string(),
            other => other.to_string(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scalar_is_text() {
        for (json, text) in [("1", "1"), ("\"a b\"", "a b"), ("true", "1"), ("false", "0"), ("1.5", "1.5")] {
            let scalar: Scalar = serde_json::from_str(json).expect("a scalar");
            assert_eq!(scalar.0, text);
        }
    }
}
