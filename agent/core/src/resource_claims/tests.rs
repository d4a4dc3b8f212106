//! Scenarios of the owner of resource claims, in a short notation.

mod health;
mod texts;
mod turns;
mod walk;

use agent_types::runtime::claims::{ClaimUse, ClaimUser, NamedClaim};
use agent_types::time::Wall;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::json;
use std::collections::BTreeMap;

use super::api::{CalledClaim, ClaimMethod, ClaimResult, ClaimedDevice};
use super::*;

const GATES: ClaimGates = ClaimGates { health: true, health_message: true, workload_claims: false };
const SECOND: u64 = 1_000_000_000;

/// Pod `uid` in namespace `ns` with one container that uses all claims.
fn pod(uid: &str, claims: &[&str]) -> Arc<ClaimsOfPod> {
    let named = |name: &&str| NamedClaim { name: (*name).to_owned(), is_of_template: false };
    let of = |name: &&str| ClaimUse {
        claim: (*name).to_owned(),
        request: String::new(),
        status_name: Some(format!("claim:{name}")),
    };
    Arc::new(ClaimsOfPod {
        namespace: "ns".to_owned(),
        pod: format!("pod-{uid}"),
        uid: uid.to_owned(),
        scheduling_group: None,
        claims: claims.iter().map(named).collect(),
        containers: vec![ClaimUser { name: "c".to_owned(), uses: claims.iter().map(of).collect() }],
    })
}

/// Claim `name` with UID `uid-name`, allocated from these drivers, reserved for pods `a`, `b` and `c`.
fn object(name: &str, drivers: &[&str]) -> Arc<ResourceClaim> {
    let results: Vec<_> =
        drivers.iter().map(|d| json!({"driver": d, "pool": "p", "device": name, "request": "r"})).collect();
    let reserved: Vec<_> =
        ["a", "b", "c"].iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid})).collect();
    let value = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")}, "spec": {},
        "status": {"reservedFor": reserved, "allocation": {"devices": {"results": results}}}});
    Arc::new(serde_json::from_value(value).unwrap())
}

/// The answer of a driver that works: one device for each claim.
fn results(driver: &str, method: ClaimMethod, claims: &[CalledClaim]) -> BTreeMap<String, ClaimResult> {
    let device = |claim: &CalledClaim| ClaimedDevice {
        pool: "p".to_owned(),
        device: claim.name.clone(),
        cdi_devices: vec![format!("{driver}/x={}", claim.name)],
        ..ClaimedDevice::default()
    };
    let devices = |claim: &CalledClaim| match method {
        ClaimMethod::Prepare => vec![device(claim)],
        ClaimMethod::Unprepare => Vec::new(),
    };
    let result = |claim: &CalledClaim| ClaimResult { error: String::new(), devices: devices(claim) };
    claims.iter().map(|claim| (claim.uid.clone(), result(claim))).collect()
}

/// The machine with the shell's open questions.
struct Node {
    claims: ResourceClaims,
    now: Now,
    asks: u64,
    /// The last text of a write that succeeded.
    file: Option<String>,
    /// Actions without an answer, oldest first.
    open: Vec<ClaimAction>,
    drivers: BTreeMap<PluginId, String>,
}

fn names(claims: &[CalledClaim]) -> String {
    claims.iter().map(|claim| claim.name.as_str()).collect::<Vec<_>>().join("+")
}

fn method(method: ClaimMethod) -> &'static str {
    match method {
        ClaimMethod::Prepare => "prepare",
        ClaimMethod::Unprepare => "unprepare",
    }
}

impl Node {
    fn of(claims: ResourceClaims) -> Node {
        let now = Now { mono: Mono(1000 * SECOND), wall: Wall(1_767_225_600_000_000_000) };
        Node { claims, now, asks: 0, file: None, open: Vec::new(), drivers: BTreeMap::new() }
    }

    /// A node after its first step, with the connected drivers `d1` (plugin 1) and `d2` (plugin 2).
    fn new() -> Node {
        let mut node = Node::of(ResourceClaims::new(GATES));
        node.step(ClaimEvent::Tick);
        node.settle();
        for (plugin, driver) in [(1, "d1"), (2, "d2")] {
            node.register(plugin, driver);
        }
        node
    }

    fn register(&mut self, plugin: u64, driver: &str) {
        self.drivers.insert(PluginId(plugin), driver.to_owned());
        self.step(ClaimEvent::Registered { plugin: PluginId(plugin), driver: driver.to_owned() });
        self.step(ClaimEvent::Connected(PluginId(plugin)));
    }

    /// One word for each action.
    fn step(&mut self, event: ClaimEvent) -> String {
        let mut out = Outbox::new();
        self.claims.step(self.now, event, &mut out);
        let mut words = Vec::new();
        for action in out.drain() {
            words.push(match &action {
                ClaimAction::Fetch { name, .. } => format!("fetch:{name}"),
                ClaimAction::Call { plugin, method: of, claims, .. } => {
                    format!("{}@{}:{}", method(*of), plugin.0, names(claims))
                }
                ClaimAction::Write(_) => "write".to_owned(),
                ClaimAction::WriteHealth(_) => "health".to_owned(),
                ClaimAction::DeleteSlices { driver } => {
                    format!("delete:{}", driver.as_deref().unwrap_or("all"))
                }
                ClaimAction::Answer { ask, answer: Ok(claims) } => {
                    let cdi = claims.containers.values().flat_map(|of| of.cdi_devices.clone());
                    format!("ok{ask}[{}]", cdi.collect::<Vec<_>>().join(","))
                }
                ClaimAction::Answer { ask, answer: Err(error) } => format!("failed{ask}[{error}]"),
                ClaimAction::NotGivenBack { uid, error } => format!("kept {uid}:{error}"),
                ClaimAction::Changed { uid, claims } => {
                    let health = claims.containers.values().flat_map(|of| of.health.values().flatten());
                    let health = health.map(|of| format!("{}={}", of.resource_id, of.health));
                    format!("changed:{uid}[{}]", health.collect::<Vec<_>>().join(","))
                }
            });
            let is_question = matches!(
                action,
                ClaimAction::Fetch { .. } | ClaimAction::Call { .. } | ClaimAction::Write(_)
            );
            if is_question {
                self.open.push(action);
            }
        }
        words.join(" ")
    }

    fn prepare(&mut self, uid: &str, claims: &[&str]) -> String {
        self.asks += 1;
        self.step(ClaimEvent::Prepare { ask: self.asks, pod: pod(uid, claims) })
    }

    fn unprepare(&mut self, uid: &str) -> String {
        self.asks += 1;
        self.step(ClaimEvent::Unprepare { ask: self.asks, uid: PodUid::from(uid) })
    }

    fn active(&mut self, uids: &[&str]) -> String {
        self.step(ClaimEvent::ActivePods(uids.iter().map(|uid| PodUid::from(*uid)).collect()))
    }

    /// The pod uses a claim.
    fn references(&self, uid: &str) -> bool {
        self.claims.common.cache.references(&PodUid::from(uid))
    }

    fn take(&mut self, is_it: impl Fn(&ClaimAction) -> bool) -> ClaimAction {
        let at = self.open.iter().position(is_it).expect("an open question");
        self.open.remove(at)
    }

    /// Answers the oldest fetch.
    fn fetched(&mut self, answer: Result<Arc<ResourceClaim>, String>) -> String {
        let ClaimAction::Fetch { fetch, .. } = self.take(|of| matches!(of, ClaimAction::Fetch { .. })) else {
            unreachable!()
        };
        self.step(ClaimEvent::Fetched { fetch, answer })
    }

    /// Answers the oldest call; `None`: with success.
    fn called(&mut self, answer: Option<Result<BTreeMap<String, ClaimResult>, String>>) -> String {
        let ClaimAction::Call { call, plugin, method, claims } =
            self.take(|of| matches!(of, ClaimAction::Call { .. }))
        else {
            unreachable!()
        };
        let answer = answer.unwrap_or_else(|| Ok(results(&self.drivers[&plugin], method, &claims)));
        self.step(ClaimEvent::Called { call, answer })
    }

    fn written(&mut self, outcome: Result<(), &str>) -> String {
        let ClaimAction::Write(text) = self.take(|of| matches!(of, ClaimAction::Write(_))) else {
            unreachable!()
        };
        if outcome.is_ok() {
            self.file = Some(text);
        }
        self.step(ClaimEvent::Written(outcome.map_err(str::to_owned)))
    }

    /// Answers all questions with success, oldest first. Claim `c…` belongs to driver `d1`, `e…` to `d2`, `f…` to both.
    fn settle(&mut self) -> String {
        let mut words = Vec::new();
        while let Some(action) = self.open.first() {
            words.push(match action {
                ClaimAction::Fetch { name, .. } => {
                    let claim = object_of(name);
                    self.fetched(Ok(claim))
                }
                ClaimAction::Call { .. } => self.called(None),
                _ => self.written(Ok(())),
            });
        }
        words.retain(|word| !word.is_empty());
        words.join(" ")
    }

    /// Another agent starts with the same files.
    fn restart(&mut self) {
        self.claims = ResourceClaims::restore(GATES, self.file.as_deref(), None, self.now).unwrap();
        self.open.clear();
        self.drivers.clear();
        for (plugin, driver) in [(1, "d1"), (2, "d2")] {
            self.register(plugin, driver);
        }
    }
}

fn object_of(name: &str) -> Arc<ResourceClaim> {
    match name.as_bytes().first() {
        Some(b'c') => object(name, &["d1"]),
        Some(b'e') => object(name, &["d2"]),
        Some(b'f') => object(name, &["d2", "d1"]),
        _ => object(name, &[]),
    }
}

#[test]
fn the_start_deletes_all_slices_and_makes_the_file() {
    let claims = ResourceClaims::new(GATES);
    assert_eq!(claims.deadline(), Some(Mono(0)));
    let mut node = Node::of(claims);
    assert_eq!(node.step(ClaimEvent::Tick), "delete:all write");
    assert_eq!(node.written(Ok(())), "");
    assert!(node.file.as_ref().unwrap().ends_with(r#""Checksum":4010664294}"#));
    assert_eq!(node.claims.deadline(), None);
    let file = node.file.clone();
    let mut node = Node::of(ResourceClaims::restore(GATES, file.as_deref(), Some("{"), node.now).unwrap());
    assert_eq!(node.step(ClaimEvent::Tick), "delete:all", "the file is there");
}

#[test]
fn a_pod_gets_its_devices_after_references_calls_and_devices_are_on_the_disk() {
    let mut node = Node::new();
    assert_eq!(node.prepare("a", &["c", "f"]), "fetch:c");
    assert_eq!(node.fetched(Ok(object_of("c"))), "fetch:f");
    assert_eq!(node.fetched(Ok(object_of("f"))), "write");
    assert!(node.references("a") && node.claims.has_references());
    assert_eq!(node.written(Ok(())), "prepare@1:c+f");
    assert!(node.file.as_ref().unwrap().contains(r#"\"PodUIDs\":{\"a\":{}}"#), "before the first call");
    assert_eq!(node.called(None), "prepare@2:f");
    assert_eq!(node.claims.view().in_use, [("<any>".to_owned(), 0)].into());
    assert_eq!(node.called(None), "write");
    assert_eq!(node.written(Ok(())), "ok1[d1/x=c,d1/x=f,d2/x=f]");
    let in_use = [("<any>", 2), ("d1", 2), ("d2", 1)].map(|(driver, count)| (driver.to_owned(), count));
    assert_eq!(node.claims.view().in_use, in_use.into());
    assert_eq!(node.prepare("a", &["c", "f"]), "fetch:c", "a new sandbox");
    assert_eq!(node.settle(), "fetch:f ok2[d1/x=c,d1/x=f,d2/x=f]", "nothing to write, nothing to call");

    assert_eq!(node.unprepare("a"), "unprepare@1:c+f");
    assert_eq!(node.called(None), "unprepare@2:f");
    assert_eq!(node.called(None), "write");
    assert_eq!(node.written(Ok(())), "ok3[]");
    assert!(node.file.as_ref().unwrap().ends_with(r#""Checksum":2361995144}"#));
    assert_eq!(
        node.claims.view(),
        ClaimsView { in_use: [("<any>".to_owned(), 0)].into(), ..ClaimsView::default() }
    );
    assert_eq!(node.unprepare("a"), "ok4[]", "again");
    assert!(!node.claims.has_references());
}

#[test]
fn claims_without_drivers_and_pods_without_claims_need_no_call() {
    let mut node = Node::new();
    assert_eq!(node.prepare("a", &["x"]), "fetch:x");
    assert_eq!(node.settle(), "write ok1[]");
    assert_eq!(node.claims.view().in_use["<any>"], 1);
    assert_eq!(node.unprepare("a"), "write");
    assert_eq!(node.settle(), "ok2[]");
    assert_eq!(node.prepare("b", &["c", "c"]), "fetch:c");
    assert_eq!(node.settle(), "write prepare@1:c write ok3[d1/x=c]", "a claim that is named twice");
}

#[test]
fn a_question_joins_the_same_work_and_waits_for_other_work() {
    let mut node = Node::new();
    assert_eq!(node.prepare("a", &["c"]), "fetch:c");
    assert_eq!(node.prepare("a", &["c"]), "");
    assert_eq!(node.unprepare("a"), "");
    assert_eq!(node.unprepare("a"), "");
    assert_eq!(node.prepare("a", &["c"]), "");
    assert_eq!(
        node.settle(),
        "write prepare@1:c write ok1[d1/x=c] ok2[d1/x=c] unprepare@1:c write ok3[] ok4[] fetch:c write prepare@1:c write \
         ok5[d1/x=c]"
    );
}

#[test]
fn a_claim_is_prepared_once_for_two_pods_and_given_back_by_the_last() {
    let mut node = Node::new();
    assert_eq!(node.prepare("a", &["c"]), "fetch:c");
    assert_eq!(node.fetched(Ok(object_of("c"))), "write");
    assert_eq!(node.prepare("b", &["c", "e"]), "fetch:c");
    assert_eq!(node.fetched(Ok(object_of("c"))), "fetch:e");
    assert_eq!(node.fetched(Ok(object_of("e"))), "", "the claim is being prepared");
    assert_eq!(node.prepare("c", &["e"]), "fetch:e");
    assert_eq!(node.fetched(Ok(object_of("e"))), "", "the write is under way");
    assert_eq!(node.written(Ok(())), "prepare@1:c write");
    assert_eq!(node.written(Ok(())), "prepare@2:e", "a hanging driver holds no other pod");
    assert_eq!(node.called(None), "write");
    assert_eq!(node.written(Ok(())), "ok1[d1/x=c]");
    assert_eq!(node.called(None), "write");
    assert_eq!(node.written(Ok(())), "ok3[d2/x=e] write");
    assert_eq!(node.settle(), "ok2[d1/x=c,d2/x=e]");

    assert_eq!(node.unprepare("a"), "write", "b uses it");
    assert_eq!(node.written(Ok(())), "ok4[]");
    assert_eq!(node.unprepare("b"), "unprepare@1:c");
    assert_eq!(node.settle(), "write ok5[]");
    assert_eq!(node.claims.view().claims.keys().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["e"]);
}

#[test]
fn a_prepared_claim_is_not_held_by_a_pod_that_waits_for_another_driver() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    node.settle();
    node.prepare("a", &["c", "e"]);
    node.fetched(Ok(object_of("c")));
    node.fetched(Ok(object_of("e")));
    assert_eq!(node.written(Ok(())), "prepare@2:e");
    assert_eq!(node.prepare("b", &["c"]), "fetch:c");
    assert_eq!(node.fetched(Ok(object_of("c"))), "write");
    assert_eq!(node.written(Ok(())), "ok3[d1/x=c]");
}

#[test]
fn a_pod_that_comes_while_a_claim_is_given_back_prepares_it_anew() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    node.settle();
    assert_eq!(node.unprepare("a"), "unprepare@1:c");
    node.prepare("b", &["c"]);
    assert_eq!(node.fetched(Ok(object_of("c"))), "");
    assert_eq!(node.called(None), "write", "without the claim");
    assert_eq!(node.written(Ok(())), "ok2[] write");
    assert_eq!(node.settle(), "prepare@1:c write ok3[d1/x=c]");
    // The driver fails to unprepare the claim: the next pod must not rely on the devices.
    assert_eq!(node.unprepare("b"), "unprepare@1:c");
    assert_eq!(node.called(Some(Err("no".to_owned()))), "failed4[NodeUnprepareResources: no]");
    node.prepare("c", &["c"]);
    assert_eq!(node.settle(), "write prepare@1:c ok5[d1/x=c]");
}

#[test]
fn a_restarted_agent_has_the_devices_and_prepares_again_for_a_new_sandbox() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    node.settle();
    node.restart();
    assert!(node.references("a"));
    assert_eq!(node.claims.view().in_use["<any>"], 0);
    assert_eq!(node.step(ClaimEvent::Find { ask: 7, pod: pod("a", &["c"]) }), "ok7[d1/x=c]");
    node.prepare("a", &["c"]);
    assert_eq!(node.settle(), "prepare@1:c ok2[d1/x=c]", "once, not twice; the file is as it was");
    assert_eq!(node.claims.view().in_use["d1"], 1);
}

#[test]
fn claims_of_pods_that_are_gone_are_given_back() {
    let mut node = Node::new();
    for (uid, claim) in [("a", "c"), ("b", "e")] {
        node.prepare(uid, &[claim]);
        node.settle();
    }
    assert_eq!(node.active(&["b"]), "", "the list may be older than the pod");
    assert_eq!(node.active(&["b"]), "unprepare@1:c");
    assert_eq!(node.active(&["b"]), "", "it is under way");
    assert_eq!(node.called(Some(Err("no".to_owned()))), "kept a:NodeUnprepareResources: no");
    assert_eq!(node.active(&["b"]), "unprepare@1:c", "tried again");
    assert_eq!(node.settle(), "write");
    assert_eq!(node.active(&["b"]), "");
    node.restart();
    assert_eq!(node.active(&[]), "unprepare@2:e", "at once after a start");
}

#[test]
fn writes_that_fail_are_told_and_tried_again() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    node.fetched(Ok(object_of("c")));
    let told = "could not save checkpoint dra_manager_state: disk full";
    assert_eq!(node.written(Err("disk full")), format!("failed1[checkpoint ResourceClaim cache: {told}]"));
    node.prepare("a", &["c"]);
    assert_eq!(node.fetched(Ok(object_of("c"))), "write");
    node.written(Ok(()));
    node.called(None);
    assert_eq!(node.written(Err("disk full")), format!("failed2[checkpoint ResourceClaim state: {told}]"));
    node.prepare("a", &["c"]);
    assert_eq!(node.settle(), "write ok3[d1/x=c]", "it is prepared");
    node.unprepare("a");
    node.called(None);
    assert_eq!(node.written(Err("disk full")), format!("failed4[checkpoint ResourceClaim state: {told}]"));
    assert_eq!(node.unprepare("b"), "ok5[]", "another pod");
    assert_eq!(node.unprepare("a"), "write", "the entry is still in the file");
    assert_eq!(node.written(Ok(())), "ok6[]");
    assert!(node.file.as_ref().unwrap().ends_with("2361995144}"));
}

#[test]
fn slices_of_a_driver_that_went_are_deleted() {
    let mut node = Node::of(ResourceClaims::new(GATES));
    node.step(ClaimEvent::Tick);
    node.settle();
    let start = node.now.mono;
    let at = |seconds: u64| Some(start.after(std::time::Duration::from_secs(seconds)));
    node.step(ClaimEvent::Registered { plugin: PluginId(1), driver: "d".to_owned() });
    assert_eq!(node.claims.deadline(), at(30), "until the connection is there");
    node.step(ClaimEvent::Connected(PluginId(1)));
    assert_eq!(node.claims.deadline(), None);
    node.step(ClaimEvent::Registered { plugin: PluginId(2), driver: "d".to_owned() });
    node.step(ClaimEvent::Deregistered(PluginId(2)));
    assert_eq!(node.claims.deadline(), None, "the other one is connected");
    node.step(ClaimEvent::Disconnected(PluginId(1)));
    node.now.mono = at(5).unwrap();
    node.step(ClaimEvent::Deregistered(PluginId(1)));
    assert_eq!(node.claims.deadline(), at(30));
    node.now.mono = at(30).unwrap();
    assert_eq!(node.step(ClaimEvent::Tick), "delete:d");
    assert_eq!(node.claims.deadline(), None);
}

#[test]
fn answers_to_no_question_change_nothing() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    assert_eq!(node.step(ClaimEvent::Fetched { fetch: 99, answer: Ok(object_of("c")) }), "");
    assert_eq!(node.step(ClaimEvent::Called { call: 98, answer: Ok(BTreeMap::new()) }), "");
    assert_eq!(node.step(ClaimEvent::Written(Ok(()))), "");
    assert_eq!(node.step(ClaimEvent::Health { plugin: PluginId(9), devices: Vec::new() }), "");
    assert_eq!(node.step(ClaimEvent::HealthEnded(PluginId(9))), "");
    assert_eq!(node.step(ClaimEvent::Deregistered(PluginId(9))), "");
}
