//! The hash that links a running container to its definition in the pod (annotation
//! `io.kubernetes.container.hash`).
//!
//! In: name and image of a container. Out: FNV-32a as lower-case hex. Invariant: upstream computes the same
//! number, so containers survive a change from one kubelet to the other in both directions. Upstream:
//! `HashContainer` of pkg/kubelet/container/helpers.go.

use std::fmt::Write as _;

use orlop_config::fnv::Fnv32;

/// Hash of (name, image), as kept in the annotation `io.kubernetes.container.hash`.
#[must_use]
pub fn container_hash(name: &str, image: &str) -> String {
    // Upstream marshals the map {image, name} to JSON and prints the bytes as a typed slice of decimals.
    let mut json = String::from("{\"image\":");
    push_json_string(&mut json, image);
    json.push_str(",\"name\":");
    push_json_string(&mut json, name);
    json.push('}');
    // The text itself is four times as long: each pass over a pod compares the hashes of all its containers.
    let mut printed = Fnv32::default();
    printed.write(b"([]uint8)[");
    for (place, byte) in json.bytes().enumerate() {
        if place > 0 {
            printed.write(b" ");
        }
        write_decimal(&mut printed, byte);
    }
    printed.write(b"]");
    format!("{:x}", printed.finish())
}

/// Adds the byte in decimal digits.
fn write_decimal(hash: &mut Fnv32, byte: u8) {
    let (hundreds, tens, ones) = (b'0' + byte / 100, b'0' + byte / 10 % 10, b'0' + byte % 10);
    match byte {
        0..10 => hash.write(&[ones]),
        10..100 => hash.write(&[tens, ones]),
        100.. => hash.write(&[hundreds, tens, ones]),
    }
}

/// A JSON string with the escapes that Go's encoder uses by default (HTML-safe).
fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use orlop_config::fnv::fnv32;

    use super::*;

    #[test]
    fn bytes_are_printed_in_decimal() {
        for byte in 0..=u8::MAX {
            let mut hash = Fnv32::default();
            write_decimal(&mut hash, byte);
            assert_eq!(hash.finish(), fnv32(byte.to_string().as_bytes()), "{byte}");
        }
    }

    #[test]
    fn the_hash_is_that_of_the_printed_bytes() {
        for (name, image, json) in [
            ("", "", r#"{"image":"","name":""}"#),
            (
                "c-1",
                "registry.example:5000/a/b@sha256:0f",
                r#"{"image":"registry.example:5000/a/b@sha256:0f","name":"c-1"}"#,
            ),
            ("é<\u{1}", "a\"\\\u{7f}", "{\"image\":\"a\\\"\\\\\u{7f}\",\"name\":\"é\\u003c\\u0001\"}"),
        ] {
            let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
            let printed = format!("([]uint8)[{}]", bytes.join(" "));
            assert_eq!(container_hash(name, image), format!("{:x}", fnv32(printed.as_bytes())), "{json}");
        }
    }

    #[test]
    fn same_number_as_upstream() {
        // The value that upstream's own test of its container hash expects for this name and image.
        assert_eq!(container_hash("test_container", "foo/image:v1"), "8e45cbd0");
    }

    #[test]
    fn only_name_and_image_count_and_both_do() {
        let base = container_hash("a", "b:1");
        assert_eq!(base, container_hash("a", "b:1"));
        assert_ne!(base, container_hash("b", "b:1"));
        assert_ne!(base, container_hash("a", "b:2"));
        assert!(base.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    }
}
