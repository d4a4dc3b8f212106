//! The pod resources API: selects the containers that it lists, and limits its request rate.
//!
//! In: pods, the time. Out: names in the order of the specification, yes or no. Pure.
//! Upstream: pkg/kubelet/apis/podresources.

use agent_types::pod;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;

/// Questions a second, in the long run.
pub const PER_SECOND: u64 = 100;
/// Questions at once.
pub const BURST: u64 = 10;
const NS_PER_QUESTION: u64 = 1_000_000_000 / PER_SECOND;

/// Names of the listed containers: sidecars, then ordinary ones. An ended init container holds no resources,
/// and an ephemeral one never gets any.
pub fn containers(p: &Pod) -> impl Iterator<Item = &str> {
    let sidecars = pod::init_containers(p).iter().filter(|container| pod::is_sidecar(container));
    sidecars.chain(pod::containers(p)).map(|container| container.name.as_str())
}

/// Lets [`BURST`] questions pass at once and [`PER_SECOND`] in the long run.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    /// When as many as [`BURST`] may pass again, nanoseconds; `None` before the first question.
    full_at_ns: Option<u64>,
}

impl RateLimit {
    /// A limiter without requests so far.
    #[must_use]
    pub const fn new() -> RateLimit {
        RateLimit { full_at_ns: None }
    }

    /// Whether a question may pass now; it counts if it may.
    pub fn allows(&mut self, now: Mono) -> bool {
        let now_ns = now.0;
        let full_at = self.full_at_ns.unwrap_or(now_ns).max(now_ns);
        let then = full_at.saturating_add(NS_PER_QUESTION);
        let allowed = then - now_ns <= BURST * NS_PER_QUESTION;
        if allowed {
            self.full_at_ns = Some(then);
        }
        allowed
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        RateLimit::new()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    #[test]
    fn sidecars_and_containers_are_told_of() {
        let spec = json!({
            "initContainers": [{"name": "ends"}, {"name": "side", "restartPolicy": "Always"}],
            "containers": [{"name": "b"}, {"name": "a"}],
            "ephemeralContainers": [{"name": "debug"}],
        });
        assert_eq!(containers(&pod(spec)).collect::<Vec<_>>(), ["side", "b", "a"]);
        assert_eq!(containers(&Pod::default()).count(), 0);
    }

    #[test]
    fn ten_at_once_and_a_hundred_a_second() {
        let mut limit = RateLimit::new();
        let mut passed = |at_ns: u64, asked: u64| (0..asked).filter(|_| limit.allows(Mono(at_ns))).count();
        const SECOND: u64 = 1_000_000_000;
        assert_eq!(passed(5 * SECOND, 50), 10);
        assert_eq!(passed(5 * SECOND + NS_PER_QUESTION - 1, 5), 0);
        assert_eq!(passed(5 * SECOND + NS_PER_QUESTION, 5), 1, "one more after a hundredth of a second");
        let in_a_second: usize = (1..=100).map(|n| passed(6 * SECOND + n * NS_PER_QUESTION, 3)).sum();
        assert!((100..=110).contains(&in_a_second), "{in_a_second}");
        assert_eq!(passed(60 * SECOND, 50), 10, "no more than that, however long nobody asked");
    }
}
