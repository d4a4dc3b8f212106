//! The senses of a standalone node, and of files.

use agent_types::ids::PodKey;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::pods::status::PodView;
use crate::testing::VirtualClock;

fn pod(name: &str) -> Pod {
    let annotations = json!({"kubernetes.io/config.source": "file"});
    serde_json::from_value(
        json!({"metadata": {"namespace": "kube-system", "name": name, "annotations": annotations}}),
    )
    .expect("a pod")
}

/// A standalone node with one static pod that is ready, and the probe pod.
fn senses(run_dir: &Path, own_api: SocketAddr) -> NodeSenses {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let state = RuntimeState { runtime: Ok(()), network: Ok(()), handlers: Vec::new() };
    let names = [("u", "etcd-n"), ("p", "orlop-update-probe-n")];
    let desired = names.map(|(uid, name)| (PodUid::from(uid), Arc::new(pod(name))));
    let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let status: Arc<PodStatus> = Arc::new(serde_json::from_value(status).expect("a status"));
    let key = PodKey { namespace: "kube-system".into(), name: "etcd-n".into(), uid: PodUid::from("u") };
    let statuses = PodViews::from([(PodUid::from("u"), PodView { key, status })]);
    NodeSenses {
        runtime: watch::channel(state).1,
        pleg: watch::channel(Err("it relists no more".to_owned())).1,
        desired: watch::channel(DesiredPods::from(desired)).1,
        statuses: watch::channel(statuses).1,
        active: watch::channel(ActivePods { synced: true, ..ActivePods::default() }).1,
        own_api: Some(own_api),
        cluster: None,
        probe: None,
        run_dir: run_dir.to_owned(),
        damage: Arc::default(),
        tasks,
    }
}

#[tokio::test]
async fn a_standalone_node_sees_itself_only() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let senses = senses(dir.path(), listener.local_addr().unwrap());
    std::fs::write(dir.path().join("degraded"), "no readable ext4\n").unwrap();
    let facts = senses.facts(true).await;
    let red = |words: &str| Some(CheckSeen::Red(words.to_owned()));
    let check = |check: CheckName| facts.checks.get(&check).cloned();
    assert_eq!(check(CheckName::StatePartition), red("no readable ext4"));
    assert_eq!(check(CheckName::Runtime), red("it relists no more"));
    assert_eq!(check(CheckName::NodeApi), Some(CheckSeen::Green));
    for absent in
        [CheckName::Api, CheckName::Certificate, CheckName::Lease, CheckName::ProbePod, CheckName::Dns]
    {
        assert_eq!(check(absent), None, "{absent}");
    }
    assert_eq!(facts.api_pods, None);
    let names: Vec<&str> = facts.static_pods.values().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["kube-system/etcd-n"], "the probe is none of the node's pods");
    assert_eq!(facts.static_pods["kube-system/etcd-n"].seen, CheckSeen::Green);
}

#[tokio::test]
async fn damage_and_crashes_of_this_boot_are_red() {
    let dir = tempfile::tempdir().unwrap();
    let senses = senses(dir.path(), SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    std::fs::create_dir(dir.path().join("trial")).unwrap();
    mark_crash(dir.path().to_owned(), &senses.tasks).await;
    let integrity = |facts: &GateFacts| facts.checks[&CheckName::Integrity].clone();
    let crashed = senses.facts(false).await;
    let words = CheckSeen::Red("the node agent has crashed in this boot".to_owned());
    // The machine of this test may have had an oops of its own.
    if !has_oops(&std::fs::read_to_string("/proc/sys/kernel/tainted").unwrap_or_default()) {
        assert_eq!(integrity(&crashed), words);
    }
    *senses.damage.lock() = Some("data block 7 is corrupted".to_owned());
    let damaged = senses.facts(false).await;
    assert_eq!(integrity(&damaged), CheckSeen::Red("data block 7 is corrupted".to_owned()));
    assert!(matches!(damaged.checks[&CheckName::NodeApi], CheckSeen::Red(_)), "nobody listens there");
}

#[test]
fn only_cards_have_a_carrier_that_counts() {
    let dir = tempfile::tempdir().unwrap();
    let interface = |name: &str, carrier: &str, has_device: bool| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("carrier"), carrier).unwrap();
        if has_device {
            std::fs::create_dir_all(path.join("device")).unwrap();
        }
    };
    assert!(!has_carrier(dir.path()));
    interface("cni0", "1\n", false);
    interface("ens3", "0\n", true);
    assert!(!has_carrier(dir.path()));
    interface("ens3", "1\n", true);
    assert!(has_carrier(dir.path()));
}
