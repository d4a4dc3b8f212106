//! The fake keeps the API server's rules: versions, watches, graceful deletion, patches, a node's permissions.

use agent_types::api::{ApiCall, ApiReply, ObjectName};
use agent_types::failure::Class;
use agent_types::time::Wall;
use serde_json::{Value, json};

use super::resource::{number, text};
use super::*;

const NODE: &str = "node";

fn at(second: i64) -> Wall {
    Wall((1_767_225_600 + second) * 1_000_000_000)
}

fn node() -> Requester {
    Requester::Node(NODE.to_owned())
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "ns" },
        "spec": { "containers": [{ "name": "a", "image": "i" }], "restartPolicy": "Never" },
    })
}

fn bound(api: &mut FakeApi, name: &str) -> Key {
    let key = api.create_pod(at(0), &pod(name)).unwrap();
    api.bind(at(0), &key, NODE).unwrap();
    key
}

fn see(api: &FakeApi, key: &Key) -> Value {
    Value::clone(api.object(key).unwrap())
}

fn patch_status(api: &mut FakeApi, key: &Key, status: Value) -> Result<Arc<Value>, Status> {
    let patch = json!({ "metadata": { "uid": text(&see(api, key), "/metadata/uid") }, "status": status });
    api.serve(at(1), &node(), key, &Verb::PatchStatus(patch))
}

fn words(lines: &[WatchLine]) -> Vec<String> {
    let name = |o: &Value| text(o, "/metadata/name").to_owned();
    let word = |line: &WatchLine| match line {
        WatchLine::Added(o) => format!("+{}", name(o)),
        WatchLine::Modified(o) => format!("~{}", name(o)),
        WatchLine::Deleted(o) => format!("-{}", name(o)),
        WatchLine::Bookmark(_) => "bookmark".to_owned(),
    };
    lines.iter().map(word).collect()
}

#[test]
fn a_watch_of_a_node_sees_pods_come_and_go() {
    let mut api = FakeApi::default();
    let mine = Selector::node(NODE);
    let (none, from) = api.list(Resource::Pods, &mine);
    assert!(none.is_empty());
    let a = bound(&mut api, "a");
    api.create_pod(at(0), &pod("elsewhere")).unwrap();
    patch_status(&mut api, &a, json!({ "phase": "Running" })).unwrap();
    let lines = api.changes_since(Resource::Pods, &mine, from).unwrap();
    assert_eq!(words(&lines), ["+a", "~a"], "an unbound pod is not selected, binding adds it");
    let from = lines.last().map(WatchLine::version).unwrap();
    api.remove_object(at(2), &a, Some(0)).unwrap();
    let lines = api.changes_since(Resource::Pods, &mine, from).unwrap();
    assert_eq!(words(&lines), ["~a", "-a"], "marked with grace 0, then gone");
    assert!(lines[1].version() > lines[0].version());
    api.forget_history();
    assert_eq!(api.changes_since(Resource::Pods, &mine, from).unwrap_err().code, 410);
    assert_eq!(api.changes_since(Resource::Pods, &mine, api.version()), Ok(vec![]));
}

#[test]
fn graceful_deletion_marks_shrinks_and_removes() {
    let mut api = FakeApi::default();
    let key = bound(&mut api, "a");
    let graces = |api: &FakeApi| {
        let o = see(api, &key);
        let when = text(&o, "/metadata/deletionTimestamp").to_owned();
        (number(&o, "/metadata/deletionGracePeriodSeconds"), when, number(&o, "/metadata/generation"))
    };
    let when = |s| strategy::timestamp(at(s));
    api.remove_object(at(10), &key, None).unwrap();
    assert_eq!(graces(&api), (Some(30), when(40), Some(2)), "the pod's own grace; the generation rises");
    api.remove_object(at(11), &key, Some(60)).unwrap();
    assert_eq!(graces(&api), (Some(30), when(40), Some(2)), "never longer");
    api.remove_object(at(12), &key, Some(5)).unwrap();
    assert_eq!(graces(&api), (Some(5), when(15), Some(2)), "counted from the first request");
    api.remove_object(at(20), &key, Some(3)).unwrap();
    assert_eq!(
        graces(&api),
        (Some(1), when(20), Some(2)),
        "not into the past, and still the node's to remove"
    );
    let uid = text(&see(&api, &key), "/metadata/uid").to_owned();
    let name = ObjectName { namespace: "ns".into(), name: "a".into() };
    let wrong =
        ApiCall::DeletePod { pod: name.clone(), uid: "other".to_owned(), resource_version: None, grace_s: 0 };
    assert_eq!(api.call(at(21), &node(), &wrong).unwrap_err().class, Class::Conflict);
    let right = ApiCall::DeletePod { pod: name, uid, resource_version: None, grace_s: 0 };
    assert_eq!(api.call(at(21), &node(), &right), Ok(ApiReply::Done));
    assert!(api.object(&key).is_none());
    assert_eq!(api.call(at(21), &node(), &right).unwrap_err().class, Class::NotFound);
}

#[test]
fn what_is_not_scheduled_or_over_goes_at_once_and_finalizers_hold() {
    let mut api = FakeApi::default();
    let unbound = api.create_pod(at(0), &pod("u")).unwrap();
    api.remove_object(at(0), &unbound, None).unwrap();
    assert!(api.object(&unbound).is_none());
    let over = bound(&mut api, "o");
    patch_status(&mut api, &over, json!({ "phase": "Failed" })).unwrap();
    api.remove_object(at(0), &over, None).unwrap();
    assert!(api.object(&over).is_none());
    let mut held = pod("h");
    held["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    let held = api.create_pod(at(0), &held).unwrap();
    api.bind(at(0), &held, NODE).unwrap();
    api.remove_object(at(0), &held, Some(0)).unwrap();
    assert_eq!(number(&see(&api, &held), "/metadata/deletionGracePeriodSeconds"), Some(0));
    api.release(at(0), &held).unwrap();
    assert!(api.object(&held).is_none());
}

#[test]
fn the_status_subresource_changes_only_the_status() {
    let mut api = FakeApi::default();
    let key = bound(&mut api, "a");
    let before = see(&api, &key);
    let patch = json!({
        "metadata": { "annotations": { "a": "b" } }, "spec": { "nodeName": "other" },
        "status": { "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }] },
    });
    api.serve(at(1), &node(), &key, &Verb::PatchStatus(patch)).unwrap();
    let after = see(&api, &key);
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(text(&after, "/status/phase"), "Running");
    assert_eq!(text(&after, "/status/qosClass"), "BestEffort", "kept when left out");
    assert_eq!(number(&after, "/metadata/generation"), Some(1));
    let version = api.version();
    patch_status(&mut api, &key, json!({ "phase": "Running" })).unwrap();
    assert_eq!(api.version(), version, "no change, no version");
    let foreign = json!({ "metadata": { "uid": "other" }, "status": { "phase": "Failed" } });
    let refused = api.serve(at(1), &node(), &key, &Verb::PatchStatus(foreign)).unwrap_err();
    assert_eq!((refused.code, refused.reason), (422, "Invalid"), "another UID");
    let labels = json!({ "metadata": { "labels": { "a": "b" } } });
    assert_eq!(api.serve(at(1), &node(), &key, &Verb::PatchStatus(labels)).unwrap_err().code, 403);
}

#[test]
fn refused_statuses() {
    let mut api = FakeApi::default();
    let key = bound(&mut api, "a");
    let ended = json!([{ "name": "a", "state": { "terminated": { "exitCode": 0 } } }]);
    let status = json!({ "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }], "containerStatuses": ended });
    patch_status(&mut api, &key, status).unwrap();
    let runs = json!([{ "name": "a", "state": { "running": {} } }]);
    let second = json!([{ "ip": "10.0.0.2" }]);
    let replaced = json!([{ "$patch": "replace" }, { "ip": "10.0.0.2" }]);
    for (status, fine) in [
        (json!({ "containerStatuses": runs }), false),
        (json!({ "podIP": "10.0.0.2", "podIPs": second }), false),
        (json!({ "podIP": "10.0.0.2", "podIPs": replaced }), true),
        (json!({ "hostIP": "10.0.0.9", "hostIPs": [{ "ip": "10.0.0.8" }] }), false),
        (json!({ "qosClass": "Guaranteed" }), false),
    ] {
        let answer = patch_status(&mut api, &key, status.clone());
        assert_eq!(answer.as_ref().map_err(|s| s.code).err(), (!fine).then_some(422), "{status}: {answer:?}");
    }
}

#[test]
fn strategic_merge() {
    let old = json!({
        "metadata": { "finalizers": ["x"] },
        "status": {
            "conditions": [{ "type": "A", "status": "True" }, { "type": "B", "status": "True" }],
            "addresses": [{ "type": "InternalIP", "address": "1" }, { "type": "InternalIP", "address": "2" }],
            "images": [1, 2], "phase": "p",
        },
    });
    let rows = [
        (
            json!({ "conditions": [{ "type": "B", "status": "False" }] }),
            "conditions",
            json!([{ "type": "A", "status": "True" }, { "type": "B", "status": "False" }]),
        ),
        (
            json!({ "conditions": [{ "type": "C" }] }),
            "conditions",
            json!([{ "type": "C" }, { "type": "A", "status": "True" }, { "type": "B", "status": "True" }]),
        ),
        (
            json!({ "$setElementOrder/conditions": [{ "type": "A" }, { "type": "C" }, { "type": "B" }],
                "conditions": [{ "type": "C" }] }),
            "conditions",
            json!([{ "type": "A", "status": "True" }, { "type": "C" }, { "type": "B", "status": "True" }]),
        ),
        (
            json!({ "conditions": [{ "$patch": "delete", "type": "A" }] }),
            "conditions",
            json!([{ "type": "B", "status": "True" }]),
        ),
        // Both entries of type InternalIP match the first one: this is why a node replaces its addresses as a whole.
        (
            json!({ "addresses": [{ "type": "InternalIP", "address": "3" }, { "type": "InternalIP", "address": "4" }] }),
            "addresses",
            json!([{ "type": "InternalIP", "address": "4" }, { "type": "InternalIP", "address": "2" }]),
        ),
        (json!({ "images": [3] }), "images", json!([3])),
        (json!({ "phase": null }), "phase", Value::Null),
    ];
    for (patch, field, want) in rows {
        let new = merge::apply(&old, &json!({ "status": patch })).unwrap();
        assert_eq!(new["status"].get(field).cloned().unwrap_or_default(), want, "{patch}");
    }
    let refused = merge::apply(&old, &json!({ "status": { "conditions": [{ "status": "True" }] } }));
    assert!(refused.is_err(), "no merge key");
}

#[test]
fn leases_conflict_by_version_and_uid() {
    let mut api = FakeApi::default();
    let key = Key::new(Resource::Leases, "kube-node-lease", NODE);
    let made = api.serve(at(0), &node(), &key, &Verb::Create(json!({ "spec": { "holderIdentity": NODE } })));
    let made = Value::clone(&made.unwrap());
    let mut renewed = made.clone();
    renewed["spec"]["renewTime"] = json!("2026-01-01T00:00:10.000000Z");
    api.serve(at(1), &node(), &key, &Verb::Replace(renewed.clone())).unwrap();
    renewed["spec"]["renewTime"] = json!("2026-01-01T00:00:20.000000Z");
    let stale = api.serve(at(2), &node(), &key, &Verb::Replace(renewed.clone())).unwrap_err();
    assert_eq!((stale.code, stale.reason), (409, "Conflict"));
    api.remove_object(at(3), &key, None).unwrap();
    let gone = api.serve(at(4), &node(), &key, &Verb::Replace(renewed)).unwrap_err();
    assert_eq!(gone.code, 409, "a UID that is no more");
    let other = Key::new(Resource::Leases, "kube-node-lease", "other");
    assert_eq!(api.serve(at(4), &node(), &other, &Verb::Get).unwrap_err().code, 403);
}

#[test]
fn a_node_does_only_what_is_its_own() {
    let mut api = FakeApi::default();
    let key = bound(&mut api, "a");
    let gone = Key::new(Resource::Pods, "ns", "gone");
    assert_eq!(api.serve(at(0), &node(), &key, &Verb::Get).map(|_| ()), Ok(()));
    assert_eq!(api.serve(at(0), &node(), &gone, &Verb::Get).unwrap_err().code, 403, "not 404");
    assert_eq!(api.serve(at(0), &node(), &gone, &Verb::PatchStatus(json!({}))).unwrap_err().code, 404);
    let who = Requester::Node("other".to_owned());
    assert_eq!(api.serve(at(0), &who, &key, &Verb::PatchStatus(json!({}))).unwrap_err().code, 403);
    assert_eq!(api.serve(at(0), &who, &key, &Verb::Delete(DeleteOptions::default())).unwrap_err().code, 403);
    assert_eq!(api.may_watch(&node(), Resource::Pods, &Selector::default()).unwrap_err().code, 403);
    let own = Key::new(Resource::Nodes, "", NODE);
    let label = json!({ "metadata": { "name": NODE, "labels": { "node-role.kubernetes.io/master": "" } } });
    assert_eq!(api.serve(at(0), &node(), &own, &Verb::Create(label)).unwrap_err().code, 403);
    let made =
        api.serve(at(0), &node(), &own, &Verb::Create(json!({ "metadata": { "name": NODE } }))).unwrap();
    let mut mirror = pod("mirror");
    mirror["spec"]["nodeName"] = json!(NODE);
    let here = Key::new(Resource::Pods, "ns", "mirror");
    assert_eq!(api.serve(at(0), &node(), &here, &Verb::Create(mirror.clone())).unwrap_err().code, 403);
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "hash" });
    let uid = text(&made, "/metadata/uid");
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": true });
    mirror["metadata"]["ownerReferences"] = json!([owner]);
    api.serve(at(0), &node(), &here, &Verb::Create(mirror.clone())).unwrap();
    api.remove_object(at(0), &own, None).unwrap();
    let again = Key::new(Resource::Pods, "ns", "again");
    mirror["metadata"]["name"] = json!("again");
    assert_eq!(
        api.serve(at(0), &node(), &again, &Verb::Create(mirror)).unwrap_err().code,
        404,
        "no Node object"
    );
}

#[test]
fn a_restored_server_has_old_versions_and_never_old_uids() {
    let mut api = FakeApi::default();
    let kept = bound(&mut api, "kept");
    let backup = api.clone();
    let lost = bound(&mut api, "lost");
    let uid = text(&see(&api, &lost), "/metadata/uid").to_owned();
    api.remove_object(at(1), &kept, Some(0)).unwrap();
    api.restore(&backup);
    assert_eq!(api.version(), backup.version());
    assert!(api.object(&kept).is_some() && api.object(&lost).is_none());
    assert_eq!(api.changes_since(Resource::Pods, &Selector::default(), 1).unwrap_err().code, 410);
    let again = bound(&mut api, "lost");
    assert_ne!(text(&see(&api, &again), "/metadata/uid"), uid);
}

#[test]
fn a_name_is_reused_with_a_new_uid_and_spec_changes_raise_the_generation() {
    let mut api = FakeApi::default();
    let first = bound(&mut api, "a");
    let uid = text(&see(&api, &first), "/metadata/uid").to_owned();
    assert_eq!(api.create_pod(at(0), &pod("a")).unwrap_err().reason, "AlreadyExists");
    api.remove_object(at(0), &first, Some(0)).unwrap();
    let second = bound(&mut api, "a");
    assert_ne!(text(&see(&api, &second), "/metadata/uid"), uid);
    let image = json!({ "spec": { "containers": [{ "name": "a", "image": "other" }] } });
    api.serve(at(1), &Requester::Admin, &second, &Verb::Patch(image)).unwrap();
    let now = see(&api, &second);
    assert_eq!(
        (number(&now, "/metadata/generation"), text(&now, "/spec/containers/0/image")),
        (Some(2), "other")
    );
}

#[test]
fn a_certificate_is_asked_for_and_answered() {
    let mut api = FakeApi::default();
    let mut csr = k8s_openapi::api::certificates::v1::CertificateSigningRequest::default();
    csr.metadata.generate_name = Some("csr-".to_owned());
    let Ok(ApiReply::Csr(made)) =
        api.call(at(0), &Requester::Bootstrapper, &ApiCall::CreateCsr(Box::new(csr)))
    else {
        panic!("not created")
    };
    let name = made.metadata.name.clone().unwrap();
    api.answer_csr(at(1), &name, Ok(b"PEM")).unwrap();
    let Ok(ApiReply::Csr(answered)) = api.call(at(2), &Requester::Bootstrapper, &ApiCall::GetCsr { name })
    else {
        panic!("not there")
    };
    assert_eq!(answered.status.unwrap().certificate.unwrap().0, b"PEM");
    let own = ApiCall::GetNode { name: NODE.into() };
    assert_eq!(api.call(at(2), &Requester::Bootstrapper, &own).unwrap_err().code, Some(403));
}
