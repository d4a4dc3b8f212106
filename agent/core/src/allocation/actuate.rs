//! Steps that give the containers of a pod their allocated resources (KEP-1287).
//!
//! In: the allocated pod, the resources of its containers. Out: containers to restart, steps for the others.
//! Invariants: at no point is a container's limit above its pod's; shrinking containers come before growing
//! ones; memory comes before processor time; a memory limit is lowered only after a check of the usage; no
//! steps without a difference. Upstream: `computePodResizeAction`, `doPodResizeAction` and
//! `validateMemoryResizeAction` of pkg/kubelet/kuberuntime/kuberuntime_manager.go.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::{ContainerId, SandboxId};
use agent_types::resources::amounts::Amounts;
use agent_types::resources::cgroups::pod::PodCgroup;
use agent_types::resources::cgroups::{CgroupValues, CpuMax};
use agent_types::resources::requests::{CPU, MEMORY, resources_in_pod};
use agent_types::runtime::config::LinuxResources;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot, ResourcesObserved};
use agent_types::runtime::view::{SlotKind, newest, slots};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::{Deserialize, Serialize};

use super::is_restarted_for;
use crate::pod_specs::PodSpecs;

/// A limit of memory that is about to be lowered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lowered {
    /// Id of the container.
    pub id: ContainerId,
    /// Its name in the pod.
    pub name: String,
    /// The limit that it is to have, bytes.
    pub limit: u64,
}

/// One step of a resize; the next is taken only if it went well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ActuateStep {
    /// Look whether less is in use than these limits, else it is an error ([`too_low`]).
    CheckMemory {
        /// The pod's own, with its cgroup.
        pod: Option<(Box<PodCgroup>, u64)>,
        /// The containers of the pod that run, for the sum.
        running: Vec<ContainerId>,
        /// Containers'.
        containers: Vec<Lowered>,
    },
    /// `UpdatePodSandboxResources`; a runtime that does not know it need not.
    Sandbox {
        /// Id of the sandbox.
        id: SandboxId,
        /// What the sandbox itself needs.
        overhead: LinuxResources,
        /// The sum of its containers.
        resources: LinuxResources,
    },
    /// The pod's own cgroup.
    PodCgroup(Box<PodCgroup>),
    /// Record the amounts of the pod itself.
    PodLevel {
        /// `spec.resources`.
        record: Box<ResourceRequirements>,
    },
    /// `UpdateContainerResources`, and the record of it.
    Container {
        /// Id of the container.
        id: ContainerId,
        /// Its name in the pod.
        name: String,
        /// Resources for the runtime's call.
        resources: Box<LinuxResources>,
        /// What is remembered.
        record: Box<ResourceRequirements>,
    },
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Running<'a> {
    /// As the pod was given it.
    pub spec: &'a Container,
    /// The instance.
    pub id: ContainerId,
    /// What it has.
    pub has: Amounts,
    /// What it should have.
    pub wants: Amounts,
    /// True if the amounts come from a record, false if from the runtime.
    pub remembered: bool,
}

impl Running<'_> {
    /// There is something to do.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.has != self.wants
    }

    /// The container has requests that it is to give back.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        let (has, wants) = (self.has, self.wants);
        has.cpu_request_milli > wants.cpu_request_milli || has.memory_request > wants.memory_request
    }

    /// True if `resizePolicy` requires a restart. Amounts without a record restart nothing.
    #[must_use]
    pub fn restarts(&self) -> bool {
        let (has, wants) = (self.has, self.wants);
        let cpu =
            (has.cpu_request_milli, has.cpu_limit_milli) != (wants.cpu_request_milli, wants.cpu_limit_milli);
        let memory = (has.memory_request, has.memory_limit) != (wants.memory_request, wants.memory_limit);
        let policy = |resource| is_restarted_for(self.spec, resource);
        self.remembered && ((cpu && policy(CPU)) || (memory && policy(MEMORY)))
    }
}

/// Actual resources of an allocated pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Actual<'a> {
    /// Its containers that run.
    pub running: Vec<Running<'a>>,
    /// Containers that were created with other amounts and do not run yet: they are created again.
    pub unstarted: BTreeSet<ContainerId>,
    /// What the pod itself has (`spec.resources`), if that is something else.
    pub pod: Option<Amounts>,
}

impl Actual<'_> {
    /// There is something to do.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.pod.is_some() || !self.unstarted.is_empty() || self.running.iter().any(Running::differs)
    }

    /// The containers to restart.
    #[must_use]
    pub fn restarting(&self) -> BTreeSet<ContainerId> {
        let running = self.running.iter().filter(|r| r.restarts()).map(|r| &r.id);
        running.chain(&self.unstarted).cloned().collect()
    }
}

/// What the pod has. Debuggers have no amounts of their own.
#[must_use]
pub fn actual<'a>(p: &'a Pod, snapshot: &PodSnapshot, specs: &dyn PodSpecs) -> Actual<'a> {
    let pod = snapshot.actuated.filter(|has| *has != Amounts::of_pod(p) && specs.has_cgroups());
    let (running, unstarted) = containers(p, snapshot, specs);
    Actual { running, unstarted, pod }
}

fn containers<'a>(
    p: &'a Pod,
    snapshot: &PodSnapshot,
    specs: &dyn PodSpecs,
) -> (Vec<Running<'a>>, BTreeSet<ContainerId>) {
    let all = agent_types::pod::init_containers(p).iter().chain(agent_types::pod::containers(p));
    let specs_by_name: BTreeMap<&str, &Container> = all.map(|c| (c.name.as_str(), c)).collect();
    let (mut running, mut unstarted) = (Vec::new(), BTreeSet::new());
    for slot in slots(p).into_iter().filter(|slot| slot.kind != SlotKind::Ephemeral) {
        let Some(spec) = specs_by_name.get(slot.name.as_str()).copied() else { continue };
        let Some(c) = newest(snapshot, &slot.name) else { continue };
        let wants = Amounts::in_pod(p, spec);
        match c.state {
            ContainerState::Running => {
                let has = c.actuated.unwrap_or_else(|| by_the_runtime(c, wants, || specs.resources(p, spec)));
                let remembered = c.actuated.is_some();
                running.push(Running { spec, id: c.id.clone(), has, wants, remembered });
            }
            ContainerState::Created if c.actuated.is_some_and(|has| has != wants) => {
                unstarted.insert(c.id.clone());
            }
            ContainerState::Created | ContainerState::Exited | ContainerState::Unknown => {}
        }
    }
    (running, unstarted)
}

/// Without a record of the container's amounts the runtime's count. The runtime does not report a memory
/// request.
fn by_the_runtime(c: &ContainerObserved, wants: Amounts, told: impl FnOnce() -> LinuxResources) -> Amounts {
    let Some(is) = c.resources else { return wants };
    let told = told();
    let ResourcesObserved { cpu_period_us, cpu_quota_us, cpu_shares, memory_limit_bytes } = is;
    let quota = |us: i64| us.max(0);
    let same = cpu_shares == told.cpu_shares
        && quota(cpu_quota_us) == told.cpu_quota_us
        && memory_limit_bytes.max(0) == told.memory_limit_bytes;
    if same {
        return wants;
    }
    let limit = if cpu_period_us > 0 { quota(cpu_quota_us).saturating_mul(1000) / cpu_period_us } else { 0 };
    Amounts {
        cpu_request_milli: cpu_shares.saturating_mul(1000).saturating_add(1023) / 1024,
        cpu_limit_milli: limit,
        memory_request: wants.memory_request,
        memory_limit: memory_limit_bytes.max(0),
    }
}

/// The pod with its actual amounts.
fn as_it_is(p: &Pod, actual: &Actual<'_>) -> Pod {
    let mut is = p.clone();
    if let Some(spec) = &mut is.spec {
        if let Some(has) = actual.pod {
            spec.resources = Some(has.put_into(spec.resources.as_ref()));
        }
        let differing = actual.running.iter().filter(|r| r.differs());
        let differing: BTreeMap<&str, &Running<'_>> = differing.map(|r| (r.spec.name.as_str(), r)).collect();
        for c in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(r) = differing.get(c.name.as_str()) {
                c.resources = Some(r.has.put_into(c.resources.as_ref()));
            }
        }
    }
    is
}

/// Enough for both. What one of them does not limit is left as it is.
#[must_use]
pub fn raised(a: &CgroupValues, b: &CgroupValues) -> CgroupValues {
    let both = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.max(b));
    let cpu_max = a.cpu_max.zip(b.cpu_max).map(|(a, b)| CpuMax {
        quota_us: a.quota_us.zip(b.quota_us).map(|(x, y)| x.max(y)),
        period_us: b.period_us,
    });
    CgroupValues {
        cpu_weight: both(a.cpu_weight, b.cpu_weight),
        cpu_max,
        memory_max: both(a.memory_max, b.memory_max),
        memory_min: both(a.memory_min, b.memory_min),
        memory_low: both(a.memory_low, b.memory_low),
        ..b.clone()
    }
}

/// The pod's cgroup, large enough for both its actual and its new amounts; `None` on a node without pod
/// cgroups.
#[must_use]
pub fn large_enough(p: &Pod, actual: &Actual<'_>, specs: &dyn PodSpecs) -> Option<PodCgroup> {
    let wanted = specs.cgroup(p)?;
    if !actual.differs() {
        return Some(wanted);
    }
    let is = specs.cgroup(&as_it_is(p, actual))?;
    Some(PodCgroup { values: raised(&is.values, &wanted.values), name: wanted.name })
}

/// The steps; none if there is nothing to do in place. `applied`: the last values of the pod's cgroup, if
/// known.
#[must_use]
pub fn plan(
    p: &Pod,
    actual: &Actual<'_>,
    sandbox: &SandboxId,
    specs: &dyn PodSpecs,
    applied: Option<&CgroupValues>,
) -> Vec<ActuateStep> {
    let running = &actual.running;
    let restarts = running.iter().any(Running::restarts);
    let updates: Vec<&Running<'_>> = running.iter().filter(|r| r.differs() && !r.restarts()).collect();
    let wanted = specs.cgroup(p);
    let record = actual.pod.filter(|_| !restarts).map(|_| {
        let own = agent_types::pod::spec(p).resources.clone().unwrap_or_default();
        ActuateStep::PodLevel { record: Box::new(own) }
    });
    let mut steps = Vec::new();
    if updates.is_empty() && actual.pod.is_none() {
        // The rest of a resize whose containers are all done, or have restarted.
        if let (Some(wanted), Some(has), false) = (wanted, applied, restarts)
            && *has != wanted.values
        {
            check(has, Some(&wanted), running, &[], &mut steps);
            steps.push(ActuateStep::PodCgroup(Box::new(wanted)));
        }
        return steps;
    }
    if updates.is_empty() && restarts {
        return steps;
    }
    let large = large_enough(p, actual, specs);
    let is =
        applied.cloned().or_else(|| specs.cgroup(&as_it_is(p, actual)).map(|c| c.values)).unwrap_or_default();
    check(&is, wanted.as_ref().filter(|_| !restarts), running, &updates, &mut steps);
    if let Some((overhead, resources)) = specs.sandbox_resources(p) {
        steps.push(ActuateStep::Sandbox { id: sandbox.clone(), overhead, resources });
    }
    if let Some(large) = large.clone().filter(|large| applied != Some(&large.values)) {
        steps.push(ActuateStep::PodCgroup(Box::new(large)));
    }
    let memory = |a: Amounts| (a.memory_limit, a.memory_request);
    let cpu = |a: Amounts| (a.cpu_limit_milli, a.cpu_request_milli);
    in_order(&updates, memory, |r| (r.wants.with_cpu_of(r.has), r), p, specs, &mut steps);
    in_order(&updates, cpu, |r| (r.wants, r), p, specs, &mut steps);
    if let Some(wanted) = wanted.filter(|_| !restarts)
        && large.is_some_and(|large| large.values != wanted.values)
    {
        steps.push(ActuateStep::PodCgroup(Box::new(wanted)));
    }
    steps.extend(record);
    steps
}

/// Of one resource: those that shrink, then those that grow.
fn in_order<'r>(
    updates: &[&'r Running<'r>],
    of: impl Fn(Amounts) -> (i64, i64),
    to: impl Fn(&'r Running<'r>) -> (Amounts, &'r Running<'r>),
    p: &Pod,
    specs: &dyn PodSpecs,
    steps: &mut Vec<ActuateStep>,
) {
    let shrinks = |r: &Running<'_>| {
        let ((has_limit, has_request), (limit, request)) = (of(r.has), of(r.wants));
        if has_limit == limit { request < has_request } else { limit < has_limit }
    };
    let changed = || updates.iter().filter(|r| of(r.has) != of(r.wants));
    for r in changed().filter(|r| shrinks(r)).chain(changed().filter(|r| !shrinks(r))) {
        let (amounts, r) = to(r);
        let record = amounts.put_into(Some(&resources_in_pod(p, r.spec)));
        let container = Container { resources: Some(record.clone()), ..r.spec.clone() };
        steps.push(ActuateStep::Container {
            id: r.id.clone(),
            name: r.spec.name.clone(),
            resources: Box::new(specs.resources(p, &container)),
            record: Box::new(record),
        });
    }
}

/// A check of memory usage, if memory limits shrink.
fn check(
    is: &CgroupValues,
    wanted: Option<&PodCgroup>,
    running: &[Running<'_>],
    updates: &[&Running<'_>],
    steps: &mut Vec<ActuateStep>,
) {
    let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
    let lowered = |r: &&&Running<'_>| {
        let (has, wants) = (r.has.memory_limit, r.wants.memory_limit);
        wants != 0 && (has == 0 || wants < has)
    };
    let containers: Vec<Lowered> = updates
        .iter()
        .filter(lowered)
        .map(|r| Lowered { id: r.id.clone(), name: r.spec.name.clone(), limit: bytes(r.wants.memory_limit) })
        .collect();
    let pod = wanted.and_then(|cgroup| {
        let max = cgroup.values.memory_max?;
        is.memory_max.is_none_or(|has| max < has).then(|| (Box::new(cgroup.clone()), max))
    });
    if pod.is_some() || !containers.is_empty() {
        let running = running.iter().map(|r| r.id.clone()).collect();
        steps.push(ActuateStep::CheckMemory { pod, running, containers });
    }
}

/// The error if memory limits cannot shrink; `None` if they can. `pod`: its limit and usage.
#[must_use]
pub fn too_low(
    pod: Option<(u64, Option<u64>)>,
    containers: &[Lowered],
    in_use: &BTreeMap<ContainerId, u64>,
) -> Option<String> {
    let mut errors = Vec::new();
    match pod {
        Some((_, None)) => errors.push("missing pod memory usage".to_owned()),
        Some((limit, Some(used))) if used >= limit => {
            errors.push(format!("attempting to set pod memory limit ({limit}) below current usage ({used})"));
        }
        _ => {}
    }
    for Lowered { id, name, limit } in containers {
        match in_use.get(id) {
            None => errors.push(format!("missing container \"{name}\" memory usage")),
            Some(used) if used >= limit => errors.push(format!(
                "attempting to set container \"{name}\" memory limit ({limit}) below current usage ({used})"
            )),
            Some(_) => {}
        }
    }
    match errors.as_slice() {
        [] => None,
        [one] => Some(format!("cannot decrease memory limits: {one}")),
        all => Some(format!("cannot decrease memory limits: [{}]", all.join(", "))),
    }
}
