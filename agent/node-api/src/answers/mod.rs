//! Answers: objects of a request from a snapshot. Pure.
//!
//! In: a request, [`Facts`]. Out: a `GetResponse`. Invariants: a kind that cannot be answered has a failure with its reason, and the
//! others are whole; nothing is left out without a failure that says so.

mod boot;
mod machine;
mod node;
pub mod problems;
pub mod services;

use orlop_proto::node_api::API_VERSION;
use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetRequest, GetResponse, KindFailure, Meta, Object, VersionInfo};

use crate::facts::Facts;
use crate::kinds::{ObjectKind, requested};
use crate::refusal::{Reason, Refusal};

/// Objects of one kind in one answer.
pub const OBJECTS_MAX: usize = 500;

/// Objects of a kind by their names.
type NamedObjects = Vec<(String, Status)>;

/// The answer to a request.
///
/// # Errors
/// The request names what is no kind, or too much.
pub fn get(request: &GetRequest, facts: &Facts) -> Result<GetResponse, Refusal> {
    let mut response = GetResponse::default();
    let mut fail = |kind: ObjectKind, refusal: &Refusal| {
        response.failures.push(KindFailure {
            kind: kind.name().to_owned(),
            message: refusal.to_string(),
            error: Some(refusal.detail()),
        });
    };
    let mut objects = Vec::new();
    for kind in requested(request)? {
        let mut named = match of_kind(kind, facts) {
            Ok(named) => named,
            Err(refusal) => {
                fail(kind, &refusal);
                continue;
            }
        };
        if !request.names.is_empty() {
            named.retain(|(name, _)| request.names.contains(name));
        }
        if named.len() > OBJECTS_MAX {
            let message = format!("{} objects, of which the first {OBJECTS_MAX} are here", named.len());
            fail(kind, &Refusal::new(Reason::TooManyObjects, kind.name(), message));
            named.truncate(OBJECTS_MAX);
        }
        objects.extend(named.into_iter().map(|(name, status)| object(kind, name, status, facts)));
    }
    response.objects = objects;
    Ok(response)
}

fn of_kind(kind: ObjectKind, facts: &Facts) -> Result<NamedObjects, Refusal> {
    Ok(match kind {
        ObjectKind::Node => vec![(facts.node_name(), Status::Node(node::node(facts)))],
        ObjectKind::Slots => boot::slots(facts)?,
        ObjectKind::Boot => boot::phases(facts)?,
        ObjectKind::Problems => problems::objects(facts),
        ObjectKind::Services => services::objects(facts)?,
        ObjectKind::Processes => machine::processes(facts)?,
        ObjectKind::Addresses => machine::addresses(facts),
        ObjectKind::Links => machine::links(facts),
        ObjectKind::Disks => machine::disks(facts),
        ObjectKind::Mounts => machine::mounts(facts)?,
        ObjectKind::Memory => machine::memory(facts)?,
        ObjectKind::Time => machine::time(facts),
        ObjectKind::Operations => operations(facts)?,
    })
}

fn operations(facts: &Facts) -> Result<NamedObjects, Refusal> {
    let operations = facts.operations.clone().unwrap_or_else(|| Ok(Vec::new()))?;
    Ok(operations.into_iter().map(|status| (status.id.clone(), Status::Operation(status))).collect())
}

fn object(kind: ObjectKind, name: String, status: Status, facts: &Facts) -> Object {
    let metadata =
        Meta { name, boot_id: facts.boot_id.trim().to_owned(), observed_at: facts.observed_at.clone() };
    Object {
        api_version: API_VERSION.to_owned(),
        kind: kind.name().to_owned(),
        metadata: Some(metadata),
        status: Some(status),
    }
}

/// What runs here. `server_key` is the fingerprint of the key in the network, if the port is open.
#[must_use]
pub fn version(server_version: &str, server_key: &str, facts: &Facts) -> VersionInfo {
    VersionInfo {
        api_version: API_VERSION.to_owned(),
        server_version: server_version.to_owned(),
        image_version: facts.os_release_value("IMAGE_VERSION"),
        node: facts.node_name(),
        boot_id: facts.boot_id.trim().to_owned(),
        kernel: facts.kernel.trim().to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
        server_key: server_key.to_owned(),
    }
}

#[cfg(test)]
mod tests;
