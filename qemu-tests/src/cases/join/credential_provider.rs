//! A credential provider plugin in a cluster: a shell script with the password of the node's registry.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, await_pod_gone};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet, start_kubelet_with};
use orlop_harness::native::images::{install_busybox, private_busybox};
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::registry::{HOST, PASSWORD, USER};
use serde_json::{Value, json};

use crate::cases::join::image_pulls::{await_waiting, private_pod};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/credential-provider",
    60,
    "a plugin gets the token of a pod's service account and gives the password of its image, to nobody else; one that is broken keeps nobody back",
    credential_provider,
)];

/// Directory of the plugin, its tools and its configuration in the node.
const DIR: &str = "/var/lib/e2e-plugin";
const AUDIENCE: &str = "registry";
const ROLE: &str = "e2e.example/role";
const REFUSED: &[&str] = &["ErrImagePull", "ImagePullBackOff"];

fn credential_provider(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    // A node may request tokens for a plugin's audience only with this permission.
    client.create::<ClusterRole>(
        &client.all(),
        json!({"metadata": {"name": "e2e:registry-tokens"}, "rules": [{"apiGroups": [""],
            "resources": [AUDIENCE], "verbs": ["request-serviceaccounts-token-audience"]}]}),
    )?;
    client.create::<ClusterRoleBinding>(
        &client.all(),
        json!({"metadata": {"name": "e2e:registry-tokens"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "e2e:registry-tokens"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}]}),
    )?;
    client.create::<ServiceAccount>(
        &client.of("default"),
        json!({"metadata": {"name": "puller", "annotations": {ROLE: "reader", "e2e.example/other": "not told"}}}),
    )?;
    install_busybox(&joined.nodes[1].inside(&format!("{DIR}/tools")))?;
    lay_plugin(&joined.nodes[1], &answering())?;
    joined.nodes[1].kill_agent()?;
    start_with_plugin(&mut joined.nodes[1])?;

    joined.run_pod(pod("plugged", "puller", "IfNotPresent", &[]))?;
    let heard: Value =
        serde_json::from_str(&read(&joined.nodes[1], "heard")?).context("what the plugin was asked")?;
    ensure!(
        heard["kind"] == "CredentialProviderRequest"
            && heard["image"] == private_busybox().trim_end_matches(":1")
            && heard["serviceAccountAnnotations"] == json!({ROLE: "reader"}),
        "the plugin was asked {heard}"
    );
    let token = heard["serviceAccountToken"].as_str().unwrap_or_default();
    ensure!(token.split('.').count() == 3, "the plugin got the token {token:?}");
    // The account may use the image: the plugin's answer is cached, so neither the plugin nor the registry is asked.
    joined.run_pod(pod("fellow", "puller", "Never", &[]))?;
    let calls = read(&joined.nodes[1], "calls")?;
    ensure!(calls.lines().count() == 1, "the plugin ran {} times", calls.lines().count());
    let client = joined.cluster.client();
    let create = |pod: Value| client.create::<Pod>(&client.of("default"), pod);
    create(pod("stranger", "default", "IfNotPresent", &[]))?;
    await_waiting(&joined.cluster, "stranger", REFUSED)?;
    create(pod("blind", "default", "Never", &[]))?;
    await_waiting(&joined.cluster, "blind", &["ErrImageNeverPull"])?;

    // A plugin that talks nonsense is as good as none.
    joined.nodes[1].kill_agent()?;
    lay_plugin(&joined.nodes[1], "echo nonsense")?;
    start_with_plugin(&mut joined.nodes[1])?;
    let client = joined.cluster.client();
    let config = json!({"auths": {format!("http://{HOST}"): {"username": USER, "password": PASSWORD}}});
    client.create::<Secret>(
        &client.of("default"),
        json!({"metadata": {"name": "spare"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config.to_string()}}),
    )?;
    client.create::<Pod>(&client.of("default"), pod("unlucky", "puller", "Always", &[]))?;
    await_waiting(&joined.cluster, "unlucky", REFUSED)?;
    joined.run_pod(pod("lucky", "puller", "Always", &["spare"]))?;

    for name in ["plugged", "fellow", "stranger", "blind", "unlucky", "lucky"] {
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    client.delete::<Secret>(&client.of("default"), "spare", None)?;
    client.delete::<ServiceAccount>(&client.of("default"), "puller", None)?;
    joined.nodes[1].kill_agent()?;
    start_kubelet(&mut joined.nodes[1], JoinMethod::BootstrapKubeconfig)?;
    joined.cluster.ensure_nothing_forbidden()
}

fn pod(name: &str, account: &str, policy: &str, secrets: &[&str]) -> Value {
    let mut pod = private_pod(name, "second", policy, secrets);
    pod["spec"]["serviceAccountName"] = json!(account);
    pod
}

fn read(node: &NativeNode, name: &str) -> Result<String> {
    let path = node.inside(&format!("{DIR}/{name}"));
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// Lines of a script that logs its requests and answers.
fn answering() -> String {
    let answer = json!({"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
        "cacheKeyType": "Registry", "auth": {HOST: {"username": USER, "password": PASSWORD}}});
    format!("cat > {DIR}/heard\necho asked >> {DIR}/calls\necho '{answer}'")
}

fn lay_plugin(node: &NativeNode, script: &str) -> Result<()> {
    let bin = node.inside(&format!("{DIR}/bin"));
    fs::create_dir_all(&bin).with_context(|| format!("make {}", bin.display()))?;
    let program = bin.join("local");
    let text = format!("#!{DIR}/tools/sh\nPATH={DIR}/tools\n{script}\n");
    fs::write(&program, text).with_context(|| format!("write {}", program.display()))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).context("chmod the plugin")?;
    let config = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [{"name": "local", "matchImages": [HOST], "defaultCacheDuration": "1h",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "tokenAttributes": {"serviceAccountTokenAudience": AUDIENCE, "cacheType": "ServiceAccount",
                "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": [ROLE]}}]});
    let path = node.inside(&format!("{DIR}/config.json"));
    fs::write(&path, config.to_string()).with_context(|| format!("write {}", path.display()))
}

/// Starts an agent that knows the plugin.
fn start_with_plugin(node: &mut NativeNode) -> Result<()> {
    let flags = [
        format!("--image-credential-provider-config={DIR}/config.json"),
        format!("--image-credential-provider-bin-dir={DIR}/bin"),
    ];
    start_kubelet_with(node, JoinMethod::BootstrapKubeconfig, &flags)
}
