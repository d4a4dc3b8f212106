//! Thresholds from the configuration, and the messages, word for word.

use agent_types::resources::observation::Observation;

use super::*;

fn config(value: Value) -> EvictionConfig {
    EvictionConfig::new(&kubelet(value)).unwrap()
}

fn found(config: &EvictionConfig, layout: Layout) -> Vec<(String, i64, bool)> {
    let all = threshold::with_containerfs(&config.thresholds, layout);
    all.iter().map(|t| (t.signal.as_str().to_owned(), t.least(1000, false), t.is_hard())).collect()
}

#[test]
fn containerfs_follows_the_file_system_that_it_is_on() {
    let config = config(json!({
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "10", "nodefs.available": "7.5%", "imagefs.available": "15%",
            "containerfs.available": "1", "nodefs.inodesFree": "0%"},
        "evictionSoft": {"imagefs.inodesFree": "20%"},
        "evictionSoftGracePeriod": {"imagefs.inodesFree": "1m"},
        "evictionMaxPodGracePeriod": -1,
    }));
    assert_eq!(config.max_pod_grace_s, None);
    let of = |name: &str, least, hard| (name.to_owned(), least, hard);
    let mut own = vec![
        of("memory.available", 10, true),
        of("nodefs.available", 75, true),
        of("imagefs.available", 150, true),
        of("imagefs.inodesFree", 200, false),
        of("allocatableMemory.available", 10, true),
    ];
    let mut single = own.clone();
    single.push(of("containerfs.available", 75, true));
    assert_eq!(found(&config, Layout::default()), single);
    let split = Layout { dedicated_images: true, split_containers: true };
    assert_eq!(found(&config, split), single);
    own.extend([of("containerfs.available", 150, true), of("containerfs.inodesFree", 200, false)]);
    assert_eq!(found(&config, Layout { dedicated_images: true, split_containers: false }), own);
    let wrong = EvictionConfig::new(&kubelet(json!({"evictionSoft": {"memory.available": "1Gi"}})));
    assert_eq!(wrong.unwrap_err().len(), 1);
}

#[test]
fn amounts_are_told_as_upstream_tells_them() {
    let config = config(json!({"evictionHard": {"memory.available": "1536Mi", "nodefs.available": "25%",
        "imagefs.available": "5G", "nodefs.inodesFree": "1k"}}));
    let text = |signal: Signal, capacity| {
        config.thresholds.iter().find(|t| t.signal == signal).unwrap().value.text(capacity)
    };
    assert_eq!(text(Signal::MemoryAvailable, 0), "1536Mi");
    assert_eq!(text(Signal::NodefsAvailable, 100 << 30), "25Gi");
    assert_eq!(text(Signal::NodefsAvailable, 12345), "3086");
    assert_eq!(text(Signal::ImagefsAvailable, 0), "5G");
    assert_eq!(text(Signal::NodefsInodesFree, 0), "1k");
    assert_eq!(
        (Resource::Memory.text(50 * MI), Resource::Pids.text(2000)),
        ("50Mi".to_owned(), "2k".to_owned())
    );
}

fn message_of(p: &Pod, found: Option<&PodUse>, resource: Resource) -> (String, Vec<String>) {
    let threshold = Threshold {
        signal: Signal::MemoryAvailable,
        value: Amount::Units(100 * MI, "100Mi".to_owned()),
        grace: Duration::ZERO,
        min_reclaim: None,
    };
    let observed = Observation { at: Wall(0), available: 50 * MI, capacity: 1 << 30 };
    let (message, annotations) = message::of_pressure(p, found, resource, Some((&threshold, observed)));
    (message, annotations.into_iter().map(|(key, value)| format!("{key}={value}")).collect())
}

#[test]
fn messages_name_containers_beyond_their_requests() {
    let spec = json!({"containers": [
        {"name": "c", "resources": {"requests": {"memory": "10Mi"}}},
        {"name": "within", "resources": {"requests": {"memory": "10Mi"}}},
        {"name": "d"},
    ]});
    let p = pod_with("p", spec);
    let mut found = using(20 * MI, 1, space(5 * MI, 1));
    let named = |name: &str, memory: i64| ContainerUse {
        name: name.to_owned(),
        ..using(memory, 0, Space::default()).containers.remove(0)
    };
    found.containers.extend([named("within", 10 * MI), named("d", 1000), named("debugger", 9 * MI)]);
    let low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ";
    assert_eq!(message_of(&p, None, Resource::Memory), (low.to_owned(), Vec::new()));
    let (message, annotations) = message_of(&p, Some(&found), Resource::Memory);
    let c = "Container c was using 20Mi, request is 10Mi, has larger consumption of memory. ";
    let d = "Container d was using 1000, request is 0, has larger consumption of memory. ";
    assert_eq!(message, format!("{low}{c}{d}"));
    assert_eq!(
        annotations,
        ["offending_containers=c,d", "offending_containers_usage=20Mi,1000", "starved_resource=memory"]
    );
    let (message, _) = message_of(&p, Some(&found), Resource::EphemeralStorage);
    assert!(
        message.contains(
            "Container c was using 5Mi, request is 0, has larger consumption of ephemeral-storage. "
        ),
        "{message}"
    );
    let (message, annotations) = message_of(&p, Some(&found), Resource::Inodes);
    assert!(!message.contains("Container"), "{message}");
    assert_eq!(
        annotations,
        ["offending_containers=", "offending_containers_usage=", "starved_resource=inodes"]
    );
}

#[test]
fn a_pod_that_asks_as_a_whole_is_named_as_a_whole() {
    let spec = json!({"containers": [{"name": "x"}], "resources": {"requests": {"memory": "64Mi"}}});
    let (message, annotations) =
        message_of(&pod_with("p", spec), Some(&using(70 * MI, 1, Space::default())), Resource::Memory);
    assert!(
        message.ends_with("Pod p was using 70Mi, request is 64Mi, has larger consumption of memory. "),
        "{message}"
    );
    assert_eq!(annotations[..2], ["offending_containers=", "offending_containers_usage="]);
    assert_eq!(annotations[2..4], ["offending_pod=p", "offending_pod_usage=70Mi"]);
}

/// A pod, the layout, and the exceeded limit.
type Excessive<'a> = (Arc<Pod>, Layout, Option<(&'a str, &'a str)>);

#[test]
fn limits_of_storage() {
    use crate::eviction::local_storage::{excess, is_limited};
    let container = |limit: &str| json!({"name": "c", "resources": {"limits": {"ephemeral-storage": limit}}});
    let p = |volumes: Value, containers: Value| {
        pod_with("p", json!({"volumes": volumes, "containers": containers}))
    };
    let sized = |size: &str| json!([{"name": "v", "emptyDir": {"sizeLimit": size}}]);
    let bare = json!([{"name": "c"}]);
    let mut found = using(0, 0, space(6 * MI, 1));
    found.containers[0].logs = Some(space(3 * MI, 1));
    found.own_files = Some(space(MI, 1));
    found.volumes = vec![VolumeUse { name: "v".to_owned(), space: space(2 * MI, 1), ephemeral: true }];
    let images = Layout { dedicated_images: true, split_containers: false };
    let table: [Excessive<'_>; 8] = [
        (p(sized("2Mi"), bare.clone()), Layout::default(), None),
        (
            p(sized("1Mi"), bare.clone()),
            Layout::default(),
            Some(("emptydirfs.limit", "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ")),
        ),
        (p(sized("0"), bare), Layout::default(), None),
        (p(json!([]), json!([container("12Mi")])), Layout::default(), None),
        (
            p(json!([]), json!([container("11Mi")])),
            Layout::default(),
            Some((
                "ephemeralpodfs.limit",
                "Pod ephemeral local storage usage exceeds the total limit of containers 11Mi. ",
            )),
        ),
        (
            p(
                json!([]),
                json!([container("8Mi"), {"name": "d", "resources": {"limits": {"ephemeral-storage": "1G"}}}]),
            ),
            Layout::default(),
            Some((
                "ephemeralcontainerfs.limit",
                "Container c exceeded its local ephemeral storage limit \"8Mi\". ",
            )),
        ),
        (
            p(
                json!([]),
                json!([container("8Mi"), {"name": "d", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}]),
            ),
            images,
            None,
        ),
        (
            p(
                json!([]),
                json!([container("2M"), {"name": "d", "resources": {"limits": {"ephemeral-storage": "1G"}}}]),
            ),
            images,
            Some((
                "ephemeralcontainerfs.limit",
                "Container c exceeded its local ephemeral storage limit \"2M\". ",
            )),
        ),
    ];
    for (pod, layout, expected) in table {
        let got = excess(&pod, &found, layout);
        assert_eq!(got.as_ref().map(|(signal, message)| (*signal, message.as_str())), expected);
        assert!(got.is_none() || is_limited(&pod));
    }
    assert!(!is_limited(&pod_of("p", 0, &json!({"ephemeral-storage": "1Gi"}))), "a request is no limit");

    // An uncounted rest is more than any limit, and the message has the reason.
    let part = "Not all of its files could be counted, therefore the usage counts as more than any limit. ";
    found.volumes[0].space.bound = Bound::AtLeast;
    let huge = p(sized("1Ei"), json!([{"name": "c"}]));
    let (signal, message) = excess(&huge, &found, Layout::default()).unwrap();
    let words = format!("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ei\". {part}");
    assert_eq!((signal, message), ("emptydirfs.limit", words));
    let whole = p(json!([]), json!([container("1Ei")]));
    let (signal, message) = excess(&whole, &found, Layout::default()).unwrap();
    let words =
        format!("Pod ephemeral local storage usage exceeds the total limit of containers 1Ei. {part}");
    assert_eq!((signal, message), ("ephemeralpodfs.limit", words));
    assert_eq!(excess(&p(json!([]), json!([{"name": "c"}])), &found, Layout::default()), None, "no limit");
    // Last words are the pod's, too.
    found.volumes = Vec::new();
    found.own_files = Some(space(64 * MI, 1));
    assert_eq!(found.ephemeral().bytes, 73 * (1 << 20));
    let (signal, _) = excess(&p(json!([]), json!([container("72Mi")])), &found, Layout::default()).unwrap();
    assert_eq!(signal, "ephemeralpodfs.limit");
}
