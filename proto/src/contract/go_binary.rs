//! Finds the CRI contract inside a container runtime's executable.
//!
//! Go programs carry the `FileDescriptorProto` of every generated package: newer generators as plain bytes,
//! older ones gzipped. In: the bytes of the executable. Out: the descriptor of a package.
//! Invariant: nothing in the file is trusted; bytes that only look like a descriptor are passed over.

use std::io::Read as _;

use prost::Message as _;
use prost_types::FileDescriptorProto;

/// No descriptor of a file is larger; bounds what a hostile gzip stream may unpack to.
const DESCRIPTOR_BYTES_MAX: u64 = 4 << 20;
const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 0x08];
/// Field numbers of `FileDescriptorProto` that matter here.
const FIELD_NAME: u64 = 1;
const FIELD_PACKAGE: u64 = 2;
const FIELD_SYNTAX: u64 = 12;
const FIELD_MAX: u64 = 14;

/// The descriptor of `package` that holds services, from the executable's bytes; `None` if there is none.
#[must_use]
pub fn find_descriptor(executable: &[u8], package: &str) -> Option<FileDescriptorProto> {
    let wanted = |d: &FileDescriptorProto| d.package() == package && !d.service.is_empty();
    plain_candidates(executable, package)
        .chain(gzipped_candidates(executable))
        .find(|descriptor| wanted(descriptor))
}

fn gzipped_candidates(executable: &[u8]) -> impl Iterator<Item = FileDescriptorProto> + '_ {
    positions(executable, &GZIP_MAGIC).filter_map(|at| {
        let mut bytes = Vec::new();
        let decoder = flate2::bufread::GzDecoder::new(&executable[at..]);
        decoder.take(DESCRIPTOR_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        FileDescriptorProto::decode(bytes.as_slice()).ok()
    })
}

/// Plain descriptors start with their file's name, then the package: the package's bytes are searched for, and
/// the name's tag before them.
fn plain_candidates<'a>(
    executable: &'a [u8],
    package: &str,
) -> impl Iterator<Item = FileDescriptorProto> + 'a {
    let mut needle = b".proto".to_vec();
    needle.push(tag_byte(FIELD_PACKAGE));
    needle.push(u8::try_from(package.len()).unwrap_or(u8::MAX));
    needle.extend_from_slice(package.as_bytes());
    let found: Vec<usize> = positions(executable, &needle).collect();
    found.into_iter().filter_map(move |at| {
        let start = start_of_name(executable, at + b".proto".len())?;
        let end = start + descriptor_length(&executable[start..])?;
        FileDescriptorProto::decode(&executable[start..end]).ok()
    })
}

/// Tag of a length-delimited field below 16.
fn tag_byte(field: u64) -> u8 {
    u8::try_from(field << 3 | 2).unwrap_or(u8::MAX)
}

/// Where the name field starts whose content ends at `end`.
fn start_of_name(bytes: &[u8], end: usize) -> Option<usize> {
    (1..=127.min(end.saturating_sub(2))).map(|length| end - length - 2).find(|&start| {
        bytes[start] == tag_byte(FIELD_NAME) && usize::from(bytes[start + 1]) == end - start - 2
    })
}

/// Length of a descriptor that starts at the beginning of `bytes`: it ends with its syntax, or before the first
/// thing that is no field of a file descriptor.
fn descriptor_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut last = 0;
    while let Some((field, next)) = skip_field(bytes, at) {
        let repeats_name = field == FIELD_NAME && at > 0;
        if field == 0 || field > FIELD_MAX || repeats_name {
            break;
        }
        (at, last) = (next, next);
        if field == FIELD_SYNTAX {
            break;
        }
    }
    (last > 0).then_some(last)
}

/// Field number at `at` and where the next field starts.
fn skip_field(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let (tag, at) = varint(bytes, at)?;
    let next = match tag & 7 {
        0 => varint(bytes, at)?.1,
        2 => {
            let (length, at) = varint(bytes, at)?;
            at.checked_add(usize::try_from(length).ok()?)?
        }
        _ => return None,
    };
    (next <= bytes.len()).then_some((tag >> 3, next))
}

pub(super) fn varint(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(at)?;
        at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

fn positions<'a>(haystack: &'a [u8], needle: &[u8]) -> impl Iterator<Item = usize> + use<'a> {
    let needle = needle.to_vec();
    let first = needle.first().copied().unwrap_or(0);
    haystack
        .iter()
        .enumerate()
        .filter_map(move |(at, &byte)| (byte == first && haystack[at..].starts_with(&needle)).then_some(at))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use prost_types::{MethodDescriptorProto, ServiceDescriptorProto};

    fn sample() -> FileDescriptorProto {
        let method = MethodDescriptorProto { name: Some("Do".to_owned()), ..Default::default() };
        FileDescriptorProto {
            name: Some("some/dir/api.proto".to_owned()),
            package: Some("runtime.v1".to_owned()),
            service: vec![ServiceDescriptorProto {
                name: Some("Service".to_owned()),
                method: vec![method],
                ..Default::default()
            }],
            syntax: Some("proto3".to_owned()),
            ..Default::default()
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn finds_plain_and_gzipped_among_other_bytes() {
        let plain = sample().encode_to_vec();
        for stored in [plain.clone(), gzip(&plain)] {
            let mut executable = b"\x7fELF junk \x1f\x8b\x08 not gzip .proto\x12\x0aruntime.v1".to_vec();
            executable.extend_from_slice(&stored);
            executable.extend_from_slice(b"\x0a\x05other and more text");
            assert_eq!(find_descriptor(&executable, "runtime.v1"), Some(sample()));
            assert_eq!(find_descriptor(&executable, "runtime.v2"), None);
        }
    }

    #[test]
    fn cut_and_hostile_bytes_are_passed_over() {
        let plain = sample().encode_to_vec();
        for cut in 0..plain.len() {
            // A cut before the syntax field still is a descriptor; what must not happen is a panic.
            let _ = find_descriptor(&plain[..cut], "runtime.v1");
        }
        assert_eq!(find_descriptor(&gzip(&plain)[..20], "runtime.v1"), None);
        assert_eq!(find_descriptor(b".proto\x12\x0aruntime.v1", "runtime.v1"), None);
    }
}
