//! Requests to a node during other work, to check that the node answers.
//!
//! In: paths at the API server (`/api/v1/nodes/<name>/proxy/healthz`), and the work. Out: the number of answers,
//! the duration of the slowest one, and every failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::client::ClusterClient;

/// From an answer to the next question.
const PAUSE: Duration = Duration::from_millis(200);

/// Results of the requests.
#[derive(Clone, Debug, Default)]
pub struct QueryResults {
    /// Questions that were answered with success.
    pub count: usize,
    /// The time of the slowest of them.
    pub slowest: Duration,
    /// The failed requests.
    pub failures: Vec<String>,
}

impl QueryResults {
    /// The answers, or the failures as an error.
    ///
    /// # Errors
    /// A question failed, or there was no time for three.
    pub fn all(self) -> Result<QueryResults> {
        ensure!(self.failures.is_empty(), "while it was asked: {:?}", self.failures);
        ensure!(self.count >= 3, "only {} answers", self.count);
        Ok(self)
    }
}

/// Requests `paths` in turn, repeatedly, while `work` runs; the last answer comes after its end.
///
/// # Errors
/// Those of the work.
pub fn during<T>(
    client: &ClusterClient,
    paths: &[String],
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, QueryResults)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answers = QueryResults::default();
            for path in paths.iter().cycle() {
                let asked = Instant::now();
                match client.raw(path) {
                    Ok(_) => {
                        answers.count += 1;
                        answers.slowest = answers.slowest.max(asked.elapsed());
                    }
                    Err(error) => answers.failures.push(format!("{error:#}")),
                }
                if done.load(Ordering::Acquire) {
                    break;
                }
                std::thread::park_timeout(PAUSE);
            }
            answers
        });
        let result = work();
        done.store(true, Ordering::Release);
        asking.thread().unpark();
        let answers = asking.join().map_err(|_| anyhow::anyhow!("the thread that asks panicked"))?;
        Ok((result?, answers))
    })
}
