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
        ManagerAction::Tell { uid, event: PodEvent::EffectDone { id, result, .. } } => {
            let result = result.map_or_else(|error| error.message, |_| "done".to_owned());
            Some(format!("{uid}#{}:{result}", id.0))
        }
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
    connected_with(number, resource, true)
}

fn connected_with(number: u64, resource: &str, pre_start_required: bool) -> ManagerEvent {
    let options = PluginOptions { pre_start_required, ..PluginOptions::default() };
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

/// A pod with one container that asks for a device of each of two resources.
fn asks_both(uid: &str) -> Arc<Pod> {
    let mut both = (*asks(uid, GPU, 1)).clone();
    let limits =
        both.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits.as_mut().unwrap();
    limits.insert(NIC.to_owned(), serde_json::from_value(json!("1")).unwrap());
    Arc::new(both)
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
    assert_eq!(happen(&mut m, at(0), file(PodOp::Add, &[&asks_both("p")])), ["allocate 1 p a"]);
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

/// Upstream raises the node's amount to what its pods have (`sanitizeNodeAllocatable` of pkg/kubelet/cm/devicemanager).
#[test]
fn a_resize_does_not_ask_again_for_devices_that_the_pod_has() {
    let mut m = with_plugin();
    let with_cpu = |cpu: &str| {
        let mut p = (*asks("p", GPU, 1)).clone();
        let resources = p.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
        let cpu = serde_json::from_value(json!(cpu)).unwrap();
        resources.requests.as_mut().unwrap().insert("cpu".to_owned(), cpu);
        Arc::new(p)
    };
    happen(&mut m, at(0), file(PodOp::Add, &[&with_cpu("1")]));
    happen(&mut m, at(0), allocated(1, "p", Ok("a")));
    assert!(happen(&mut m, at(0), written()).contains(&"+p".to_owned()));
    happen(&mut m, at(0), ManagerEvent::Recorded(true));
    let extended = [(GPU.to_owned(), agent_types::Quantity::ZERO)].into();
    happen(&mut m, at(0), ManagerEvent::Node(Some(NodeMarks { extended, ..NodeMarks::default() })));
    let words = happen(&mut m, at(0), file(PodOp::Update, &[&with_cpu("2")]));
    assert_eq!(words, ["p:desired", "record"], "granted at once");
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
fn a_pod_that_is_over_keeps_its_devices_until_its_containers_have_ended_and_then_leaves_the_checkpoint() {
    let mut m = with_plugin();
    let p = asks("p", GPU, 1);
    happen(&mut m, at(0), file(PodOp::Add, &[&p]));
    happen(&mut m, at(0), allocated(1, "p", Ok("a")));
    happen(&mut m, at(0), written());
    happen(&mut m, at(0), ManagerEvent::Recorded(true));
    let mut over = (*p).clone();
    over.status = Some(serde_json::from_value(json!({"phase": "Failed"})).unwrap());
    let over = Arc::new(over);
    let mut later = beginning(restarted(&m));
    happen(&mut later, at(0), ManagerEvent::Running([PodUid::from("p")].into()));
    happen(&mut later, at(0), listed(&[&over]));
    happen(&mut later, at(0), file(PodOp::Add, &[&over]));
    assert_eq!(free(&later), 2);
    let words = happen(&mut later, at(0), ManagerEvent::Ended(PodUid::from("p")));
    assert!(words.contains(&"checkpoint".to_owned()), "{words:?}");
    assert_eq!(free(&later), 3);
    let text = later.resource_managers().device_checkpoint();
    assert!(!text.contains("PodUID"), "{text}");
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

fn lacks(uid: &str, id: u64) -> ManagerEvent {
    ManagerEvent::LacksDevices { uid: PodUid::from(uid), container: "c".to_owned(), id: EffectId(id) }
}

/// A running pod whose plugin registers after its admission, with two devices.
fn with_late_plugin() -> PodManager {
    let mut m = beginning(ResourceManagers::default());
    happen(&mut m, at(0), listed(&[]));
    happen(&mut m, at(0), file(PodOp::Add, &[&asks("p", GPU, 1), &asks("q", GPU, 2)]));
    happen(&mut m, at(0), ManagerEvent::Recorded(true));
    happen(&mut m, at(0), connected_with(1, GPU, false));
    let words = happen(&mut m, at(0), list(1, &["a", "b"]));
    assert!(words.contains(&"p:[] 0".to_owned()), "the worker learns that it lacks devices: {words:?}");
    happen(&mut m, at(0), written());
    m
}

#[test]
fn a_container_gets_the_devices_of_a_plugin_that_registered_after_its_pod_at_its_start() {
    let mut m = with_late_plugin();
    assert_eq!(happen(&mut m, at(0), lacks("p", 7)), ["allocate 1 p a"]);
    assert!(m.allocates_at_start(&PodUid::from("p")));
    assert_eq!(happen(&mut m, at(0), allocated(1, "p", Ok("a"))), ["checkpoint"]);
    assert_eq!(happen(&mut m, at(0), written()), ["p:[\"a\"] 0", "p#7:done"], "the placement comes first");
    assert!(!m.allocates_at_start(&PodUid::from("p")));
    let placement = m.resource_managers().placement("p", m.desired().get(&PodUid::from("p")).map(|p| &**p));
    assert!(!placement.devices["c"].lacks_some);
    assert_eq!(happen(&mut m, at(0), lacks("p", 8)), ["p#8:done"], "it has them");
    let refused = "q#9:requested number of devices unavailable for x.io/gpu. Requested: 2, Available: 1";
    assert_eq!(happen(&mut m, at(0), lacks("q", 9)), [refused]);
}

#[test]
fn the_start_of_a_container_ends_with_its_pod_and_with_the_deadline_of_its_plugin() {
    let gone = |id: u64| format!("p#{id}:the container does not start any more");
    let mut m = with_late_plugin();
    happen(&mut m, at(0), lacks("p", 7));
    assert_eq!(m.deadline(), Some(at(0).after(ASK_TIME)));
    let late = "p#7:rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned();
    assert!(happen(&mut m, at(2), ManagerEvent::Tick).contains(&late));
    assert_eq!(happen(&mut m, at(2), allocated(1, "p", Ok("a"))), Vec::<String>::new(), "too late");
    // Another container of the pod begins, and the pod ends.
    happen(&mut m, at(2), lacks("p", 8));
    assert!(happen(&mut m, at(2), lacks("p", 9)).contains(&gone(8)));
    assert!(happen(&mut m, at(2), ManagerEvent::Ended(PodUid::from("p"))).contains(&gone(9)));
    assert_eq!(happen(&mut m, at(2), allocated(3, "p", Ok("a"))), Vec::<String>::new());
    assert_eq!(happen(&mut m, at(2), lacks("p", 10)), [gone(10)], "it is not active");
    assert_eq!(happen(&mut m, at(2), lacks("nobody", 11)), Vec::<String>::new());
    assert_eq!(m.resource_managers().managers().devices.records().in_use(GPU).len(), 0);
    assert_eq!(happen(&mut m, at(2), lacks("q", 12)), ["allocate 4 q a,b"], "nothing is reserved");
    happen(&mut m, at(2), finished("q"));
    assert!(!m.allocates_at_start(&PodUid::from("q")));
}

#[test]
fn a_start_that_its_worker_cancels_is_answered_at_once_and_leaves_nothing() {
    let give_up = |id: u64| ManagerEvent::GiveUpStart { uid: PodUid::from("p"), id: EffectId(id) };
    let in_use = |m: &PodManager| m.resource_managers().managers().devices.records().in_use(GPU).len();
    let mut m = with_late_plugin();
    assert_eq!(happen(&mut m, at(0), lacks("p", 7)), ["allocate 1 p a"]);
    assert_eq!(happen(&mut m, at(0), give_up(6)), Vec::<String>::new(), "an earlier effect");
    assert!(m.allocates_at_start(&PodUid::from("p")));
    let words = happen(&mut m, at(0), give_up(7));
    assert!(words.contains(&"p#7:the container does not start any more".to_owned()), "{words:?}");
    assert!(!m.allocates_at_start(&PodUid::from("p")));
    assert_eq!(in_use(&m), 0);
    assert_ne!(m.deadline(), Some(at(0).after(ASK_TIME)), "nobody is asked");
    assert_eq!(happen(&mut m, at(0), give_up(7)), Vec::<String>::new(), "once");
    assert_eq!(happen(&mut m, at(0), allocated(1, "p", Ok("a"))), Vec::<String>::new(), "too late");
    assert_eq!(happen(&mut m, at(0), lacks("p", 8)), ["allocate 2 p a"], "the container may start again");
    // The devices are on their way to the disk.
    assert_eq!(happen(&mut m, at(0), allocated(2, "p", Ok("a"))), ["checkpoint"]);
    let words = happen(&mut m, at(0), give_up(8));
    assert!(words.contains(&"p#8:the container does not start any more".to_owned()), "{words:?}");
    happen(&mut m, at(0), written());
    assert_eq!(in_use(&m), 0);
}

#[test]
fn a_start_that_one_plugin_refuses_leaves_nothing_of_the_others() {
    let mut m = beginning(ResourceManagers::default());
    happen(&mut m, at(0), listed(&[]));
    happen(&mut m, at(0), file(PodOp::Add, &[&asks_both("p")]));
    happen(&mut m, at(0), ManagerEvent::Recorded(true));
    for (number, resource, id) in [(1, GPU, "a"), (2, NIC, "n")] {
        happen(&mut m, at(0), connected_with(number, resource, false));
        happen(&mut m, at(0), list(number, &[id]));
        happen(&mut m, at(0), written());
    }
    let in_use = |m: &PodManager| m.resource_managers().managers().devices.records().in_use(GPU).len();
    assert_eq!(happen(&mut m, at(0), lacks("p", 7)), ["allocate 1 p a"]);
    assert_eq!(happen(&mut m, at(0), allocated(1, "p", Ok("a"))), ["allocate 2 p n"]);
    assert_eq!(in_use(&m), 1);
    assert!(happen(&mut m, at(0), allocated(2, "p", Err("no"))).contains(&"p#7:no".to_owned()));
    assert_eq!(in_use(&m), 0);
    assert_eq!(happen(&mut m, at(0), lacks("p", 8)), ["allocate 3 p a"], "it is tried again");
}
