//! Every request has an answer: paths, queries and headers of all kinds, and bytes that are hardly HTTP.
//!
//! `PROPTEST_CASES` says how many are tried (docs/reference/server.md).

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// First segments that are known, and what people put where names belong.
const SEGMENTS: &[&str] = &[
    "healthz",
    "pods",
    "runningpods",
    "configz",
    "containerLogs",
    "metrics",
    "resource",
    "logs",
    "run",
    "checkpoint",
    "statusz",
    "flagz",
    "exec",
    "attach",
    "portForward",
    "debug",
    "pprof",
    "flags",
    "v",
    "heap",
    "cmdline",
    "stats",
    "summary",
    "default",
    "web",
    "u1",
    "c",
    "first",
    "waiting",
    "dir",
    "journal",
    "a%20b.log",
    "..",
    ".",
    "",
    "%2e%2e",
    "%2f",
    "%",
    "%zz",
    "%ff",
    "%00",
];
const KEYS: &[&str] = &[
    "query",
    "tailLines",
    "sinceTime",
    "untilTime",
    "boot",
    "pattern",
    "cmd",
    "command",
    "timeout",
    "input",
    "output",
    "error",
    "tty",
    "port",
    "follow",
    "previous",
    "timestamps",
    "sinceSeconds",
    "limitBytes",
    "tail",
    "stream",
    "verbose",
    "exclude",
];
const VALUES: &[&str] = &[
    "",
    "1",
    "0",
    "-1",
    "true",
    "18446744073709551616",
    "2026-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999999Z",
    "kubelet",
    "/etc/passwd",
    "%2e%2e/x",
    "[",
    "(?<a>",
    "All",
    "Stdout",
    "80,81",
    "%",
    "--all",
];

fn some_of(known: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::sample::select(known).prop_map(str::to_owned),
        1 => "[!-~]{0,12}".prop_map(|s| s.replace(['?', '#', '/'], "")),
    ]
}

fn target() -> impl Strategy<Value = (String, String)> {
    let pair = (some_of(KEYS), some_of(VALUES)).prop_map(|(key, value)| format!("{key}={value}"));
    (vec(some_of(SEGMENTS), 0..7), vec(pair, 0..5))
        .prop_map(|(segments, pairs)| (format!("/{}", segments.join("/")), pairs.join("&")))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

proptest! {
    #[test]
    fn every_path_has_an_answer(
        (path, query) in target(),
        method in proptest::sample::select(&["GET", "POST", "PUT", "DELETE", "HEAD", "x"][..]),
        accept in proptest::option::of("[ -~]{0,40}"),
        broken in any::<bool>(),
    ) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let node = FakeNode { broken, ..node() };
        let asked = RequestHead { method: &method, path: &path, query: &query, accept: accept.as_deref() };
        let (status, body) = block_on(async {
            let response = answer(&node, ALL, asked, NOW).await;
            let status = response.status().as_u16();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        });
        let known = [200, 301, 400, 404, 405, 406, 422, 500, 501];
        prop_assert!(known.contains(&status), "{method} {path}?{query}: {status} {body:?}");
        prop_assert!(status < 400 || !body.is_empty(), "{method} {path}?{query}: {status} and not a word");
        if let Err((status, words)) = streams::find(&node, &method, &path, &query) {
            prop_assert!(status.is_client_error() && !words.is_empty());
        }
    }
}

/// Requests with holes, doubles and noise, on a real connection; a sane one is answered after each.
#[test]
fn noise_is_not_answered_with_silence_for_others() {
    block_on(async {
        with_read_only(async |to| {
            let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
            let cases = config.cases;
            let mut runner = proptest::test_runner::TestRunner::new(config);
            for _ in 0..cases {
                let noise = noisy().new_tree(&mut runner).unwrap().current();
                let mut stream = TcpStream::connect(to).await.unwrap();
                // The server may end the connection before it has read all of it.
                let _ = stream.write_all(&noise).await;
                let _ = stream.shutdown().await;
                let mut said = Vec::new();
                let _ = stream.read_to_end(&mut said).await;
                assert!(said.is_empty() || said.starts_with(b"HTTP/1."), "{noise:?}: {said:?}");
                let mut stream = TcpStream::connect(to).await.unwrap();
                stream
                    .write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
                    .await
                    .unwrap();
                let mut said = String::new();
                stream.read_to_string(&mut said).await.unwrap();
                assert!(said.ends_with("\r\n\r\nok"), "after {noise:?}: {said}");
            }
        })
        .await;
    });
}

fn noisy() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        target().prop_map(|(path, query)| format!("GET {path}?{query} HTTP/1.1\r\n").into_bytes()),
        Just(b"Host: n\r\n".to_vec()),
        Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        Just(b"Content-Length: 5\r\n".to_vec()),
        Just(b"Content-Length: -5\r\n".to_vec()),
        Just(b"Connection: Upgrade\r\nUpgrade: websocket\r\n".to_vec()),
        Just(b"Expect: 100-continue\r\n".to_vec()),
        Just(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"ffffffffffffffff\r\nx".to_vec()),
        Just(vec![b'a'; 5000]),
        vec(any::<u8>(), 0..40),
    ];
    vec(line, 0..12).prop_map(|lines| lines.concat())
}
