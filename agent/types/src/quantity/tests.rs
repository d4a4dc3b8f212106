//! Tables and properties of [`super::Quantity`].

use proptest::prelude::*;

use super::{MAX, NANOS, Quantity};

#[test]
fn table_of_valid_quantities() {
    let cases: &[(&str, i128)] = &[
        ("0", 0),
        ("1", NANOS),
        ("+1", NANOS),
        ("-1", -NANOS),
        (".5", NANOS / 2),
        ("5.", 5 * NANOS),
        ("100m", NANOS / 10),
        ("1n", 1),
        ("1u", 1000),
        ("0.1n", 1), // finer than a nano rounds away from zero
        ("-0.1n", -1),
        ("1Ki", 1024 * NANOS),
        ("1.5Gi", 3 * 512 * 1024 * 1024 * NANOS),
        ("0.1Ki", 102_400_000_000),
        ("1k", 1000 * NANOS),
        ("1E", 1_000_000_000_000_000_000 * NANOS),
        ("1E3", 1000 * NANOS),
        ("1e-3", NANOS / 1000),
        ("1e+3", 1000 * NANOS),
        ("0e2000000", 0),
        ("1e-2000000", 1),
        ("7.999999999999Ei", 9_223_372_036_853_622_886_495_393_154),
        ("8Ei", MAX), // 2^63 is one too many
        ("9223372036854775807", MAX),
        ("1e100", MAX),
        ("-1e100", -MAX),
        ("000000000000000000000000000000000000000001", NANOS),
        ("0.00000000000000000000000000000000000000000", 0),
    ];
    for (text, nanos) in cases {
        assert_eq!(Quantity::parse(text).unwrap().nanos(), *nanos, "{text}");
    }
}

#[test]
fn table_of_invalid_quantities() {
    let cases = [
        "",
        " ",
        "1 ",
        " 1",
        ".",
        "+",
        "-",
        "--1",
        "1.1.M",
        "1+1.0M",
        "0.1mi",
        "0.1am",
        "aoeu",
        ".5i",
        "1i",
        "-3.01i",
        "-3.01e-",
        "1e",
        "1e3k",
        "1K",
        "1ki",
        "٣",
        "1,5",
        "0x10",
        "NaN",
        "Inf",
        "1e99999999999",
    ];
    for text in cases {
        assert!(Quantity::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn coarser_units_round_away_from_zero() {
    let cases = [
        ("1n", 1, 1),
        ("1m", 1, 1),
        ("1001m", 2, 1001),
        ("-1001m", -2, -1001),
        ("2", 2, 2000),
        ("0", 0, 0),
        ("9223372036854775807", i64::MAX, i64::MAX),
    ];
    for (text, value, milli) in cases {
        let quantity = Quantity::parse(text).unwrap();
        assert_eq!((quantity.value(), quantity.milli_value()), (value, milli), "{text}");
    }
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC*") {
        let _ = Quantity::parse(&text);
    }

    #[test]
    fn never_panics_on_number_like_text(text in "[+-]?[0-9.]{0,60}[eEinumkKMGTPi]{0,3}[+-]?[0-9]{0,12}") {
        let _ = Quantity::parse(&text);
    }

    #[test]
    fn decimal_fractions_are_exact(units in 0i64..1_000_000_000, nanos in 0i64..1_000_000_000) {
        let quantity = Quantity::parse(&format!("{units}.{nanos:09}")).unwrap();
        prop_assert_eq!(quantity.nanos(), i128::from(units) * NANOS + i128::from(nanos));
    }

    #[test]
    fn binary_suffixes_are_powers_of_1024(units in 0i64..1000) {
        let mut factor: i128 = 1;
        for suffix in ["", "Ki", "Mi", "Gi", "Ti", "Pi"] {
            let quantity = Quantity::parse(&format!("{units}{suffix}")).unwrap();
            prop_assert_eq!(quantity.nanos(), (i128::from(units) * factor * NANOS).min(MAX));
            factor *= 1024;
        }
    }

    #[test]
    fn rounding_up_never_understates(text in "[0-9]{1,12}(\\.[0-9]{1,20})?(m|k|Ki|Mi)?") {
        let quantity = Quantity::parse(&text).unwrap();
        prop_assert!(Quantity::from_units(quantity.value()) >= quantity);
        if quantity.value() < i64::MAX / 1000 {
            prop_assert!(Quantity::from_milli(quantity.milli_value()) >= quantity);
        }
    }
}
