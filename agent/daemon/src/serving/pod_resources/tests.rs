//! Over the socket, with a client of each version.

use std::collections::BTreeMap;

use agent_core::resource_claims::api::{ClaimView, ClaimedDevice};
use agent_linux::clock::Clock;
use agent_managers::node_mask::NodeMask;
use agent_types::time::{Mono, Now, Wall};
use orlop_proto::pod_resources::v1::pod_resources_lister_client::PodResourcesListerClient as V1;
use orlop_proto::pod_resources::v1alpha1::pod_resources_lister_client::PodResourcesListerClient as V1alpha1;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use super::*;

/// A clock that stands still.
struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> Now {
        Now { mono: Mono(5_000_000_000), wall: Wall(1_700_000_000_000_000_000) }
    }
}

struct Served {
    root: tempfile::TempDir,
    active: watch::Sender<ActivePods>,
    metrics: Metrics,
    tasks: Tasks,
}

fn pod(name: &str) -> Arc<Pod> {
    let spec = json!({"initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "ends"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
        "containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}]});
    let metadata = json!({"name": name, "namespace": "ns", "uid": name});
    Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

/// Container `c` of pod `a` has two processors and some memory for itself.
fn assignments() -> ResourcesView {
    let cpus: CpuSet = [2, 6].into_iter().collect();
    let part = MemoryPart { resource: "memory".to_owned(), bytes: 64 << 20, nodes: NodeMask::of([0, 1]) };
    ResourcesView {
        allocatable_cpus: [1, 2, 5, 6].into_iter().collect(),
        cpus: BTreeMap::from([("a".to_owned(), BTreeMap::from([("c".to_owned(), cpus)]))]),
        allocatable_memory: vec![MemoryPart { nodes: NodeMask::of([1]), ..part.clone() }],
        memory: BTreeMap::from([("a".to_owned(), BTreeMap::from([("c".to_owned(), vec![part])]))]),
        ..ResourcesView::default()
    }
}

/// Claim `shared` of pod `a` has a device.
fn claims() -> ClaimsView {
    let device = ClaimedDevice { pool: "n1".to_owned(), device: "d0".to_owned(), ..ClaimedDevice::default() };
    let devices = [("gpu.example.com".to_owned(), vec![device])].into();
    let claim = ClaimView { pods: ["a".into()].into(), devices };
    ClaimsView { claims: [(("ns".to_owned(), "shared".to_owned()), claim)].into(), ..ClaimsView::default() }
}

async fn serve() -> Served {
    let root = tempfile::tempdir().unwrap();
    let tasks = Tasks::new(Arc::new(StoppedClock), CancellationToken::new());
    let metrics = Metrics::new(Arc::new(StoppedClock));
    let pods: DesiredPods = ["a", "b"].into_iter().map(|name| (name.into(), pod(name))).collect();
    let (active, active_view) =
        watch::channel(ActivePods { uids: pods.keys().cloned().collect(), synced: true });
    let shown = PodResourceViews {
        desired: watch::channel(pods).1,
        active: active_view,
        resources: watch::channel(Arc::new(assignments())).1,
        claims: Arc::new(|| Arc::new(claims())),
    };
    let resources = PodResources {
        shown,
        metrics: metrics.clone(),
        active_only: true,
        extended_claims: true,
        limit: Arc::default(),
        tasks: tasks.clone(),
    };
    // What a process that was killed has left.
    let dir = root.path().join("pod-resources");
    std::fs::create_dir(&dir).unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.join("kubelet.sock")).unwrap());
    resources.start(root.path()).await;
    Served { root, active, metrics, tasks }
}

impl Served {
    fn endpoint(&self) -> Endpoint {
        let socket = self.root.path().join("pod-resources/kubelet.sock");
        Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap()
    }

    fn end(&self, name: &str) {
        self.active.send_modify(|active| active.uids.retain(|uid| uid.as_str() != name));
    }
}

fn names(answer: v1::ListPodResourcesResponse) -> BTreeMap<String, Vec<String>> {
    let pods = answer.pod_resources.into_iter();
    pods.map(|p| (p.name, p.containers.into_iter().map(|c| c.name).collect())).collect()
}

#[tokio::test]
async fn pods_and_containers_are_told_of_until_they_end() {
    let served = serve().await;
    let mut client = V1::connect(served.endpoint()).await.unwrap();
    let list = client.list(v1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    let containers = vec!["side".to_owned(), "c".to_owned()];
    let expected = [("a".to_owned(), containers.clone()), ("b".to_owned(), containers)];
    let c = list.pod_resources.iter().find(|p| p.name == "a").unwrap().containers[1].clone();
    assert_eq!(
        (c.cpu_ids, c.memory[0].memory_type.as_str(), c.memory[0].size),
        (vec![2, 6], "memory", 64 << 20)
    );
    assert_eq!(c.memory[0].topology.clone().unwrap().nodes.len(), 2);
    let [claim] = &c.dynamic_resources[..] else { panic!("{:?}", c.dynamic_resources) };
    assert_eq!((claim.claim_name.as_str(), claim.claim_resources[0].device_name.as_str()), ("shared", "d0"));
    assert_eq!(names(list), expected.into());
    served.end("a");
    let list = client.list(v1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(names(list).into_keys().collect::<Vec<_>>(), ["b"]);
    let of =
        |name: &str| v1::GetPodResourcesRequest { pod_name: name.to_owned(), pod_namespace: "ns".to_owned() };
    let b = client.get(of("b")).await.unwrap().into_inner().pod_resources.unwrap();
    assert_eq!((b.namespace.as_str(), b.containers.len(), b.containers[0].devices.len()), ("ns", 2, 0));
    assert_eq!(b.containers[1].dynamic_resources, [], "the claim is not prepared for it");
    let gone = client.get(of("a")).await.unwrap_err();
    assert_eq!((gone.code(), gone.message()), (Code::Unknown, "pod a in namespace ns not found"));
    let all =
        client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!((all.cpu_ids, all.memory.len(), all.devices.len()), (vec![1, 2, 5, 6], 1, 0));
    let nodes = all.memory[0].topology.clone().unwrap().nodes;
    assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [1]);
    let mut old = V1alpha1::connect(served.endpoint()).await.unwrap();
    let all = old.list(v1alpha1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(all.pod_resources.len(), 2, "ended ones too");
    assert_eq!(all.pod_resources[0].containers[0].name, "c");
    let text = served.metrics.text_without_pods();
    for line in [
        "endpoint_requests_total{server_api_version=\"v1\"} 5",
        "endpoint_requests_total{server_api_version=\"v1alpha1\"} 1",
        "endpoint_requests_list{server_api_version=\"v1\"} 2",
        "endpoint_requests_get{server_api_version=\"v1\"} 2",
        "endpoint_errors_get{server_api_version=\"v1\"} 1",
        "endpoint_requests_get_allocatable{server_api_version=\"v1\"} 1",
    ] {
        assert!(text.contains(&format!("\nkubelet_pod_resources_{line}\n")), "{line}:\n{text}");
    }
    served.tasks.stop().cancel();
}

#[tokio::test]
async fn who_asks_without_end_is_refused() {
    let served = serve().await;
    let mut client = V1::connect(served.endpoint()).await.unwrap();
    let mut refused = Vec::new();
    for _ in 0..13 {
        refused.extend(client.list(v1::ListPodResourcesRequest {}).await.err());
    }
    assert_eq!(refused.len(), 3, "the clock stands still");
    for status in refused {
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "rejected by rate limit"));
    }
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pod-resources");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("kubelet.sock"), "mine").unwrap();
    let error = make_way(&dir.join("kubelet.sock")).unwrap_err();
    assert_eq!(error.to_string(), "something else is there; remove it");
    assert_eq!(std::fs::read(dir.join("kubelet.sock")).unwrap(), b"mine");
}

#[test]
fn a_device_has_an_entry_for_each_of_its_nodes() {
    let nodes = |ids: &[i64]| ids.iter().copied().collect::<std::collections::BTreeSet<i64>>();
    let ids = BTreeMap::from([("a".to_owned(), nodes(&[])), ("b".to_owned(), nodes(&[0, 1]))]);
    let entries = devices(&BTreeMap::from([("x.io/gpu".to_owned(), ids)]));
    let shown = |entry: &v1::ContainerDevices| {
        let node = entry.topology.as_ref().map(|topology| topology.nodes[0].id);
        (entry.resource_name.clone(), entry.device_ids.join(","), node)
    };
    let one = |id: &str, node| ("x.io/gpu".to_owned(), id.to_owned(), node);
    let expected = [one("a", None), one("b", Some(0)), one("b", Some(1))];
    assert_eq!(entries.iter().map(shown).collect::<Vec<_>>(), expected);
}
