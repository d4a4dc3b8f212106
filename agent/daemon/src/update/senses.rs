//! What the node sees of itself and of its cluster: the facts of the gate.
//!
//! In: views of other owners, files of the kernel, connections of its own. Out: [`GateFacts`]. Decisions are those of
//! [`agent_core::node_update::gate`]. Invariants: facts come within [`LOOK_MAX`] even if disk, network or API server hang; nothing is
//! asked for in the heartbeat's lane; a fact that cannot be had on this kind of node is left out, and does not count.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agent_apiserver::ApiClient;
use agent_core::node_update::check::{CheckName, CheckSeen, GateFacts};
use agent_core::node_update::facts::{gate_pod, gateway, has_answered, has_oops, is_writable, verity_error};
use agent_linux::kernel_log::{self, KernelLog};
use agent_linux::network::node_addresses;
use agent_types::api::{ApiCall, ApiServer, ObjectName};
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::pod::is_static;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

use super::probe::{ProbePod, is_probe};
use crate::cluster::clock::SYNCHRONIZED;
use crate::pods::desired_pods::{ActivePods, DesiredPods};
use crate::pods::pod_dirs::chain;
use crate::pods::status::PodViews;
use crate::runtime::runtime_state::RuntimeState;
use crate::tasks::actor::Tasks;

/// Facts are there after this, whatever hangs.
pub const LOOK_MAX: Duration = Duration::from_secs(30);
/// A question to the machine, a name server or the node's own API has so long.
const ASK_MAX: Duration = Duration::from_secs(5);
/// Renewals of the lease that show a heartbeat.
const RENEWALS: u32 = 3;
/// Name servers that are asked.
const SERVERS_MAX: usize = 3;
/// Looks for the gateway's answer, one each second: a baseline has one try, and nobody may have sent anything there for a while.
const GATEWAY_LOOKS: u32 = 4;
/// A question for the name servers of the root, as DNS has it: any answer will do.
const QUESTION: [u8; 17] = [0x4f, 0x4c, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
/// Leaves a mark of an agent that has crashed in this boot.
const CRASHED: &str = "agent-crashed";

/// Collects facts.
pub trait GateSenses: Send + Sync + 'static {
    /// The facts as they are now; `probes`: with a probe pod.
    fn facts(&self, probes: bool) -> BoxFuture<'_, GateFacts>;

    /// The gate is not asked any more.
    fn rest(&self) -> BoxFuture<'_, ()>;
}

/// What the cluster's part of the agent shows.
pub struct ClusterSenses {
    /// The API server; none before the node has an identity.
    pub client: watch::Receiver<Option<Arc<ApiClient>>>,
    /// Whether the API server shows the node as ready.
    pub ready: watch::Receiver<bool>,
    /// Renewals of the lease since the agent began.
    pub renewals: Arc<AtomicU32>,
    /// Name of the Node.
    pub node_name: Arc<str>,
}

/// The senses of a node.
pub struct NodeSenses {
    /// The runtime's last status.
    pub runtime: watch::Receiver<RuntimeState>,
    /// Whether PLEG is healthy.
    pub pleg: watch::Receiver<Result<(), String>>,
    /// The pods that the node wants.
    pub desired: watch::Receiver<DesiredPods>,
    /// Pods' statuses.
    pub statuses: watch::Receiver<PodViews>,
    /// Whether all sources were read.
    pub active: watch::Receiver<ActivePods>,
    /// The node's own API; none if it does not listen.
    pub own_api: Option<SocketAddr>,
    /// None on a standalone node.
    pub cluster: Option<ClusterSenses>,
    /// None on a node without static pods.
    pub probe: Option<ProbePod>,
    /// Directory of init's run-time state.
    pub run_dir: PathBuf,
    /// What the kernel has said about damage of the root in this boot.
    pub damage: Arc<Lock<Option<String>>>,
    /// The node's tasks.
    pub tasks: Tasks,
}

type Checks = BTreeMap<CheckName, CheckSeen>;

fn seen(result: Result<(), String>) -> CheckSeen {
    result.map_or_else(CheckSeen::Red, |()| CheckSeen::Green)
}

fn ok_or(is: bool, words: &str) -> Result<(), String> {
    if is { Ok(()) } else { Err(words.to_owned()) }
}

impl GateSenses for NodeSenses {
    fn facts(&self, probes: bool) -> BoxFuture<'_, GateFacts> {
        async move {
            let mut facts = self.pods();
            let (machine, network, api, probe) = tokio::join!(
                within(self.machine().boxed(), CheckName::StatePartition),
                within(self.network().boxed(), CheckName::NodeApi),
                timeout(LOOK_MAX, self.api()),
                within(self.probed(probes).boxed(), CheckName::ProbePod),
            );
            // What was not seen of the API server counts as its absence.
            let (api, certificate) = api.unwrap_or_default();
            facts.checks.insert(CheckName::Runtime, self.runtime());
            facts.checks.extend([self.views(), machine, network, api, probe].into_iter().flatten());
            facts.api_certificate = certificate;
            facts
        }
        .boxed()
    }

    fn rest(&self) -> BoxFuture<'_, ()> {
        async move {
            if let Some(probe) = &self.probe {
                probe.remove(&self.tasks).await;
            }
        }
        .boxed()
    }
}

/// A part of the facts; a part that hangs blames this check.
async fn within(part: BoxFuture<'_, Checks>, blames: CheckName) -> Checks {
    timeout(LOOK_MAX, part).await.unwrap_or_else(|_| {
        let words = format!("no answer within {} s", LOOK_MAX.as_secs());
        Checks::from([(blames, CheckSeen::Red(words))])
    })
}

impl NodeSenses {
    fn pods(&self) -> GateFacts {
        let desired = self.desired.borrow().clone();
        let statuses = self.statuses.borrow().clone();
        let all = |counts: fn(&Pod) -> bool| {
            let pods = desired.iter().filter(|(_, pod)| counts(pod));
            let fact = |(uid, pod): (&PodUid, &Arc<Pod>)| {
                let seen = gate_pod(pod, statuses.get(uid).map(|view| &*view.status));
                // Another version of the agent may make another UID of the same manifest.
                (if is_static(pod) { seen.name.clone() } else { uid.to_string() }, seen)
            };
            pods.map(fact).collect::<BTreeMap<_, _>>()
        };
        let has_listed = self.cluster.is_some() && self.active.borrow().synced;
        GateFacts {
            static_pods: all(|pod| is_static(pod) && !is_probe(pod)),
            api_pods: has_listed
                .then(|| all(|pod| !is_static(pod) && pod.metadata.deletion_timestamp.is_none())),
            ..GateFacts::default()
        }
    }

    fn runtime(&self) -> CheckSeen {
        let runtime = self.runtime.borrow().runtime.clone();
        seen(runtime.and_then(|()| self.pleg.borrow().clone()))
    }

    /// State partition, integrity, link, address, clock: what files of the kernel and of init say.
    async fn machine(&self) -> Checks {
        let (run_dir, damage) = (self.run_dir.clone(), self.damage.lock().clone());
        let looked = self.tasks.blocking(move || {
            let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
            let degraded = std::fs::read_to_string(run_dir.join("degraded")).ok();
            let state = match degraded {
                Some(reason) => Err(reason.trim().to_owned()),
                None => ok_or(
                    is_writable(&read("/proc/self/mounts"), "/var").unwrap_or(true),
                    "the kernel has made /var read-only after an error of its file system",
                ),
            };
            let oops = ok_or(!has_oops(&read("/proc/sys/kernel/tainted")), "the kernel has had an oops");
            let crashed = ok_or(
                !run_dir.join("trial").join(CRASHED).exists(),
                "the node agent has crashed in this boot",
            );
            let integrity = damage.map_or(Ok(()), Err).and(oops).and(crashed);
            let link = ok_or(has_carrier(Path::new("/sys/class/net")), "no network interface has a carrier");
            let address = ok_or(!node_addresses().is_empty(), "the node has no address");
            let clock = ok_or(Path::new(SYNCHRONIZED).exists(), "no time server has set the clock");
            Checks::from([
                (CheckName::StatePartition, seen(state)),
                (CheckName::Integrity, seen(integrity)),
                (CheckName::Link, seen(link)),
                (CheckName::Address, seen(address)),
                (CheckName::Clock, seen(clock)),
            ])
        });
        looked.await.unwrap_or_default()
    }

    /// Gateway, name servers, the node's own API.
    async fn network(&self) -> Checks {
        let (gateway, dns, own) = tokio::join!(self.gateway(), self.name_servers(), self.own_api());
        let checks = [(CheckName::Gateway, gateway), (CheckName::Dns, dns), (CheckName::NodeApi, own)];
        checks.into_iter().filter_map(|(check, result)| Some((check, seen(result?)))).collect()
    }

    async fn own_api(&self) -> Option<Result<(), String>> {
        let address = self.own_api?;
        let words = match timeout(ASK_MAX, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Some(Ok(())),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", ASK_MAX.as_secs()),
        };
        Some(Err(format!("port {} of the node: {words}", address.port())))
    }

    /// The IPv4 gateway; the kernel asks for its hardware address when something is sent to it.
    async fn gateway(&self) -> Option<Result<(), String>> {
        let read =
            |path: &'static str| async move { tokio::fs::read_to_string(path).await.unwrap_or_default() };
        let gateway = gateway(&read("/proc/net/route").await)?;
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await {
            // Port 9 discards it.
            let _ = socket.send_to(&[0], (gateway, 9)).await;
        }
        let mut answers = has_answered(&read("/proc/net/arp").await, gateway);
        for _ in 1..GATEWAY_LOOKS {
            if answers {
                break;
            }
            self.tasks.wait_until(self.tasks.now().mono.after(Duration::from_secs(1))).await;
            answers = has_answered(&read("/proc/net/arp").await, gateway);
        }
        Some(ok_or(answers, &format!("the gateway {gateway} does not answer")))
    }

    async fn name_servers(&self) -> Option<Result<(), String>> {
        let text = tokio::fs::read_to_string(self.run_dir.join("resolv.conf")).await.unwrap_or_default();
        let servers = text.lines().filter_map(|line| line.strip_prefix("nameserver ")?.trim().parse().ok());
        let servers: Vec<IpAddr> = servers.take(SERVERS_MAX).collect();
        if servers.is_empty() {
            return None;
        }
        let asked = servers.iter().map(|server| answers_names(*server));
        let answers = futures_util::future::join_all(asked).await;
        let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
        let words = format!("no name server answers: {}", names.join(", "));
        Some(ok_or(answers.contains(&true), &words))
    }

    /// What the cluster's part of the agent shows.
    fn views(&self) -> Checks {
        let Some(cluster) = &self.cluster else { return Checks::new() };
        let renewals = cluster.renewals.load(Ordering::Relaxed);
        let renewed = ok_or(renewals >= RENEWALS, &format!("the lease was renewed {renewals} times"));
        let has_identity = cluster.client.borrow().is_some();
        let identity = ok_or(has_identity, "the node has no client certificate yet");
        let is_shown = *cluster.ready.borrow();
        let ready = ok_or(is_shown, "the API server does not show the node as ready");
        Checks::from([
            (CheckName::Certificate, seen(identity)),
            (CheckName::Lease, seen(renewed)),
            (CheckName::NodeReady, seen(ready)),
        ])
    }

    /// The API server as the node sees it, and the digest of its certificate.
    async fn api(&self) -> (Checks, Option<String>) {
        let Some(cluster) = &self.cluster else { return Default::default() };
        let client = cluster.client.borrow().clone();
        let Some(client) = client else { return Default::default() };
        let mut checks = Checks::new();
        // It lists at most one pod, in the general lane.
        let probe = ApiCall::FindPod {
            pod: ObjectName { namespace: "kube-system".into(), name: "orlop-update-probe".into() },
            node: Arc::clone(&cluster.node_name),
        };
        let (reach, asked) = tokio::join!(client.reach(), client.call(&probe));
        checks.insert(CheckName::Api, seen(reach.connected));
        if let Some(trusted) = reach.trusted {
            checks.insert(CheckName::ApiTrust, seen(trusted));
        }
        let identity = match asked {
            Ok(_) => Ok(()),
            Err(error) if error.class == Class::NotFound => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        checks.insert(CheckName::ApiIdentity, seen(identity));
        (checks, reach.certificate)
    }

    async fn probed(&self, probes: bool) -> Checks {
        let Some(probe) = self.probe.as_ref().filter(|_| probes) else { return Checks::new() };
        let (desired, statuses) = (self.desired.borrow().clone(), self.statuses.borrow().clone());
        Checks::from([(CheckName::ProbePod, probe.look(&desired, &statuses, &self.tasks).await)])
    }
}

/// Does a network card have a carrier? Bridges and pods' ends have no device behind them.
fn has_carrier(class: &Path) -> bool {
    let cards = std::fs::read_dir(class).into_iter().flatten().flatten();
    let mut cards = cards.map(|entry| entry.path()).filter(|path| path.join("device").exists());
    cards.any(|path| std::fs::read_to_string(path.join("carrier")).is_ok_and(|text| text.trim() == "1"))
}

async fn answers_names(server: IpAddr) -> bool {
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let ask = async {
        let socket = UdpSocket::bind((any, 0)).await.ok()?;
        socket.connect((server, 53)).await.ok()?;
        socket.send(&QUESTION).await.ok()?;
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).await.ok()?;
        answer[..length].starts_with(&QUESTION[..2]).then_some(())
    };
    matches!(timeout(ASK_MAX, ask).await, Ok(Some(())))
}

/// Follows the kernel's log, from this boot's beginning on, for damage of the root.
pub async fn follow_damage(damage: Arc<Lock<Option<String>>>) {
    let mut log = match KernelLog::open_whole(Path::new(kernel_log::PATH)) {
        Ok(log) => log,
        Err(error) => {
            tracing::warn!(error = chain(&error), "damage of the root is not looked for");
            return;
        }
    };
    loop {
        match log.next().await {
            Ok(record) => {
                if let Some(words) = verity_error(&record) {
                    damage.lock().get_or_insert(words);
                }
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "damage of the root is not looked for any more");
                return;
            }
        }
    }
}

/// In a boot on trial, leaves a mark that an agent has crashed, for all agents of this boot.
pub async fn mark_crash(run_dir: PathBuf, tasks: &Tasks) {
    let mark = run_dir.join("trial").join(CRASHED);
    // In any other boot there is no such directory, and nobody looks.
    let _ = tasks.blocking(move || std::fs::write(mark, "")).await;
}

#[cfg(test)]
#[path = "senses_tests.rs"]
mod tests;
