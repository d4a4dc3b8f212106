//! Volumes of a pod: before its containers, next to them, after them.

use std::time::Duration;

use agent_types::event::ClaimId;
use agent_types::failure::Class;
use agent_types::kill::KillReason;
use agent_types::machine::{EffectId, Machine};
use agent_volumes::account::ASK_AFTER;
use agent_volumes::bound::{Bound, Source};
use agent_volumes::{Resize, selinux};
use serde_json::{Value, json};

use super::world::{SECOND, World, make_pod};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{Effect, EffectError, EffectOk, Mounted};

fn volumes(n: usize) -> Value {
    (0..n).map(|i| json!({"name": format!("v{i}"), "secret": {"secretName": "s"}})).collect()
}

fn pod(n: usize) -> std::sync::Arc<k8s_openapi::api::core::v1::Pod> {
    make_pod(
        json!({"volumes": volumes(n), "containers": [{"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent"}]}),
    )
}

fn set_ups(w: &World) -> Vec<EffectId> {
    let is = |e: &Effect| matches!(e, Effect::SetUpVolume { .. });
    w.pending.iter().filter(|(_, call)| is(&call.effect)).map(|(id, _)| *id).collect()
}

/// Performs everything but set-ups.
fn settle_others(w: &mut World) {
    loop {
        let held = set_ups(w);
        let Some(id) = w.pending.keys().find(|id| !held.contains(id)).copied() else { return };
        w.perform(id);
    }
}

fn done() -> crate::pod_worker::effect::EffectResult {
    Ok(EffectOk::Volume(Mounted::default()))
}

#[test]
fn nothing_starts_before_every_volume_is_there() {
    let mut w = World::new();
    w.desire(&pod(6));
    settle_others(&mut w);
    for left in (0..6).rev() {
        let under_way = set_ups(&w);
        assert_eq!(under_way.len(), 4.min(left + 1), "a few at a time");
        assert_eq!(w.count("run_sandbox"), 0);
        // A timer that is due at once would fire again and again: the worker waits for answers instead.
        let soon = w.worker.deadline().is_some_and(|at| at.0 < w.now.0 + SECOND);
        assert!(!soon, "{:?} at {:?}", w.worker.deadline(), w.now);
        w.answer(under_way[0], done());
        settle_others(&mut w);
    }
    assert_eq!((w.count("run_sandbox"), w.phase()), (1, "Running"));
}

#[test]
fn a_token_is_asked_for_later_and_the_sandbox_does_not_wait_for_it() {
    let token = json!({"name": "kube-api-access", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}]}});
    let container = json!({"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent"});
    let mut w = World::new();
    let heard = w.now;
    w.desire(&make_pod(json!({"volumes": [token], "containers": [container]})));
    w.settle();
    assert_eq!((w.count("run_sandbox"), w.count("set_up_volume")), (1, 0));
    assert_eq!((w.count("create_container"), w.waiting_reason("c").as_str()), (0, "ContainerCreating"));
    w.now = w.worker.deadline().unwrap();
    assert!(w.now >= heard.after(ASK_AFTER) && w.now < heard.after(2 * ASK_AFTER), "{:?}", w.now);
    w.step(PodEvent::Tick);
    settle_others(&mut w);
    assert_eq!(w.count("create_container"), 0, "containers wait");
    w.answer(set_ups(&w)[0], done());
    w.settle();
    assert_eq!((w.count("run_sandbox"), w.phase()), (1, "Running"));
}

#[test]
fn a_failure_is_told_and_tried_again_and_a_changed_source_does_not_wait() {
    let mut w = World::new();
    w.desire(&pod(1));
    settle_others(&mut w);
    let refused = || {
        Err(EffectError {
            class: Class::Retryable { after_ms: 0 },
            message: "secret \"s\" not found".to_owned(),
        })
    };
    for _ in 0..6 {
        let id = set_ups(&w)[0];
        w.answer(id, refused());
        settle_others(&mut w);
        assert!(set_ups(&w).is_empty());
        w.now = w.worker.deadline().unwrap();
        w.step(PodEvent::Tick);
    }
    let words = "MountVolume.SetUp failed for volume \"v0\" : secret \"s\" not found";
    assert_eq!(w.events_of("FailedMount"), [words; 6]);
    assert_eq!(w.waiting_reason("c"), "ContainerCreating");
    let id = set_ups(&w)[0];
    w.answer(id, refused());
    assert!(set_ups(&w).is_empty());
    w.step(PodEvent::SourcesChanged);
    let id = set_ups(&w)[0];
    w.answer(id, done());
    w.settle();
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_running_pod_is_not_touched_by_a_new_agent_or_a_failed_refresh() {
    let mut w = World::with(&pod(1));
    assert_eq!((w.phase(), w.count("set_up_volume")), ("Running", 1));
    let before = w.applied.len();
    w.restart_agent();
    w.desire(&pod(1));
    w.settle();
    let verbs: Vec<_> = w.applied[before..].iter().map(|a| a.split(' ').next().unwrap()).collect();
    assert_eq!(verbs.iter().filter(|v| **v != "inspect").collect::<Vec<_>>(), [&"set_up_volume"]);
    w.runtime.refuse.insert("set_up_volume", EffectError { class: Class::Invalid, message: "no".to_owned() });
    w.step(PodEvent::SourcesChanged);
    w.settle();
    assert_eq!((w.phase(), w.events_of("FailedMount").len()), ("Running", 1));
    w.exit("c", 1);
    w.wait(Duration::from_secs(15));
    assert_eq!(w.runtime.running("c").len(), 1, "what is mounted stays mounted");
}

#[test]
fn an_environment_is_fetched_before_its_container_is_made_and_not_without_need() {
    let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    let pod = make_pod(json!({"containers": [
        {"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent", "env": env},
        {"name": "d", "image": "i:1", "imagePullPolicy": "IfNotPresent"}]}));
    let mut w = World::with(&pod);
    let at = |w: &World, verb: &str| w.applied.iter().position(|a| a.starts_with(verb));
    assert_eq!((w.phase(), w.count("fetch_objects")), ("Running", 1));
    assert!(at(&w, "fetch_objects") < at(&w, "create_container"), "{:?}", w.applied);
    w.exit("c", 1);
    w.exit("d", 1);
    w.wait(Duration::from_secs(15));
    assert_eq!(
        (w.count("fetch_objects"), w.phase()),
        (2, "Running"),
        "each instance has the values of its time"
    );
}

#[test]
fn parts_of_volumes_are_mounted_before_their_container_is_made_and_told_if_they_cannot_be() {
    let container = |expression: &str| {
        json!({"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent",
            "env": [{"name": "SET", "value": "x"}],
            "volumeMounts": [{"name": "v0", "mountPath": "/v", "subPathExpr": expression}]})
    };
    let mut w = World::with(&make_pod(json!({"volumes": volumes(1), "containers": [container("a/$(SET)")]})));
    let at = |w: &World, verb: &str| w.applied.iter().position(|a| a.starts_with(verb));
    assert_eq!((w.phase(), w.count("mount_sub_paths")), ("Running", 1));
    assert!(at(&w, "mount_sub_paths") < at(&w, "create_container"), "{:?}", w.applied);
    w.runtime.refuse.insert(
        "mount_sub_paths",
        EffectError { class: Class::Invalid, message: "it leads out of the volume".to_owned() },
    );
    w.exit("c", 1);
    w.wait(Duration::from_secs(15));
    assert_eq!(w.waiting_reason("c"), "CreateContainerConfigError");
    assert!(w.events_of("Failed").iter().all(|text| text == "Error: it leads out of the volume"));

    let w = World::with(&make_pod(json!({"volumes": volumes(1), "containers": [container("$(UNSET)")]})));
    assert_eq!(
        (w.waiting_reason("c").as_str(), w.count("mount_sub_paths")),
        ("CreateContainerConfigError", 0)
    );
    assert_eq!(w.events_of("Failed")[0], "Error: missing value for UNSET");
}

#[test]
fn volumes_go_after_the_containers_and_before_the_directories() {
    let mut w = World::with(&pod(2));
    w.kill(KillReason::Removed, None);
    w.wait(Duration::from_secs(60));
    let order: Vec<_> = ["stop_container", "tear_down_volumes", "remove_pod_dirs"]
        .iter()
        .map(|verb| w.applied.iter().position(|a| a.starts_with(verb)))
        .collect();
    assert!(order.is_sorted() && order.iter().all(Option::is_some), "{:?}", w.applied);
    assert_eq!((w.finished, w.count("tear_down_volumes")), (Some(false), 1));
}

#[test]
fn what_is_mounted_for_a_pod_that_nobody_knows_goes_too() {
    let mut w = World::new();
    w.kill(KillReason::Orphan, None);
    w.wait(Duration::from_secs(60));
    assert_eq!((w.count("tear_down_volumes"), w.finished), (1, Some(false)));
    let mut w = World::with(&pod(0));
    w.kill(KillReason::Removed, None);
    w.wait(Duration::from_secs(60));
    assert_eq!(
        (w.count("tear_down_volumes"), w.finished),
        (0, Some(false)),
        "nothing for a pod without volumes"
    );
}

#[test]
fn a_claim_is_waited_for_and_then_its_volume_is_mounted_and_told_by_its_own_name() {
    let volumes =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "emptyDir": {}}]);
    let container = json!({"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent"});
    let mut w = World::with(&make_pod(json!({"volumes": volumes, "containers": [container]})));
    assert_eq!(w.count("resolve_claim"), 0, "not right after the pod was heard of");
    w.wait(ASK_AFTER);
    let words = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process \
                 volumes=[data]: error processing PVC default/c: PVC is not bound";
    assert_eq!(w.events_of("FailedMount"), [words]);
    assert_eq!((w.waiting_reason("c").as_str(), w.count("set_up_volume")), ("ContainerCreating", 1));
    for _ in 0..6 {
        w.wait(Duration::from_secs(8));
    }
    let asked = w.count("resolve_claim");
    assert!((8..=11).contains(&asked), "asked {asked} times in 48 s");
    let bound = Bound {
        volume: "pv".to_owned(),
        source: Source::Local { path: "/mnt/x".to_owned(), fs_type: String::new() },
        read_only: false,
        options: Vec::new(),
        one_pod: false,
        block: false,
        group: None,
        labelled: false,
    };
    let answer = |w: &mut World, verb: &str, result| {
        let call = w.pending.iter().find(|(_, call)| call.effect.verb() == verb);
        let id = *call.unwrap_or_else(|| panic!("no {verb}")).0;
        w.answer(id, result);
    };
    w.now = w.worker.deadline().unwrap();
    w.step(PodEvent::Tick);
    answer(&mut w, "resolve_claim", Ok(EffectOk::Claim(Ok(Box::new(bound.clone())))));
    let refused = EffectError { class: Class::Invalid, message: "path \"/mnt/x\" does not exist".to_owned() };
    answer(&mut w, "set_up_volume", Err(refused));
    let told = w.events_of("FailedMount").pop().unwrap();
    assert_eq!(told, "MountVolume.SetUp failed for volume \"pv\" : path \"/mnt/x\" does not exist");
    w.now = w.worker.deadline().unwrap();
    w.step(PodEvent::Tick);
    answer(&mut w, "resolve_claim", Ok(EffectOk::Claim(Ok(Box::new(bound.clone())))));
    let conflict = selinux::conflict("pv", "a", "b");
    answer(&mut w, "set_up_volume", Ok(EffectOk::Unprocessed { why: conflict.clone() }));
    let told = w.events_of("FailedMount").pop().unwrap();
    assert!(told.ends_with(&format!("failed to process volumes=[data]: {conflict}")), "{told}");
    w.now = w.worker.deadline().unwrap();
    w.step(PodEvent::Tick);
    answer(&mut w, "resolve_claim", Ok(EffectOk::Claim(Ok(Box::new(bound)))));
    let warning = Some("shared".to_owned());
    let mounted = Mounted { warning, labelled: true, ..Mounted::default() };
    answer(&mut w, "set_up_volume", Ok(EffectOk::Volume(mounted)));
    w.settle();
    assert_eq!(
        (w.phase(), w.events_of("AlreadyMountedVolume").as_slice()),
        ("Running", ["shared".to_owned()].as_slice())
    );
    let claim = ClaimId { name: "c".to_owned(), uid: "claim-1".to_owned() };
    for (resize, reason, words) in [
        (
            Resize::Failed("no room".to_owned()),
            "VolumeResizeFailed",
            "NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : no room",
        ),
        (
            Resize::Done { node: "n".to_owned(), claim: claim.clone() },
            "FileSystemResizeSuccessful",
            "MountVolume.NodeExpandVolume succeeded for volume \"pv\" n",
        ),
        (
            Resize::ReadOnly { claim: claim.clone() },
            "FileSystemResizeFailed",
            "MountVolume.NodeExpandVolume failed for volume \"pv\" requested read-only file system",
        ),
    ] {
        w.step(PodEvent::SourcesChanged);
        let volume = EffectOk::Volume(Mounted { resize: Some(resize), ..Mounted::default() });
        answer(&mut w, "set_up_volume", Ok(volume));
        w.settle();
        assert_eq!((w.events_of(reason).as_slice(), w.phase()), ([words.to_owned()].as_slice(), "Running"));
    }
    // Of the claim, too, and of no other event.
    let of_claim: Vec<_> = w.events.iter().filter_map(|e| Some((e.reason, e.claim.clone()?))).collect();
    assert_eq!(of_claim, [("FileSystemResizeSuccessful", claim.clone()), ("FileSystemResizeFailed", claim)]);
}

#[test]
fn a_volume_whose_files_are_being_given_is_waited_for_and_events_say_how_far_that_is() {
    let mut w = World::new();
    let pod = pod(1);
    w.desire(&pod);
    let path = format!("/var/lib/kubelet/pods/{}/volumes/p/v0", pod.metadata.uid.clone().unwrap());
    let reason = "VolumePermissionChangeInProgress";
    let giving = |w: &mut World, s: u64| {
        settle_others(w);
        let id = *set_ups(w).first().expect("it is asked again at once");
        w.now.0 += 10 * SECOND;
        let (path, took) = (path.clone(), Duration::from_secs(s));
        w.answer(id, Ok(EffectOk::Giving { path, entries: 1_000 * s, took }));
        w.events_of(reason).len()
    };
    let told = [10, 20, 30, 40, 80, 90, 100, 149, 150].map(|s| giving(&mut w, s));
    assert_eq!(told, [0, 0, 1, 1, 1, 2, 2, 2, 3]);
    let place = format!("{}/volumes/p/v0", pod.metadata.uid.clone().unwrap());
    let words = [
        format!(
            "Setting volume ownership for {place} is taking longer than expected, consider using OnRootMismatch - \
             https://kubernetes.io/docs/tasks/configure-pod-container/security-context/\
             #configure-volume-permission-and-ownership-change-policy-for-pods"
        ),
        format!("Setting volume ownership for {place}, processed 90000 files."),
        format!("Setting volume ownership for {place}, processed 150000 files."),
    ];
    assert_eq!(w.events_of(reason), words);
    settle_others(&mut w);
    assert!(w.events_of("FailedMount").is_empty() && w.count("run_sandbox") == 0, "nothing failed");
    let id = set_ups(&w)[0];
    w.answer(id, done());
    settle_others(&mut w);
    assert_eq!((w.count("run_sandbox"), w.phase()), (1, "Running"));
    // What is mounted stays so; a walk of later is a walk of its own.
    w.step(PodEvent::SourcesChanged);
    assert_eq!([20, 30].map(|s| giving(&mut w, s)), [3, 4]);
    assert_eq!(w.phase(), "Running");
    assert!(w.events_of(reason)[3].contains("consider using OnRootMismatch"));
}

#[test]
fn a_volume_that_is_not_attached_yet_is_waited_for_without_a_word_until_the_wait_is_long() {
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
    let container = json!({"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent"});
    let mut w = World::with(&make_pod(json!({"volumes": volumes, "containers": [container]})));
    let bound = Bound {
        volume: "pv".to_owned(),
        source: Source::Local { path: "/mnt/x".to_owned(), fs_type: String::new() },
        read_only: false,
        options: Vec::new(),
        one_pod: false,
        block: false,
        group: None,
        labelled: false,
    };
    let answer = |w: &mut World, verb: &str, result| {
        let call = w.pending.iter().find(|(_, call)| call.effect.verb() == verb);
        let id = *call.unwrap_or_else(|| panic!("no {verb}")).0;
        w.answer(id, result);
    };
    w.now = w.worker.deadline().unwrap();
    w.step(PodEvent::Tick);
    let told = w.events_of("FailedMount").len();
    answer(&mut w, "resolve_claim", Ok(EffectOk::Claim(Ok(Box::new(bound)))));
    answer(&mut w, "set_up_volume", Ok(EffectOk::Unattached { full: false }));
    assert_eq!(
        (w.events_of("FailedMount").len(), w.waiting_reason("c").as_str()),
        (told, "ContainerCreating")
    );
    // News of it: it is looked at again at once, and the claim is not asked for again.
    let asked = w.count("resolve_claim");
    w.step(PodEvent::SourcesChanged);
    answer(&mut w, "set_up_volume", Ok(EffectOk::Unattached { full: false }));
    for _ in 0..40 {
        if w.events_of("FailedMount").len() > told {
            break;
        }
        w.now = w.worker.deadline().unwrap();
        w.step(PodEvent::Tick);
        if w.pending.iter().any(|(_, call)| call.effect.verb() == "set_up_volume") {
            answer(&mut w, "set_up_volume", Ok(EffectOk::Unattached { full: false }));
        }
    }
    assert_eq!(w.count("resolve_claim"), asked);
    let words = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data], failed to process \
                 volumes=[]: context deadline exceeded";
    assert_eq!(w.events_of("FailedMount").last().map(String::as_str), Some(words));
    if !w.pending.iter().any(|(_, call)| call.effect.verb() == "set_up_volume") {
        w.step(PodEvent::SourcesChanged);
    }
    let failed = "MountVolume.MountDevice failed for volume \"pv\" : no".to_owned();
    let error = EffectError { class: Class::Retryable { after_ms: 0 }, message: failed.clone() };
    answer(&mut w, "set_up_volume", Err(error));
    assert_eq!(w.events_of("FailedMount").pop(), Some(failed), "whoever took the step says which it was");
}

#[test]
fn a_volume_that_nobody_mounts_is_told_and_waited_for_unless_no_container_has_it() {
    let made = |volume: Value, used: bool| {
        let mut volume = volume;
        volume["name"] = json!("v");
        let mounts = if used { json!([{"name": "v", "mountPath": "/d"}]) } else { json!([]) };
        let container =
            json!({"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent", "volumeMounts": mounts});
        World::with(&make_pod(json!({"volumes": [volume], "containers": [container]})))
    };
    let before = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process \
                  volumes=[v]: ";
    for (volume, words) in [
        (
            json!({"rbd": {"monitors": ["m"], "image": "i"}}),
            "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched",
        ),
        (
            json!({"flexVolume": {"driver": "../driver"}}),
            "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched",
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws:///x"}}),
            "failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID Invalid format for \
             AWS volume (aws:///x)",
        ),
    ] {
        let mut w = made(volume.clone(), true);
        assert_eq!(w.events_of("FailedMount"), [format!("{before}{words}")]);
        assert_eq!((w.waiting_reason("c").as_str(), w.count("set_up_volume")), ("ContainerCreating", 0));
        w.wait(Duration::from_secs(8));
        assert!(w.events_of("FailedMount").len() > 1, "not looked at again");
        let mut unused = made(volume, false);
        unused.settle();
        assert_eq!((unused.phase(), unused.events_of("FailedMount").len()), ("Running", 0));
    }
}

#[test]
fn a_volume_of_a_driver_by_another_name_is_told_by_its_disks_name() {
    let container = json!({"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{"name": "v", "mountPath": "/d"}]});
    let volume = json!({"name": "v", "cinder": {"volumeID": "disk"}});
    let mut w = World::new();
    w.desire(&make_pod(json!({"volumes": [volume], "containers": [container]})));
    settle_others(&mut w);
    let answer = |w: &mut World, result| {
        let under_way = set_ups(w);
        assert_eq!(under_way.len(), 1, "nobody need be asked what it is");
        w.answer(under_way[0], result);
        settle_others(w);
    };
    answer(&mut w, Ok(EffectOk::Unattached { full: false }));
    assert_eq!(w.events_of("FailedMount"), Vec::<String>::new());
    w.step(PodEvent::SourcesChanged);
    answer(&mut w, Err(EffectError { class: Class::Invalid, message: "no".to_owned() }));
    let words = "MountVolume.SetUp failed for volume \"cinder.csi.openstack.org-disk\" : no";
    assert_eq!((w.events_of("FailedMount"), w.count("resolve_claim")), (vec![words.to_owned()], 0));
    w.step(PodEvent::SourcesChanged);
    answer(&mut w, done());
    assert_eq!(w.phase(), "Running");
}
