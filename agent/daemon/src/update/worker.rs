//! Carries out the steps of an update, each within a time limit.
//!
//! In: [`UpdateWork`]. Out: one [`WorkResult`] each. Invariant: each step may be done again after a death of the agent, and finds what is
//! done already.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_core::node_update::{UpdateWork, WorkResult};
use agent_types::api::ApiServer;
use agent_types::time::{Mono, Wall};
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::cluster_side::ClusterSide;
use super::gate::{write_baseline, write_durably};
use super::senses::GateSenses;
use super::slots::Slots;
use crate::pods::desired_pods::{ActivePods, DesiredPods};
use crate::pods::status::PodViews;
use crate::tasks::actor::Tasks;

/// A step has an answer after this. The longest one is a drain of a full node through a slow API server.
pub const WORK_MAX: Duration = Duration::from_secs(120);
/// An agent that has just begun has not renewed its lease and knows no statuses: its baseline would ask too little of the new version.
const SETTLED: Duration = Duration::from_secs(45);

/// Asks the machine for a reboot in order.
pub type AskReboot = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Files of the driver.
#[derive(Clone, Debug)]
pub struct UpdateFiles {
    /// The plan.
    pub plan: PathBuf,
    /// The baseline.
    pub baseline: PathBuf,
}

/// What the steps need.
pub struct UpdateWorker<A> {
    /// Boot record and ESP.
    pub slots: Slots,
    /// None on a standalone node.
    pub cluster: Option<ClusterSide<A>>,
    /// The pods that the node wants.
    pub desired: watch::Receiver<DesiredPods>,
    /// Whether all sources were read.
    pub active: watch::Receiver<ActivePods>,
    /// Pods' statuses.
    pub statuses: watch::Receiver<PodViews>,
    /// Facts for the baseline.
    pub senses: Arc<dyn GateSenses>,
    /// Files.
    pub files: UpdateFiles,
    /// The reboot.
    pub reboot: AskReboot,
    /// Asks for a look at the boot record.
    pub look: Arc<Notify>,
    /// When this agent began.
    pub began: Mono,
    /// The node's tasks.
    pub tasks: Tasks,
}

impl<A: ApiServer> UpdateWorker<A> {
    /// Does a step, within [`WORK_MAX`].
    pub async fn work(&self, work: UpdateWork, now: Wall) -> WorkResult {
        let changes_record =
            matches!(work, UpdateWork::Arm { .. } | UpdateWork::Withdraw | UpdateWork::Settle { .. });
        let done = timeout(WORK_MAX, self.step(work, now)).await;
        if changes_record {
            self.look.notify_one();
        }
        done.unwrap_or_else(|_| WorkResult::Failed(format!("no answer within {} s", WORK_MAX.as_secs())))
    }

    async fn step(&self, work: UpdateWork, now: Wall) -> WorkResult {
        match (work, &self.cluster) {
            (UpdateWork::Save(plan), _) => match serde_json::to_vec(&plan) {
                Ok(text) => done(write_durably(self.files.plan.clone(), text, &self.tasks).await),
                Err(error) => WorkResult::Failed(error.to_string()),
            },
            (UpdateWork::TakeSlot { update }, Some(cluster)) => cluster.take_slot(&update, now).await,
            (UpdateWork::GiveBack { update, failure }, Some(cluster)) => {
                cluster.give_back(&update, failure.as_deref(), now).await
            }
            (UpdateWork::Cordon { update }, Some(cluster)) => cluster.cordon(&update).await,
            (UpdateWork::Uncordon, Some(cluster)) => cluster.uncordon().await,
            (UpdateWork::Drain, Some(cluster)) => {
                let is_listed = self.active.borrow().synced;
                let (desired, statuses) = (self.desired.borrow().clone(), self.statuses.borrow().clone());
                cluster.drain(is_listed, &desired, &statuses).await
            }
            // A standalone node has nobody to ask; its pods end with the shutdown.
            (
                UpdateWork::TakeSlot { .. }
                | UpdateWork::GiveBack { .. }
                | UpdateWork::Cordon { .. }
                | UpdateWork::Uncordon
                | UpdateWork::Drain,
                None,
            ) => WorkResult::Done,
            (UpdateWork::Arm { update, deadline }, _) => done(self.arm(update, deadline).await),
            (UpdateWork::Reboot, _) => done((self.reboot)().await),
            (UpdateWork::Withdraw, _) => done(self.slots.run(|slots| slots.withdraw()).await),
            (UpdateWork::Settle { refused }, _) => {
                done(self.slots.run(move |slots| slots.settle(refused.as_deref())).await)
            }
        }
    }

    /// The baseline, then the order: a trial without a baseline would find too little to compare. An order that stands has its own.
    async fn arm(&self, update: String, deadline: Duration) -> Result<(), String> {
        let record = self.slots.run(|slots| slots.record()).await?;
        if record.trial.is_none_or(|trial| trial.update != update) {
            self.tasks.wait_until(self.began.after(SETTLED)).await;
            let facts = self.senses.facts(false).await;
            write_baseline(&self.files.baseline, &facts, &self.tasks).await?;
        }
        let deadline_s = u32::try_from(deadline.as_secs()).unwrap_or(u32::MAX);
        self.slots.run(move |slots| slots.order(&update, deadline_s)).await
    }
}

fn done(result: Result<(), String>) -> WorkResult {
    match result {
        Ok(()) => WorkResult::Done,
        Err(words) => WorkResult::Failed(words),
    }
}
