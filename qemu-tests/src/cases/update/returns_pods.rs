//! Bad releases that boot and whose pods do not run: the node comes back by itself, on one VM with a static pod of a registry.
//!
//! Cases: `update/returns-cni`, `update/returns-registry`, `update/returns-image`. They share the VM and run in this order; each can also
//! run alone. What a version lacks is covered in its trial by an empty file system, through the debug shell.
//!
//! ```text
//! VM ── 10.0.2.2 ─► registry by TLS (an authority of its own, `registries.mirrors`)
//!                └► web server of the releases (another authority, `trust.caCertificates`)
//! ```

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::pki::Authority;
use orlop_harness::native::{images, registry};
use orlop_harness::run::Run;
use serde_json::json;

use super::bad_version::{BreakAt, ReturnsNode, returns};
use super::published::HERE as HOST_ADDRESS;
use crate::cases::boot::shared_vm::BOOT_LIMIT_S;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("returns-pods") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "update/returns-cni",
        780,
        "a version without CNI plugins, and so without a pod network, goes back within its deadline, and is refused by that name",
        cni,
    ),
    HERE.case(
        "update/returns-registry",
        660,
        "a version that does not trust a registry's authority any more goes back; the refusal names the static pod and the certificate",
        untrusted_registry,
    ),
    HERE.case(
        "update/returns-image",
        660,
        "a version whose baked-in images are missing, the sandbox's among them, goes back, and is refused by that name",
        image,
    ),
];

/// The registry's name for the node.
const REGISTRY: &str = "registry.e2e";
/// Seconds for which the pod sleeps, by which its process is found.
const SLEEPS_S: &str = "2147483647";
/// What containerd looks at for it.
const HOSTS: &str = "/var/lib/orlop/containerd/certs.d/registry.e2e";

/// Serves an image by TLS; returns what the NodeConfig says about the registry, and a static pod of the image.
fn serve(run: &Arc<Run>, dir: &Path) -> Result<String> {
    let images = dir.join("images");
    std::fs::create_dir_all(&images).context("make the registry's directory")?;
    images::make_registry(run, &images)?;
    let authority = Authority::make(dir, "registry-ca", "registry-ca")?;
    let tls = authority.server(dir, "registry-server", &[HOST_ADDRESS])?.server_config()?;
    let (port, _) = registry::serve_tls_on_loopback(&images, tls)?;
    let endpoint = format!("https://{HOST_ADDRESS}:{port}");
    let authority = orlop_config::base64::encode(authority.pem.as_bytes());
    let mirror = json!({"endpoints": [endpoint], "skipFallback": true, "caData": authority});
    let registries = json!({"mirrors": {REGISTRY: mirror}});
    // Each boot asks the registry.
    let container = json!({"name": "guest", "image": format!("{REGISTRY}/e2e/busybox:1"), "imagePullPolicy": "Always",
        "command": ["/bin/sleep", SLEEPS_S]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "guest", "namespace": "default"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}});
    Ok(format!("registries: {registries}\nstaticPods: [{pod}]\n"))
}

fn node<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut ReturnsNode> {
    cx.shared_or(|run, artefacts| {
        let mut node = ReturnsNode::start(run, artefacts, |lab| serve(run, lab.dir()))?;
        // Only what was ready before an update counts in it.
        let vm = node.vm()?;
        vm.await_phase("pod.running", 2 * BOOT_LIMIT_S).context("the pod of the registry's image")?;
        node.keep(vm);
        Ok(node)
    })
}

/// The command while no agent runs. On a fast machine pods run before the shell answers; a new agent does not know what they have shown.
fn between_agents(command: &str) -> String {
    format!("systemctl stop kubelet.service && {command} && systemctl start --no-block kubelet.service")
}

fn cni(cx: &mut CaseContext<'_>) -> Result<()> {
    let cover = "(for dir in /usr/lib/orlop/cni /usr/lib/cni; do [ ! -d $dir ] || mount -t tmpfs tmpfs $dir || exit 1; done)";
    returns(node(cx)?, BreakAt::Start, &between_agents(cover), &["runtime", "probe-pod"])
}

fn untrusted_registry(cx: &mut CaseContext<'_>) -> Result<()> {
    // What is left are the authorities of the system, without the registry's.
    let cover = format!(
        "(hosts=$(grep -v '^ *ca = ' {HOSTS}/hosts.toml) && mount -t tmpfs tmpfs {HOSTS} && echo \"$hosts\" > {HOSTS}/hosts.toml)"
    );
    // A container that runs already has to be started, and so pulled, again.
    let end = format!(
        "(for p in /proc/[0-9]*; do grep -aqs {SLEEPS_S} $p/cmdline && kill -9 ${{p##*/}}; done; true)"
    );
    returns(node(cx)?, BreakAt::Start, &between_agents(&format!("{cover} && {end}")), &["static-pods"])
}

fn image(cx: &mut CaseContext<'_>) -> Result<()> {
    // The store of a containerd that finds none of the image's: the state partition keeps the other one.
    let cover = "mount -t tmpfs tmpfs /var/lib/containerd && systemctl restart --no-block containerd.service";
    returns(node(cx)?, BreakAt::Start, &between_agents(cover), &["probe-pod", "static-pods"])
}
