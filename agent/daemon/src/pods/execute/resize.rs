//! Changes the resources of running containers, step by step.
//!
//! In: [`ActuateStep`]s. Out: one result: success, or the first failed step. Invariants: a change is recorded after the
//! runtime has confirmed it, and before the next step. Upstream: doPodResizeAction.

use std::collections::BTreeMap;

use agent_core::allocation::actuate::{ActuateStep, too_low};
use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult};
use agent_kubelet_api::drivers::{Amounts, ImageService, Runtime};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{ContainerId, PodKey, SandboxId};
use agent_types::runtime::config::LinuxResources;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::Executor;
use super::results::{error, no_cgroups, runtime_error};
use crate::pods::pod_dirs::ResourcesOwner;
use crate::tasks::stops::AgentStops;

/// [`Amounts`] as an object.
pub trait ContainerAmounts: Send + Sync + 'static {
    /// [`Amounts::update_container`].
    fn update_container<'a>(
        &'a self,
        container: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> BoxFuture<'a, Result<(), DriverError>>;
    /// [`Amounts::update_sandbox`].
    fn update_sandbox<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        overhead: &'a LinuxResources,
        resources: &'a LinuxResources,
    ) -> BoxFuture<'a, Result<(), DriverError>>;
    /// [`Amounts::memory_in_use`].
    fn memory_in_use<'a>(
        &'a self,
        containers: &'a [ContainerId],
    ) -> BoxFuture<'a, Result<BTreeMap<ContainerId, u64>, DriverError>>;
}

impl<A: Amounts> ContainerAmounts for A {
    fn update_container<'a>(
        &'a self,
        container: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(Amounts::update_container(self, container, resources))
    }

    fn update_sandbox<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        overhead: &'a LinuxResources,
        resources: &'a LinuxResources,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(Amounts::update_sandbox(self, sandbox, overhead, resources))
    }

    fn memory_in_use<'a>(
        &'a self,
        containers: &'a [ContainerId],
    ) -> BoxFuture<'a, Result<BTreeMap<ContainerId, u64>, DriverError>> {
        Box::pin(Amounts::memory_in_use(self, containers))
    }
}

/// Takes the steps.
pub(super) async fn resize<R: Runtime, I: ImageService>(
    this: &Executor<R, I>,
    key: &PodKey,
    steps: Vec<ActuateStep>,
) -> EffectResult {
    let began = this.tasks.now().mono;
    let mut result = Ok(EffectOk::Done);
    for step in steps {
        result = take(this, key, step).await.map(|()| EffectOk::Done);
        if result.is_err() {
            break;
        }
    }
    this.metrics.resized(this.tasks.now().mono.since(began), result.is_ok());
    result
}

/// Moves running containers to their processors. A container that has ended needs none; one that cannot be moved does not hold up
/// the others.
pub(super) async fn set_cpus<R: Runtime, I: ImageService>(
    this: &Executor<R, I>,
    cpus: BTreeMap<ContainerId, String>,
) -> EffectResult {
    let mut failed = None;
    for (id, cpuset_cpus) in cpus {
        let resources = LinuxResources { cpuset_cpus, ..LinuxResources::default() };
        match this.amounts.update_container(&id, &resources).await {
            Err(e) if e.class != Class::NotFound => failed = failed.or(Some(e)),
            _ => {}
        }
    }
    failed.map_or(Ok(EffectOk::Done), |e| Err(runtime_error(e)))
}

async fn take<R: Runtime, I: ImageService>(
    this: &Executor<R, I>,
    key: &PodKey,
    step: ActuateStep,
) -> Result<(), EffectError> {
    match step {
        ActuateStep::CheckMemory { pod, running, containers } => {
            let in_use = this.amounts.memory_in_use(&running).await.map_err(runtime_error)?;
            let pod = match (pod, &this.cgroups) {
                (Some((cgroup, limit)), Some(cgroups)) => {
                    Some((limit, cgroups.memory_in_use(&cgroup.name).await.map_err(error)?))
                }
                _ => None,
            };
            let message = too_low(pod, &containers, &in_use);
            message.map_or(Ok(()), |message| Err(EffectError { class: Class::Conflict, message }))
        }
        ActuateStep::Sandbox { id, overhead, resources } => {
            this.amounts.update_sandbox(&id, &overhead, &resources).await.map_err(runtime_error)
        }
        ActuateStep::PodCgroup(cgroup) => {
            let Some(cgroups) = &this.cgroups else { return Err(no_cgroups()) };
            cgroups.ensure(&cgroup).await.map_err(error)
        }
        ActuateStep::Container { id, name, resources, record } => {
            this.amounts.update_container(&id, &resources).await.map_err(runtime_error)?;
            remember(this, key, ResourcesOwner::Container(name), *record).await
        }
        ActuateStep::PodLevel { record } => remember(this, key, ResourcesOwner::Pod, *record).await,
    }
}

/// Records the resources that a container or the pod itself is about to have, or has.
pub(super) async fn remember<R: Runtime, I: ImageService>(
    this: &Executor<R, I>,
    key: &PodKey,
    whose: ResourcesOwner,
    actuates: ResourceRequirements,
) -> Result<(), EffectError> {
    let (dirs, uid) = (this.dirs.clone(), key.uid.clone());
    let recorded = this.tasks.blocking(move || dirs.record_actuated(&uid, whose, actuates)).await;
    recorded.ok_or(AgentStops)?.map_err(error)
}
