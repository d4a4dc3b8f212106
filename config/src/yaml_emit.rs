//! JSON value to block YAML a person can read: what the generated files are written with.
//!
//! Invariant: [`crate::yaml::parse`] of the text gives the value back. Text is quoted whenever it could be read
//! as anything else.

use serde_json::Value;

/// A document, ending in a newline.
#[must_use]
pub fn emit(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => block(value, 0, &mut out),
        Value::Array(list) if !list.is_empty() => block(value, 0, &mut out),
        scalar => {
            inline(scalar, &mut out);
            out.push('\n');
        }
    }
    out
}

/// The lines of a non-empty collection.
fn block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                pad(indent, out);
                text(key, out);
                out.push(':');
                entry(value, indent + 2, false, out);
            }
        }
        Value::Array(list) => {
            for value in list {
                pad(indent, out);
                out.push('-');
                entry(value, indent + 2, true, out);
            }
        }
        _ => {}
    }
}

/// What follows `key:` or `-`.
fn entry(value: &Value, indent: usize, in_list: bool, out: &mut String) {
    match value {
        // A map in a list starts on the line of its dash.
        Value::Object(map) if !map.is_empty() && in_list => {
            let start = out.len();
            block(value, indent, out);
            // The first line's indentation gives way to the blank after the dash.
            out.replace_range(start..start + indent, " ");
        }
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            block(value, indent, out);
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            block(value, indent, out);
        }
        scalar => {
            out.push(' ');
            inline(scalar, out);
            out.push('\n');
        }
    }
}

fn inline(value: &Value, out: &mut String) {
    match value {
        Value::String(s) => text(s, out),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
        other => out.push_str(&other.to_string()),
    }
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Plain if nothing else could be meant, else as a JSON string, which is YAML's double-quoted form.
fn text(s: &str, out: &mut String) {
    let plain = s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_-.".contains(&b))
        && !matches!(
            s.to_ascii_lowercase().as_str(),
            "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n"
        );
    if plain {
        out.push_str(s);
    } else {
        for c in Value::from(s).to_string().chars() {
            // JSON lets these stand; YAML does not, or takes them for line ends.
            if matches!(c, '\u{7f}'..='\u{a0}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}'..='\u{ffff}')
            {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            } else {
                out.push(c);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::json;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn reads_well() {
        let value = json!({
            "a": {"b": [1, {"c": "x", "d": []}, [true]], "e": {}},
            "f": "no", "g": "1", "h": "two words", "i": null
        });
        let want = "a:\n  b:\n    - 1\n    - c: x\n      d: []\n    -\n      - true\n  e: {}\nf: \"no\"\ng: \"1\"\n\
                    h: \"two words\"\ni: null\n";
        assert_eq!(emit(&value), want);
    }

    fn text_strategy() -> impl Strategy<Value = String> {
        prop_oneof![
            "\\PC{0,12}",
            "[-?:,\\[\\]{}#&*!|>'\"%@` \n\t]{1,6}",
            Just("on".to_owned()),
            Just("\u{85}\u{2028}\u{feff}\u{7f}".to_owned()),
        ]
    }

    proptest! {
        #[test]
        fn reads_back(value in json()) {
            prop_assert_eq!(crate::yaml::parse(&emit(&value)).expect("own text").value, value);
        }

        #[test]
        fn any_text_reads_back(key in text_strategy(), value in text_strategy()) {
            let value = json!({ key: [value] });
            prop_assert_eq!(crate::yaml::parse(&emit(&value)).expect("own text").value, value);
        }
    }
}
