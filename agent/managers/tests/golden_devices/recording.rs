//! The record of `qemu-tests/controlplane/cmd/devices`, and its plugin.
//!
//! In: JSON. Out: courses; the plugin's answers, which equal those that the recorder's plugin gave to upstream.

use std::collections::{BTreeMap, BTreeSet};

use agent_managers::devices::allocation::AllocateQuestion;
use agent_managers::devices::choice::PreferredQuestion;
use agent_managers::devices::plugin::AllocateResponse;
use agent_managers::devices::run_options::RunOptions;
use agent_managers::request::{ContainerRequest, DeviceLimits, Kind, PodRequest};
use serde::Deserialize;

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConnectOf {
    pub(crate) r: String,
    #[serde(default)]
    pub(crate) prefers: String,
    #[serde(default)]
    pub(crate) pre_start: bool,
    #[serde(default)]
    pub(crate) fails: bool,
}

#[derive(Deserialize)]
pub(crate) struct DeviceOf {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) sick: bool,
    #[serde(default)]
    pub(crate) n: BTreeSet<i64>,
}

#[derive(Deserialize)]
pub(crate) struct ListOf {
    pub(crate) r: String,
    pub(crate) d: Vec<DeviceOf>,
}

#[derive(Deserialize)]
pub(crate) struct ContainerOf {
    pub(crate) n: String,
    pub(crate) k: String,
    pub(crate) l: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
pub(crate) struct PodOf {
    pub(crate) uid: String,
    pub(crate) of: Vec<ContainerOf>,
}

#[derive(Deserialize)]
pub(crate) struct StartOf {
    pub(crate) uid: String,
    pub(crate) c: String,
}

#[derive(Deserialize)]
pub(crate) struct RecordedStep {
    pub(crate) connect: Option<ConnectOf>,
    pub(crate) list: Option<ListOf>,
    pub(crate) disconnect: Option<String>,
    pub(crate) admit: Option<PodOf>,
    pub(crate) end: Option<String>,
    pub(crate) start: Option<StartOf>,
    #[serde(default)]
    pub(crate) restart: bool,
    #[serde(default)]
    pub(crate) running: BTreeSet<String>,
    #[serde(default)]
    pub(crate) readmit: bool,
    #[serde(default)]
    pub(crate) outcomes: Vec<String>,
    pub(crate) state: u32,
    #[serde(default)]
    pub(crate) text: String,
}

#[derive(Deserialize)]
pub(crate) struct RecordedCourse {
    pub(crate) nodes: u32,
    pub(crate) topology: String,
    pub(crate) scope: String,
    pub(crate) steps: Vec<RecordedStep>,
    #[serde(default)]
    pub(crate) file: String,
}

impl PodOf {
    pub(crate) fn request(&self) -> PodRequest {
        let container = |of: &ContainerOf| ContainerRequest {
            name: of.n.clone(),
            kind: match of.k.as_str() {
                "i" => Kind::Init,
                "s" => Kind::Sidecar,
                _ => Kind::App,
            },
            cpu_milli: 0,
            memory: BTreeMap::new(),
            devices: DeviceLimits { limits: of.l.clone(), claimed: BTreeSet::new() },
        };
        // Init containers come first, as in a pod's spec.
        let (init, apps): (Vec<_>, Vec<_>) =
            self.of.iter().map(container).partition(|of| of.kind != Kind::App);
        let containers = init.into_iter().chain(apps).collect();
        PodRequest { uid: self.uid.clone(), containers, ..PodRequest::default() }
    }
}

/// The plugin's preference, as the recorder's plugin states it.
pub(crate) fn preference(of: &ConnectOf, question: &PreferredQuestion) -> BTreeSet<String> {
    let mut others: Vec<&String> = question.available.difference(&question.must_include).collect();
    if of.prefers == "last" {
        others.reverse();
    }
    let more = others.into_iter().take(question.size - question.must_include.len());
    question.must_include.iter().chain(more).cloned().collect()
}

/// `ContainerAllocateResponse` with one environment variable; all lengths fit into one byte.
pub(crate) fn response(question: &AllocateQuestion) -> AllocateResponse {
    let ids = question.ids.iter().cloned().collect::<Vec<String>>().join(",");
    let field = |number: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128).expect("a short text");
        [&[(number << 3) | 2, length], bytes].concat()
    };
    let entry = [field(1, question.resource.as_bytes()), field(2, ids.as_bytes())].concat();
    let envs = BTreeMap::from([(question.resource.clone(), ids)]);
    AllocateResponse { encoded: field(1, &entry), options: RunOptions { envs, ..RunOptions::default() } }
}

/// Decodes the bytes that `response` writes.
pub(crate) fn decode(bytes: &[u8]) -> Option<RunOptions> {
    let (_, entry) = bytes.split_at_checked(2)?;
    let (key, rest) = entry.get(2..)?.split_at_checked(usize::from(*entry.get(1)?))?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let envs = BTreeMap::from([(text(key)?, text(rest.get(2..)?)?)]);
    Some(RunOptions { envs, ..RunOptions::default() })
}
