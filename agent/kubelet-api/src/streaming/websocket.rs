//! streaming::websocket: frames of WebSocket, on the server's side. RFC 6455, section 5.
//!
//! In: bytes in pieces of any size. Out: pieces of messages, control frames; heads of frames to send.
//! Invariants: no I/O; a piece is a slice of the input, so a message of any size needs no memory; a byte that
//! a client may not send ends the stream. The opening handshake belongs to agent-server (`api::bridged`);
//! compression is never negotiated.
//!
//! Why no crate: tungstenite, soketto and fastwebsockets read and write a stream themselves, and the one crate without I/O
//! (websocket-sans-io) has a single release. tungstenite is the other end in the tests.

/// Most bytes of a control frame's payload.
const CONTROL_MAX: usize = 125;
/// Longest head of a client's frame: two bytes, eight of length, four of mask.
const HEAD_MAX: usize = 14;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Goes on with a message.
    Continuation,
    /// Begins a message of text.
    Text,
    /// Begins a message of bytes.
    Binary,
    /// No more will come.
    Close,
    /// Are you there?
    Ping,
    /// Opcode of an answer to a ping.
    Pong,
}

impl Opcode {
    fn of(nibble: u8) -> Option<Opcode> {
        Some(match nibble {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    fn nibble(self) -> u8 {
        match self {
            Opcode::Continuation => 0,
            Opcode::Text => 1,
            Opcode::Binary => 2,
            Opcode::Close => 8,
            Opcode::Ping => 9,
            Opcode::Pong => 10,
        }
    }

    fn is_control(self) -> bool {
        self.nibble() >= 8
    }
}

/// Reasons to close, section 7.4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// All is done.
    Normal = 1000,
    /// Close code: the peer broke the protocol.
    Protocol = 1002,
    /// The peer sent a kind of message that is not wanted here.
    Unsupported = 1003,
}

/// What came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A piece of a message, without its mask.
    Data {
        /// The message begins here.
        first: bool,
        /// True for a text message.
        text: bool,
        /// Some of its bytes, perhaps none.
        bytes: &'a [u8],
    },
    /// To be answered with the same bytes.
    Ping(Vec<u8>),
    /// A pong, requested or not.
    Pong,
    /// The client will send no more.
    Close,
}

/// Error of a client that does not speak the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebSocketError {
    /// Extensions that were not agreed on.
    #[error("a frame with reserved bits")]
    Reserved,
    /// No such kind of frame.
    #[error("a frame of unknown kind {0}")]
    Opcode(u8),
    /// Section 5.1: a server must not take it.
    #[error("a frame of a client without a mask")]
    Unmasked,
    /// Section 5.5.
    #[error("a control frame that is too long or in pieces")]
    Control,
    /// A continuation without a message, or a message within another one.
    #[error("a frame that does not belong to its message")]
    Order,
    /// The highest bit of a length must not be set.
    #[error("a frame longer than there can be")]
    Length,
}

/// The frame whose payload is being read.
#[derive(Clone, Copy, Debug)]
struct Current {
    opcode: Opcode,
    left: u64,
    mask: [u8; 4],
    /// How many bytes of payload have come, modulo 4.
    at: usize,
    first: bool,
}

/// Reads frames of a client.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    head: [u8; HEAD_MAX],
    have: usize,
    frame: Option<Current>,
    /// The type of an unfinished message: `Some(true)` for text.
    message: Option<bool>,
    fin: bool,
    control: Vec<u8>,
}

impl Decoder {
    /// The next event in `input`, which is shortened by the bytes read, and unmasked on the way; `None` once
    /// all of it was read.
    ///
    /// # Errors
    /// The input is not WebSocket; all further bytes are meaningless.
    pub fn next<'a>(&mut self, input: &mut &'a mut [u8]) -> Result<Option<Event<'a>>, WebSocketError> {
        loop {
            let Some(mut frame) = self.frame.take() else {
                if !self.read_head(input)? {
                    return Ok(None);
                }
                continue;
            };
            if frame.left > 0 && input.is_empty() {
                self.frame = Some(frame);
                return Ok(None);
            }
            let take = usize::try_from(frame.left).unwrap_or(usize::MAX).min(input.len());
            let (piece, rest) = std::mem::take(input).split_at_mut(take);
            *input = rest;
            for byte in piece.iter_mut() {
                *byte ^= frame.mask[frame.at];
                frame.at = (frame.at + 1) % 4;
            }
            frame.left -= u64::try_from(take).unwrap_or(frame.left);
            let first = std::mem::take(&mut frame.first);
            let is_whole = frame.left == 0;
            if frame.opcode.is_control() {
                self.control.extend_from_slice(piece);
                if is_whole {
                    return Ok(Some(self.control_event(frame.opcode)));
                }
                self.frame = Some(frame);
                continue;
            }
            let text = self.message.unwrap_or_default();
            if !is_whole {
                self.frame = Some(frame);
            } else if self.fin {
                self.message = None;
            }
            return Ok(Some(Event::Data { first, text, bytes: piece }));
        }
    }

    fn control_event<'a>(&mut self, opcode: Opcode) -> Event<'a> {
        let payload = std::mem::take(&mut self.control);
        match opcode {
            Opcode::Ping => Event::Ping(payload),
            Opcode::Pong => Event::Pong,
            _ => Event::Close,
        }
    }

    /// Reads bytes of a frame's head; true once it is complete.
    fn read_head(&mut self, input: &mut &mut [u8]) -> Result<bool, WebSocketError> {
        while let Some((first, rest)) = std::mem::take(input).split_first_mut() {
            self.head[self.have] = *first;
            self.have += 1;
            *input = rest;
            if self.have >= 2 && self.have == self.wanted()? {
                self.have = 0;
                self.begin()?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Length of the head that its first two bytes promise.
    fn wanted(&self) -> Result<usize, WebSocketError> {
        let [zero, one, ..] = self.head;
        if zero & 0x70 != 0 {
            return Err(WebSocketError::Reserved);
        }
        let opcode = Opcode::of(zero & 0xf).ok_or(WebSocketError::Opcode(zero & 0xf))?;
        if one & 0x80 == 0 {
            return Err(WebSocketError::Unmasked);
        }
        let length = usize::from(one & 0x7f);
        if opcode.is_control() && (length > CONTROL_MAX || zero & 0x80 == 0) {
            return Err(WebSocketError::Control);
        }
        Ok(match length {
            126 => 8,
            127 => 14,
            _ => 6,
        })
    }

    fn begin(&mut self) -> Result<(), WebSocketError> {
        let head = self.head;
        let (fin, nibble) = (head[0] & 0x80 != 0, head[0] & 0xf);
        let opcode = Opcode::of(nibble).ok_or(WebSocketError::Opcode(nibble))?;
        let (left, mask) = match head[1] & 0x7f {
            126 => (u64::from(u16::from_be_bytes([head[2], head[3]])), [head[4], head[5], head[6], head[7]]),
            127 => {
                let length = [head[2], head[3], head[4], head[5], head[6], head[7], head[8], head[9]];
                (u64::from_be_bytes(length), [head[10], head[11], head[12], head[13]])
            }
            length => (u64::from(length), [head[2], head[3], head[4], head[5]]),
        };
        if left >> 63 != 0 {
            return Err(WebSocketError::Length);
        }
        let first = matches!(opcode, Opcode::Text | Opcode::Binary);
        match (opcode, self.message) {
            (Opcode::Continuation, None) | (Opcode::Text | Opcode::Binary, Some(_)) => {
                return Err(WebSocketError::Order);
            }
            (Opcode::Text | Opcode::Binary, None) => self.message = Some(opcode == Opcode::Text),
            _ => {}
        }
        if !opcode.is_control() {
            self.fin = fin;
        }
        self.frame = Some(Current { opcode, left, mask, at: 0, first });
        Ok(())
    }
}

/// What a server owes its client in addition to messages: an answer to the newest ping (RFC 6455, 5.5.3), and a Close.
#[derive(Clone, Debug, Default)]
pub struct Replies {
    pong: Option<Vec<u8>>,
    close: Option<CloseCode>,
    is_done: bool,
}

impl Replies {
    /// The client sent a ping: a pong is due.
    pub fn pinged(&mut self, payload: Vec<u8>) {
        self.pong = Some(payload);
    }

    /// Starts the close of the stream: the client's further data does not count.
    pub fn close(&mut self, code: CloseCode) {
        self.close = Some(code);
    }

    /// What the client sends counts.
    #[must_use]
    pub fn reads(&self) -> bool {
        !self.is_done && self.close.is_none()
    }

    /// True if the Close was sent.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Marks the Close as sent; false if it was sent before.
    pub fn finish(&mut self) -> bool {
        !std::mem::replace(&mut self.is_done, true)
    }

    /// Appends due replies.
    pub fn due(&mut self, out: &mut Vec<u8>) {
        if self.is_done {
            return;
        }
        if let Some(payload) = self.pong.take() {
            pong(&payload, out);
        }
        if let Some(code) = self.close.take() {
            close(code, out);
            self.is_done = true;
        }
    }
}

/// Appends the head of a complete frame of a server, for `length` bytes of payload.
pub fn head(opcode: Opcode, length: usize, out: &mut Vec<u8>) {
    out.push(0x80 | opcode.nibble());
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ 0..=125), _) => out.push(length),
        (_, Ok(length)) => {
            out.push(126);
            out.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// Appends a Close.
pub fn close(code: CloseCode, out: &mut Vec<u8>) {
    head(Opcode::Close, 2, out);
    out.extend_from_slice(&(code as u16).to_be_bytes());
}

/// Appends the answer to a Ping.
pub fn pong(payload: &[u8], out: &mut Vec<u8>) {
    let payload = &payload[..payload.len().min(CONTROL_MAX)];
    head(Opcode::Pong, payload.len(), out);
    out.extend_from_slice(payload);
}

#[cfg(test)]
pub(super) mod tests;
