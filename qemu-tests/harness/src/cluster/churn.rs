//! Pods that are created and deleted on a node while a case tests something else.
//!
//! ```text
//! thread: create ─► Ready ─► delete ─► gone ─► create … until the end is requested
//! ```
//! Invariant: the first round that fails ends the churn, and [`Churn::finish`] returns the failure.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::client::ClusterClient;
use super::fixture::{STAYS, api_pod};
use super::ready;

/// A running churn; ends with its round when dropped.
pub struct Churn {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU32>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Churn {
    /// Starts one on `node` with the credentials of `kubeconfig`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(kubeconfig: PathBuf, node: &'static str) -> Result<Churn> {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (stopped, counted) = (stop.clone(), rounds.clone());
        let work = move || {
            let client = ClusterClient::new(&kubeconfig)?;
            while !stopped.load(Ordering::Relaxed) {
                let name = format!("churn-{}", counted.load(Ordering::Relaxed));
                round(&client, node, &name).with_context(|| format!("pod {name} on node {node}"))?;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let thread =
            std::thread::Builder::new().name("churn".into()).spawn(work).context("start a thread")?;
        Ok(Churn { stop, rounds, thread: Some(thread) })
    }

    /// Waits until another pod was created and deleted.
    ///
    /// # Errors
    /// At the deadline, or the failure of a round.
    pub fn await_round(&mut self, limit: Duration) -> Result<()> {
        // The round in progress began earlier.
        let wanted = self.rounds.load(Ordering::Relaxed) + 2;
        let deadline = Instant::now() + limit;
        while self.rounds.load(Ordering::Relaxed) < wanted {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return self.end().and_then(|()| Err(anyhow!("the churn has ended")));
            }
            ensure!(Instant::now() < deadline, "no pod came and went within {} s", limit.as_secs());
            // A thread's progress has no event here.
            std::thread::park_timeout(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Ends the churn; returns the number of rounds.
    ///
    /// # Errors
    /// The failure of a round.
    pub fn finish(mut self) -> Result<u32> {
        self.end()?;
        Ok(self.rounds.load(Ordering::Relaxed))
    }

    fn end(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map_or(Ok(()), |t| t.join().map_err(|_| anyhow!("the churn's thread died"))?)
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        // A caller that needs the failure has called `finish`.
        let _ = self.end();
    }
}

fn round(client: &ClusterClient, node: &str, name: &str) -> Result<()> {
    let pods = client.of::<Pod>("default");
    let mut pod = api_pod(name, node, STAYS, 1);
    // Each failed request counts in the cases that use this, and the node may request a token before the authorizer
    // knows its pod.
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    client.create(&pods, pod)?;
    client
        .wait(&pods, 60, "the pod to be Ready", |all| all.get(name).filter(|p| ready::pod(p)).map(|_| ()))?;
    client.delete(&pods, name, None)?;
    client.wait(&pods, 60, "the pod to be gone", |all| (!all.contains_key(name)).then_some(()))
}
