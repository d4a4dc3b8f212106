//! streaming::tunnel: port-forward's SPDY within WebSocket (`SPDY/3.1+portforward.k8s.io`).
//!
//! In: bytes of both sides. Out: the same bytes without and with WebSocket's frames. Invariants: the contents
//! of SPDY stay unread; messages need not begin or end at SPDY's frames. Upstream: apiserver/pkg/util/proxy
//! (TunnelingHandler), client-go/tools/portforward (TunnelingConnection).

use super::Bridge;
use super::websocket::{self, CloseCode, Event, Opcode};

/// Before the name of a protocol of SPDY, in the name of a protocol of WebSocket.
pub const PREFIX: &str = "SPDY/3.1+";

/// The tunnel of one port-forward.
#[derive(Clone, Debug, Default)]
pub struct Tunnel {
    client: websocket::Decoder,
    replies: websocket::Replies,
}

impl Bridge for Tunnel {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn is_open(&self) -> bool {
        true
    }

    fn client_sent(&mut self, bytes: &mut [u8], to_runtime: &mut Vec<u8>) {
        let mut input = bytes;
        while self.replies.reads() {
            match self.client.next(&mut input) {
                Ok(Some(Event::Data { text: true, .. })) => self.replies.close(CloseCode::Unsupported),
                Ok(Some(Event::Data { bytes, .. })) => to_runtime.extend_from_slice(bytes),
                Ok(Some(Event::Ping(payload))) => self.replies.pinged(payload),
                Ok(Some(Event::Pong)) => {}
                Ok(Some(Event::Close)) => self.replies.close(CloseCode::Normal),
                Ok(None) => return,
                Err(_) => self.replies.close(CloseCode::Protocol),
            }
        }
    }

    fn runtime_sent(&mut self, bytes: &[u8], to_client: &mut Vec<u8>) {
        if !self.replies.is_done() && !bytes.is_empty() {
            websocket::head(Opcode::Binary, bytes.len(), to_client);
            to_client.extend_from_slice(bytes);
        }
    }

    fn runtime_ended(&mut self, to_client: &mut Vec<u8>) {
        if self.replies.finish() {
            websocket::close(CloseCode::Normal, to_client);
        }
    }

    fn due_to_client(&mut self, to_client: &mut Vec<u8>) {
        self.replies.due(to_client);
    }

    fn due_to_runtime(&mut self, _: &mut Vec<u8>) {}

    fn is_done(&self) -> bool {
        self.replies.is_done()
    }
}

#[cfg(test)]
mod tests;
