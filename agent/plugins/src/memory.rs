//! How much memory a message takes once it is decoded, from its bytes and its shape.
//!
//! In: the bytes of a protobuf message. Out: a number that is not smaller than what decoding needs. Invariants: pure; nothing is decoded;
//! the time is linear in the bytes; bytes that are no message count up to the place where a decoder stops. Needed because an element of
//! two bytes takes up to some hundred bytes of memory, so the size of a message does not bound its memory.

/// Room of lists and maps, in elements for each element: they have up to twice the room after they grew, and four places for the first.
const ROOM: usize = 4;
/// Bytes that an allocation costs beyond its content.
const ALLOCATION: usize = 16;

/// The fields of a message that hold other messages or lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape(pub(crate) &'static [(u32, Field)]);

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field {
    /// A message within its parent.
    Message(Shape),
    /// A list of messages, or a map: bytes of an element in memory, and its shape.
    Elements(usize, Shape),
    /// A list of texts.
    Texts,
}

/// A message of texts and numbers.
pub(crate) const PLAIN: Shape = Shape(&[]);

/// Bytes of memory that the message takes.
pub(crate) fn memory(mut bytes: &[u8], shape: Shape) -> usize {
    let mut sum = 0_usize;
    while let Some((number, content)) = next_field(&mut bytes) {
        // Numbers are a part of their message.
        let Some(content) = content else { continue };
        let field = shape.0.iter().find(|(of, _)| u64::from(*of) == number).map(|(_, field)| *field);
        let text = content.len().saturating_add(ALLOCATION);
        sum = sum.saturating_add(match field {
            Some(Field::Message(shape)) => memory(content, shape),
            Some(Field::Elements(element, shape)) => {
                element.saturating_mul(ROOM).saturating_add(memory(content, shape))
            }
            Some(Field::Texts) => text.saturating_add(ROOM * size_of::<String>()),
            None => text,
        });
    }
    sum
}

/// Takes the next field: its number, and its content if that has a length. `None`: the end, or bytes at which a decoder stops.
fn next_field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Option<&'a [u8]>)> {
    let key = varint(bytes)?;
    let content = match key & 7 {
        0 => {
            varint(bytes)?;
            None
        }
        1 => {
            take(bytes, 8)?;
            None
        }
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            Some(take(bytes, length)?)
        }
        // The begin and the end of a group, which a decoder skips: its fields count as those of the message.
        3 | 4 => None,
        5 => {
            take(bytes, 4)?;
            None
        }
        _ => return None,
    };
    Some((key >> 3, content))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take(bytes, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let all: &'a [u8] = bytes;
    let (taken, rest) = all.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELEMENT: Shape = Shape(&[(2, Field::Texts)]);
    const SHAPE: Shape = Shape(&[(1, Field::Elements(100, ELEMENT)), (3, Field::Message(ELEMENT))]);
    const TEXTS: usize = ROOM * size_of::<String>() + ALLOCATION;

    #[test]
    fn elements_count_with_their_room_and_their_content() {
        for (bytes, expected) in [
            (&b""[..], 0),
            (b"\x0a\x00", 400),
            (b"\x0a\x00\x0a\x00", 800),
            // An element with a text of three bytes in its list, and one in a field of its own.
            (b"\x0a\x05\x12\x03abc", 400 + TEXTS + 3),
            (b"\x0a\x05\x0a\x03abc", 400 + ALLOCATION + 3),
            // A message within the message; a text.
            (b"\x1a\x04\x12\x00\x12\x00", 2 * TEXTS),
            (b"\x22\x02ab", ALLOCATION + 2),
            // Numbers of all lengths, and then an element.
            (b"\x20\x96\x01\x29abcdefgh\x2dabcd\x0a\x00", 400),
            // A group that is skipped counts.
            (b"\x33\x0a\x00\x34\x0a\x00", 800),
        ] {
            assert_eq!(memory(bytes, SHAPE), expected, "{bytes:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_message_count_up_to_their_defect() {
        for defect in
            [&b"\x0a"[..], b"\x0a\x05ab", b"\x80", b"\x07", b"\x29abc", b"\x2dab", &[0xff; 11], b"\x0a\xff"]
        {
            let bytes = [&b"\x0a\x00"[..], defect].concat();
            assert_eq!(memory(&bytes, SHAPE), 400, "{defect:?}");
        }
    }
}
