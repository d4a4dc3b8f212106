//! Gives sandboxes the groups in which pods share shims, and containers the group of their sandbox.
//!
//! ```text
//! RunPodSandbox   ─► ListPodSandbox ─► ShimGroups ─► annotation of the sandbox
//! CreateContainer ─► ShimGroups (the list, at most once for each run of the agent) ─► the same annotation
//! ```
//! In: configurations for the runtime. Out: the same with the group, or without one. Invariants: a container has the group of its
//! sandbox, also if an earlier run of the agent made the sandbox; with one pod for each shim the runtime is never asked, and no
//! sandbox or container has a group; a start that is dropped gives its place back. Decisions are in [`agent_core::shim_groups`].

use std::sync::Arc;

use agent_core::shim_groups::{self, Attempt, Membership, ShimGroups, ShimSharing};
use agent_kubelet_api::drivers::Sandboxes;
use agent_types::failure::DriverError;
use agent_types::ids::SandboxId;
use agent_types::lock::Lock;
use agent_types::runtime::config::SandboxConfig;
use agent_types::runtime::observed::ListedSandbox;
use futures_util::future::BoxFuture;

/// [`Sandboxes`] as an object.
pub trait SandboxList: Send + Sync + 'static {
    /// [`Sandboxes::sandboxes`].
    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, DriverError>>;
}

impl<S: Sandboxes> SandboxList for S {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, DriverError>> {
        Box::pin(Sandboxes::sandboxes(self))
    }
}

/// The groups and the runtime's list; clones share them.
#[derive(Clone)]
pub struct SharedShims {
    runtime: Arc<dyn SandboxList>,
    groups: Arc<Lock<ShimGroups>>,
}

impl SharedShims {
    /// At most so many pods share a shim; with 1 each pod has its own.
    #[must_use]
    pub fn new(runtime: Arc<dyn SandboxList>, pods_per_shim: u32) -> SharedShims {
        SharedShims { runtime, groups: Arc::new(Lock::new(ShimGroups::new(pods_per_shim))) }
    }

    /// Gives a sandbox that is about to be made its group. The answer is to be kept until the call has ended.
    pub(crate) async fn place(&self, config: &mut SandboxConfig) -> StartingSandbox {
        let attempt = (config.pod.uid.clone(), config.attempt);
        let group = self.group(&attempt, shim_groups::sharing(config)).await;
        shim_groups::set(config, group.as_deref());
        StartingSandbox { groups: self.groups.clone(), attempt, group, made: None }
    }

    async fn group(&self, attempt: &Attempt, sharing: ShimSharing) -> Option<String> {
        let shares = self.groups.lock().shares(sharing);
        if !shares {
            return None;
        }
        let look = self.groups.lock().begin_look();
        let listed = match self.runtime.list().await {
            Ok(listed) => listed,
            Err(error) => {
                // The pod starts all the same, with a shim of its own.
                tracing::debug!(pod = %attempt.0, error = %error, "no list of sandboxes, so the pod shares no shim");
                return None;
            }
        };
        let mut groups = self.groups.lock();
        groups.listed(look, &listed);
        groups.place(&listed, attempt, sharing)
    }

    /// Gives the sandbox's configuration that goes along with a container the group that the sandbox has.
    ///
    /// # Errors
    /// The runtime's list is needed, and the runtime does not give it. A container with another group than its sandbox would get a
    /// shim of its own.
    pub(crate) async fn join(
        &self,
        sandbox: &SandboxId,
        config: &mut SandboxConfig,
    ) -> Result<(), DriverError> {
        let known = self.groups.lock().of(sandbox);
        let membership = match known {
            Membership::Unknown => self.ask(sandbox).await?,
            known => known,
        };
        let group = match membership {
            Membership::Of(group) => Some(group),
            Membership::None | Membership::Unknown => None,
        };
        shim_groups::set(config, group.as_deref());
        Ok(())
    }

    async fn ask(&self, sandbox: &SandboxId) -> Result<Membership, DriverError> {
        let look = self.groups.lock().begin_look();
        let listed = self.runtime.list().await?;
        let mut groups = self.groups.lock();
        groups.listed(look, &listed);
        Ok(groups.of(sandbox))
    }
}

/// A sandbox that is being made: its place is kept until this is dropped.
pub(crate) struct StartingSandbox {
    groups: Arc<Lock<ShimGroups>>,
    attempt: Attempt,
    group: Option<String>,
    made: Option<SandboxId>,
}

impl StartingSandbox {
    /// The runtime has made it.
    pub(crate) fn made(mut self, sandbox: &SandboxId) {
        self.made = Some(sandbox.clone());
    }
}

impl Drop for StartingSandbox {
    fn drop(&mut self) {
        self.groups.lock().ended(&self.attempt, self.group.as_deref(), self.made.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use agent_types::ids::PodKey;
    use agent_types::runtime::config::{LinuxResources, SandboxSecurity};
    use agent_types::runtime::labels::SHIM_GROUP;

    use super::*;

    /// What the runtime lists, and how often it was asked.
    #[derive(Default)]
    struct Listed {
        sandboxes: Lock<Vec<ListedSandbox>>,
        asked: AtomicUsize,
    }

    impl Sandboxes for Listed {
        async fn sandboxes(&self) -> Result<Vec<ListedSandbox>, DriverError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Ok(self.sandboxes.lock().clone())
        }
    }

    fn config(uid: &str) -> SandboxConfig {
        SandboxConfig {
            pod: PodKey { namespace: "ns".into(), name: uid.into(), uid: uid.into() },
            attempt: 0,
            hostname: String::new(),
            log_directory: String::new(),
            dns: None,
            port_mappings: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::from([(SHIM_GROUP.to_owned(), "theirs".to_owned())]),
            runtime_handler: String::new(),
            cgroup_parent: String::new(),
            sysctls: BTreeMap::new(),
            security: SandboxSecurity::default(),
            overhead: LinuxResources::default(),
            resources: LinuxResources::default(),
        }
    }

    fn group(config: &SandboxConfig) -> Option<String> {
        config.annotations.get(SHIM_GROUP).cloned()
    }

    #[tokio::test]
    async fn containers_have_the_group_of_their_sandbox_also_after_a_restart() {
        let runtime = Arc::new(Listed::default());
        let shims = SharedShims::new(runtime.clone(), 2);
        let mut placed = Vec::new();
        for uid in ["a", "b", "c"] {
            let mut of = config(uid);
            let starting = shims.place(&mut of).await;
            let id = SandboxId::from(uid);
            starting.made(&id);
            let listed =
                ListedSandbox { id, uid: uid.into(), attempt: 0, ready: true, shim_group: group(&of) };
            runtime.sandboxes.lock().push(listed);
            placed.push(group(&of));
        }
        assert!(placed[0].is_some() && placed[0] == placed[1] && placed[2] != placed[0], "{placed:?}");
        assert_eq!(runtime.asked.load(Ordering::Relaxed), 3);
        let after = SharedShims::new(runtime.clone(), 2);
        for of in [&shims, &after, &after] {
            let mut container = config("b");
            of.join(&"b".into(), &mut container).await.unwrap();
            assert_eq!(group(&container), placed[1]);
        }
        assert_eq!(runtime.asked.load(Ordering::Relaxed), 4, "once after the restart");
    }

    #[tokio::test]
    async fn a_start_that_is_dropped_gives_its_place_back() {
        let runtime = Arc::new(Listed::default());
        let shims = SharedShims::new(runtime.clone(), 2);
        let (mut first, mut second, mut third) = (config("a"), config("b"), config("c"));
        let _held = shims.place(&mut first).await;
        drop(shims.place(&mut second).await);
        shims.place(&mut third).await.made(&"c".into());
        assert_eq!(group(&third), group(&first));
    }

    #[tokio::test]
    async fn with_one_pod_for_each_shim_nothing_is_asked() {
        let runtime = Arc::new(Listed::default());
        let shims = SharedShims::new(runtime.clone(), 1);
        let mut of = config("a");
        shims.place(&mut of).await.made(&"a".into());
        assert_eq!((group(&of), runtime.asked.load(Ordering::Relaxed)), (None, 0));
        // The second sandbox is of an earlier run of the agent.
        for sandbox in ["a", "earlier"] {
            let mut container = config(sandbox);
            shims.join(&sandbox.into(), &mut container).await.unwrap();
            assert_eq!(group(&container), None);
        }
        assert_eq!(runtime.asked.load(Ordering::Relaxed), 0);
    }
}
