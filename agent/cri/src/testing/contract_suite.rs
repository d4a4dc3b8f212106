//! What agent-core relies on in a container runtime, as checks that run against any implementation of the driver
//! traits: the real client with a real runtime behind it, and every fake. A fake that does not pass simulates a
//! fiction.
//!
//! In: a runtime and templates of a pod on it ([`Subject`]). Out: the names of the checks that held, or the first
//! [`Violation`]. Invariant: depends on agent-core alone; leaves nothing behind when it succeeds.

use agent_kubelet_api::drivers::{ImageService, PodObservation, Runtime};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{ContainerId, SandboxId};
use agent_types::runtime::config::{ContainerConfig, NamespaceMode, SandboxConfig};
use agent_types::runtime::observed::{ContainerObserved, ContainerState, SandboxState};

/// What the suite works with. Container names must differ from each other.
#[derive(Clone, Debug)]
pub struct Subject {
    /// A pod that does not exist yet, attempt 0.
    pub sandbox: SandboxConfig,
    /// A container that runs until TERM, attempt 0; its image must be present.
    pub runs: ContainerConfig,
    /// A container that exits soon by itself, attempt 0, and the code.
    pub exits: (ContainerConfig, i32),
    /// A container that ignores TERM, attempt 0.
    pub deaf: ContainerConfig,
}

/// A broken promise.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// A call failed that must not.
    #[error("{check}: a call failed")]
    Call {
        /// Which check.
        check: &'static str,
        /// The failure.
        source: DriverError,
    },
    /// An answer is not what it must be.
    #[error("{check}: {what}")]
    Answer {
        /// Which check.
        check: &'static str,
        /// Expected and found.
        what: String,
    },
}

type Checked = Result<(), Violation>;

/// Runs every check. `pause` is awaited between looks at something that takes time, at most 600 times each: a
/// moment of real time, or a step of a simulated world.
///
/// # Errors
/// The first [`Violation`]; what the suite made until then is still there.
pub async fn contract_suite<R, P>(
    runtime: &R,
    subject: &Subject,
    pause: P,
) -> Result<Vec<&'static str>, Violation>
where
    R: Runtime + ImageService,
    P: AsyncFn(),
{
    let mut suite = Suite { runtime, subject, pause, check: "", done: Vec::new() };
    suite.itself().await?;
    suite.images().await?;
    suite.unknown_objects().await?;
    let sandbox = suite.sandbox_runs().await?;
    suite.container_lifecycle(&sandbox).await?;
    suite.container_exits(&sandbox).await?;
    suite.deaf_container(&sandbox).await?;
    suite.sandbox_is_replaced(&sandbox).await?;
    Ok(suite.done)
}

struct Suite<'a, R, P> {
    runtime: &'a R,
    subject: &'a Subject,
    pause: P,
    check: &'static str,
    done: Vec<&'static str>,
}

const LOOKS_MAX: usize = 600;

impl<R: Runtime + ImageService, P: AsyncFn()> Suite<'_, R, P> {
    fn check(&mut self, name: &'static str) {
        self.check = name;
        self.done.push(name);
    }

    fn ok<T>(&self, outcome: Result<T, DriverError>) -> Result<T, Violation> {
        outcome.map_err(|source| Violation::Call { check: self.check, source })
    }

    fn holds(&self, condition: bool, what: impl FnOnce() -> String) -> Checked {
        if condition { Ok(()) } else { Err(Violation::Answer { check: self.check, what: what() }) }
    }

    fn fails<T: std::fmt::Debug>(&self, outcome: Result<T, DriverError>, class: Option<Class>) -> Checked {
        match outcome {
            Ok(answer) => self.holds(false, || format!("expected a failure, got {answer:?}")),
            Err(error) => self.holds(class.is_none_or(|c| c == error.class), || {
                format!("expected {class:?}, got {:?}: {error}", error.class)
            }),
        }
    }

    async fn look(&self) -> Result<PodObservation, Violation> {
        Ok(self.ok(self.runtime.inspect(&self.subject.sandbox.pod.uid).await)?.1)
    }

    async fn container(&self, id: &ContainerId) -> Result<ContainerObserved, Violation> {
        let seen = self.look().await?;
        let found = seen.containers.iter().find(|c| c.id == *id).cloned();
        found.ok_or_else(|| Violation::Answer {
            check: self.check,
            what: format!("container {id} is not observed: {seen:?}"),
        })
    }

    /// Waits until the container is in `state`.
    async fn reaches(&self, id: &ContainerId, state: ContainerState) -> Result<ContainerObserved, Violation> {
        let mut seen = self.container(id).await?;
        for _ in 0..LOOKS_MAX {
            if seen.state == state {
                return Ok(seen);
            }
            (self.pause)().await;
            seen = self.container(id).await?;
        }
        Err(Violation::Answer {
            check: self.check,
            what: format!("expected {state:?} at last, got {seen:?}"),
        })
    }

    async fn create(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<ContainerId, Violation> {
        self.ok(self.runtime.create_container(sandbox, config, &self.subject.sandbox).await)
    }

    async fn itself(&mut self) -> Checked {
        self.check("version names runtime and API");
        let version = self.ok(self.runtime.version().await)?;
        self.holds(!version.name.is_empty() && version.api_version == "v1", || format!("{version:?}"))?;
        self.check("runtime is ready");
        let status = self.ok(self.runtime.status().await)?;
        self.holds(status.runtime_ready.is_ok(), || format!("{status:?}"))?;
        self.check("cgroup driver is known or not said");
        self.ok(self.runtime.cgroup_driver().await).map(|_| ())
    }

    async fn images(&mut self) -> Checked {
        let image = &self.subject.runs.image;
        self.check("a present image is found by what containers are created from");
        let found = self.ok(self.runtime.image_status(image.as_str()).await)?;
        self.holds(found.is_some(), || format!("image {image} is not there"))?;
        self.check("a present image is listed");
        let listed = self.ok(self.runtime.list_images().await)?;
        self.holds(found.is_some_and(|f| listed.iter().any(|i| i.id == f.id)), || format!("{listed:?}"))?;
        let absent = "localhost/orlop/does-not-exist:1";
        self.check("an absent image is None");
        let found = self.ok(self.runtime.image_status(absent).await)?;
        self.holds(found.is_none(), || format!("{found:?}"))?;
        self.check("removing an absent image succeeds");
        self.ok(self.runtime.remove_image(absent).await)
    }

    async fn unknown_objects(&mut self) -> Checked {
        let (sandbox, container) =
            (SandboxId::from("0123456789abcdef"), ContainerId::from("fedcba9876543210"));
        self.check("an unknown pod is an empty observation");
        let (key, seen) = self.ok(self.runtime.inspect(&self.subject.sandbox.pod.uid).await)?;
        self.holds(key.is_none() && seen == PodObservation::default(), || format!("{key:?} {seen:?}"))?;
        self.check("stopping what is gone succeeds");
        self.ok(self.runtime.stop_container(&container, 0).await)?;
        self.ok(self.runtime.stop_sandbox(&sandbox).await)?;
        self.check("removing what is gone succeeds");
        self.ok(self.runtime.remove_container(&container).await)?;
        self.ok(self.runtime.remove_sandbox(&sandbox).await)?;
        self.check("starting what is gone is NotFound");
        self.fails(self.runtime.start_container(&container).await, Some(Class::NotFound))?;
        self.check("creating in a sandbox that is gone fails");
        let subject = self.subject;
        let created = self.runtime.create_container(&sandbox, &subject.runs, &subject.sandbox).await;
        self.fails(created, None)
    }

    async fn sandbox_runs(&mut self) -> Result<SandboxId, Violation> {
        let config = &self.subject.sandbox;
        self.check("a sandbox runs and is observed");
        let id = self.ok(self.runtime.run_sandbox(config).await)?;
        let (key, seen) = self.ok(self.runtime.inspect(&config.pod.uid).await)?;
        self.holds(key.as_ref() == Some(&config.pod), || format!("expected {}, got {key:?}", config.pod))?;
        let [sandbox] = &seen.sandboxes[..] else {
            return self.holds(false, || format!("expected one sandbox: {seen:?}")).map(|()| id);
        };
        let as_asked = sandbox.id == id && sandbox.attempt == config.attempt;
        self.holds(as_asked && sandbox.state == SandboxState::Ready, || format!("{sandbox:?}"))?;
        self.check("host network and addresses are told");
        let host = config.security.namespaces.network == NamespaceMode::Node;
        let told = sandbox.host_network == host && sandbox.ips.is_empty() == host;
        self.holds(told, || format!("{sandbox:?}"))?;
        self.check("a ready sandbox is listed");
        let listed = self.ok(self.runtime.list().await)?;
        let ready = listed.iter().find(|p| p.pod == config.pod).and_then(|p| p.sandboxes.get(&id));
        self.holds(ready == Some(&true), || format!("{listed:?}"))?;
        self.check("running the same sandbox again answers the one that is there");
        let again = self.ok(self.runtime.run_sandbox(config).await)?;
        let seen = self.look().await?;
        self.holds(again == id && seen.sandboxes.len() == 1, || format!("{id} then {again}: {seen:?}"))?;
        Ok(id)
    }

    async fn container_lifecycle(&mut self, sandbox: &SandboxId) -> Checked {
        let config = &self.subject.runs;
        self.check("a container is created and observed");
        let id = self.create(sandbox, config).await?;
        let seen = self.container(&id).await?;
        let as_asked = seen.sandbox == *sandbox
            && seen.name == config.name
            && seen.attempt == config.attempt
            && config.annotations.iter().all(|(k, v)| seen.annotations.get(k) == Some(v));
        let new = seen.state == ContainerState::Created && seen.started.is_none() && seen.finished.is_none();
        self.holds(as_asked && new, || format!("{seen:?}"))?;
        self.check("the log path is absolute and below the sandbox's log directory");
        let log = format!("{}/{}", self.subject.sandbox.log_directory, config.log_path);
        self.holds(seen.log_path == log, || format!("expected {log}, got {}", seen.log_path))?;
        self.check("creating the same container again answers the one that is there");
        let again = self.create(sandbox, config).await?;
        self.holds(again == id, || format!("{id} then {again}"))?;
        self.check("a started container runs");
        self.ok(self.runtime.start_container(&id).await)?;
        let seen = self.container(&id).await?;
        let running = seen.state == ContainerState::Running && seen.finished.is_none();
        self.holds(running && seen.started.is_some_and(|at| at >= seen.created), || format!("{seen:?}"))?;
        self.check("starting twice fails and changes nothing");
        self.fails(self.runtime.start_container(&id).await, None)?;
        let seen = self.container(&id).await?;
        self.holds(seen.state == ContainerState::Running, || format!("{seen:?}"))?;
        self.check("the list has the container's state");
        let listed = self.ok(self.runtime.list().await)?;
        let state = listed.iter().find_map(|p| p.containers.get(&id));
        self.holds(state == Some(&1), || format!("{listed:?}"))?;
        self.check("a stopped container has exited");
        self.ok(self.runtime.stop_container(&id, 30).await)?;
        let seen = self.reaches(&id, ContainerState::Exited).await?;
        let ended = seen.finished.zip(seen.started).is_some_and(|(end, start)| end >= start);
        self.holds(ended && !seen.reason.is_empty(), || format!("{seen:?}"))?;
        self.check("stopping what is stopped succeeds");
        self.ok(self.runtime.stop_container(&id, 30).await)?;
        self.check("the next attempt is another container, newest first");
        let next = ContainerConfig { attempt: config.attempt + 1, ..config.clone() };
        let next_id = self.create(sandbox, &next).await?;
        let seen = self.look().await?;
        let order: Vec<_> = seen.containers.iter().map(|c| &c.id).collect();
        self.holds(order == [&next_id, &id], || format!("expected [{next_id}, {id}], got {order:?}"))?;
        self.check("removed containers are gone, running or not");
        self.ok(self.runtime.start_container(&next_id).await)?;
        for id in [&id, &next_id] {
            self.ok(self.runtime.remove_container(id).await)?;
            self.ok(self.runtime.remove_container(id).await)?;
        }
        let seen = self.look().await?;
        self.holds(seen.containers.is_empty(), || format!("{seen:?}"))
    }

    async fn container_exits(&mut self, sandbox: &SandboxId) -> Checked {
        let (config, code) = &self.subject.exits;
        self.check("a container that exits by itself tells its code");
        let id = self.create(sandbox, config).await?;
        self.ok(self.runtime.start_container(&id).await)?;
        let seen = self.reaches(&id, ContainerState::Exited).await?;
        self.holds(seen.exit_code == *code && seen.finished.is_some(), || format!("{seen:?}"))?;
        self.check("an exited container cannot be started again");
        self.fails(self.runtime.start_container(&id).await, None)?;
        self.ok(self.runtime.remove_container(&id).await)
    }

    async fn deaf_container(&mut self, sandbox: &SandboxId) -> Checked {
        self.check("a container that ignores TERM is killed after the grace");
        let id = self.create(sandbox, &self.subject.deaf).await?;
        self.ok(self.runtime.start_container(&id).await)?;
        self.ok(self.runtime.stop_container(&id, 1).await)?;
        let seen = self.reaches(&id, ContainerState::Exited).await?;
        self.holds(seen.exit_code == 137, || format!("expected exit code 137: {seen:?}"))
        // It stays: stopping and removing the sandbox must cope with it.
    }

    async fn sandbox_is_replaced(&mut self, first: &SandboxId) -> Checked {
        let config = &self.subject.sandbox;
        self.check("a stopped sandbox is not ready, and its containers are stopped");
        let id = self.create(first, &self.subject.runs).await?;
        self.ok(self.runtime.start_container(&id).await)?;
        self.ok(self.runtime.stop_sandbox(first).await)?;
        self.ok(self.runtime.stop_sandbox(first).await)?;
        self.reaches(&id, ContainerState::Exited).await?;
        let seen = self.look().await?;
        let states: Vec<_> = seen.sandboxes.iter().map(|s| s.state).collect();
        self.holds(states == [SandboxState::NotReady], || format!("{seen:?}"))?;
        // Runtimes differ in which of the two calls they refuse.
        self.check("nothing can be started in a stopped sandbox");
        let later = ContainerConfig { attempt: config.attempt + 9, ..self.subject.runs.clone() };
        if let Ok(id) = self.runtime.create_container(first, &later, config).await {
            self.fails(self.runtime.start_container(&id).await, None)?;
        }
        self.check("the next sandbox is another one, newest first");
        let next = SandboxConfig { attempt: config.attempt + 1, ..config.clone() };
        let second = self.ok(self.runtime.run_sandbox(&next).await)?;
        let seen = self.look().await?;
        let order: Vec<_> = seen.sandboxes.iter().map(|s| (&s.id, s.attempt)).collect();
        let wanted = [(&second, next.attempt), (first, config.attempt)];
        self.holds(order == wanted, || format!("expected {wanted:?}, got {order:?}"))?;
        self.check("a container's name stays taken by the older sandbox's container");
        let taken = self.runtime.create_container(&second, &self.subject.runs, &next).await;
        self.fails(taken, Some(Class::AlreadyExists))?;
        self.check("removing sandboxes removes everything of the pod");
        for id in [first, &second] {
            self.ok(self.runtime.stop_sandbox(id).await)?;
            self.ok(self.runtime.remove_sandbox(id).await)?;
            self.ok(self.runtime.remove_sandbox(id).await)?;
        }
        let seen = self.look().await?;
        self.holds(seen == PodObservation::default(), || format!("{seen:?}"))?;
        let listed = self.ok(self.runtime.list().await)?;
        self.holds(listed.iter().all(|p| p.pod != config.pod), || format!("{listed:?}"))
    }
}
