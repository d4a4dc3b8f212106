//! Registries and proxies of real sites, on a native node without a cluster: what a NodeConfig says about them reaches
//! containerd and the agent.
//!
//! Cases: `net/registry`, `net/proxy`.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::pki::Authority;
use orlop_harness::native::configured::configure;
use orlop_harness::native::connect_proxy::ConnectProxy;
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pods::Pod;
use orlop_harness::native::registry::{self, PASSWORD, PRIVATE, RegistryLog, USER};
use orlop_harness::native::{config, images};
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "net/registry",
        30,
        "a static pod's image comes from a registry with an authority of its own (registries.mirrors) and a password (files)",
        registry_with_password,
    ),
    HERE.case(
        "net/proxy",
        25,
        "an image comes through a proxy that alone knows the way, and another one past it, because noProxy says so",
        proxy,
    ),
];

/// The registry's port for TLS, on the node's loopback.
const PORT: u16 = 5443;
/// A registry of the node's own network.
const NEAR: &str = "near.e2e";
/// A registry that only the proxy reaches: nothing resolves its name.
const FAR: &str = "far.e2e";
/// The node's credentials for registries.
const CREDENTIALS: &str = "/var/lib/kubelet/config.json";

fn node(cx: &CaseContext<'_>) -> Result<NativeNode> {
    NativeNode::start(&cx.run, &cx.artefacts, built::agent(&cx.run, false)?)
}

/// Serves the node's images by TLS under both names; returns the authority's certificate.
fn serve(cx: &CaseContext<'_>, node: &NativeNode) -> Result<(ByteString, RegistryLog)> {
    let dir = cx.artefacts.join("net-pki");
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let authority = Authority::make(&dir, "ca", "registry")?;
    let tls = authority.server(&dir, "server", &[NEAR, FAR])?.server_config()?;
    let log = registry::serve_tls_in(node.pid(), PORT, &node.inside(images::REGISTRY), tls)?;
    let mut hosts =
        fs::OpenOptions::new().append(true).open(node.inside(config::HOSTS)).context("the node's hosts")?;
    writeln!(hosts, "127.0.0.1 {NEAR}").context("write the node's hosts")?;
    Ok((ByteString(authority.pem.into_bytes()), log))
}

/// Gives the node a static pod of that image; returns the pod's full name.
fn add_pod(node: &NativeNode, name: &str, image: &str) -> Result<String> {
    let pod = Pod::staying(name);
    node.write_manifest(&pod.file(), &pod.manifest().replace(&images::busybox(), image))?;
    Ok(pod.full_name())
}

fn registry_with_password(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = node(cx)?;
    let (authority, log) = serve(cx, &node)?;
    let host = format!("{NEAR}:{PORT}");
    let image = format!("{host}/{PRIVATE}busybox:1");
    let registries = json!({"mirrors": {host.clone(): {"caData": authority}}});
    configure(&node, &json!({"registries": registries}))?;
    node.start_agent_ready()?;
    let guest = add_pod(&node, "guest", &image)?;
    node.wait(30, "a pull without the password", |_| (log.count(PRIVATE, false) > 0).then_some(()))?;
    node.pass(Duration::from_secs(2))?;
    let view = node.cri().view()?;
    ensure!(view.one_running(&guest).is_none(), "it runs without the password:\n{}", view.describe());
    ensure!(log.count(PRIVATE, true) == 0, "the registry gave away what needs a password");

    // The agent reads the credentials at each pull, so the pod needs nothing but its next attempt.
    let credentials = json!({"auths": {host: {"username": USER, "password": PASSWORD}}}).to_string();
    let files = json!([{"path": CREDENTIALS, "content": credentials}]);
    configure(&node, &json!({"registries": registries, "files": files}))?;
    node.wait(60, "the pod of the image with a password", |v| v.one_running(&guest))?;
    ensure!(log.count(PRIVATE, true) > 0, "the image came from elsewhere");
    let mode = fs::metadata(node.inside(CREDENTIALS)).context("the credentials")?.permissions().mode();
    ensure!(mode & 0o7777 == 0o600, "mode of the credentials: {mode:o}");
    for name in ["agent.log", "containerd.log"] {
        let text = fs::read_to_string(node.logs().join(name)).with_context(|| format!("read {name}"))?;
        ensure!(!text.contains(PASSWORD), "{name} has the password");
    }
    Ok(())
}

fn proxy(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = node(cx)?;
    let (authority, log) = serve(cx, &node)?;
    let proxy = ConnectProxy::start_in(node.pid(), SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)))?;
    let url = format!("http://{USER}:{}@{}", PASSWORD.replace(' ', "%20"), proxy.address());
    let environment = configure(
        &node,
        &json!({"trust": {"caCertificates": [authority]}, "proxy": {"https": url, "noProxy": [NEAR]}}),
    )?;
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    node.kill_containerd()?;
    node.start_containerd_in(&environment)?;
    node.start_agent_ready()?;
    let near = add_pod(&node, "near", &format!("{NEAR}:{PORT}/e2e/busybox:1"))?;
    node.wait(60, "the pod of the near image", |v| v.one_running(&near))?;
    ensure!(log.count("/manifests/", true) > 0, "the near image came from elsewhere");
    let carried = proxy.carried();
    ensure!(carried.is_empty(), "in spite of noProxy the proxy carried {carried:?}");
    let far = add_pod(&node, "far", &format!("{FAR}:{PORT}/e2e/busybox:1"))?;
    node.wait(60, "the pod of the far image", |v| v.one_running(&far))?;
    let (carried, target) = (proxy.carried(), format!("{FAR}:{PORT}"));
    ensure!(!carried.is_empty() && carried.iter().all(|t| *t == target), "the proxy carried {carried:?}");
    Ok(())
}
