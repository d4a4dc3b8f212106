//! Generators shared by this crate's tests.

use proptest::prelude::*;
use serde_json::{Map, Value};

/// Any JSON value, few keys, so that documents meet.
pub(crate) fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c ]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map("[a-d]", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Names of the fields of a document type, sorted.
pub(crate) fn document<T: crate::field::Describe>() -> Vec<&'static str> {
    let crate::field::Kind::Object(fields) = T::KIND else { panic!("a document is an object") };
    let mut names: Vec<&str> = fields.iter().map(|f| f.name).collect();
    names.sort_unstable();
    names
}

/// The single messages of an aggregated error.
pub(crate) fn errors(text: &str) -> Vec<&str> {
    let list = text.strip_prefix("invalid configuration: ").expect("every error starts alike");
    list.split("; ").collect()
}
