//! A volume for which the node has no room.

use agent_types::machine::{EffectId, Machine};
use agent_volumes::Work;
use agent_volumes::csi::limits::ATTACH_LIMIT;
use serde_json::json;

use super::world::{World, make_pod};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{Effect, EffectOk, Mounted};

/// The set-up under way, and whether it is to find out why the volume is not attached.
fn asked(w: &World) -> Option<(EffectId, bool)> {
    w.pending.iter().find_map(|(id, call)| match &call.effect {
        Effect::SetUpVolume { volume } => match &volume.work {
            Work::Csi(csi) => Some((*id, csi.overdue)),
            _ => None,
        },
        _ => None,
    })
}

/// A pod that waits for its volume until the worker asks for the reason; returns the number of tries before.
fn overdue(w: &mut World) -> (EffectId, u32) {
    let mut quietly = 0;
    for _ in 0..200 {
        match asked(w) {
            Some((id, true)) => return (id, quietly),
            Some((id, false)) => {
                quietly += 1;
                w.answer(id, Ok(EffectOk::Unattached { full: false }));
            }
            None => match w.pending.keys().next().copied() {
                Some(other) => w.perform(other),
                None => {
                    w.now = w.worker.deadline().unwrap();
                    w.step(PodEvent::Tick);
                }
            },
        }
    }
    panic!("nobody asks why");
}

fn waits() -> World {
    let container = json!({"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{"name": "v", "mountPath": "/d"}]});
    let volume = json!({"name": "v", "cinder": {"volumeID": "disk"}});
    let mut w = World::new();
    w.desire(&make_pod(json!({"volumes": [volume], "containers": [container]})));
    w
}

#[test]
fn a_pod_whose_volume_finds_no_room_is_refused_once_it_has_waited_long() {
    let mut w = waits();
    let (id, quietly) = overdue(&mut w);
    assert!(quietly > 1, "asked after {quietly} looks");
    w.answer(id, Ok(EffectOk::Unattached { full: true }));
    w.settle();
    let words = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[v], unattached volumes=[v], \
                 failed to process volumes=[]: context deadline exceeded";
    assert_eq!(w.events_of(ATTACH_LIMIT), [words]);
    let status = w.statuses.last().unwrap();
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some(ATTACH_LIMIT)),
        "{status:?}"
    );
    assert_eq!(status.message.as_deref(), Some(format!("Pod was rejected: {words}").as_str()));
    assert!(w.count("create_container") == 0 && asked(&w).is_none());
}

#[test]
fn one_that_is_late_for_another_reason_goes_on_waiting() {
    let mut w = waits();
    let (id, _) = overdue(&mut w);
    w.answer(id, Ok(EffectOk::Unattached { full: false }));
    // Asked once for each wait.
    let (id, quietly) = overdue(&mut w);
    assert!(quietly > 1 && w.events_of(ATTACH_LIMIT).is_empty());
    w.answer(id, Ok(EffectOk::Volume(Mounted::default())));
    w.settle();
    assert_eq!(w.phase(), "Running");
}
