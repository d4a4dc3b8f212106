//! Dotted paths of configuration keys: `network.interfaces[0].dhcp`, `labels."node.kubernetes.io/role"`.
//!
//! Invariant: a key that holds anything but letters, digits, `_`, `-` and `/` is quoted, so that a path reads
//! back to the same keys. Upstream term: `field.Path`.

/// The path of `key` below `parent`; an empty parent is the document.
#[must_use]
pub fn child(parent: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-/".contains(&b));
    let mut path = String::with_capacity(parent.len() + key.len() + 3);
    path.push_str(parent);
    if !parent.is_empty() {
        path.push('.');
    }
    if plain {
        path.push_str(key);
    } else {
        path.push('"');
        for c in key.chars() {
            if c == '"' || c == '\\' {
                path.push('\\');
            }
            path.push(c);
        }
        path.push('"');
    }
    path
}

/// The path of element `index` of the list at `parent`.
#[must_use]
pub fn index(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

/// The first key of a path and what follows its dot; `None` if the path is malformed.
///
/// An unquoted key ends at the next dot; list elements (`[0]`) are not addressed by this.
#[must_use]
pub fn split_first(path: &str) -> Option<(String, &str)> {
    let (key, rest) = if let Some(quoted) = path.strip_prefix('"') {
        let mut key = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (_, '\\') => key.push(chars.next()?.1),
                (at, '"') => break at,
                (_, c) => key.push(c),
            }
        };
        (key, &quoted[end + 1..])
    } else {
        let end = path.find('.').unwrap_or(path.len());
        (path[..end].to_owned(), &path[end..])
    };
    if key.is_empty() {
        return None;
    }
    match rest.strip_prefix('.') {
        Some("") => None,
        Some(rest) => Some((key, rest)),
        None if rest.is_empty() => Some((key, "")),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_and_quoted_keys() {
        assert_eq!(child("", "network"), "network");
        assert_eq!(child("labels", "node.kubernetes.io/role"), "labels.\"node.kubernetes.io/role\"");
        assert_eq!(child("a", "q\"\\"), r#"a."q\"\\""#);
        assert_eq!(index("a", 2), "a[2]");
        assert_eq!(split_first("a.b.c"), Some(("a".to_owned(), "b.c")));
        assert_eq!(split_first(r#""a.b".c"#), Some(("a.b".to_owned(), "c")));
        for bad in ["", ".a", "a.", "\"a", "\"a\"b", "\"\".a"] {
            assert_eq!(split_first(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_path_reads_back(keys in proptest::collection::vec("[^\u{0}]{1,8}", 1..5)) {
            let path = keys.iter().fold(String::new(), |p, k| child(&p, k));
            let mut rest = path.as_str();
            for key in &keys {
                let (first, tail) = split_first(rest).expect("own path");
                prop_assert_eq!(&first, key);
                rest = tail;
            }
            prop_assert_eq!(rest, "");
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,40}") {
            let _ = split_first(&text);
        }
    }
}
