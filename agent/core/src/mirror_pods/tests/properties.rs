//! Random interleavings of manifests, users and every fault of an API server; after it is healed each static pod has
//! exactly one mirror pod, and no other is left.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::checkers::at_rest;

const NAMES: [&str; 2] = ["x", "y"];

struct World {
    node: Node,
    /// By name.
    pods: BTreeMap<String, Pod>,
    created: u32,
    news: VecDeque<WatchEvent<Pod>>,
    wanted: BTreeMap<&'static str, Arc<Pod>>,
    workers: BTreeSet<PodUid>,
    hashes: u32,
}

impl World {
    fn new() -> World {
        World {
            node: Node::new(),
            pods: BTreeMap::new(),
            created: 0,
            news: VecDeque::new(),
            wanted: BTreeMap::new(),
            workers: BTreeSet::new(),
            hashes: 0,
        }
    }

    fn apply(&mut self, call: &ApiCall) -> ApiResult {
        match call {
            ApiCall::FindPod { pod, .. } => match self.pods.get(&*pod.name) {
                Some(pod) => Ok(ApiReply::Pod(Box::new(pod.clone()))),
                None => error(Class::NotFound),
            },
            ApiCall::CreatePod(_) => {
                self.created += 1;
                let pod = (*stored(call, &format!("m{}", self.created))).clone();
                let name = pod::name(&pod).to_owned();
                if self.pods.contains_key(&name) {
                    return error(Class::AlreadyExists);
                }
                self.pods.insert(name, pod.clone());
                self.news.push_back(WatchEvent::Applied(Arc::new(pod.clone())));
                Ok(ApiReply::Pod(Box::new(pod)))
            }
            ApiCall::DeletePod { pod, uid, resource_version: None, grace_s: 0 } => {
                let Some(found) = self.pods.get(&*pod.name) else { return error(Class::NotFound) };
                if pod::uid(found) != uid {
                    return error(Class::Conflict);
                }
                assert!(pod::annotation(found, CONFIG_MIRROR).is_some(), "only mirror pods");
                self.remove(&pod.name);
                Ok(ApiReply::Done)
            }
            other => panic!("{other:?}"),
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.news.push_back(WatchEvent::Deleted(Arc::new(pod)));
        }
    }

    fn answer(&mut self, fault: u8) {
        if self.node.calls.is_empty() {
            return;
        }
        let (id, call) = self.node.calls.remove(0);
        let result = match fault {
            0 => {
                let _lost = self.apply(&call);
                error(Class::DeadlineExceeded)
            }
            1 => error(Class::Unavailable),
            2 => error(Class::Invalid),
            _ => self.apply(&call),
        };
        self.node.answer(id, result);
    }

    fn deliver(&mut self) {
        if let Some(news) = self.news.pop_front() {
            self.node.step(MirrorEvent::Watch(news));
        }
    }

    fn relist(&mut self) {
        self.news.clear();
        let all = self.pods.values().cloned().map(Arc::new).collect();
        self.node.step(MirrorEvent::Watch(WatchEvent::Listed(all)));
    }

    /// A new manifest in the place of what was there, or nothing any more.
    fn manifest(&mut self, name: &'static str, gone: bool) {
        if let Some(old) = self.wanted.remove(name) {
            self.node.step(update(PodOp::Remove, &old));
        }
        if !gone {
            self.hashes += 1;
            let pod = static_pod(name, &format!("h{}", self.hashes));
            self.node.step(update(PodOp::Add, &pod));
            self.workers.insert(pod::key(&pod).uid);
            self.node.step(MirrorEvent::Worker(pod::key(&pod)));
            self.wanted.insert(name, pod);
        }
    }

    /// Ends the workers of pods that no source wants.
    fn bury(&mut self) {
        let wanted: BTreeSet<PodUid> = self.wanted.values().map(|p| pod::key(p).uid).collect();
        let over: Vec<PodUid> = self.workers.difference(&wanted).cloned().collect();
        for uid in over {
            self.workers.remove(&uid);
            self.node.step(MirrorEvent::Forgotten(uid));
        }
    }

    fn step(&mut self, op: u8, which: u8, how: u8) {
        let name = NAMES[usize::from(which) % NAMES.len()];
        match op {
            0 => self.manifest(name, how == 0),
            1 => self.bury(),
            2 | 3 => self.deliver(),
            4 => self.relist(),
            5..=7 => self.answer(how),
            8 => self.remove(name),
            9 => {
                let view =
                    if how == 0 { NodeView::Missing } else { NodeView::Present { uid: "u".to_owned() } };
                self.node.step(MirrorEvent::Node(view));
            }
            _ => {
                self.node.now += u64::from(how) * SECOND;
                self.node.step(MirrorEvent::Tick);
            }
        }
        assert!(self.node.calls.len() <= NAMES.len(), "one call in flight for each name");
    }

    fn heal(&mut self) {
        self.node.step(MirrorEvent::Synced);
        self.node.step(present());
        self.bury();
        self.relist();
        for _ in 0..1_000 {
            if !self.news.is_empty() {
                self.deliver();
            } else if !self.node.calls.is_empty() {
                self.answer(u8::MAX);
            } else if let Some(deadline) = self.node.machine.deadline() {
                self.node.now = self.node.now.max(deadline.0);
                self.node.step(MirrorEvent::Tick);
            } else {
                return;
            }
        }
        panic!("it never comes to rest");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn after_all_faults_there_is_exactly_one_mirror_for_each(
        ops in proptest::collection::vec((0u8..11, 0u8..2, 0u8..5), 0..120),
    ) {
        let mut world = World::new();
        for (op, which, how) in ops {
            world.step(op, which, how);
        }
        world.heal();
        let right = at_rest::mirrors(world.wanted.values().map(|pod| &**pod), world.pods.values());
        prop_assert_eq!(right, Ok(()));
    }
}
