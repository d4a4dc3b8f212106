//! `$(VAR)` expansion in env values, commands and arguments.
//!
//! In: text and the variables defined so far. Out: text. Invariants: one pass, results are not expanded
//! again; `$$` is a literal `$`; an unknown variable and a lone `$` stay as written. Upstream:
//! third_party/forked/golang/expansion.

/// Replace every `$(NAME)` for which `lookup` knows a value.
#[must_use]
pub fn expand<'v>(text: &str, lookup: impl Fn(&str) -> Option<&'v str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::expand;

    fn lookup(name: &str) -> Option<&'static str> {
        match name {
            "A" => Some("a"),
            "B" => Some("$(A)"),
            "EMPTY" => Some(""),
            "" => Some("nameless"),
            _ => None,
        }
    }

    #[test]
    fn table() {
        let cases = [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x$(A)y$(A)z", "xayaz"),
            ("$(B)", "$(A)"), // results are not expanded again
            ("[$(EMPTY)]", "[]"),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$A $ $", "$A $ $"),
            ("$(A", "$(A"),
            ("$(A $(A)", "$(A $(A)"), // the name is `A $(A`
            ("$()", "nameless"),
            ("$é$(A)", "$éa"),
            ("$", "$"),
            ("$$", "$"),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollar_is_unchanged(text in "[^$]*") {
            prop_assert_eq!(expand(&text, lookup), text);
        }

        #[test]
        fn never_panics(text in "([$()AB]|\\PC){0,60}") {
            let _ = expand(&text, lookup);
        }
    }
}
