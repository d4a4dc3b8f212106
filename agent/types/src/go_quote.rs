//! Text in quotes as Go's `%q` writes it.
//!
//! In: bytes. Out: the quoted text. Upstream: strconv.Quote, for which letters, marks, numbers, punctuation, symbols and the ASCII
//! space are printable.

use std::fmt::Write as _;

/// `bytes` in double quotes. Characters that cannot be printed, and bytes that are no UTF-8, are escaped.
#[must_use]
pub fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|c| push(&mut out, c));
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

fn push(out: &mut String, c: char) {
    let named = match c {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\n' => "\\n",
        '\t' => "\\t",
        '\r' => "\\r",
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\u{b}' => "\\v",
        '\u{c}' => "\\f",
        c if is_printable(c) => return out.push(c),
        _ => "",
    };
    out.push_str(named);
    if !named.is_empty() {
        return;
    }
    let code = u32::from(c);
    let _ = match code {
        0..=0x7f => write!(out, "\\x{code:02x}"),
        0x80..=0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

/// Rust's own notation escapes the same characters beyond ASCII. At the beginning of a text it escapes marks, too.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let text: String = ['x', c].into_iter().collect();
    text.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go_has_them() {
        for (text, expected) in [
            ("", "\"\""),
            ("a 'b' \"c\" \\", "\"a 'b' \\\"c\\\" \\\\\""),
            ("\n\t\r\u{7}\u{8}\u{b}\u{c}", "\"\\n\\t\\r\\a\\b\\v\\f\""),
            ("\u{0}\u{1f}\u{7f}", "\"\\x00\\x1f\\x7f\""),
            // NEL, no-break space, zero-width space, line separator, byte order mark, private use, a tag.
            ("\u{85}\u{a0}\u{200b}", "\"\\u0085\\u00a0\\u200b\""),
            ("\u{2028}\u{feff}\u{e000}\u{e0001}", "\"\\u2028\\ufeff\\ue000\\U000e0001\""),
            // A mark is printable, also as the first character.
            ("\u{301}e\u{301}", "\"\u{301}e\u{301}\""),
            ("äß€😀\u{fffd}", "\"äß€😀\u{fffd}\""),
        ] {
            assert_eq!(quoted(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(quoted(b"a\xff\xc3(b"), "\"a\\xff\\xc3(b\"");
    }
}
