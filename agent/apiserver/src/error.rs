//! From an HTTP answer, or none, to [`ApiError`]: the one place that knows the class of a failure.
//!
//! In: a status code, `Retry-After`, the body of a metav1.Status; or why no answer arrived. Out: an [`ApiError`].
//! Invariants: the mapping is the one that agent_types::api documents; a body of any shape gives some message, cut
//! to a line's length; a write whose fate is unknown is `DeadlineExceeded`.

use std::time::Duration;

use agent_types::api::{ApiCall, ApiError};
use agent_types::failure::Class;
use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use crate::connection::SendError;
use crate::json;

/// Longer messages are cut: some proxies answer with web pages.
const MESSAGE_MAX: usize = 1024;
/// `Retry-After` beyond this is believed only so far.
const RETRY_AFTER_MAX_S: u64 = 600;

/// What an answer other than 2xx means.
pub(crate) fn refused(call: String, code: StatusCode, headers: &HeaderMap, body: &[u8]) -> ApiError {
    let status: Option<Status> = json::read(body).ok();
    let reason = status.as_ref().and_then(|s| s.reason.clone()).unwrap_or_default();
    let message = match status.as_ref().and_then(|s| s.message.as_deref()).filter(|m| !m.is_empty()) {
        Some(message) => cut(message),
        None => format!("HTTP {code}: {}", cut(&String::from_utf8_lossy(body))),
    };
    let message = match code {
        StatusCode::UNAUTHORIZED => format!(
            "{message}; the API server does not accept this node's credentials: the certificate or token has \
             expired or is another cluster's"
        ),
        _ => message,
    };
    let retry_after = headers
        .get(RETRY_AFTER)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.trim().parse::<u64>().ok())
        .or_else(|| {
            let details = status.as_ref()?.details.as_ref()?;
            details.retry_after_seconds.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0)
        });
    let class = class(code, &reason, retry_after);
    ApiError { call, class, code: Some(code.as_u16()), reason: cut(&reason), message }
}

fn class(code: StatusCode, reason: &str, retry_after_s: Option<u64>) -> Class {
    let after_ms = retry_after_s.unwrap_or(0).min(RETRY_AFTER_MAX_S) * 1000;
    match code.as_u16() {
        404 => Class::NotFound,
        409 if reason == "AlreadyExists" => Class::AlreadyExists,
        409 => Class::Conflict,
        400 | 403 | 405 | 410 | 413 | 415 | 422 => Class::Invalid,
        429 => Class::Retryable { after_ms },
        503 if retry_after_s.is_some() => Class::Retryable { after_ms },
        // The server gave up on a request that it may have carried out.
        504 => Class::DeadlineExceeded,
        _ => Class::Unavailable,
    }
}

/// What no answer means.
pub(crate) fn unanswered(call: &ApiCall, error: &SendError) -> ApiError {
    let class = match error {
        SendError::NotSent(_) => Class::Unavailable,
        SendError::Broken(_) if call.is_read() => Class::Unavailable,
        SendError::Broken(_) => Class::DeadlineExceeded,
    };
    ApiError::without_status(call, class, error.to_string())
}

/// No answer in time.
pub(crate) fn too_late(call: &ApiCall, limit: Duration) -> ApiError {
    let message = format!("no answer from the API server within {} s", limit.as_secs_f64());
    ApiError::without_status(call, Class::DeadlineExceeded, message)
}

/// The node's own limit of requests would hold the call back for longer than it may take.
pub(crate) fn throttled(call: &ApiCall, wait: Duration) -> ApiError {
    let after_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let message = format!("not sent: the node's own request limit is used up for the next {after_ms} ms");
    ApiError::without_status(call, Class::Retryable { after_ms }, message)
}

/// An answer that is not what was asked for, or cannot be read to its end.
pub(crate) fn unreadable(call: &ApiCall, code: StatusCode, why: &str) -> ApiError {
    // The server said yes: a write has happened, and its result is not known.
    let class = if call.is_read() { Class::Unavailable } else { Class::DeadlineExceeded };
    let message = format!("the API server's answer cannot be used: {}", cut(why));
    ApiError { call: call.describe(), class, code: Some(code.as_u16()), reason: String::new(), message }
}

/// Nothing among what was listed is what was looked for.
pub(crate) fn not_found(call: &ApiCall) -> ApiError {
    ApiError::without_status(call, Class::NotFound, "there is none")
}

/// One line, not too long, without control characters.
pub(crate) fn cut(text: &str) -> String {
    let mut out: String =
        text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MESSAGE_MAX).collect();
    if text.trim().chars().nth(MESSAGE_MAX).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_that_core_documents() {
        let after = |after_ms| Class::Retryable { after_ms };
        let table = [
            (404, "NotFound", None, Class::NotFound),
            (409, "AlreadyExists", None, Class::AlreadyExists),
            (409, "Conflict", None, Class::Conflict),
            (400, "BadRequest", None, Class::Invalid),
            (401, "Unauthorized", None, Class::Unavailable),
            (403, "Forbidden", None, Class::Invalid),
            (405, "MethodNotAllowed", None, Class::Invalid),
            (410, "Expired", None, Class::Invalid),
            (413, "RequestEntityTooLarge", None, Class::Invalid),
            (415, "UnsupportedMediaType", None, Class::Invalid),
            (422, "Invalid", None, Class::Invalid),
            (429, "TooManyRequests", Some(1), after(1000)),
            (429, "TooManyRequests", None, after(0)),
            (429, "TooManyRequests", Some(u64::MAX), after(600_000)),
            (500, "InternalError", None, Class::Unavailable),
            (502, "", None, Class::Unavailable),
            (503, "ServiceUnavailable", None, Class::Unavailable),
            (503, "ServiceUnavailable", Some(2), after(2000)),
            (504, "Timeout", None, Class::DeadlineExceeded),
            (302, "", None, Class::Unavailable),
        ];
        for (code, reason, retry_after, expected) in table {
            let code = StatusCode::from_u16(code).unwrap();
            assert_eq!(class(code, reason, retry_after), expected, "{code} {reason}");
        }
    }

    #[test]
    fn any_body_gives_a_message() {
        let get = || "get node n".to_owned();
        let status = br#"{"kind":"Status","message":"nodes \"n\" not found","reason":"NotFound","code":404}"#;
        let error = refused(get(), StatusCode::NOT_FOUND, &HeaderMap::new(), status);
        assert_eq!(error.to_string(), "get node n: nodes \"n\" not found");
        let long = vec![b'\n'; 100_000];
        let page = [&b"<html>\xff"[..], &long, b"x"].concat();
        for body in [&b""[..], b"null", b"[]", b"{\"message\":3}", &page] {
            let error = refused(get(), StatusCode::BAD_GATEWAY, &HeaderMap::new(), body);
            assert!(error.message.starts_with("HTTP 502"), "{error}");
            assert!(error.message.chars().count() < 1100 && !error.message.contains('\n'));
        }
    }

    #[test]
    fn retry_after_comes_from_header_or_details() {
        let mut headers = HeaderMap::new();
        let body = br#"{"message":"slow down","reason":"TooManyRequests","details":{"retryAfterSeconds":7}}"#;
        let class =
            |h: &HeaderMap, b: &[u8]| refused(String::new(), StatusCode::TOO_MANY_REQUESTS, h, b).class;
        assert_eq!(class(&headers, body), Class::Retryable { after_ms: 7000 });
        headers.insert(RETRY_AFTER, "3".parse().unwrap());
        assert_eq!(class(&headers, body), Class::Retryable { after_ms: 3000 });
        headers.insert(RETRY_AFTER, "Wed, 21 Oct 2026 07:28:00 GMT".parse().unwrap());
        assert_eq!(class(&headers, b""), Class::Retryable { after_ms: 0 });
    }

    #[test]
    fn an_unknown_fate_is_said() {
        let write = ApiCall::PatchPodStatus {
            pod: agent_types::api::ObjectName { namespace: "a".into(), name: "b".into() },
            patch: serde_json::Value::Null,
        };
        let read = ApiCall::GetNode { name: "n".into() };
        let broken = SendError::Broken("reset".to_owned());
        assert_eq!(unanswered(&write, &broken).class, Class::DeadlineExceeded);
        assert_eq!(unanswered(&read, &broken).class, Class::Unavailable);
        assert_eq!(unreadable(&write, StatusCode::OK, "x").class, Class::DeadlineExceeded);
    }
}
