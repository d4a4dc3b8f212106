//! Files by ranges from a server that lies, written into an area in memory.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::https::server;
use orlop_update::slot::area::{AreaCounts, AreaFault, AreaStep, AreaTarget, AreaWrite, AreaWriter};
use orlop_update::slot::blocks::{BLOCK, BlockIndex, digest};
use orlop_update::{ByteRange, ByteSource, HttpsDirectory, SourceError};

const SALT: [u8; 32] = [7; 32];
/// Blocks of the file: more than a request has.
const BLOCKS: usize = 1100;

/// A file whose blocks all differ.
fn file() -> Vec<u8> {
    let word = |n: usize| u64::try_from(n).expect("small").wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut file: Vec<u8> = (0..BLOCKS * BLOCK / 8).flat_map(word).collect();
    file.truncate(BLOCKS * BLOCK - 999);
    file
}

fn target(file: &[u8]) -> (AreaTarget, Vec<u8>) {
    let mut filled = file.to_vec();
    filled.resize(BLOCKS * BLOCK, 0);
    let digests = filled.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect();
    (AreaTarget { digests, salt: SALT, file_bytes: file.len() as u64 }, filled)
}

/// The range that a request asks for.
fn asked(head: &str) -> ByteRange {
    let line = head.lines().find_map(|line| line.strip_prefix("range: bytes=")).expect("a range");
    let (from, last) = line.split_once('-').expect("two numbers");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    ByteRange { from: number(from), to: number(last) + 1 }
}

fn partial(file: &[u8], range: ByteRange, says: u64) -> Vec<u8> {
    let [from, to] = [range.from, range.to].map(|at| usize::try_from(at).expect("small"));
    let body = &file[from..to.min(file.len())];
    let last = says + body.len() as u64 - 1;
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {says}-{last}/{}\r\nContent-Length: {}\r\n\r\n",
        file.len(),
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn whole(file: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", file.len());
    [head.as_bytes(), file].concat()
}

fn put(area: &mut [u8], writes: &[AreaWrite]) {
    for write in writes {
        let at = usize::try_from(write.run.offset()).expect("small");
        area[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
}

/// Fetches all of it, as the updater does.
async fn fetched(source: &HttpsDirectory) -> (Result<AreaCounts, AreaFault>, Vec<u8>) {
    let (target, filled) = target(&file());
    let mut writer = AreaWriter::new(target, BlockIndex::default());
    let mut area = vec![0xee; filled.len()];
    loop {
        let step = match writer.step() {
            Ok(step) => step,
            Err(fault) => return (Err(fault), area),
        };
        match step {
            AreaStep::Survey(run) => {
                let at = usize::try_from(run.offset()).expect("small");
                writer.surveyed(run, &area[at..at + run.bytes()]);
            }
            AreaStep::Fetch(range) => {
                let mut take = |at: u64, bytes: &[u8]| -> ControlFlow<()> {
                    let piece = writer.received(at, bytes);
                    put(&mut area, &piece.writes);
                    if piece.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                };
                let result = source.bytes("file", range, &mut take).await;
                let writes = writer.ended(result.err().map(|e| e.to_string()));
                put(&mut area, &writes);
            }
            AreaStep::Sync => writer.synced(),
            AreaStep::Verify(run) => {
                let at = usize::try_from(run.offset()).expect("small");
                writer.verified(run, &area[at..at + run.bytes()]);
            }
            AreaStep::Done => return (Ok(writer.counts()), area),
            other => panic!("{other:?}"),
        }
    }
}

/// A server whose n-th answer is `answer(n, range)`, and the ranges that it was asked for.
async fn lying(
    answer: impl Fn(usize, ByteRange, &[u8]) -> Vec<u8> + Send + Sync + 'static,
) -> (HttpsDirectory, Arc<Mutex<Vec<ByteRange>>>) {
    let asked_for = Arc::new(Mutex::new(Vec::new()));
    let (seen, count, file) = (Arc::clone(&asked_for), AtomicUsize::new(0), file());
    let source = server(
        move |_, head| {
            let range = asked(head);
            seen.lock().expect("not poisoned").push(range);
            Some(answer(count.fetch_add(1, Ordering::SeqCst), range, &file))
        },
        false,
    )
    .await;
    (source, asked_for)
}

#[tokio::test]
async fn a_file_comes_in_ranges() {
    let (source, asked_for) = lying(|_, range, file| partial(file, range, range.from)).await;
    let (counts, area) = fetched(&source).await;
    let counts = counts.expect("all of it");
    assert!(area == target(&file()).1);
    assert_eq!((counts.fetched as usize, counts.received_bytes), (BLOCKS, file().len() as u64));
    let length = file().len() as u64;
    let want = [ByteRange { from: 0, to: 4 << 20 }, ByteRange { from: 4 << 20, to: length }];
    assert_eq!(*asked_for.lock().expect("not poisoned"), want);
}

#[tokio::test]
async fn a_server_without_ranges_is_understood() {
    // 200 in place of 206, from the second request on.
    let (source, asked_for) = lying(|n, range, file| match n {
        0 => partial(file, range, range.from),
        _ => whole(file),
    })
    .await;
    let (counts, area) = fetched(&source).await;
    assert!(area == target(&file()).1);
    assert_eq!(counts.expect("all of it").fetched as usize, BLOCKS);
    assert_eq!(asked_for.lock().expect("not poisoned").len(), 2);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_asked_for_from_there_on() {
    let (source, asked_for) = lying(|n, range, file| {
        let mut answer = partial(file, range, range.from);
        if n < 3 {
            answer.truncate(300_000);
        }
        answer
    })
    .await;
    let (counts, area) = fetched(&source).await;
    let counts = counts.expect("all of it");
    assert!(area == target(&file()).1);
    let ranges = asked_for.lock().expect("not poisoned").clone();
    assert!(ranges[1].from > 200_000 && ranges[2].from > ranges[1].from, "{ranges:?}");
    // Three times at most one block and what was not yet a block.
    assert!(counts.received_bytes < file().len() as u64 + 3 * 4096, "{counts:?}");
}

#[tokio::test]
async fn a_flipped_bit_is_asked_for_again_and_then_the_source_is_left() {
    let flipped = |once: bool| {
        move |n: usize, range: ByteRange, file: &[u8]| {
            let mut file = file.to_vec();
            if n == 0 || !once {
                file[700 * BLOCK + 5] ^= 0x10;
            }
            partial(&file, range, range.from)
        }
    };
    let (source, asked_for) = lying(flipped(true)).await;
    let (counts, area) = fetched(&source).await;
    assert!(counts.is_ok() && area == target(&file()).1);
    // Block 700 begins the request that follows.
    assert_eq!(asked_for.lock().expect("not poisoned")[1].from, 700 * 4096);
    let (source, asked_for) = lying(flipped(false)).await;
    let (counts, area) = fetched(&source).await;
    assert_eq!(counts, Err(AreaFault::Mismatch(700)));
    assert_eq!(asked_for.lock().expect("not poisoned").len(), 2);
    assert!(area[700 * BLOCK..][..BLOCK] == [0xee; BLOCK], "a wrong block is never written");
}

#[tokio::test]
async fn other_lies_end_after_three_requests() {
    type Lie = fn(ByteRange, &[u8]) -> Vec<u8>;
    let lies: [(&str, Lie); 4] = [
        ("in place of the bytes from 0 on", |range, file| partial(file, range, 4096)),
        ("in place of the bytes from 0 on", |range, file| {
            let answer =
                String::from_utf8_lossy(&partial(file, ByteRange { to: 1, ..range }, 0)).into_owned();
            answer.replace("Content-Range", "X-Range").into_bytes()
        }),
        ("the server answers 416", |_, _| {
            b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n".to_vec()
        }),
        ("is not there", |_, _| b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec()),
    ];
    for (words, lie) in lies {
        let (source, asked_for) = lying(move |_, range, file| lie(range, file)).await;
        let (counts, area) = fetched(&source).await;
        match counts {
            Err(AreaFault::Fruitless(why)) => assert!(why.contains(words), "{why}"),
            other => panic!("{words}: {other:?}"),
        }
        assert_eq!(asked_for.lock().expect("not poisoned").len(), 3, "{words}");
        assert!(area.iter().all(|byte| *byte == 0xee), "{words}");
    }
}

#[tokio::test]
async fn an_endless_body_and_a_silent_server_end() {
    let (source, _) = lying(|_, range, file| {
        let range = ByteRange { from: range.from, to: range.from + 1 };
        let head = String::from_utf8_lossy(&partial(file, range, range.from)).into_owned();
        let head = head.replace("Content-Length: 1", "Content-Length: 1099511627776");
        let mut answer = head.split_once("\r\n\r\n").expect("a head").0.as_bytes().to_vec();
        answer.extend_from_slice(b"\r\n\r\n");
        answer.extend(vec![1; 40 << 20]);
        answer
    })
    .await;
    let mut taken = 0;
    let mut take = |_: u64, bytes: &[u8]| -> ControlFlow<()> {
        taken += bytes.len();
        if taken < 100_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    source.bytes("file", ByteRange { from: 5, to: 100_005 }, &mut take).await.expect("what was asked for");
    assert!(taken < 10 << 20, "{taken}");
    let silent = server(|_, _| None, false).await.within(Duration::from_millis(200));
    let mut none = |_: u64, _: &[u8]| -> ControlFlow<()> { ControlFlow::Continue(()) };
    let fault = silent.bytes("file", ByteRange { from: 0, to: 10 }, &mut none).await.expect_err("silent");
    assert!(matches!(fault, SourceError::Silent { .. }), "{fault}");
}
