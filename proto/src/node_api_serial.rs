//! Frames of the management API on a stream of bytes that clients use one after another: a virtio-serial port.
//!
//! ```text
//! kind (1) session (8) data CRC-32 (4) ─► byte stuffing: no zero in it ─► 0
//! ```
//! In: bytes of the stream; frames. Out: frames; bytes. Numbers are little-endian. Why not the plain stream: a client may end in the
//! middle of a message, and the next one finds its rest. A zero byte ends a frame and is in no other place, so a reader that begins
//! anywhere is right again with the next frame. Byte stuffing is COBS (Cheshire and Baker, 1999). Invariants: a reader keeps the bytes of
//! one frame at most; bytes of any form are frames or nothing. Pure.

/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "org.orlop.api.0";
/// Data of a frame, bytes.
pub const DATA_MAX: usize = 4096;

/// Kind and session.
const HEADER: usize = 9;
const CHECK: usize = 4;
const PLAIN_MAX: usize = HEADER + DATA_MAX + CHECK;
/// A frame without its zero, bytes.
const ENCODED_MAX: usize = PLAIN_MAX + PLAIN_MAX / 254 + 1;

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const DATA: u8 = 3;
const CLOSE: u8 = 4;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SerialFrame {
    /// A client begins; every earlier client is gone. It may be repeated until the answer comes.
    Open {
        /// Number of its choice.
        session: u64,
    },
    /// The node is there: data of the session may come.
    Opened {
        /// The client's number.
        session: u64,
    },
    /// Bytes of the connection.
    Data {
        /// The client's number.
        session: u64,
        /// One to [`DATA_MAX`].
        bytes: Vec<u8>,
    },
    /// The connection has ended.
    Close {
        /// The client's number.
        session: u64,
    },
}

impl SerialFrame {
    /// Appends the bytes of the frame. Data beyond [`DATA_MAX`] would make a frame that no reader takes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, session, data): (u8, u64, &[u8]) = match self {
            SerialFrame::Open { session } => (OPEN, *session, &[]),
            SerialFrame::Opened { session } => (OPENED, *session, &[]),
            SerialFrame::Data { session, bytes } => (DATA, *session, bytes),
            SerialFrame::Close { session } => (CLOSE, *session, &[]),
        };
        let mut plain = Vec::with_capacity(HEADER + data.len() + CHECK);
        plain.push(kind);
        plain.extend_from_slice(&session.to_le_bytes());
        plain.extend_from_slice(data);
        let check = crc32fast::hash(&plain);
        plain.extend_from_slice(&check.to_le_bytes());
        stuff(&plain, out);
        out.push(0);
    }
}

/// Finds the frames of a stream.
#[derive(Debug, Default)]
pub struct SerialReader {
    pending: Vec<u8>,
    is_too_long: bool,
}

impl SerialReader {
    /// The frames that end in these bytes.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<SerialFrame> {
        let mut frames = Vec::new();
        for byte in bytes {
            if *byte != 0 {
                if self.pending.len() < ENCODED_MAX {
                    self.pending.push(*byte);
                } else {
                    self.is_too_long = true;
                }
                continue;
            }
            if !std::mem::take(&mut self.is_too_long) {
                frames.extend(frame(&self.pending));
            }
            self.pending.clear();
        }
        frames
    }
}

fn frame(stuffed: &[u8]) -> Option<SerialFrame> {
    let plain = unstuff(stuffed)?;
    let (content, check) = plain.split_last_chunk::<CHECK>()?;
    if crc32fast::hash(content) != u32::from_le_bytes(*check) {
        return None;
    }
    let (kind, rest) = content.split_first()?;
    let (session, data) = rest.split_first_chunk::<8>()?;
    let session = u64::from_le_bytes(*session);
    match (*kind, data) {
        (OPEN, []) => Some(SerialFrame::Open { session }),
        (OPENED, []) => Some(SerialFrame::Opened { session }),
        (DATA, [_, ..]) if data.len() <= DATA_MAX => {
            Some(SerialFrame::Data { session, bytes: data.to_vec() })
        }
        (CLOSE, []) => Some(SerialFrame::Close { session }),
        _ => None,
    }
}

/// Groups of at most 254 bytes without a zero, each after its length and one; a group of fewer stands for its bytes and a zero.
fn stuff(plain: &[u8], out: &mut Vec<u8>) {
    for group in plain.split(|byte| *byte == 0) {
        let mut rest = group;
        while let Some((full, after)) = rest.split_at_checked(254) {
            out.push(u8::MAX);
            out.extend_from_slice(full);
            rest = after;
        }
        // At most 253 are left.
        out.push(u8::try_from(rest.len() + 1).unwrap_or(u8::MAX));
        out.extend_from_slice(rest);
    }
}

fn unstuff(stuffed: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(stuffed.len());
    let mut rest = stuffed;
    while let Some((code, after)) = rest.split_first() {
        let (group, next) = after.split_at_checked(usize::from(*code).checked_sub(1)?)?;
        plain.extend_from_slice(group);
        if *code != u8::MAX && !next.is_empty() {
            plain.push(0);
        }
        rest = next;
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(frame: &SerialFrame) -> Vec<u8> {
        let mut out = Vec::new();
        frame.encode(&mut out);
        out
    }

    fn data(bytes: Vec<u8>) -> SerialFrame {
        SerialFrame::Data { session: 7, bytes }
    }

    #[test]
    fn frames_come_back_and_have_one_zero() {
        let all = (0..DATA_MAX).map(|n| u8::try_from(n % 256).unwrap()).collect();
        for frame in [
            SerialFrame::Open { session: 0 },
            SerialFrame::Opened { session: u64::MAX },
            SerialFrame::Close { session: 1 << 40 },
            data(vec![0]),
            data(vec![0; DATA_MAX]),
            data(vec![1; DATA_MAX]),
            data(vec![1; 253]),
            data(vec![1; 254]),
            data(vec![1; 255]),
            data(all),
        ] {
            let bytes = encoded(&frame);
            assert!(bytes.len() <= ENCODED_MAX + 1, "{} bytes", bytes.len());
            assert_eq!(bytes.iter().filter(|byte| **byte == 0).count(), 1, "{frame:?}");
            assert_eq!(SerialReader::default().take(&bytes), std::slice::from_ref(&frame));
            let mut by_byte = SerialReader::default();
            let frames: Vec<SerialFrame> = bytes.iter().flat_map(|byte| by_byte.take(&[*byte])).collect();
            assert_eq!(frames, [frame]);
        }
    }

    #[test]
    fn a_reader_is_right_again_after_any_rest_of_another_client() {
        let (first, second) = (encoded(&data(vec![9; 600])), encoded(&SerialFrame::Open { session: 2 }));
        for cut in 1..first.len() - 1 {
            // The end of a frame whose beginning went to another client; then a beginning without an end, and the next client's zero.
            for rest in [&first[cut..], &first[..cut]] {
                let mut reader = SerialReader::default();
                let mut stream = rest.to_vec();
                stream.push(0);
                stream.extend_from_slice(&second);
                assert_eq!(reader.take(&stream), [SerialFrame::Open { session: 2 }], "{cut}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_frame_are_nothing_and_bounded() {
        let mut reader = SerialReader::default();
        for _ in 0..100 {
            assert!(reader.take(&[0x55; 1000]).is_empty());
        }
        assert!(reader.pending.len() <= ENCODED_MAX);
        assert!(reader.take(&[0]).is_empty());
        let good = encoded(&data(b"hello".to_vec()));
        for at in 0..good.len() - 1 {
            let mut bad = good.clone();
            bad[at] ^= 0x11;
            assert!(reader.take(&bad).is_empty(), "{at}");
            // A byte that became a zero has ended the frame early.
            reader.take(&[0]);
        }
        for odd in [data(Vec::new()), data(vec![1; DATA_MAX + 1])] {
            assert!(reader.take(&encoded(&odd)).is_empty());
        }
        assert_eq!(reader.take(&good), [data(b"hello".to_vec())]);
    }
}
