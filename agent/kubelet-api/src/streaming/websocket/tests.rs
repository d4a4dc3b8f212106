//! Frames of a client, whole and in pieces; a client of a few lines, which the other tests use too; a client by others (tungstenite).

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use proptest::collection::vec;
use proptest::prelude::*;
use tungstenite::Message;
use tungstenite::protocol::{Role, WebSocket};

use super::*;

/// A client's frame: masked.
pub(in crate::streaming) fn frame(opcode: u8, fin: bool, mask: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut out = vec![u8::from(fin) << 7 | opcode];
    match payload.len() {
        n @ 0..=125 => out.push(0x80 | u8::try_from(n).unwrap()),
        n @ 126..=0xffff => {
            out.push(0xfe);
            out.extend_from_slice(&u16::try_from(n).unwrap().to_be_bytes());
        }
        n => {
            out.push(0xff);
            out.extend_from_slice(&(n as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    out
}

/// Opcode and payload of each frame of a server, which must be whole and unmasked.
pub(in crate::streaming) fn server_frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [zero, one, rest @ ..] = bytes {
        assert_eq!((zero & 0xf0, one & 0x80), (0x80, 0), "whole, without a mask");
        let (length, rest) = match one & 0x7f {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            127 => (usize::try_from(u64::from_be_bytes(rest[..8].try_into().unwrap())).unwrap(), &rest[8..]),
            n => (usize::from(n), rest),
        };
        frames.push((zero & 0xf, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "half a head: {bytes:?}");
    frames
}

/// What came in, with pieces put together: kinds are `d` a message, `t` one of text, `p` a ping, `o` a pong, `c` a close.
fn read(pieces: &[Vec<u8>]) -> Result<Vec<(char, Vec<u8>)>, WebSocketError> {
    let (mut decoder, mut all) = (Decoder::default(), Vec::new());
    for piece in pieces {
        let mut piece = piece.clone();
        let mut input = piece.as_mut_slice();
        while let Some(event) = decoder.next(&mut input)? {
            match event {
                Event::Data { first: true, text, bytes } => {
                    all.push((if text { 't' } else { 'd' }, bytes.to_vec()))
                }
                Event::Data { bytes, .. } => {
                    let last: Option<&mut (char, Vec<u8>)> =
                        all.iter_mut().rfind(|(kind, _)| "dt".contains(*kind));
                    last.expect("a message has begun").1.extend_from_slice(bytes);
                }
                Event::Ping(payload) => all.push(('p', payload)),
                Event::Pong => all.push(('o', Vec::new())),
                Event::Close => all.push(('c', Vec::new())),
            }
        }
        assert!(input.is_empty(), "all of the input is read");
    }
    Ok(all)
}

/// Cuts bytes at these places, modulo their number.
pub(in crate::streaming) fn cut(bytes: &[u8], places: &[usize]) -> Vec<Vec<u8>> {
    let mut places: Vec<usize> = places.iter().map(|p| p % (bytes.len() + 1)).collect();
    places.sort_unstable();
    let ends = places.iter().copied().chain([bytes.len()]);
    let mut from = 0;
    ends.map(|to| bytes[std::mem::replace(&mut from, to)..to].to_vec()).collect()
}

#[test]
fn what_no_client_may_send() {
    let mask = [1, 2, 3, 4];
    let unmasked = vec![0x82, 1, 7];
    for (bytes, error) in [
        (unmasked, WebSocketError::Unmasked),
        (frame(2 | 0x40, true, mask, b"x"), WebSocketError::Reserved),
        (frame(3, true, mask, b"x"), WebSocketError::Opcode(3)),
        (frame(0, true, mask, b"x"), WebSocketError::Order),
        ([frame(2, false, mask, b"x"), frame(2, true, mask, b"x")].concat(), WebSocketError::Order),
        (frame(9, false, mask, b"x"), WebSocketError::Control),
        (frame(9, true, mask, &[0; 126]), WebSocketError::Control),
        (vec![0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4], WebSocketError::Length),
    ] {
        assert_eq!(read(&[bytes]), Err(error));
    }
}

#[test]
fn a_server_frames_what_it_sends() {
    for length in [0, 1, 125, 126, 65_535, 65_536] {
        let mut out = Vec::new();
        head(Opcode::Binary, length, &mut out);
        out.resize(out.len() + length, 7);
        assert_eq!(server_frames(&out), [(2, vec![7; length])]);
    }
    let mut out = Vec::new();
    pong(&[9; 300], &mut out);
    close(CloseCode::Normal, &mut out);
    assert_eq!(server_frames(&out), [(10, vec![9; 125]), (8, vec![3, 0xe8])]);
}

proptest! {
    #[test]
    fn messages_come_whole_however_they_are_cut(
        messages in vec((any::<bool>(), vec(vec(any::<u8>(), 0..300), 1..4), any::<[u8; 4]>(), any::<bool>()), 0..6),
        places in vec(any::<usize>(), 0..20),
    ) {
        let (mut bytes, mut sent) = (Vec::new(), Vec::new());
        for (text, pieces, mask, pinged) in messages {
            let last = pieces.len() - 1;
            sent.push((if text { 't' } else { 'd' }, pieces.concat()));
            for (n, piece) in pieces.iter().enumerate() {
                let opcode = if n > 0 { 0 } else if text { 1 } else { 2 };
                bytes.extend(frame(opcode, n == last, mask, piece));
                if pinged && n == 0 {
                    // Control frames may come between the pieces of a message.
                    bytes.extend(frame(9, true, mask, b"there?"));
                    sent.push(('p', b"there?".to_vec()));
                }
            }
        }
        bytes.extend(frame(8, true, [0; 4], &[]));
        sent.push(('c', Vec::new()));
        prop_assert_eq!(read(&cut(&bytes, &places)).unwrap(), sent);
    }

    #[test]
    fn noise_ends_or_goes_on_and_gives_no_more_than_came(
        noise in vec(any::<u8>(), 0..400),
        places in vec(any::<usize>(), 0..10),
        masked in any::<bool>(),
    ) {
        let mut noise = noise;
        if masked && noise.len() > 1 {
            // A head that goes through more often.
            noise[0] = 0x82;
            noise[1] |= 0x80;
        }
        if let Ok(events) = read(&cut(&noise, &places)) {
            prop_assert!(events.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= noise.len());
        }
    }
}

/// Both directions of a connection, in memory.
#[derive(Default)]
struct Wire {
    to_client: VecDeque<u8>,
    to_server: Vec<u8>,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.to_client.read(buffer)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to_server.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn client() -> WebSocket<Wire> {
    WebSocket::from_raw_socket(Wire::default(), Role::Client, None)
}

#[test]
fn a_client_by_others_reads_what_the_server_sends() {
    let (mut client, mut out) = (client(), Vec::new());
    let lengths = [0, 1, 125, 126, 65_535, 65_536];
    for length in lengths {
        head(Opcode::Binary, length, &mut out);
        out.resize(out.len() + length, 7);
    }
    pong(b"here", &mut out);
    close(CloseCode::Unsupported, &mut out);
    client.get_mut().to_client.extend(out);
    for length in lengths {
        assert_eq!(client.read().unwrap(), Message::binary(vec![7; length]));
    }
    assert_eq!(client.read().unwrap(), Message::Pong(b"here".to_vec().into()));
    let Message::Close(Some(close)) = client.read().unwrap() else { panic!("no close") };
    assert_eq!((u16::from(close.code), close.reason.as_str()), (1003, ""));
}

proptest! {
    #[test]
    fn the_server_reads_what_a_client_by_others_sends(
        messages in vec((0..3_u8, prop_oneof![0..130_usize, 65_530..65_540_usize], any::<u8>()), 0..5),
        places in vec(any::<usize>(), 0..20),
    ) {
        let (mut client, mut sent) = (client(), Vec::new());
        for (kind, length, byte) in messages {
            let byte = byte & 0x7f;
            let (kind, bytes, message) = match kind {
                0 => ('d', vec![byte; length], Message::binary(vec![byte; length])),
                1 => ('t', vec![byte; length], Message::text(char::from(byte).to_string().repeat(length))),
                _ => {
                    let payload = vec![byte; length.min(CONTROL_MAX)];
                    ('p', payload.clone(), Message::Ping(payload.into()))
                }
            };
            client.send(message).unwrap();
            sent.push((kind, bytes));
        }
        client.close(None).unwrap();
        client.flush().unwrap();
        sent.push(('c', Vec::new()));
        prop_assert_eq!(read(&cut(&client.get_mut().to_server, &places)).unwrap(), sent);
    }
}
