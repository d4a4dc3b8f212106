//! What is read, what is refused and where, and that no text panics.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn value(text: &str) -> Value {
    parse(text).unwrap_or_else(|e| panic!("{text}: line {}: {e}", e.line)).value
}

#[test]
fn scalars_follow_the_core_schema() {
    let table = [
        ("~", json!(null)),
        ("", json!(null)),
        ("Null", json!(null)),
        ("true", json!(true)),
        ("FALSE", json!(false)),
        ("no", json!("no")),
        ("on", json!("on")),
        ("0", json!(0)),
        ("-12", json!(-12)),
        ("+12", json!(12)),
        ("0x1F", json!(31)),
        ("0o17", json!(15)),
        ("18446744073709551615", json!(u64::MAX)),
        ("1.5", json!(1.5)),
        ("-.5e3", json!(-500.0)),
        ("1e3", json!(1000.0)),
        ("1.2.3.4", json!("1.2.3.4")),
        ("10.0.0.0/8", json!("10.0.0.0/8")),
        ("2m", json!("2m")),
        (".inf", json!(".inf")),
        ("'1'", json!("1")),
        ("\"a\\nb\"", json!("a\nb")),
        ("!!str 1", json!("1")),
        ("!!int 1", json!(1)),
        ("|\n  a\n  b\n", json!("a\nb\n")),
        ("2026-01-01", json!("2026-01-01")),
        ("0x", json!("0x")),
    ];
    for (text, want) in table {
        assert_eq!(value(text), want, "{text:?}");
    }
}

#[test]
fn scalars_follow_yaml_1_1_where_kubernetes_reads_them() {
    let table = [
        ("~", json!(null)),
        ("y", json!(true)),
        ("Yes", json!(true)),
        ("on", json!(true)),
        ("N", json!(false)),
        ("OFF", json!(false)),
        ("yEs", json!("yEs")),
        ("0", json!(0)),
        ("0644", json!(0o644)),
        ("-0644", json!(-0o644)),
        ("0o644", json!(0o644)),
        ("0x1F", json!(31)),
        ("0b101", json!(5)),
        ("-0b101", json!(-5)),
        ("1_000", json!(1000)),
        ("+12", json!(12)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("18446744073709551615", json!(u64::MAX)),
        ("18446744073709551616", json!(18446744073709551616.0)),
        ("089", json!(89.0)),
        ("1.5", json!(1.5)),
        ("1.", json!(1.0)),
        ("-.5e3", json!(-500.0)),
        ("1e3", json!(1000.0)),
        (".", json!(".")),
        ("1e", json!("1e")),
        (".inf", json!(".inf")),
        ("1.2.3.4", json!("1.2.3.4")),
        ("2m", json!("2m")),
        ("0x", json!("0x")),
        ("'yes'", json!("yes")),
        ("2026-01-01", json!("2026-01-01")),
    ];
    for (text, want) in table {
        let got = parse_as(text, Schema::V1_1).unwrap_or_else(|e| panic!("{text}: {e}")).value;
        assert_eq!(got, want, "{text:?}");
    }
}

#[test]
fn nesting_has_an_end() {
    let nested = |n: usize| parse(&format!("{}{}", "[".repeat(n), "]".repeat(n)));
    assert!(nested(64).is_ok());
    assert_eq!(nested(65).expect_err("too deep").reason, "the document nests too deeply");
}

#[test]
fn collections_anchors_and_merge_keys() {
    assert_eq!(value("a: {b: [1, 2]}\n? c\n: d\n"), json!({"a": {"b": [1, 2]}, "c": "d"}));
    assert_eq!(value("{\"a\": 1, \"b\": [true, null]}"), json!({"a": 1, "b": [true, null]}));
    assert_eq!(value("a: &x {k: 1}\nb: *x"), json!({"a": {"k": 1}, "b": {"k": 1}}));
    assert_eq!(
        value("base: &b {k: 1, l: 2}\nmine: {<<: *b, l: 3}"),
        json!({"base": {"k": 1, "l": 2}, "mine": {"k": 1, "l": 3}})
    );
    assert_eq!(value("- &a {x: 1}\n- {<<: [*a, {x: 2, y: 2}]}")[1], json!({"x": 1, "y": 2}));
    assert_eq!(value("1: a\ntrue: b"), json!({"1": "a", "true": "b"}));
    assert_eq!(value("\"<<\": 1"), json!({"<<": 1}));
    assert_eq!(value("# only a comment\n"), Value::Null);
}

#[test]
fn mistakes_are_named_with_their_line() {
    let table = [
        ("a: 1\nb: 2\na: 3", 3, "duplicate key a"),
        ("x:\n  y.z: 1\n  'y.z': 2", 3, "duplicate key x.\"y.z\""),
        ("a: 1\n---\nb: 1", 2, "a second document starts here: only one is allowed"),
        ("a: 007", 1, "a number with a leading zero: quote it if it is text, write 0o for octal"),
        ("[a]: 1", 1, "a key must be text"),
        ("a: !secret x", 1, "an unknown tag: only the core tags of YAML are allowed"),
        ("a: !!binary aGk=", 1, "an unknown tag: only the core tags of YAML are allowed"),
        ("a: !foo {}", 1, "an unknown tag: only the core tags of YAML are allowed"),
        ("b:\n  <<: 1", 2, "<< needs a map or a list of maps"),
        ("<<: {a: 1}\n<<: {b: 1}", 2, "duplicate key \"<<\""),
    ];
    for (text, line, reason) in table {
        let error = parse(text).expect_err(text);
        assert_eq!((error.line, error.reason.as_str()), (line, reason), "{text:?}");
    }
    for (text, line) in [("a: [1", 1), ("a: b: c", 1), ("a:\n\t- b", 2), ("a: *nowhere", 1), ("\"open", 1)] {
        let error = parse(text).expect_err(text);
        assert!(error.line >= line && !error.reason.is_empty(), "{text:?}: {error:?}");
    }
}

#[test]
fn aliases_cannot_blow_up() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..10 {
        let refs = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
    }
    assert_eq!(parse(&bomb).expect_err("a bomb").reason, "the document is too large");
    let deep = "[".repeat(100_000);
    assert!(parse(&deep).is_err());
}

#[test]
fn every_key_has_its_line() {
    let text = "\nnode:\n  name: a\nnetwork:\n  interfaces:\n  - name: e\n    dns: [x,\n      y]\nlabels:\n  a.b/c: d\n";
    let d = parse(text).expect("valid");
    let lines = [
        ("node", 2),
        ("node.name", 3),
        ("network.interfaces[0]", 6),
        ("network.interfaces[0].name", 6),
        ("network.interfaces[0].dns[1]", 8),
        ("network.interfaces[0].gone.deeper", 6),
        ("labels.\"a.b/c\"", 10),
    ];
    for (path, line) in lines {
        assert_eq!(d.line(path), Some(line), "{path}");
    }
    assert_eq!(d.line("nothing"), None);
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn any_yaml_like_text_is_answered(text in "[-a-c0-9:?&*!|>%@\"'{}\\[\\],#~<. \n\t]{0,120}") {
        let _ = parse(&text);
    }

    #[test]
    fn any_text_is_answered_by_yaml_1_1(text in "[-a-fx0-9:._+ \n]{0,60}") {
        let _ = parse_as(&text, Schema::V1_1);
    }

    #[test]
    fn json_is_yaml(value in crate::testing::json()) {
        prop_assert_eq!(parse(&value.to_string()).expect("JSON").value, value);
    }
}
