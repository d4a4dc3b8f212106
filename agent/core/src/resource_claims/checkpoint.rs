//! `dra_manager_state`, the file of the node's claims, byte for byte as upstream's.
//!
//! ```text
//! {"Data": "<JSON text of the claims>", "Checksum": CRC-32 of the text}
//! ```
//! In: the cache, or the text of a file. Out: the text, or the cache. Invariants: an upstream kubelet v1.36 reads the files of this
//! agent, and this agent reads its files, so either may follow the other on one disk; claims, pods and drivers are sorted (upstream
//! writes claims in any order). Kind and version are not checked, unknown fields are ignored, missing fields are empty.
//! Upstream: pkg/kubelet/cm/dra/state.

use std::collections::BTreeMap;

use agent_types::ids::PodUid;
use serde::{Deserialize, Serialize};

use super::api::ClaimedDevice;
use super::cache::{CachedClaim, ClaimCache};

/// Name of the file in the agent's root directory.
pub const CLAIMS_STATE: &str = "dra_manager_state";

const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// Reason for which a file cannot be used. Upstream's kubelet then stops with this text, because claims of running pods would be lost.
/// The daemon decides: after a boot of the machine no container with a claim's devices runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The file is not JSON of this form.
    #[error(
        "create ResourceClaim cache: GetOrCreate() on checkpoint state: failed to get checkpoint dra_manager_state: {0}"
    )]
    NotJson(String),
    /// The checksum does not match.
    #[error(
        "create ResourceClaim cache: GetOrCreate() on checkpoint state: failed to get checkpoint dra_manager_state: checkpoint is corrupted"
    )]
    Corrupted {
        /// Checksum of the file.
        found: u32,
        /// Checksum of the file's data.
        expected: u32,
    },
    /// The data is not JSON of this form.
    #[error("create ResourceClaim cache: GetEntries() on checkpoint: {0}")]
    BadData(String),
}

/// Upstream's value before it reads the file: for a missing field the value of an empty list stays.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
struct File {
    data: String,
    checksum: u32,
}

impl Default for File {
    fn default() -> File {
        file(None)
    }
}

/// `None` is Go's nil: the node never had a claim.
#[derive(Serialize)]
struct Data {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<ClaimState>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReadData {
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<ClaimState>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct ClaimState {
    #[serde(rename = "ClaimUID")]
    uid: String,
    #[serde(rename = "ClaimName")]
    name: String,
    #[serde(rename = "Namespace")]
    namespace: String,
    #[serde(rename = "PodUIDs")]
    pods: Option<BTreeMap<String, Empty>>,
    #[serde(rename = "DriverState")]
    drivers: Option<BTreeMap<String, DriverState>>,
}

/// `{}`, a member of a set.
#[derive(Default, Deserialize, Serialize)]
struct Empty {}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
struct DriverState {
    devices: Option<Vec<DeviceState>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct DeviceState {
    #[serde(rename = "PoolName")]
    pool: String,
    #[serde(rename = "DeviceName")]
    device: String,
    #[serde(rename = "ShareID")]
    share_id: Option<String>,
    #[serde(rename = "RequestNames")]
    requests: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    cdi_devices: Option<Vec<String>>,
}

/// The text of the first file, of a node that never had a claim.
pub(super) fn first() -> String {
    text(&file(None))
}

/// The text for these claims.
pub(super) fn write(cache: &ClaimCache) -> String {
    let claim = |((namespace, name), claim): (&(String, String), &CachedClaim)| ClaimState {
        uid: claim.uid.clone(),
        name: name.clone(),
        namespace: namespace.clone(),
        pods: Some(claim.pods.iter().map(|pod| (pod.as_str().to_owned(), Empty {})).collect()),
        drivers: Some(claim.drivers.iter().map(|(driver, of)| (driver.clone(), driver_state(of))).collect()),
    };
    text(&file(Some(cache.iter().map(claim).collect())))
}

fn driver_state(devices: &[ClaimedDevice]) -> DriverState {
    let device = |of: &ClaimedDevice| DeviceState {
        pool: of.pool.clone(),
        device: of.device.clone(),
        share_id: of.share_id.clone(),
        requests: not_empty(of.requests.clone()),
        cdi_devices: not_empty(of.cdi_devices.clone()),
    };
    DriverState { devices: not_empty(devices.iter().map(device).collect()) }
}

/// Go's lists of messages are nil when they are empty.
fn not_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn file(claims: Option<Vec<ClaimState>>) -> File {
    let data = text(&Data { kind: KIND, api_version: API_VERSION, claims });
    let checksum = crc32fast::hash(data.as_bytes());
    File { data, checksum }
}

/// JSON as Go writes it. Go also escapes these characters; JSON has none of them outside of strings.
fn text(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

/// The claims of a file.
///
/// # Errors
/// The file cannot be used.
pub(super) fn read(text: &str) -> Result<ClaimCache, CheckpointError> {
    let file: File =
        serde_json::from_str(text).map_err(|error| CheckpointError::NotJson(json_error(&error)))?;
    let expected = crc32fast::hash(file.data.as_bytes());
    if file.checksum != expected {
        return Err(CheckpointError::Corrupted { found: file.checksum, expected });
    }
    let data: ReadData =
        serde_json::from_str(&file.data).map_err(|error| CheckpointError::BadData(json_error(&error)))?;
    let claim = |of: ClaimState| {
        let drivers = of.drivers.into_iter().flatten();
        let claim = CachedClaim {
            uid: of.uid,
            pods: of.pods.into_iter().flatten().map(|(pod, _)| PodUid::from(pod)).collect(),
            drivers: drivers.map(|(driver, of)| (driver, devices(of))).collect(),
            prepared: false,
        };
        ((of.namespace, of.name), claim)
    };
    Ok(ClaimCache::of(data.claims.into_iter().flatten().map(claim)))
}

fn devices(of: DriverState) -> Vec<ClaimedDevice> {
    let device = |of: DeviceState| ClaimedDevice {
        pool: of.pool,
        device: of.device,
        share_id: of.share_id,
        requests: of.requests.unwrap_or_default(),
        cdi_devices: of.cdi_devices.unwrap_or_default(),
    };
    of.devices.into_iter().flatten().map(device).collect()
}

fn json_error(error: &serde_json::Error) -> String {
    if error.is_eof() { "unexpected end of JSON input".to_owned() } else { error.to_string() }
}

#[cfg(test)]
mod tests;
