//! A request in terms of the authorizer: a verb on a subresource of this node.
//!
//! In: method and path as they are on the wire, undecoded. Out: [`Attributes`]. Invariant: total, and strict
//! for unknown paths; the router compares the same undecoded path, so the served path is always the
//! authorized one.

/// Paths (and everything below) with a subresource of their own.
const OWN: &[(&str, &str)] = &[
    ("/stats", "stats"),
    ("/metrics", "metrics"),
    ("/logs", "log"),
    ("/checkpoint", "checkpoint"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
];

/// Paths with a finer subresource that is tried before `proxy`.
const FINE: &[(&str, &str)] =
    &[("/healthz", "healthz"), ("/pods", "pods"), ("/runningpods", "pods"), ("/configz", "configz")];

/// The strictest subresource: it allows every use of the node's API.
const PROXY: &str = "proxy";

/// A question for the authorizer: one allowed subresource is enough, tried in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// RBAC verb; empty for a method that has none.
    pub verb: &'static str,
    /// Subresources of `nodes`.
    pub subresources: Vec<&'static str>,
}

/// What to do next in an authorisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationStep {
    /// Let it through.
    Allowed,
    /// Status 403.
    Denied,
    /// Review this subresource (or look up its cached answer).
    Ask(&'static str),
}

/// The attributes of a request.
#[must_use]
pub fn attributes(method: &str, path: &str) -> Attributes {
    let verb = match method {
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    let of = |table: &[(&str, &'static str)]| {
        table.iter().find(|(prefix, _)| is_within(path, prefix)).map(|(_, subresource)| *subresource)
    };
    let subresources = match (of(OWN), of(FINE)) {
        (Some(own), _) => vec![own],
        (None, Some(fine)) => vec![fine, PROXY],
        (None, None) => vec![PROXY],
    };
    Attributes { verb, subresources }
}

/// True if `path` is `prefix` or lies below it.
fn is_within(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Attributes {
    /// What follows from the denials so far; the first allowed subresource ends it.
    #[must_use]
    pub fn next(&self, denied: usize, allowed: bool) -> AuthorizationStep {
        match self.subresources.get(denied) {
            _ if allowed => AuthorizationStep::Allowed,
            Some(subresource) => AuthorizationStep::Ask(subresource),
            None => AuthorizationStep::Denied,
        }
    }

    /// The body of a 403.
    #[must_use]
    pub fn forbidden(&self, user: &str) -> String {
        format!("Forbidden ({})\n", self.of_user(user))
    }

    /// The body of a 500: the review failed.
    #[must_use]
    pub fn failed(&self, user: &str) -> String {
        format!("Authorization error ({})\n", self.of_user(user))
    }

    fn of_user(&self, user: &str) -> String {
        let subresources = self.subresources.join(" ");
        format!("user={user}, verb={}, resource=nodes, subresource(s)=[{subresources}]", self.verb)
    }
}
