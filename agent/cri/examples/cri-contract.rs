//! Checks a real container runtime against what we rely on; the harness runs it on the native node.
//!
//! `cri-contract binary EXECUTABLE` compares the CRI descriptor inside the runtime's executable with ours.
//! `cri-contract runtime --endpoint unix:///… --image REF …` runs the contract suite, then makes a pod and reads
//! every answer undecoded for anything our contract does not know. It cleans up after itself when it succeeds.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agent_cri::CriClient;
use agent_cri::testing::{Commands, Subject, WireProbe, contract_suite};
use agent_kubelet_api::drivers::{Exec as _, ImageService as _, Runtime as _};
use agent_types::ids::SandboxId;
use agent_types::runtime::config::NamespaceMode;
use agent_types::runtime::observed::{ContainerState, RuntimeSignal};
use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use orlop_proto::contract::{Contract, go_binary};
use orlop_proto::cri::v1;
use prost::Message;
use tokio::time::{Instant, sleep_until};

/// The suite creates, starts, stops and removes at least this many things.
const EVENTS_MIN: usize = 12;
/// Between looks at a container that is about to exit.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Parser)]
enum Cli {
    /// Compare the descriptor inside an executable with ours.
    Binary {
        /// The runtime's executable.
        #[arg(env = "ORLOP_CONTAINERD_BIN")]
        executable: String,
    },
    /// Run the contract suite and the wire check against a running runtime.
    Runtime(RuntimeArgs),
}

#[derive(clap::Args)]
struct RuntimeArgs {
    /// The runtime's socket.
    #[arg(long, default_value = "unix:///run/containerd/containerd.sock")]
    endpoint: String,
    /// An image that is present.
    #[arg(long)]
    image: String,
    /// Command that runs until TERM; words are separated by blanks.
    #[arg(long)]
    runs: String,
    /// Command that exits soon.
    #[arg(long)]
    exits: String,
    /// Its exit code.
    #[arg(long)]
    code: i32,
    /// Command that ignores TERM.
    #[arg(long)]
    deaf: String,
    /// Use the node's network.
    #[arg(long)]
    host_network: bool,
    /// cgroup parent of the pod.
    #[arg(long, default_value = "")]
    cgroup_parent: String,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse() {
        Cli::Binary { executable } => binary(&executable),
        Cli::Runtime(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(against(&args))
        }
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}

fn binary(executable: &str) -> anyhow::Result<()> {
    let bytes = std::fs::read(executable).with_context(|| format!("read {executable}"))?;
    let file = go_binary::find_descriptor(&bytes, "runtime.v1")
        .with_context(|| format!("{executable} carries no descriptor of runtime.v1"))?;
    let (ours, theirs) = (Contract::ours()?, Contract::of_file(&file));
    let differences = ours.compare(&theirs);
    for difference in &differences {
        say(&difference.to_string())?;
    }
    let breaking = differences.iter().filter(|d| d.is_breaking()).count();
    let fields: usize = theirs.messages.values().map(std::collections::BTreeMap::len).sum();
    say(&format!(
        "{executable}: {} messages, {fields} fields, {} enums compared: {} differences, {breaking} breaking",
        theirs.messages.len(),
        theirs.enums.len(),
        differences.len()
    ))?;
    ensure!(breaking == 0, "the wire contract is broken in {breaking} places");
    Ok(())
}

async fn against(args: &RuntimeArgs) -> anyhow::Result<()> {
    let client = CriClient::connect(&args.endpoint, TIMEOUT).await?;
    let Some(image) = client.image_status(&args.image).await? else {
        bail!("image {} is not present", args.image)
    };
    let words = |s: &str| s.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let commands =
        Commands { runs: words(&args.runs), exits: (words(&args.exits), args.code), deaf: words(&args.deaf) };
    let network = if args.host_network { NamespaceMode::Node } else { NamespaceMode::Pod };
    let mut subject = Subject::new("orlop-contract", network, &image.id, &commands);
    subject.sandbox.cgroup_parent.clone_from(&args.cgroup_parent);
    remove_pod(&client, &subject).await.context("remove what an earlier run left")?;
    let (mut signals, driver) = client.events();
    let driver = tokio::spawn(driver);
    let first = signals.recv().await.context("the event stream says nothing")?;
    let (count_hints, hints) = (subject.sandbox.pod.uid.clone(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&hints);
    let listener = tokio::spawn(async move {
        while let Some(signal) = signals.recv().await {
            if matches!(signal, RuntimeSignal::Hint(h) if h.uid == count_hints) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let moment = async || sleep_until(Instant::now() + LOOK_EVERY).await;
    let checks = contract_suite(&client, &subject, moment).await?;
    for check in &checks {
        say(&format!("ok {check}"))?;
    }
    let sandbox = client.run_sandbox(&subject.sandbox).await?;
    let outcome = wire(&client, args, &subject, &sandbox).await;
    remove_pod(&client, &subject).await?;
    let answers = outcome?;
    listener.abort();
    driver.await?;
    let hints = hints.load(Ordering::Relaxed);
    say(&format!("events: first {first:?}, then {hints} hints about the pod"))?;
    ensure!(
        first == RuntimeSignal::Unsupported || hints >= EVENTS_MIN,
        "expected at least {EVENTS_MIN} hints"
    );
    say(&format!("{} checks held; {answers} answers read undecoded, nothing unknown in them", checks.len()))
}

async fn remove_pod(client: &CriClient, subject: &Subject) -> anyhow::Result<()> {
    let (_, seen) = client.inspect(&subject.sandbox.pod.uid).await?;
    for sandbox in &seen.sandboxes {
        client.stop_sandbox(&sandbox.id).await?;
        client.remove_sandbox(&sandbox.id).await?;
    }
    Ok(())
}

/// Reads every kind of answer about the sandbox, one running and one exited container; returns how many.
async fn wire(
    client: &CriClient,
    args: &RuntimeArgs,
    subject: &Subject,
    sandbox: &SandboxId,
) -> anyhow::Result<usize> {
    let running = client.create_container(sandbox, &subject.runs, &subject.sandbox).await?;
    client.start_container(&running).await?;
    let exiting = client.create_container(sandbox, &subject.exits.0, &subject.sandbox).await?;
    client.start_container(&exiting).await?;
    let exited = async || -> anyhow::Result<bool> {
        let (_, seen) = client.inspect(&subject.sandbox.pod.uid).await?;
        Ok(seen.containers.iter().any(|c| c.id == exiting && c.state == ContainerState::Exited))
    };
    while !exited().await? {
        sleep_until(Instant::now() + LOOK_EVERY).await;
    }
    let command = &subject.exits.0.command;
    let output = client.exec_sync(&running, command, Some(TIMEOUT)).await?;
    ensure!(output.exit_code == args.code, "exec_sync of {command:?}: {output:?}");
    let mut reader =
        Reader { probe: WireProbe::new(&args.endpoint, TIMEOUT)?, ours: Contract::ours()?, answers: 0 };
    let (s, c) = ("RuntimeService", [running.to_string(), exiting.to_string()]);
    reader.read(s, "Version", v1::VersionRequest::default()).await?;
    reader.read(s, "Status", v1::StatusRequest { verbose: true }).await?;
    reader.read(s, "RuntimeConfig", v1::RuntimeConfigRequest {}).await?;
    reader.read(s, "ListPodSandbox", v1::ListPodSandboxRequest::default()).await?;
    let status = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_string(), verbose: true };
    reader.read(s, "PodSandboxStatus", status).await?;
    reader.read(s, "ListContainers", v1::ListContainersRequest::default()).await?;
    for id in c {
        reader
            .read(s, "ContainerStatus", v1::ContainerStatusRequest { container_id: id, verbose: true })
            .await?;
    }
    reader.read(s, "ListContainerStats", v1::ListContainerStatsRequest::default()).await?;
    reader.read(s, "ListPodSandboxStats", v1::ListPodSandboxStatsRequest::default()).await?;
    reader.read(s, "ListMetricDescriptors", v1::ListMetricDescriptorsRequest {}).await?;
    reader.read(s, "ListPodSandboxMetrics", v1::ListPodSandboxMetricsRequest {}).await?;
    let exec = v1::ExecSyncRequest { container_id: running.to_string(), cmd: command.clone(), timeout: 10 };
    reader.read(s, "ExecSync", exec).await?;
    let i = "ImageService";
    reader.read(i, "ListImages", v1::ListImagesRequest::default()).await?;
    let image = Some(v1::ImageSpec { image: args.image.clone(), ..Default::default() });
    reader.read(i, "ImageStatus", v1::ImageStatusRequest { image, verbose: true }).await?;
    reader.read(i, "ImageFsInfo", v1::ImageFsInfoRequest {}).await?;
    Ok(reader.answers)
}

struct Reader {
    probe: WireProbe,
    ours: Contract,
    answers: usize,
}

impl Reader {
    async fn read(&mut self, service: &str, method: &str, request: impl Message) -> anyhow::Result<()> {
        let message =
            self.ours.services.get(service).and_then(|s| s.get(method)).context("method is not ours")?;
        let message = message.output.clone();
        match self.probe.call(service, method, &request).await {
            Ok(bytes) => {
                let unknown = self.ours.unknown_on_wire(&message, &bytes);
                ensure!(unknown.is_empty(), "{method} answers what we do not know: {}", unknown.join("; "));
                ensure!(!bytes.is_empty() || method.starts_with("List"), "{method} answers nothing");
                self.answers += 1;
                say(&format!("ok {method}: {} bytes", bytes.len()))
            }
            Err(status) if status.code() == tonic::Code::Unimplemented => {
                say(&format!("-- {method}: unimplemented"))
            }
            Err(status) => bail!("{method}: {status}"),
        }
    }
}
