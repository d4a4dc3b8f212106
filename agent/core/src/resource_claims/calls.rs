//! Calls of drivers for one pod: one after the other, the first error ends them.
//!
//! In: claims by driver, the drivers' results. Out: calls, devices in the cache, upstream's error texts. Invariants: drivers are called
//! in sorted order; a driver's answer has all devices of a claim and replaces the earlier ones (upstream appends, so that a second
//! preparation doubles them); the size of an answer is bounded. Upstream: pkg/kubelet/cm/dra/manager.go.

use std::collections::{BTreeMap, VecDeque};

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;

use super::api::{CalledClaim, ClaimAction, ClaimMethod, ClaimResult, ClaimedDevice};
use super::cache::ClaimKey;
use super::common::Common;

/// Most devices of one claim in one driver's answer.
const DEVICES_MAX: usize = 4096;
/// Most bytes of all names of the devices of one claim in one driver's answer.
const NAMES_BYTES_MAX: usize = 1 << 20;
/// Most bytes of all names of all claims. A byte takes up to seven bytes in the checkpoint, which is read up to 64 MiB.
const ALL_NAMES_BYTES_MAX: usize = 6 << 20;
/// Most bytes of a driver's error text; the rest is cut.
const ERROR_BYTES_MAX: usize = 4096;

/// A call without an answer yet.
#[derive(Clone, Debug)]
struct OpenCall {
    driver: String,
    claims: Vec<CalledClaim>,
}

/// The calls of one preparation or unpreparation.
#[derive(Clone, Debug)]
pub(super) struct DriverCalls {
    method: ClaimMethod,
    batches: VecDeque<(String, Vec<ClaimKey>)>,
    open: Option<OpenCall>,
}

impl DriverCalls {
    /// The calls for these claims with their drivers: one for each driver, with all of its claims.
    pub(super) fn new<'a, D>(
        method: ClaimMethod,
        claims: impl IntoIterator<Item = (ClaimKey, D)>,
    ) -> DriverCalls
    where
        D: IntoIterator<Item = &'a String>,
    {
        let mut batches: BTreeMap<String, Vec<ClaimKey>> = BTreeMap::new();
        for (key, drivers) in claims {
            for driver in drivers {
                batches.entry(driver.clone()).or_default().push(key.clone());
            }
        }
        DriverCalls { method, batches: batches.into_iter().collect(), open: None }
    }

    /// Makes the next call; false if there is none.
    ///
    /// # Errors
    /// The driver is not registered.
    pub(super) fn next(
        &mut self,
        pod: &PodUid,
        common: &mut Common,
        out: &mut Outbox<ClaimAction>,
    ) -> Result<bool, String> {
        let Some((driver, keys)) = self.batches.pop_front() else { return Ok(false) };
        let plugin = common.drivers.to_call(&driver)?;
        let claims: Vec<CalledClaim> = keys.iter().filter_map(|key| common.cache.called(key)).collect();
        let call = common.question(pod);
        out.push(ClaimAction::Call { call, plugin, method: self.method, claims: claims.clone() });
        self.open = Some(OpenCall { driver, claims });
        Ok(true)
    }

    /// Handles a driver's answer: records the devices of successful results.
    ///
    /// # Errors
    /// The call failed, or a result of it.
    pub(super) fn answered(
        &mut self,
        answer: Result<BTreeMap<String, ClaimResult>, String>,
        common: &mut Common,
    ) -> Result<(), String> {
        let Some(OpenCall { driver, claims }) = self.open.take() else { return Ok(()) };
        let method = match self.method {
            ClaimMethod::Prepare => "NodePrepareResources",
            ClaimMethod::Unprepare => "NodeUnprepareResources",
        };
        let results = answer.map_err(|error| format!("{method}: {}", cut(&error)))?;
        let mut first_error = None;
        let mut known = 0;
        for (uid, result) in results {
            let Some(claim) = claims.iter().find(|claim| claim.uid == uid) else {
                let uid = cut(&uid);
                first_error.get_or_insert(format!("{method} returned result for unknown claim UID {uid}"));
                continue;
            };
            known += 1;
            let of_claim =
                |error: &str| format!("{method} failed for ResourceClaim {}: {}", claim.name, cut(error));
            if !result.error.is_empty() {
                first_error.get_or_insert(of_claim(&result.error));
            } else if let Err(error) = check_size(&result.devices) {
                first_error.get_or_insert(of_claim(&error));
            } else if self.method == ClaimMethod::Prepare {
                let key = (claim.namespace.clone(), claim.name.clone());
                let before = common.cache.set_devices(&key, &driver, result.devices);
                let bytes = common.cache.devices().map(name_bytes).sum::<usize>();
                if bytes > ALL_NAMES_BYTES_MAX {
                    common.cache.set_devices(&key, &driver, before);
                    first_error.get_or_insert(of_claim(&format!(
                        "the names of the node's claimed devices would have {bytes} bytes, more than {ALL_NAMES_BYTES_MAX}"
                    )));
                }
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        match claims.len().saturating_sub(known) {
            0 => Ok(()),
            skipped => Err(format!("{method} skipped {skipped} ResourceClaims")),
        }
    }
}

/// Checks the size of an answer: a driver must not fill the agent's memory or disk.
fn check_size(devices: &[ClaimedDevice]) -> Result<(), String> {
    if devices.len() > DEVICES_MAX {
        return Err(format!("the driver answered {} devices, more than {DEVICES_MAX}", devices.len()));
    }
    let bytes: usize = devices.iter().map(name_bytes).sum();
    if bytes > NAMES_BYTES_MAX {
        return Err(format!(
            "the names of the driver's devices have {bytes} bytes, more than {NAMES_BYTES_MAX}"
        ));
    }
    Ok(())
}

fn name_bytes(of: &ClaimedDevice) -> usize {
    let list = |names: &[String]| names.iter().map(|name| name.len().saturating_add(1)).sum::<usize>();
    let share = of.share_id.as_ref().map_or(0, String::len);
    of.pool.len() + of.device.len() + share + list(&of.requests) + list(&of.cdi_devices)
}

fn cut(error: &str) -> &str {
    error.get(..error.floor_char_boundary(ERROR_BYTES_MAX)).unwrap_or_default()
}
