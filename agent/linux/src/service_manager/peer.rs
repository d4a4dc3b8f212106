//! A D-Bus peer that is no bus: one connection, one call at a time.
//!
//! In: a socket; calls. Out: answers of the type that is asked for. PID 1 names itself in what it sends over its own socket
//! (`sender` is `org.freedesktop.systemd1`), where a bus would put a unique name, and zbus ends a connection over such a
//! header: so headers are read here, and zbus does the rest. Invariants: a message has a bound; one that is no answer to the
//! call is passed over. D-Bus Specification, "Message Protocol" and "Authentication Protocol".

use std::fmt::Write;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use zbus::message::Message;
use zbus::wire::Endian;
use zbus::wire::serialized::{Context, Data};
use zbus::{DynamicType, OwnedVariant, Signature, Type};

/// More is not read of one message, bytes: some thousand jobs.
const MESSAGE_MAX: usize = 4 << 20;
/// More is not read of a line of the authentication, bytes.
const LINE_MAX: usize = 256;
/// The part of a header whose length is fixed, bytes.
const FIXED: usize = 16;
/// Where the header's fields begin: the length of their array.
const FIELDS_AT: usize = 12;
/// Types of messages.
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
/// Codes of header fields.
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const SIGNATURE: u8 = 8;

/// Why a peer did not answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The socket.
    #[error("its socket")]
    Socket(#[from] io::Error),
    /// It does not let this user in.
    #[error("it answered {0:?} to the authentication")]
    Refused(String),
    /// What it sent is no message.
    #[error("it sent what is no message: {0}")]
    Malformed(&'static str),
    /// The call or its answer does not fit its types.
    #[error("a message's values")]
    Values(#[from] zbus::Error),
    /// An error of the method.
    #[error("it answered with the error {0}")]
    Failed(String),
}

/// A connection.
pub(super) struct Peer(UnixStream);

/// An object's method.
pub(super) struct Method {
    pub(super) destination: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
    pub(super) member: &'static str,
}

struct Answer {
    kind: u8,
    reply_to: Option<u32>,
    error: String,
    signature: String,
    body: Data<'static, 'static>,
}

impl Peer {
    /// Connects and says who asks: the user of this process (`EXTERNAL`).
    ///
    /// # Errors
    /// Nobody listens, or this user is not let in.
    pub(super) async fn connect(socket: &Path) -> Result<Peer, PeerError> {
        let mut peer = Peer(UnixStream::connect(socket).await?);
        let mut hello = String::from("\0AUTH EXTERNAL ");
        for digit in nix::unistd::geteuid().to_string().bytes() {
            // Writing to a string does not fail.
            let _ = write!(hello, "{digit:02x}");
        }
        hello.push_str("\r\n");
        peer.0.write_all(hello.as_bytes()).await?;
        let answer = peer.line().await?;
        if !answer.starts_with("OK ") {
            return Err(PeerError::Refused(answer));
        }
        peer.0.write_all(b"BEGIN\r\n").await?;
        Ok(peer)
    }

    async fn line(&mut self) -> Result<String, PeerError> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if line.len() == LINE_MAX {
                return Err(PeerError::Malformed("a line without an end"));
            }
            line.push(self.0.read_u8().await?);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Calls a method and waits for its answer; the caller bounds the wait.
    ///
    /// # Errors
    /// The socket's, the method's, or an answer of other types.
    pub(super) async fn call<B, T>(&mut self, method: &Method, body: &B) -> Result<T, PeerError>
    where
        B: Serialize + DynamicType + Sync,
        T: DeserializeOwned + Type,
    {
        let call = Message::method_call(method.path, method.member).interface(method.interface);
        // Seen of systemd 257: calls that name none are not answered.
        let call = call.destination(method.destination).build(body)?;
        let serial = call.primary_header().serial_num().get();
        self.0.write_all(call.data().bytes()).await?;
        let answer = loop {
            let answer = self.message().await?;
            if answer.reply_to == Some(serial) {
                break answer;
            }
        };
        match answer.kind {
            METHOD_RETURN if answer.signature == T::SIGNATURE.to_string_no_parens() => {
                Ok(answer.body.deserialize()?.0)
            }
            METHOD_RETURN => Err(PeerError::Malformed("an answer of other types")),
            ERROR => Err(PeerError::Failed(answer.error)),
            _ => Err(PeerError::Malformed("an answer that is none")),
        }
    }

    async fn message(&mut self) -> Result<Answer, PeerError> {
        let mut bytes = vec![0; FIXED];
        self.0.read_exact(&mut bytes).await?;
        let (endian, number): (_, fn([u8; 4]) -> u32) = match bytes[0] {
            b'l' => (Endian::Little, u32::from_le_bytes),
            b'B' => (Endian::Big, u32::from_be_bytes),
            _ => return Err(PeerError::Malformed("an unknown order of bytes")),
        };
        let at = |from: usize| -> Result<usize, PeerError> {
            let word = bytes[from..from + 4].try_into().unwrap_or_default();
            usize::try_from(number(word)).map_err(|_| PeerError::Malformed("a length beyond any"))
        };
        let (body, fields) = (at(4)?, at(FIELDS_AT)?);
        if body > MESSAGE_MAX || fields > MESSAGE_MAX {
            return Err(PeerError::Malformed("a message that is too long"));
        }
        // The body begins at a multiple of eight.
        let body_at = (FIXED + fields).next_multiple_of(8);
        let kind = bytes[1];
        bytes.resize(body_at + body, 0);
        self.0.read_exact(&mut bytes[FIXED..]).await?;
        let body = Data::new(bytes.split_off(body_at), Context::new(endian, 0));
        bytes.drain(..FIELDS_AT);
        let header = Data::new(bytes, Context::new(endian, FIELDS_AT));
        let fields: Vec<(u8, OwnedVariant)> = header.deserialize()?.0;
        let mut answer =
            Answer { kind, reply_to: None, error: String::new(), signature: String::new(), body };
        for (code, value) in fields {
            match code {
                ERROR_NAME => answer.error = String::try_from(value)?,
                REPLY_SERIAL => answer.reply_to = Some(u32::try_from(value)?),
                SIGNATURE => answer.signature = Signature::try_from(value)?.to_string_no_parens(),
                _ => {}
            }
        }
        Ok(answer)
    }
}
