//! Tables over queries and statuses; bytes cut at every place; properties against plain models.

use agent_types::time::Wall;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LOG: &[u8] = b"2026-11-21T04:00:00.120000000Z stdout F one\n\
    2026-11-21T04:00:01.000000000Z stderr P two \n\
    2026-11-21T04:00:02.5+00:00 stderr F more\n\
    nonsense\n\
    2026-11-21T04:00:03Z stdout F:tag \n\
    2026-11-21T04:00:04Z stdout F last\n";

fn query(text: &str) -> Result<LogOptions, OptionsError> {
    let pairs = text.split('&').filter(|p| !p.is_empty()).map(|p| p.split_once('=').unwrap_or((p, "")));
    LogOptions::from_query(pairs, Wall(1_000_000_000_000))
}

fn selected(options: &LogOptions, pieces: &[&[u8]]) -> String {
    let (mut selector, mut out) = (Selector::new(options), Vec::new());
    for piece in pieces {
        selector.push(piece, &mut out);
    }
    selector.finish(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn queries() {
    assert_eq!(query(""), Ok(LogOptions::default()));
    let all =
        query("follow=true&previous&timestamps=yes&tailLines=10&limitBytes=5&sinceSeconds=100").unwrap();
    assert!(all.follow && all.previous && all.timestamps);
    assert_eq!((all.tail, all.limit_bytes), (Some(10), Some(5)));
    assert_eq!(all.since, Some(Wall(900_000_000_000)));
    assert!(!query("follow=false&timestamps=0").unwrap().follow);
    assert_eq!(query("tail=all&tailLines=3").unwrap().tail, None);
    assert_eq!(query("tail=2").unwrap().tail, Some(2));
    assert_eq!(query("tailLines=0").unwrap().tail, Some(0));
    assert_eq!(query("tailLines=3&tailLines=4").unwrap().tail, Some(3));
    assert_eq!(query("sinceTime=1970-01-01T00:00:01Z").unwrap().since, Some(Wall(1_000_000_000)));
    assert_eq!(query("stream=All&tailLines=1&unknown=1").unwrap().stream, None);
    assert_eq!(query("stream=Stdout").unwrap().stream, Some(Output::Stdout));
    assert_eq!(query("stream=Stderr&follow").unwrap().stream, Some(Output::Stderr));
    for undecodable in ["tailLines=x", "limitBytes=", "sinceSeconds=1.5", "sinceTime=yesterday"] {
        assert_eq!(query(undecodable), Err(OptionsError::Undecodable), "{undecodable}");
    }
    for invalid in [
        "tailLines=-1",
        "limitBytes=0",
        "sinceSeconds=0",
        "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
        "stream=stdout",
        "stream=Both",
        "stream=Stdout&tailLines=5",
    ] {
        assert_eq!(query(invalid), Err(OptionsError::Invalid), "{invalid}");
    }
}

#[test]
fn lines_come_whole_wherever_the_bytes_are_cut() {
    for size in 1..LOG.len() {
        let pieces: Vec<&[u8]> = LOG.chunks(size).collect();
        assert_eq!(selected(&LogOptions::default(), &pieces), "one\ntwo more\n\nlast\n", "pieces of {size}");
    }
}

#[test]
fn one_output_alone() {
    let of = |stream, follow| LogOptions { stream: Some(stream), follow, ..LogOptions::default() };
    for size in 1..LOG.len() {
        let pieces: Vec<&[u8]> = LOG.chunks(size).collect();
        assert_eq!(selected(&of(Output::Stdout, true), &pieces), "one\n\nlast\n", "pieces of {size}");
        assert_eq!(selected(&of(Output::Stderr, false), &pieces), "two more\n", "pieces of {size}");
    }
    let limited = LogOptions { limit_bytes: Some(5), ..of(Output::Stderr, false) };
    assert_eq!(selected(&limited, &[LOG]), "two m", "what is not sent does not count");
    // Lines of both that are in parts at once.
    let mixed = b"2026-11-21T04:00:01Z stdout P a \n2026-11-21T04:00:02Z stderr F b\n2026-11-21T04:00:03Z stdout F c\n";
    let timed = LogOptions { timestamps: true, ..of(Output::Stdout, false) };
    assert_eq!(selected(&timed, &[mixed]), "2026-11-21T04:00:01.000000000Z a c\n");
}

#[test]
fn times_stand_before_lines_not_before_parts() {
    let options = LogOptions { timestamps: true, ..LogOptions::default() };
    assert_eq!(
        selected(&options, &[LOG]),
        "2026-11-21T04:00:00.120000000Z one\n2026-11-21T04:00:01.000000000Z two more\n\
         2026-11-21T04:00:03.000000000Z \n2026-11-21T04:00:04.000000000Z last\n"
    );
    let zoned = b"2026-11-21T04:00:00.123456-02:00 stdout F x\n";
    assert_eq!(selected(&options, &[zoned]), "2026-11-21T04:00:00.123456000-02:00 x\n");
}

#[test]
fn nothing_older_than_asked() {
    let since = |text: &str| query(&format!("sinceTime={text}")).unwrap();
    assert_eq!(selected(&since("2026-11-21T04:00:02Z"), &[LOG]), "more\n\nlast\n");
    assert_eq!(selected(&since("2026-11-21T04:00:04Z"), &[LOG]), "last\n", "the instant itself is in");
    assert_eq!(selected(&since("2027-01-01T00:00:00Z"), &[LOG]), "");
}

#[test]
fn not_one_byte_more() {
    let whole = selected(&LogOptions::default(), &[LOG]);
    for limit in 1..=whole.len() + 1 {
        let options = LogOptions { limit_bytes: Some(limit as u64), ..LogOptions::default() };
        assert_eq!(selected(&options, &[LOG]), whole[..limit.min(whole.len())]);
        assert_eq!(selected(&options, &LOG.chunks(7).collect::<Vec<_>>()), whole[..limit.min(whole.len())]);
    }
}

#[test]
fn the_tail_does_not_grow_unless_it_is_followed() {
    let record = b"2026-11-21T04:00:00Z stdout F x\n";
    let tail = |follow| LogOptions { tail: Some(2), follow, ..LogOptions::default() };
    assert_eq!(selected(&tail(false), &[record, record, record]), "x\nx\n");
    assert_eq!(selected(&tail(true), &[record, record, record]), "x\nx\nx\n");
    assert!(Selector::new(&LogOptions { tail: Some(0), ..LogOptions::default() }).is_done());
}

#[test]
fn an_unfinished_record_is_shown_at_the_end_and_before_another_file() {
    let (mut selector, mut out) = (Selector::new(&LogOptions::default()), Vec::new());
    selector.push(b"2026-11-21T04:00:00Z stdout F cut", &mut out);
    assert!(out.is_empty());
    selector.finish(&mut out);
    selector.push(b"2026-11-21T04:00:00Z stdout F new\n", &mut out);
    assert_eq!(out, b"cut\nnew\n");
}

#[test]
fn memory_is_bounded() {
    let (mut selector, mut out) = (Selector::new(&LogOptions::default()), Vec::new());
    for _ in 0..100 {
        selector.push(&[b'x'; 10_000], &mut out);
    }
    selector.push(b"\n2026-11-21T04:00:00Z stdout F after\n", &mut out);
    assert_eq!(out, b"after\n");
    assert_eq!(selector.malformed(), 1);
}

fn scan(bytes: &[u8], records: u64, block: usize) -> u64 {
    let mut scan = TailScan::new(records);
    let mut end = bytes.len();
    while end > 0 {
        let start = end.saturating_sub(block);
        if let Some(found) = scan.block(start as u64, &bytes[start..end]) {
            return found;
        }
        end = start;
    }
    0
}

proptest! {
    /// After the place that is found there are exactly so many newlines, or it is the beginning.
    #[test]
    fn the_tail_begins_where_it_should(text in "[ab\n]{0,60}", records in 0_u64..8, block in 1_usize..10) {
        let bytes = text.as_bytes();
        let at = usize::try_from(scan(bytes, records, block)).unwrap();
        let after = bytes[at..].iter().filter(|b| **b == b'\n').count() as u64;
        if at == 0 {
            prop_assert!(after <= records);
        } else {
            prop_assert_eq!(after, records);
            prop_assert_eq!(bytes[at - 1], b'\n');
        }
    }

    /// For every content of the file and every cut: no panic, no byte above the limit.
    #[test]
    fn no_bytes_panic(
        bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b' ')], 0..300),
        cut in 1_usize..50,
        limit in 1_u64..40,
        timestamps in any::<bool>(),
    ) {
        let options = LogOptions { limit_bytes: Some(limit), timestamps, ..LogOptions::default() };
        let (mut selector, mut out) = (Selector::new(&options), Vec::new());
        for piece in bytes.chunks(cut) {
            selector.push(piece, &mut out);
        }
        selector.finish(&mut out);
        prop_assert!(out.len() as u64 <= limit);
    }
}

fn chosen(status: Value, previous: bool) -> Result<String, String> {
    let status = serde_json::from_value(json!({ "containerStatuses": [status] })).unwrap();
    choose("p", "c", &status, previous).map_err(|e| e.to_string())
}

fn status(state: &Value, last: &Value) -> Value {
    json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "containerID": "containerd://now", "state": state, "lastState": last})
}

#[test]
fn which_instance() {
    let running = json!({"running": {}});
    let ended = json!({"terminated": {"exitCode": 0, "containerID": "containerd://ended"}});
    let nameless = json!({"terminated": {"exitCode": 0}});
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let none = json!({});
    for (state, last, previous, expected) in [
        (&running, &none, false, Ok("now")),
        (&running, &ended, true, Ok("ended")),
        (&running, &none, true, Err("previous terminated container \"c\" in pod \"p\" not found")),
        (&ended, &none, false, Ok("ended")),
        (&nameless, &ended, false, Ok("ended")),
        (&nameless, &none, false, Err("container \"c\" in pod \"p\" is terminated")),
        (&waiting("CrashLoopBackOff"), &ended, false, Ok("ended")),
        (&waiting("CrashLoopBackOff"), &nameless, false, Err("container \"c\" in pod \"p\" is terminated")),
        (
            &waiting("ContainerCreating"),
            &none,
            false,
            Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
        ),
        (
            &waiting("ErrImagePull"),
            &none,
            false,
            Err("container \"c\" in pod \"p\" is waiting to start: image can't be pulled"),
        ),
        (
            &waiting("ImagePullBackOff"),
            &none,
            false,
            Err("container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"),
        ),
        (&none, &none, false, Err("container \"c\" in pod \"p\" is waiting to start - no logs yet")),
    ] {
        let found = chosen(status(state, last), previous);
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{state} {last} {previous}");
    }
    let other = json!({"name": "d", "image": "i", "imageID": "", "ready": false, "restartCount": 0});
    assert_eq!(chosen(other, false).unwrap_err(), "container \"c\" in pod \"p\" is not available");
}
