//! A tunnel returns its input.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::websocket::tests::{cut, frame, server_frames};
use super::*;

fn fed(tunnel: &mut Tunnel, bytes: &[u8]) -> Vec<u8> {
    let (mut bytes, mut out) = (bytes.to_vec(), Vec::new());
    tunnel.client_sent(&mut bytes, &mut out);
    out
}

fn due(tunnel: &mut Tunnel) -> Vec<(u8, Vec<u8>)> {
    let mut out = Vec::new();
    tunnel.due_to_client(&mut out);
    server_frames(&out)
}

#[test]
fn pings_closes_and_text() {
    let mut tunnel = Tunnel::default();
    assert!(fed(&mut tunnel, &frame(9, true, [1; 4], b"1")).is_empty());
    assert!(fed(&mut tunnel, &frame(9, true, [1; 4], b"2")).is_empty());
    assert_eq!(due(&mut tunnel), [(10, b"2".to_vec())], "the newest ping is answered");
    assert!(due(&mut tunnel).is_empty());
    let sent = [frame(2, true, [1; 4], b"last"), frame(8, true, [1; 4], &[]), frame(2, true, [1; 4], b"no")];
    assert_eq!(fed(&mut tunnel, &sent.concat()), b"last");
    assert_eq!((due(&mut tunnel), tunnel.is_done()), (vec![(8, vec![3, 0xe8])], true));
    let mut tunnel = Tunnel::default();
    assert!(fed(&mut tunnel, &frame(1, true, [1; 4], b"text")).is_empty());
    assert_eq!((due(&mut tunnel), tunnel.is_done()), (vec![(8, vec![3, 0xeb])], true));
    let mut tunnel = Tunnel::default();
    fed(&mut tunnel, b"\x82\x01x");
    assert_eq!(due(&mut tunnel), [(8, vec![3, 0xea])]);
    let (mut tunnel, mut out) = (Tunnel::default(), Vec::new());
    tunnel.runtime_ended(&mut out);
    tunnel.runtime_sent(b"late", &mut out);
    tunnel.runtime_ended(&mut out);
    assert_eq!((server_frames(&out), tunnel.is_done()), (vec![(8, vec![3, 0xe8])], true));
}

proptest! {
    #[test]
    fn bytes_go_both_ways_untouched(
        there in vec(vec(any::<u8>(), 0..300), 0..8),
        back in vec(vec(any::<u8>(), 0..300), 0..8),
        places in vec(any::<usize>(), 0..20),
    ) {
        let (mut tunnel, mut out) = (Tunnel::default(), Vec::new());
        let frames: Vec<u8> = there.iter().flat_map(|bytes| frame(2, true, [7, 0, 9, 1], bytes)).collect();
        for piece in cut(&frames, &places) {
            out.extend(fed(&mut tunnel, &piece));
        }
        prop_assert_eq!(out, there.concat());
        let mut out = Vec::new();
        for bytes in &back {
            tunnel.runtime_sent(bytes, &mut out);
        }
        let frames = server_frames(&out);
        prop_assert!(frames.iter().all(|(opcode, _)| *opcode == 2));
        prop_assert_eq!(frames.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>(), back.concat());
    }
}
