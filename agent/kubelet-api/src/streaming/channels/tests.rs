//! The translator between a client and a runtime of the tests.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use super::super::spdy::tests::{ReceivedFrame, control_frame, heard, reply};
use super::super::websocket::tests::{cut, frame, server_frames};
use super::*;

const ALL: StreamOptions =
    StreamOptions { command: Vec::new(), stdin: true, stdout: true, stderr: true, tty: false };
/// Numbers of the streams of such a client.
const ERROR: u32 = 1;
const INPUT: u32 = 3;
const OUTPUT: u32 = 5;
const ERRORS: u32 = 7;
const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;

fn begun(options: &StreamOptions) -> Translator {
    let (mut translator, mut out) = (Translator::new(options), Vec::new());
    translator.begin(&mut out);
    let opened = heard(&out, &mut false).len();
    assert!(!translator.is_open());
    for n in 0..u32::try_from(opened).unwrap() {
        assert!(fed_back(&mut translator, &reply(2 * n + 1, false)).is_empty());
    }
    assert!(translator.is_open());
    translator
}

fn fed(translator: &mut Translator, bytes: &[u8]) -> Vec<ReceivedFrame> {
    let (mut bytes, mut out) = (bytes.to_vec(), Vec::new());
    translator.client_sent(&mut bytes, &mut out);
    heard(&out, &mut true)
}

fn fed_back(translator: &mut Translator, bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut out = Vec::new();
    translator.runtime_sent(bytes, &mut out);
    server_frames(&out)
}

fn message_of(channel: u8, bytes: &[u8]) -> Vec<u8> {
    frame(2, true, [1, 2, 3, 4], &[&[channel], bytes].concat())
}

fn data(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
    let mut out = Vec::new();
    spdy::data(stream, bytes, fin, &mut out);
    out
}

/// The status in the last but one frame; the last one is a Close.
fn status_of(frames: &[(u8, Vec<u8>)]) -> Value {
    let [.., (2, status), (8, code)] = frames else { panic!("no status and no close: {frames:?}") };
    assert_eq!((status[0], code.as_slice()), (3, &[3, 0xe8][..]));
    serde_json::from_slice(&status[1..]).unwrap()
}

#[test]
fn streams_are_those_that_were_asked_for() {
    let of = |stdin, stdout, stderr, tty| StreamOptions { stdin, stdout, stderr, tty, ..ALL };
    for (options, names, greeting) in [
        (of(true, true, true, false), "error stdin stdout stderr", 1),
        (of(true, true, true, true), "error stdin stdout resize", 1),
        (of(false, false, true, false), "error stderr", 2),
        (of(true, false, false, false), "error stdin", 3),
    ] {
        let (mut translator, mut out) = (Translator::new(&options), Vec::new());
        translator.begin(&mut out);
        let opened: Vec<String> = heard(&out, &mut false)
            .into_iter()
            .map(|heard| match heard {
                ReceivedFrame::Open(_, headers) if headers[0].0 == "streamtype" => headers[0].1.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(opened.join(" "), names);
        let mut out = Vec::new();
        translator.greet(&mut out);
        assert_eq!(server_frames(&out), [(2, vec![greeting])]);
    }
}

#[test]
fn input_and_its_end() {
    let mut translator = begun(&ALL);
    assert_eq!(
        fed(&mut translator, &message_of(0, b"abc")),
        [ReceivedFrame::Data(INPUT, b"abc".to_vec(), false)]
    );
    for nothing in
        [message_of(1, b"x"), message_of(4, b"x"), message_of(77, b"x"), frame(2, true, [0; 4], &[])]
    {
        assert!(fed(&mut translator, &nothing).is_empty());
    }
    assert!(fed(&mut translator, &message_of(255, &[])).is_empty());
    assert!(fed(&mut translator, &message_of(255, &[1])).is_empty());
    assert_eq!(
        fed(&mut translator, &message_of(255, &[0, 9])),
        [ReceivedFrame::Data(INPUT, Vec::new(), true)]
    );
    assert!(fed(&mut translator, &message_of(255, &[0])).is_empty(), "once");
    assert!(fed(&mut translator, &message_of(0, b"late")).is_empty());
    let mut terminal = begun(&StreamOptions { tty: true, ..ALL });
    let size = br#"{"Width":80,"Height":24}"#;
    assert_eq!(fed(&mut terminal, &message_of(4, size)), [ReceivedFrame::Data(7, size.to_vec(), false)]);
}

#[test]
fn the_status_comes_after_all_output_and_once() {
    let mut translator = begun(&ALL);
    assert_eq!(fed_back(&mut translator, &data(OUTPUT, b"out", false)), [(2, b"\x01out".to_vec())]);
    assert!(fed_back(&mut translator, &data(ERROR, SUCCESS, true)).is_empty(), "output has not ended");
    assert_eq!(fed_back(&mut translator, &data(ERRORS, b"err", true)), [(2, b"\x02err".to_vec())]);
    assert!(!translator.is_done());
    let last = fed_back(&mut translator, &data(OUTPUT, b"more", true));
    assert_eq!(last[0], (2, b"\x01more".to_vec()));
    assert_eq!(status_of(&last), json!({"metadata": {}, "status": "Success"}));
    assert!(translator.is_done());
    let mut out = Vec::new();
    translator.runtime_ended(&mut out);
    translator.runtime_sent(&data(OUTPUT, b"late", false), &mut out);
    translator.due_to_client(&mut out);
    assert!(out.is_empty(), "{out:?}");
}

#[test]
fn statuses_of_the_runtime_and_their_words() {
    let exit = |code: &str| {
        let causes = json!([{"reason": "ExitCode", "message": code}]);
        json!({"status": "Failure", "reason": "NonZeroExitCode", "message": "x", "details": {"causes": causes}})
    };
    for (said, message) in [
        (SUCCESS.to_vec(), ""),
        (Vec::new(), ""),
        (
            exit("3").to_string().into_bytes(),
            "command terminated with non-zero exit code: command terminated with exit code 3",
        ),
        (
            exit("300").to_string().into_bytes(),
            "Internal error occurred: error stream protocol error: invalid exit code value \"300\"",
        ),
        (
            br#"{"status":"Failure","reason":"NonZeroExitCode"}"#.to_vec(),
            "Internal error occurred: error stream protocol error: no ExitCode cause given",
        ),
        (
            br#"{"status":"Failure","message":"no such file"}"#.to_vec(),
            "Internal error occurred: no such file",
        ),
        (b"{}".to_vec(), "Internal error occurred: error stream protocol error: unknown error"),
    ] {
        let mut translator = begun(&StreamOptions { stdin: false, stderr: false, ..ALL });
        fed_back(&mut translator, &data(1, &said, true));
        // A runtime that closes its connection resets what is left.
        let reset = control_frame(3, false, &[0, 0, 0, 3, 0, 0, 0, 5]);
        let status = status_of(&fed_back(&mut translator, &reset));
        assert_eq!(status["message"].as_str().unwrap_or_default(), message);
        assert_eq!(status["status"] == "Success", message.is_empty());
        if message.starts_with("command") {
            assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        }
    }
}

#[test]
fn a_runtime_that_goes_away_is_no_success() {
    let mut translator = begun(&ALL);
    let mut out = Vec::new();
    translator.runtime_sent(&data(OUTPUT, b"half", false), &mut out);
    translator.runtime_ended(&mut out);
    let status = status_of(&server_frames(&out));
    let words = "Internal error occurred: the runtime's connection ended before it told how the stream ended";
    assert_eq!((status["status"].as_str(), status["message"].as_str()), (Some("Failure"), Some(words)));
    let mut translator = begun(&ALL);
    let status = status_of(&fed_back(&mut translator, &[0xff; 16]));
    assert!(status["message"].as_str().unwrap().contains("a control frame of version"), "{status}");
    let (mut translator, mut out) = (Translator::new(&ALL), Vec::new());
    translator.fail("connect: refused", &mut out);
    assert_eq!(status_of(&server_frames(&out))["message"], "Internal error occurred: connect: refused");
}

#[test]
fn a_command_whose_outputs_have_ended_is_waited_for_and_can_be_given_up() {
    let mut translator = begun(&ALL);
    assert!(!translator.awaits_end());
    fed_back(&mut translator, &data(OUTPUT, b"out", true));
    assert!(!translator.awaits_end(), "errors may come");
    fed_back(&mut translator, &data(ERRORS, &[], true));
    assert!(translator.awaits_end());
    let mut told = translator.clone();
    fed_back(&mut told, &data(ERROR, SUCCESS, true));
    assert!(!told.awaits_end() && told.is_done());
    // Half a status is none.
    fed_back(&mut translator, &data(ERROR, &SUCCESS[..9], false));
    let mut out = Vec::new();
    translator.give_up(&mut out);
    let status = status_of(&server_frames(&out));
    assert_eq!((status["status"].as_str(), status["code"].as_u64()), (Some("Failure"), Some(500)));
    assert!(status["message"].as_str().unwrap().ends_with("does not say how it ended"), "{status}");
    out.clear();
    translator.give_up(&mut out);
    assert!(out.is_empty() && translator.is_done(), "once");
    // For a client without output, the end of the output does not show that the command is over.
    assert!(!begun(&StreamOptions { stdout: false, stderr: false, ..ALL }).awaits_end());
}

#[test]
fn pings_refusals_and_closes() {
    let mut translator = begun(&ALL);
    assert_eq!(fed(&mut translator, &frame(9, true, [1; 4], b"a")), [ReceivedFrame::Ping(1)]);
    assert_eq!(fed(&mut translator, &frame(9, true, [1; 4], b"b")), [ReceivedFrame::Ping(3)]);
    let mut out = Vec::new();
    translator.due_to_client(&mut out);
    assert_eq!(server_frames(&out), [(10, b"b".to_vec())]);
    for id in [7_u32, 8] {
        fed_back(&mut translator, &control_frame(6, false, &id.to_be_bytes()));
    }
    fed_back(&mut translator, &control_frame(1, false, &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0]));
    // The runtime has no more use for input.
    fed_back(&mut translator, &data(INPUT, &[], true));
    let mut out = Vec::new();
    translator.due_to_runtime(&mut out);
    let expected =
        [ReceivedFrame::Ping(8), ReceivedFrame::Reset(2, 3), ReceivedFrame::Data(INPUT, Vec::new(), true)];
    assert_eq!(heard(&out, &mut true), expected);
    assert!(fed(&mut translator, &message_of(0, b"late")).is_empty());
    for (sent, code) in [(frame(8, true, [1; 4], &[]), 0xe8), (vec![0xff; 4], 0xea)] {
        let mut translator = begun(&ALL);
        assert!(fed(&mut translator, &sent).is_empty());
        let mut out = Vec::new();
        translator.due_to_client(&mut out);
        assert_eq!((server_frames(&out), translator.is_done()), (vec![(8, vec![3, code])], true));
    }
}

proptest! {
    #[test]
    fn no_byte_is_lost_in_either_direction(
        there in vec((0_u8..6, vec(any::<u8>(), 0..200), any::<bool>()), 0..10),
        back in vec((0_usize..3, vec(any::<u8>(), 0..200)), 0..10),
        places in vec(any::<usize>(), 0..20),
    ) {
        let mut translator = begun(&StreamOptions { stderr: true, ..ALL });
        let mut frames = Vec::new();
        for (channel, bytes, whole) in &there {
            let payload = [&[*channel], bytes.as_slice()].concat();
            let cut = if *whole { payload.len() } else { payload.len() / 2 };
            frames.extend(frame(2, *whole, [3, 1, 4, 1], &payload[..cut]));
            if !whole {
                frames.extend(frame(0, true, [5, 9, 2, 6], &payload[cut..]));
            }
        }
        let mut input = Vec::new();
        for piece in cut(&frames, &places) {
            for heard in fed(&mut translator, &piece) {
                match heard {
                    ReceivedFrame::Data(INPUT, bytes, false) => input.extend(bytes),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }
        let sent: Vec<u8> = there.iter().filter(|(c, ..)| *c == 0).flat_map(|(_, bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(input, sent);
        let ids = [OUTPUT, ERRORS, INPUT];
        let mut frames: Vec<u8> = back.iter().flat_map(|(of, bytes)| data(ids[*of], bytes, false)).collect();
        frames.extend([data(ERROR, SUCCESS, true), data(OUTPUT, &[], true), data(ERRORS, &[], true)].concat());
        let mut messages = Vec::new();
        for piece in cut(&frames, &places) {
            messages.extend(fed_back(&mut translator, &piece));
        }
        prop_assert_eq!(&status_of(&messages)["status"], "Success");
        for (of, channel) in [(0, 1), (1, 2)] {
            let told: Vec<u8> =
                messages.iter().filter(|(op, m)| *op == 2 && m[0] == channel).flat_map(|(_, m)| m[1..].to_vec()).collect();
            let sent: Vec<u8> = back.iter().filter(|(o, _)| *o == of).flat_map(|(_, bytes)| bytes.clone()).collect();
            prop_assert_eq!(told, sent);
        }
    }

    #[test]
    fn noise_of_either_side_harms_nobody(
        client in vec(any::<u8>(), 0..300),
        runtime in vec(any::<u8>(), 0..300),
        likely in any::<bool>(),
    ) {
        let (mut client, mut runtime) = (client, runtime);
        if likely && client.len() > 2 && runtime.len() > 8 {
            (client[0], client[1]) = (0x82, client[1] | 0x80);
            let stream = runtime[3] % 8;
            runtime[..4].copy_from_slice(&[0, 0, 0, stream]);
        }
        let mut translator = begun(&ALL);
        let (mut to_runtime, mut to_client) = (Vec::new(), Vec::new());
        let came = client.len();
        translator.client_sent(&mut client, &mut to_runtime);
        translator.due_to_client(&mut to_client);
        translator.runtime_sent(&runtime, &mut to_client);
        translator.due_to_runtime(&mut to_runtime);
        translator.runtime_ended(&mut to_client);
        heard(&to_runtime, &mut true);
        let frames = server_frames(&to_client);
        prop_assert!(translator.is_done() && frames.last().is_some_and(|(opcode, _)| *opcode == 8));
        prop_assert!(to_runtime.len() <= 2 * came + 64, "{} bytes for {came}", to_runtime.len());
    }
}
