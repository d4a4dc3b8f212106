//! Comparison with the upstream kubelet's eviction manager on nodes under pressure: the same pods end, in the
//! same order, with the same grace, messages and annotations, and the same conditions hold in the end.
//!
//! In: `fixtures/evictions.json`, recorded by `qemu-tests/controlplane/cmd/evictions` (docs/internals/testing.md).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use agent_core::eviction::{
    ContainerUse, Eviction, EvictionAction, EvictionConfig, EvictionEvent, Observed, PodUse, Space, Uses,
    Victim, VolumeUse,
};
use agent_kubelet_api::stats::shown::shown;
use agent_types::ids::PodUid;
use agent_types::machine::{Machine, Outbox};
use agent_types::pod;
use agent_types::pressures::Pressures;
use agent_types::resources::observation::{Layout, Observation, Observations};
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::KubeletConfiguration;
use orlop_config::kubelet::eviction::SIGNALS;
use serde::Deserialize;

/// Upstream looks every 10 s; a course is over when its manager did nothing for so long.
const QUIET: Duration = Duration::from_secs(130);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EvictionScenario {
    config: KubeletConfiguration,
    layout: LayoutOf,
    signals: BTreeMap<String, AmountOf>,
    pods: Vec<Pod>,
    uses: BTreeMap<String, UseOf>,
    frees: BTreeMap<String, BTreeMap<String, i64>>,
    victims: Vec<VictimOf>,
    pressure: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LayoutOf {
    dedicated_images: bool,
    split_containers: bool,
}

#[derive(Deserialize)]
struct AmountOf {
    capacity: i64,
    available: i64,
}

#[derive(Clone, Copy, Deserialize)]
struct SpaceOf {
    bytes: u64,
    inodes: u64,
}

#[derive(Deserialize)]
struct ContainerOf {
    name: String,
    memory: u64,
    layer: SpaceOf,
    logs: SpaceOf,
}

#[derive(Deserialize)]
struct VolumeOf {
    name: String,
    #[serde(flatten)]
    space: SpaceOf,
}

#[derive(Deserialize)]
struct UseOf {
    memory: u64,
    processes: u64,
    hosts: SpaceOf,
    containers: Vec<ContainerOf>,
    #[serde(default)]
    volumes: Vec<VolumeOf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VictimOf {
    pod: String,
    grace_s: i64,
    message: String,
    disrupted: bool,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

fn space(of: SpaceOf) -> Space {
    Space { bytes: of.bytes, inodes: of.inodes, ..Space::default() }
}

fn used(p: &Pod, of: &UseOf) -> PodUse {
    let container = |c: &ContainerOf| ContainerUse {
        name: c.name.clone(),
        memory: Some(c.memory),
        layer: Some(space(c.layer)),
        logs: Some(space(c.logs)),
    };
    let shown = shown(p, None).volumes;
    let volume = |v: &VolumeOf| VolumeUse {
        name: v.name.clone(),
        space: space(v.space),
        ephemeral: shown.iter().any(|s| s.name == v.name && s.ephemeral),
    };
    PodUse {
        memory: Some(of.memory),
        processes: Some(of.processes),
        own_files: Some(space(of.hosts)),
        containers: of.containers.iter().map(container).collect(),
        volumes: of.volumes.iter().map(volume).collect(),
    }
}

/// A node as a course describes it, driven by what the machine asks for.
struct Node<'a> {
    course: &'a EvictionScenario,
    machine: Eviction,
    now: Now,
    pods: Vec<Arc<Pod>>,
    gone: BTreeSet<PodUid>,
    victims: Vec<VictimOf>,
    pressures: Pressures,
}

impl<'a> Node<'a> {
    fn new(course: &'a EvictionScenario) -> Node<'a> {
        Node {
            machine: Eviction::new(EvictionConfig::new(&course.config).expect("good thresholds")),
            course,
            now: Now::default(),
            pods: course.pods.iter().cloned().map(Arc::new).collect(),
            gone: BTreeSet::new(),
            victims: Vec::new(),
            pressures: Pressures::default(),
        }
    }

    fn signals(&self) -> Observations {
        let observed = |(name, of): (&String, &AmountOf)| {
            let freed = self.gone.iter().filter_map(|uid| self.course.frees.get(uid.as_str())?.get(name));
            let available = of.available.saturating_add(freed.sum()).min(of.capacity);
            let signal = SIGNALS.into_iter().find(|s| s.as_str() == name).expect("a signal");
            (signal, Observation { at: Wall(7), available, capacity: of.capacity })
        };
        self.course.signals.iter().map(observed).collect()
    }

    fn uses(&self) -> Uses {
        let of = |p: &Arc<Pod>| {
            let key = pod::key(p);
            Some((key.uid.clone(), used(p, self.course.uses.get(key.uid.as_str())?)))
        };
        self.pods.iter().filter_map(of).collect()
    }

    fn evict(&mut self, victim: &Victim) -> EvictionEvent {
        let at = self.pods.iter().position(|p| pod::key(p) == victim.key).expect("who goes is there");
        let own = pod::spec(&self.pods[at]).termination_grace_period_seconds.expect("every pod has a grace");
        let disrupts = victim.grace_s.map_or(own, i64::from);
        self.victims.push(VictimOf {
            pod: pod::name(&self.pods[at]).to_owned(),
            // A pod that has to end at once has a second, even if its own grace period is longer.
            grace_s: if self.is_soft(victim) { disrupts.min(own) } else { disrupts },
            message: victim.message.clone(),
            disrupted: victim.disrupted,
            annotations: victim.annotations.clone(),
        });
        self.pods.remove(at);
        self.gone.insert(victim.key.uid.clone());
        EvictionEvent::Released(victim.key.uid.clone())
    }

    fn is_soft(&self, victim: &Victim) -> bool {
        victim.disrupted && victim.grace_s != Some(1)
            || i64::from(self.course.config.eviction_max_pod_grace_period) == 1
    }

    /// Until nothing happens any more.
    fn play(&mut self) {
        let mut last = Mono(0);
        while self.now.mono.since(last) < QUIET {
            self.now.mono = self.machine.deadline().expect("there is always a next look").max(self.now.mono);
            let mut events = VecDeque::from([EvictionEvent::Tick]);
            while let Some(event) = events.pop_front() {
                let mut out = Outbox::new();
                self.machine.step(self.now, event, &mut out);
                let actions: Vec<EvictionAction> = out.drain().collect();
                for action in actions {
                    if matches!(action, EvictionAction::Evict(_)) {
                        last = self.now.mono;
                    }
                    events.extend(self.answer(action));
                }
            }
        }
    }

    fn answer(&mut self, action: EvictionAction) -> Option<EvictionEvent> {
        match action {
            EvictionAction::Observe => {
                let layout = Layout {
                    dedicated_images: self.course.layout.dedicated_images,
                    split_containers: self.course.layout.split_containers,
                };
                let (signals, pods) = (self.signals(), self.pods.clone());
                Some(EvictionEvent::Observed(Box::new(Observed { signals, layout: Some(layout), pods })))
            }
            EvictionAction::Measure(_) => Some(EvictionEvent::Measured(self.uses())),
            EvictionAction::MeasureLimited(pods) => {
                let mut uses = self.uses();
                uses.retain(|uid, _| pods.contains(uid));
                Some(EvictionEvent::Limited(uses))
            }
            EvictionAction::Reclaim(_) => Some(EvictionEvent::Reclaimed),
            EvictionAction::Evict(victim) => Some(self.evict(&victim)),
            EvictionAction::Pressures(pressures) => {
                self.pressures = pressures;
                None
            }
            EvictionAction::ThresholdMet(_) | EvictionAction::Decided(..) | EvictionAction::Report(_) => None,
        }
    }

    fn pressure(&self) -> Vec<&str> {
        let Pressures { memory, disk, pid } = self.pressures;
        let all = [("memory", memory), ("disk", disk), ("pid", pid)];
        all.into_iter().filter(|(_, holds)| *holds).map(|(name, _)| name).collect()
    }
}

#[test]
fn the_same_pods_go_in_the_same_order_with_the_same_words() {
    let courses: Vec<EvictionScenario> =
        serde_json::from_str(include_str!("fixtures/evictions.json")).expect("what was recorded");
    assert!(courses.iter().map(|c| c.victims.len()).sum::<usize>() > 100, "a record that says something");
    let mut wrong = Vec::new();
    for (n, course) in courses.iter().enumerate() {
        let mut node = Node::new(course);
        node.play();
        for (at, (ours, theirs)) in node.victims.iter().zip(&course.victims).enumerate() {
            if ours != theirs {
                wrong.push(format!("course {n}, victim {at}: {ours:#?}, and should be {theirs:#?}"));
                break;
            }
        }
        if node.victims.len() != course.victims.len() {
            let of = |all: &[VictimOf]| all.iter().map(|v| v.pod.clone()).collect::<Vec<_>>();
            wrong.push(format!("course {n}: {:?} go, and not {:?}", of(&node.victims), of(&course.victims)));
        }
        if node.pressure() != course.pressure {
            wrong.push(format!(
                "course {n}: in the end {:?}, and should be {:?}",
                node.pressure(),
                course.pressure
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), courses.len(), wrong.join("\n"));
}
