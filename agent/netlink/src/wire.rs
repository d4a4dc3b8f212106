//! Netlink's frame: a header, a header of the family, attributes that may hold attributes. Pure.
//!
//! In: values of a request, or a datagram of the kernel. Out: bytes, or messages and attributes. Invariant: what is cut
//! off or lies about its length ends the iteration and nothing else. Format: netlink(7), RFC 3549.

/// `NLM_F_REQUEST | NLM_F_ACK`: a request that is answered.
pub const REQUEST: u16 = 0x1 | ACKNOWLEDGE;
/// `NLM_F_REQUEST`: the frame of a batch, which is not.
pub const FRAME: u16 = 0x1;
/// `NLM_F_APPEND`: behind those that are there.
pub const APPEND: u16 = 0x800;
const ACKNOWLEDGE: u16 = 0x4;
/// `NLM_F_DUMP`: all objects instead of one.
pub const DUMP: u16 = 0x300;
/// `NLM_F_CREATE`: makes the object if it is missing.
pub const CREATE: u16 = 0x400;
/// `NLM_F_EXCL`: refuses if it is there.
pub const EXCLUSIVE: u16 = 0x200;

/// `NLMSG_ERROR`: the end of a request, with errno 0 for success.
pub const ERROR: u16 = 0x2;
/// `NLMSG_DONE`: the end of a dump.
pub const DONE: u16 = 0x3;

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// Without the flags for nesting and byte order.
const ATTRIBUTE_KIND: u16 = 0x3fff;

/// A request under construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    /// A request of the kind and with the flags, opened by its family's header.
    #[must_use]
    pub fn new(kind: u16, flags: u16, family_header: &[u8]) -> Message {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(family_header);
        Message(bytes).padded()
    }

    /// With an attribute. A value of more than 64 KiB is no attribute, and none here is.
    #[must_use]
    pub fn with(self, kind: u16, value: &[u8]) -> Message {
        self.attribute(kind, |mut m| {
            m.0.extend_from_slice(value);
            m
        })
    }

    /// With a text, ended by a zero.
    #[must_use]
    pub fn with_text(self, kind: u16, text: &str) -> Message {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// With a number in the machine's byte order.
    #[must_use]
    pub fn with_u32(self, kind: u16, value: u32) -> Message {
        self.with(kind, &value.to_ne_bytes())
    }

    /// With an attribute that holds what `inside` adds.
    #[must_use]
    pub fn nested(self, kind: u16, inside: impl FnOnce(Message) -> Message) -> Message {
        self.attribute(kind | NESTED, inside)
    }

    fn attribute(mut self, kind: u16, inside: impl FnOnce(Message) -> Message) -> Message {
        let start = self.0.len();
        self.0.extend_from_slice(&[0, 0]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        let Message(mut bytes) = inside(self);
        let length = u16::try_from(bytes.len() - start).unwrap_or(u16::MAX);
        bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        Message(bytes).padded()
    }

    /// With bytes that are no attribute, inside a nested one.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Message {
        self.0.extend_from_slice(bytes);
        self.padded()
    }

    /// The kernel will say whether it was done.
    #[must_use]
    pub fn wants_answer(&self) -> bool {
        u16_at(&self.0, 6).is_some_and(|flags| flags & ACKNOWLEDGE != 0)
    }

    /// The finished request.
    #[must_use]
    pub fn bytes(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[0..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }

    fn padded(mut self) -> Message {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMessage<'a> {
    /// What it is; [`ERROR`] and [`DONE`] end a request.
    pub kind: u16,
    /// The request that it answers.
    pub sequence: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

impl KernelMessage<'_> {
    /// The errno of an [`ERROR`] or [`DONE`], 0 for success.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let code = self.body.first_chunk::<4>().map_or(0, |b| i32::from_ne_bytes(*b));
        code.checked_neg().unwrap_or(i32::MAX)
    }
}

/// The messages of a datagram, up to the first that lies about its length.
pub fn answers(mut datagram: &[u8]) -> impl Iterator<Item = KernelMessage<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(datagram, 0)?).ok()?;
        let message = datagram.get(..length).filter(|m| m.len() >= HEADER_BYTES)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        let kind = u16_at(message, 4)?;
        Some(KernelMessage { kind, sequence: u32_at(message, 8)?, body: message.get(HEADER_BYTES..)? })
    })
}

/// Attributes, their kinds without flags, up to the first that lies about its length.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & ATTRIBUTE_KIND;
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// A number of the machine's byte order at an offset, if there are so many bytes.
#[must_use]
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk::<4>().map(|b| u32::from_ne_bytes(*b))
}

/// The same, of two bytes.
#[must_use]
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk::<2>().map(|b| u16::from_ne_bytes(*b))
}

/// A text up to its zero.
#[must_use]
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_count_headers_and_not_padding() {
        let bytes = Message::new(16, REQUEST, &[9; 4])
            .with_text(3, "eth0")
            .nested(18, |m| m.with(1, b"veth"))
            .bytes(7);
        let mut want = vec![0; 16];
        want[0..4].copy_from_slice(&44_u32.to_ne_bytes());
        want[4..6].copy_from_slice(&16_u16.to_ne_bytes());
        want[6..8].copy_from_slice(&5_u16.to_ne_bytes());
        want[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        want.extend([9; 4]);
        want.extend([&9_u16.to_ne_bytes()[..], &3_u16.to_ne_bytes(), b"eth0\0\0\0\0"].concat());
        want.extend([&12_u16.to_ne_bytes()[..], &(18_u16 | 0x8000).to_ne_bytes()].concat());
        want.extend([&8_u16.to_ne_bytes()[..], &1_u16.to_ne_bytes(), b"veth"].concat());
        assert_eq!(bytes, want);
        let read: Vec<_> = answers(&bytes).collect();
        assert_eq!((read.len(), read[0].kind, read[0].sequence), (1, 16, 7));
        let inside: Vec<_> = attributes(&read[0].body[4..]).collect();
        assert_eq!(inside[0], (3, &b"eth0\0"[..]));
        assert_eq!(attributes(inside[1].1).collect::<Vec<_>>(), [(1, &b"veth"[..])]);
    }

    #[test]
    fn errors_are_negative_numbers() {
        let of = |n: i32| KernelMessage { kind: ERROR, sequence: 0, body: &n.to_ne_bytes() }.errno();
        assert_eq!((of(0), of(-17), of(i32::MIN)), (0, 17, i32::MAX));
        assert_eq!(KernelMessage { kind: ERROR, sequence: 0, body: &[] }.errno(), 0);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_go_on_for_ever(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for answer in answers(&bytes) {
                prop_assert!(answer.body.len() <= bytes.len());
                prop_assert!(attributes(answer.body).count() <= answer.body.len());
            }
            prop_assert!(attributes(&bytes).count() <= bytes.len());
        }
    }
}
