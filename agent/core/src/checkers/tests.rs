//! Each checker can fail, and does not fail without cause.

use super::*;

fn pod() -> PodUid {
    PodUid::from("u1")
}

fn created(id: &str, attempt: u32) -> TraceEvent {
    TraceEvent::ContainerCreated { pod: pod(), name: "a".to_owned(), attempt, id: id.into() }
}

fn started(id: &str) -> TraceEvent {
    TraceEvent::ContainerStarted { id: id.into() }
}

fn exited(id: &str) -> TraceEvent {
    TraceEvent::ContainerExited { id: id.into() }
}

fn ready(id: &str, attempt: u32) -> TraceEvent {
    TraceEvent::SandboxReady { pod: pod(), id: id.into(), attempt }
}

fn stopped(id: &str) -> TraceEvent {
    TraceEvent::SandboxStopped { id: id.into() }
}

fn phase(text: &str) -> TraceEvent {
    TraceEvent::StatusPublished { pod: pod(), phase: text.to_owned() }
}

fn state(state: &'static str) -> TraceEvent {
    TraceEvent::WorkerState { pod: pod(), state }
}

fn issued(verb: &'static str) -> TraceEvent {
    TraceEvent::EffectIssued { pod: pod(), verb, object: "x".to_owned() }
}

fn shown(phase: &str, running: &[&str], mirror: bool) -> TraceEvent {
    let running = running.iter().map(|id| (*id).into()).collect();
    TraceEvent::ApiStatus { pod: pod(), phase: phase.to_owned(), running, mirror }
}

fn asked() -> TraceEvent {
    TraceEvent::ApiDeletionAsked { pod: pod() }
}

fn deleted(mirror: bool) -> TraceEvent {
    TraceEvent::ApiDeletedByAgent { pod: pod(), mirror }
}

fn failed(id: &str) -> TraceEvent {
    TraceEvent::ContainerFailed { id: id.into() }
}

fn gone(id: &str) -> TraceEvent {
    TraceEvent::ContainerRemoved { id: id.into() }
}

fn of(name: &str, id: &str) -> TraceEvent {
    TraceEvent::ContainerCreated { pod: pod(), name: name.to_owned(), attempt: 0, id: id.into() }
}

fn again(name: &str, id: &str) -> TraceEvent {
    TraceEvent::ContainerCreated { pod: pod(), name: name.to_owned(), attempt: 1, id: id.into() }
}

/// Init container `i`, then sidecar `s`, then init container `j`.
fn planned() -> TraceEvent {
    let init = [("i", false), ("s", true), ("j", false)];
    let init = init.map(|(name, sidecar)| InitContainer { name: name.to_owned(), sidecar });
    TraceEvent::PodPlanned { pod: pod(), init: init.into() }
}

fn stop(id: &str, grace_s: u32) -> TraceEvent {
    TraceEvent::StopAsked { pod: pod(), id: id.into(), grace_s }
}

fn removal(id: &str) -> TraceEvent {
    TraceEvent::RemovalAsked { pod: pod(), id: id.into() }
}

fn walks() -> TraceEvent {
    TraceEvent::WalkBegan { pod: pod(), volume: "v".to_owned() }
}

fn mounted() -> TraceEvent {
    TraceEvent::VolumeMounted { pod: pod(), volume: "v".to_owned() }
}

fn added(name: &str) -> TraceEvent {
    TraceEvent::EphemeralAdded { pod: pod(), name: name.to_owned() }
}

/// The containers of a pod as [`planned`] one after another, until the last init container runs.
fn begun() -> Vec<TraceEvent> {
    let run = |name: &str| [of(name, name), started(name)];
    let mut trace = vec![planned(), state("syncing"), ready("s1", 0)];
    trace.extend(run("i"));
    trace.push(exited("i"));
    trace.extend(run("s"));
    trace.extend(run("j"));
    trace
}

/// The same until all run that should.
fn up() -> Vec<TraceEvent> {
    then(begun(), &[exited("j"), of("a", "a"), started("a")])
}

fn then(mut before: Vec<TraceEvent>, after: &[TraceEvent]) -> Vec<TraceEvent> {
    before.extend_from_slice(after);
    before
}

/// `n` seconds in which nothing happens that a checker minds.
fn pause(n: usize) -> Vec<TraceEvent> {
    vec![TraceEvent::ApiGone { pod: PodUid::from("other") }; n]
}

/// The invariant that the trace breaks, with a second between events.
fn verdict(trace: &[TraceEvent]) -> Option<&'static str> {
    let mut invariants = all();
    for (n, event) in (0u64..).zip(trace) {
        if let Err(v) = observe_all(&mut invariants, Mono(n * 1_000_000_000), event) {
            return Some(v.invariant);
        }
    }
    None
}

#[test]
fn every_checker_can_fail() {
    let gauge = |value| TraceEvent::Gauge { name: "effects in flight", value, limit: 4 };
    let undisturbed = TraceEvent::AgentStarted { undisturbed: true };
    let loops: Vec<TraceEvent> = (0..12)
        .flat_map(|n| {
            let id = format!("c{n}");
            [created(&id, n), started(&id), exited(&id)]
        })
        .collect();
    let hot: Vec<TraceEvent> = std::iter::repeat_n(issued("stop_container"), 400).collect();
    let table: Vec<(&str, Vec<TraceEvent>)> = vec![
        ("ONE-LIVE", vec![created("c1", 0), created("c2", 1), started("c1"), started("c2")]),
        ("ONE-LIVE", vec![created("c1", 1), started("c1"), exited("c1"), created("c2", 1)]),
        ("ONE-SANDBOX", vec![ready("s1", 0), ready("s2", 1)]),
        ("ONE-SANDBOX", vec![ready("s1", 1), stopped("s1"), ready("s2", 1)]),
        ("NO-OUTLIVE", vec![created("c1", 0), started("c1"), phase("Failed")]),
        ("NO-OUTLIVE", vec![created("c1", 0), phase("Failed"), started("c1")]),
        (
            "NO-OUTLIVE",
            vec![
                phase("Failed"),
                shown("Failed", &[], false),
                undisturbed.clone(),
                created("c1", 0),
                started("c1"),
            ],
        ),
        ("NO-OUTLIVE", vec![shown("Running", &[], false), phase("Failed"), created("c1", 0), started("c1")]),
        ("NO-OUTLIVE", vec![created("c1", 0), state("finished")]),
        ("NO-OUTLIVE", vec![state("finished"), ready("s1", 0)]),
        ("ABSORB-TERM", vec![state("terminating"), state("syncing")]),
        ("ABSORB-TERM", vec![state("terminating"), issued("create_container")]),
        ("STATUS-MONO", vec![phase("Failed"), phase("Running")]),
        ("STATUS-MONO", vec![phase("Failed"), phase("Succeeded")]),
        ("STATUS-MONO", vec![shown("Failed", &[], false), shown("Running", &[], false)]),
        ("STATUS-MONO", vec![phase("Failed"), undisturbed.clone(), phase("Running")]),
        (
            "STATUS-MONO",
            vec![shown("Failed", &[], false), phase("Failed"), undisturbed.clone(), phase("Running")],
        ),
        ("STATUS-TRUTH", vec![created("c1", 0), started("c1"), shown("Failed", &[], false)]),
        ("STATUS-TRUTH", vec![created("c1", 0), shown("Running", &["c1"], false)]),
        ("DELETE-LAST", vec![shown("Failed", &[], false), deleted(false)]),
        ("DELETE-LAST", vec![shown("Running", &[], false), asked(), deleted(false)]),
        ("DELETE-LAST", vec![created("c1", 0), shown("Failed", &[], false), asked(), deleted(false)]),
        (
            "DELETE-LAST",
            vec![
                created("c1", 0),
                shown("Failed", &[], false),
                TraceEvent::ApiLeftOver { pod: pod() },
                started("c1"),
                deleted(false),
            ],
        ),
        (
            "DELETE-LAST",
            vec![ready("s1", 0), stopped("s1"), shown("Failed", &[], false), asked(), deleted(false)],
        ),
        ("ORDER", vec![planned(), ready("s1", 0), of("a", "a"), started("a")]),
        ("ORDER", vec![planned(), ready("s1", 0), of("i", "i"), started("i"), of("s", "s"), started("s")]),
        (
            "ORDER",
            then(
                vec![planned(), ready("s1", 0), of("i", "i"), started("i"), exited("i"), failed("i")],
                &[of("s", "s"), started("s")],
            ),
        ),
        ("ORDER", then(up(), &[again("j", "j1"), started("j1")])),
        ("ORDER", then(then(up(), &pause(140)), &[state("terminating"), stop("s", 5)])),
        ("GRACE", vec![state("terminating"), stop("c1", 10), stop("c1", 12)]),
        ("GRACE", then(then(vec![state("terminating"), stop("c1", 10)], &pause(20)), &[stop("c2", 4)])),
        ("GC-SAFE", vec![state("syncing"), created("c1", 0), started("c1"), exited("c1"), gone("c1")]),
        ("SECRET-SCOPE", vec![TraceEvent::ApiAsked { what: "get pod ns/other".to_owned(), own: false }]),
        ("BACKOFF", loops),
        ("RESTART-TRANSPARENT", vec![undisturbed.clone(), issued("stop_container")]),
        ("VOL-OWNED", vec![walks(), issued("start_container")]),
        ("VOL-OWNED", vec![walks(), walks()]),
        (
            "VOL-OWNED",
            vec![
                walks(),
                mounted(),
                TraceEvent::AgentStarted { undisturbed: false },
                walks(),
                issued("create_container"),
            ],
        ),
        ("BOUNDED", vec![gauge(4), gauge(5)]),
    ];
    for (name, trace) in table {
        assert_eq!(verdict(&trace), Some(name), "{trace:?}");
    }
    let mut invariants = all();
    let first = hot.iter().find_map(|e| observe_all(&mut invariants, Mono(7), e).err());
    assert_eq!(first.map(|v| v.invariant), Some("BACKOFF"), "an effect repeated without end");
}

#[test]
fn order_and_grace_as_they_should_be_break_nothing() {
    let end = [state("terminating"), stop("a", 10), exited("a"), failed("a"), stop("s", 7), exited("s")];
    let anew = [ready("s2", 1), again("i", "i1"), started("i1")];
    for trace in [
        then(then(up(), &pause(140)), &end),
        // A regular container that does not end: when the grace is over its sidecar is stopped next to it.
        then(then(up(), &pause(140)), &[state("terminating"), stop("a", 3), stop("s", 2)]),
        // Sidecars wait neither for a plain init container nor for an ephemeral one.
        then(then(begun(), &pause(140)), &[state("terminating"), stop("j", 10), stop("s", 10)]),
        then(
            then(then(up(), &[added("e"), of("e", "e"), started("e")]), &pause(140)),
            &[state("terminating"), stop("e", 10), stop("a", 10), exited("a"), failed("a"), stop("s", 7)],
        ),
        // An orphan: which of its containers is a sidecar is known no more (simulation, seed 454).
        then(
            then(up(), &pause(140)),
            &[TraceEvent::AgentStarted { undisturbed: false }, state("terminating"), stop("s", 5)],
        ),
        // The pod starts again in a new sandbox.
        then(up(), &[vec![exited("a"), exited("s"), stopped("s1")], anew.to_vec()].concat()),
        // A stop gets at least two seconds, and a new life gets a new grace period.
        then(then(vec![state("terminating"), stop("c1", 10)], &pause(20)), &[stop("c2", 2)]),
        vec![state("terminating"), stop("c1", 1), TraceEvent::PodForgotten { pod: pod() }, stop("c1", 9)],
        then(
            vec![state("terminating"), TraceEvent::RecordLost { pod: pod() }, stop("c1", 3)],
            &[TraceEvent::AgentStarted { undisturbed: false }, state("terminating"), stop("c1", 9)],
        ),
        // Created and never started; superseded; of a pod that is to go.
        vec![state("syncing"), created("c1", 0), gone("c1")],
        then(
            vec![state("syncing"), created("c1", 0), started("c1"), exited("c1"), created("c2", 1)],
            &[started("c2"), gone("c1"), state("terminating"), gone("c2")],
        ),
    ] {
        assert_eq!(verdict(&trace), None, "{trace:?}");
    }
}

#[test]
fn a_new_incarnation_knows_what_it_is_shown() {
    let anew = [phase("Running"), created("c1", 0), started("c1")];
    let started_anew = TraceEvent::AgentStarted { undisturbed: false };
    // The server was put back, or shows an old list first.
    let restored = [shown("Running", &[], true), phase("Failed"), started_anew.clone()];
    let old = [
        shown("Failed", &[], false),
        phase("Failed"),
        started_anew.clone(),
        TraceEvent::ApiListedFirst { pod: pod() },
    ];
    // It is put back before the new incarnation has spoken of the pod (simulation, stopping, seed 65).
    let restored_later = [
        shown("Failed", &[], false),
        phase("Failed"),
        started_anew.clone(),
        TraceEvent::ApiGone { pod: pod() },
        shown("Pending", &[], false),
    ];
    for before in [&restored[..], &old, &restored_later] {
        assert_eq!(verdict(&[before, &anew].concat()), None, "{before:?}");
    }
    // Once it has, it is held to it, also if the server shows something else.
    let own = [shown("Failed", &[], false), phase("Failed"), started_anew, phase("Failed")];
    let put_back = [TraceEvent::ApiGone { pod: pod() }, shown("Pending", &[], false)];
    for (next, broken) in [(phase("Running"), "STATUS-MONO"), (started("c1"), "NO-OUTLIVE")] {
        let trace = [&own[..], &put_back, &[created("c1", 0), next]].concat();
        assert_eq!(verdict(&trace), Some(broken), "{trace:?}");
    }
}

/// The first list is old, and a later one has the end while containers run (simulation, stopping, seed 30221).
#[test]
fn a_pod_that_an_old_list_brings_back_keeps_its_phase_while_it_is_taken_down() {
    let over = || shown("Failed", &[], false);
    let started_anew = TraceEvent::AgentStarted { undisturbed: false };
    let listed = TraceEvent::ApiListedFirst { pod: pod() };
    let again = [state("syncing"), created("c1", 0), started("c1"), state("terminating"), phase("Failed")];
    let down = [exited("c1"), state("terminated"), phase("Failed"), over()];
    let trace =
        |list: &[TraceEvent]| [&[over(), started_anew.clone()], list, &again, &[over()], &down].concat();
    assert_eq!(verdict(&trace(std::slice::from_ref(&listed))), None);
    assert!(verdict(&trace(&[])).is_some());
    // Its worker was through before: the new one begins after the list (simulation, seeds, seed 60710).
    let begun =
        [state("finished"), started_anew.clone(), listed.clone(), TraceEvent::PodForgotten { pod: pod() }];
    let begun =
        [&[over()], &begun[..], &again[..3], &[started_anew.clone(), state("terminating"), phase("Failed")]]
            .concat();
    assert_eq!(verdict(&[&begun[..], &down].concat()), None);
    assert_eq!(verdict(&[&begun[..], &[state("terminated")]].concat()), Some("NO-OUTLIVE"));
    // A pod that the API does not show as over, or whose worker is through, has no such excuse.
    let early = [shown("Running", &[], false), started_anew.clone(), listed.clone()];
    let up = [created("c1", 0), started("c1"), over()];
    assert_eq!(verdict(&[&early[..], &up].concat()), Some("STATUS-TRUTH"));
    let late =
        [&trace(&[listed])[..], &[TraceEvent::PodForgotten { pod: pod() }], &[created("c2", 1)]].concat();
    assert_eq!(verdict(&[&late[..], &[started("c2"), over()]].concat()), Some("STATUS-TRUTH"));
}

/// The pod counts on from the containers that are there, and starts again if there are none
/// (simulation, stopping, seed 761).
#[test]
fn a_pod_that_an_old_list_brings_back_begins_anew_if_nothing_of_it_is_left() {
    let sandbox_gone = TraceEvent::SandboxRemoved { id: "s1".into() };
    let started_anew = TraceEvent::AgentStarted { undisturbed: false };
    let listed = TraceEvent::ApiListedFirst { pod: pod() };
    let life = [ready("s1", 0), created("c1", 0), started("c1"), exited("c1"), stopped("s1")];
    let old = [&life[..], &[gone("c1"), sandbox_gone.clone(), started_anew, listed]].concat();
    assert_eq!(verdict(&[&old[..], &[ready("s2", 0), created("c2", 0)]].concat()), None);
    let still_there =
        [(sandbox_gone, ready("s2", 0), "ONE-SANDBOX"), (gone("c1"), created("c2", 0), "ONE-LIVE")];
    for (left_out, next, broken) in still_there {
        let trace = old.iter().filter(|event| **event != left_out).chain([&next]).cloned();
        assert_eq!(verdict(&trace.collect::<Vec<_>>()), Some(broken), "{next:?}");
    }
}

#[test]
fn a_normal_life_breaks_nothing() {
    let undisturbed = TraceEvent::AgentStarted { undisturbed: true };
    let trace = [
        state("pending"),
        state("syncing"),
        ready("s1", 0),
        created("c1", 0),
        started("c1"),
        phase("Running"),
        TraceEvent::ApiAsked { what: "patch pod status ns/a".to_owned(), own: true },
        shown("Running", &["c1"], false),
        asked(),
        exited("c1"),
        created("c2", 1),
        started("c2"),
        gone("c1"),
        undisturbed,
        issued("inspect"),
        TraceEvent::Disturbed,
        state("terminating"),
        issued("stop_container"),
        exited("c2"),
        stopped("s1"),
        phase("Failed"),
        shown("Failed", &[], false),
        state("terminated"),
        gone("c2"),
        TraceEvent::SandboxRemoved { id: "s1".into() },
        state("finished"),
        deleted(false),
        TraceEvent::ApiGone { pod: pod() },
        // The API server had no such pod, so no client has seen this phase.
        shown("Pending", &[], false),
        TraceEvent::AgentStarted { undisturbed: false },
        phase("Pending"),
        TraceEvent::PodForgotten { pod: pod() },
        ready("s2", 0),
        created("c3", 0),
        started("c3"),
        shown("Failed", &[], true),
        shown("Running", &["c3"], true),
        deleted(true),
    ];
    assert_eq!(verdict(&trace), None);
}

/// An agent that died had asked for it when the pod was to go (simulation, stopping, seeds 20111 and 20142).
#[test]
fn a_late_removal_is_judged_by_the_moment_at_which_it_was_asked_for() {
    let lived = || vec![state("syncing"), created("c1", 0), started("c1"), exited("c1")];
    let died = || TraceEvent::AgentStarted { undisturbed: false };
    let going = [state("terminating"), state("terminated"), removal("c1")];
    let wanted_again = [died(), state("syncing")];
    for (after, broken) in [
        ([&going[..], &wanted_again, &[gone("c1")]].concat(), None),
        // An agent that wants the pod asks for no such thing itself, and an agent that died wanting the pod had not either.
        ([&going[..], &wanted_again, &[removal("c1"), gone("c1")]].concat(), Some("GC-SAFE")),
        ([&[removal("c1")][..], &wanted_again, &[gone("c1")]].concat(), Some("GC-SAFE")),
        ([&wanted_again[..], &[gone("c1")]].concat(), Some("GC-SAFE")),
    ] {
        assert_eq!(verdict(&then(lived(), &after)), broken, "{after:?}");
    }
}

#[test]
fn a_volume_that_is_there_is_looked_through_again_while_containers_start() {
    let start = || issued("start_container");
    let anew = || TraceEvent::AgentStarted { undisturbed: false };
    let gone = || TraceEvent::VolumesGone { pod: pod() };
    for trace in [
        vec![walks(), mounted(), start(), walks(), start(), mounted()],
        // The walks of an agent end with it, and with the tearing down of the volume.
        vec![walks(), anew(), walks(), mounted(), start()],
        vec![walks(), gone(), walks(), mounted(), start()],
        vec![
            walks(),
            TraceEvent::EffectIssued { pod: "u2".into(), verb: "start_container", object: "x".into() },
        ],
    ] {
        assert_eq!(verdict(&trace), None, "{trace:?}");
    }
}

#[test]
fn an_ephemeral_container_runs_once() {
    let added = || added("a");
    let mut once = EphemeralOnce::default();
    let mut see = |event: TraceEvent| once.observe(Mono(1), &event);
    for event in [added(), created("c0", 0), started("c0"), exited("c0"), gone("c0"), created("c1", 1)] {
        assert_eq!(see(event), Ok(()));
    }
    assert!(see(started("c1")).is_err());
    assert_eq!(see(TraceEvent::RuntimeEmptied), Ok(()));
    assert_eq!(see(created("c2", 0)).and(see(started("c2"))), Ok(()), "a runtime that lost everything");
    let mut others = EphemeralOnce::default();
    let regular = [created("c0", 0), started("c0"), exited("c0"), created("c1", 1), started("c1")];
    assert!(regular.iter().all(|event| others.observe(Mono(1), event).is_ok()), "regular containers restart");
}

#[test]
fn the_container_that_asks_for_all_to_begin_anew_goes_last() {
    let other =
        || TraceEvent::ContainerCreated { pod: pod(), name: "b".to_owned(), attempt: 0, id: "b0".into() };
    let asks = || TraceEvent::RestartAllAsked { pod: pod(), id: "c0".into() };
    let see = |events: Vec<TraceEvent>| {
        let mut all = RestartAll::default();
        events.iter().try_for_each(|event| all.observe(Mono(1), event))
    };
    let begun = || vec![state("syncing"), created("c0", 0), other(), started("c0"), exited("c0"), asks()];
    let with = |more: Vec<TraceEvent>| see(begun().into_iter().chain(more).collect());
    assert_eq!(with(vec![gone("b0"), gone("c0"), created("c1", 1)]), Ok(()));
    assert!(with(vec![gone("c0")]).is_err(), "before the others");
    assert!(with(vec![gone("b0"), created("c1", 1)]).is_err(), "it runs again beside its own end");
    assert_eq!(with(vec![state("terminating"), gone("c0")]), Ok(()), "a pod on its way out");
}
