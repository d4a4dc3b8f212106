//! The fake runtime's state diagram, at the level of CRI messages and pure: what containerd 2.1 was seen to do.
//!
//! In: requests. Out: answers or a status with containerd's codes, and the events that follow.
//! Invariants: a name (of sandbox or container) is reserved until its object is removed; a sandbox's containers go
//! with it.

use std::collections::{BTreeMap, HashMap};

use orlop_proto::cri::v1;
use tonic::Status;

/// Everything the fake runtime holds. Tests reach in to see and to break things.
#[derive(Debug, Default)]
pub struct FakeState {
    /// By id.
    pub sandboxes: BTreeMap<String, FakeSandbox>,
    /// By id.
    pub containers: BTreeMap<String, FakeContainer>,
    /// By id; tags and digests are inside.
    pub images: BTreeMap<String, v1::Image>,
    /// Images that a pull can bring, by reference.
    pub registry: BTreeMap<String, v1::Image>,
    /// What `ExecSync` answers.
    pub exec: v1::ExecSyncResponse,
    /// Events not yet handed to the stream.
    pub(super) events: Vec<v1::ContainerEventResponse>,
    clock_ns: i64,
    next_id: u64,
}

/// A sandbox as it was asked for, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct FakeSandbox {
    /// As received.
    pub request: v1::RunPodSandboxRequest,
    /// Ready or not.
    pub state: v1::PodSandboxState,
    created_at: i64,
}

/// A container as it was asked for, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct FakeContainer {
    /// As received.
    pub request: v1::CreateContainerRequest,
    /// Lifecycle state.
    pub state: v1::ContainerState,
    /// Meaningful when exited.
    pub exit_code: i32,
    created_at: i64,
    started_at: i64,
    finished_at: i64,
}

/// How containers behave, by the first word of their command: `exit N` ends at once, `deaf` ignores TERM, anything
/// else runs until TERM.
fn behaviour(config: &v1::ContainerConfig) -> (Option<i32>, bool) {
    let words: Vec<&str> = config.command.iter().map(String::as_str).collect();
    match words[..] {
        ["exit", code] => (Some(code.parse().unwrap_or(255)), false),
        ["deaf"] => (None, true),
        _ => (None, false),
    }
}

fn sandbox_name(config: &v1::PodSandboxConfig) -> String {
    let m = config.metadata.clone().unwrap_or_default();
    format!("{}_{}_{}_{}", m.name, m.namespace, m.uid, m.attempt)
}

fn container_name(request: &v1::CreateContainerRequest) -> String {
    let m = request.config.clone().unwrap_or_default().metadata.unwrap_or_default();
    let pod = request.sandbox_config.clone().unwrap_or_default().metadata.unwrap_or_default();
    format!("{}_{}_{}_{}_{}", m.name, pod.name, pod.namespace, pod.uid, m.attempt)
}

fn reserved(what: &str, name: &str, id: &str) -> Status {
    Status::failed_precondition(format!(
        "failed to reserve {what} name {name:?}: name {name:?} is reserved for {id:?}"
    ))
}

fn selected(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector.iter().all(|(k, v)| labels.get(k) == Some(v))
}

impl FakeState {
    fn tick(&mut self) -> i64 {
        self.clock_ns += 1_000_000;
        self.clock_ns
    }

    fn new_id(&mut self, kind: &str) -> String {
        self.next_id += 1;
        format!("{kind}{:08}", self.next_id)
    }

    fn emit(&mut self, id: &str, sandbox: &str, event: v1::ContainerEventType) {
        let created_at = self.tick();
        let pod_sandbox_status = self.sandbox_status(sandbox).ok();
        self.events.push(v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: event.into(),
            created_at,
            pod_sandbox_status,
            containers_statuses: Vec::new(),
        });
    }

    /// Puts a sandbox there without asking.
    ///
    /// # Errors
    /// As `RunPodSandbox`: no configuration, or its name is reserved.
    pub fn insert_sandbox(&mut self, request: v1::RunPodSandboxRequest) -> Result<String, Status> {
        self.run_sandbox(request)
    }

    /// `RunPodSandbox`.
    pub(super) fn run_sandbox(&mut self, request: v1::RunPodSandboxRequest) -> Result<String, Status> {
        let config = request.config.clone().ok_or_else(|| Status::invalid_argument("no config"))?;
        let name = sandbox_name(&config);
        let taken = self
            .sandboxes
            .iter()
            .find(|(_, s)| s.request.config.as_ref().map(sandbox_name) == Some(name.clone()));
        if let Some((id, _)) = taken {
            return Err(reserved("sandbox", &name, id));
        }
        let (id, created_at) = (self.new_id("sandbox"), self.tick());
        let sandbox = FakeSandbox { request, state: v1::PodSandboxState::SandboxReady, created_at };
        self.sandboxes.insert(id.clone(), sandbox);
        self.emit(&id, &id, v1::ContainerEventType::ContainerStartedEvent);
        Ok(id)
    }

    /// `StopPodSandbox`; unknown ids are no error.
    pub(super) fn stop_sandbox(&mut self, id: &str) {
        let inside = self.containers_of(id);
        inside.iter().for_each(|c| self.end(c, 137));
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.state = v1::PodSandboxState::SandboxNotready;
            self.emit(id, id, v1::ContainerEventType::ContainerStoppedEvent);
        }
    }

    /// `RemovePodSandbox`; unknown ids are no error.
    pub(super) fn remove_sandbox(&mut self, id: &str) {
        self.stop_sandbox(id);
        let inside = self.containers_of(id);
        inside.iter().for_each(|c| self.remove_container(c));
        if self.sandboxes.contains_key(id) {
            self.emit(id, id, v1::ContainerEventType::ContainerDeletedEvent);
        }
        self.sandboxes.remove(id);
    }

    fn containers_of(&self, sandbox: &str) -> Vec<String> {
        let inside = self.containers.iter().filter(|(_, c)| c.request.pod_sandbox_id == sandbox);
        inside.map(|(id, _)| id.clone()).collect()
    }

    /// `CreateContainer`; containerd does not mind a stopped sandbox here.
    pub(super) fn create_container(&mut self, request: v1::CreateContainerRequest) -> Result<String, Status> {
        let config = request.config.clone().ok_or_else(|| Status::invalid_argument("no config"))?;
        if !self.sandboxes.contains_key(&request.pod_sandbox_id) {
            let words = format!("failed to find sandbox id {:?}: not found", request.pod_sandbox_id);
            return Err(Status::not_found(words));
        }
        let image = config.image.clone().unwrap_or_default().image;
        if self.image_status(&image).is_none() {
            return Err(Status::not_found(format!("failed to resolve image {image:?}: not found")));
        }
        let name = container_name(&request);
        if let Some((id, _)) = self.containers.iter().find(|(_, c)| container_name(&c.request) == name) {
            return Err(reserved("container", &name, id));
        }
        let (id, created_at) = (self.new_id("container"), self.tick());
        let sandbox = request.pod_sandbox_id.clone();
        let container = FakeContainer {
            request,
            state: v1::ContainerState::ContainerCreated,
            exit_code: 0,
            created_at,
            started_at: 0,
            finished_at: 0,
        };
        self.containers.insert(id.clone(), container);
        self.emit(&id, &sandbox, v1::ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    /// `StartContainer`.
    pub(super) fn start_container(&mut self, id: &str) -> Result<(), Status> {
        let now = self.tick();
        let ready = |s: &BTreeMap<String, FakeSandbox>, id: &str| {
            s.get(id).is_some_and(|s| s.state == v1::PodSandboxState::SandboxReady)
        };
        let container = self.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        let sandbox = container.request.pod_sandbox_id.clone();
        if container.state != v1::ContainerState::ContainerCreated {
            return Err(Status::unknown(format!("container is in {} state", container.state.as_str_name())));
        }
        if !ready(&self.sandboxes, &sandbox) {
            return Err(Status::unknown(format!("sandbox container {sandbox:?} is not running")));
        }
        container.state = v1::ContainerState::ContainerRunning;
        container.started_at = now;
        let (exits, _) = behaviour(&container.request.config.clone().unwrap_or_default());
        self.emit(id, &sandbox, v1::ContainerEventType::ContainerStartedEvent);
        if let Some(code) = exits {
            self.end(id, code);
        }
        Ok(())
    }

    /// `StopContainer`; the grace is not waited for. Unknown ids are no error.
    pub(super) fn stop_container(&mut self, id: &str) {
        let deaf = self
            .containers
            .get(id)
            .is_some_and(|c| behaviour(&c.request.config.clone().unwrap_or_default()).1);
        self.end(id, if deaf { 137 } else { 143 });
    }

    /// The container's process ends, by itself or by force.
    pub fn end(&mut self, id: &str, code: i32) {
        let now = self.tick();
        let Some(container) = self.containers.get_mut(id) else { return };
        if container.state == v1::ContainerState::ContainerExited {
            return;
        }
        container.state = v1::ContainerState::ContainerExited;
        container.exit_code = code;
        container.finished_at = now;
        let sandbox = container.request.pod_sandbox_id.clone();
        self.emit(id, &sandbox, v1::ContainerEventType::ContainerStoppedEvent);
    }

    /// `RemoveContainer`; a running one is killed first. Unknown ids are no error.
    pub(super) fn remove_container(&mut self, id: &str) {
        self.end(id, 137);
        if let Some(container) = self.containers.remove(id) {
            let sandbox = container.request.pod_sandbox_id;
            self.emit(id, &sandbox, v1::ContainerEventType::ContainerDeletedEvent);
        }
    }

    /// `ListPodSandbox`.
    pub(super) fn list_sandboxes(&self, filter: &v1::PodSandboxFilter) -> Vec<v1::PodSandbox> {
        let ids = self.sandboxes.keys();
        let all = ids.filter_map(|id| self.sandbox_status(id).ok()).map(|s| v1::PodSandbox {
            id: s.id,
            metadata: s.metadata,
            state: s.state,
            created_at: s.created_at,
            labels: s.labels,
            annotations: s.annotations,
            runtime_handler: s.runtime_handler,
        });
        all.filter(|s| selected(&s.labels, &filter.label_selector)).collect()
    }

    /// `PodSandboxStatus`.
    pub(super) fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus, Status> {
        let sandbox = self.sandboxes.get(id).ok_or_else(|| not_found("sandbox", id))?;
        let config = sandbox.request.config.clone().unwrap_or_default();
        let options = config.linux.and_then(|l| l.security_context).and_then(|s| s.namespace_options);
        let host = options.as_ref().is_some_and(|o| o.network() == v1::NamespaceMode::Node);
        let ip = if host { String::new() } else { "10.88.0.2".to_owned() };
        let additional_ips = if host { Vec::new() } else { vec![v1::PodIp { ip: "fd00::2".to_owned() }] };
        Ok(v1::PodSandboxStatus {
            id: id.to_owned(),
            metadata: config.metadata,
            state: sandbox.state.into(),
            created_at: sandbox.created_at,
            network: Some(v1::PodSandboxNetworkStatus { ip, additional_ips }),
            linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options }) }),
            labels: config.labels,
            annotations: config.annotations,
            runtime_handler: sandbox.request.runtime_handler.clone(),
        })
    }

    /// `ListContainers`.
    pub(super) fn list_containers(&self, filter: &v1::ContainerFilter) -> Vec<v1::Container> {
        let all = self.containers.iter().map(|(id, c)| {
            let config = c.request.config.clone().unwrap_or_default();
            v1::Container {
                id: id.clone(),
                pod_sandbox_id: c.request.pod_sandbox_id.clone(),
                metadata: config.metadata,
                image: config.image,
                image_ref: String::new(),
                state: c.state.into(),
                created_at: c.created_at,
                labels: config.labels,
                annotations: config.annotations,
                image_id: String::new(),
            }
        });
        all.filter(|c| selected(&c.labels, &filter.label_selector)).collect()
    }

    /// `ContainerStatus`.
    pub(super) fn container_status(&self, id: &str) -> Result<v1::ContainerStatus, Status> {
        let container = self.containers.get(id).ok_or_else(|| not_found("container", id))?;
        let config = container.request.config.clone().unwrap_or_default();
        let directory = container.request.sandbox_config.clone().unwrap_or_default().log_directory;
        let reason = match (container.state, container.exit_code) {
            (v1::ContainerState::ContainerExited, 0) => "Completed",
            (v1::ContainerState::ContainerExited, _) => "Error",
            _ => "",
        };
        Ok(v1::ContainerStatus {
            id: id.to_owned(),
            metadata: config.metadata,
            state: container.state.into(),
            created_at: container.created_at,
            started_at: container.started_at,
            finished_at: container.finished_at,
            exit_code: container.exit_code,
            image: config.image,
            reason: reason.to_owned(),
            labels: config.labels,
            annotations: config.annotations,
            log_path: format!("{directory}/{}", config.log_path),
            stop_signal: config.stop_signal,
            mounts: config.mounts,
            ..Default::default()
        })
    }

    /// The image of that id, tag or digest.
    pub(super) fn image_status(&self, reference: &str) -> Option<&v1::Image> {
        self.images.values().find(|i| {
            i.id == reference || i.repo_tags.iter().chain(&i.repo_digests).any(|name| name == reference)
        })
    }

    /// `PullImage`.
    pub(super) fn pull(&mut self, reference: &str) -> Result<String, Status> {
        let image = self.registry.get(reference).cloned().ok_or_else(|| not_found("image", reference))?;
        let id = image.id.clone();
        self.images.insert(id.clone(), image);
        Ok(id)
    }

    /// `RemoveImage`; an absent one is no error.
    pub(super) fn remove_image(&mut self, reference: &str) {
        if let Some(id) = self.image_status(reference).map(|i| i.id.clone()) {
            self.images.remove(&id);
        }
    }
}

fn not_found(what: &str, id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find {what} {id:?}: not found"))
}
