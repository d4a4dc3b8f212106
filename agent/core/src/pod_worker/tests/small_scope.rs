//! Exhaustive small scope (test level L1): one pod, two containers, every interleaving of calls with a
//! bounded number of misfortunes.
//!
//! A node of the search is a whole world. From each, every choice is tried: perform a pending call; answer
//! it as lost, applied or still on its way; kill the agent (its calls become zombies: not applied, or
//! applied at any later moment before their deadline); let a process end; remove the pod; let time pass to
//! the next timer. Together these are the three crash points of every effect: before it is applied, applied
//! and not acknowledged, acknowledged and not processed. After every choice the checkers look; wherever the
//! world comes to rest, the pod must be as desired.

use std::sync::Arc;

use agent_types::failure::Class;
use agent_types::kill::KillReason;
use agent_types::machine::{EffectId, Machine};
use agent_types::runtime::observed::{ContainerState, SandboxState};
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;

use super::runtime::Runtime;
use super::world::{Call, REQUEST_TIMEOUT, World};
use super::{one, two};
use crate::checkers::{AbsorbTerm, Invariant, NoOutlive, OneLive, OneSandbox, StatusMono, TraceEvent};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{Effect, EffectError};

/// How many misfortunes of each kind one history may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Budget {
    crashes: u8,
    losses: u8,
    exits: u8,
    removals: u8,
    /// Zombies that are applied after all.
    zombies: u8,
}

#[derive(Clone, Debug)]
enum Choice {
    Perform(EffectId),
    LoseApplied(EffectId),
    LoseOnItsWay(EffectId),
    Crash,
    Zombie(usize),
    Exit(&'static str),
    Remove,
    Time,
}

#[derive(Clone, Debug, Default)]
struct Checkers {
    one_live: OneLive,
    one_sandbox: OneSandbox,
    no_outlive: NoOutlive,
    absorb: AbsorbTerm,
    mono: StatusMono,
}

impl Checkers {
    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String> {
        let all: [&mut dyn Invariant; 5] = [
            &mut self.one_live,
            &mut self.one_sandbox,
            &mut self.no_outlive,
            &mut self.absorb,
            &mut self.mono,
        ];
        for c in all {
            c.observe(at, event).map_err(|e| format!("{}: {e}", c.name()))?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Node {
    world: World,
    checkers: Checkers,
    budget: Budget,
    path: Vec<String>,
    removed: bool,
}

/// Whether a new incarnation respects the calls of the old one; without is the seeded defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    Kept,
    Ignored,
}

struct Search {
    pod: Arc<Pod>,
    fence: Fence,
    nodes: u64,
    rests: u64,
}

impl Search {
    fn new(pod: Arc<Pod>, fence: Fence) -> Search {
        Search { pod, fence, nodes: 0, rests: 0 }
    }

    fn run(&mut self, budget: Budget) -> Result<(), String> {
        let mut world = World::new();
        world.desire(&self.pod.clone());
        self.explore(&Node { world, checkers: Checkers::default(), budget, path: Vec::new(), removed: false })
    }

    fn explore(&mut self, node: &Node) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > 3_000_000 {
            return Err("the scope is not small any more".to_owned());
        }
        if node.path.len() > 120 {
            return Err(format!("no rest after 120 choices: {:?}", node.path));
        }
        let choices = choices(node);
        let forced = |c: &Choice| matches!(c, Choice::Perform(_) | Choice::Time);
        if !choices.iter().any(forced) {
            self.rests += 1;
            at_rest(node, &self.pod)?;
        }
        for choice in choices {
            let mut next = node.clone();
            next.path.push(format!("{choice:?}"));
            self.take(&mut next, &choice).map_err(|e| {
                if e.contains(" after: ") { e } else { format!("{e}, after: {}", next.path.join(", ")) }
            })?;
            self.explore(&next)?;
        }
        Ok(())
    }

    fn take(&self, node: &mut Node, choice: &Choice) -> Result<(), String> {
        let before = node.world.runtime.clone();
        let told = node.world.statuses.len();
        let w = &mut node.world;
        match choice {
            Choice::Perform(id) => w.perform(*id),
            Choice::LoseApplied(id) => {
                node.budget.losses -= 1;
                let call = w.pending.remove(id).expect("chosen among the pending");
                let _lost = w.apply(&call.effect);
                w.answer(*id, lost());
            }
            Choice::LoseOnItsWay(id) => {
                node.budget.losses -= 1;
                let call = w.pending.remove(id).expect("chosen among the pending");
                w.zombies.push(call);
                w.answer(*id, lost());
            }
            Choice::Crash => {
                node.budget.crashes -= 1;
                let fence = match self.fence {
                    Fence::Kept => w.now.after(REQUEST_TIMEOUT * 3),
                    Fence::Ignored => Mono(0),
                };
                w.crash(fence);
                let started = TraceEvent::AgentStarted { undisturbed: false };
                node.checkers.observe(w.now, &started)?;
                if node.removed {
                    w.kill(KillReason::Removed, None);
                } else {
                    w.desire(&self.pod);
                }
            }
            Choice::Zombie(n) => {
                node.budget.zombies -= 1;
                let call = w.zombies.remove(*n);
                let _nobody_listens = w.apply(&call.effect);
            }
            Choice::Exit(name) => {
                node.budget.exits -= 1;
                w.end(name, 1);
            }
            Choice::Remove => {
                node.budget.removals -= 1;
                node.removed = true;
                w.kill(KillReason::Removed, None);
            }
            Choice::Time => {
                let due = w.worker.deadline().expect("chosen because there is one");
                w.now = w.now.max(due);
                w.zombies.retain(|z| z.deadline.is_none_or(|d| d > w.now));
                w.step(PodEvent::Tick);
            }
        }
        look(node, &before, told)
    }
}

fn lost() -> Result<crate::pod_worker::effect::EffectOk, EffectError> {
    Err(EffectError { class: Class::DeadlineExceeded, message: "no answer".to_owned() })
}

fn choices(node: &Node) -> Vec<Choice> {
    let (w, budget) = (&node.world, &node.budget);
    let mut out: Vec<Choice> = w.pending.keys().copied().map(Choice::Perform).collect();
    // The pods of these searches have no claims to give back.
    let mutates = |c: &Call| {
        !matches!(
            c.effect,
            Effect::Inspect
                | Effect::InspectImage { .. }
                | Effect::CreatePodDirs { .. }
                | Effect::UnprepareClaims
        )
    };
    if budget.losses > 0 {
        for (id, _) in w.pending.iter().filter(|(_, c)| mutates(c)) {
            out.extend([Choice::LoseApplied(*id), Choice::LoseOnItsWay(*id)]);
        }
    }
    if budget.crashes > 0 && w.finished.is_none() {
        out.push(Choice::Crash);
    }
    if budget.zombies > 0 {
        out.extend((0..w.zombies.len()).filter(|n| mutates(&w.zombies[*n])).map(Choice::Zombie));
    }
    if budget.exits > 0 {
        let up = ["a", "b"].into_iter().filter(|n| !w.runtime.running(n).is_empty());
        out.extend(up.map(Choice::Exit));
    }
    if budget.removals > 0 && !node.removed {
        out.push(Choice::Remove);
    }
    if w.pending.is_empty() && w.worker.deadline().is_some() {
        out.push(Choice::Time);
    }
    out
}

/// Passes the changes of the choice to the checkers.
fn look(node: &mut Node, before: &Runtime, told: usize) -> Result<(), String> {
    let (at, pod) = (node.world.now, node.world.worker.key().uid.clone());
    let mut events = changes(before, &node.world.runtime, &pod);
    events.push(TraceEvent::WorkerState { pod: pod.clone(), state: node.world.worker.state_name() });
    for s in &node.world.statuses[told..] {
        let phase = s.phase.clone().unwrap_or_default();
        events.push(TraceEvent::StatusPublished { pod: pod.clone(), phase });
    }
    events.iter().try_for_each(|e| node.checkers.observe(at, e))
}

fn changes(before: &Runtime, after: &Runtime, pod: &agent_types::ids::PodUid) -> Vec<TraceEvent> {
    let mut out = Vec::new();
    for (id, s) in &before.sandboxes {
        let now = after.sandboxes.get(id).map(|s| s.state);
        if s.state == SandboxState::Ready && now != Some(SandboxState::Ready) {
            out.push(TraceEvent::SandboxStopped { id: id.clone() });
        }
        if now.is_none() {
            out.push(TraceEvent::SandboxRemoved { id: id.clone() });
        }
    }
    for (id, c) in &before.containers {
        let now = after.containers.get(id).map(|c| c.state);
        if c.state == ContainerState::Running && now != Some(ContainerState::Running) {
            out.push(TraceEvent::ContainerExited { id: id.clone() });
        }
        if now.is_none() {
            out.push(TraceEvent::ContainerRemoved { id: id.clone() });
        }
    }
    for (id, s) in after.sandboxes.iter().filter(|(id, _)| !before.sandboxes.contains_key(*id)) {
        out.push(TraceEvent::SandboxReady { pod: pod.clone(), id: id.clone(), attempt: s.attempt });
    }
    for (id, c) in &after.containers {
        let was = before.containers.get(id).map(|c| c.state);
        if was.is_none() {
            let (name, attempt) = (c.name.clone(), c.attempt);
            out.push(TraceEvent::ContainerCreated { pod: pod.clone(), name, attempt, id: id.clone() });
        }
        if c.state == ContainerState::Running && was != Some(ContainerState::Running) {
            out.push(TraceEvent::ContainerStarted { id: id.clone() });
        }
    }
    out
}

/// Nothing is under way and no timer runs: the pod is as desired, or gone without a trace.
fn at_rest(node: &Node, pod: &Pod) -> Result<(), String> {
    let w = &node.world;
    let complaint = |what: &str| Err(format!("{what} at rest, after: {}", node.path.join(", ")));
    if node.removed {
        if w.finished.is_none()
            || !w.runtime.containers.is_empty()
            || !w.runtime.sandboxes.is_empty()
            || w.dirs
        {
            return complaint("a removed pod is not gone");
        }
        return Ok(());
    }
    for c in agent_types::pod::containers(pod) {
        let n = w.runtime.running(&c.name).len();
        if n != 1 {
            return complaint(&format!("container {} lives {n} times", c.name));
        }
    }
    if w.phase() != "Running" {
        return complaint(&format!("the phase is {}", w.phase()));
    }
    Ok(())
}

const NONE: Budget = Budget { crashes: 0, losses: 0, exits: 0, removals: 0, zombies: 0 };

fn clean(pod: &Arc<Pod>, budget: Budget) {
    let mut search = Search::new(pod.clone(), Fence::Kept);
    let result = search.run(budget);
    assert_eq!(result, Ok(()));
    // A search that saw little proves little.
    assert!(search.nodes > 1_000 && search.rests > 100, "{} nodes, {} rests", search.nodes, search.rests);
}

#[test]
fn crashes_and_zombies_while_a_pod_comes_up() {
    clean(&two("Always"), Budget { crashes: 2, zombies: 2, ..NONE });
}

#[test]
fn lost_answers_while_a_pod_comes_up() {
    clean(&two("Always"), Budget { losses: 2, zombies: 1, ..NONE });
}

#[test]
fn a_crash_and_a_lost_answer() {
    clean(&two("Always"), Budget { crashes: 1, losses: 1, zombies: 1, ..NONE });
}

#[test]
fn a_crash_and_an_exit() {
    clean(&one("Always"), Budget { crashes: 1, exits: 1, zombies: 2, ..NONE });
}

#[test]
fn a_crash_and_two_exits_of_one_container() {
    clean(&one("Always"), Budget { crashes: 1, zombies: 1, exits: 2, ..NONE });
}

#[test]
fn removal_and_a_crash() {
    clean(&one("Always"), Budget { crashes: 1, zombies: 2, removals: 1, ..NONE });
}

#[test]
fn removal_and_a_lost_answer() {
    clean(&one("Always"), Budget { losses: 1, zombies: 1, removals: 1, ..NONE });
}

#[test]
fn removal_an_exit_and_a_lost_answer() {
    clean(&one("Always"), Budget { losses: 1, zombies: 1, exits: 1, removals: 1, ..NONE });
}

#[test]
fn removal_an_exit_and_a_crash() {
    clean(&one("Always"), Budget { crashes: 1, zombies: 1, exits: 1, removals: 1, ..NONE });
}

#[test]
fn without_the_fence_the_search_finds_the_harm() {
    let budget = Budget { crashes: 1, zombies: 1, removals: 1, ..NONE };
    let found = Search::new(one("Always"), Fence::Ignored).run(budget);
    let message = found.expect_err("a new incarnation that trusts silence breaks an invariant");
    assert!(message.starts_with("ONE-SANDBOX: "), "{message}");
}
