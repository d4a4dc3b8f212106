//! The check against shapes: every kind from both sides, suggestions, and that what passes deserialises.

use super::*;
use crate::kubelet::KubeletConfiguration;
use crate::node::NodeConfig;
use proptest::prelude::*;
use serde_json::json;

fn reasons(value: &Value, kind: &Kind) -> Vec<String> {
    check(value, kind, "s", &NoLines, false).iter().map(ToString::to_string).collect()
}

#[test]
fn every_kind() {
    const WORDS: &Kind = &Kind::Enum(&["a", "b"]);
    let table: &[(&Kind, Value, Value, &str)] = &[
        (&Kind::Bool, json!(true), json!("true"), "\"true\" must be true or false"),
        (&Kind::Int(0, 5), json!(5), json!(6), "6 must be an integer between 0 and 5"),
        (&Kind::Int(0, 5), json!(0), json!(1.0), "1.0 must be an integer between 0 and 5"),
        (&Kind::Int(i64::MIN, i64::MAX), json!(-1), json!("1"), "\"1\" must be an integer"),
        (&Kind::Float, json!(1.5), json!("1.5"), "\"1.5\" must be a number"),
        (&Kind::Str, json!(""), json!(1), "1 must be text (quote numbers, true, false and null)"),
        (&Kind::Scalar, json!(1), json!([]), "[] must be text, a number, true or false"),
        (&Kind::Duration, json!("1s"), json!("1"), "\"1\" must be a duration such as \"30s\""),
        (
            &Kind::DurationOrNanos,
            json!(5),
            json!(1.5),
            "1.5 must be a duration such as \"5s\", or an integer",
        ),
        (&Kind::Quantity, json!(5), json!("5x"), "\"5x\" must be a quantity such as"),
        (WORDS, json!("a"), json!("c"), "\"c\" must be one of a, b"),
        (&Kind::List(&Kind::Bool), json!([true]), json!({}), "{} must be a list"),
        (&Kind::List(&Kind::Bool), json!([]), json!([true, null]), "[1]: null must be true or false"),
        (&Kind::Map(&Kind::Bool), json!({"a": true}), json!([]), "[] must be a map of keys to values"),
        (&Kind::Map(&Kind::Bool), json!({}), json!({"a.b": 1}), "\"a.b\": 1 must be true or false"),
        (&Kind::AnyMap, json!({"x": [1]}), json!("x"), "\"x\" must be a map of keys to values"),
    ];
    for (kind, good, bad, reason) in table {
        assert_eq!(reasons(good, kind), Vec::<String>::new(), "{kind:?}");
        let said = reasons(bad, kind);
        assert_eq!(said.len(), 1, "{kind:?} {bad}");
        assert!(said[0].strip_prefix("s: ").expect("source").starts_with(reason), "{kind:?}: {}", said[0]);
    }
}

const INNER: &Kind = &Kind::Object(&[Field::new("key", &Kind::Str).secret()]);
const FIELDS: &[Field] = &[
    Field::new("port", &Kind::Int(i32::MIN as i64, i32::MAX as i64)).range(1, 65535).zero_unset(),
    Field::new("name", &Kind::Str).required(),
    Field::new("inner", INNER),
];
const OBJECT: &Kind = &Kind::Object(FIELDS);

#[test]
fn objects_fields_and_secrets() {
    assert_eq!(reasons(&json!({"name": "a", "port": 1}), OBJECT), Vec::<String>::new());
    assert_eq!(
        reasons(&json!({"port": 0}), OBJECT),
        ["s: port: 0 must be an integer between 1 and 65535", "s: name: is missing"]
    );
    assert_eq!(check(&json!({}), OBJECT, "s", &NoLines, true), [], "a patch may leave out what is required");
    assert_eq!(
        reasons(&json!({"name": "", "nmae": 1}), OBJECT),
        ["s: nmae: is an unknown field, did you mean name?"]
    );
    assert_eq!(
        reasons(&json!({"name": "", "zzz": 1}), OBJECT),
        ["s: zzz: is an unknown field, allowed are port, name, inner"]
    );
    assert_eq!(
        reasons(&json!({"name": "", "inner": {"key": 5}}), OBJECT),
        ["s: inner.key: must be text (quote numbers, true, false and null)"]
    );
    assert_eq!(
        reasons(&json!({"name": "", "inner": "hush"}), OBJECT),
        ["s: inner: must be a map of keys to values"]
    );
    let list = &Kind::List(OBJECT);
    let said = check(&json!([{}]), list, "s", &NoLines, true);
    assert_eq!(said[0].to_string(), "s: [0].name: is missing", "patches replace lists whole");
}

#[test]
fn what_fits_is_kept_and_the_rest_goes_with_its_nearest_key() {
    const LIST: &Kind = &Kind::List(OBJECT);
    const WHOLE: &Kind = &Kind::Object(&[
        Field::new("list", LIST),
        Field::new("map", &Kind::Map(&Kind::Bool)),
        Field::new("flags", &Kind::List(&Kind::Bool)),
        Field::new("port", &Kind::Int(0, 9)).zero_unset(),
    ]);
    for (before, after, lost) in [
        (json!({"port": 5, "zzz": 1}), json!({"port": 5}), vec![]),
        (json!({"port": 50, "map": null}), json!({"map": null}), vec!["port"]),
        (
            json!({"map": {"a.b": 1, "c~/d": 2, "e": true}}),
            json!({"map": {"e": true}}),
            vec!["map.\"a.b\"", ""],
        ),
        // A field that may be missing goes alone; one that is required takes the list along.
        (
            json!({"list": [{"name": "a", "port": "x"}]}),
            json!({"list": [{"name": "a"}]}),
            vec!["list[0].port"],
        ),
        (json!({"list": [{"name": 1}]}), json!({}), vec!["list[0].name", "list"]),
        (json!({"list": [{"port": 1}], "port": 0}), json!({"port": 0}), vec!["list"]),
        (json!({"flags": [true, null]}), json!({}), vec!["flags"]),
        (json!([1]), Value::Null, vec![""]),
        (Value::Null, Value::Null, vec![]),
    ] {
        let mut value = before.clone();
        let said = keep_fitting(&mut value, WHOLE);
        assert_eq!(value, after, "{before}");
        assert_eq!(said.len(), lost.len(), "{said:?}");
        for (said, lost) in said.iter().zip(lost) {
            assert!(said == lost || lost.is_empty(), "{before}: {said}, not {lost}");
        }
    }
}

#[test]
fn near_misses() {
    for (a, b) in [
        ("nmae", "name"),
        ("nam", "name"),
        ("names", "name"),
        ("Name", "name"),
        ("max_pods", "maxPods"),
        ("mxaPods", "maxPods"),
        ("clusterDns", "clusterDNS"),
        ("maxpods", "maxPods"),
    ] {
        assert!(similar(a, b), "{a} {b}");
    }
    for (a, b) in [("", "name"), ("port", "name"), ("na", "name"), ("eman", "name")] {
        assert!(!similar(a, b), "{a} {b}");
    }
}

#[test]
fn unset_values_are_taken_out() {
    let mut value = json!({"port": 0, "name": null, "inner": {"key": null}, "other": null});
    strip_unset(&mut value, OBJECT);
    assert_eq!(value, json!({"inner": {}, "other": null}), "unknown keys stay, to be reported");
    let mut value = json!({"port": "0"});
    strip_unset(&mut value, OBJECT);
    assert_eq!(value, json!({"port": "0"}), "a zero of another type is a mistake");
}

#[test]
fn long_values_are_shortened() {
    let text = shown(&json!("\u{e9}".repeat(100)));
    assert_eq!(text.chars().count(), 61);
    assert!(text.ends_with('…'));
}

/// A value near the shape: mostly right, sometimes any.
fn near(kind: &'static Kind) -> BoxedStrategy<Value> {
    let right: BoxedStrategy<Value> = match kind {
        Kind::Bool => any::<bool>().prop_map(Value::from).boxed(),
        Kind::Int(..) => prop_oneof![(0..20_i64), any::<i64>()].prop_map(Value::from).boxed(),
        Kind::Float => (0.0..1.0_f64).prop_map(Value::from).boxed(),
        Kind::Str | Kind::Scalar => "[a-z0-9/.%]{0,6}".prop_map(Value::from).boxed(),
        Kind::Duration | Kind::DurationOrNanos => "[0-9]{1,3}(ms|s|m)".prop_map(Value::from).boxed(),
        Kind::Quantity => "[0-9]{1,3}(Mi|Gi|m)?".prop_map(Value::from).boxed(),
        Kind::Enum(words) => proptest::sample::select(words.to_vec()).prop_map(Value::from).boxed(),
        Kind::List(inner) => proptest::collection::vec(near(inner), 0..3).prop_map(Value::from).boxed(),
        Kind::Map(inner) => proptest::collection::btree_map("[a-c.]{1,3}", near(inner), 0..3)
            .prop_map(|m| Value::Object(m.into_iter().collect()))
            .boxed(),
        Kind::AnyMap => Just(json!({"a": 1})).boxed(),
        Kind::Object(fields) => {
            let one = (0..fields.len()).prop_flat_map(move |i| {
                near(fields[i].kind).prop_map(move |v| (fields[i].name.to_owned(), v))
            });
            proptest::collection::vec(one, 0..6).prop_map(|m| Value::Object(m.into_iter().collect())).boxed()
        }
    };
    prop_oneof![12 => right, 1 => crate::testing::json()].boxed()
}

/// Every document that passes the check deserialises; a document that does not pass has at least one problem.
fn passes_iff_typed<T: Describe + serde::de::DeserializeOwned>(
    mut value: Value,
) -> Result<(), TestCaseError> {
    strip_unset(&mut value, T::KIND);
    if check(&value, T::KIND, "s", &NoLines, false).is_empty() {
        let typed = serde_json::from_value::<T>(value.clone());
        prop_assert!(typed.is_ok(), "{}: {}", value, typed.err().map(|e| e.to_string()).unwrap_or_default());
    }
    Ok(())
}

proptest! {
    /// What is kept passes, and of a document that passes nothing goes.
    #[test]
    fn what_is_kept_passes_the_check(value in near(NodeConfig::KIND)) {
        let problems = |value: &Value| {
            let mut stripped = value.clone();
            strip_unset(&mut stripped, NodeConfig::KIND);
            check(&stripped, NodeConfig::KIND, "s", &NoLines, true)
        };
        let mut kept = value.clone();
        let lost = keep_fitting(&mut kept, NodeConfig::KIND);
        prop_assert!(kept.is_null() || problems(&kept).is_empty(), "{}: {:?}", kept, problems(&kept));
        if !value.is_null() && problems(&value).is_empty() {
            prop_assert!(kept == value && lost.is_empty(), "{:?}", lost);
        }
    }

    #[test]
    fn a_kubelet_configuration_that_passes_deserialises(value in near(KubeletConfiguration::KIND)) {
        passes_iff_typed::<KubeletConfiguration>(value)?;
    }

    #[test]
    fn a_node_config_that_passes_deserialises(value in near(NodeConfig::KIND)) {
        passes_iff_typed::<NodeConfig>(value)?;
    }
}
