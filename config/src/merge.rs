//! JSON merge patch (RFC 7386): maps merge key by key, null deletes, everything else replaces.

use serde_json::{Map, Value};

/// Applies `patch` to `target`.
pub fn apply(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(&key);
        } else {
            apply(map.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// As [`apply`], but null is a value: two patches become one that does what both do.
pub(crate) fn apply_keeping_nulls(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(map), Value::Object(patch)) => {
            for (key, value) in patch {
                apply_keeping_nulls(map.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::json;
    use proptest::prelude::*;
    use serde_json::json;

    /// The examples of RFC 7386, appendix A: target, patch, result.
    #[test]
    fn appendix_a() {
        let table = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"a":"foo"}), json!("bar"), json!("bar")),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ];
        for (mut target, patch, result) in table {
            let before = target.clone();
            apply(&mut target, patch.clone());
            assert_eq!(target, result, "{before} + {patch}");
        }
    }

    fn merged(target: &Value, patch: &Value) -> Value {
        let mut target = target.clone();
        apply(&mut target, patch.clone());
        target
    }

    /// The patch itself with its deletions taken out: what it makes of nothing.
    fn without_nulls(value: &Value) -> Value {
        match value {
            Value::Object(map) => Value::Object(
                map.iter()
                    .filter(|(_, v)| !v.is_null())
                    .map(|(k, v)| (k.clone(), without_nulls(v)))
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn twice_is_once(target in json(), patch in json()) {
            let once = merged(&target, &patch);
            prop_assert_eq!(&merged(&once, &patch), &once);
        }

        #[test]
        fn an_empty_patch_changes_no_map(target in json()) {
            prop_assume!(target.is_object());
            prop_assert_eq!(merged(&target, &json!({})), target);
        }

        #[test]
        fn on_nothing_only_deletions_are_lost(patch in json()) {
            prop_assert_eq!(merged(&json!({}), &patch), without_nulls(&patch));
        }

        #[test]
        fn every_leaf_of_the_patch_is_in_the_result(target in json(), patch in json()) {
            fn holds(result: &Value, patch: &Value) -> bool {
                match (result, patch) {
                    (Value::Object(r), Value::Object(p)) => p.iter().all(|(k, v)| match v {
                        Value::Null => !r.contains_key(k),
                        v => r.get(k).is_some_and(|r| holds(r, v)),
                    }),
                    (r, p) => r == p,
                }
            }
            prop_assert!(holds(&merged(&target, &patch), &patch));
        }

        #[test]
        fn keys_the_patch_does_not_name_stay(target in json(), patch in json()) {
            let result = merged(&target, &patch);
            if let (Value::Object(t), Value::Object(p), Value::Object(r)) = (&target, &patch, &result) {
                for (key, value) in t.iter().filter(|(k, _)| !p.contains_key(*k)) {
                    prop_assert_eq!(r.get(key), Some(value));
                }
            }
        }
    }
}
