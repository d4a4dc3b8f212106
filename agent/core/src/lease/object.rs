//! The Lease object: its contents at creation, and its changes at renewal.
//!
//! In: configuration, the lease of the API server, the Node's UID, the time. Out: the lease to send.

use agent_types::api_time::timestamp;
use agent_types::time::Wall;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};

use super::{LeaseConfig, NAMESPACE};

/// True if the lease has an owner reference.
pub(super) fn has_owner(lease: &Lease) -> bool {
    lease.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty())
}

/// The lease, renewed at `wall`: `base` with the necessary changes, or a new one.
pub(super) fn renewed(config: &LeaseConfig, base: Option<&Lease>, owner: Option<&str>, wall: Wall) -> Lease {
    let mut lease = base.cloned().unwrap_or_default();
    lease.metadata.name = Some(config.node_name.to_string());
    lease.metadata.namespace = Some(NAMESPACE.to_owned());
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(config.node_name.to_string());
    spec.lease_duration_seconds = Some(i32::try_from(config.duration_s).unwrap_or(i32::MAX));
    spec.renew_time = Some(MicroTime(timestamp(wall)));
    if let Some(uid) = owner {
        own(lease.metadata.owner_references.get_or_insert_default(), &config.node_name, uid);
    }
    lease
}

/// The Node is an owner, under the UID that it has now: else the garbage collector takes the lease away.
fn own(owners: &mut Vec<OwnerReference>, node_name: &str, uid: &str) {
    let own = owners.iter().position(|o| o.kind == "Node" && o.name == node_name);
    match own {
        Some(index) => uid.clone_into(&mut owners[index].uid),
        None if owners.is_empty() => owners.push(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node_name.to_owned(),
            uid: uid.to_owned(),
            block_owner_deletion: None,
            controller: None,
        }),
        // Another client made itself the owner of the lease.
        None => {}
    }
}
