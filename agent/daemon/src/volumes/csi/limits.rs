//! Numbers of volumes that CSI drivers allow on this node: asked again from time to time, and written into the CSINode.
//!
//! In: the time; volumes that exceed the node's limit. Out: questions to drivers (a task each), the CSINode.
//! Invariants: a driver's answer is written only if the same driver is still registered; callers that wait get a reply
//! even if the number cannot be found out. `agent_volumes::csi::limits` decides when to ask.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_types::api::ApiServer;
use agent_types::lock::Lock;
use agent_volumes::csi::limits::{Due, period};
use agent_volumes::csi::plugin::NodeInfo;
use tokio::sync::{Notify, oneshot};

use super::Manager;
use super::objects::of_driver;
use crate::cluster::calls::Caller;

/// Callers that wait for a driver's number; clones share the list.
#[derive(Clone, Debug, Default)]
pub struct Askers(Arc<LimitsInner>);

#[derive(Debug, Default)]
struct LimitsInner {
    waiting: Lock<BTreeMap<String, Waiting>>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    new: bool,
    tell: Vec<oneshot::Sender<()>>,
}

impl Askers {
    /// Requests the number of volumes that a driver allows here. Returns when the CSINode has the number, or when the
    /// number could not be found out; the log has the reason.
    pub async fn ask(&self, driver: &str) {
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.0.waiting.lock();
            let of = waiting.entry(driver.to_owned()).or_default();
            of.new = true;
            of.tell.push(tell);
        }
        self.0.asked.notify_one();
        // An error means that no task answers any more.
        let _ = told.await;
    }

    pub(super) async fn asked(&self) {
        self.0.asked.notified().await;
    }

    /// Drivers that were requested since the last call.
    pub(super) fn drivers(&self) -> Vec<String> {
        let mut waiting = self.0.waiting.lock();
        let new = waiting.iter_mut().filter_map(|(driver, of)| std::mem::take(&mut of.new).then_some(driver));
        new.cloned().collect()
    }

    /// Answers all callers that wait for this driver.
    pub(super) fn tell(&self, driver: &str) {
        for tell in self.0.waiting.lock().remove(driver).unwrap_or_default().tell {
            // The caller may have stopped waiting.
            let _ = tell.send(());
        }
    }
}

/// Result of a question to a driver.
pub(super) struct Recount {
    driver: String,
    /// The socket that was asked.
    endpoint: PathBuf,
    /// The period from the CSIDriver object, if it could be read, and the driver's answer, if it was asked.
    period: Result<Option<Duration>, ()>,
    info: Option<NodeInfo>,
}

impl<A: ApiServer> Manager<A> {
    /// Handles requests of volumes that exceed the node's limit.
    pub(super) fn asked_for_limits(&mut self) {
        let now = self.tasks.now().mono;
        for driver in self.askers.drivers() {
            if !self.limits.want(&driver, now) {
                self.askers.tell(&driver);
            }
        }
    }

    /// Asks the drivers that are due.
    pub(super) fn recount(&mut self) {
        let now = self.tasks.now().mono;
        for Due { driver, counted } in self.limits.due(now) {
            let Some(endpoint) = self.registered.endpoint(&driver) else {
                self.limits.forgotten(&driver);
                self.askers.tell(&driver);
                continue;
            };
            let (to, caller) = (self.to.clone(), self.caller.clone());
            self.tasks.start(async move {
                let recount = ask(&caller, driver, endpoint, counted).await;
                // The receiver is gone when the node stops.
                let _ = to.send(recount).await;
            });
        }
    }

    /// Handles a driver's answer.
    pub(super) async fn recounted(&mut self, Recount { driver, endpoint, period, info }: Recount) {
        if let Some(info) = info.filter(|_| self.registered.endpoint(&driver) == Some(endpoint)) {
            tracing::debug!(
                driver,
                volumes = info.volumes_max,
                "CSI driver says how many volumes it can have"
            );
            if let Err(why) = self.objects.recount(&driver, &info).await {
                tracing::warn!(driver, why, "how many volumes a CSI driver can have is not told");
            }
        }
        if self.limits.answered(&driver, period, self.tasks.now().mono) {
            self.askers.tell(&driver);
        }
    }
}

async fn ask<A: ApiServer>(caller: &Caller<A>, driver: String, endpoint: PathBuf, counted: bool) -> Recount {
    let period = match of_driver(caller, &driver).await {
        Ok(object) => Ok(period(object.as_ref())),
        Err(why) => {
            tracing::debug!(driver, why, "CSIDriver is not read");
            Err(())
        }
    };
    let mut info = None;
    if !counted && matches!(period, Ok(Some(_))) {
        match agent_plugins::node_info(&endpoint).await {
            Ok(says) => info = Some(says),
            Err(error) => {
                tracing::warn!(driver, %error, "CSI driver does not say how many volumes it can have")
            }
        }
    }
    Recount { driver, endpoint, period, info }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_asks_is_told_once_there_is_an_answer() {
        let askers = Askers::default();
        let (one, other) = (askers.clone(), askers.clone());
        let answers = async {
            askers.asked().await;
            while askers.0.waiting.lock().get("x").is_none_or(|of| of.tell.len() < 2) {
                tokio::task::yield_now().await;
            }
            assert_eq!(askers.drivers(), ["x"]);
            assert!(askers.drivers().is_empty());
            askers.tell("y");
            assert_eq!(askers.0.waiting.lock().len(), 1);
            askers.tell("x");
        };
        tokio::join!(one.ask("x"), other.ask("x"), answers);
        assert!(askers.0.waiting.lock().is_empty());
    }
}
