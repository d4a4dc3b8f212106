//! "Does the runtime answer?": one CRI `Version` call over HTTP/2, by hand.
//!
//! A gRPC stack would triple the size of init for this one question. Bytes in, progress out; the executor owns
//! the socket. What is implemented is what one unary call needs: preface, settings, one request, frames in.
//! Header blocks are not decoded: an answer with a message is a success, one without is a refusal.

use std::fmt;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
/// HTTP/2's default, which we never raise.
const FRAME_MAX: usize = 16_384;

/// What the runtime said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// `containerd`.
    pub runtime_name: String,
    /// `v2.1.4`.
    pub runtime_version: String,
    /// `v1`.
    pub api_version: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, CRI {}", self.runtime_name, self.runtime_version, self.api_version)
    }
}

/// How far the call is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Send this (may be empty) and read on.
    More(Vec<u8>),
    /// It answered.
    Answered(Version),
    /// It answered, but not with a version.
    Refused(&'static str),
}

/// What to send first.
#[must_use]
pub fn request() -> Vec<u8> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend(frame(SETTINGS, 0, 0, &[]));
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/runtime.v1.RuntimeService/Version"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal header that is not indexed, with a new name, not Huffman-coded.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap_or(0));
            block.extend_from_slice(text.as_bytes());
        }
    }
    out.extend(frame(HEADERS, END_HEADERS, 1, &block));
    // An empty VersionRequest: not compressed, length 0.
    out.extend(frame(DATA, END_STREAM, 1, &[0; 5]));
    out
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut out = length[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// The receiving side.
#[derive(Debug, Default)]
pub struct Call {
    unread: Vec<u8>,
    message: Vec<u8>,
}

impl Call {
    /// Takes what the socket gave.
    pub fn receive(&mut self, bytes: &[u8]) -> Progress {
        self.unread.extend_from_slice(bytes);
        let mut reply = Vec::new();
        loop {
            let Some((head, rest)) = self.unread.split_first_chunk::<9>() else {
                return Progress::More(reply);
            };
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            if length > FRAME_MAX {
                return Progress::Refused("it does not speak HTTP/2");
            }
            let (kind, flags) = (head[3], head[4]);
            let Some(payload) = rest.get(..length).map(<[u8]>::to_vec) else { return Progress::More(reply) };
            self.unread.drain(..9 + length);
            match kind {
                SETTINGS if flags & ACK == 0 => reply.extend(frame(SETTINGS, ACK, 0, &[])),
                PING if flags & ACK == 0 => reply.extend(frame(PING, ACK, 0, &payload)),
                GOAWAY | RST_STREAM => return Progress::Refused("it closed the call"),
                DATA if flags & PADDED != 0 => return Progress::Refused("it padded its answer"),
                DATA => self.message.extend_from_slice(&payload),
                _ => {}
            }
            if let Some(version) = self.version() {
                return version;
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                return Progress::Refused("it has no CRI runtime service yet");
            }
            if self.message.len() > FRAME_MAX {
                return Progress::Refused("its answer is too long");
            }
        }
    }

    fn version(&self) -> Option<Progress> {
        let (prefix, rest) = self.message.split_first_chunk::<5>()?;
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        let body = rest.get(..usize::try_from(length).ok()?)?;
        Some(match (prefix[0], version_response(body)) {
            (0, Some(version)) => Progress::Answered(version),
            _ => Progress::Refused("its answer is no version"),
        })
    }
}

/// VersionResponse: strings 1 version, 2 runtime_name, 3 runtime_version, 4 runtime_api_version.
fn version_response(mut body: &[u8]) -> Option<Version> {
    let mut version = Version::default();
    while let Some((tag, rest)) = body.split_first() {
        // Lengths up to 127 have one byte; no version string is longer.
        let (length, rest) = rest.split_first()?;
        let (value, rest) = rest.split_at_checked(usize::from(*length))?;
        let text = String::from_utf8(value.to_vec()).ok()?;
        match tag {
            0x0a => {}
            0x12 => version.runtime_name = text,
            0x1a => version.runtime_version = text,
            0x22 => version.api_version = text,
            _ => return None,
        }
        body = rest;
    }
    (!version.runtime_name.is_empty()).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer() -> Vec<u8> {
        let mut body = Vec::new();
        for (tag, text) in [(0x0a, "0.1.0"), (0x12, "containerd"), (0x1a, "v2.1.4"), (0x22, "v1")] {
            body.extend([tag, u8::try_from(text.len()).expect("short")]);
            body.extend_from_slice(text.as_bytes());
        }
        let mut message = vec![0, 0, 0, 0, u8::try_from(body.len()).expect("short")];
        message.extend(body);
        [
            frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 64, 0]),
            frame(SETTINGS, ACK, 0, &[]),
            frame(8, 0, 0, &[0, 0, 0, 5]),
            frame(PING, 0, 0, b"12345678"),
            frame(HEADERS, END_HEADERS, 1, &[0x88]),
            frame(DATA, 0, 1, &message),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0]),
        ]
        .concat()
    }

    fn containerd() -> Version {
        Version {
            runtime_name: "containerd".into(),
            runtime_version: "v2.1.4".into(),
            api_version: "v1".into(),
        }
    }

    #[test]
    fn an_answer_in_any_pieces() {
        let bytes = answer();
        assert_eq!(Call::default().receive(&bytes), Progress::Answered(containerd()));
        let mut call = Call::default();
        let mut sent = Vec::new();
        for byte in &bytes {
            match call.receive(std::slice::from_ref(byte)) {
                Progress::More(reply) => sent.extend(reply),
                Progress::Answered(version) => {
                    assert_eq!(version.to_string(), "containerd v2.1.4, CRI v1");
                    let want = [frame(SETTINGS, ACK, 0, &[]), frame(PING, ACK, 0, b"12345678")].concat();
                    assert_eq!(sent, want);
                    return;
                }
                Progress::Refused(why) => panic!("{why}"),
            }
        }
        panic!("no answer");
    }

    #[test]
    fn refusals() {
        let cases = [
            (frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0]), "it has no CRI runtime service yet"),
            (frame(GOAWAY, 0, 0, &[0; 8]), "it closed the call"),
            (b"HTTP/1.1 400 Bad Request".to_vec(), "it does not speak HTTP/2"),
            (frame(DATA, 0, 1, &[0, 0, 0, 0, 2, 0x12, 9]), "its answer is no version"),
            (frame(DATA, PADDED, 1, &[0]), "it padded its answer"),
        ];
        for (bytes, want) in cases {
            assert_eq!(Call::default().receive(&bytes), Progress::Refused(want));
        }
    }

    proptest! {
        #[test]
        fn any_bytes(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..8)) {
            let mut call = Call::default();
            for chunk in chunks {
                let _ = call.receive(&chunk);
            }
        }

        #[test]
        fn flips(at in 0usize..150, mask in 1u8..) {
            let mut bytes = answer();
            if let Some(b) = bytes.get_mut(at) {
                *b ^= mask;
            }
            let _ = Call::default().receive(&bytes);
        }
    }
}
