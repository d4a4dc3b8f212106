//! SMBIOS: the OEM strings (type 11) of the firmware's table, and the systemd credentials among them.
//!
//! Upstream: DMTF DSP0134 and systemd's `io.systemd.credential:NAME=VALUE` convention.

use orlop_config::base64;

/// Structure type of OEM strings.
const OEM_STRINGS: u8 = 11;
/// Structure type that ends the table.
const END: u8 = 127;

/// All OEM strings, in order. A table that ends in the middle of a structure gives what came before.
#[must_use]
pub fn oem_strings(table: &[u8]) -> Vec<&[u8]> {
    let mut strings = Vec::new();
    let mut rest = table;
    while let [kind, length, ..] = *rest {
        let Some((found, next)) = split(rest, usize::from(length)) else { break };
        match kind {
            END => break,
            OEM_STRINGS => strings.extend(found),
            _ => {}
        }
        rest = next;
    }
    strings
}

/// Strings of the first structure, and what follows it. The formatted part is at least its header.
fn split(table: &[u8], formatted: usize) -> Option<(Vec<&[u8]>, &[u8])> {
    if formatted < 4 {
        return None;
    }
    let mut rest = table.get(formatted..)?;
    let mut strings = Vec::new();
    loop {
        let end = rest.iter().position(|b| *b == 0)?;
        let (string, after) = (&rest[..end], &rest[end + 1..]);
        if string.is_empty() {
            // A structure without strings ends in two zeros, one with strings in one more after the last.
            let after = if strings.is_empty() { after.strip_prefix(&[0]).unwrap_or(after) } else { after };
            return Some((strings, after));
        }
        strings.push(string);
        rest = after;
    }
}

/// What a credential string holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// The value.
    Value(Vec<u8>),
    /// `.binary` whose value is not base64.
    BadBase64,
}

/// The credential `name`, if there is one; the first wins, as with systemd.
#[must_use]
pub fn credential(table: &[u8], name: &str) -> Option<Credential> {
    oem_strings(table).into_iter().find_map(|string| {
        let rest = string.strip_prefix(b"io.systemd.credential")?;
        let (rest, binary) = match rest.strip_prefix(b".binary") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let value = rest.strip_prefix(b":")?.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        if !binary {
            return Some(Credential::Value(value.to_vec()));
        }
        let decoded = std::str::from_utf8(value).ok().and_then(base64::decode);
        Some(decoded.map_or(Credential::BadBase64, Credential::Value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn structure(kind: u8, formatted: &[u8], strings: &[&str]) -> Vec<u8> {
        let mut s = vec![kind, u8::try_from(formatted.len() + 4).expect("short"), 0, 0];
        s.extend_from_slice(formatted);
        for string in strings {
            s.extend_from_slice(string.as_bytes());
            s.push(0);
        }
        if strings.is_empty() {
            s.push(0);
        }
        s.push(0);
        s
    }

    fn table(oem: &[&str]) -> Vec<u8> {
        [
            structure(0, &[1, 2, 3], &["vendor", "1.0"]),
            structure(1, &[0; 23], &[]),
            structure(11, &[u8::try_from(oem.len()).expect("few")], oem),
            structure(END, &[], &[]),
            structure(11, &[1], &["io.systemd.credential:late=1"]),
        ]
        .concat()
    }

    #[test]
    fn strings_and_credentials() {
        let t = table(&[
            "first",
            "io.systemd.credential:orlop.config=kind: NodeConfig",
            "io.systemd.credential.binary:b=QUI=",
        ]);
        assert_eq!(oem_strings(&t).len(), 3);
        assert_eq!(credential(&t, "orlop.config"), Some(Credential::Value(b"kind: NodeConfig".to_vec())));
        assert_eq!(credential(&t, "b"), Some(Credential::Value(b"AB".to_vec())));
        assert_eq!(credential(&t, "late"), None);
        assert_eq!(credential(&t, "orlop"), None);
        let bad = table(&["io.systemd.credential.binary:orlop.config=?"]);
        assert_eq!(credential(&bad, "orlop.config"), Some(Credential::BadBase64));
    }

    #[test]
    fn a_cut_table_keeps_what_is_whole() {
        let t = [structure(11, &[1], &["one"]), structure(11, &[1], &["two"])].concat();
        assert_eq!(oem_strings(&t), [b"one", b"two"]);
        assert_eq!(oem_strings(&t[..t.len() - 3]), [b"one"]);
        assert_eq!(oem_strings(&[11, 0, 0, 0, 0, 0]), Vec::<&[u8]>::new());
    }

    proptest! {
        #[test]
        fn any_table(mut t in proptest::collection::vec(prop_oneof![Just(0u8), Just(11), Just(4), any::<u8>()], 0..300)) {
            let _ = oem_strings(&t);
            t.splice(0..0, [11, 5, 0, 0, 1]);
            let _ = credential(&t, "x");
        }
    }
}
