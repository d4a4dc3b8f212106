//! streaming::channels: translates WebSocket `v5.channel.k8s.io` of exec and attach to SPDY
//! `v4.channel.k8s.io` for the runtime.
//!
//! In: bytes of both sides. Out: bytes for both sides. Each message of the WebSocket begins with the number
//! of its channel: 0 stdin, 1 stdout, 2 stderr, 3 the status, 4 sizes of the terminal; version 5 adds 255,
//! whose one byte names a channel that its sender has closed. Invariants: no byte of a channel is lost,
//! doubled or out of order; the client gets a status exactly once, after all output, and a success only if
//! the runtime sent one. Upstream: apiserver/pkg/util/proxy (StreamTranslatorHandler),
//! client-go/tools/remotecommand.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde_json::json;

use super::websocket::{CloseCode, Opcode};
use super::{Bridge, StreamOptions, spdy, websocket};

/// The WebSocket protocol of the client.
pub const PROTOCOL: &str = "v5.channel.k8s.io";
/// Protocol of the stream to the runtime.
pub const RUNTIME_PROTOCOL: &str = "v4.channel.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
const CHANNELS: [(u8, &str); 5] =
    [(STATUS, "error"), (STDIN, "stdin"), (STDOUT, "stdout"), (STDERR, "stderr"), (RESIZE, "resize")];
/// Message to the client if the runtime never reports the end of a command.
const NO_END: &str =
    "the command has closed its output and its input is not taken; the runtime does not say how it ended";
/// A status is a few hundred bytes.
const STATUS_MAX: usize = 64 * 1024;

/// Where in a message the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessagePosition {
    /// The number of the channel comes next.
    Channel,
    /// Bytes of a channel.
    Of(u8),
    /// The number of the channel that is closed comes next.
    Closed,
    /// Nothing of the rest counts.
    Rest,
}

/// A stream of the runtime's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stream {
    /// Id of the stream; 0 if the client did not request it.
    id: u32,
    replied: bool,
    /// Nothing more is sent on it.
    closed: bool,
    /// Nothing more arrives on it.
    ended: bool,
}

/// The translator of one exec or attach.
#[derive(Clone, Debug)]
pub struct Translator {
    client: websocket::Decoder,
    runtime: spdy::Decoder,
    encoder: spdy::Encoder,
    /// Streams by channel number.
    streams: [Stream; 5],
    at: MessagePosition,
    status: Vec<u8>,
    replies: websocket::Replies,
    ping: Option<u32>,
    pings: u32,
    refused: Option<u32>,
    /// The runtime has closed the input.
    input_unwanted: bool,
}

impl Translator {
    /// A translator for a client that requested these channels.
    #[must_use]
    pub fn new(options: &StreamOptions) -> Translator {
        let wanted = |channel: u8| match channel {
            STDIN => options.stdin,
            STDOUT => options.stdout,
            STDERR => options.stderr && !options.tty,
            RESIZE => options.tty,
            _ => true,
        };
        let mut streams = [Stream::default(); 5];
        let mut id = 1;
        for (channel, _) in CHANNELS.iter().filter(|(channel, _)| wanted(*channel)) {
            streams[usize::from(*channel)].id = id;
            id += 2;
        }
        Translator {
            client: websocket::Decoder::default(),
            runtime: spdy::Decoder::default(),
            encoder: spdy::Encoder::default(),
            streams,
            at: MessagePosition::Channel,
            status: Vec::new(),
            replies: websocket::Replies::default(),
            ping: None,
            pings: 0,
            refused: None,
            input_unwanted: false,
        }
    }

    /// Confirms the stream to the client: an empty message on its first output channel.
    pub fn greet(&self, to_client: &mut Vec<u8>) {
        let first = [STDOUT, STDERR].into_iter().find(|c| self.streams[usize::from(*c)].id != 0);
        message(first.unwrap_or(STATUS), &[], to_client);
    }

    /// Ends a stream that the runtime could not be led to.
    pub fn fail(&mut self, problem: &str, to_client: &mut Vec<u8>) {
        self.tell(&internal_error(problem), to_client);
    }

    fn by_id(&mut self, id: u32) -> Option<(u8, &mut Stream)> {
        let at = self.streams.iter().position(|s| s.id == id && id != 0)?;
        Some((u8::try_from(at).ok()?, &mut self.streams[at]))
    }

    fn part(&mut self, first: bool, bytes: &[u8], to_runtime: &mut Vec<u8>) {
        let mut bytes = bytes;
        if first {
            self.at = MessagePosition::Channel;
        }
        if self.at == MessagePosition::Channel
            && let Some((channel, rest)) = bytes.split_first()
        {
            self.at = if *channel == CLOSE { MessagePosition::Closed } else { MessagePosition::Of(*channel) };
            bytes = rest;
        }
        match (self.at, bytes.first()) {
            (MessagePosition::Of(channel @ (STDIN | RESIZE)), Some(_)) => {
                let stream = self.streams[usize::from(channel)];
                if stream.id != 0 && !stream.closed {
                    spdy::data(stream.id, bytes, false, to_runtime);
                }
            }
            (MessagePosition::Closed, Some(channel)) => {
                if matches!(*channel, STDIN | RESIZE) {
                    self.close_channel(*channel, to_runtime);
                }
                self.at = MessagePosition::Rest;
            }
            _ => {}
        }
    }

    fn close_channel(&mut self, channel: u8, to_runtime: &mut Vec<u8>) {
        let stream = &mut self.streams[usize::from(channel)];
        if stream.id != 0 && !std::mem::replace(&mut stream.closed, true) {
            spdy::data(stream.id, &[], true, to_runtime);
        }
    }

    fn happened(&mut self, event: spdy::Event<'_>, to_client: &mut Vec<u8>) {
        let (id, fin) = match event {
            spdy::Event::Data { stream, bytes, fin } => {
                let channel = self.by_id(stream).filter(|(_, s)| !s.ended).map(|(channel, _)| channel);
                match channel {
                    Some(channel @ (STDOUT | STDERR)) if !bytes.is_empty() => {
                        message(channel, bytes, to_client)
                    }
                    Some(STATUS) => {
                        let room = STATUS_MAX.saturating_sub(self.status.len());
                        self.status.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    }
                    _ => {}
                }
                (stream, fin)
            }
            spdy::Event::Reply { stream, fin } => {
                if let Some((_, stream)) = self.by_id(stream) {
                    stream.replied = true;
                }
                (stream, fin)
            }
            spdy::Event::Headers { stream, fin } => (stream, fin),
            spdy::Event::Reset { stream, .. } => {
                if let Some((_, stream)) = self.by_id(stream) {
                    (stream.replied, stream.closed) = (true, true);
                }
                (stream, true)
            }
            spdy::Event::Opened { stream } => {
                self.refused = Some(stream);
                return;
            }
            spdy::Event::Ping { id } => {
                if id % 2 == 0 {
                    self.ping = Some(id);
                }
                return;
            }
            spdy::Event::GoAway => return,
        };
        if !fin {
            return;
        }
        let Some((channel, stream)) = self.by_id(id) else { return };
        stream.ended = true;
        if channel == STDIN && !stream.closed {
            self.input_unwanted = true;
        }
        if [STATUS, STDOUT, STDERR].into_iter().all(|channel| self.has_ended(channel)) {
            let words = client_status(&self.status, true);
            self.tell(&words, to_client);
        }
    }

    /// True if the channel has ended, or was not requested.
    fn has_ended(&self, channel: u8) -> bool {
        let stream = self.streams[usize::from(channel)];
        stream.id == 0 || stream.ended
    }

    fn tell(&mut self, status: &serde_json::Value, to_client: &mut Vec<u8>) {
        if self.replies.finish() {
            message(STATUS, status.to_string().as_bytes(), to_client);
            websocket::close(CloseCode::Normal, to_client);
        }
    }
}

impl Bridge for Translator {
    fn begin(&mut self, to_runtime: &mut Vec<u8>) {
        for (channel, name) in CHANNELS {
            let id = self.streams[usize::from(channel)].id;
            if id != 0 {
                self.encoder.open(id, &[("streamtype", name)], to_runtime);
            }
        }
    }

    /// The runtime drops data until it has accepted all streams.
    fn is_open(&self) -> bool {
        self.streams.iter().all(|s| s.id == 0 || s.replied)
    }

    fn client_sent(&mut self, bytes: &mut [u8], to_runtime: &mut Vec<u8>) {
        let mut input = bytes;
        while self.replies.reads() {
            match self.client.next(&mut input) {
                Ok(Some(websocket::Event::Data { first, bytes, .. })) => self.part(first, bytes, to_runtime),
                Ok(Some(websocket::Event::Ping(payload))) => {
                    // The runtime has its own idle timeout.
                    spdy::ping(self.pings * 2 + 1, to_runtime);
                    self.pings = (self.pings + 1) % (1 << 30);
                    self.replies.pinged(payload);
                }
                Ok(Some(websocket::Event::Pong)) => {}
                Ok(Some(websocket::Event::Close)) => self.replies.close(CloseCode::Normal),
                Ok(None) => return,
                Err(_) => self.replies.close(CloseCode::Protocol),
            }
        }
    }

    fn runtime_sent(&mut self, bytes: &[u8], to_client: &mut Vec<u8>) {
        let mut input = bytes;
        while !self.replies.is_done() {
            match self.runtime.next(&mut input) {
                Ok(Some(event)) => self.happened(event, to_client),
                Ok(None) => return,
                Err(error) => {
                    let problem = format!("the runtime's streaming server sent {error}");
                    self.tell(&internal_error(&problem), to_client);
                }
            }
        }
    }

    fn runtime_ended(&mut self, to_client: &mut Vec<u8>) {
        let words = client_status(&self.status, false);
        self.tell(&words, to_client);
    }

    fn awaits_end(&self) -> bool {
        let asked = [STDOUT, STDERR].into_iter().any(|channel| self.streams[usize::from(channel)].id != 0);
        asked && self.has_ended(STDOUT) && self.has_ended(STDERR) && !self.has_ended(STATUS)
    }

    fn give_up(&mut self, to_client: &mut Vec<u8>) {
        // What came of a status may be only its beginning.
        self.tell(&internal_error(NO_END), to_client);
    }

    fn due_to_client(&mut self, to_client: &mut Vec<u8>) {
        self.replies.due(to_client);
    }

    fn due_to_runtime(&mut self, to_runtime: &mut Vec<u8>) {
        if let Some(id) = self.ping.take() {
            spdy::ping(id, to_runtime);
        }
        if let Some(stream) = self.refused.take() {
            spdy::reset(stream, spdy::REFUSED_STREAM, to_runtime);
        }
        if std::mem::take(&mut self.input_unwanted) {
            self.close_channel(STDIN, to_runtime);
        }
    }

    fn is_done(&self) -> bool {
        self.replies.is_done()
    }
}

fn message(channel: u8, bytes: &[u8], to_client: &mut Vec<u8>) {
    websocket::head(Opcode::Binary, bytes.len() + 1, to_client);
    to_client.push(channel);
    to_client.extend_from_slice(bytes);
}

/// The client's status, from the contents of the runtime's error stream; `ended`: the runtime ended that
/// stream.
fn client_status(message: &[u8], ended: bool) -> serde_json::Value {
    if message.is_empty() {
        return if ended {
            json!({"metadata": {}, "status": "Success"})
        } else {
            internal_error("the runtime's connection ended before it told how the stream ended")
        };
    }
    let text = String::from_utf8_lossy(message);
    let status: Status = match serde_json::from_slice(message) {
        Ok(status) => status,
        Err(error) => return internal_error(&format!("error stream protocol error: {error} in {text:?}")),
    };
    match status.status.as_deref() {
        Some("Success") => json!({"metadata": {}, "status": "Success"}),
        Some("Failure") if status.reason.as_deref() == Some("NonZeroExitCode") => exit_status(&status),
        Some("Failure") => internal_error(&status.message.unwrap_or_default()),
        _ => internal_error("error stream protocol error: unknown error"),
    }
}

fn exit_status(status: &Status) -> serde_json::Value {
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let mut codes = causes.filter(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let Some(cause) = codes.next() else {
        return internal_error("error stream protocol error: no ExitCode cause given");
    };
    let code = cause.message.clone().unwrap_or_default();
    let Ok(code) = code.parse::<u8>() else {
        return internal_error(&format!("error stream protocol error: invalid exit code value {code:?}"));
    };
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: command terminated with exit code {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

fn internal_error(problem: &str) -> serde_json::Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
        "message": format!("Internal error occurred: {problem}"),
        "details": {"causes": [{"message": problem}]},
    })
}

#[cfg(test)]
mod tests;
