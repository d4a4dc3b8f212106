//! `kubelet_internal_checkpoint`, the device manager's file.
//!
//! In: the state, or bytes. Out: bytes, or the state. Invariants: those of [`super`], but a checksum of 0 is not accepted. Lists are
//! sorted (upstream: in any order). A file that cannot be used is logged, and the agent continues without it, as upstream.
//! Upstream: devicemanager/checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orlop_config::fnv::fnv32;
use serde::{Deserialize, Serialize};

use super::{CheckpointError, spew_list, spew_map};
use crate::devices::manager::DeviceState;
use crate::devices::plugin::AllocateResponse;
use crate::devices::records::{DeviceRecord, PodRecords};
use crate::devices::run_options::RunOptions;
use crate::request::ResourceName;

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    #[serde(default)]
    data: Data,
    #[serde(default)]
    checksum: u64,
}

/// `None` is Go's nil, which the checksum distinguishes from an empty list or map.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
struct Data {
    pod_device_entries: Option<Vec<PodDevicesEntry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

impl Default for Data {
    /// The value into which upstream reads a file.
    fn default() -> Data {
        Data { pod_device_entries: Some(Vec::new()), registered_devices: Some(BTreeMap::new()) }
    }
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct PodDevicesEntry {
    #[serde(rename = "PodUID")]
    uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By node. The keys are texts because Go sorts them as texts in JSON, and as numbers for the checksum.
    #[serde(rename = "DeviceIDs")]
    ids: Option<BTreeMap<String, Option<Vec<String>>>>,
    /// Base64.
    #[serde(rename = "AllocResp")]
    response: Option<String>,
}

const NIL: &str = "<nil>";

fn texts(all: Option<&Vec<String>>) -> String {
    all.map_or_else(|| NIL.to_owned(), |all| spew_list(all.iter().cloned()))
}

impl PodDevicesEntry {
    fn nodes(&self) -> Result<BTreeMap<i64, Option<&Vec<String>>>, CheckpointError> {
        let number = |text: &str| {
            text.parse::<i64>().map_err(|_| CheckpointError::NotJson(format!("{text:?} is no number")))
        };
        self.ids.iter().flatten().map(|(node, ids)| Ok((number(node)?, ids.as_ref()))).collect()
    }

    fn bytes(&self) -> Result<Vec<u8>, CheckpointError> {
        let text = self.response.as_deref().unwrap_or_default();
        STANDARD.decode(text).map_err(|error| CheckpointError::NotJson(error.to_string()))
    }

    fn spew(&self) -> Result<String, CheckpointError> {
        let nodes = self.nodes()?.into_iter().map(|(node, ids)| (node.to_string(), texts(ids)));
        let nodes = if self.ids.is_some() { spew_map(nodes) } else { NIL.to_owned() };
        let bytes = match self.response {
            Some(_) => spew_list(self.bytes()?.iter().map(ToString::to_string)),
            None => NIL.to_owned(),
        };
        Ok(format!(
            "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
             DeviceIDs:(checkpoint.DevicesPerNUMA){nodes} AllocResp:([]uint8){bytes}}}",
            self.uid, self.container, self.resource
        ))
    }
}

impl Data {
    fn checksum(&self) -> Result<u32, CheckpointError> {
        let entries = match &self.pod_device_entries {
            Some(entries) => {
                let entries: Result<Vec<String>, _> = entries.iter().map(PodDevicesEntry::spew).collect();
                spew_list(entries?)
            }
            None => NIL.to_owned(),
        };
        let registered = match &self.registered_devices {
            Some(all) => spew_map(all.iter().map(|(name, ids)| (name.clone(), texts(ids.as_ref())))),
            None => NIL.to_owned(),
        };
        let printed = format!(
            "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} \
             RegisteredDevices:(map[string][]string){registered}}}"
        );
        Ok(fnv32(printed.as_bytes()))
    }
}

/// The file's bytes.
#[must_use]
pub fn write(state: &DeviceState) -> String {
    let list = |ids: &BTreeSet<String>| Some(ids.iter().cloned().collect());
    let entries = state.records.iter().map(|(uid, container, resource, record)| PodDevicesEntry {
        uid: uid.to_owned(),
        container: container.to_owned(),
        resource: resource.clone(),
        ids: Some(record.ids.iter().map(|(node, ids)| (node.to_string(), list(ids))).collect()),
        response: Some(STANDARD.encode(&record.response.encoded)),
    });
    let entries: Vec<PodDevicesEntry> = entries.collect();
    let data = Data {
        pod_device_entries: (!entries.is_empty()).then_some(entries),
        registered_devices: Some(
            state.registered.iter().map(|(name, ids)| (name.clone(), list(ids))).collect(),
        ),
    };
    // This function wrote the numbers and the base64 text itself, so the checksum cannot fail.
    let checksum = data.checksum().unwrap_or_default().into();
    escaped(&serde_json::to_string(&File { data, checksum }).unwrap_or_default())
}

/// Escapes the characters that Go's JSON also escapes. JSON has none of them outside of strings.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

/// A file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadDevices {
    /// The state.
    pub state: DeviceState,
    /// Entries whose bytes are not a `ContainerAllocateResponse`: pod UID, container name, resource. The state omits them.
    pub left_out: Vec<(String, String, ResourceName)>,
}

/// The state of a file. `decode` reads the message `ContainerAllocateResponse`.
///
/// # Errors
/// The file cannot be used. The agent logs this and starts without it.
pub fn read(
    bytes: &str,
    decode: impl Fn(&[u8]) -> Option<RunOptions>,
) -> Result<ReadDevices, CheckpointError> {
    let file: File =
        serde_json::from_str(bytes).map_err(|error| CheckpointError::NotJson(error.to_string()))?;
    if file.checksum != u64::from(file.data.checksum()?) {
        return Err(CheckpointError::Corrupted);
    }
    let set = |ids: Option<&Vec<String>>| ids.into_iter().flatten().cloned().collect::<BTreeSet<String>>();
    let mut records = PodRecords::default();
    let mut left_out = Vec::new();
    for entry in file.data.pod_device_entries.into_iter().flatten() {
        let encoded = entry.bytes()?;
        match decode(&encoded) {
            Some(options) => {
                let ids = entry.nodes()?.into_iter().map(|(node, ids)| (node, set(ids))).collect();
                let response = AllocateResponse { encoded, options };
                records.insert(&entry.uid, &entry.container, &entry.resource, DeviceRecord { ids, response });
            }
            None => left_out.push((entry.uid, entry.container, entry.resource)),
        }
    }
    let registered = file.data.registered_devices.into_iter().flatten();
    let registered = registered.map(|(name, ids)| (name, set(ids.as_ref()))).collect();
    Ok(ReadDevices { state: DeviceState { records, registered }, left_out })
}

#[cfg(test)]
mod tests;
