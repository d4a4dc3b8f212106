//! Requests of Go clients over unix sockets, made readable for the gRPC server.
//!
//! A Go client that dials a path puts that path, percent-encoded or as it is, into `:authority`. RFC 3986 allows neither there, so h2
//! answers PROTOCOL_ERROR, and neither a device plugin nor an exporter gets through. h2 has no setting for that.
//!
//! In: bytes of an HTTP/2 client that encodes its fields as Go does. Out: the same bytes, with `localhost` as each literal `:authority`.
//! Invariants: only the value of that field changes; both ends keep the same order of entries in the header table, and the server's
//! entries are never larger than the client knows them, because a value that is shorter than `localhost` stays; bytes held back are
//! bounded. A client that encodes otherwise can confuse its own connection and no other. Source: RFC 9113 4.1 and 6.2, RFC 7541 5 and 6.

/// Bytes of the client's preface.
const PREFACE: usize = 24;
/// Bytes of a frame's header.
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes of a frame before the server allows more, and of a block of fields here: a request of these APIs has some hundred.
const FRAME_MAX: usize = 16_384;
/// Index of `:authority` in the static table.
const AUTHORITY: usize = 1;
const LOCALHOST: &[u8] = b"localhost";

/// The client does not speak HTTP/2, or its fields are too large.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a client's frame cannot be read: {0}")]
pub(crate) struct FrameError(&'static str);

/// A block of fields that is not complete yet.
#[derive(Debug)]
struct FieldBlock {
    stream: [u8; 4],
    ends_stream: bool,
    fields: Vec<u8>,
}

/// Rewrites the bytes of one client.
#[derive(Debug)]
pub(crate) struct AuthorityFilter {
    /// Bytes of a preface, or of a frame, that is not complete.
    held: Vec<u8>,
    /// Bytes that pass as they are.
    passing: usize,
    block: Option<FieldBlock>,
}

impl AuthorityFilter {
    /// A connection without bytes so far.
    pub(crate) fn new() -> AuthorityFilter {
        AuthorityFilter { held: Vec::new(), passing: PREFACE, block: None }
    }

    /// Takes the client's next bytes, and appends the server's to `out`.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            let (passes, rest) = bytes.split_at(self.passing.min(bytes.len()));
            out.extend_from_slice(passes);
            self.passing -= passes.len();
            bytes = rest;
            if bytes.is_empty() {
                return Ok(());
            }
            let (taken, rest) = bytes.split_at(self.missing().min(bytes.len()));
            self.held.extend_from_slice(taken);
            bytes = rest;
            let header = self.held.get(..FRAME_HEADER);
            if header.is_some_and(|header| has_fields(header) && length(header) > FRAME_MAX) {
                return Err(FrameError("a frame of fields is too large"));
            }
            if self.missing() == 0 {
                self.frame(out)?;
            }
        }
        Ok(())
    }

    /// Bytes until the held frame's header, or the whole frame if it has fields, is complete.
    fn missing(&self) -> usize {
        let whole = match self.held.get(..FRAME_HEADER) {
            Some(header) if has_fields(header) => FRAME_HEADER + length(header),
            _ => FRAME_HEADER,
        };
        whole.saturating_sub(self.held.len())
    }

    fn frame(&mut self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let frame = std::mem::take(&mut self.held);
        let (header, payload) = frame.split_at_checked(FRAME_HEADER).ok_or(FrameError("short frame"))?;
        let &[_, _, _, kind, flags, a, b, c, d] = header else { return Err(FrameError("short frame")) };
        if !has_fields(header) {
            self.passing = length(header);
            out.extend_from_slice(header);
            return Ok(());
        }
        let mut block = match (kind, self.block.take()) {
            (HEADERS, None) => {
                let (stream, ends_stream) = ([a, b, c, d], flags & END_STREAM != 0);
                FieldBlock { stream, ends_stream, fields: fragment(payload, flags)?.to_vec() }
            }
            (CONTINUATION, Some(mut block)) if block.stream == [a, b, c, d] => {
                block.fields.extend_from_slice(payload);
                block
            }
            _ => return Err(FrameError("frames of fields are out of order")),
        };
        if block.fields.len() > FRAME_MAX - LOCALHOST.len() {
            return Err(FrameError("the fields are too large"));
        }
        if flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(());
        }
        block.fields = with_localhost(&block.fields)?;
        let length = u32::try_from(block.fields.len()).map_err(|_| FrameError("the fields are too large"))?;
        let flags = END_HEADERS | if block.ends_stream { END_STREAM } else { 0 };
        out.extend(length.to_be_bytes().iter().skip(1));
        out.extend([HEADERS, flags]);
        out.extend(block.stream);
        out.extend(block.fields);
        Ok(())
    }
}

fn has_fields(header: &[u8]) -> bool {
    matches!(header.get(3), Some(&(HEADERS | CONTINUATION)))
}

fn length(header: &[u8]) -> usize {
    header.iter().take(3).fold(0, |length, byte| length << 8 | usize::from(*byte))
}

/// The fields in the payload of a HEADERS frame, without padding and priority.
fn fragment(payload: &[u8], flags: u8) -> Result<&[u8], FrameError> {
    let short = FrameError("short frame");
    let (padding, rest) = if flags & PADDED == 0 {
        (0, payload)
    } else {
        let (padding, rest) = payload.split_first().ok_or(FrameError("short frame"))?;
        (usize::from(*padding), rest)
    };
    let from = if flags & PRIORITY == 0 { 0 } else { 5 };
    let to = rest.len().checked_sub(padding).ok_or(FrameError("short frame"))?;
    rest.get(from..to).ok_or(short)
}

/// The same fields, with `localhost` in place of longer values of `:authority`.
fn with_localhost(fields: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut from = Reader(fields);
    let mut to = Vec::with_capacity(fields.len());
    while let Some(&first) = from.0.first() {
        let start = from.0;
        // The bits of the first byte that belong to the index, and whether a value follows.
        let (bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = from.integer(bits)?;
        if is_literal && index == 0 {
            from.string()?;
        }
        let name_end = start.len() - from.0.len();
        let value = if is_literal { from.string()? } else { &[] };
        let end = start.len() - from.0.len();
        let is_path = is_literal && index == AUTHORITY && value.len() > LOCALHOST.len();
        to.extend_from_slice(start.get(..if is_path { name_end } else { end }).unwrap_or_default());
        if is_path {
            to.push(u8::try_from(LOCALHOST.len()).unwrap_or_default());
            to.extend_from_slice(LOCALHOST);
        }
    }
    Ok(to)
}

/// Reads a block of fields.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn byte(&mut self) -> Result<u8, FrameError> {
        let (byte, rest) = self.0.split_first().ok_or(FrameError("the fields end early"))?;
        self.0 = rest;
        Ok(*byte)
    }

    /// RFC 7541 5.1: an integer in the last `bits` of a byte, and in the bytes behind if it does not fit.
    fn integer(&mut self, bits: u32) -> Result<usize, FrameError> {
        let full = (1_usize << bits) - 1;
        let mut value = usize::from(self.byte()?) & full;
        if value < full {
            return Ok(value);
        }
        for shift in [0, 7, 14] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(FrameError("a number is too large"))
    }

    /// RFC 7541 5.2: the bytes of a string, which may be Huffman-coded.
    fn string(&mut self) -> Result<&'b [u8], FrameError> {
        let length = self.integer(7)?;
        let (string, rest) = self.0.split_at_checked(length).ok_or(FrameError("the fields end early"))?;
        self.0 = rest;
        Ok(string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn authority(value: &[u8]) -> Vec<u8> {
        [&[0x41, u8::try_from(value.len()).unwrap()], value].concat()
    }

    /// Feeds the bytes in pieces of this size.
    fn fed(bytes: &[u8], piece: usize) -> Result<Vec<u8>, FrameError> {
        let (mut filter, mut out) = (AuthorityFilter::new(), Vec::new());
        for bytes in bytes.chunks(piece) {
            filter.feed(bytes, &mut out)?;
        }
        Ok(out)
    }

    const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const PATH: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fkubelet.sock";

    #[test]
    fn a_path_becomes_localhost_and_all_else_passes() {
        // :method POST, :scheme http, a :path of its own, :authority, a name of its own.
        let rest = [&[0x83, 0x86, 0x44, 2][..], b"/a"].concat();
        let own = [&[0x40, 1][..], b"x", &[1], b"y"].concat();
        let sent = |authority: &[u8]| [&rest, authority, &own[..]].concat();
        let settings = frame(4, 0, &[0, 3, 0, 0, 0, 100]);
        let data = frame(0, END_STREAM, b"body");
        let ping = frame(6, 0, &[7; 8]);
        let expected = frame(HEADERS, END_HEADERS, &sent(&authority(LOCALHOST)));
        let expected = [HELLO, &settings, &expected, &data, &ping].concat();
        let whole = sent(&authority(PATH));
        let padded = [&[3], &[0; 5][..], &whole, &[0; 3]].concat();
        let (one, two) = whole.split_at(7);
        for headers in [
            frame(HEADERS, END_HEADERS, &whole),
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded),
            [frame(HEADERS, 0, one), frame(CONTINUATION, END_HEADERS, two)].concat(),
        ] {
            let bytes = [HELLO, &settings, &headers, &data, &ping].concat();
            for piece in [1, 2, 5, 9, 64, 4096] {
                assert_eq!(fed(&bytes, piece).as_ref(), Ok(&expected), "pieces of {piece}");
            }
        }
    }

    #[test]
    fn short_values_and_other_fields_stay() {
        let indexed = [0xbe, 0x82, 0x3f, 0xe1, 0x1f];
        for fields in [&authority(b"a:80")[..], &indexed, &[0x0f, 0x0d, 1, b'x']] {
            let bytes = [HELLO, &frame(HEADERS, END_HEADERS | END_STREAM, fields)].concat();
            assert_eq!(fed(&bytes, 3).unwrap(), bytes);
        }
    }

    #[test]
    fn frames_that_cannot_be_read_are_errors() {
        for (bytes, why) in [
            (frame(HEADERS, END_HEADERS, &[0x41, 200]), "the fields end early"),
            (frame(HEADERS, END_HEADERS, &[0xff, 0xff, 0xff, 0xff, 0xff]), "a number is too large"),
            (frame(HEADERS, END_HEADERS | PADDED, &[9, 1]), "short frame"),
            (frame(CONTINUATION, END_HEADERS, &[0x82]), "frames of fields are out of order"),
            // The frame's header alone: nothing is held for it.
            (vec![0xff, 0xff, 0xff, HEADERS, 0, 0, 0, 0, 1], "a frame of fields is too large"),
            (
                [frame(HEADERS, 0, &vec![0x82; 16_000]), frame(CONTINUATION, 0, &vec![0x82; 16_000])]
                    .concat(),
                "the fields are too large",
            ),
        ] {
            assert_eq!(fed(&[HELLO, &bytes].concat(), 1000), Err(FrameError(why)));
        }
    }
}
