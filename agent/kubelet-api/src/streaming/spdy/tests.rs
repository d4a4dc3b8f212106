//! Frames of a server, whole and in pieces; a server of a few lines, which the other tests use too.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::websocket::tests::cut;
use super::*;

/// What a server of the tests reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::streaming) enum ReceivedFrame {
    Open(u32, Vec<(String, String)>),
    Data(u32, Vec<u8>, bool),
    Reset(u32, u32),
    Ping(u32),
}

/// Reads whole frames of a client; inflates its stored blocks by hand.
pub(in crate::streaming) fn heard(mut bytes: &[u8], begun: &mut bool) -> Vec<ReceivedFrame> {
    let mut all = Vec::new();
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    while !bytes.is_empty() {
        let (head, length) = (number(bytes), number(&bytes[4..]));
        let (fin, length) = (length >> 24 & 1 == 1, (length & 0xff_ffff) as usize);
        let payload = &bytes[8..8 + length];
        bytes = &bytes[8 + length..];
        all.push(match head {
            stream if stream < 1 << 31 => ReceivedFrame::Data(stream, payload.to_vec(), fin),
            0x8003_0001 => ReceivedFrame::Open(number(payload), headers(&payload[10..], begun)),
            0x8003_0003 => ReceivedFrame::Reset(number(payload), number(&payload[4..])),
            0x8003_0006 => ReceivedFrame::Ping(number(payload)),
            other => panic!("a frame {other:x}"),
        });
    }
    all
}

fn headers(mut packed: &[u8], begun: &mut bool) -> Vec<(String, String)> {
    if !std::mem::replace(begun, true) {
        assert_eq!(packed[..2], [0x78, 1]);
        assert_eq!(u16::from_be_bytes([packed[0], packed[1]]) % 31, 0, "zlib's check");
        packed = &packed[2..];
    }
    let mut block = Vec::new();
    loop {
        let length = u16::from_le_bytes([packed[1], packed[2]]);
        assert_eq!((packed[0], !length), (0, u16::from_le_bytes([packed[3], packed[4]])), "a stored block");
        block.extend_from_slice(&packed[5..5 + usize::from(length)]);
        packed = &packed[5 + usize::from(length)..];
        if length == 0 {
            break;
        }
    }
    assert!(packed.is_empty(), "nothing comes after the block that flushes");
    let mut block = block.as_slice();
    let mut take = |n: usize| {
        let (bytes, rest) = block.split_at(n);
        block = rest;
        bytes.to_vec()
    };
    let number = |bytes: Vec<u8>| u32::from_be_bytes(bytes.try_into().unwrap()) as usize;
    let count = number(take(4));
    let all = (0..count).map(|_| {
        let mut text = || {
            let length = number(take(4));
            String::from_utf8(take(length)).unwrap()
        };
        (text(), text())
    });
    all.collect()
}

/// A server's control frame.
pub(in crate::streaming) fn control_frame(kind: u16, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    control(kind, u8::from(fin), payload.len(), &mut out);
    out.extend_from_slice(payload);
    out
}

/// A server's reply, with headers that no reader unpacks.
pub(in crate::streaming) fn reply(stream: u32, fin: bool) -> Vec<u8> {
    control_frame(SYN_REPLY, fin, &[&stream.to_be_bytes()[..], b"packed"].concat())
}

/// What came in; pieces of one frame are put together.
fn read(pieces: &[Vec<u8>]) -> Result<Vec<String>, SpdyError> {
    let (mut decoder, mut all) = (Decoder::default(), Vec::new());
    let mut data: Vec<u8> = Vec::new();
    for piece in pieces {
        let mut input = piece.as_slice();
        while let Some(event) = decoder.next(&mut input)? {
            if let Event::Data { stream, bytes, fin } = event {
                data.extend_from_slice(bytes);
                if decoder.frame.is_none() {
                    all.push(format!("Data {stream} {:?} {fin}", std::mem::take(&mut data)));
                }
            } else {
                all.push(format!("{event:?}"));
            }
        }
        assert!(input.is_empty(), "all of the input is read");
    }
    Ok(all)
}

#[test]
fn what_a_client_sends() {
    let mut encoder = Encoder::default();
    let mut out = Vec::new();
    encoder.open(1, &[("streamtype", "error")], &mut out);
    encoder.open(3, &[("streamtype", "stdin"), ("x", "")], &mut out);
    data(3, b"abc", false, &mut out);
    data(3, b"", true, &mut out);
    ping(1, &mut out);
    reset(2, REFUSED_STREAM, &mut out);
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let expected = [
        ReceivedFrame::Open(1, vec![pair("streamtype", "error")]),
        ReceivedFrame::Open(3, vec![pair("streamtype", "stdin"), pair("x", "")]),
        ReceivedFrame::Data(3, b"abc".to_vec(), false),
        ReceivedFrame::Data(3, Vec::new(), true),
        ReceivedFrame::Ping(1),
        ReceivedFrame::Reset(2, 3),
    ];
    assert_eq!(heard(&out, &mut false), expected);
    // A value that needs more than one stored block.
    let (long, mut out) = ("v".repeat(100_000), Vec::new());
    Encoder::default().open(1, &[("n", &long)], &mut out);
    assert_eq!(heard(&out, &mut false), [ReceivedFrame::Open(1, vec![pair("n", &long)])]);
    // More than one frame can hold.
    let (long, mut out) = (vec![7; LENGTH_MAX + 1], Vec::new());
    data(5, &long, true, &mut out);
    let expected =
        [ReceivedFrame::Data(5, vec![7; LENGTH_MAX], false), ReceivedFrame::Data(5, vec![7], true)];
    assert!(heard(&out, &mut false) == expected);
}

#[test]
fn what_no_server_may_send() {
    for (bytes, error) in [
        (vec![0x80, 2, 0, 6, 0, 0, 0, 4], SpdyError::Version(2)),
        (control_frame(PING, false, &[0; 5]), SpdyError::Length { kind: PING, length: 5 }),
        (control_frame(RST_STREAM, false, &[0; 4]), SpdyError::Length { kind: RST_STREAM, length: 4 }),
        (control_frame(SYN_REPLY, false, &[0; 3]), SpdyError::Length { kind: SYN_REPLY, length: 3 }),
        (control_frame(SYN_REPLY, false, &[0; 4]), SpdyError::StreamZero),
        (vec![0, 0, 0, 0, 0, 0, 0, 1, 7], SpdyError::StreamZero),
    ] {
        assert_eq!(read(&[bytes]), Err(error));
    }
}

fn server_frame() -> impl Strategy<Value = (Vec<u8>, Option<String>)> {
    let stream = 1_u32..0x7fff_ffff;
    prop_oneof![
        3 => (stream.clone(), vec(any::<u8>(), 0..200), any::<bool>()).prop_map(|(stream, bytes, fin)| {
            let mut out = Vec::new();
            data(stream, &bytes, fin, &mut out);
            (out, Some(format!("Data {stream} {bytes:?} {fin}")))
        }),
        1 => (stream.clone(), any::<bool>()).prop_map(|(stream, fin)| {
            (reply(stream, fin), Some(format!("{:?}", Event::Reply { stream, fin })))
        }),
        1 => (stream.clone(), any::<u32>()).prop_map(|(stream, status)| {
            let payload = [stream.to_be_bytes(), status.to_be_bytes()].concat();
            (control_frame(RST_STREAM, false, &payload), Some(format!("{:?}", Event::Reset { stream, status })))
        }),
        1 => any::<u32>().prop_map(|id| {
            (control_frame(PING, false, &id.to_be_bytes()), Some(format!("{:?}", Event::Ping { id })))
        }),
        1 => Just((control_frame(GOAWAY, false, &[0; 8]), Some("GoAway".to_owned()))),
        1 => (4_u16..6, vec(any::<u8>(), 0..50)).prop_map(|(kind, rest)| (control_frame(kind, false, &rest), None)),
    ]
}

proptest! {
    #[test]
    fn frames_come_whole_however_they_are_cut(
        frames in vec(server_frame(), 0..12),
        places in vec(any::<usize>(), 0..20),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let expected: Vec<String> = frames.into_iter().filter_map(|(_, event)| event).collect();
        prop_assert_eq!(read(&cut(&bytes, &places)).unwrap(), expected);
    }

    #[test]
    fn noise_ends_or_goes_on(
        noise in vec(any::<u8>(), 0..400),
        places in vec(any::<usize>(), 0..10),
        kind in 0_u8..12,
        is_control in any::<bool>(),
    ) {
        let mut noise = noise;
        if is_control && noise.len() > 7 {
            // A head that goes through more often.
            noise[..7].copy_from_slice(&[0x80, 3, 0, kind, 0, 0, 0]);
        }
        if let Ok(events) = read(&cut(&noise, &places)) {
            prop_assert!(events.len() <= noise.len());
        }
    }
}
