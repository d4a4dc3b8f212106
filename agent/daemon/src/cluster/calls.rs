//! Sends a machine's calls to the API server and brings the answers back.
//!
//! In: calls with ids. Out: exactly one answer for each call. A call waits until the node has an identity (a machine
//! must not spend its back-off on that); from then on the driver's time limit bounds it.

use std::sync::Arc;

use agent_types::api::{ApiCall, ApiError, ApiResult, ApiServer};
use agent_types::failure::Class;
use tokio::sync::watch;

use crate::tasks::actor::Tasks;

/// The way to the API server; clones share it.
pub struct Caller<A> {
    tasks: Tasks,
    client: watch::Receiver<Option<Arc<A>>>,
}

impl<A> Clone for Caller<A> {
    fn clone(&self) -> Self {
        Caller { tasks: self.tasks.clone(), client: self.client.clone() }
    }
}

impl<A: ApiServer> Caller<A> {
    /// `client` is `None` until the node has an identity.
    #[must_use]
    pub fn new(tasks: Tasks, client: watch::Receiver<Option<Arc<A>>>) -> Caller<A> {
        Caller { tasks, client }
    }

    /// The client, once there is one; `None` if the node is being stopped.
    pub async fn client(&self) -> Option<Arc<A>> {
        let mut client = self.client.clone();
        client.wait_for(Option::is_some).await.ok().and_then(|client| client.clone())
    }

    /// Sends `call`; `answer` gets the result.
    pub fn send(&self, call: ApiCall, answer: impl FnOnce(ApiResult) + Send + 'static) {
        let this = self.clone();
        self.tasks.start(async move {
            answer(match this.client().await {
                Some(client) => client.call(&call).await,
                None => Err(no_client(&call, "the node is being stopped")),
            });
        });
    }
}

/// The answer to a call that could not be sent.
#[must_use]
pub fn no_client(call: &ApiCall, why: &str) -> ApiError {
    ApiError::without_status(call, Class::Unavailable, why)
}
