//! Inputs of the Node object: machine, network, runtime and PLEG.
//!
//! ```text
//! machine (every 30 s) · network (on change, every 30 s) · runtime status (100 ms until ready, then 5 s)
//! images (every 30 s) · PLEG's health (on change)  ──► NodeStatusEvent::Input ──► node object
//! ```
//! In: drivers and views. Out: inputs; the state machine compares them and decides. Each feed does a few small reads or
//! one CRI call, and walks no directory.

use std::sync::Arc;
use std::time::Duration;

use agent_core::events::Fact;
use agent_core::node_status::{NodeImage, NodeInput, NodeStatusEvent};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::resources::machine::{HostNetwork, MachineFacts};
use agent_types::time::Mono;
use tokio::sync::{Notify, watch};

use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

/// Period of the runtime status, as upstream's.
const RUNTIME: Duration = Duration::from_secs(5);
/// The same until the Node is shown as ready, but not longer than [`START`] after the start.
const RUNTIME_AT_START: Duration = Duration::from_millis(100);
/// See [`RUNTIME_AT_START`].
const START: Duration = Duration::from_secs(120);
/// How long the feed waits for the first look-up of the node's name before it sends the node's addresses without the
/// result.
const LOOK_UP: Duration = Duration::from_millis(200);
/// Period of values that rarely change; images as often as upstream lists them.
const RARELY: Duration = Duration::from_secs(30);

/// Reads the facts about the machine for the Node object. Both functions may block for small reads of /proc and /sys,
/// and for the resolver if `look_up` is set.
pub trait NodeFactsSource: Send + Sync + 'static {
    /// The machine.
    ///
    /// # Errors
    /// The value that cannot be read.
    fn machine_facts(&self) -> anyhow::Result<MachineFacts>;

    /// Interfaces, default routes, and with `look_up` the addresses that the node's name resolves to.
    ///
    /// # Errors
    /// The value that cannot be read.
    fn host_network(&self, look_up: bool) -> anyhow::Result<HostNetwork>;

    /// Problems of this machine that pods may notice: events of the node, sent once at the start.
    fn warnings(&self) -> Vec<Fact> {
        Vec::new()
    }

    /// Notified when an address or a route of the host changed; `tasks` carries the listener.
    fn network_changes(&self, tasks: &Tasks) -> Arc<Notify>;
}

/// Sources of the feeds.
pub struct FeedSources<R, I, C> {
    /// CRI RuntimeService.
    pub runtime: Arc<R>,
    /// CRI ImageService.
    pub images: Arc<I>,
    /// The machine.
    pub facts: Arc<C>,
    /// Whether PLEG is healthy.
    pub pleg: watch::Receiver<Result<(), String>>,
}

/// The feeds of the Node object.
pub struct Feeds<R, I, C> {
    /// Sources of the feeds.
    pub sources: FeedSources<R, I, C>,
    /// Whether the API server shows the node as ready.
    pub ready: watch::Receiver<bool>,
    /// Notified when an address or a route of the host changed.
    pub network_changed: Arc<Notify>,
    /// Mailbox of the Node object.
    pub to: Sender<NodeStatusEvent>,
}

impl<R: Runtime, I: ImageService, C: NodeFactsSource> Feeds<R, I, C> {
    /// Starts all feeds; they end with the node.
    pub fn start(self, tasks: &Tasks) {
        let FeedSources { runtime, images, facts, pleg } = self.sources;
        tasks.start(follow_pleg(pleg, self.to.clone()));
        tasks.start(follow_images(images, self.to.clone(), tasks.clone()));
        tasks.start(follow_machine(facts, self.network_changed, self.to.clone(), tasks.clone()));
        tasks.start(follow_runtime(runtime, self.ready, self.to, tasks.clone()));
    }
}

fn send(to: &Sender<NodeStatusEvent>, input: NodeInput) {
    to.send(NodeStatusEvent::Input(input));
}

async fn follow_pleg(mut health: watch::Receiver<Result<(), String>>, to: Sender<NodeStatusEvent>) {
    loop {
        let now = health.borrow_and_update().clone();
        send(&to, NodeInput::Pleg(now));
        if health.changed().await.is_err() {
            return;
        }
    }
}

async fn follow_images<I: ImageService>(images: Arc<I>, to: Sender<NodeStatusEvent>, tasks: Tasks) {
    loop {
        match images.list_images().await {
            Ok(list) => {
                let list = list.into_iter().map(|image| NodeImage {
                    repo_digests: image.repo_digests,
                    repo_tags: image.repo_tags,
                    size_bytes: image.size_bytes,
                });
                send(&to, NodeInput::Images(list.collect()));
            }
            Err(error) => tracing::debug!(%error, "images not listed; the node shows those of before"),
        }
        tasks.wait_until(tasks.now().mono.after(RARELY)).await;
    }
}

async fn follow_machine<C: NodeFactsSource>(
    facts: Arc<C>,
    changed: Arc<Notify>,
    to: Sender<NodeStatusEvent>,
    tasks: Tasks,
) {
    let mut first = true;
    loop {
        // Both feeds run concurrently: a resolver that does not answer delays only the network.
        let ((), ended) =
            tokio::join!(tell_machine(&facts, &to, &tasks), tell_network(&facts, first, &to, &tasks),);
        if ended.is_none() {
            return;
        }
        first = false;
        tokio::select! {
            // Both branches only wait; dropping one loses nothing.
            () = changed.notified() => {}
            () = tasks.wait_until(tasks.now().mono.after(RARELY)) => {}
        }
    }
}

async fn tell_machine<C: NodeFactsSource>(facts: &Arc<C>, to: &Sender<NodeStatusEvent>, tasks: &Tasks) {
    let source = facts.clone();
    if let Some(machine) = tasks.blocking(move || source.machine_facts()).await {
        send(to, NodeInput::Machine(machine.map_err(|error| format!("{error:#}"))));
    }
}

/// `None` if the node is being stopped.
async fn tell_network<C: NodeFactsSource>(
    facts: &Arc<C>,
    first: bool,
    to: &Sender<NodeStatusEvent>,
    tasks: &Tasks,
) -> Option<()> {
    let read = |look_up| {
        let source = facts.clone();
        tasks.blocking(move || source.host_network(look_up))
    };
    let mut looked_up = std::pin::pin!(read(true));
    let network = tokio::select! {
        network = &mut looked_up => network?,
        // A resolver that does not answer takes seconds, and the node's address seldom depends on the resolver.
        () = tasks.wait_until(tasks.now().mono.after(LOOK_UP)), if first => {
            send_network(to, read(false).await?);
            looked_up.await?
        }
    };
    send_network(to, network);
    Some(())
}

fn send_network(to: &Sender<NodeStatusEvent>, network: anyhow::Result<HostNetwork>) {
    match network {
        Ok(network) => send(to, NodeInput::Network(network)),
        Err(error) => tracing::warn!(error = format!("{error:#}"), "the host's network cannot be read"),
    }
}

async fn follow_runtime<R: Runtime>(
    runtime: Arc<R>,
    ready: watch::Receiver<bool>,
    to: Sender<NodeStatusEvent>,
    tasks: Tasks,
) {
    let start = tasks.now().mono;
    let (version, mut result) = tokio::join!(runtime.version(), runtime.status());
    if let Ok(version) = version {
        send(&to, NodeInput::RuntimeVersion(version));
    }
    let mut asked: Mono = start;
    loop {
        send(&to, NodeInput::Runtime { asked, result: result.map_err(|error| error.to_string()) });
        let starting = !*ready.borrow() && asked.since(start) < START;
        let pause = if starting { RUNTIME_AT_START } else { RUNTIME };
        tasks.wait_until(tasks.now().mono.after(pause)).await;
        asked = tasks.now().mono;
        result = runtime.status().await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::{Mutex, mpsc};

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::testing::VirtualClock;

    const NAMED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// A machine whose resolver answers when the test allows it.
    struct SlowResolver(Mutex<mpsc::Receiver<()>>);

    impl NodeFactsSource for SlowResolver {
        fn machine_facts(&self) -> anyhow::Result<MachineFacts> {
            Ok(MachineFacts::default())
        }

        fn host_network(&self, look_up: bool) -> anyhow::Result<HostNetwork> {
            if !look_up {
                return Ok(HostNetwork::default());
            }
            self.0.lock().expect("nobody panics").recv()?;
            Ok(HostNetwork { resolved: vec![NAMED], ..HostNetwork::default() })
        }

        fn network_changes(&self, _: &Tasks) -> Arc<Notify> {
            Arc::default()
        }
    }

    #[tokio::test]
    async fn a_resolver_that_does_not_answer_is_not_waited_for() {
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (to, mut inbox) = tasks.mailbox();
        let (answer, answers) = mpsc::channel();
        let source = Arc::new(SlowResolver(Mutex::new(answers)));
        tasks.start(follow_machine(source, Arc::default(), to, tasks.clone()));
        let mut next = async || match inbox.recv().await {
            NodeStatusEvent::Input(input) => input,
            other => panic!("not asked for: {other:?}"),
        };
        for _ in 0..2 {
            match next().await {
                NodeInput::Machine(machine) => assert!(machine.is_ok()),
                NodeInput::Network(network) => assert_eq!(network, HostNetwork::default()),
                other => panic!("not asked for: {other:?}"),
            }
        }
        answer.send(()).expect("it is waited for");
        assert!(matches!(next().await, NodeInput::Network(n) if n.resolved == [NAMED]));
        tasks.stop().cancel();
    }
}
