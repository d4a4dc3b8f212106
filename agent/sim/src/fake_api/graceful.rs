//! The graceful-deletion protocol: the effect of a DELETE on an object.
//!
//! In: the object, the options, now. Out: [`Outcome`]. Invariants: the grace of a pod only shrinks; 0 removes; an
//! object with finalizers is only marked. Upstream: apiserver/pkg/registry/rest/delete.go, core/pod/strategy.go.

use agent_types::time::Wall;
use serde_json::{Value, json};

use super::resource::{Key, Resource, number, put, text};
use super::status::Status;
use super::strategy::{parse_timestamp, timestamp};

/// The body of a DELETE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// `gracePeriodSeconds`; `None` is the pod's own.
    pub grace_s: Option<i64>,
    /// `preconditions.uid`.
    pub uid: Option<String>,
    /// `preconditions.resourceVersion`.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Parses the options from a request's body; an empty body has no options.
    #[must_use]
    pub fn from_body(body: &Value) -> DeleteOptions {
        let some = |pointer| Some(text(body, pointer)).filter(|t| !t.is_empty()).map(str::to_owned);
        DeleteOptions {
            grace_s: number(body, "/gracePeriodSeconds"),
            uid: some("/preconditions/uid"),
            resource_version: some("/preconditions/resourceVersion"),
        }
    }
}

/// Effect of a DELETE on the object.
pub(super) enum Outcome {
    /// The object is being deleted already; nothing changes.
    Pending,
    /// The object is marked; another client removes it later.
    Marked(Value),
    /// The object is removed now. Watches see the marked object before, if there is one.
    Now(Option<Value>),
}

/// Decides the effect of a DELETE.
pub(super) fn before_delete(
    now: Wall,
    key: &Key,
    object: &Value,
    options: &DeleteOptions,
) -> Result<Outcome, Status> {
    let uid = text(object, "/metadata/uid");
    if let Some(asked) = options.uid.as_deref().filter(|asked| *asked != uid) {
        let why = format!(
            "the UID in the precondition ({asked}) does not match the UID in record ({uid}). The object might have \
             been deleted and then recreated"
        );
        return Err(Status::conflict(key, &why));
    }
    let version = text(object, "/metadata/resourceVersion");
    if let Some(asked) = options.resource_version.as_deref().filter(|asked| *asked != version) {
        let why = format!(
            "the ResourceVersion in the precondition ({asked}) does not match the ResourceVersion in record \
             ({version}). The object might have been modified"
        );
        return Err(Status::conflict(key, &why));
    }
    let finalizers = has_finalizers(object);
    if key.resource != Resource::Pods {
        return Ok(if finalizers { Outcome::Marked(at_once(now, object)) } else { Outcome::Now(None) });
    }
    match mark(now, object, options) {
        Mark::Pending => Ok(Outcome::Pending),
        Mark::AtOnce if finalizers => Ok(Outcome::Marked(at_once(now, object))),
        Mark::AtOnce => Ok(Outcome::Now(None)),
        Mark::Graceful(marked, grace) => {
            Ok(if grace > 0 || finalizers { Outcome::Marked(marked) } else { Outcome::Now(Some(marked)) })
        }
    }
}

/// True if nothing keeps a marked object any more: then the update also removes the object.
pub(super) fn is_over(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
        && number(object, "/metadata/deletionGracePeriodSeconds").unwrap_or(0) == 0
        && !has_finalizers(object)
}

fn has_finalizers(object: &Value) -> bool {
    object.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty())
}

enum Mark {
    Pending,
    AtOnce,
    Graceful(Value, i64),
}

const NS: i64 = 1_000_000_000;

fn mark(now: Wall, object: &Value, options: &DeleteOptions) -> Mark {
    let asked = options.grace_s.map(|s| if s < 0 { 1 } else { s });
    let set = |at: Wall, grace: i64, generation: i64| {
        let mut marked = object.clone();
        put(&mut marked, "metadata", "deletionTimestamp", Some(json!(timestamp(at))));
        put(&mut marked, "metadata", "deletionGracePeriodSeconds", Some(json!(grace)));
        if let Some(old) = number(object, "/metadata/generation").filter(|g| *g > 0) {
            put(&mut marked, "metadata", "generation", Some(json!(old + generation)));
        }
        Mark::Graceful(marked, grace)
    };
    let at = parse_timestamp(text(object, "/metadata/deletionTimestamp"));
    let Some(at) = at else {
        let own = number(object, "/spec/terminationGracePeriodSeconds").unwrap_or(0);
        let over = matches!(text(object, "/status/phase"), "Succeeded" | "Failed");
        let unscheduled = text(object, "/spec/nodeName").is_empty();
        let grace = if over || unscheduled { 0 } else { asked.unwrap_or(own) };
        let grace = if grace < 0 { 1 } else { grace };
        return set(Wall(now.0.saturating_add(grace.saturating_mul(NS))), grace, 1);
    };
    let before = match number(object, "/metadata/deletionGracePeriodSeconds") {
        None | Some(0) => return Mark::AtOnce,
        Some(s) => s,
    };
    match asked {
        Some(grace) if grace < before => {
            let moved = Wall(at.0.saturating_add((grace - before).saturating_mul(NS)));
            // The time of deletion does not move into the past: a graceful deletion whose time is over gets the smallest grace
            // period, and the node finishes it.
            if moved < now { set(now, grace.min(1), 0) } else { set(moved, grace, 0) }
        }
        _ => Mark::Pending,
    }
}

fn at_once(now: Wall, object: &Value) -> Value {
    let mut marked = object.clone();
    let old = parse_timestamp(text(object, "/metadata/deletionTimestamp"));
    if old.is_none()
        && let Some(generation) = number(object, "/metadata/generation").filter(|g| *g > 0)
    {
        put(&mut marked, "metadata", "generation", Some(json!(generation + 1)));
    }
    if old.is_none_or(|at| at > now) {
        put(&mut marked, "metadata", "deletionTimestamp", Some(json!(timestamp(now))));
    }
    put(&mut marked, "metadata", "deletionGracePeriodSeconds", Some(json!(0)));
    marked
}
