//! Quantities as the API writes them: the shortest exact form of the resource's own notation.
//!
//! In: a resource's name and a [`Quantity`]. Out: text. Invariant: reading the text gives the quantity back, except
//! that fractions of a byte are rounded up. Upstream: apimachinery/pkg/api/resource, BinarySI and DecimalSI.

use super::Quantity;

/// Suffixes of powers of 1024, largest first.
const BINARY: [(u32, &str); 6] = [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
/// Suffixes of powers of 1000 in billionths, largest first.
const DECIMAL: [(u32, &str); 10] =
    [(27, "E"), (24, "P"), (21, "T"), (18, "G"), (15, "M"), (12, "k"), (9, ""), (6, "m"), (3, "u"), (0, "n")];

/// The text of `amount` of resource `name`: powers of two for memory, huge pages and storage, of ten for the rest.
#[must_use]
pub fn of_resource(name: &str, amount: Quantity) -> String {
    let bytes = matches!(name, "memory" | "ephemeral-storage" | "storage") || name.starts_with("hugepages-");
    if bytes { binary(amount.value()) } else { decimal(amount) }
}

/// `16Gi`, `1717986918`, `0`.
#[must_use]
pub fn binary(bytes: i64) -> String {
    let fitting = BINARY.iter().find(|(shift, _)| bytes != 0 && bytes % (1 << shift) == 0);
    match fitting {
        Some((shift, suffix)) => format!("{}{suffix}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// `4`, `1500m`, `1k`, `0`.
#[must_use]
pub fn decimal(amount: Quantity) -> String {
    let nanos = amount.nanos();
    if nanos == 0 {
        return "0".to_owned();
    }
    let fitting = DECIMAL.iter().find(|(power, _)| nanos % 10i128.pow(*power) == 0);
    match fitting {
        Some((power, suffix)) => format!("{}{suffix}", nanos / 10i128.pow(*power)),
        None => format!("{nanos}n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let milli = Quantity::from_milli;
        let units = Quantity::from_units;
        for (name, amount, text) in [
            ("cpu", milli(4000), "4"),
            ("cpu", milli(3850), "3850m"),
            ("pods", units(110), "110"),
            ("pods", units(1000), "1k"),
            ("x.io/gpu", units(0), "0"),
            ("memory", units(16 << 30), "16Gi"),
            ("memory", units(16_377_236 << 10), "16377236Ki"),
            ("ephemeral-storage", units(47_093_746_742), "47093746742"),
            ("hugepages-2Mi", units(0), "0"),
            ("memory", units(-1024), "-1Ki"),
        ] {
            assert_eq!(of_resource(name, amount), text);
            assert_eq!(Quantity::parse(text), Ok(amount), "{text}");
        }
    }
}
