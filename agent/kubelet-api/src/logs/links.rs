//! Links to containers' logs in one directory (`/var/log/containers`), where log collectors look for them.
//!
//! In: containers of a pod in the runtime. Out: names and targets of the links that the pod should have.
//! Invariants: one link for each instance that ran and that the runtime still has, and no other; names are
//! upstream's, because collectors parse them. Upstream: pkg/kubelet/kuberuntime/legacy.go.

use std::collections::BTreeMap;

use agent_types::ids::PodKey;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot};

/// Directory of the links, regardless of `podLogsDir`.
pub const DIRECTORY: &str = "/var/log/containers";
const SUFFIX: &str = ".log";
/// Longest name of a file, bytes (ext4).
const NAME_MAX: usize = 255;

/// Name of each link, and the log that it leads to.
#[must_use]
pub fn links(snapshot: &PodSnapshot) -> BTreeMap<String, String> {
    let mut links = BTreeMap::new();
    let has_log = |c: &&ContainerObserved| c.state != ContainerState::Created && !c.log_path.is_empty();
    for c in snapshot.containers.iter().filter(has_log) {
        // If a cut name belongs to several instances, the newest one has the link.
        links.entry(name(&snapshot.pod, c)).or_insert_with(|| c.log_path.clone());
    }
    links
}

fn name(pod: &PodKey, c: &ContainerObserved) -> String {
    let mut name = format!("{}_{}_{}-{}", pod.name, pod.namespace, c.name, c.id);
    let mut end = name.len().min(NAME_MAX - SUFFIX.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name + SUFFIX
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_types::time::{Mono, Wall};

    fn snapshot(pod: &str, containers: Vec<ContainerObserved>) -> PodSnapshot {
        let pod = PodKey { namespace: "ns".into(), name: pod.into(), uid: "u-1".into() };
        PodSnapshot {
            pod,
            as_of: Mono(0),
            sandboxes: Vec::new(),
            containers: containers.into(),
            actuated: None,
        }
    }

    fn instance(name: &str, attempt: u32, state: ContainerState) -> ContainerObserved {
        let mut c =
            ContainerObserved::created(format!("id{attempt}").as_str(), "box", name, attempt, Wall(0));
        (c.state, c.log_path) = (state, format!("/var/log/pods/ns_web_u-1/{name}/{attempt}.log"));
        c
    }

    #[test]
    fn one_for_each_instance_that_ran() {
        let states = [
            (3, ContainerState::Created),
            (2, ContainerState::Running),
            (1, ContainerState::Exited),
            (0, ContainerState::Unknown),
        ];
        let quiet = ContainerObserved { log_path: String::new(), ..instance("quiet", 9, states[1].1) };
        let main = states.map(|(attempt, state)| instance("main", attempt, state));
        let all = snapshot("web", main.into_iter().chain([quiet]).collect());
        let expected = [0, 1, 2]
            .map(|n| (format!("web_ns_main-id{n}.log"), format!("/var/log/pods/ns_web_u-1/main/{n}.log")));
        assert_eq!(links(&all), expected.into());
    }

    #[test]
    fn long_names_are_cut_and_the_newest_instance_has_the_link() {
        for pod in ["x".repeat(253), "ü".repeat(200)] {
            let instances = [2, 1].map(|n| instance("main", n, ContainerState::Exited));
            let made = links(&snapshot(&pod, instances.into()));
            let (name, target) = made.first_key_value().unwrap();
            assert!(name.len() <= NAME_MAX && name.ends_with(SUFFIX), "{name}");
            assert_eq!((made.len(), target.as_str()), (1, "/var/log/pods/ns_web_u-1/main/2.log"));
        }
    }
}
