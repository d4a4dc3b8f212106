//! Plain scalars as Kubernetes' reader of YAML resolves them (sigs.k8s.io/yaml, which is YAML 1.1 with later octals).
//!
//! Infinity and "not a number" stay text: JSON has no word for them.

use serde_json::{Number, Value};

pub(super) fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Value::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Value::String(text.to_owned());
    }
    let digits = text.replace('_', "");
    integer(&digits).or_else(|| float(&digits)).map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

fn integer(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let prefixed = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2), ("0", 8)];
    let prefixed = prefixed.iter().find_map(|(prefix, radix)| {
        let digits = unsigned.strip_prefix(prefix).filter(|digits| !digits.is_empty())?;
        Some((digits, *radix))
    });
    let (digits, radix) = prefixed.unwrap_or((unsigned, 10));
    if !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    let n = u64::from_str_radix(digits, radix).ok()?;
    if text.starts_with('-') { i64::try_from(-i128::from(n)).ok().map(Number::from) } else { Some(n.into()) }
}

/// Digits, one point at most, an exponent perhaps.
fn float(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.strip_prefix(['-', '+']).unwrap_or(exponent)),
        None => (unsigned, "0"),
    };
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let shaped = all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    if !shaped || exponent.is_empty() || !all_digits(exponent) {
        return None;
    }
    text.parse::<f64>().ok().and_then(Number::from_f64)
}
