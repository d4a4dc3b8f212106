//! Records, verdicts, their order, and the steps of a resize.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::{ContainerId, PodUid, SandboxId};
use agent_types::node_context::{CgroupDriver, NodeContext};
use agent_types::pressures::Pressures;
use agent_types::resources::amounts::Amounts;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot, ResourcesObserved};
use agent_types::time::{Mono, Wall};
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{Pod, Taint};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::actuate::{ActuateStep, Lowered, actual, plan, too_low};
use super::checkpoint::{CheckpointError, decode, encode};
use super::resize::{self, Refusal, Waiting, changes, judge};
use super::{Allocations, PodAllocation, message};
use crate::admission::AdmissionContext;
use crate::admission::resize_rules::Rules;

fn of(spec: Value) -> Arc<Pod> {
    let whole =
        json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3}, "spec": spec});
    Arc::new(serde_json::from_value(whole).unwrap())
}

fn limited(name: &str, cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    json!({"name": name, "image": "i", "resources": {"requests": amounts, "limits": amounts}})
}

#[test]
fn records_are_read_and_written_as_upstream_does() {
    // The content of upstream's own test of its checkpoint.
    let upstreams = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;
    let read = decode(upstreams.as_bytes()).unwrap();
    assert_eq!(read[&PodUid::from("pod1")].amounts("container1").memory_request, 1024);
    let written = encode(&read);
    let text = String::from_utf8(written.clone()).unwrap();
    assert!(text.contains(r#"\"PodLevelResources\":null"#), "{text}");
    assert_eq!(decode(&written).unwrap(), read);
    assert_eq!(decode(&encode(&Allocations::new())).unwrap(), Allocations::new());
    assert_eq!(
        decode(br#"{"data":"{}","checksum":0}"#).unwrap_err().to_string().split(':').next(),
        Some("the checkpoint is corrupt")
    );
    for garbage in ["", "null", "[]", "{\"data\":1}", &upstreams[..60]] {
        assert!(matches!(decode(garbage.as_bytes()), Err(CheckpointError::Shape(_))), "{garbage}");
    }
    let nulls = r#"{"entries":{"p":{"ContainerResources":null,"PodLevelResources":null}}}"#;
    let sum = orlop_config::fnv::fnv32(format!("(string){nulls}").as_bytes());
    let file = json!({"data": nulls, "checksum": sum}).to_string();
    assert_eq!(decode(file.as_bytes()).unwrap()[&PodUid::from("p")], PodAllocation::default());
}

#[test]
fn a_pod_has_what_it_was_given() {
    let asks =
        of(json!({"containers": [limited("a", "1", "1Gi")], "initContainers": [limited("i", "2", "1Gi")]}));
    let same = of(
        json!({"containers": [limited("a", "1000m", "1024Mi")], "initContainers": [limited("i", "2", "1Gi")]}),
    );
    let given = PodAllocation::of(&asks);
    assert!(!given.differs(&same) && Arc::ptr_eq(&given.apply(&same), &same), "spelled otherwise");
    let more =
        of(json!({"containers": [limited("a", "3", "1Gi")], "initContainers": [limited("i", "4", "1Gi")]}));
    assert!(given.differs(&more));
    assert!(!given.differs(&given.apply(&more)));
    assert_eq!(given.apply(&more).metadata, more.metadata, "all else is as it is wanted");
    let room = PodAllocation::of(&more).at_least(&given);
    assert_eq!(room.amounts("a"), Amounts::of(pod::containers(&more)[0].resources.as_ref()));
    assert_eq!(given.at_least(&PodAllocation::of(&more)).amounts("a").cpu_request_milli, 3000);
    assert_eq!(given.at_least(&PodAllocation::of(&more)).amounts("a").cpu_limit_milli, 1000);
    assert!(PodAllocation::of(&of(json!({"containers": [{"name": "a"}]}))).is_empty() && !given.is_empty());
    let unknown = of(json!({"containers": [limited("new", "3", "1Gi")]}));
    assert!(!given.differs(&unknown), "what was never given is nothing to differ from");
}

#[test]
fn events_say_what_upstreams_say() {
    let p = of(
        json!({"containers": [{"name": "c1", "resources": {"limits": {"memory": "200"}, "requests": {"memory": "100"}}},
        {"name": "c2", "resources": {"limits": {}}}], "initContainers": [{"name": "c0", "restartPolicy": "Always", "resources": {"limits": {"cpu": "200m"}}}]}),
    );
    assert_eq!(
        message::of("Pod resize Deferred", &p, Some(2), "no room"),
        r#"Pod resize Deferred: {"initContainers":[{"name":"c0","resources":{"limits":{"cpu":"200m"}}}],"containers":[{"name":"c1","resources":{"limits":{"memory":"200"},"requests":{"memory":"100"}}},{"name":"c2","resources":{}}],"generation":2,"error":"no room"}"#
    );
    let bare = of(json!({"containers": [{"name": "c0"}]}));
    let said = message::of("Pod resize completed", &bare, Some(3), "");
    assert_eq!(said, r#"Pod resize completed: {"containers":[{"name":"c0","resources":{}}],"generation":3}"#);
}

fn node(cpu_milli: i64) -> AdmissionContext {
    let allocatable = [("cpu".to_owned(), Quantity::from_milli(cpu_milli))].into();
    AdmissionContext { allocatable, ..AdmissionContext::default() }
}

#[test]
fn verdicts() {
    let asks = |cpu: &str| of(json!({"containers": [limited("a", cpu, "1Gi")]}));
    let (given, other) = (PodAllocation::of(&asks("1")), asks("1"));
    assert_eq!(judge(&asks("3"), &given, &[&other], &node(4000)), Ok(()));
    let refusal = judge(&asks("3001m"), &given, &[&other], &node(4000)).unwrap_err();
    assert_eq!((refusal.reason(), refusal.event().as_str()), (resize::DEFERRED, "Pod resize OutOfcpu"));
    let message = "Node didn't have enough resource: cpu, requested: 3001, used: 1000, capacity: 4000";
    assert_eq!(refusal.message(), message);
    let with = |rules| AdmissionContext { resizes: rules, ..node(4000) };
    let cpus = with(Rules { static_cpus: true, ..Rules::default() });
    let words = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"".to_owned();
    let detail = "guaranteed_pod_cpu_manager_static_policy";
    assert_eq!(judge(&asks("2"), &given, &[], &cpus), Err(Refusal::Infeasible(words, detail)));
    let more_memory = of(json!({"containers": [limited("a", "1", "2Gi")]}));
    assert_eq!(judge(&more_memory, &given, &[], &cpus), Ok(()), "its processors stay");
    let memory = with(Rules { static_memory: true, ..Rules::default() });
    assert_eq!(judge(&more_memory, &given, &[], &memory).unwrap_err().reason(), resize::INFEASIBLE);
    let burstable = of(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}));
    assert_eq!(judge(&burstable, &given, &[], &cpus), Ok(()), "it has no processors of its own");
    let whole =
        of(json!({"containers": [limited("a", "1", "1Gi")], "resources": {"requests": {"cpu": "2"}}}));
    assert_eq!(judge(&whole, &given, &[], &node(4000)), Ok(()));
    assert!(judge(&whole, &given, &[], &node(1000)).is_err());
    let requests = |memory: &str, policy: &str| {
        let resources = json!({"requests": {"memory": memory}, "limits": {"memory": "4Gi"}});
        let policy = json!([{"resourceName": "memory", "restartPolicy": policy}]);
        of(json!({"containers": [{"name": "a", "resources": resources, "resizePolicy": policy}]}))
    };
    let swaps = with(Rules { limited_swap: true, ..Rules::default() });
    let had = PodAllocation::of(&requests("1Gi", "NotRequired"));
    let refusal = judge(&requests("2Gi", "NotRequired"), &had, &[], &swaps).unwrap_err();
    assert_eq!(refusal.message(), "In-place resize of containers with swap is not supported.");
    assert_eq!(judge(&requests("2Gi", "RestartContainer"), &had, &[], &swaps), Ok(()), "it begins anew");
    assert_eq!(judge(&requests("1Gi", "NotRequired"), &had, &[], &swaps), Ok(()), "its share stays");
    assert_eq!(judge(&requests("2Gi", "NotRequired"), &had, &[], &node(4000)), Ok(()), "nobody swaps here");
    assert_eq!(judge(&more_memory, &given, &[], &swaps), Ok(()), "who is Guaranteed does not swap");
    let fixed = with(Rules { fixed_pod_level: true, ..Rules::default() });
    let refusal = judge(&whole, &given, &[], &fixed).unwrap_err();
    assert_eq!(refusal.message(), "InPlacePodLevelResourcesVerticalScaling is disabled");
}

/// Upstream asks every handler of admission again (`canAdmitPod` with `ResizeOperation`).
#[test]
fn what_would_refuse_a_new_pod_defers_a_resize() {
    type Verdict = Result<(), (&'static str, String, String)>;
    let asks = |cpu: &str, more: Value| {
        let mut spec = json!({"containers": [limited("a", cpu, "1Gi")]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of(spec)
    };
    let given = PodAllocation::of(&asks("1", json!({})));
    let verdict = |more: Value, node: &AdmissionContext| -> Verdict {
        judge(&asks("2", more), &given, &[], node)
            .map_err(|refusal| (refusal.reason(), refusal.event(), refusal.message().to_owned()))
    };
    let deferred = |event: &str, message: &str| -> Verdict {
        Err((resize::DEFERRED, format!("Pod resize {event}"), message.to_owned()))
    };
    let pressed = node(4000).pressed(Pressures { disk: true, ..Pressures::default() });
    let full = deferred("Evicted", "The node had condition: [DiskPressure]. ");
    assert_eq!(verdict(json!({}), &pressed), full);
    assert_eq!(verdict(json!({"priority": 2_000_000_000}), &pressed), Ok(()), "it is critical");
    let elsewhere = json!({"nodeSelector": {"disk": "ssd"}});
    let labelled =
        AdmissionContext { node_labels: [("disk".to_owned(), "ssd".to_owned())].into(), ..node(4000) };
    assert_eq!(verdict(elsewhere.clone(), &labelled), Ok(()));
    let lost = deferred(
        "NodeAffinity",
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    );
    assert_eq!(verdict(elsewhere, &node(4000)), lost);
    let taint = Taint { key: "gone".into(), effect: "NoExecute".into(), ..Taint::default() };
    let tainted = AdmissionContext { node_taints: vec![taint], ..node(4000) };
    let repelled = deferred(
        "TaintToleration",
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
    );
    assert_eq!(verdict(json!({}), &tainted), repelled);
    let unsafe_sysctl = json!({"securityContext": {"sysctls": [{"name": "kernel.sem", "value": "1"}]}});
    let forbidden = deferred("SysctlForbidden", "forbidden sysctl: \"kernel.sem\" not allowlisted");
    assert_eq!(verdict(unsafe_sysctl, &node(4000)), forbidden);
}

#[test]
fn who_is_judged_first() {
    let one = |uid: &str, cpu: &str, priority: i64, limits: bool, since: Option<&str>| {
        let amounts = json!({"cpu": cpu, "memory": "1Mi"});
        let resources = if limits {
            json!({"requests": amounts, "limits": amounts})
        } else {
            json!({"requests": amounts})
        };
        let conditions =
            since.map(|at| json!([{"type": "PodResizePending", "status": "True", "lastTransitionTime": at}]));
        let whole = json!({"metadata": {"uid": uid}, "status": {"conditions": conditions},
            "spec": {"priority": priority, "containers": [{"name": "a", "resources": resources}]}});
        serde_json::from_value::<Pod>(whole).unwrap()
    };
    let given = one("", "1", 0, false, None);
    let pods = [
        one("less", "500m", 0, false, None),
        one("high", "2", 7, false, None),
        one("guaranteed", "2", 0, true, None),
        one("long", "2", 0, false, Some("2026-01-01T00:00:00Z")),
        one("short", "2", 0, false, Some("2026-01-02T00:00:00Z")),
        one("new", "2", 0, false, None),
    ];
    let mut order: Vec<&Pod> = pods.iter().rev().collect();
    order.sort_by(|a, b| {
        let waiting = |desired| Waiting { desired, allocated: &given };
        waiting(a).order(&waiting(b))
    });
    assert_eq!(order, pods.iter().collect::<Vec<_>>());
}

#[test]
fn what_was_asked_for_is_counted_by_amount() {
    let old = of(json!({"containers": [limited("a", "1", "1Gi"), {"name": "b"}]}));
    let new = of(
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "512Mi"}}},
        {"name": "b", "resources": {"requests": {"memory": "1"}}}]}),
    );
    let all = [
        ("memory", "limits", "decrease"),
        ("cpu", "requests", "increase"),
        ("cpu", "limits", "remove"),
        ("memory", "requests", "add"),
    ];
    assert_eq!(changes(&old, &new), all);
    assert_eq!(changes(&new, &new), []);
}

/// All containers run; `has` is what each has.
fn snapshot(p: &Pod, has: &PodAllocation) -> PodSnapshot {
    let one = |c: &k8s_openapi::api::core::v1::Container| ContainerObserved {
        state: ContainerState::Running,
        actuated: Some(has.amounts(&c.name)),
        ..ContainerObserved::created(c.name.as_str(), "s", &c.name, 0, Wall(1))
    };
    let containers = pod::containers(p).iter().map(one).collect();
    let actuated = has.pod.as_ref().map(|own| Amounts::of(Some(own)));
    PodSnapshot { pod: pod::key(p), as_of: Mono(1), sandboxes: Vec::new(), containers, actuated }
}

fn specs(per_qos: bool) -> NodeContext {
    let mut node = NodeContext::new("n");
    node.cgroup.per_qos = per_qos;
    node.cgroup.driver = CgroupDriver::Cgroupfs;
    node
}

/// The steps in short words.
fn words(steps: &[ActuateStep]) -> String {
    let one = |step: &ActuateStep| match step {
        ActuateStep::CheckMemory { pod, containers, .. } => {
            let of: Vec<String> =
                containers.iter().map(|l| format!("{}<{}", l.name, l.limit >> 20)).collect();
            format!(
                "check[{}{}]",
                pod.as_ref().map(|(_, l)| format!("pod<{} ", l >> 20)).unwrap_or_default(),
                of.join(" ")
            )
        }
        ActuateStep::Sandbox { .. } => "sandbox".to_owned(),
        ActuateStep::PodCgroup(cgroup) => format!(
            "pod={}/{}",
            cgroup.values.cpu_max.and_then(|m| m.quota_us).unwrap_or(0) / 1000,
            cgroup.values.memory_max.unwrap_or(0) >> 20
        ),
        ActuateStep::PodLevel { record } => {
            let amounts = Amounts::of(Some(record));
            format!("own={}/{}", amounts.cpu_limit_milli / 10, amounts.memory_limit >> 20)
        }
        ActuateStep::Container { name, resources, record, .. } => {
            let amounts = Amounts::of(Some(record));
            assert_eq!(amounts.memory_limit, resources.memory_limit_bytes, "told and remembered alike");
            format!("{name}={}/{}", amounts.cpu_limit_milli / 10, amounts.memory_limit >> 20)
        }
    };
    steps.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn steps_of(from: Value, to: Value, per_qos: bool) -> Vec<ActuateStep> {
    let (from, to) = (of(json!({"containers": from})), of(json!({"containers": to})));
    let node = specs(per_qos);
    let seen = snapshot(&to, &PodAllocation::of(&from));
    plan(&to, &actual(&to, &seen, &node), &SandboxId::from("s"), &node, None)
}

#[test]
fn steps() {
    let pair = |a: (&str, &str), b: (&str, &str)| json!([limited("a", a.0, a.1), limited("b", b.0, b.1)]);
    for (from, to, expected) in [
        (pair(("1", "64Mi"), ("1", "64Mi")), pair(("1", "64Mi"), ("1", "64Mi")), ""),
        // Up: the pod first.
        (
            pair(("1", "64Mi"), ("1", "64Mi")),
            pair(("2", "64Mi"), ("1", "64Mi")),
            "sandbox pod=300/128 a=200/64",
        ),
        (
            pair(("1", "64Mi"), ("1", "64Mi")),
            pair(("1", "128Mi"), ("1", "64Mi")),
            "sandbox pod=200/192 a=100/128",
        ),
        // Down: the pod last, and memory is looked at.
        (
            pair(("2", "64Mi"), ("1", "64Mi")),
            pair(("1", "32Mi"), ("1", "64Mi")),
            "check[pod<96 a<32] sandbox pod=300/128 a=200/32 a=100/32 pod=200/96",
        ),
        // One gives to the other: who shrinks comes first; nothing of the pod changes.
        (
            pair(("1", "64Mi"), ("3", "96Mi")),
            pair(("3", "96Mi"), ("1", "64Mi")),
            "check[b<64] sandbox pod=400/160 b=300/64 a=100/96 b=100/64 a=300/96",
        ),
        // Memory up while processor time goes down.
        (
            pair(("2", "64Mi"), ("1", "64Mi")),
            pair(("1", "96Mi"), ("1", "64Mi")),
            "sandbox pod=300/160 a=200/96 a=100/96 pod=200/160",
        ),
    ] {
        assert_eq!(words(&steps_of(from.clone(), to.clone(), true)), expected, "{from} to {to}");
        let without = words(&steps_of(from, to, false));
        assert!(!without.contains("pod="), "no cgroup, no step: {without}");
    }
}

#[test]
fn what_the_pod_itself_has_is_changed_with_those_that_inherit_it() {
    let of_pod = |cpu: &str, memory: &str, containers: Value| {
        let amounts = json!({"cpu": cpu, "memory": memory});
        of(json!({"resources": {"requests": amounts, "limits": amounts}, "containers": containers}))
    };
    let both = || json!([limited("a", "1", "32Mi"), {"name": "b"}]);
    let node = specs(true);
    let go = |from: &Arc<Pod>, to: &Arc<Pod>| {
        let mut has = PodAllocation::of(from);
        for c in pod::containers(from) {
            has.containers
                .insert(c.name.clone(), agent_types::resources::requests::resources_in_pod(from, c));
        }
        let seen = snapshot(to, &has);
        words(&plan(to, &actual(to, &seen, &node), &SandboxId::from("s"), &node, None))
    };
    let (small, large) = (of_pod("2", "64Mi", both()), of_pod("4", "128Mi", both()));
    assert_eq!(go(&small, &small), "");
    assert_eq!(go(&small, &large), "sandbox pod=400/128 b=200/128 b=400/128 own=400/128");
    let down = "check[pod<64 b<64] sandbox pod=400/128 b=400/64 b=200/64 pod=200/64 own=200/64";
    assert_eq!(go(&large, &small), down);
    // No container inherits from the pod: only the pod changes.
    let alone = |cpu, memory| of_pod(cpu, memory, json!([limited("a", "1", "32Mi")]));
    assert_eq!(go(&alone("2", "64Mi"), &alone("4", "128Mi")), "sandbox pod=400/128 own=400/128");
    assert_eq!(
        go(&alone("4", "128Mi"), &alone("2", "64Mi")),
        "check[pod<64 ] sandbox pod=400/128 pod=200/64 own=200/64"
    );
}

#[test]
fn what_is_to_restart_is_left_to_its_restart() {
    let mut a = limited("a", "1", "64Mi");
    a["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let (from, mut to) = (of(json!({"containers": [a.clone()]})), a.clone());
    let node = specs(true);
    let see = |to: &Arc<Pod>, seen: &PodSnapshot| {
        let all = actual(to, seen, &node);
        (all.restarting(), words(&plan(to, &all, &SandboxId::from("s"), &node, None)))
    };
    to["resources"] = limited("a", "2", "64Mi")["resources"].clone();
    let more_cpu = of(json!({"containers": [to.clone()]}));
    let seen = snapshot(&more_cpu, &PodAllocation::of(&from));
    assert_eq!(see(&more_cpu, &seen), ([].into(), "sandbox pod=200/64 a=200/64".to_owned()));
    to["resources"] = limited("a", "2", "128Mi")["resources"].clone();
    let more = of(json!({"containers": [to]}));
    assert_eq!(see(&more, &seen), ([ContainerId::from("a")].into(), String::new()));
    // The agent does not remember what the container has: the runtime reports other values and gets them
    // again; the container does not restart.
    let mut lost = seen.clone();
    lost.containers[0].actuated = None;
    assert_eq!(see(&more, &lost), ([].into(), String::new()), "the runtime says nothing");
    let has = ResourcesObserved {
        cpu_period_us: 100_000,
        cpu_quota_us: 100_000,
        cpu_shares: 1024,
        memory_limit_bytes: 64 << 20,
    };
    lost.containers[0].resources = Some(has);
    assert_eq!(see(&more, &lost), ([].into(), "sandbox pod=200/128 a=100/128 a=200/128".to_owned()));
    lost.containers[0].resources = Some(ResourcesObserved {
        cpu_period_us: 100_000,
        cpu_quota_us: 200_000,
        cpu_shares: 2048,
        memory_limit_bytes: 128 << 20,
    });
    assert_eq!(see(&more, &lost), ([].into(), String::new()));
}

#[test]
fn a_pod_that_is_larger_than_its_containers_is_lowered_at_the_end() {
    let node = specs(true);
    let (large, small) = (
        of(json!({"containers": [limited("a", "2", "128Mi")]})),
        of(json!({"containers": [limited("a", "1", "64Mi")]})),
    );
    let applied = agent_types::resources::cgroups::pod::pod_cgroup(&large, &node).unwrap().values;
    let seen = snapshot(&small, &PodAllocation::of(&small));
    let steps = |applied| plan(&small, &actual(&small, &seen, &node), &SandboxId::from("s"), &node, applied);
    assert_eq!(words(&steps(Some(&applied))), "check[pod<64 ] pod=100/64");
    assert_eq!(words(&steps(None)), "", "nobody knows what it has");
}

#[test]
fn memory_that_is_in_use_is_not_taken_away() {
    let lowered = |name: &str, limit| Lowered { id: ContainerId::from(name), name: name.to_owned(), limit };
    let in_use: BTreeMap<ContainerId, u64> = [("a".into(), 10), ("b".into(), 20)].into();
    assert_eq!(too_low(Some((100, Some(30))), &[lowered("a", 11)], &in_use), None);
    assert_eq!(
        too_low(None, &[lowered("a", 10)], &in_use).unwrap(),
        "cannot decrease memory limits: attempting to set container \"a\" memory limit (10) below current usage (10)"
    );
    assert_eq!(
        too_low(Some((25, Some(30))), &[lowered("x", 1), lowered("b", 5)], &in_use).unwrap(),
        "cannot decrease memory limits: [attempting to set pod memory limit (25) below current usage (30), \
         missing container \"x\" memory usage, attempting to set container \"b\" memory limit (5) below current usage (20)]"
    );
    assert_eq!(
        too_low(Some((25, None)), &[], &in_use).unwrap(),
        "cannot decrease memory limits: missing pod memory usage"
    );
}

proptest! {
    /// After any number of steps no container is limited to more than the pod, and at the end everything is as it is wanted.
    #[test]
    fn a_container_is_never_larger_than_its_pod(
        from in proptest::collection::vec((1i64..40, 1i64..40), 1..4),
        to in proptest::collection::vec((1i64..40, 1i64..40), 4),
    ) {
        let spec = |amounts: &[(i64, i64)]| {
            let one = |(i, (cpu, memory)): (usize, &(i64, i64))| {
                limited(&format!("c{i}"), &format!("{}m", cpu * 100), &format!("{memory}Mi"))
            };
            of(json!({"containers": amounts.iter().enumerate().map(one).collect::<Vec<_>>()}))
        };
        let (old, new) = (spec(&from), spec(&to[..from.len()]));
        let node = specs(true);
        let mut has = PodAllocation::of(&old);
        let cgroup = |p: &Pod| agent_types::resources::cgroups::pod::pod_cgroup(p, &node).unwrap().values;
        let mut of_pod = cgroup(&old);
        let seen = snapshot(&new, &has);
        for step in plan(&new, &actual(&new, &seen, &node), &SandboxId::from("s"), &node, Some(&of_pod)) {
            match step {
                ActuateStep::PodCgroup(cgroup) => of_pod = cgroup.values,
                ActuateStep::Container { name, record, .. } => drop(has.containers.insert(name, *record)),
                ActuateStep::PodLevel { record } => has.pod = Some(*record),
                ActuateStep::CheckMemory { .. } | ActuateStep::Sandbox { .. } => {}
            }
            let (memory, quota) = (of_pod.memory_max.unwrap(), of_pod.cpu_max.unwrap().quota_us.unwrap());
            for name in has.containers.keys() {
                let a = has.amounts(name);
                prop_assert!(u64::try_from(a.memory_limit).unwrap() <= memory);
                prop_assert!(u64::try_from(a.cpu_limit_milli * 100).unwrap() <= quota);
            }
        }
        prop_assert!(!has.differs(&new));
        prop_assert_eq!(of_pod, cgroup(&new));
        let seen = snapshot(&new, &has);
        prop_assert!(plan(&new, &actual(&new, &seen, &node), &SandboxId::from("s"), &node, None).is_empty());
    }
}
