//! Giving back all claims of one pod.
//!
//! ```text
//! drop the references of shared claims ─► hold the others ─► call the drivers ─► delete the entries, checkpoint ─► done
//! ```
//! In: events of the work. Out: calls, and progress or upstream's error text. Invariants: only claims that this pod refers to are
//! touched (upstream takes the claims that the pod names, so that a pod that never got a claim can take it from another pod); an entry
//! is deleted after all of its drivers succeeded; from the first call on a claim counts as not prepared (upstream: as prepared, so that
//! a pod that comes then gets no devices). Upstream: pkg/kubelet/cm/dra/manager.go unprepareResources.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;

use super::api::{ClaimAction, ClaimMethod};
use super::cache::ClaimKey;
use super::calls::DriverCalls;
use super::common::{Common, Progress, WorkEvent};
use super::writes::failed;

/// The event that the work waits for.
#[derive(Clone, Debug)]
enum Stage {
    Beginning,
    /// Claims that are held for other pods.
    Holding,
    /// A driver's answer.
    Calling(DriverCalls),
    /// The write without the references.
    Saving(u64),
}

/// The work.
#[derive(Clone, Debug)]
pub(super) struct Unpreparing {
    uid: PodUid,
    /// Claims that the pod alone uses.
    claims: BTreeSet<ClaimKey>,
    stage: Stage,
}

impl Unpreparing {
    pub(super) fn new(uid: PodUid) -> Unpreparing {
        Unpreparing { uid, claims: BTreeSet::new(), stage: Stage::Beginning }
    }

    /// The work goes on with an event; events that it does not wait for change nothing.
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
            (Stage::Beginning, WorkEvent::Begin) | (Stage::Holding, WorkEvent::Freed) => {
                self.begin(common, out)
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

    fn begin(&mut self, common: &mut Common, out: &mut Outbox<ClaimAction>) -> Result<Progress, String> {
        if common.cache.drop_shared(&self.uid) {
            common.returned(&self.uid);
        }
        self.claims = common.cache.sole(&self.uid);
        if self.claims.is_empty() && !common.is_unsaved(&self.uid) {
            return Ok(Progress::Done);
        }
        if !common.hold(&self.claims, &self.uid) {
            self.stage = Stage::Holding;
            return Ok(Progress::Waits);
        }
        let mut batches: BTreeMap<String, Vec<ClaimKey>> = BTreeMap::new();
        for key in &self.claims {
            let drivers = common.cache.get(key).into_iter().flat_map(|claim| claim.drivers.keys());
            for driver in drivers {
                batches.entry(driver.clone()).or_default().push(key.clone());
            }
        }
        for key in &self.claims {
            common.cache.set_prepared(key, false);
        }
        self.stage = Stage::Calling(DriverCalls::new(ClaimMethod::Unprepare, batches));
        self.call(common, out)
    }

    /// Makes the next call; after the last one the entries leave.
    fn call(&mut self, common: &mut Common, out: &mut Outbox<ClaimAction>) -> Result<Progress, String> {
        if let Stage::Calling(calls) = &mut self.stage
            && calls.next(&self.uid, common, out)?
        {
            return Ok(Progress::Waits);
        }
        for key in &self.claims {
            common.cache.give_back(key, &self.uid);
        }
        let Some(write) = common.save_return(&self.uid) else { return Ok(Progress::Done) };
        self.stage = Stage::Saving(write);
        Ok(Progress::Waits)
    }
}
