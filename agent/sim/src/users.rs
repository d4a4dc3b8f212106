//! Actions of users, the scheduler and controllers at the API server while a node works: create, change and delete
//! pods, with and without grace; delete the Node, the lease, mirror pods; malformed pods that a real server would
//! refuse.
//!
//! In: random choices. Out: changes of the fake API server. Also the conditions that the server must fulfil at rest.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_core::checkers::at_rest;
use agent_core::pod_source::api::refusal;
use agent_types::ids::{ContainerId, PodUid};
use agent_types::pod::{self, CONFIG_MIRROR};
use agent_types::runtime::observed::ContainerState;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_calls::ApiEvent;
use crate::api_side::key_of;
use crate::cluster::NODE;
use crate::fake_api::resource::text;
use crate::fake_api::{Key, Requester, Resource, Selector, Verb};
use crate::faults::Faults;
use crate::rng::Rng;
use crate::scenario::Story;
use crate::stopping::is_left_over;
use crate::world::{Event, World};

/// Annotation of pods that may be invalid.
const HOSTILE: &str = "sim/hostile";
/// Number of names of API pods; few, so that names are used again.
const NAMES: u64 = 5;

impl Story {
    /// A user or a controller does something at random through the API server.
    pub(crate) fn user_acts(&mut self, world: &mut World) {
        world.disturb();
        let pods = world.pods_of_users();
        let one = self.rng.pick(&pods).cloned();
        match (self.rng.below(16), one) {
            (0..=4, _) => self.create(world),
            (5..=6, Some(pod)) => world.delete(&pod, None),
            (7, Some(pod)) => {
                let grace = i64::try_from(self.rng.below(20)).unwrap_or(0);
                world.delete(&pod, Some(grace));
            }
            (8, Some(pod)) => world.delete(&pod, Some(0)),
            (9, Some(pod)) => {
                let list = pod.pointer("/spec/containers/0/name").cloned().unwrap_or_default();
                let image = format!("docker.io/library/image{}:1", self.rng.below(6));
                world.patch(&pod, json!({ "spec": { "containers": [{ "name": list, "image": image }] } }));
            }
            (10, Some(pod)) => {
                world
                    .patch(&pod, json!({ "metadata": { "labels": { "a": self.rng.below(9).to_string() } } }));
            }
            (11, Some(pod)) => {
                let status = if self.rng.chance(500) { "True" } else { "False" };
                let gate = json!({ "type": "example.org/gate", "status": status });
                world.patch_status(&pod, json!({ "conditions": [gate] }));
            }
            (12, _) => world.delete_key(Key::new(Resource::Nodes, "", NODE)),
            (13, _) => world.delete_key(Key::new(Resource::Leases, "kube-node-lease", NODE)),
            (14, _) => {
                let mirrors = world.pods_where(is_mirror);
                if let Some(mirror) = self.rng.pick(&mirrors).cloned() {
                    let grace = if self.rng.chance(500) { None } else { Some(0) };
                    world.delete(&mirror, grace);
                }
            }
            (15, _) => self.hostile(world),
            (_, _) => {}
        }
    }

    fn create(&mut self, world: &mut World) {
        let mut pod = self.pod(world);
        world.ask_for_processors(&mut pod, false);
        world.give_claims(&mut pod, false);
        world.ask_for_devices(&mut pod, false);
        let name = format!("api{}", self.rng.below(NAMES));
        pod["metadata"] = json!({ "name": name, "namespace": "default" });
        world.give_owner(&mut pod);
        if self.rng.chance(150) {
            pod["metadata"]["finalizers"] = json!(["example.org/hold"]);
        }
        if self.rng.chance(100) {
            pod["spec"]["activeDeadlineSeconds"] = json!(self.rng.between(1, 120));
        }
        let Some(Ok(key)) = world.on_server(|server, now| server.create_pod(now, &pod)) else { return };
        if let Some(pod) =
            world.api.as_ref().and_then(|api| Pod::deserialize(&**api.server.object(&key)?).ok())
        {
            world.pod_planned(&pod);
            world.claims_planned(&pod);
        }
        let wait = Duration::from_millis(self.rng.below(500));
        world.queue.after(wait, Event::Api(ApiEvent::Bind(key)));
    }

    /// A pod that only a broken or hostile API server can show.
    fn hostile(&mut self, world: &mut World) {
        let mut pod = self.pod(world);
        world.ask_for_processors(&mut pod, false);
        world.ask_for_devices(&mut pod, false);
        let name = format!("bad{}", self.rng.below(NAMES));
        pod["metadata"] = json!({ "name": name, "namespace": "default", "annotations": { HOSTILE: "1" } });
        pod["spec"]["nodeName"] = json!(NODE);
        for _ in 0..self.rng.between(1, 3) {
            mangle(&mut pod, &mut self.rng);
        }
        let key = Key::new(Resource::Pods, "default", &name);
        world.on_server(|server, now| server.serve(now, &Requester::Admin, &key, &Verb::Create(pod)));
        if self.rng.chance(300) {
            let status = json!({
                "phase": "Nonsense", "podIP": "nowhere", "conditions": [{ "type": "", "status": "" }],
                "containerStatuses": [{ "name": "", "image": "", "imageID": "", "ready": true,
                    "restartCount": -1, "containerID": "://", "state": { "terminated": { "exitCode": -1 } } }],
            });
            let verb = Verb::PatchStatus(json!({ "status": status }));
            world.on_server(|server, now| server.serve(now, &Requester::Admin, &key, &verb));
        }
    }
}

/// Replaces a random part of `pod` by an invalid value.
fn mangle(pod: &mut Value, rng: &mut Rng) {
    let long = "x".repeat(5_000);
    let places = [
        ("/spec/containers", json!([])),
        ("/spec/containers", Value::Null),
        ("/spec/containers/0/name", json!("../../etc")),
        ("/spec/containers/0/name", json!("")),
        ("/spec/containers/0/image", json!("")),
        ("/spec/containers/0/image", json!("::::@@@")),
        ("/spec/containers/0/name", json!(long)),
        ("/spec/containers/0", json!({ "name": 7 })),
        ("/spec/restartPolicy", json!("Perhaps")),
        ("/spec/terminationGracePeriodSeconds", json!(i64::MIN)),
        ("/spec/terminationGracePeriodSeconds", json!(i64::MAX)),
        ("/spec/dnsPolicy", json!("Prayer")),
        ("/metadata/finalizers", json!([""])),
        ("/metadata/labels", json!({ "": long })),
        ("/spec", Value::Null),
        ("/spec", json!("none")),
    ];
    let added = [
        ("activeDeadlineSeconds", json!(-5)),
        ("activeDeadlineSeconds", json!(i64::MAX)),
        ("hostname", json!("a/b\u{0}c")),
        ("hostNetwork", json!(true)),
        (
            "volumes",
            json!([{ "name": "v" }, { "name": "v", "emptyDir": {} }, { "name": "..", "hostPath": { "path": "../" } }]),
        ),
        (
            "securityContext",
            json!({ "sysctls": [{ "name": "", "value": "" }], "runAsUser": -1, "fsGroup": i64::MAX }),
        ),
        ("initContainers", json!([{ "name": "a" }, { "name": "a", "restartPolicy": "Always" }])),
        ("dnsConfig", json!({ "nameservers": ["x"], "options": [{}] })),
        ("hostAliases", json!([{ "ip": "", "hostnames": ["\n"] }])),
        ("overhead", json!({ "cpu": "-1e400", "memory": "" })),
        ("resources", json!({ "limits": { "cpu": "NaN" } })),
        ("nodeSelector", json!({ "": "" })),
        ("tolerations", json!([{ "operator": "Maybe", "tolerationSeconds": i64::MIN }])),
        ("schedulingGates", json!([{ "name": "g" }])),
    ];
    if rng.chance(500) {
        if let Some((place, value)) = rng.pick(&places)
            && let Some(found) = pod.pointer_mut(place)
        {
            *found = value.clone();
        }
    } else if let Some((field, value)) = rng.pick(&added)
        && let Some(spec) = pod.pointer_mut("/spec").and_then(Value::as_object_mut)
    {
        spec.insert((*field).to_owned(), value.clone());
    }
}

fn is_mirror(pod: &Value) -> bool {
    pod.pointer("/metadata/annotations").is_some_and(|a| a.get(CONFIG_MIRROR).is_some())
}

fn is_hostile(pod: &Value) -> bool {
    pod.pointer("/metadata/annotations").is_some_and(|a| a.get(HOSTILE).is_some())
}

/// True if the API shows the outcome of the pod: it runs, it has ended, or a container has a reason why it does not run.
fn is_answered(shown: &Pod) -> bool {
    let Some(status) = &shown.status else { return false };
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let waiting = |c: &ContainerStatus| c.state.as_ref()?.waiting.as_ref()?.reason.clone();
    let mut reasons = lists.into_iter().flatten().flatten().filter_map(waiting);
    match status.phase.as_deref() {
        Some("Running" | "Succeeded" | "Failed") => true,
        Some("Pending") => reasons.any(|r| !matches!(&*r, "" | "ContainerCreating" | "PodInitializing")),
        _ => false,
    }
}

impl World {
    /// Replaces the active faults, and sets the history length of the API server.
    pub fn set_faults(&mut self, faults: Faults) {
        if let Some(api) = &mut self.api
            && faults.api.window > 0
        {
            api.server.window = faults.api.window;
        }
        self.faults = faults;
        if self.faults == Faults::default() {
            self.heal_api();
            for pod in self.pods_where(|p| p.pointer("/metadata/finalizers").is_some()) {
                self.release(&pod);
            }
        }
    }

    pub(crate) fn pods_where(&self, of: impl Fn(&Value) -> bool) -> Vec<Value> {
        let Some(api) = &self.api else { return Vec::new() };
        let all = api.server.list(Resource::Pods, &Selector::default()).0;
        all.iter().filter(|pod| of(pod)).map(|pod| Value::clone(pod)).collect()
    }

    pub(crate) fn pods_of_users(&self) -> Vec<Value> {
        self.pods_where(|pod| !is_mirror(pod))
    }

    fn delete(&mut self, pod: &Value, grace_s: Option<i64>) {
        let key = key_of(pod);
        self.on_server(|server, now| server.remove_object(now, &key, grace_s));
    }

    fn delete_key(&mut self, key: Key) {
        self.on_server(|server, now| server.remove_object(now, &key, None));
    }

    pub(crate) fn patch(&mut self, pod: &Value, patch: Value) {
        let key = key_of(pod);
        self.on_server(|server, now| server.serve(now, &Requester::Admin, &key, &Verb::Patch(patch)));
    }

    pub(crate) fn patch_status(&mut self, pod: &Value, status: Value) {
        let (key, verb) = (key_of(pod), Verb::PatchStatus(json!({ "status": status })));
        self.on_server(|server, now| server.serve(now, &Requester::Admin, &key, &verb));
    }

    fn release(&mut self, pod: &Value) {
        let key = key_of(pod);
        self.on_server(|server, now| server.release(now, &key));
    }

    /// A user deletes every pod of the API: with grace 0 if the node cannot decode or report the pod, else with at most a minute,
    /// so that containers that ignore SIGTERM end before the run does.
    pub fn everything_is_deleted(&mut self) {
        self.disturb();
        for pod in self.pods_of_users() {
            self.release(&pod);
            let decoded = Pod::deserialize(&pod).ok();
            let spoken_of = decoded.is_some_and(|p| refusal(&p, NODE).is_none());
            let own = pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
            let grace_s = if spoken_of { own.filter(|own| *own > 60).map(|_| 60) } else { Some(0) };
            self.delete(&pod, grace_s);
        }
    }

    /// Number of pods in the API.
    #[must_use]
    pub fn left_in_api(&self) -> usize {
        self.pods_where(|_| true).len()
    }

    /// The pods of the API on this node that should run, without mirror pods.
    #[must_use]
    pub fn runnable_api_pods(&self) -> Vec<Pod> {
        let on_node = |p: &Value| text(p, "/spec/nodeName") == NODE && !is_mirror(p) && !is_hostile(p);
        self.pods_where(on_node).iter().filter_map(|p| Pod::deserialize(p).ok()).collect()
    }

    /// Statements of the API that are wrong: the invariant, and the difference.
    #[must_use]
    pub fn untruths(&self) -> Vec<(&'static str, String)> {
        let Some(api) = &self.api else { return Vec::new() };
        let mut wrong = Vec::new();
        let (objects, _) = api.server.list(Resource::Pods, &Selector::node(NODE));
        let decoded: Vec<(bool, Pod)> = objects
            .iter()
            .filter_map(|o| Some((is_hostile(o), Pod::deserialize(&**o).ok()?)))
            .filter(|(_, p)| refusal(p, NODE).is_none())
            .collect();
        let statics = self.disk.manifests.values().map(|p| &**p);
        if let Err(problem) = at_rest::mirrors(statics, decoded.iter().map(|(_, p)| p)) {
            wrong.push(("MIRROR-ONE", problem));
        }
        for (hostile, shown) in &decoded {
            let name = pod::full_name(shown);
            if shown.metadata.deletion_timestamp.is_some() {
                wrong.push(("LIVENESS", format!("{name} is still being deleted")));
            }
            if *hostile && !is_answered(shown) {
                wrong.push(("LIVENESS", format!("{name} is hostile and nobody says what became of it")));
            }
            let uid = PodUid::from(pod::annotation(shown, CONFIG_MIRROR).unwrap_or(pod::uid(shown)));
            let live = self.live_of(&uid);
            let worker = self.node.as_ref().and_then(|n| n.workers().get(&uid));
            let over = worker.is_none_or(agent_core::pod_worker::PodWorker::is_terminated);
            if let Err(problem) = at_rest::shows(shown, &live, over) {
                wrong.push(("STATUS-TRUTH", problem));
            }
        }
        for left in objects.iter().filter(|object| is_left_over(object)) {
            wrong.push(("LEFT-OVER", format!("{} is for nobody to see", text(left, "/metadata/name"))));
        }
        wrong.extend(self.node_untruths().into_iter().map(|problem| ("NODE-READY", problem)));
        wrong
    }

    fn live_of(&self, uid: &PodUid) -> BTreeSet<ContainerId> {
        let of = self.runtime.containers.values().filter(|c| c.pod.uid == *uid);
        of.filter(|c| c.observed.state == ContainerState::Running).map(|c| c.observed.id.clone()).collect()
    }

    /// Differences of the Node and its lease: the Node must be registered and ready, the lease renewed and owned by the Node.
    fn node_untruths(&self) -> Vec<String> {
        let Some(node) = self.stored(Resource::Nodes, "", NODE) else {
            return vec!["the Node is not registered".to_owned()];
        };
        let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
        let ready = conditions.into_iter().flatten().find(|c| text(c, "/type") == "Ready");
        let mut wrong = Vec::new();
        if ready.is_none_or(|c| text(c, "/status") != "True") {
            wrong.push(format!("the Node is not shown as ready: {ready:?}"));
        }
        let Some(lease) = self.stored(Resource::Leases, "kube-node-lease", NODE) else {
            wrong.push("there is no lease".to_owned());
            return wrong;
        };
        if text(lease, "/metadata/ownerReferences/0/uid") != text(node, "/metadata/uid") {
            wrong.push("the lease is another Node's".to_owned());
        }
        let renewed = text(lease, "/spec/renewTime").parse::<jiff::Timestamp>().ok();
        let age_ns = renewed.map_or(i128::MAX, |t| i128::from(self.now().wall.0) - t.as_nanosecond());
        if age_ns > 20_000_000_000 {
            wrong.push(format!("the lease was renewed {age_ns} ns ago"));
        }
        wrong
    }
}
