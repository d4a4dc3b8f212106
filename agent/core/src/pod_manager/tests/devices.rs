//! Devices: pods that wait for their plugins, refusals, deadlines, restarts, plugins that vanish and return.

use agent_managers::checkpoint;
use agent_managers::devices::plugin::{AllocateResponse, Connection, HEALTHY, PluginDevice, PluginOptions};
use agent_managers::devices::run_options::RunOptions;
use agent_managers::placement::Managers;
use agent_types::runtime::placement::ContainerDevices;

use super::*;
use crate::resource_managers::{ASK_TIME, ResourceManagers};

const GPU: &str = "x.io/gpu";
const NIC: &str = "x.io/nic";
const MINUTE: u64 = 60_000_000_000;

fn at(minutes: u64) -> Mono {
    Mono(1 + minutes * MINUTE)
}

/// Words of one event's actions.
fn happen(m: &mut PodManager, mono: Mono, event: ManagerEvent) -> Vec<String> {
    let mut out = Outbox::new();
    m.step(Now { mono, wall: Wall(1) }, event, &mut out);
    let ids = |ids: &BTreeSet<String>| ids.iter().cloned().collect::<Vec<String>>().join(",");
    let shown = |devices: &ContainerDevices| match &devices.pre_start {
        Ok(calls) => format!("{:?} {}", devices.envs.values().collect::<Vec<_>>(), calls.len()),
        Err(why) => why.clone(),
    };
    let word = |action| match action {
        ManagerAction::Devices(DeviceAction::AskAllocate { ask, uid, question }) => {
            Some(format!("allocate {ask} {uid} {}", ids(&question.ids)))
        }
        ManagerAction::Devices(DeviceAction::AskPreferred { ask, uid, question }) => {
            Some(format!("prefer {ask} {uid} {}", ids(&question.available)))
        }
        ManagerAction::Devices(DeviceAction::WriteCheckpoint(_)) => Some("checkpoint".to_owned()),
        ManagerAction::Allocated(..) => Some("record".to_owned()),
        ManagerAction::Start { key, .. } => Some(format!("+{}", key.uid)),
        ManagerAction::Rejected { key, rejection, .. } => {
            Some(format!("!{}:{} {}", key.uid, rejection.reason, rejection.message))
        }
        ManagerAction::Tell { uid, event: PodEvent::Desired(_) } => Some(format!("{uid}:desired")),
        ManagerAction::Tell { uid, event: PodEvent::Placed(placement) } => {
            Some(format!("{uid}:{}", placement.devices.values().map(shown).collect::<Vec<_>>().join(" ")))
        }
        _ => None,
    };
    out.drain().filter_map(word).collect()
}

fn of_plugin(event: DeviceEvent) -> ManagerEvent {
    ManagerEvent::Devices(event)
}

fn connected(number: u64, resource: &str) -> ManagerEvent {
    let options = PluginOptions { pre_start_required: true, ..PluginOptions::default() };
    of_plugin(DeviceEvent::Connected {
        connection: Connection(number),
        resource: resource.to_owned(),
        options,
    })
}

fn list(number: u64, ids: &[&str]) -> ManagerEvent {
    let device =
        |id: &&str| PluginDevice { id: (*id).to_owned(), health: HEALTHY.to_owned(), nodes: BTreeSet::new() };
    of_plugin(DeviceEvent::Listed {
        connection: Connection(number),
        devices: ids.iter().map(device).collect(),
    })
}

fn ended(number: u64) -> ManagerEvent {
    of_plugin(DeviceEvent::Ended { connection: Connection(number) })
}

fn allocated(ask: u64, uid: &str, answer: Result<&str, &str>) -> ManagerEvent {
    let answer = answer.map_err(str::to_owned).map(|value| {
        let envs = BTreeMap::from([("ID".to_owned(), value.to_owned())]);
        Some(AllocateResponse {
            encoded: value.as_bytes().to_vec(),
            options: RunOptions { envs, ..RunOptions::default() },
        })
    });
    of_plugin(DeviceEvent::Allocated { ask, uid: PodUid::from(uid), answer })
}

fn written() -> ManagerEvent {
    of_plugin(DeviceEvent::Written(Ok(())))
}

/// A pod with one container that asks for devices.
fn asks(uid: &str, resource: &str, count: u64) -> Arc<Pod> {
    let mut p = (*pod(uid, uid, "file")).clone();
    let amounts = json!({resource: count.to_string()});
    let resources = json!({"requests": amounts, "limits": amounts});
    p.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).unwrap();
    Arc::new(p)
}

fn beginning(managers: ResourceManagers) -> PodManager {
    let leftovers = Leftovers { managers, ..Leftovers::default() };
    PodManager::new([Source::File].into(), leftovers, Arc::default(), Ok(()))
}

/// A manager whose sources are read, with one plugin of three devices.
fn with_plugin() -> PodManager {
    let mut m = beginning(ResourceManagers::default());
    happen(&mut m, at(0), listed(&[]));
    happen(&mut m, at(0), file(PodOp::Add, &[]));
    assert_eq!(happen(&mut m, at(0), connected(1, GPU)), Vec::<String>::new());
    assert_eq!(happen(&mut m, at(0), list(1, &["a", "b", "c"])), ["checkpoint"]);
    assert_eq!(happen(&mut m, at(0), written()), Vec::<String>::new());
    m
}

fn amounts(m: &PodManager) -> Vec<String> {
    let view = m.resource_managers().view().node_devices;
    let removed = view.removed.iter().map(|name| format!("{name} removed"));
    let of = |name: &String| view.allocatable.get(name).copied().unwrap_or(-1);
    let there = view.capacity.iter().map(|(name, count)| format!("{name} {}/{count}", of(name)));
    there.chain(removed).collect()
}

fn free(m: &PodManager) -> usize {
    let records = m.resource_managers().managers().devices.records();
    3 - records.in_use(GPU).len()
}

#[test]
fn a_pod_starts_when_its_devices_are_on_disk_and_others_do_not_wait() {
    let mut m = with_plugin();
    assert_eq!(happen(&mut m, at(0), file(PodOp::Add, &[&asks("p", GPU, 2)])), ["allocate 1 p a,b"]);
    assert_eq!(happen(&mut m, at(0), file(PodOp::Add, &[&pod("q", "q", "file")])), ["+q", "record"]);
    assert_eq!(happen(&mut m, at(0), ManagerEvent::Recorded(true)), ["q:desired"]);
    assert_eq!(happen(&mut m, at(0), file(PodOp::Add, &[&asks("r", GPU, 1)])), ["allocate 2 r c"]);
    assert_eq!(happen(&mut m, at(0), allocated(1, "p", Ok("a,b"))), ["checkpoint"]);
    assert_eq!(
        happen(&mut m, at(0), allocated(2, "r", Ok("c"))),
        Vec::<String>::new(),
        "one write at a time"
    );
    assert_eq!(happen(&mut m, at(0), written()), ["+p", "record", "checkpoint"]);
    assert_eq!(happen(&mut m, at(0), ManagerEvent::Recorded(true)), ["p:[\"a,b\"] 1", "p:desired"]);
    assert_eq!(happen(&mut m, at(0), written()), ["+r", "record"]);
    let view = m.resource_managers().view();
    assert_eq!(view.devices["p"]["c"][GPU].keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(amounts(&m), ["x.io/gpu 3/3"]);
}

#[test]
fn a_pod_that_its_plugin_refuses_leaves_nothing() {
    let mut m = with_plugin();
    happen(&mut m, at(0), connected(2, NIC));
    happen(&mut m, at(0), list(2, &["n"]));
    happen(&mut m, at(0), written());
    let mut both = (*asks("p", GPU, 1)).clone();
    let limits =
        both.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits.as_mut().unwrap();
    limits.insert(NIC.to_owned(), serde_json::from_value(json!("1")).unwrap());
    assert_eq!(happen(&mut m, at(0), file(PodOp::Add, &[&Arc::new(both)])), ["allocate 1 p a"]);
    assert_eq!(happen(&mut m, at(0), allocated(1, "p", Ok("a"))), ["allocate 2 p n"]);
    let words = happen(&mut m, at(0), allocated(2, "p", Err("rpc error: code = Unknown desc = no")));
    let refused = "!p:UnexpectedAdmissionError Allocate failed due to rpc error: code = Unknown desc = no, which is \
                   unexpected";
    assert!(words.contains(&"+p".to_owned()) && words.contains(&refused.to_owned()), "{words:?}");
    assert!(!words.contains(&"checkpoint".to_owned()), "the file never had the pod: {words:?}");
    assert_eq!(free(&m), 3);
    assert_eq!(happen(&mut m, at(0), file(PodOp::Add, &[&asks("r", GPU, 3)])), ["allocate 3 r a,b,c"]);
}

#[test]
fn too_few_devices_refuse_a_pod_at_once() {
    let mut m = with_plugin();
    let words = happen(&mut m, at(0), file(PodOp::Add, &[&asks("p", GPU, 4)]));
    let refused = "!p:UnexpectedAdmissionError Allocate failed due to requested number of devices unavailable for \
                   x.io/gpu. Requested: 4, Available: 3, which is unexpected";
    assert!(words.contains(&refused.to_owned()), "{words:?}");
    let unknown = happen(&mut m, at(0), file(PodOp::Add, &[&asks("q", "x.io/none", 4)]));
    assert!(
        unknown.contains(&"+q".to_owned()) && !unknown.iter().any(|word| word.starts_with('!')),
        "{unknown:?}"
    );
}

#[test]
fn a_plugin_that_hangs_holds_its_pods_until_the_deadline() {
    let mut m = with_plugin();
    happen(&mut m, at(0), file(PodOp::Add, &[&asks("p", GPU, 1)]));
    assert!(happen(&mut m, at(1), file(PodOp::Add, &[&pod("q", "q", "file")])).contains(&"+q".to_owned()));
    assert_eq!(m.deadline(), Some(at(0).after(ASK_TIME)));
    assert_eq!(happen(&mut m, at(1), ManagerEvent::Tick), Vec::<String>::new());
    let words = happen(&mut m, at(2), ManagerEvent::Tick);
    let refused = "!p:UnexpectedAdmissionError Allocate failed due to rpc error: code = DeadlineExceeded desc = context \
                   deadline exceeded, which is unexpected";
    assert!(words.contains(&refused.to_owned()), "{words:?}");
    happen(&mut m, at(2), written());
    assert_eq!(happen(&mut m, at(2), allocated(1, "p", Ok("a"))), Vec::<String>::new(), "too late");
    assert_eq!(free(&m), 3);
}

#[test]
fn a_pod_that_nobody_wants_any_more_gives_its_devices_back() {
    let mut m = with_plugin();
    let (p, r) = (asks("p", GPU, 3), asks("r", GPU, 1));
    happen(&mut m, at(0), file(PodOp::Add, &[&p]));
    happen(&mut m, at(0), file(PodOp::Remove, &[&p]));
    assert_eq!(happen(&mut m, at(0), allocated(1, "p", Ok("a"))), Vec::<String>::new());
    assert_eq!(free(&m), 3);
    assert_eq!(happen(&mut m, at(0), file(PodOp::Add, &[&r])), ["allocate 2 r a"]);
    let words = happen(&mut m, at(0), file(PodOp::Update, &[&deleted(&r)]));
    assert!(words.contains(&"+r".to_owned()), "its worker ends it: {words:?}");
    assert_eq!(free(&m), 3);
}

/// The managers of a later agent, from the checkpoint.
fn restarted(m: &PodManager) -> ResourceManagers {
    let options = |bytes: &[u8]| {
        let value = String::from_utf8_lossy(bytes).into_owned();
        Some(RunOptions { envs: BTreeMap::from([("ID".to_owned(), value)]), ..RunOptions::default() })
    };
    let text = m.resource_managers().device_checkpoint();
    let state = checkpoint::devices::read(&text, options).unwrap().state;
    ResourceManagers::from(Managers::default()).with_devices(Some(state), Now { mono: at(0), wall: Wall(1) })
}

#[test]
fn after_a_restart_a_running_pod_keeps_its_devices_and_an_ended_one_is_refused() {
    let mut m = with_plugin();
    let (p, r) = (asks("p", GPU, 1), asks("r", GPU, 1));
    for (ask, pod) in [(1, &p), (2, &r)] {
        happen(&mut m, at(0), file(PodOp::Add, &[pod]));
        happen(&mut m, at(0), allocated(ask, &pod::key(pod).uid.to_string(), Ok("x")));
        happen(&mut m, at(0), written());
        happen(&mut m, at(0), ManagerEvent::Recorded(true));
    }
    let mut later = beginning(restarted(&m));
    happen(&mut later, at(0), ManagerEvent::Running([PodUid::from("p")].into()));
    happen(&mut later, at(0), listed(&[&p, &r]));
    let words = happen(&mut later, at(0), file(PodOp::Add, &[&p, &r]));
    let refused = "!r:UnexpectedAdmissionError Allocate failed due to no healthy devices present; cannot allocate unhealthy \
                   devices x.io/gpu, which is unexpected";
    assert!(words.contains(&"+p".to_owned()) && words.contains(&refused.to_owned()), "{words:?}");
    assert_eq!(amounts(&later), ["x.io/gpu 0/0"]);
    assert!(words.contains(&"p:[\"x\"] 0".to_owned()), "options are not known: {words:?}");
    assert_eq!(later.resource_managers().view().devices["p"]["c"][GPU].len(), 1);
}

#[test]
fn a_plugin_vanishes_and_returns() {
    let mut m = with_plugin();
    happen(&mut m, at(0), file(PodOp::Add, &[&asks("p", GPU, 1)]));
    happen(&mut m, at(0), allocated(1, "p", Ok("a")));
    happen(&mut m, at(0), written());
    happen(&mut m, at(0), ManagerEvent::Recorded(true));
    let stopped = "p:device plugin PreStartContainer rpc failed with err: endpoint x.io/gpu has been stopped";
    assert_eq!(happen(&mut m, at(0), ended(1)), [stopped]);
    assert_eq!(amounts(&m), ["x.io/gpu 0/3"]);
    assert_eq!(happen(&mut m, at(0), list(1, &["a"])), Vec::<String>::new(), "the connection is over");
    let removal = m.deadline().unwrap();
    assert_eq!(removal, Mono(at(5).0 + 1));
    let words = happen(&mut m, removal, ManagerEvent::Tick);
    let gone = "p:endpoint not found in cache for a registered resource: x.io/gpu";
    assert!(words.contains(&gone.to_owned()) && words.contains(&"checkpoint".to_owned()), "{words:?}");
    assert_eq!(amounts(&m), ["x.io/gpu removed"]);
    happen(&mut m, at(6), written());
    happen(&mut m, at(6), connected(2, GPU));
    assert_eq!(amounts(&m), ["x.io/gpu removed"], "no list yet");
    assert_eq!(happen(&mut m, at(6), list(2, &["a", "b"])), ["checkpoint"]);
    assert_eq!(amounts(&m), ["x.io/gpu 2/2"]);
}

#[test]
fn a_node_without_plugins_pays_nothing() {
    let mut m = beginning(ResourceManagers::default());
    happen(&mut m, at(0), listed(&[]));
    let words = happen(&mut m, at(0), file(PodOp::Add, &[&asks("p", GPU, 1)]));
    assert!(m.resource_managers().are_idle());
    assert!(!words.iter().any(|word| word == "checkpoint" || word.starts_with("p:[")), "{words:?}");
    assert_eq!(m.deadline(), None);
}
