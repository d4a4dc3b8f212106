//! What the nodes need of their cluster: the semaphore, cordons, evictions under a PodDisruptionBudget, times without it.

use agent_core::node_update::semaphore::{PermitDecision, PermitRequest, RebootMap, give_back, take};
use agent_core::node_update::{DrainBlocked, WorkResult};
use serde_json::{Value, json};

use super::UpdatingDefect;

/// Pods of the Deployment, and how many of them its budget wants.
const PODS: usize = 3;
const MIN_AVAILABLE: usize = 2;
pub(super) const GROUP: &str = "default";

/// The API server and the pods of one Deployment.
pub(super) struct Fleet {
    pub(super) map: RebootMap,
    version: u64,
    /// Node of each pod.
    pub(super) pods: [Option<usize>; PODS],
    /// The API server is away until.
    pub(super) away_s: u64,
    /// Names are not resolved until.
    pub(super) dns_away_s: u64,
}

impl Fleet {
    pub(super) fn new() -> Fleet {
        let pods = [Some(0), Some(1), Some(2)];
        Fleet { map: RebootMap::default(), version: 0, pods, away_s: 0, dns_away_s: 0 }
    }

    /// Writes the ConfigMap if it is still the one that was read.
    fn put(&mut self, map: &RebootMap) -> bool {
        if map.resource_version != self.map.resource_version {
            return false;
        }
        self.version += 1;
        self.map = RebootMap { resource_version: Some(self.version.to_string()), data: map.data.clone() };
        true
    }

    /// Asks for a slot, or gives it back, with a ConfigMap that was read some time ago.
    pub(super) fn semaphore(
        &mut self,
        read: &RebootMap,
        (node, update): (&str, &str),
        back: Option<Option<&str>>,
        defect: Option<UpdatingDefect>,
    ) -> WorkResult {
        let ask = PermitRequest { group: GROUP, node, uid: node, update, since: "2026-11-30T00:00:00Z" };
        let decision = match back {
            None => take(read, &ask),
            Some(failure) => give_back(read, &ask, failure),
        };
        match decision {
            PermitDecision::Held => WorkResult::Done,
            PermitDecision::Wait(_) if back.is_none() && defect == Some(UpdatingDefect::TakesNoForYes) => {
                WorkResult::Done
            }
            PermitDecision::Wait(words) => WorkResult::Wait(words),
            PermitDecision::Write(map) if self.put(&map) => WorkResult::Done,
            PermitDecision::Write(_) => WorkResult::Failed("the object has been modified".to_owned()),
        }
    }

    fn group(&self) -> Option<Value> {
        serde_json::from_str(self.map.data.get(GROUP)?).ok()
    }

    /// Why nobody gets a slot.
    pub(super) fn halted(&self) -> Option<String> {
        let group = self.group()?;
        group["halted"].as_str().filter(|why| !why.is_empty()).map(str::to_owned)
    }

    /// The operator lets the group go.
    pub(super) fn let_go(&mut self) {
        let Some(mut group) = self.group() else { return };
        group["halted"] = json!("");
        group["failures"] = json!(0);
        let mut map = self.map.clone();
        map.data.insert(GROUP.to_owned(), group.to_string());
        self.put(&map);
    }

    /// Names of the nodes that hold a slot.
    pub(super) fn holders(&self) -> Vec<String> {
        let group = self.group().unwrap_or_default();
        let holders = group["holders"].as_array().cloned().unwrap_or_default();
        holders.iter().filter_map(|holder| holder["node"].as_str().map(str::to_owned)).collect()
    }

    /// Evicts one pod of a node, if the budget allows it. `up`: nodes that run.
    pub(super) fn drain(&mut self, node: usize, up: &[bool]) -> WorkResult {
        let is_available = |pod: &&Option<usize>| pod.is_some_and(|node| up.get(node) == Some(&true));
        let available = self.pods.iter().filter(is_available).count();
        let Some(pod) = self.pods.iter().position(|pod| *pod == Some(node)) else { return WorkResult::Done };
        if available <= MIN_AVAILABLE {
            let (pod, budget) = (format!("default/web-{pod}"), "budget web allows no disruption".to_owned());
            return WorkResult::Blocked(DrainBlocked { pod, budget });
        }
        self.pods[pod] = None;
        WorkResult::Wait("pods terminate".to_owned())
    }

    /// The scheduler: pods without a node get one of those that take pods.
    pub(super) fn schedule(&mut self, takes: &[bool]) {
        let target = takes.iter().position(|takes| *takes);
        for pod in self.pods.iter_mut().filter(|pod| pod.is_none()) {
            *pod = target;
        }
    }
}
