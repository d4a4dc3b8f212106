//! Walks an encoded message along a [`Contract`] and names what the contract does not know.
//!
//! In: bytes as a peer sent them. Out: paths such as `StatusResponse.9` with what is wrong there.
//! Invariant: total on any bytes; what cannot be walked is reported, not skipped.

use super::Contract;
use super::go_binary::varint;

/// Nesting deeper than this is reported instead of followed.
const DEPTH_MAX: usize = 32;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

impl Contract {
    /// Every field, wire type or enum value in `bytes` that `message` of this contract does not have.
    #[must_use]
    pub fn unknown_on_wire(&self, message: &str, bytes: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        self.walk(message, message, bytes, DEPTH_MAX, &mut found);
        found
    }

    fn walk(&self, message: &str, path: &str, bytes: &[u8], depth: usize, found: &mut Vec<String>) {
        let Some(fields) = self.messages.get(message).filter(|_| depth > 0) else {
            found.push(format!("{path}: message {message} is not known, or nested too deeply"));
            return;
        };
        let mut at = 0;
        while at < bytes.len() {
            let Some(item) = Item::read(bytes, at) else {
                found.push(format!("{path}: cannot be read from byte {at}"));
                return;
            };
            at = item.next;
            let place = format!("{path}.{}", item.number);
            match i32::try_from(item.number).ok().and_then(|n| fields.get(&n)) {
                None => found.push(format!("{place}: unknown field, wire type {}", item.wire_type)),
                Some(field) => {
                    let kind = field.kind.strip_prefix("repeated ").unwrap_or(&field.kind);
                    self.value(kind, &format!("{path}.{}", field.name), &item, depth, found);
                }
            }
        }
    }

    fn value(&self, kind: &str, path: &str, item: &Item<'_>, depth: usize, found: &mut Vec<String>) {
        let expected = wire_type(kind);
        // Repeated numbers may come packed.
        let packed = item.wire_type == LENGTH && expected != LENGTH;
        if item.wire_type != expected && !packed {
            found.push(format!("{path}: wire type {} where {kind} has {expected}", item.wire_type));
        } else if let Some(message) = kind.strip_prefix("message ") {
            self.walk(message, path, item.content, depth - 1, found);
        } else if let Some((key, value)) =
            kind.strip_prefix("map<").and_then(|k| k.strip_suffix('>')?.split_once(", "))
        {
            self.map_entry([key, value], path, item.content, depth, found);
        } else if let Some(name) = kind.strip_prefix("enum ") {
            let known = |v: u64| {
                let number = i32::try_from(v).ok();
                number.is_some_and(|n| self.enums.get(name).is_some_and(|e| e.contains_key(&n)))
            };
            for value in item.numbers().filter(|v| !known(*v)) {
                found.push(format!("{path}: {name} has no value {value}"));
            }
        }
    }

    fn map_entry(&self, kinds: [&str; 2], path: &str, bytes: &[u8], depth: usize, found: &mut Vec<String>) {
        let mut at = 0;
        while at < bytes.len() {
            let Some(item) = Item::read(bytes, at) else {
                found.push(format!("{path}: map entry cannot be read from byte {at}"));
                return;
            };
            at = item.next;
            match item.number {
                1 => self.value(kinds[0], &format!("{path}.key"), &item, depth, found),
                2 => self.value(kinds[1], &format!("{path}.value"), &item, depth, found),
                n => found.push(format!("{path}: map entry has unknown field {n}")),
            }
        }
    }
}

fn wire_type(kind: &str) -> u64 {
    match kind {
        "string" | "bytes" => LENGTH,
        "double" | "fixed64" | "sfixed64" => FIXED64,
        "float" | "fixed32" | "sfixed32" => FIXED32,
        k if k.starts_with("message ") || k.starts_with("map<") => LENGTH,
        _ => VARINT,
    }
}

/// One field on the wire.
struct Item<'a> {
    number: u64,
    wire_type: u64,
    /// The value's bytes, without the length in front.
    content: &'a [u8],
    next: usize,
}

impl<'a> Item<'a> {
    fn read(bytes: &'a [u8], at: usize) -> Option<Item<'a>> {
        let (tag, start) = varint(bytes, at)?;
        let (start, next) = match tag & 7 {
            VARINT => (start, varint(bytes, start)?.1),
            FIXED64 => (start, start.checked_add(8)?),
            FIXED32 => (start, start.checked_add(4)?),
            LENGTH => {
                let (length, start) = varint(bytes, start)?;
                (start, start.checked_add(usize::try_from(length).ok()?)?)
            }
            _ => return None,
        };
        Some(Item { number: tag >> 3, wire_type: tag & 7, content: bytes.get(start..next)?, next })
    }

    /// The value as varints: one, or many if packed.
    fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (value, next) = varint(self.content, at)?;
            at = next;
            Some(value)
        })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::cri::v1;

    fn sample() -> v1::ContainerStatus {
        v1::ContainerStatus {
            id: "c".to_owned(),
            state: v1::ContainerState::ContainerExited.into(),
            exit_code: -1,
            created_at: 5,
            metadata: Some(v1::ContainerMetadata { name: "n".to_owned(), attempt: 2 }),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            mounts: vec![v1::Mount { readonly: true, propagation: 2, ..Default::default() }],
            user: Some(v1::ContainerUser {
                linux: Some(v1::LinuxContainerUser { uid: 1, gid: 2, supplemental_groups: vec![1, 300] }),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn what_we_encode_is_known() {
        let ours = Contract::ours().unwrap();
        let stats = v1::PsiData { avg10: 1.5, total: 7, ..Default::default() };
        assert_eq!(ours.unknown_on_wire("ContainerStatus", &sample().encode_to_vec()), [""; 0]);
        assert_eq!(ours.unknown_on_wire("PsiData", &stats.encode_to_vec()), [""; 0]);
    }

    #[test]
    fn what_we_do_not_know_is_named() {
        let ours = Contract::ours().unwrap();
        let first = |bytes: &[u8]| {
            ours.unknown_on_wire("ContainerStatus", bytes).into_iter().next().unwrap_or_default()
        };
        let with = |extra: &[u8]| [&sample().encode_to_vec()[..], extra].concat();
        assert_eq!(first(&with(&[0xa8, 0x06, 0x01])), "ContainerStatus.101: unknown field, wire type 0");
        assert_eq!(first(&with(&[0x18, 0x09])), "ContainerStatus.state: ContainerState has no value 9");
        assert_eq!(first(&with(&[0x08, 0x09])), "ContainerStatus.id: wire type 0 where string has 2");
        assert_eq!(
            first(&with(&[0x12, 0x02, 0x50, 0x01])),
            "ContainerStatus.metadata.10: unknown field, wire type 0"
        );
        assert!(first(&with(&[0x12, 0x7f])).contains("cannot be read"));
    }
}
