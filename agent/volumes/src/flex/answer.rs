//! Meaning of a flexVolume driver's answer.
//!
//! In: exit and output of a program. Out: [`DriverResponse`], or a [`Refusal`] in upstream's words. Invariants: keys
//! match in any case, as in Go; a missing value has upstream's default; messages contain only a part of a
//! driver's output, and never its input.

use serde_json::{Map, Value};

use super::call::Command;

/// `status` of a call that was done.
const SUCCESS: &str = "Success";
/// `status` of a call that the driver does not know.
const NOT_SUPPORTED: &str = "Not supported";
/// How much of what is no answer is repeated.
const SHOWN: usize = 200;

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramExit {
    /// It says that it was successful.
    pub success: bool,
    /// How, in the system's words.
    pub how: String,
    /// What it printed.
    pub printed: String,
    /// What it complained of. Upstream reads both as one text.
    pub complained: String,
}

/// What a driver can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its volumes are attached to nodes, and have a device.
    pub attach: bool,
    /// The node gives the group.
    pub fs_group: bool,
    /// Its volumes' use is measured.
    pub metrics: bool,
    /// What is on its volumes grows on the node.
    pub grows: bool,
    /// The runtime may change the SELinux labels of their files.
    pub relabels: bool,
}

impl Default for Capabilities {
    /// Those of a driver that says nothing.
    fn default() -> Self {
        Capabilities { attach: true, fs_group: true, metrics: false, grows: true, relabels: true }
    }
}

/// What a driver says of a call that was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverResponse {
    /// `device`.
    pub device: String,
    /// `attached`.
    pub attached: bool,
    /// `capabilities`.
    pub capabilities: Capabilities,
}

/// Why a call was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The driver does not know it: there may be a default.
    #[error("Not supported")]
    NotSupported,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// The result of a call.
///
/// # Errors
/// It was not done, and why.
pub fn read(command: Command, ended: &ProgramExit) -> Result<DriverResponse, Refusal> {
    let word = command.word();
    let Some(said) =
        object(&ended.printed).or_else(|| object(&format!("{}{}", ended.printed, ended.complained)))
    else {
        let words = format!("{} {}", ended.printed.trim(), ended.complained.trim());
        let words: String = words.trim().chars().take(SHOWN).collect();
        return Err(Refusal::Failed(format!(
            "{word} command failed, {}, its answer is no JSON: {words:?}",
            ended.how
        )));
    };
    let text = |key: &str| said.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (status, message) = (text("status"), text("message"));
    if status == NOT_SUPPORTED {
        return Err(Refusal::NotSupported);
    }
    if status != SUCCESS {
        return Err(Refusal::Failed(format!("{word} command failed, status: {status}, reason: {message}")));
    }
    if !ended.success {
        return Err(Refusal::Failed(ended.how.clone()));
    }
    Ok(DriverResponse {
        device: text("device"),
        attached: said.get("attached").and_then(Value::as_bool).unwrap_or(false),
        capabilities: capabilities(said.get("capabilities")),
    })
}

fn capabilities(said: Option<&Value>) -> Capabilities {
    let default = Capabilities::default();
    let Some(said) = said.and_then(Value::as_object).cloned().map(lowered) else { return default };
    let flag = |key: &str, default: bool| said.get(key).and_then(Value::as_bool).unwrap_or(default);
    Capabilities {
        attach: flag("attach", default.attach),
        fs_group: flag("fsgroup", default.fs_group),
        metrics: flag("supportsmetrics", default.metrics),
        grows: flag("requiresfsresize", default.grows),
        relabels: flag("selinuxrelabel", default.relabels),
    }
}

fn object(text: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Some(lowered(map)),
        _ => None,
    }
}

fn lowered(map: Map<String, Value>) -> Map<String, Value> {
    map.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value)).collect()
}
