//! Errors of the API server: code, reason and message, and their class for the node.
//!
//! Out: [`Status`]. [`Status::class`] is the mapping that `agent_types::api::ApiError` documents.

use agent_types::api::{ApiCall, ApiError};
use agent_types::failure::Class;
use serde_json::{Value, json};

use super::resource::Key;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct Status {
    /// HTTP status.
    pub code: u16,
    /// `Status.reason`.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
    /// `Retry-After`, seconds.
    pub retry_after_s: Option<u32>,
}

impl Status {
    fn new(code: u16, reason: &'static str, message: String) -> Status {
        Status { code, reason, message, retry_after_s: None }
    }

    /// 404.
    #[must_use]
    pub fn not_found(key: &Key) -> Status {
        let (what, name) = (key.resource.qualified(), &key.name);
        Status::new(404, "NotFound", format!("{what} \"{name}\" not found"))
    }

    /// 409 because the name is taken.
    #[must_use]
    pub fn already_exists(key: &Key) -> Status {
        let (what, name) = (key.resource.qualified(), &key.name);
        Status::new(409, "AlreadyExists", format!("{what} \"{name}\" already exists"))
    }

    /// 409 because the object differs from the caller's precondition.
    #[must_use]
    pub fn conflict(key: &Key, why: &str) -> Status {
        let (what, name) = (key.resource.qualified(), &key.name);
        Status::new(409, "Conflict", format!("Operation cannot be fulfilled on {what} \"{name}\": {why}"))
    }

    /// 422.
    #[must_use]
    pub fn invalid(key: &Key, why: &str) -> Status {
        let (kind, name) = (key.resource.kind(), &key.name);
        Status::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {why}"))
    }

    /// 403.
    #[must_use]
    pub fn forbidden(key: &Key, why: &str) -> Status {
        let (what, name) = (key.resource.qualified(), &key.name);
        Status::new(403, "Forbidden", format!("{what} \"{name}\" is forbidden: {why}"))
    }

    /// 400.
    #[must_use]
    pub fn bad_request(why: &str) -> Status {
        Status::new(400, "BadRequest", why.to_owned())
    }

    /// 410: the watch cannot be continued.
    #[must_use]
    pub fn expired(asked: u64, oldest: u64) -> Status {
        Status::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    /// 429 with `Retry-After`.
    #[must_use]
    pub fn too_many_requests(retry_after_s: u32) -> Status {
        let message = "the server has received too many requests and has asked us to try again later";
        let retry_after_s = Some(retry_after_s);
        Status { retry_after_s, ..Status::new(429, "TooManyRequests", message.to_owned()) }
    }

    /// 500.
    #[must_use]
    pub fn internal(why: &str) -> Status {
        Status::new(500, "InternalError", format!("Internal error occurred: {why}"))
    }

    /// Error class of the refusal: whether a retry may help.
    #[must_use]
    pub fn class(&self) -> Class {
        match (self.code, self.reason, self.retry_after_s) {
            (404, _, _) => Class::NotFound,
            (409, "AlreadyExists", _) => Class::AlreadyExists,
            (409, _, _) => Class::Conflict,
            (429 | 503, _, Some(s)) => Class::Retryable { after_ms: u64::from(s) * 1000 },
            (429, _, None) => Class::Retryable { after_ms: 0 },
            (400 | 403 | 405 | 410 | 413 | 415 | 422, _, _) => Class::Invalid,
            _ => Class::Unavailable,
        }
    }

    /// The `v1` `Status` object of the answer's body.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let (Some(s), Some(body)) = (self.retry_after_s, body.as_object_mut()) {
            body.insert("details".to_owned(), json!({ "retryAfterSeconds": s }));
        }
        body
    }

    /// The refusal as the node's driver reports it.
    #[must_use]
    pub fn for_call(self, call: &ApiCall) -> ApiError {
        ApiError {
            call: call.describe(),
            class: self.class(),
            code: Some(self.code),
            reason: self.reason.to_owned(),
            message: self.message,
        }
    }
}
