//! `/debug/flags/v` and `/debug/pprof/`: how much the agent says, and what can be known of it as a process.
//!
//! In: a request, [`NodeTools`]. Out: answers with upstream's status codes. Invariants: a body is read to 64 bytes at most
//! and for 10 s; what only a Go program could answer is 501 with the reason.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use tokio::time::timeout;

use super::{NodeTools, Paths};
use crate::body::{Body, text, whole};

/// Where the log level is set.
const LEVEL: &str = "/debug/flags/v";
/// A number of 32 bits has ten digits.
const BODY_MAX: usize = 64;
/// For so short a body.
const BODY_TIME: Duration = Duration::from_secs(10);

/// Profiles that upstream's handler knows, and why there is none here.
const PROFILES: &[(&str, &str)] = &[
    ("allocs", HEAP),
    ("heap", HEAP),
    ("profile", "the agent has no profiler of its own; perf(1) on the machine samples it from outside"),
    ("trace", "there is no Go runtime whose events could be traced"),
    ("symbol", "there is no table of Go's functions"),
    ("goroutine", GO),
    ("threadcreate", GO),
    ("block", GO),
    ("mutex", GO),
];
const HEAP: &str = "the C library's allocator keeps no record of who allocated what";
const GO: &str = "there are no goroutines";

/// True if the request is one for [`level`].
pub(super) fn is_level(paths: &Paths, path: &str) -> bool {
    paths.debugging && paths.debug_flags && path == LEVEL
}

/// Sets the log level to what a PUT says.
pub(super) async fn level<N: NodeTools>(node: &N, method: &Method, body: Incoming) -> Response<Body> {
    if method != Method::PUT {
        return level_without_body(true, method);
    }
    let body = timeout(BODY_TIME, Limited::new(body, BODY_MAX).collect()).await;
    let bad = |words: String| plain(StatusCode::BAD_REQUEST, &words);
    let bytes = match body {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return bad(format!("error reading request body: {error}")),
        Err(_) => return bad("error reading request body: it does not end".to_owned()),
    };
    set(node, &String::from_utf8_lossy(&bytes))
}

/// The answer to a client that sends no level, or that may not set one.
pub(super) fn level_without_body(enabled: bool, method: &Method) -> Response<Body> {
    match (enabled, method) {
        (false, _) => text(StatusCode::METHOD_NOT_ALLOWED, "flags endpoint is disabled.\n"),
        (true, &Method::PUT) => plain(StatusCode::BAD_REQUEST, &refusal("", "invalid syntax")),
        (true, _) => plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method"),
    }
}

pub(super) fn set<N: NodeTools>(node: &N, given: &str) -> Response<Body> {
    let is_number = !given.is_empty() && given.bytes().all(|b| b.is_ascii_digit());
    let level = match given.parse::<u32>() {
        Ok(level) if is_number && i32::try_from(level).is_ok() => level,
        _ if is_number => return plain(StatusCode::BAD_REQUEST, &refusal(given, "value out of range")),
        _ => return plain(StatusCode::BAD_REQUEST, &refusal(given, "invalid syntax")),
    };
    match node.set_verbosity(level) {
        Ok(()) => plain(StatusCode::OK, &format!("successfully set klog.logging.verbosity to {given}")),
        Err(problem) => plain(StatusCode::BAD_REQUEST, &problem),
    }
}

fn refusal(given: &str, why: &str) -> String {
    format!("strconv.ParseUint: parsing {given:?}: {why}")
}

fn plain(status: StatusCode, words: &str) -> Response<Body> {
    let mut response = whole(status, "text/plain", format!("{words}\n").into());
    let name = HeaderName::from_static("x-content-type-options");
    response.headers_mut().insert(name, HeaderValue::from_static("nosniff"));
    response
}

/// What is known of the agent as a process: its command line; of the rest, why not.
pub(super) fn profile<N: NodeTools>(node: &N, name: &str) -> Response<Body> {
    match name {
        "" => {
            let all = PROFILES.iter().map(|(name, why)| format!("{name}: not here: {why}\n"));
            let page =
                ["cmdline: the agent's command line\n".to_owned()].into_iter().chain(all).collect::<String>();
            text(StatusCode::OK, page)
        }
        "cmdline" => text(StatusCode::OK, node.command_line().join("\0")),
        _ => match PROFILES.iter().find(|(known, _)| *known == name) {
            Some((_, why)) => text(
                StatusCode::NOT_IMPLEMENTED,
                format!("this node's agent has no profile {name:?}: {why}\n"),
            ),
            None => text(StatusCode::NOT_FOUND, "Unknown profile\n"),
        },
    }
}
