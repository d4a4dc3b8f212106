//! The agent and containerd are killed every few seconds while pods of many kinds come and go.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, human};
use orlop_harness::cluster::crowd::{KINDS, Kind, OBJECTS, PodOutcome, statuses};
use orlop_harness::cluster::fixture::Joined;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::truth::{Instances, Truth};
use orlop_harness::native::cri::View;
use orlop_harness::native::held::{HostLeftovers, forgive_lost_tasks, leftovers_text};
use orlop_harness::native::node::NativeNode;
use orlop_harness::rng::Rng;
use orlop_harness::say;
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "lifecycle/churn",
    100,
    "kill -9 of the agent and of containerd under 50 pods that come and go: nothing restarted, doubled or left",
    churn,
)];

/// Duration of the kills, seconds.
const CHURN_VARIABLE: &str = "ORLOP_E2E_CHURN_S";
const CHURN_S: u64 = 60;
/// Pods that share a shim; without it each pod has its own.
const SHIMS_VARIABLE: &str = "ORLOP_E2E_PODS_PER_SHIM";
const NODE: &str = "churned";
const PODS: u32 = 50;
/// When all is as wanted after the last kill, seconds: nothing may wait for a call that a dead containerd will not answer.
const REST_S: u64 = 120;
/// How long a lost shim may stay, seconds: the agent looks once a minute, and after 10 s again, once for the shim's
/// children and once for the shim; the rest is for the work itself.
const LOST_SHIMS_S: u64 = 100;
/// The first pods, one of each kind, are there before the first kill and stay to the end.
const STABLE: u32 = 16;
/// The agent waits 5 s after a crash before it makes anything: some pauses must be longer.
const PAUSE_MS_MAX: u32 = 9000;

fn churn(cx: &mut CaseContext<'_>) -> Result<()> {
    let seconds = std::env::var(CHURN_VARIABLE).map_or(Ok(CHURN_S), |s| s.parse());
    let seconds = seconds.with_context(|| format!("{CHURN_VARIABLE} is a number of seconds"))?;
    let pods_per_shim = std::env::var(SHIMS_VARIABLE).map_or(Ok(1_u32), |pods| pods.parse());
    let pods_per_shim = pods_per_shim.with_context(|| format!("{SHIMS_VARIABLE} is a number of pods"))?;
    let joined = Joined::start_sharing(&cx.run, &cx.artefacts, Settings::default(), &[NODE], pods_per_shim)?;
    let before = HostLeftovers::by(&joined.nodes[0])?;
    let truth = Truth::start(joined.cluster.client());
    let mut crowd = Crowd::begin(joined, cx.seed, PODS)?;
    let ids = crowd.stable_ids()?;
    crowd.node().forget_a_shim()?;
    let told = crowd.storm(Duration::from_secs(seconds))?;
    let start = Instant::now();
    crowd.at_rest()?;
    let rest = human(start.elapsed());
    ensure!(crowd.stable_ids()? == ids, "what ran before the first kill does not run any more: {ids:?}");
    truth.ensure()?;
    let start = Instant::now();
    let lost = crowd.end(&before)?;
    truth.ensure()?;
    if lost.shims == 0 {
        let node = crowd.node();
        // The shim may end before the agent logs this.
        if await_ended_shim(node, 10).is_err() {
            // The shim ended without the agent (seen once on a busy host, for an unknown reason): repeat with another
            // shim and without kills.
            node.forget_a_shim()?;
            await_ended_shim(node, LOST_SHIMS_S)?;
        }
    }
    say::line(format!("  {told}; all as wanted after {rest}, nothing left after {}", human(start.elapsed())));
    lost.say();
    Ok(())
}

/// Resources that the runtime has lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuntimeLeak {
    /// Tasks whose cgroups stay: the death of the agent or of containerd cut off their starts.
    tasks: usize,
    /// Shims that the agent has ended.
    shims: usize,
}

impl RuntimeLeak {
    pub(crate) fn say(self) {
        if self.tasks + self.shims > 0 {
            let RuntimeLeak { tasks, shims } = self;
            say::line(format!(
                "  containerd forgot {tasks} tasks; the agent ended {shims} shims that it had forgotten"
            ));
        }
    }
}

/// Pods of many kinds on one node, the first of the fixture.
pub(crate) struct Crowd {
    pub(crate) joined: Joined,
    pub(crate) rng: Rng,
    pods: u32,
    /// Names and kinds of the pods that must exist.
    wanted: BTreeMap<String, Kind>,
    seen: Instances,
}

fn name_of(n: u32) -> String {
    format!("crowd-{n:02}")
}

fn one_of_each(n: u32) -> Kind {
    KINDS[n as usize % KINDS.len()]
}

impl Crowd {
    pub(crate) fn node(&mut self) -> &mut NativeNode {
        &mut self.joined.nodes[0]
    }

    /// Makes so many pods, at least one of each kind, and waits until all are as they should be.
    pub(crate) fn begin(joined: Joined, seed: u64, pods: u32) -> Result<Crowd> {
        let mut crowd =
            Crowd { joined, rng: Rng::new(seed), pods, wanted: BTreeMap::new(), seen: Instances::default() };
        crowd.fill()?;
        Ok(crowd)
    }

    fn fill(&mut self) -> Result<()> {
        let client = self.joined.cluster.client();
        client.create::<ConfigMap>(
            &client.of("default"),
            json!({"metadata": {"name": OBJECTS}, "data": {"k": "v"}}),
        )?;
        client.create::<Secret>(
            &client.of("default"),
            json!({"metadata": {"name": OBJECTS}, "stringData": {"k": "v"}}),
        )?;
        for n in 0..self.pods {
            self.create(&name_of(n), one_of_each(n))?;
        }
        self.await_settled(180)
    }

    fn create(&mut self, name: &str, kind: Kind) -> Result<()> {
        let client = self.joined.cluster.client();
        client.create::<Pod>(&client.of("default"), kind.pod(name, self.joined.nodes[0].name()))?;
        self.wanted.insert(name.to_owned(), kind);
        Ok(())
    }

    /// Creates or deletes one pod; skips a name whose last pod is not gone yet.
    pub(crate) fn toggle(&mut self) -> Result<()> {
        let name = name_of(STABLE + self.rng.below(self.pods - STABLE));
        let grace = [None, None, Some(0), Some(1)][self.rng.below(4) as usize];
        let kind = one_of_each(self.rng.below(STABLE));
        let client = self.joined.cluster.client();
        let api = client.of::<Pod>("default");
        if self.wanted.remove(&name).is_some() {
            return client.delete(&api, &name, grace);
        }
        if client.get(&api, &name)?.is_some() {
            return Ok(());
        }
        self.create(&name, kind)
    }

    /// Kills and changes for a while; returns the numbers of both.
    fn storm(&mut self, length: Duration) -> Result<String> {
        let (mut agents, mut runtimes, mut changes) = (0, 0, 0);
        let end = Instant::now() + length;
        while Instant::now() < end {
            let some = 1 + self.rng.below(6);
            for _ in 0..some {
                self.toggle()?;
            }
            changes += some;
            let pause = Duration::from_millis(u64::from(self.rng.below(PAUSE_MS_MAX)));
            self.node().pass(pause)?;
            self.look()?;
            // One of them, both in either order, with a moment in between or without.
            let (agent, runtime) =
                [(true, false), (true, false), (false, true), (true, true)][self.rng.below(4) as usize];
            let down = Duration::from_millis(u64::from(self.rng.below(1500)));
            if agent {
                self.node().kill_agent()?;
                agents += 1;
            }
            if runtime {
                self.node().kill_containerd()?;
                runtimes += 1;
            }
            // The agent must also find changes of the time in which it was dead.
            self.toggle()?;
            changes += 1;
            self.node().pass(down)?;
            let agent_first = self.rng.below(2) == 0;
            if agent && agent_first {
                start_kubelet(self.node(), JoinMethod::BootstrapKubeconfig)?;
            }
            if runtime {
                self.node().start_containerd()?;
            }
            if agent && !agent_first {
                start_kubelet(self.node(), JoinMethod::BootstrapKubeconfig)?;
            }
            self.look()?;
        }
        Ok(format!(
            "agent killed {agents} times, containerd {runtimes} times, {changes} pods made or deleted in {}",
            human(length)
        ))
    }

    pub(crate) fn look(&mut self) -> Result<()> {
        let view = self.joined.nodes[0].cri().view()?;
        self.seen.judge(&view)
    }

    fn await_settled(&self, limit_s: u64) -> Result<()> {
        let client = self.joined.cluster.client();
        let mut missing = Vec::new();
        let waited =
            client.wait::<Pod, _>(&client.of("default"), limit_s, "all pods to be as wanted", |all| {
                missing = all.keys().filter(|name| !self.wanted.contains_key(*name)).cloned().collect();
                let unsettled = |(name, kind): (&String, &Kind)| {
                    (!all.get(name).is_some_and(|pod| kind.is_settled(pod)))
                        .then(|| format!("{name} ({})", kind.name))
                };
                missing.extend(self.wanted.iter().filter_map(unsettled));
                missing.is_empty().then_some(())
            });
        waited.with_context(|| format!("not as wanted: {missing:?}"))
    }

    /// Every wanted pod is settled, and API server and runtime show the same.
    pub(crate) fn at_rest(&mut self) -> Result<()> {
        self.await_settled(REST_S)?;
        self.look()?;
        let client = self.joined.cluster.client();
        for (name, kind) in
            self.wanted.iter().filter(|(_, k)| [PodOutcome::Quiet, PodOutcome::Runs].contains(&k.comes))
        {
            let pod =
                client.get(&client.of::<Pod>("default"), name)?.with_context(|| format!("{name} is gone"))?;
            self.joined.nodes[0].wait(
                10,
                &format!("{name} ({}) to run as the API server shows it", kind.name),
                |view| tells_the_same(&pod, view).then_some(()),
            )?;
        }
        Ok(())
    }

    /// Container ids of the quiet pods that were created first.
    pub(crate) fn stable_ids(&self) -> Result<BTreeMap<(String, String), String>> {
        let client = self.joined.cluster.client();
        let mut ids = BTreeMap::new();
        for (n, kind) in (0..).zip(KINDS).filter(|(_, kind)| kind.comes == PodOutcome::Quiet) {
            let name = name_of(n);
            let pod = client
                .get(&client.of::<Pod>("default"), &name)?
                .with_context(|| format!("{name} is gone"))?;
            for status in statuses(&pod) {
                ensure!(status.restart_count == 0, "{name} ({}) was restarted: {status:?}", kind.name);
                ids.insert(
                    (name.clone(), status.name.clone()),
                    status.container_id.clone().unwrap_or_default(),
                );
            }
        }
        Ok(ids)
    }

    /// Deletes everything and waits until nothing is left except tasks that containerd's log shows as lost.
    pub(crate) fn end(&mut self, before: &HostLeftovers) -> Result<RuntimeLeak> {
        let client = self.joined.cluster.client();
        for name in self.wanted.keys() {
            client.delete::<Pod>(&client.of("default"), name, None)?;
        }
        client.wait::<Pod, _>(&client.of("default"), 180, "all pods to be gone", |all| {
            all.is_empty().then_some(())
        })?;
        let node = &self.joined.nodes[0];
        let (mut left, mut log) = (Vec::new(), String::new());
        let waited = node.wait(LOST_SHIMS_S, "nothing to be left of the pods", |_| {
            left = HostLeftovers::by(node).map_or_else(|e| vec![format!("{e:#}")], |now| now.beyond(before));
            log = fs::read_to_string(node.logs().join("containerd.log")).unwrap_or_default();
            let lost = forgive_lost_tasks(&mut left, &log);
            left.is_empty().then_some(lost)
        });
        let tasks = waited.with_context(|| format!("left behind: {}", leftovers_text(&left, &log)))?;
        Ok(RuntimeLeak { tasks, shims: ended_shims(node)? })
    }
}

fn await_ended_shim(node: &NativeNode, limit_s: u64) -> Result<()> {
    node.wait(limit_s, "the agent to say that it has ended the shim that was forgotten", |_| {
        (ended_shims(node).ok()? > 0).then_some(())
    })
}

/// Number of lost shims that the agent has ended, from its log.
fn ended_shims(node: &NativeNode) -> Result<usize> {
    let log = fs::read_to_string(node.logs().join("agent.log")).context("the agent's log")?;
    Ok(log.lines().filter(|line| line.contains("the runtime had forgotten was ended")).count())
}

/// True if exactly the containers that the status shows as running run, under that attempt.
fn tells_the_same(pod: &Pod, view: &View) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let running: BTreeMap<String, i32> = view
        .running("*")
        .into_iter()
        .filter(|c| c.labels.get("io.kubernetes.pod.uid").is_some_and(|u| u == uid))
        .map(|c| {
            (format!("containerd://{}", c.id), c.metadata.as_ref().map_or(0, |m| m.attempt.cast_signed()))
        })
        .collect();
    let shown: BTreeMap<String, i32> = statuses(pod)
        .filter(|s| s.state.as_ref().is_some_and(|s| s.running.is_some()))
        .map(|s| (s.container_id.clone().unwrap_or_default(), s.restart_count))
        .collect();
    running == shown
}
