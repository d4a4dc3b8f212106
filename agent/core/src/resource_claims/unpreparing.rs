//! Unprepares all claims of one pod.
//!
//! ```text
//! drop the references of shared claims ─► hold the others ─► call the drivers ─► delete the entries, checkpoint ─► done
//! ```
//! In: events of the work. Out: calls, and progress or upstream's error text. Invariants: only claims with a reference of this pod
//! change (upstream uses the claims that the pod names, so a pod that never got a claim can unprepare that of another pod); an entry is
//! deleted after all of its drivers have succeeded; from the first call on a claim counts as not prepared (upstream: as prepared, so a
//! pod that comes then gets no devices). Upstream: pkg/kubelet/cm/dra/manager.go unprepareResources.

use std::collections::BTreeSet;

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
    /// The work's turn on its claims.
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
        if !common.turns.take(&self.claims, &self.uid) {
            self.stage = Stage::Holding;
            return Ok(Progress::Waits);
        }
        let cache = &common.cache;
        let claims = self
            .claims
            .iter()
            .map(|key| (key.clone(), cache.get(key).into_iter().flat_map(|claim| claim.drivers.keys())));
        let calls = DriverCalls::new(ClaimMethod::Unprepare, claims);
        for key in &self.claims {
            common.cache.set_prepared(key, false);
        }
        self.stage = Stage::Calling(calls);
        self.call(common, out)
    }

    /// Makes the next call; after the last one the entries are deleted.
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
