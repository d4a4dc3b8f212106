//! Resource claims of one pod (dynamic resource allocation), as plain values.
//!
//! In: the pod's specification and status ([`ClaimsOfPod`]), answers of DRA drivers. Out: CDI devices and the health of devices for each
//! container ([`PodClaims`]). Invariants: lists are sorted, so that equal claims give equal values; namespace and name identify a
//! claim, and its UID does where a later claim of the same name must not be confused with it. Source: KEP-4381, KEP-4680.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The claims that a pod names, and the containers that use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimsOfPod {
    /// Namespace of the pod and of its claims.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Name of the pod's scheduling group, for owners of claims (gate DRAWorkloadResourceClaims).
    pub scheduling_group: Option<String>,
    /// Claims in the order of `spec.resourceClaims`, then the claim of extended resources.
    pub claims: Vec<NamedClaim>,
    /// Containers that use claims: init containers, then app containers.
    pub containers: Vec<ClaimUser>,
}

/// A claim that a pod names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedClaim {
    /// Name of the ResourceClaim.
    pub name: String,
    /// True if the claim was created from a template: the pod must be its owner.
    pub is_of_template: bool,
}

/// A container that uses claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimUser {
    /// Name of the container.
    pub name: String,
    /// Uses in the order of the specification.
    pub uses: Vec<ClaimUse>,
}

/// The use of one claim, or of one request of it, by a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimUse {
    /// Name of the ResourceClaim.
    pub claim: String,
    /// The request whose devices the container gets; empty: devices of all requests.
    pub request: String,
    /// The name in `status.containerStatuses[].allocatedResourcesStatus`: `claim:NAME` or `claim:NAME/REQUEST`; `None`: the status does
    /// not list the use (init containers, claims of extended resources).
    pub status_name: Option<String>,
}

/// Devices of a pod's claims for its containers, by container name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodClaims {
    /// Containers that use claims.
    pub containers: BTreeMap<String, ContainerClaims>,
}

/// Devices of a pod's claims for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerClaims {
    /// Names of CDI devices, before those of device plugins.
    pub cdi_devices: Vec<String>,
    /// Upstream's text about a claim that is not known on this node: the container cannot be created.
    pub missing: Option<String>,
    /// Health of the devices by [`ClaimUse::status_name`]; a use without devices has no entry.
    pub health: BTreeMap<String, Vec<ClaimedDeviceHealth>>,
}

/// Health of a device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimedDeviceHealth {
    /// The first CDI device, or `driver/pool/device`.
    pub resource_id: String,
    /// `Healthy`, `Unhealthy` or `Unknown`.
    pub health: String,
    /// The driver's message.
    pub message: Option<String>,
}
