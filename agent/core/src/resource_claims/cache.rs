//! The node's claims: users, drivers and devices of each.
//!
//! In: references and devices. Out: lookups, devices, counts. Invariants: namespace and name identify a claim; the first reference
//! creates an entry, and the end of the last reference removes it; "prepared" is never on the disk.
//! Upstream: pkg/kubelet/cm/dra/claiminfo.go.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::PodUid;

use super::api::{CalledClaim, ClaimView, ClaimedDevice, ClaimsView};
use super::judging::JudgedClaim;

/// The entry of [`ClaimsView::in_use`] for all claims.
pub const ANY_DRIVER: &str = "<any>";

/// Namespace and name of a claim.
pub(super) type ClaimKey = (String, String);

/// A claim that pods of the node use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CachedClaim {
    /// UID of the claim.
    pub(super) uid: String,
    /// Pods that use the claim.
    pub(super) pods: BTreeSet<PodUid>,
    /// Devices by driver. Each driver of the allocation has an entry, also before it has returned devices.
    pub(super) drivers: BTreeMap<String, Vec<ClaimedDevice>>,
    /// All drivers have prepared the claim, and none has unprepared it since.
    pub(super) prepared: bool,
}

/// All claims of the node.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimCache {
    claims: BTreeMap<ClaimKey, CachedClaim>,
}

impl ClaimCache {
    /// The cache with the claims of a checkpoint. If two claims have the same name the last one counts, as upstream.
    pub(super) fn of(claims: impl IntoIterator<Item = (ClaimKey, CachedClaim)>) -> ClaimCache {
        ClaimCache { claims: claims.into_iter().collect() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ClaimKey, &CachedClaim)> {
        self.claims.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    pub(super) fn get(&self, key: &ClaimKey) -> Option<&CachedClaim> {
        self.claims.get(key)
    }

    /// The claim in a call.
    pub(super) fn called(&self, key: &ClaimKey) -> Option<CalledClaim> {
        let (namespace, name) = key.clone();
        self.get(key).map(|claim| CalledClaim { namespace, uid: claim.uid.clone(), name })
    }

    /// Adds the pod to the claim's users; creates the entry if there is none.
    ///
    /// # Errors
    /// The entry belongs to an earlier claim of the same name.
    pub(super) fn refer(&mut self, key: &ClaimKey, judged: &JudgedClaim, pod: &PodUid) -> Result<(), String> {
        let fresh = || CachedClaim {
            uid: judged.uid.clone(),
            drivers: judged.drivers.iter().map(|driver| (driver.clone(), Vec::new())).collect(),
            ..CachedClaim::default()
        };
        let claim = self.claims.entry(key.clone()).or_insert_with(fresh);
        if claim.uid != judged.uid {
            return Err(format!(
                "old ResourceClaim with same name {} and different UID {} still exists (previous pod force-deleted?!)",
                judged.name, claim.uid
            ));
        }
        claim.pods.insert(pod.clone());
        Ok(())
    }

    /// Replaces the driver's devices of the claim by its full answer. Returns the earlier devices.
    pub(super) fn set_devices(
        &mut self,
        key: &ClaimKey,
        driver: &str,
        devices: Vec<ClaimedDevice>,
    ) -> Vec<ClaimedDevice> {
        let claim = self.claims.get_mut(key);
        claim.and_then(|claim| claim.drivers.insert(driver.to_owned(), devices)).unwrap_or_default()
    }

    /// Devices of all claims.
    pub(super) fn devices(&self) -> impl Iterator<Item = &ClaimedDevice> {
        self.claims.values().flat_map(|claim| claim.drivers.values().flatten())
    }

    pub(super) fn set_prepared(&mut self, key: &ClaimKey, prepared: bool) {
        if let Some(claim) = self.claims.get_mut(key) {
            claim.prepared = prepared;
        }
    }

    /// Drops the pod's reference from claims with other users. True if there was one.
    pub(super) fn drop_shared(&mut self, pod: &PodUid) -> bool {
        let mut dropped = false;
        for claim in self.claims.values_mut().filter(|claim| claim.pods.len() > 1) {
            dropped |= claim.pods.remove(pod);
        }
        dropped
    }

    /// Claims that this pod alone uses.
    pub(super) fn sole(&self, pod: &PodUid) -> BTreeSet<ClaimKey> {
        let is_sole = |claim: &CachedClaim| claim.pods.len() == 1 && claim.pods.contains(pod);
        self.claims.iter().filter(|(_, claim)| is_sole(claim)).map(|(key, _)| key.clone()).collect()
    }

    /// Removes the pod's reference after the claim is unprepared.
    pub(super) fn give_back(&mut self, key: &ClaimKey, pod: &PodUid) {
        if let Some(claim) = self.claims.get_mut(key) {
            claim.pods.remove(pod);
            if claim.pods.is_empty() {
                self.claims.remove(key);
            }
        }
    }

    pub(super) fn references(&self, pod: &PodUid) -> bool {
        self.claims.values().any(|claim| claim.pods.contains(pod))
    }

    /// All pods that use claims.
    pub(super) fn pods(&self) -> BTreeSet<PodUid> {
        self.claims.values().flat_map(|claim| claim.pods.iter().cloned()).collect()
    }

    /// Pods that use claims with devices of these drivers.
    pub(super) fn pods_of_drivers(&self, drivers: &BTreeSet<String>) -> BTreeSet<PodUid> {
        let uses = |claim: &&CachedClaim| claim.drivers.keys().any(|driver| drivers.contains(driver));
        self.claims.values().filter(uses).flat_map(|claim| claim.pods.iter().cloned()).collect()
    }

    pub(super) fn view(&self) -> ClaimsView {
        let mut in_use = BTreeMap::from([(ANY_DRIVER.to_owned(), 0)]);
        let mut count = |driver: &str| *in_use.entry(driver.to_owned()).or_default() += 1;
        for claim in self.claims.values().filter(|claim| claim.prepared) {
            count(ANY_DRIVER);
            claim.drivers.keys().for_each(|driver| count(driver));
        }
        let view =
            |claim: &CachedClaim| ClaimView { pods: claim.pods.clone(), devices: claim.drivers.clone() };
        let claims = self.claims.iter().filter(|(_, claim)| !claim.pods.is_empty());
        ClaimsView { claims: claims.map(|(key, claim)| (key.clone(), view(claim))).collect(), in_use }
    }
}
