//! `/healthz`, `/healthz/<check>`: `ok`, or what is wrong; `?verbose` lists, `?exclude=<check>` leaves one out.
//!
//! Upstream: apiserver/pkg/server/healthz.

use std::fmt::Write;

use hyper::{Response, StatusCode};

use super::{Check, pairs};
use crate::body::{Body, text};

/// Calls `told` for each check of the whole list; single checks do not count, as upstream has it.
pub(super) fn answer(
    checks: &[Check],
    rest: &[&str],
    query: &str,
    told: impl Fn(&str, bool),
) -> Response<Body> {
    match rest {
        [] | [""] => all(checks, query, told),
        [name] | [name, ""] => match checks.iter().find(|(check, _)| check == name) {
            Some((_, Ok(()))) => text(StatusCode::OK, "ok"),
            Some((_, Err(problem))) => {
                text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {problem}\n"))
            }
            None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        },
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn all(checks: &[Check], query: &str, told: impl Fn(&str, bool)) -> Response<Body> {
    let query = pairs(query);
    let excluded = |name: &str| query.iter().any(|(key, value)| key == "exclude" && value == name);
    let (mut lines, mut healthy) = (String::new(), true);
    for (name, result) in checks {
        if !excluded(name) {
            told(name, result.is_ok());
        }
        let line = match result {
            _ if excluded(name) => format!("[+]{name} excluded: ok"),
            Ok(()) => format!("[+]{name} ok"),
            Err(_) => {
                healthy = false;
                format!("[-]{name} failed: reason withheld")
            }
        };
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{line}");
    }
    match (healthy, query.iter().any(|(key, _)| key == "verbose")) {
        (true, false) => text(StatusCode::OK, "ok"),
        (true, true) => text(StatusCode::OK, format!("{lines}healthz check passed\n")),
        (false, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n")),
    }
}
