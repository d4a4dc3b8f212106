//! kubectl against a pod in the VM: exec, also at a terminal, cp, a followed log, port-forward, attach, debug, top.
//!
//! ```text
//! host's static busybox ─► second disk ─► /var/lib/e2e in the VM ─► hostPath ─► /bin of the pod
//! ```
//! The image's own containers have no shell. In: a VM that is Ready, metrics-server. Out: nothing; the pod is gone
//! afterwards.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use orlop_harness::case::CaseContext;
use orlop_harness::cluster::attach::{self, Listener};
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::terminal;
use orlop_harness::cluster::vm_node::VmNode;
use orlop_harness::native::images::host_busybox;
use orlop_harness::process::Guarded;
use orlop_harness::vm::shell::Shell;
use serde_json::json;

use crate::cases::join::vm::VM;

const POD: &str = "tools";
/// Directory of busybox in the VM.
pub(crate) const PROGRAMS: &str = "/var/lib/e2e";
/// Names of the commands that kubectl and the cases use.
const NAMES: [&str; 9] = ["sh", "cat", "echo", "httpd", "mkdir", "sleep", "stty", "tar", "touch"];
/// Disks have whole blocks.
const BLOCK: u64 = 1024 * 1024;
/// How long one step may take under TCG.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at a program's output.
const AGAIN: Duration = Duration::from_millis(250);
const SCRIPT: &str = "mkdir -p /www /tmp; echo served > /www/index.html; httpd -p 8080 -h /www; echo one; \
    while [ ! -e /tmp/go ]; do sleep 1; done; echo two; while true; do sleep 1000; done";

/// A disk with busybox, for [`VmNode::add_disk`].
pub(crate) fn disk(artefacts: &Path) -> Result<PathBuf> {
    let file = artefacts.join("busybox.raw");
    let bytes = fs::copy(host_busybox()?, &file).context("copy busybox")?;
    let disk = fs::OpenOptions::new().write(true).open(&file).context("open the second disk")?;
    disk.set_len(bytes.next_multiple_of(BLOCK)).context("fill the last block")?;
    Ok(file)
}

/// Copies the disk's files to [`PROGRAMS`], and links these names.
pub(crate) fn unpack(vm: &mut VmNode, names: &[&str]) -> Result<()> {
    let shell = vm.vm()?.shell()?;
    shell.must(&format!(
        "mkdir -p {PROGRAMS} && dd if=/dev/vdb of={PROGRAMS}/busybox bs={BLOCK} && chmod 755 {PROGRAMS}/busybox"
    ))?;
    link(shell, names)
}

/// Links these names to busybox.
pub(crate) fn link(shell: &mut Shell, names: &[&str]) -> Result<()> {
    let links: Vec<String> = names.iter().map(|name| format!("ln -sf busybox {PROGRAMS}/{name}")).collect();
    shell.must(&links.join(" && ")).map(drop)
}

/// Runs all of these commands.
pub(super) fn ensure_usable(cx: &CaseContext<'_>, cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    unpack(vm, &NAMES)?;
    let file = cx.artefacts.join("tools.json");
    fs::write(&file, pod().to_string()).context("write the pod")?;
    cluster.kubectl(&["create", "-f", &file.display().to_string()])?;
    await_pod_ready(cluster, POD, 120)?;
    let tools = Tools { cx, cluster };
    tools.exec()?;
    tools.exec_at_a_terminal()?;
    tools.copy()?;
    tools.follow()?;
    tools.forward()?;
    tools.debug()?;
    tools.attach()?;
    tools.top()?;
    cluster.kubectl(&["delete", "pod", POD, "--grace-period=1"])?;
    await_pod_gone(cluster, POD, 60)
}

fn pod() -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": {
        "nodeName": VM,
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "volumes": [{"name": "bin", "hostPath": {"path": PROGRAMS}}],
        "containers": [{
            "name": "c", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", SCRIPT], "securityContext": {"runAsUser": 0},
            "volumeMounts": [{"name": "bin", "mountPath": "/bin"}],
            // The page exists when the log has `one`.
            "readinessProbe": {"exec": {"command": ["/bin/cat", "/www/index.html"]}, "periodSeconds": 1},
        }, {
            "name": "listens", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never", "stdin": true,
            "stdinOnce": true, "command": ["/bin/sh", "-c", attach::SCRIPT],
            "volumeMounts": [{"name": "bin", "mountPath": "/bin"}],
        }],
    }})
}

struct Tools<'a> {
    cx: &'a CaseContext<'a>,
    cluster: &'a Cluster,
}

impl Tools<'_> {
    /// Starts kubectl in the background; returns it and the file of its output.
    fn start(&self, name: &str, args: &[&str]) -> Result<(Guarded, PathBuf)> {
        let said = self.cx.artefacts.join(name);
        let mut command = self.cluster.kubectl_command(args);
        command
            .stdin(Stdio::null())
            .stdout(File::create(&said)?)
            .stderr(File::create(self.cx.artefacts.join(format!("{name}.stderr")))?);
        Ok((Guarded::spawn(&self.cx.run, &mut command)?, said))
    }

    /// Repeats `look` until it returns a value; its error is the reason why there is none yet.
    fn await_some<T>(&self, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        let client = self.cluster.client();
        let mut again = client.block_on(async { tokio::time::interval(AGAIN) });
        let deadline = Instant::now() + LIMIT;
        loop {
            client.block_on(again.tick());
            match look() {
                Ok(found) => return Ok(found),
                Err(error) if Instant::now() >= deadline => {
                    return Err(error.context(format!("{what}, after {} s", LIMIT.as_secs())));
                }
                Err(_) => {}
            }
        }
    }

    fn exec(&self) -> Result<()> {
        let (mut kubectl, said) =
            self.start("exec", &["exec", POD, "--", "sh", "-c", "echo out; echo err >&2; exit 3"])?;
        let Some(status) = kubectl.wait(LIMIT)? else { bail!("kubectl exec does not end") };
        let said = fs::read_to_string(said)?;
        ensure!(said == "out\n" && status.code() == Some(3), "exec: {said:?}, {status}");
        Ok(())
    }

    fn exec_at_a_terminal(&self) -> Result<()> {
        let command = self.cluster.kubectl_command(&["exec", "-it", POD, "--", "sh"]);
        let typed = format!("{}; exit 5\n", terminal::ASK_SIZE);
        let dir = self.cx.artefacts.join("terminal");
        let (code, shown) = terminal::run(&self.cx.run, &dir, &command, &typed, LIMIT)?;
        let size = format!("{}\r\n", terminal::SIZE);
        ensure!(shown.contains(&size) && code == Some(5), "exec -it: {code:?}, {shown:?}");
        Ok(())
    }

    /// The container ends with its input, and attach with the container.
    fn attach(&self) -> Result<()> {
        let who = Listener { pod: POD, container: "listens", variables: &[] };
        attach::converse(&self.cx.run, &self.cx.artefacts, self.cluster, who, LIMIT)
    }

    fn copy(&self) -> Result<()> {
        let (there, back) = (self.cx.artefacts.join("there"), self.cx.artefacts.join("back"));
        let sent: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(&there, &sent)?;
        self.cluster.kubectl(&["cp", &there.display().to_string(), &format!("{POD}:/tmp/copied")])?;
        self.cluster.kubectl(&["cp", &format!("{POD}:/tmp/copied"), &back.display().to_string()])?;
        ensure!(fs::read(&back)? == sent, "kubectl cp there and back");
        Ok(())
    }

    /// Lines that are written during `logs --follow` reach the client.
    fn follow(&self) -> Result<()> {
        let (_kubectl, said) = self.start("follow", &["logs", "--follow", POD])?;
        let says = |expected: &str| {
            let said = fs::read_to_string(&said)?;
            ensure!(said == expected, "kubectl logs --follow says {said:?}, not {expected:?}");
            Ok(())
        };
        self.await_some("the log", || says("one\n"))?;
        self.cluster.kubectl(&["exec", POD, "--", "touch", "/tmp/go"])?;
        self.await_some("a line that came later", || says("one\ntwo\n"))
    }

    fn forward(&self) -> Result<()> {
        let (_kubectl, said) = self.start("forward", &["port-forward", &format!("pod/{POD}"), ":8080"])?;
        let port: u16 = self.await_some("the forwarded port", || {
            let said = fs::read_to_string(&said)?;
            let port = said.split_once("127.0.0.1:").and_then(|(_, rest)| rest.split(' ').next());
            port.and_then(|port| port.parse().ok()).with_context(|| format!("no port: {said:?}"))
        })?;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).context("connect to the forwarded port")?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("read from the forwarded port")?;
        ensure!(answer.ends_with("served\n"), "through the forwarded port: {answer}");
        Ok(())
    }

    fn debug(&self) -> Result<()> {
        let image = "--image=localhost/orlop/hello:1";
        let debugger = ["debug", POD, image, "--image-pull-policy=Never", "--container=looks"];
        self.cluster.kubectl(&debugger)?;
        self.await_some("the ephemeral container's words", || {
            let said = self.cluster.kubectl(&["logs", POD, "--container=looks"])?;
            ensure!(said.starts_with("Hello"), "{said:?}");
            Ok(())
        })
    }

    fn top(&self) -> Result<()> {
        for (what, name, args) in [
            ("the pod", POD, &["top", "pods", "--no-headers", POD][..]),
            ("the node", VM, &["top", "nodes", "--no-headers", VM]),
        ] {
            self.await_some(&format!("kubectl top of {what}"), || {
                let said = self.cluster.kubectl(args)?;
                let row: Vec<&str> = said.split_whitespace().collect();
                let right = row.len() >= 3 && row[0] == name && row.iter().any(|cell| cell.ends_with("Mi"));
                ensure!(right && row[1].ends_with('m'), "{said:?}");
                Ok(())
            })?;
        }
        Ok(())
    }
}
