//! The devices of a pod's claims for its containers: CDI devices and their health.
//!
//! In: the pod's claims, the node's claims, the reported health. Out: [`PodClaims`]. Invariants: claims are in the order of the
//! container, drivers are sorted, devices are in the driver's order; each CDI device is named once (upstream names it once for each use
//! of the claim, and the runtime would apply the device's edits as often). Upstream: pkg/kubelet/cm/dra/manager.go GetResources,
//! UpdateAllocatedResourcesStatus.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::runtime::claims::{
    ClaimUse, ClaimUser, ClaimedDeviceHealth, ClaimsOfPod, ContainerClaims, PodClaims,
};
use agent_types::time::Mono;

use super::api::{ClaimGates, ClaimedDevice, DeviceHealth};
use super::cache::{CachedClaim, ClaimCache};
use super::health::HealthTables;

/// Inputs of the answers for containers.
#[derive(Clone, Copy)]
pub(super) struct DeviceLookup<'a> {
    pub(super) cache: &'a ClaimCache,
    pub(super) health: &'a HealthTables,
    pub(super) gates: ClaimGates,
    pub(super) now: Mono,
}

impl DeviceLookup<'_> {
    /// The devices of all containers of the pod.
    pub(super) fn of_pod(&self, pod: &ClaimsOfPod) -> PodClaims {
        let of = |user: &ClaimUser| (user.name.clone(), self.of_container(&pod.namespace, user));
        PodClaims { containers: pod.containers.iter().map(of).collect() }
    }

    fn of_container(&self, namespace: &str, user: &ClaimUser) -> ContainerClaims {
        let mut claims = ContainerClaims::default();
        let mut seen = BTreeSet::new();
        for of in &user.uses {
            let Some(claim) = self.cache.get(&(namespace.to_owned(), of.claim.clone())) else {
                claims.missing.get_or_insert_with(|| {
                    format!(
                        "internal error: unable to get claim info for ResourceClaim {} in namespace {namespace}",
                        of.claim
                    )
                });
                continue;
            };
            let names = devices(claim, &of.request).flat_map(|(_, device)| &device.cdi_devices);
            claims.cdi_devices.extend(names.filter(|name| seen.insert(*name)).cloned());
            if let Some((name, health)) = self.health_of(claim, of) {
                claims.health.insert(name, health);
            }
        }
        claims
    }

    /// The entry of the container's status; `None`: the status does not list the use, or it has no devices.
    fn health_of(&self, claim: &CachedClaim, of: &ClaimUse) -> Option<(String, Vec<ClaimedDeviceHealth>)> {
        let name = of.status_name.as_ref().filter(|_| self.gates.health)?;
        // The status lists devices by their request, without the chosen subrequest (KEP-4816).
        let request = of.request.split('/').next().unwrap_or_default();
        let mut by_id: BTreeMap<String, ClaimedDeviceHealth> = BTreeMap::new();
        for (driver, device) in devices(claim, request) {
            let health = self.health_of_device(driver, device);
            by_id.entry(health.resource_id.clone()).or_insert(health);
        }
        (!by_id.is_empty()).then(|| (name.clone(), by_id.into_values().collect()))
    }

    fn health_of_device(&self, driver: &str, device: &ClaimedDevice) -> ClaimedDeviceHealth {
        let (health, message) = self.health.get(driver, &device.pool, &device.device, self.now);
        let by_names = || format!("{driver}/{}/{}", device.pool, device.device);
        ClaimedDeviceHealth {
            resource_id: device.cdi_devices.first().cloned().unwrap_or_else(by_names),
            health: word(health).to_owned(),
            message: (self.gates.health_message && !message.is_empty()).then(|| message.to_owned()),
        }
    }
}

/// The devices of a request with their drivers; the empty request has all devices.
fn devices<'a>(claim: &'a CachedClaim, request: &str) -> impl Iterator<Item = (&'a str, &'a ClaimedDevice)> {
    let is_of = move |device: &ClaimedDevice| {
        request.is_empty() || device.requests.is_empty() || device.requests.iter().any(|name| name == request)
    };
    let all = claim.drivers.iter();
    let all = all.flat_map(|(driver, devices)| devices.iter().map(move |device| (driver.as_str(), device)));
    all.filter(move |(_, device)| is_of(device))
}

/// The health as the pod's status and the health file spell it.
pub(super) fn word(health: DeviceHealth) -> &'static str {
    match health {
        DeviceHealth::Healthy => "Healthy",
        DeviceHealth::Unhealthy => "Unhealthy",
        DeviceHealth::Unknown => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource_claims::api::{PluginId, ReportedHealth};
    use agent_types::time::Now;

    fn device(name: &str, requests: &[&str], cdi: &[&str]) -> ClaimedDevice {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        ClaimedDevice {
            pool: "pool".to_owned(),
            device: name.to_owned(),
            share_id: None,
            requests: list(requests),
            cdi_devices: list(cdi),
        }
    }

    fn cache() -> ClaimCache {
        let claim = CachedClaim {
            drivers: [
                ("b".to_owned(), vec![device("b1", &["r1"], &["v/c=b1"]), device("b2", &["r2"], &[])]),
                (
                    "a".to_owned(),
                    vec![device("a1", &[], &["v/c=a1", "v/c=x"]), device("a2", &["r1"], &["v/c=a1"])],
                ),
            ]
            .into(),
            ..CachedClaim::default()
        };
        ClaimCache::of([(("ns".to_owned(), "c".to_owned()), claim)])
    }

    fn pod(uses: &[(&str, &str)]) -> ClaimsOfPod {
        let of = |(claim, request): &(&str, &str)| ClaimUse {
            claim: (*claim).to_owned(),
            request: (*request).to_owned(),
            status_name: Some(format!("claim:{claim}/{request}")),
        };
        ClaimsOfPod {
            namespace: "ns".to_owned(),
            containers: vec![ClaimUser { name: "c".to_owned(), uses: uses.iter().map(of).collect() }],
            ..ClaimsOfPod::default()
        }
    }

    fn container(uses: &[(&str, &str)], health: &HealthTables, gates: ClaimGates) -> ContainerClaims {
        let cache = cache();
        let lookup = DeviceLookup { cache: &cache, health, gates, now: Mono(0) };
        lookup.of_pod(&pod(uses)).containers["c"].clone()
    }

    const GATES: ClaimGates = ClaimGates { health: true, health_message: true, workload_claims: false };

    #[test]
    fn a_request_names_its_devices_and_those_without_requests() {
        let health = HealthTables::default();
        for (uses, cdi) in [
            (&[("c", "")][..], &["v/c=a1", "v/c=x", "v/c=b1"][..]),
            (&[("c", "r1")], &["v/c=a1", "v/c=x", "v/c=b1"]),
            (&[("c", "r2")], &["v/c=a1", "v/c=x"]),
            (&[("c", "none"), ("c", "")], &["v/c=a1", "v/c=x", "v/c=b1"]),
            (&[], &[]),
        ] {
            let claims = container(uses, &health, GATES);
            assert_eq!(claims.cdi_devices, cdi, "{uses:?}");
            assert_eq!(claims.missing, None);
        }
    }

    #[test]
    fn a_claim_that_is_not_there_has_upstreams_words() {
        let claims = container(&[("c", ""), ("d", "")], &HealthTables::default(), GATES);
        let words = "internal error: unable to get claim info for ResourceClaim d in namespace ns";
        assert_eq!(claims.missing.as_deref(), Some(words));
    }

    #[test]
    fn health_is_listed_once_for_each_resource() {
        let mut health = HealthTables::default();
        let report = ReportedHealth {
            pool: "pool".to_owned(),
            device: "a1".to_owned(),
            health: DeviceHealth::Unhealthy,
            timeout: None,
            message: "hot".to_owned(),
        };
        health.report(PluginId(1), "a", vec![report], Now::default());
        let entry = |id: &str, health: &str, message: Option<&str>| ClaimedDeviceHealth {
            resource_id: id.to_owned(),
            health: health.to_owned(),
            message: message.map(str::to_owned),
        };
        let claims = container(&[("c", "r2/sub")], &health, GATES);
        let expected = [entry("b/pool/b2", "Unknown", None), entry("v/c=a1", "Unhealthy", Some("hot"))];
        assert_eq!(claims.health["claim:c/r2/sub"], expected);
        let claims = container(&[("c", "")], &health, ClaimGates { health_message: false, ..GATES });
        let expected = [
            entry("b/pool/b2", "Unknown", None),
            entry("v/c=a1", "Unhealthy", None),
            entry("v/c=b1", "Unknown", None),
        ];
        assert_eq!(claims.health["claim:c/"], expected);
        assert!(container(&[("c", "")], &health, ClaimGates { health: false, ..GATES }).health.is_empty());
    }
}
