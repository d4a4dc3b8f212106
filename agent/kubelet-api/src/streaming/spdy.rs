//! streaming::spdy: frames of SPDY/3.1, on the client's side. The protocol's draft 3.1, section 2.6.
//!
//! In: bytes from a runtime's streaming server, in pieces of any size. Out: events of streams; frames to
//! send. Invariants: no I/O; a piece of data is a slice of the input; a frame that a server may not send ends
//! the connection.
//!
//! Parts that container streaming does not need are missing: headers of replies are skipped, not unpacked;
//! sent headers are stored blocks, which need no dictionary; streaming servers have no flow control but
//! TCP's.
//!
//! Why no crate: none for SPDY/3.1 is maintained.

/// The control bit and the version.
const CONTROL: u16 = 0x8003;
/// A stored block of deflate has at most this.
const STORED_MAX: usize = 0xffff;
/// A frame has at most this.
const LENGTH_MAX: usize = 0xff_ffff;
const FIN: u8 = 1;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
/// Status of a reset by a peer that refuses the stream.
pub const REFUSED_STREAM: u32 = 3;

/// What came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A piece of a stream's bytes.
    Data {
        /// Id of the stream.
        stream: u32,
        /// Some of its bytes, perhaps none.
        bytes: &'a [u8],
        /// The server will send no more on it.
        fin: bool,
    },
    /// The server has taken a stream.
    Reply {
        /// Id of the stream.
        stream: u32,
        /// The server will send nothing on it.
        fin: bool,
    },
    /// Further headers of a stream, which the client ignores; or its end.
    Headers {
        /// Id of the stream.
        stream: u32,
        /// The server will send no more on it.
        fin: bool,
    },
    /// Nothing more will be sent or read on a stream.
    Reset {
        /// Id of the stream.
        stream: u32,
        /// Why; never 0.
        status: u32,
    },
    /// The server opened a stream.
    Opened {
        /// Id of the stream.
        stream: u32,
    },
    /// A ping; with an even id it is the server's, and needs a reply.
    Ping {
        /// Id of the ping.
        id: u32,
    },
    /// The server takes no more streams.
    GoAway,
}

/// Error of a server that does not speak the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    /// Another version of control frames.
    #[error("a control frame of version {0}")]
    Version(u16),
    /// A frame that is shorter or longer than its kind.
    #[error("a frame of kind {kind} with {length} bytes")]
    Length {
        /// Type of the frame.
        kind: u16,
        /// Length of the payload.
        length: usize,
    },
    /// Only the connection as a whole has number 0.
    #[error("a frame of stream 0")]
    StreamZero,
}

#[derive(Clone, Copy, Debug)]
enum Current {
    Data { stream: u32, fin: bool, left: usize },
    Control { kind: u16, fin: bool, left: usize },
}

/// Reads frames of a server.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// The head of a frame, then the first bytes of a control frame.
    small: [u8; 8],
    have: usize,
    frame: Option<Current>,
}

impl Decoder {
    /// The next event in `input`, which is shortened by the bytes read; `None` once all of it was read.
    ///
    /// # Errors
    /// The input is not SPDY; all further bytes are meaningless.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, SpdyError> {
        loop {
            match self.frame.take() {
                None => {
                    if !self.gather(8, input) {
                        return Ok(None);
                    }
                    self.frame = Some(self.begin()?);
                }
                Some(Current::Data { stream, fin, left }) => {
                    if left > 0 && input.is_empty() {
                        self.frame = Some(Current::Data { stream, fin, left });
                        return Ok(None);
                    }
                    let (bytes, rest) = input.split_at(left.min(input.len()));
                    *input = rest;
                    let left = left - bytes.len();
                    if left > 0 {
                        self.frame = Some(Current::Data { stream, fin, left });
                    }
                    return Ok(Some(Event::Data { stream, bytes, fin: fin && left == 0 }));
                }
                Some(Current::Control { kind, fin, left }) => {
                    let kept = kept(kind);
                    if self.have < kept {
                        let had = self.have;
                        let is_whole = self.gather_to(kept, input);
                        self.frame = Some(Current::Control { kind, fin, left: left - (self.have - had) });
                        if !is_whole {
                            return Ok(None);
                        }
                        continue;
                    }
                    let skipped = left.min(input.len());
                    *input = &input[skipped..];
                    if skipped < left {
                        self.frame = Some(Current::Control { kind, fin, left: left - skipped });
                        return Ok(None);
                    }
                    self.have = 0;
                    if let Some(event) = self.control(kind, fin)? {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    /// Gathers bytes until there are `wanted`, and forgets that it has them.
    fn gather(&mut self, wanted: usize, input: &mut &[u8]) -> bool {
        let is_whole = self.gather_to(wanted, input);
        if is_whole {
            self.have = 0;
        }
        is_whole
    }

    fn gather_to(&mut self, wanted: usize, input: &mut &[u8]) -> bool {
        let (bytes, rest) = input.split_at((wanted - self.have).min(input.len()));
        self.small[self.have..self.have + bytes.len()].copy_from_slice(bytes);
        *input = rest;
        self.have += bytes.len();
        self.have == wanted
    }

    fn begin(&self) -> Result<Current, SpdyError> {
        let head = self.small;
        let fin = head[4] & FIN != 0;
        let left = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
        if head[0] & 0x80 == 0 {
            let stream = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            return if stream == 0 {
                Err(SpdyError::StreamZero)
            } else {
                Ok(Current::Data { stream, fin, left })
            };
        }
        let version = u16::from_be_bytes([head[0], head[1]]);
        if version != CONTROL {
            return Err(SpdyError::Version(version & 0x7fff));
        }
        let kind = u16::from_be_bytes([head[2], head[3]]);
        let fits = match kind {
            RST_STREAM | GOAWAY => left == 8,
            PING => left == 4,
            _ => left >= kept(kind),
        };
        if fits {
            Ok(Current::Control { kind, fin, left })
        } else {
            Err(SpdyError::Length { kind, length: left })
        }
    }

    /// The event of a control frame that is whole; `None` of those that mean nothing here.
    fn control<'a>(&self, kind: u16, fin: bool) -> Result<Option<Event<'a>>, SpdyError> {
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| self.small[at + n]));
        let stream = number(0) & 0x7fff_ffff;
        if stream == 0 && matches!(kind, SYN_STREAM | SYN_REPLY | RST_STREAM | HEADERS) {
            return Err(SpdyError::StreamZero);
        }
        Ok(Some(match kind {
            SYN_STREAM => Event::Opened { stream },
            SYN_REPLY => Event::Reply { stream, fin },
            RST_STREAM => Event::Reset { stream, status: number(4) },
            HEADERS => Event::Headers { stream, fin },
            PING => Event::Ping { id: number(0) },
            GOAWAY => Event::GoAway,
            _ => return Ok(None),
        }))
    }
}

/// Number of bytes of a control frame that the reader needs.
fn kept(kind: u16) -> usize {
    match kind {
        SYN_STREAM | SYN_REPLY | HEADERS | PING => 4,
        RST_STREAM | GOAWAY => 8,
        _ => 0,
    }
}

/// Writes frames of a client. The headers of all streams are one compressed text, so a connection has one
/// encoder.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    has_begun: bool,
}

impl Encoder {
    /// Appends the opening of a stream; numbers of a client are odd and rise. Names of headers are in lower case.
    pub fn open(&mut self, stream: u32, headers: &[(&str, &str)], out: &mut Vec<u8>) {
        let mut block = Vec::new();
        let number = |n: usize, block: &mut Vec<u8>| block.extend_from_slice(&bounded(n).to_be_bytes());
        number(headers.len(), &mut block);
        for (name, value) in headers {
            for text in [name, value] {
                number(text.len(), &mut block);
                block.extend_from_slice(text.as_bytes());
            }
        }
        let packed = self.packed(&block);
        control(SYN_STREAM, 0, 10 + packed.len(), out);
        out.extend_from_slice(&stream.to_be_bytes());
        // No associated stream, the highest priority, no credential slot.
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(&packed);
    }

    /// As a stored block of deflate, and an empty one, after which an inflating reader returns all its data.
    fn packed(&mut self, block: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            // zlib's head: a window of 32 KiB, no dictionary.
            out.extend_from_slice(&[0x78, 0x01]);
        }
        for stored in block.chunks(STORED_MAX).chain([&[][..]]) {
            let length = u16::try_from(stored.len()).unwrap_or(u16::MAX);
            out.push(0);
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(&(!length).to_le_bytes());
            out.extend_from_slice(stored);
        }
        out
    }
}

fn bounded(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn control(kind: u16, flags: u8, length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&CONTROL.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(u32::from(flags) << 24 | bounded(length.min(LENGTH_MAX))).to_be_bytes());
}

/// Appends data of a stream; with `fin` it is the last.
pub fn data(stream: u32, bytes: &[u8], fin: bool, out: &mut Vec<u8>) {
    let mut pieces = bytes.chunks(LENGTH_MAX).peekable();
    let mut piece = pieces.next().unwrap_or_default();
    loop {
        let next = pieces.next();
        let flags = u32::from(fin && next.is_none()) << 24;
        out.extend_from_slice(&stream.to_be_bytes());
        out.extend_from_slice(&(flags | bounded(piece.len())).to_be_bytes());
        out.extend_from_slice(piece);
        match next {
            Some(next) => piece = next,
            None => return,
        }
    }
}

/// Appends a Ping; a client's own have odd numbers.
pub fn ping(id: u32, out: &mut Vec<u8>) {
    control(PING, 0, 4, out);
    out.extend_from_slice(&id.to_be_bytes());
}

/// Appends the reset of a stream.
pub fn reset(stream: u32, status: u32, out: &mut Vec<u8>) {
    control(RST_STREAM, 0, 8, out);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&status.to_be_bytes());
}

#[cfg(test)]
pub(super) mod tests;
