//! Where in a JSON text a reader stopped, as a path of fields.
//!
//! In: the text without white space between its parts, and how many bytes of it were read. Out: `spec.containers[0].name`.
//! Invariants: total on any text and any place.

/// An object or a list that is open, and which of its values was read last.
enum Open {
    Object(String),
    List(usize),
}

/// Path of the value at the current position of a reader that has read `read` bytes of `json`.
pub(super) fn at(json: &str, read: usize) -> String {
    let (mut open, mut rest) = (Vec::new(), json.get(..read).unwrap_or(json));
    // A string before a colon is a key.
    let mut string = "";
    let mut last = b' ';
    while let Some(byte) = rest.bytes().next() {
        let mut taken = 1;
        match byte {
            b'{' => open.push(Open::Object(String::new())),
            b'[' => open.push(Open::List(0)),
            b'}' | b']' => drop(open.pop()),
            b'"' => {
                taken = string_bytes(rest);
                string = &rest[..taken];
            }
            b':' => {
                if let Some(Open::Object(key)) = open.last_mut() {
                    *key = serde_json::from_str(string).unwrap_or_default();
                }
            }
            b',' => match open.last_mut() {
                Some(Open::Object(key)) => key.clear(),
                Some(Open::List(index)) => *index += 1,
                None => {}
            },
            _ => taken = rest.chars().next().map_or(1, char::len_utf8),
        }
        rest = &rest[taken..];
        last = byte;
    }
    // A reader that expects no list begins it all the same, and stops at its start.
    let begins = json.as_bytes().get(read).is_some_and(|next| matches!(next, b'{' | b'['));
    if last == b'[' && !begins {
        open.pop();
    }
    let mut path = String::new();
    for part in open {
        match part {
            Open::Object(key) if key.is_empty() => {}
            Open::Object(key) if path.is_empty() => path = key,
            Open::Object(key) => path.extend([".", &key]),
            Open::List(index) => path.push_str(&format!("[{index}]")),
        }
    }
    if path.is_empty() { ".".to_owned() } else { path }
}

/// Bytes of the string that `text` begins with, its quotes included.
fn string_bytes(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places_have_paths() {
        let json = r#"{"a":{"b,":["x",{"c\"":1}]},"d":2}"#;
        let after = |what: &str| at(json, json.find(what).unwrap() + what.len());
        for (what, path) in [
            ("{", "."),
            (r#"{"a":"#, "a"),
            (r#""b,":"#, "a.b,"),
            (r#""b,":["#, "a.b,"),
            (r#""x","#, "a.b,[1]"),
            (":1", "a.b,[1].c\""),
            ("1}", "a.b,[1]"),
            ("1}]", "a.b,"),
            ("1}]}", "a"),
            (r#""d":2"#, "d"),
            (r#""d":2}"#, "."),
        ] {
            assert_eq!(after(what), path, "{what}");
        }
        assert_eq!(at(r#"{"a":[{}]}"#, 6), "a[0]", "before the first of a list");
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "([\\[\\]{}\",:]|\\PC){0,40}", read in 0_usize..60) {
            let _ = at(&text, read);
        }
    }
}
