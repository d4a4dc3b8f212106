//! Tables and laws of [`Duration`]: Go's notation in both directions.

use proptest::prelude::*;

use super::*;

#[test]
fn reads_what_go_reads() {
    let table: &[(&str, i64)] = &[
        ("0", 0),
        ("0s", 0),
        ("5s", 5_000_000_000),
        ("1m30s", 90_000_000_000),
        ("100ms", 100_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("5.s", 5_000_000_000),
        ("-1.5m", -90_000_000_000),
        ("+2us", 2_000),
        ("2\u{b5}s", 2_000),
        ("2\u{3bc}s", 2_000),
        ("3ns", 3),
        ("1h2m3s4ms5us6ns", 3_723_004_005_006),
        ("0.000000001s", 1),
        ("0.3333333333333333333h", 1_200_000_000_000),
        ("2562047h47m16.854775807s", i64::MAX),
        ("-2562047h47m16.854775808s", i64::MIN),
    ];
    for (text, ns) in table {
        assert_eq!(Duration::parse(text), Ok(Duration::from_nanos(*ns)), "{text}");
    }
}

#[test]
fn refuses_what_go_refuses() {
    for text in [
        "",
        " ",
        "5",
        "-",
        "+",
        "s",
        ".s",
        "1x",
        "1 s",
        "1s ",
        "1d",
        "1S",
        "1.2.3s",
        "--1s",
        "1e3s",
        "2562048h",
        "9223372036854775808ns",
        "99999999999999999999999999999999999999999999999999h",
    ] {
        assert_eq!(Duration::parse(text), Err(DurationError), "{text}");
    }
}

#[test]
fn writes_what_go_writes() {
    let table: &[(i64, &str)] = &[
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1\u{b5}s"),
        (2_200_000, "2.2ms"),
        (100_000_000, "100ms"),
        (3_300_000_000, "3.3s"),
        (60_000_000_000, "1m0s"),
        (245_000_000_000, "4m5s"),
        (14_400_000_000_000, "4h0m0s"),
        (18_367_001_000_000, "5h6m7.001s"),
        (-90_000_000_000, "-1m30s"),
        (i64::MAX, "2562047h47m16.854775807s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ];
    for (ns, text) in table {
        assert_eq!(Duration::from_nanos(*ns).to_string(), *text);
    }
}

#[test]
fn timers_never_see_a_negative_span() {
    assert_eq!(Duration::from_secs(-3).to_std(), std::time::Duration::ZERO);
    assert_eq!(Duration::from_millis(1500).to_std(), std::time::Duration::from_millis(1500));
}

proptest! {
    #[test]
    fn text_and_back(ns in any::<i64>()) {
        let d = Duration::from_nanos(ns);
        prop_assert_eq!(Duration::parse(&d.to_string()), Ok(d));
    }

    #[test]
    fn any_text_is_answered(text in "[-+.0-9a-z\u{b5} ]{0,40}") {
        if let Ok(d) = Duration::parse(&text) {
            prop_assert_eq!(Duration::parse(&d.to_string()), Ok(d));
        }
    }
}

#[test]
fn a_span_that_go_cannot_hold_is_its_longest() {
    assert_eq!(Duration::from(std::time::Duration::from_millis(62_500)).to_string(), "1m2.5s");
    assert_eq!(Duration::from(std::time::Duration::MAX).as_nanos(), i64::MAX);
}
