//! How the fake answers reviews: after how long, and how many it has under way.
//!
//! In: a wait. Out: the most reviews that were under way at once. Invariant: a review whose request was given up counts
//! no longer.

use std::time::Duration;

use agent_types::lock::Lock;
use tokio::time::{Instant, sleep_until};

/// Reviews under way.
#[derive(Debug, Default)]
pub(super) struct ReviewLoad(Lock<Load>);

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    wait: Duration,
    now: usize,
    most: usize,
}

struct InFlightReview<'a>(&'a ReviewLoad);

impl Drop for InFlightReview<'_> {
    fn drop(&mut self) {
        self.0.0.lock().now -= 1;
    }
}

impl ReviewLoad {
    pub(super) fn set_wait(&self, wait: Duration) {
        self.0.lock().wait = wait;
    }

    pub(super) fn most(&self) -> usize {
        self.0.lock().most
    }

    /// Takes as long as a review, if the path is one's.
    pub(super) async fn take_time(&self, path: &str) {
        if !path.ends_with("/tokenreviews") && !path.ends_with("/subjectaccessreviews") {
            return;
        }
        let until = {
            let mut load = self.0.lock();
            load.now += 1;
            load.most = load.most.max(load.now);
            Instant::now() + load.wait
        };
        let _under_way = InFlightReview(self);
        sleep_until(until).await;
    }
}
