//! Wires the driver of updates ([`crate::update`]) to the node.
//!
//! In: the slots, a node that has started. Out: tasks that run until the node stops.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_apiserver::ApiClient;
use agent_core::node_update::plan::{BASELINE_FILE, PLAN_FILE};
use agent_cri::CriClient;
use agent_types::lock::Lock;
use orlop_config::kubelet::KubeletConfiguration;
use orlop_config::node::derive::UPDATE_FILE;
use orlop_config::release::KEPT_DIR;
use orlop_update::service::protocol::SOCKET;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::calls::Caller;
use crate::process::begin::Process;
use crate::process::node::{Node, run_dir};
use crate::update::cluster_side::ClusterSide;
use crate::update::probe::ProbePod;
use crate::update::senses::{ClusterSenses, NodeSenses, follow_damage, mark_crash};
use crate::update::settings::{self, UpdateSettings};
use crate::update::slots::Slots;
use crate::update::worker::UpdateFiles;
use crate::update::{self, UpdatePaths, problems, words};

/// The API server's client, once the node has an identity.
type ClientReceiver = watch::Receiver<Option<Arc<ApiClient>>>;

/// Speaks for the agent to the guard of a trial until the driver does; ends with the token.
pub(super) fn speak_early(process: &Process) -> CancellationToken {
    let quiet = process.tasks.stop().child_token();
    let (ended, voice) = (quiet.clone(), words::speak_early(run_dir().to_owned(), process.tasks.clone()));
    process.tasks.start(async move {
        tokio::select! {
            // Both only wait; a word that is being written is written.
            () = ended.cancelled() => {}
            () = voice => {}
        }
    });
    quiet
}

/// Starts the driver. `crashed`: the last agent of this boot did not end in order.
pub(super) async fn start(
    slots: Slots,
    crashed: bool,
    client: Option<ClientReceiver>,
    process: &Process,
    node: &Node<CriClient, CriClient>,
) {
    let (kubelet, tasks) = (&process.settings.kubelet, &process.tasks);
    if crashed {
        mark_crash(run_dir().to_owned(), tasks).await;
    }
    let node_name: Arc<str> = process.node_name.as_str().into();
    let settings = UpdateSettings::new(&settings::read(Path::new(UPDATE_FILE)), client.is_some());
    let damage = Arc::<Lock<Option<String>>>::default();
    tasks.start(follow_damage(Arc::clone(&damage)));
    let static_pods = kubelet.static_pod_path.as_str();
    let can_probe = !static_pods.is_empty();
    let seen = client.clone().zip(node.shown_ready()).zip(node.lease_renewals());
    let senses = NodeSenses {
        runtime: node.runtime_state(),
        pleg: node.health(),
        desired: node.desired(),
        statuses: node.statuses().subscribe(),
        active: node.active_pods(),
        own_api: own_api(kubelet),
        cluster: seen.map(|((client, ready), renewals)| {
            let node_name = Arc::clone(&node_name);
            ClusterSenses { client, ready, renewals, node_name }
        }),
        probe: can_probe.then(|| ProbePod::new(Path::new(static_pods))),
        run_dir: run_dir().to_owned(),
        damage,
        tasks: tasks.clone(),
    };
    let cluster = client.zip(node.object()).map(|(client, object)| ClusterSide {
        caller: Caller::new(tasks.clone(), client),
        node_name,
        node: object,
        patched: Lock::default(),
        group: settings.group.clone(),
    });
    let files = UpdateFiles { plan: PLAN_FILE.into(), baseline: BASELINE_FILE.into() };
    let (words, kept) = (PathBuf::from(words::DIRECTORY), PathBuf::from(KEPT_DIR));
    let problems = run_dir().join(problems::FILE);
    let paths = UpdatePaths { files, words, problems, updater: SOCKET.into(), kept };
    update::start(update::Deps {
        settings,
        slots,
        cluster,
        senses: Arc::new(senses),
        can_probe,
        desired: node.desired(),
        active: node.active_pods(),
        statuses: node.statuses().subscribe(),
        node_events: node.node_events(),
        host: process.host.clone(),
        reboot: update::reboot_by_logind(),
        paths,
        tasks: tasks.clone(),
    });
}

/// Where the node's own API listens; `None` if it does not.
fn own_api(kubelet: &KubeletConfiguration) -> Option<SocketAddr> {
    let port = u16::try_from(kubelet.port).ok().filter(|port| kubelet.enable_server && *port > 0)?;
    let address = match kubelet.address.parse::<IpAddr>().ok()? {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    Some(SocketAddr::new(address, port))
}
