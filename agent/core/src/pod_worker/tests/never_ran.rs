//! Statuses of pods that end before their containers ran.

use std::sync::Arc;

use agent_types::failure::Class;
use agent_types::kill::KillReason;
use k8s_openapi::api::core::v1::ContainerStatus;
use serde_json::json;

use super::world::{World, make_pod};
use super::{one, secs};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::EffectError;

#[test]
fn a_rejected_pod_is_failed_and_never_started() {
    let mut w = World::new();
    w.desire(&one("Always"));
    let reason = KillReason::Failed {
        reason: "OutOfcpu".to_owned(),
        message: "Pod was rejected: x".to_owned(),
        disruption: None,
    };
    w.kill(reason, None);
    w.settle();
    w.wait(secs(20));
    assert_eq!((w.phase(), w.worker.state_name(), w.count("run_sandbox")), ("Failed", "terminated", 0));
    let status = w.worker.status().unwrap();
    let words = (status.reason.as_deref(), status.message.as_deref(), status.qos_class.as_deref());
    assert_eq!(words, (Some("OutOfcpu"), Some("Pod was rejected: x"), Some("BestEffort")));
    assert_eq!(status.container_statuses, None);
    // A new agent adds nothing to the status that the API shows.
    let mut shown = one("Always");
    Arc::make_mut(&mut shown).status = Some(status.clone());
    w.restart_agent();
    w.desire(&shown);
    w.settle();
    assert_eq!(w.worker.status().map(|s| s.container_statuses.clone()), Some(None));
}

/// Reason and exit code with which the containers of a list are shown to have ended; `None` for one that waits.
fn ends(list: Option<&Vec<ContainerStatus>>) -> Vec<Option<(String, i32)>> {
    let state = |c: &ContainerStatus| c.state.as_ref().and_then(|s| s.terminated.clone());
    list.into_iter()
        .flatten()
        .map(|c| state(c).map(|t| (t.reason.unwrap_or_default(), t.exit_code)))
        .collect()
}

#[test]
fn a_pod_that_ends_before_its_containers_ran_shows_them_as_lost() {
    let lost = || Some(("ContainerStatusUnknown".to_owned(), 137));
    // An image that is nowhere; a directory that no container can be made in; a pod that nothing was made of.
    for container in
        [json!({"name": "a", "image": "img:1"}), json!({"name": "a", "image": "img:2", "workingDir": "bad"})]
    {
        for reason in [
            KillReason::Deleted,
            KillReason::Failed { reason: "Evicted".into(), message: "m".into(), disruption: None },
        ] {
            let mut w = World::new();
            w.runtime
                .refuse
                .insert("pull_image", EffectError { class: Class::Invalid, message: "no".to_owned() });
            w.runtime.absent_images.push("img:1".to_owned());
            w.desire(&make_pod(json!({"restartPolicy": "Always", "containers": [container]})));
            w.wait(secs(30));
            assert_eq!(w.phase(), "Pending");
            w.kill(reason, None);
            w.settle();
            let last = w.statuses.last().unwrap();
            assert_eq!(
                (last.phase.as_deref(), ends(last.container_statuses.as_ref())),
                (Some("Failed"), vec![lost()])
            );
        }
    }
    // One that waits for its network, and one that waits for its first init container.
    for (init, of_init, of_regular) in [
        (json!([]), vec![], lost()),
        (json!([{"name": "i", "image": "img:1"}, {"name": "j", "image": "img:1"}]), vec![lost(), None], None),
    ] {
        let mut w = World::new();
        w.step(PodEvent::Network(Err("away".to_owned())));
        w.desire(&make_pod(json!({"activeDeadlineSeconds": 30, "initContainers": init, "containers": [{"name": "a", "image": "img:1"}]})));
        w.wait(secs(40));
        let last = w.statuses.last().unwrap();
        assert_eq!(last.reason.as_deref(), Some("DeadlineExceeded"));
        assert_eq!(ends(last.init_container_statuses.as_ref()), of_init);
        assert_eq!(ends(last.container_statuses.as_ref()), [of_regular]);
    }
}
