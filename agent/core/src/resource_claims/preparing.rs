//! Preparing the claims of one pod.
//!
//! ```text
//! fetch and judge each claim ─► hold the claims ─► reference, checkpoint ─► call the drivers ─► devices, checkpoint ─► done
//!         nothing is changed yet ┘     └ the work's turn is waited for
//! ```
//! In: events of the work. Out: questions, and progress or upstream's error text. Invariants: the checkpoint has the pod's references
//! before a driver is called; the first error ends the work; a prepared claim is not prepared again; a claim that the pod names twice
//! counts once (upstream has it twice in one call, counts one answer, and the pod never starts). Upstream:
//! pkg/kubelet/cm/dra/manager.go prepareResources.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;
use agent_types::runtime::claims::{ClaimsOfPod, NamedClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::api::{ClaimAction, ClaimMethod};
use super::cache::ClaimKey;
use super::calls::DriverCalls;
use super::common::{Common, Progress, WorkEvent};
use super::judging::{JudgedClaim, judge};
use super::writes::failed;

/// The event that the work waits for.
#[derive(Clone, Debug)]
enum Stage {
    Beginning,
    /// The next claim that is not checked yet.
    Fetching,
    /// The work's turn on its claims.
    Holding,
    /// The write with the references.
    Recording(u64),
    /// A driver's answer.
    Calling(DriverCalls),
    /// The write with the devices.
    Saving(u64),
}

/// The work.
#[derive(Clone, Debug)]
pub(super) struct Preparing {
    pod: Arc<ClaimsOfPod>,
    uid: PodUid,
    /// Claims of the pod, each once.
    wanted: Vec<NamedClaim>,
    /// The checked claims: the first ones of `wanted`.
    judged: Vec<JudgedClaim>,
    /// Claims that the drivers must prepare.
    called: BTreeSet<ClaimKey>,
    stage: Stage,
}

impl Preparing {
    pub(super) fn new(pod: Arc<ClaimsOfPod>) -> Preparing {
        let mut wanted: Vec<NamedClaim> = Vec::new();
        for claim in &pod.claims {
            match wanted.iter_mut().find(|earlier| earlier.name == claim.name) {
                Some(earlier) => earlier.is_of_template |= claim.is_of_template,
                None => wanted.push(claim.clone()),
            }
        }
        let uid = PodUid::from(pod.uid.as_str());
        Preparing { pod, uid, wanted, judged: Vec::new(), called: BTreeSet::new(), stage: Stage::Beginning }
    }

    /// True if the work is for the same claims.
    pub(super) fn is_for(&self, pod: &ClaimsOfPod) -> bool {
        self.pod.claims == pod.claims && self.pod.scheduling_group == pod.scheduling_group
    }

    /// Continues the work with an event. An event for which it does not wait changes nothing.
    ///
    /// # Errors
    /// Upstream's text; the work is over.
    pub(super) fn go_on(
        &mut self,
        event: WorkEvent,
        common: &mut Common,
        out: &mut Outbox<ClaimAction>,
    ) -> Result<Progress, String> {
        match (&mut self.stage, event) {
            (Stage::Beginning, WorkEvent::Begin) => self.fetch(common, out),
            (Stage::Fetching, WorkEvent::Fetched(answer)) => {
                self.judge(answer, common)?;
                self.fetch(common, out)
            }
            (Stage::Holding, WorkEvent::Freed) => self.record(common, out),
            (Stage::Recording(write), WorkEvent::Written(met, outcome)) if *write <= met => {
                outcome.map_err(|error| failed("cache", &error))?;
                self.begin_calls(common, out)
            }
            (Stage::Calling(calls), WorkEvent::Called(answer)) => {
                calls.answered(answer, common)?;
                self.call(common, out)
            }
            (Stage::Saving(write), WorkEvent::Written(met, outcome)) if *write <= met => {
                outcome.map_err(|error| failed("state", &error))?;
                Ok(Progress::Done)
            }
            _ => Ok(Progress::Waits),
        }
    }

    /// Fetches the next claim; after the last one the work changes the node's state.
    fn fetch(&mut self, common: &mut Common, out: &mut Outbox<ClaimAction>) -> Result<Progress, String> {
        let Some(claim) = self.wanted.get(self.judged.len()) else { return self.record(common, out) };
        let fetch = common.question(&self.uid);
        let (namespace, name) = (self.pod.namespace.clone(), claim.name.clone());
        out.push(ClaimAction::Fetch { fetch, namespace, name });
        self.stage = Stage::Fetching;
        Ok(Progress::Waits)
    }

    fn judge(&mut self, answer: Result<Arc<ResourceClaim>, String>, common: &Common) -> Result<(), String> {
        let Some(named) = self.wanted.get(self.judged.len()) else { return Ok(()) };
        let claim = answer.map_err(|error| format!("fetch ResourceClaim {}: {error}", named.name))?;
        let judged = judge(&self.pod, named, &claim, common.workload_claims)?;
        // Without this check a pod whose driver was never on this node could not be deleted.
        for driver in &judged.drivers {
            common.drivers.to_call(driver)?;
        }
        self.judged.push(judged);
        Ok(())
    }

    fn keys(&self) -> BTreeSet<ClaimKey> {
        self.judged.iter().map(|claim| self.key(claim)).collect()
    }

    fn key(&self, claim: &JudgedClaim) -> ClaimKey {
        (self.pod.namespace.clone(), claim.name.clone())
    }

    /// Adds the pod to its claims, and writes the references to the disk.
    fn record(&mut self, common: &mut Common, out: &mut Outbox<ClaimAction>) -> Result<Progress, String> {
        if !common.turns.take(&self.keys(), &self.uid) {
            self.stage = Stage::Holding;
            return Ok(Progress::Waits);
        }
        let refer = |claim: &JudgedClaim| common.cache.refer(&self.key(claim), claim, &self.uid);
        let referred = self.judged.iter().try_for_each(refer);
        // References before the refused one stay, as upstream, also in the file.
        let write = common.writes.ask(&common.cache);
        referred?;
        match write {
            Some(write) => {
                self.stage = Stage::Recording(write);
                Ok(Progress::Waits)
            }
            None => self.begin_calls(common, out),
        }
    }

    fn begin_calls(
        &mut self,
        common: &mut Common,
        out: &mut Outbox<ClaimAction>,
    ) -> Result<Progress, String> {
        let is_prepared = |key: &ClaimKey| common.cache.get(key).is_some_and(|claim| claim.prepared);
        let claims = self.judged.iter().map(|claim| (self.key(claim), &claim.drivers));
        let claims: Vec<_> = claims.filter(|(key, _)| !is_prepared(key)).collect();
        let called = claims.iter().map(|(key, _)| key.clone()).collect();
        let calls = DriverCalls::new(ClaimMethod::Prepare, claims);
        self.called = called;
        // Other pods can use the prepared claims, however long a driver takes for the rest.
        common.turns.keep_only(&self.called, &self.uid);
        self.stage = Stage::Calling(calls);
        self.call(common, out)
    }

    /// Makes the next call; after the last one the claims are prepared.
    fn call(&mut self, common: &mut Common, out: &mut Outbox<ClaimAction>) -> Result<Progress, String> {
        if let Stage::Calling(calls) = &mut self.stage
            && calls.next(&self.uid, common, out)?
        {
            return Ok(Progress::Waits);
        }
        for key in &self.called {
            common.cache.set_prepared(key, true);
        }
        let Some(write) = common.writes.ask(&common.cache) else { return Ok(Progress::Done) };
        self.stage = Stage::Saving(write);
        Ok(Progress::Waits)
    }
}
