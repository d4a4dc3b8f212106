//! Texts of others become text that a console shows as it is.
//!
//! The kernel passes bytes of its log to the consoles unchanged, so a control sequence in a pod's message would reach the
//! terminal of the person who looks. The console of a screen shows bytes, not UTF-8.

/// `text` as printable ASCII, at most `chars_max` characters; blanks, tabs and line ends in a row become one blank.
#[must_use]
pub fn clean(text: &str, chars_max: usize) -> String {
    let mut out = String::new();
    let mut blank = false;
    for c in text.chars() {
        if c.is_whitespace() || c.is_control() {
            blank = !out.is_empty();
            continue;
        }
        // One character and a blank before it; three for the mark that something is missing.
        if out.len() + 2 + 3 > chars_max {
            out.push_str("...");
            break;
        }
        if std::mem::take(&mut blank) {
            out.push(' ');
        }
        out.push(if c.is_ascii_graphic() { c } else { '?' });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_and_long_texts() {
        assert_eq!(clean("  a\n\tb\u{1b}[2Jc\u{0}  ", 80), "a b [2Jc");
        assert_eq!(clean("größer", 80), "gr??er");
        assert_eq!(clean(&"x".repeat(100), 20), format!("{}...", "x".repeat(16)));
        assert_eq!(clean("", 80), "");
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_short_printable_line(text in "\\PC{0,60}|[\\x00-\\x{ff}]{0,60}", limit in 8_usize..40) {
            let line = clean(&text, limit);
            prop_assert!(line.len() <= limit);
            prop_assert!(line.bytes().all(|b| b == b' ' || b.is_ascii_graphic()));
        }
    }
}
