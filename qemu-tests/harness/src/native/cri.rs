//! Pods and containers of a node's runtime, listed over CRI by the harness itself (not through the agent's client,
//! whose faults it must be able to detect), and waits for changes.
//!
//! ```text
//! GetContainerEvents ─► notify ─► wait(): list again, ask the predicate, until it answers or time is up
//! ```
//! Invariant: an event only triggers another look; the lists are the truth.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hyper_util::rt::TokioIo;
use orlop_proto::cri::v1 as cri;
use orlop_proto::cri::v1::image_service_client::ImageServiceClient;
use orlop_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint, Uri};

/// How long to go on without an event before looking anyway: events are lost when the stream breaks.
const BACKSTOP: Duration = Duration::from_secs(1);

const POD_NAME: &str = "io.kubernetes.pod.name";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// The runtime's lists at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Every sandbox.
    pub sandboxes: Vec<cri::PodSandbox>,
    /// Every container.
    pub containers: Vec<cri::Container>,
}

impl View {
    /// Running containers of the pod, or of every pod with the prefix if `pod` ends in `*`.
    #[must_use]
    pub fn running(&self, pod: &str) -> Vec<&cri::Container> {
        self.of(pod).into_iter().filter(|c| c.state() == cri::ContainerState::ContainerRunning).collect()
    }

    /// Containers of the pod in any state.
    #[must_use]
    pub fn of(&self, pod: &str) -> Vec<&cri::Container> {
        self.containers.iter().filter(|c| matches(pod, c.labels.get(POD_NAME))).collect()
    }

    /// Sandboxes of the pod in any state.
    #[must_use]
    pub fn sandboxes_of(&self, pod: &str) -> Vec<&cri::PodSandbox> {
        self.sandboxes.iter().filter(|s| matches(pod, s.labels.get(POD_NAME))).collect()
    }

    /// The pod's only running container, if it has exactly one.
    #[must_use]
    pub fn one_running(&self, pod: &str) -> Option<String> {
        match self.running(pod).as_slice() {
            [one] => Some(one.id.clone()),
            _ => None,
        }
    }

    /// True if no running container and no ready sandbox of the pod is left.
    #[must_use]
    pub fn is_stopped(&self, pod: &str) -> bool {
        self.running(pod).is_empty()
            && self.sandboxes_of(pod).iter().all(|s| s.state() != cri::PodSandboxState::SandboxReady)
    }

    /// True if the runtime holds nothing of the pod.
    #[must_use]
    pub fn is_gone(&self, pod: &str) -> bool {
        self.of(pod).is_empty() && self.sandboxes_of(pod).is_empty()
    }

    /// One line per object, for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let empty = String::new();
        let mut lines: Vec<String> = self
            .sandboxes
            .iter()
            .map(|s| {
                format!(
                    "sandbox {} {} {:?}",
                    short(&s.id),
                    s.labels.get(POD_NAME).unwrap_or(&empty),
                    s.state()
                )
            })
            .collect();
        lines.extend(self.containers.iter().map(|c| {
            let (pod, name) = (c.labels.get(POD_NAME).unwrap_or(&empty), c.labels.get(CONTAINER_NAME));
            let attempt = c.metadata.as_ref().map_or(0, |m| m.attempt);
            format!(
                "container {} {pod}/{} attempt {attempt} {:?}",
                short(&c.id),
                name.unwrap_or(&empty),
                c.state()
            )
        }));
        lines.sort();
        if lines.is_empty() { "the runtime holds nothing".into() } else { lines.join("\n") }
    }
}

fn matches(pod: &str, label: Option<&String>) -> bool {
    let Some(label) = label else { return false };
    match pod.strip_suffix('*') {
        Some(prefix) => label.starts_with(prefix),
        None => label == pod,
    }
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// A client of a node's runtime.
pub struct Cri {
    runtime: Runtime,
    socket: PathBuf,
    client: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    changed: Arc<Notify>,
}

pub(super) fn channel(socket: &Path) -> Result<Channel> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Ok(Endpoint::try_from("http://cri.invalid").context("endpoint")?.connect_with_connector_lazy(connector))
}

impl Cri {
    /// A client for `socket`; connects when first used, and again when the runtime comes back.
    ///
    /// # Errors
    /// If no async runtime can be made.
    pub fn new(socket: &Path) -> Result<Cri> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("start an async runtime")?;
        let changed = Arc::new(Notify::new());
        let channel = {
            let _inside = runtime.enter();
            channel(socket)?
        };
        let client = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(16 << 20);
        runtime.spawn(follow_events(client.clone(), changed.clone()));
        let images = ImageServiceClient::new(channel);
        Ok(Cri { runtime, socket: socket.to_owned(), client, images, changed })
    }

    /// A client for calls that have no method here.
    #[must_use]
    pub fn runtime_client(&self) -> RuntimeServiceClient<Channel> {
        self.client.clone()
    }

    /// A client of the image service.
    #[must_use]
    pub fn image_client(&self) -> ImageServiceClient<Channel> {
        self.images.clone()
    }

    /// Runs calls of those clients.
    pub fn block_on<F: Future>(&self, calls: F) -> F::Output {
        self.runtime.block_on(calls)
    }

    /// The socket it talks to.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The lists as of now.
    ///
    /// # Errors
    /// If the runtime does not answer within ten seconds.
    pub fn view(&self) -> Result<View> {
        self.runtime.block_on(list(self.client.clone()))
    }

    /// `ContainerStatus` of one container.
    ///
    /// # Errors
    /// If the runtime does not know it.
    pub fn status(&self, id: &str) -> Result<cri::ContainerStatus> {
        let mut client = self.client.clone();
        let request = cri::ContainerStatusRequest { container_id: id.into(), verbose: false };
        let answer = self.runtime.block_on(client.container_status(request)).context("ContainerStatus")?;
        answer.into_inner().status.context("a container status without a status")
    }

    /// Waits until `look` returns a value for the lists.
    ///
    /// # Errors
    /// At the deadline: the expectation, and the present lists.
    pub fn wait<T>(
        &self,
        limit: Duration,
        what: &str,
        mut look: impl FnMut(&View) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            // Armed before the lists are read, so that nothing that happens meanwhile is missed.
            let changed = self.changed.notified();
            let seen = match self.view() {
                Ok(view) => match look(&view) {
                    Some(found) => return Ok(found),
                    None => view.describe(),
                },
                Err(e) => format!("{e:#}"),
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("waited {} s for {what}; instead:\n{seen}", limit.as_secs());
            }
            let _ = self.runtime.block_on(async { tokio::time::timeout(left.min(BACKSTOP), changed).await });
        }
    }
}

async fn list(mut client: RuntimeServiceClient<Channel>) -> Result<View> {
    let ask = async {
        let sandboxes =
            client.list_pod_sandbox(cri::ListPodSandboxRequest { filter: None }).await?.into_inner().items;
        let containers = client
            .list_containers(cri::ListContainersRequest { filter: None })
            .await?
            .into_inner()
            .containers;
        Ok::<_, tonic::Status>(View { sandboxes, containers })
    };
    tokio::time::timeout(Duration::from_secs(10), ask)
        .await
        .context("the runtime does not answer")?
        .context("list pods")
}

/// Turns every event, and every end of the stream, into a reason to look again. The call itself returns only with its
/// first event, so it is awaited only here.
async fn follow_events(mut client: RuntimeServiceClient<Channel>, changed: Arc<Notify>) {
    let mut retry = tokio::time::interval(BACKSTOP / 4);
    loop {
        if let Ok(answer) = client.get_container_events(cri::GetEventsRequest {}).await {
            let mut stream = answer.into_inner();
            changed.notify_waiters();
            while let Ok(Some(_)) = stream.message().await {
                changed.notify_waiters();
            }
        }
        changed.notify_waiters();
        // The runtime is down: its socket gives no signal when it is back.
        retry.tick().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(pod: &str, state: cri::ContainerState) -> cri::Container {
        cri::Container {
            id: format!("{pod}-id"),
            state: state.into(),
            labels: [(POD_NAME.to_owned(), pod.to_owned())].into(),
            ..Default::default()
        }
    }

    #[test]
    fn views_select_by_pod_and_state() {
        let view = View {
            sandboxes: vec![],
            containers: vec![
                container("a-1", cri::ContainerState::ContainerRunning),
                container("a-2", cri::ContainerState::ContainerExited),
                container("b", cri::ContainerState::ContainerRunning),
            ],
        };
        assert_eq!(view.one_running("a-1").as_deref(), Some("a-1-id"));
        assert_eq!(view.running("a-*").len(), 1);
        assert_eq!(view.of("a-*").len(), 2);
        assert!(view.is_stopped("a-2"));
        assert!(!view.is_gone("a-2"));
        assert!(view.is_gone("c"));
    }
}
