//! [`FakeRuntime`] behind the driver traits, so that async code and the contract suite can use it.
//!
//! Answers are immediate: latency and faults belong to the world, not to this adapter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_worker::effect::{Effect, EffectOk, ImageUser};
use agent_kubelet_api::drivers::{
    Amounts, Exec, ExecOutput, ImageService, PodObservation, Runtime, Sandboxes,
};
use agent_types::credential::Credential;
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{ContainerId, PodKey, PodUid, SandboxId};
use agent_types::lock::Lock;
use agent_types::node_context::CgroupDriver;
use agent_types::runtime::config::{ContainerConfig, LinuxResources, SandboxConfig};
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::observed::{ContainerState, ListedPod, ListedSandbox, ResourcesObserved};
use agent_types::runtime::status::{RuntimeStatus, RuntimeVersion};
use agent_types::time::Now;

use crate::fake_runtime::FakeRuntime;

/// A shared fake runtime with a clock of the test's choice.
#[derive(Clone)]
pub struct FakeDriver {
    /// The runtime; tests reach in to see and to break things.
    pub runtime: Arc<Lock<FakeRuntime>>,
    clock: Arc<dyn Fn() -> Now + Send + Sync>,
}

impl FakeDriver {
    /// A driver over `runtime` that reads time from `clock`.
    pub fn new(runtime: FakeRuntime, clock: impl Fn() -> Now + Send + Sync + 'static) -> Self {
        FakeDriver { runtime: Arc::new(Lock::new(runtime)), clock: Arc::new(clock) }
    }

    /// Runs `f` on the runtime; a poisoned lock (a panicking test) is taken as it is.
    pub fn with<T>(&self, f: impl FnOnce(&mut FakeRuntime) -> T) -> T {
        f(&mut self.runtime.lock())
    }

    fn apply(&self, object: &str, effect: &Effect) -> Result<EffectOk, DriverError> {
        let now = (self.clock)();
        self.with(|r| r.apply(now, effect)).map_err(|e| DriverError {
            operation: effect.verb(),
            object: object.to_owned(),
            class: e.class,
            message: e.message,
        })
    }
}

fn unexpected(effect: &'static str, object: &str) -> DriverError {
    DriverError {
        operation: effect,
        object: object.to_owned(),
        class: Class::Invalid,
        message: "the fake runtime answered with another kind of result".to_owned(),
    }
}

impl Runtime for FakeDriver {
    async fn version(&self) -> Result<RuntimeVersion, DriverError> {
        Ok(RuntimeVersion { name: "fake".into(), version: "1".into(), api_version: "v1".into() })
    }

    async fn status(&self) -> Result<RuntimeStatus, DriverError> {
        Ok(RuntimeStatus::ready())
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, DriverError> {
        Ok(Some(CgroupDriver::Cgroupfs))
    }

    async fn list(&self) -> Result<Vec<ListedPod>, DriverError> {
        Ok(self.with(|r| r.list()))
    }

    async fn inspect(&self, uid: &PodUid) -> Result<(Option<PodKey>, PodObservation), DriverError> {
        Ok(self.with(|r| r.observe(uid)))
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, DriverError> {
        let object = config.pod.to_string();
        match self.apply(&object, &Effect::RunSandbox { config: Box::new(config.clone()) })? {
            EffectOk::Sandbox(id) => Ok(id),
            _ => Err(unexpected("run_sandbox", &object)),
        }
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), DriverError> {
        self.apply(id.as_str(), &Effect::StopSandbox { sandbox: id.clone() }).map(|_| ())
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), DriverError> {
        self.apply(id.as_str(), &Effect::RemoveSandbox { sandbox: id.clone() }).map(|_| ())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, DriverError> {
        let effect = Effect::CreateContainer {
            sandbox: sandbox.clone(),
            config: Box::new(config.clone()),
            sandbox_config: Box::new(sandbox_config.clone()),
            actuates: Box::default(),
        };
        match self.apply(&config.name, &effect)? {
            EffectOk::Container(id) => Ok(id),
            _ => Err(unexpected("create_container", &config.name)),
        }
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), DriverError> {
        self.apply(id.as_str(), &Effect::StartContainer { container: id.clone() }).map(|_| ())
    }

    async fn stop_container(&self, id: &ContainerId, grace_s: u32) -> Result<(), DriverError> {
        self.apply(id.as_str(), &Effect::StopContainer { container: id.clone(), grace_s }).map(|_| ())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), DriverError> {
        self.apply(id.as_str(), &Effect::RemoveContainer { container: id.clone(), log: None }).map(|_| ())
    }
}

impl Sandboxes for FakeDriver {
    async fn sandboxes(&self) -> Result<Vec<ListedSandbox>, DriverError> {
        Ok(self.with(|r| r.list_sandboxes()))
    }
}

impl Amounts for FakeDriver {
    async fn update_container(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), DriverError> {
        let LinuxResources { cpu_period_us, cpu_quota_us, cpu_shares, memory_limit_bytes, .. } = *resources;
        let given = ResourcesObserved { cpu_period_us, cpu_quota_us, cpu_shares, memory_limit_bytes };
        let found = self.with(|r| r.containers.get_mut(id).map(|c| c.observed.resources = Some(given)));
        found.ok_or_else(|| DriverError {
            operation: "update_container",
            object: id.to_string(),
            class: Class::NotFound,
            message: "no such container".into(),
        })
    }

    async fn update_sandbox(
        &self,
        _: &SandboxId,
        _: &LinuxResources,
        _: &LinuxResources,
    ) -> Result<(), DriverError> {
        Ok(())
    }

    async fn memory_in_use(&self, ids: &[ContainerId]) -> Result<BTreeMap<ContainerId, u64>, DriverError> {
        Ok(ids.iter().map(|id| (id.clone(), 0)).collect())
    }
}

impl ImageService for FakeDriver {
    async fn image_status(&self, image: &str) -> Result<Option<ImageInfo>, DriverError> {
        Ok(self.with(|r| r.images.get(image).cloned()))
    }

    async fn pull(&self, image: &str, credential: Option<&Credential>) -> Result<ImageInfo, DriverError> {
        let credentials = credential.cloned().into_iter().collect();
        let user = ImageUser { written: image.to_owned(), credentials, ..ImageUser::default() };
        match self.apply(image, &Effect::PullImage { image: image.to_owned(), user })? {
            EffectOk::Pulled { image, .. } => Ok(image),
            _ => Err(unexpected("pull_image", image)),
        }
    }

    async fn list_images(&self) -> Result<Vec<ImageInfo>, DriverError> {
        Ok(self.with(|r| r.images.values().cloned().collect()))
    }

    async fn remove_image(&self, image: &str) -> Result<(), DriverError> {
        self.with(|r| r.images.remove(image));
        Ok(())
    }
}

impl Exec for FakeDriver {
    async fn exec_sync(
        &self,
        container: &ContainerId,
        _command: &[String],
        _timeout: Option<Duration>,
    ) -> Result<ExecOutput, DriverError> {
        let running = |r: &mut FakeRuntime| {
            r.containers.get(container).is_some_and(|c| c.observed.state == ContainerState::Running)
        };
        if self.with(running) {
            Ok(ExecOutput::default())
        } else {
            Err(DriverError {
                operation: "exec_sync",
                object: container.to_string(),
                class: Class::NotFound,
                message: "container is not running".into(),
            })
        }
    }
}
