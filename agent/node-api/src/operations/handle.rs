//! The handle by which calls reach the task that owns the operations.
//!
//! In: wishes of clients, the records that the task shows. Out: orders to the task, and answers for clients. Invariants: a client that is
//! gone changes nothing; a reader delays no other reader; orders and readers that wait are bounded.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use orlop_proto::node_api::v1alpha1::OperationStatus;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tonic::Status;

use super::record::OperationRecord;
use super::request::OperationWish;
use crate::refusal::{Reason, Refusal};

/// Orders that wait: each is a call, and a door has sixteen connections.
const ORDERS_MAX: usize = 16;
/// Readers that wait for changes.
pub(crate) const WATCHERS_MAX: usize = 16;

/// All records, the oldest first; or why they cannot be read.
pub(crate) type OperationsShown = Result<Arc<Vec<OperationRecord>>, Refusal>;

/// Changes of an operation.
pub(crate) type OperationStream = BoxStream<'static, Result<OperationStatus, Status>>;

/// Where the answer to an order goes.
pub(crate) type OperationAnswer = oneshot::Sender<Result<OperationStatus, Refusal>>;

/// What a client wants.
pub(crate) enum OperationOrder {
    /// Begin one.
    Begin(OperationWish, OperationAnswer),
    /// Call one off.
    Cancel(String, OperationAnswer),
}

/// Reaches the task; clones reach the same one.
#[derive(Clone, Debug)]
pub(crate) struct OperationHandle {
    orders: mpsc::Sender<OperationOrder>,
    shown: watch::Receiver<Option<OperationsShown>>,
    watchers: Arc<Semaphore>,
}

impl OperationHandle {
    /// A handle to the task that shows its records there, and the orders which that task takes.
    pub(crate) fn open(
        shown: watch::Receiver<Option<OperationsShown>>,
    ) -> (OperationHandle, mpsc::Receiver<OperationOrder>) {
        let (orders, waiting) = mpsc::channel(ORDERS_MAX);
        let watchers = Arc::new(Semaphore::new(WATCHERS_MAX));
        (OperationHandle { orders, shown, watchers }, waiting)
    }

    /// All of them, the oldest first.
    pub(crate) async fn list(&self) -> Result<Vec<OperationStatus>, Refusal> {
        Ok(self.shown().await?.iter().map(OperationRecord::status).collect())
    }

    /// One of them.
    pub(crate) async fn get(&self, id: &str) -> Result<OperationStatus, Refusal> {
        let records = self.shown().await?;
        let found = records.iter().find(|record| record.id == id).map(OperationRecord::status);
        found.ok_or_else(|| unknown(id))
    }

    /// Begins one; of an identifier that is known already, the one that is there.
    pub(crate) async fn begin(&self, wish: OperationWish) -> Result<OperationStatus, Refusal> {
        let (answer, begun) = oneshot::channel();
        self.order(OperationOrder::Begin(wish, answer), begun).await
    }

    /// Calls one off.
    pub(crate) async fn cancel(&self, id: String) -> Result<OperationStatus, Refusal> {
        let (answer, cancelled) = oneshot::channel();
        self.order(OperationOrder::Cancel(id, answer), cancelled).await
    }

    /// One of them now, after each change, and at its end.
    pub(crate) async fn watch(&self, id: &str) -> Result<OperationStream, Refusal> {
        let place = self.watchers.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{WATCHERS_MAX} readers wait already");
            Refusal::new(Reason::TooManyStreams, "operations", message)
        })?;
        self.get(id).await?;
        let watcher =
            OperationWatcher { shown: self.shown.clone(), id: id.to_owned(), last: None, _place: place };
        let changes = stream::unfold(watcher, |mut watcher| async move {
            watcher.next().await.map(|status| (Ok(status), watcher))
        });
        Ok(changes.boxed())
    }

    async fn order(
        &self,
        order: OperationOrder,
        answer: oneshot::Receiver<Result<OperationStatus, Refusal>>,
    ) -> Result<OperationStatus, Refusal> {
        // The task lives as long as the server.
        self.orders.send(order).await.map_err(|_| ends())?;
        answer.await.unwrap_or_else(|_| Err(ends()))
    }

    async fn shown(&self) -> OperationsShown {
        let mut shown = self.shown.clone();
        let read = shown.wait_for(Option::is_some).await;
        read.ok().and_then(|records| records.clone()).unwrap_or_else(|| Err(ends()))
    }
}

/// No answer comes any more.
pub(crate) fn ends() -> Refusal {
    Refusal::new(Reason::PartDown, "operations", "the server ends")
}

/// The node has no record of this operation.
pub(crate) fn unknown(id: &str) -> Refusal {
    let shown: String = id.chars().take(64).collect();
    Refusal::new(Reason::NoSuchOperation, format!("operation {shown:?}"), "the node has no record of it")
}

/// A reader that waits for changes of one operation.
struct OperationWatcher {
    shown: watch::Receiver<Option<OperationsShown>>,
    id: String,
    last: Option<OperationStatus>,
    _place: OwnedSemaphorePermit,
}

impl OperationWatcher {
    /// The next change; `None` after the end.
    async fn next(&mut self) -> Option<OperationStatus> {
        if self.last.as_ref().is_some_and(|last| last.ended) {
            return None;
        }
        loop {
            let status = self.present()?;
            if self.last.as_ref() != Some(&status) {
                self.last = Some(status.clone());
                return Some(status);
            }
            self.shown.changed().await.ok()?;
        }
    }

    fn present(&mut self) -> Option<OperationStatus> {
        let shown = self.shown.borrow_and_update();
        let records = shown.as_ref()?.as_ref().ok()?;
        records.iter().find(|record| record.id == self.id).map(OperationRecord::status)
    }
}
