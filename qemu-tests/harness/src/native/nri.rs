//! A plugin of the Node Resource Interface (NRI, `nri.pkg.api.v1alpha1`), as far as a case needs one: it registers with the
//! runtime, sees each container before it is made, and gives it a variable.
//!
//! The socket carries connections in frames (number and length, each four bytes, big endian): 1 for calls of the runtime,
//! 2 for calls of the plugin. In each of them is ttrpc: a header of ten bytes (length, stream, kind, flags), then a protobuf
//! message. In: the socket's path. Out: names of containers.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Calls of the runtime.
const OF_RUNTIME: u32 = 1;
/// Calls of the plugin.
const OF_PLUGIN: u32 = 2;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
/// The bit of the event that the plugin subscribes to: `CREATE_CONTAINER` is 4, and bits count from 1.
const CREATE_CONTAINER: u8 = 1 << 3;
/// Longest accepted frame, bytes.
const FRAME_MAX: usize = 8 << 20;
const LIMIT: Duration = Duration::from_secs(30);

/// A registered plugin; it leaves when it is dropped.
pub struct Plugin {
    socket: UnixStream,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Plugin {
    /// Registers with the runtime behind `socket`. Later containers get the variable.
    ///
    /// # Errors
    /// There is no runtime, or it refuses the plugin.
    pub fn register(socket: &Path, variable: (&'static str, &'static str)) -> Result<Plugin> {
        let stream = UnixStream::connect(socket).with_context(|| format!("connect {}", socket.display()))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut link = Link { stream: stream.try_clone()?, held: BTreeMap::new() };
        let who = [text(1, "e2e"), text(2, "10")].concat();
        let call =
            [text(1, "nri.pkg.api.v1alpha1.Runtime"), text(2, "RegisterPlugin"), bytes(3, &who)].concat();
        link.send(OF_PLUGIN, &Message { stream: 1, kind: REQUEST, body: call })?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let names = Arc::clone(&seen);
        // The runtime counts the plugin in once it has answered all three.
        let mut left = vec!["RegisterPlugin", "Configure", "Synchronize"];
        while !left.is_empty() {
            let (connection, message) = link.receive().context("the runtime has not taken the plugin")?;
            let done = if connection == OF_PLUGIN {
                ensure!(message.kind == RESPONSE, "no answer: {message:?}");
                let status = field(&message.body, 1)?.unwrap_or_default();
                ensure!(status.is_empty(), "the runtime refuses: {}", String::from_utf8_lossy(status));
                "RegisterPlugin".to_owned()
            } else {
                link.answer(&message, variable, &names)?
            };
            left.retain(|call| *call != done);
        }
        stream.set_read_timeout(None)?;
        link.stream.set_read_timeout(None)?;
        std::thread::Builder::new().name("nri".into()).spawn(move || {
            // The thread ends with the connection.
            while let Ok((_, message)) = link.receive() {
                if link.answer(&message, variable, &names).is_err() {
                    break;
                }
            }
        })?;
        Ok(Plugin { socket: stream, seen })
    }

    /// Names of the containers that the runtime has reported.
    #[must_use]
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // The runtime may have left first.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

#[derive(Debug)]
struct Message {
    stream: u32,
    kind: u8,
    body: Vec<u8>,
}

struct Link {
    stream: UnixStream,
    /// The unread data of each connection; frames cut messages anywhere.
    held: BTreeMap<u32, Vec<u8>>,
}

impl Link {
    fn send(&mut self, connection: u32, message: &Message) -> Result<()> {
        let length = u32::try_from(message.body.len())?;
        let mut all = [connection, length + 10, length, message.stream].map(u32::to_be_bytes).concat();
        all.extend([message.kind, 0]);
        all.extend(&message.body);
        self.stream.write_all(&all).context("write to the runtime")
    }

    fn receive(&mut self) -> Result<(u32, Message)> {
        loop {
            for (connection, held) in &mut self.held {
                if let Some(message) = whole(held) {
                    return Ok((*connection, message));
                }
            }
            let mut head = [0; 8];
            self.stream.read_exact(&mut head).context("read from the runtime")?;
            let (connection, length) = (number(&head[..4]), usize::try_from(number(&head[4..]))?);
            ensure!(length <= FRAME_MAX, "a frame of {length} bytes");
            let held = self.held.entry(connection).or_default();
            let from = held.len();
            held.resize(from + length, 0);
            self.stream.read_exact(&mut held[from..]).context("read from the runtime")?;
        }
    }

    /// Answers a call of the runtime; returns its name.
    fn answer(
        &mut self,
        call: &Message,
        variable: (&str, &str),
        names: &Mutex<Vec<String>>,
    ) -> Result<String> {
        ensure!(call.kind == REQUEST, "no call: {call:?}");
        let name = String::from_utf8(field(&call.body, 2)?.context("a call without a name")?.to_vec())?;
        let asked = field(&call.body, 3)?.unwrap_or_default();
        let answer = match name.as_str() {
            "Configure" => vec![2 << 3, CREATE_CONTAINER],
            "CreateContainer" => {
                let container = field(asked, 2)?.context("a container")?;
                let called = String::from_utf8_lossy(field(container, 3)?.context("its name")?).into_owned();
                names.lock().unwrap_or_else(PoisonError::into_inner).push(called);
                let pair = [text(1, variable.0), text(2, variable.1)].concat();
                bytes(1, &bytes(4, &pair))
            }
            _ => Vec::new(),
        };
        let body = bytes(2, &answer);
        self.send(OF_RUNTIME, &Message { stream: call.stream, kind: RESPONSE, body })?;
        Ok(name)
    }
}

/// Removes the first complete message from a connection's data.
fn whole(held: &mut Vec<u8>) -> Option<Message> {
    let length = usize::try_from(number(held.get(..4)?)).ok()?;
    let body = held.get(10..10 + length)?.to_vec();
    let message = Message { stream: number(&held[4..8]), kind: held[8], body };
    held.drain(..10 + length);
    Some(message)
}

fn number(four: &[u8]) -> u32 {
    four.iter().fold(0, |n, byte| n << 8 | u32::from(*byte))
}

/// A field with a length; the content of the first one of that number.
fn field(message: &[u8], wanted: u64) -> Result<Option<&[u8]>> {
    let mut rest = message;
    while !rest.is_empty() {
        let (key, after) = varint(rest)?;
        let (value, after) = varint(after)?;
        match key & 7 {
            0 => rest = after,
            2 => {
                let length = usize::try_from(value)?;
                let content = after.get(..length).context("a field that is cut off")?;
                if key >> 3 == wanted {
                    return Ok(Some(content));
                }
                rest = &after[length..];
            }
            kind => bail!("a field of kind {kind}"),
        }
    }
    Ok(None)
}

fn varint(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((value, &bytes[index + 1..]));
        }
    }
    bail!("a number that is cut off")
}

fn text(field: u8, value: &str) -> Vec<u8> {
    bytes(field, value.as_bytes())
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    let mut left = value.len();
    while left >= 0x80 {
        out.push(u8::try_from(left & 0x7f).unwrap_or_default() | 0x80);
        left >>= 7;
    }
    out.push(u8::try_from(left).unwrap_or_default());
    out.extend(value);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_wherever_frames_cut_them() {
        let mut held = Vec::new();
        let all: Vec<u8> = [0, 0, 0, 2, 0, 0, 0, 7, 2, 0, 8, 9].into_iter().chain([0, 0, 0, 0]).collect();
        let mut found = Vec::new();
        for byte in all {
            held.push(byte);
            found.extend(whole(&mut held));
        }
        assert_eq!(held.len(), 4);
        let [Message { stream: 7, kind: RESPONSE, body }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(body, &[8, 9]);
    }

    #[test]
    fn fields_are_found_behind_numbers_and_long_ones() {
        let long = "x".repeat(300);
        let message = [vec![1 << 3, 0x96, 1], text(2, &long), text(3, "y")].concat();
        assert_eq!(field(&message, 2).unwrap(), Some(long.as_bytes()));
        assert_eq!(field(&message, 3).unwrap(), Some(&b"y"[..]));
        assert_eq!(field(&message, 4).unwrap(), None);
        assert!(field(&message[..10], 3).is_err() && field(&[5 << 3 | 5, 0], 3).is_err());
    }
}
