//! Pulling with the pod's Secrets.

use std::time::Duration;

use agent_types::failure::Class;
use agent_types::objects::{Fetched, ObjectData, Objects};
use serde_json::json;

use super::one;
use super::world::{World, make_pod};
use crate::pod_worker::effect::{Effect, EffectError, EffectOk};

#[test]
fn a_pull_has_the_secrets_that_fit_and_says_which_are_unusable() {
    let p = make_pod(json!({
        "imagePullSecrets": [{"name": "good"}, {"name": "broken"}, {"name": "gone"}, {"name": "other"}, {"name": ""}],
        "containers": [{"name": "a", "image": "r.example/x:1"}]}));
    let mut w = World::new();
    w.runtime.absent_images.push("r.example/x:1".to_owned());
    w.desire(&p);
    let fetch = loop {
        let (id, call) = w.pending.iter().next().expect("on its way to the pull");
        if let Effect::FetchObjects { objects } = &call.effect {
            break (*id, objects.clone());
        }
        let id = *id;
        w.perform(id);
    };
    let config =
        |registry: &str| json!({"auths": {registry: {"username": registry, "password": "p"}}}).to_string();
    let secret = |text: String| {
        let data = [(".dockerconfigjson".to_owned(), text.into_bytes())].into();
        Fetched::Found(ObjectData { data, ..ObjectData::default() })
    };
    let answers: Objects = fetch
        .1
        .into_iter()
        .map(|of| {
            let answer = match of.name.as_str() {
                "good" => secret(config("r.example")),
                "other" => secret(config("other.example")),
                "broken" => secret("{".to_owned()),
                _ => Fetched::Missing,
            };
            (of, answer)
        })
        .collect();
    assert_eq!(answers.len(), 4);
    w.answer(fetch.0, Ok(EffectOk::Objects(answers)));
    let (id, look) = w.pending.iter().next().expect("whether the image is there");
    let Effect::InspectImage { user, .. } = &look.effect else { panic!("{look:?}") };
    assert_eq!((user.credentials.len(), user.written.as_str()), (1, "r.example/x:1"));
    let id = *id;
    w.perform(id);
    let given: Vec<String> = w
        .pending
        .values()
        .filter_map(|call| match &call.effect {
            Effect::PullImage { user, .. } => Some(&user.credentials),
            _ => None,
        })
        .flatten()
        .map(|credential| credential.username.clone())
        .collect();
    assert_eq!(given, ["r.example"]);
    let text = "Unable to retrieve some image pull secrets (broken, gone); attempting to pull the image may not succeed.";
    assert_eq!(w.events_of("FailedToRetrieveImagePullSecret"), [text]);
    w.settle();
    assert_eq!(w.phase(), "Running");
}

#[test]
fn images_that_a_container_mounts_come_before_its_own() {
    let p = make_pod(json!({
        "imagePullSecrets": [{"name": "good"}],
        "volumes": [{"name": "m", "image": {"reference": "r.example/m:1", "pullPolicy": "Always"}},
            {"name": "n", "image": {"reference": "r.example/n:1"}}, {"name": "o", "image": {"reference": "r.example/o:1"}}],
        "containers": [{"name": "a", "image": "img:1", "volumeMounts": [{"name": "n", "mountPath": "/n"},
            {"name": "m", "mountPath": "/m"}, {"name": "n", "mountPath": "/again", "subPath": "x"}]}]}));
    let mut w = World::new();
    w.desire(&p);
    let mut seen = Vec::new();
    while let Some((id, call)) = w.pending.iter().next() {
        let id = *id;
        match &call.effect {
            Effect::FetchObjects { objects } => {
                let config = json!({"auths": {"r.example": {"username": "u", "password": "p"}}}).to_string();
                let data = [(".dockerconfigjson".to_owned(), config.into_bytes())].into();
                let found = Fetched::Found(ObjectData { data, ..ObjectData::default() });
                let answers = objects.iter().map(|of| (of.clone(), found.clone())).collect();
                w.answer(id, Ok(EffectOk::Objects(answers)));
                continue;
            }
            Effect::InspectImage { image, user } => {
                seen.push(format!("look {image} {}", user.credentials.len()))
            }
            Effect::PullImage { image, user } => {
                seen.push(format!("pull {image} {}", user.credentials.len()))
            }
            Effect::MountSubPaths { parts } => panic!("{parts:?}"),
            Effect::SetUpVolume { volume } => panic!("{volume:?}"),
            _ => {}
        }
        w.perform(id);
    }
    let expected = ["look r.example/n:1 1", "look r.example/m:1 1", "pull r.example/m:1 1", "look img:1 0"];
    assert_eq!(seen, expected);
    assert_eq!(w.phase(), "Running");
    w.settle();
}

#[test]
fn an_image_volume_that_cannot_be_had_is_what_its_container_waits_for() {
    let of = |reference: &str, policy: &str| {
        make_pod(json!({"volumes": [{"name": "m", "image": {"reference": reference, "pullPolicy": policy}}],
            "containers": [{"name": "a", "image": "img:1", "volumeMounts": [{"name": "m", "mountPath": "/m"}]},
                {"name": "b", "image": "img:1"}]}))
    };
    let told = |p, prepare: fn(&mut World)| {
        let mut w = World::new();
        prepare(&mut w);
        w.desire(&p);
        w.settle();
        assert_eq!(w.waiting_reason("b"), "", "the other one runs");
        (w.waiting_reason("a"), w.events_of("Failed"))
    };
    let absent = |w: &mut World| w.runtime.absent_images.push("m.example/m:1".to_owned());
    let error = |reason: &str| (reason.to_owned(), vec![format!("Error: {reason}")]);
    assert_eq!(told(of("m.example/m:1", "Never"), absent), error("ErrImageNeverPull"));
    assert_eq!(told(of("M:1", "Always"), |_| {}), error("InvalidImageName"));
    let broken = |w: &mut World| {
        absent_and_refused(w);
    };
    let (reason, words) = told(of("m.example/m:1", "IfNotPresent"), broken);
    assert!(["ErrImagePull", "ImagePullBackOff"].contains(&reason.as_str()), "{reason}");
    assert_eq!(
        words[..2],
        ["Failed to pull image \"m.example/m:1\": no such manifest", "Error: ErrImagePull"]
    );
}

fn absent_and_refused(w: &mut World) {
    w.runtime.absent_images.push("m.example/m:1".to_owned());
    let e = EffectError { class: Class::Invalid, message: "no such manifest".to_owned() };
    w.runtime.refuse.insert("pull_image", e);
}

#[test]
fn an_image_that_cannot_be_had_is_told_with_its_reason() {
    let of = |image: &str, policy: &str| {
        make_pod(json!({"containers": [{"name": "a", "image": image, "imagePullPolicy": policy}]}))
    };
    let told = |p, prepare: fn(&mut World)| {
        let mut w = World::new();
        prepare(&mut w);
        w.desire(&p);
        w.settle();
        (w.waiting_reason("a"), w.events_of("Failed"))
    };
    let error = |reason: &str| (reason.to_owned(), vec![format!("Error: {reason}")]);
    let absent = |w: &mut World| w.runtime.absent_images.push("img:1".to_owned());
    assert_eq!(told(of("img:1", "Never"), absent), error("ErrImageNeverPull"));
    assert_eq!(told(of("IMG:1", "Always"), |_| {}), error("InvalidImageName"));
    let broken = |w: &mut World| {
        let e = EffectError { class: Class::Invalid, message: "no".to_owned() };
        w.runtime.refuse.insert("inspect_image", e);
    };
    assert_eq!(told((*one("Always")).clone().into(), broken), error("ImageInspectError"));
}

#[test]
fn the_event_of_a_pull_has_its_length_as_go_prints_it() {
    let p = make_pod(json!({"containers": [{"name": "a", "image": "r.example/x:1"}]}));
    for (millis, text) in [(62_500, "1m2.5s"), (2_000, "2s"), (450, "450ms")] {
        let mut w = World::new();
        w.runtime.absent_images.push("r.example/x:1".to_owned());
        w.desire(&p);
        let pull = loop {
            let (id, call) = w.pending.iter().next().expect("on its way to the pull");
            let (id, found) = (*id, matches!(call.effect, Effect::PullImage { .. }));
            if found {
                break id;
            }
            w.perform(id);
        };
        // Three answers, of a millisecond each, lie between the issue of the pull and its end.
        w.now = w.now.after(Duration::from_millis(millis - 3));
        w.perform(pull);
        let told = w.events_of("Pulled");
        // The pull itself took PULL_TOOK: the rest of the time it waited for its turn.
        assert!(told[0].contains(&format!(" in 1.25s ({text} including waiting)")), "{told:?}");
    }
}

/// Upstream: `evalCRIPullErr`. CRI-O begins its message with the kind of the failure.
#[test]
fn the_kind_of_a_failed_pull_is_told_in_upstreams_words() {
    let p = make_pod(json!({"containers": [{"name": "a", "image": "r.example/x:1"}]}));
    let failed = "image pull failed for r.example/x:1 because";
    let table = [
        (
            "SignatureValidationFailed: no policy",
            "SignatureValidationFailed",
            format!("{failed} the signature validation failed: no policy"),
        ),
        ("RegistryUnavailable", "RegistryUnavailable", format!("{failed} the registry is unavailable")),
        ("no: RegistryUnavailable", "ErrImagePull", "no: RegistryUnavailable".to_owned()),
    ];
    for (answer, reason, message) in table {
        let mut w = World::new();
        w.runtime.absent_images.push("r.example/x:1".to_owned());
        let e = EffectError { class: Class::Invalid, message: answer.to_owned() };
        w.runtime.refuse.insert("pull_image", e);
        w.desire(&p);
        w.wait(Duration::from_secs(3));
        let told: Vec<(String, String)> = w
            .statuses
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten())
            .filter_map(|c| c.state.as_ref()?.waiting.clone())
            .map(|waiting| (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default()))
            .collect();
        let back_off = format!("Back-off pulling image \"r.example/x:1\": {reason}: {message}");
        assert!(told.contains(&(reason.to_owned(), message)), "{told:?}");
        assert!(told.contains(&("ImagePullBackOff".to_owned(), back_off)), "{told:?}");
        let events =
            [format!("Failed to pull image \"r.example/x:1\": {answer}"), format!("Error: {reason}")];
        assert_eq!(w.events_of("Failed")[..2], events);
    }
}

#[test]
fn events_name_the_image_as_the_pod_spells_it() {
    let mut w = World::new();
    w.desire(&make_pod(json!({"containers": [{"name": "a", "image": "busybox"}]})));
    w.settle();
    assert_eq!(w.events_of("Pulling"), ["Pulling image \"busybox\""], "the runtime gets busybox:latest");
    let told = w.events_of("Pulled");
    assert!(told[0].starts_with("Successfully pulled image \"busybox\" in 1.25s ("), "{told:?}");
    let mut w = World::new();
    let p = json!({"containers": [{"name": "a", "image": "busybox", "imagePullPolicy": "IfNotPresent"}]});
    w.desire(&make_pod(p));
    w.settle();
    let text = "Container image \"busybox\" already present on machine and can be accessed by the pod";
    assert_eq!(w.events_of("Pulled"), [text]);
}

#[test]
fn a_second_container_with_the_same_image_waits_for_the_same_reason() {
    let image = "m.example/m:1";
    let p = make_pod(json!({"containers": [{"name": "a", "image": image}, {"name": "b", "image": image}]}));
    let mut w = World::new();
    absent_and_refused(&mut w);
    w.desire(&p);
    w.settle();
    let waiting = w.waiting("b").expect("it waits");
    assert_eq!(waiting.reason.as_deref(), Some("ImagePullBackOff"));
    let message = "Back-off pulling image \"m.example/m:1\": ErrImagePull: no such manifest";
    assert_eq!(waiting.message.as_deref(), Some(message));
}
