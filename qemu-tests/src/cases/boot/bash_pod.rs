//! Static pods for the VM of `boot/*` whose programs are the test image's own: the sample image with the node's /usr. The
//! container runs a script of bash and leaves what it prints on the node.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::cases::boot::shared_vm::Node;

/// Static pods of the node.
pub(crate) const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// Limit for a pod's output, seconds.
const LIMIT_S: u64 = 120;
/// Last line of a script's output.
const OVER: &str = "over=yes";
/// The debug shell takes lines of 4096 bytes.
const PIECE: usize = 900;

/// A pod with one container that runs `script`, without single quotes, with the node's directory `out` as `/out`. The
/// script's output goes to the file `out/name`; then the container sleeps.
pub(crate) fn manifest(name: &str, out: &str, script: &str, security: &Value) -> Value {
    let script = format!("exec > /out/{name} 2>&1; {script} echo {OVER}; exec sleep 1000");
    let mounts = [("usr", "/usr"), ("lib", "/lib"), ("lib64", "/lib64"), ("out", "/out")];
    let from = [("usr", "/usr"), ("lib", "/usr/lib"), ("lib64", "/usr/lib64"), ("out", out)];
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": from.map(|(name, path)| json!({"name": name, "hostPath": {"path": path}})),
            "containers": [{
                "name": "c", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
                "command": ["/usr/bin/bash", "-c", script],
                "env": [{"name": "PATH", "value": "/usr/bin"}],
                "securityContext": security,
                "volumeMounts": mounts.map(|(name, path)| json!({"name": name, "mountPath": path})),
            }],
        },
    })
}

/// Writes the manifest where the agent finds it, as `<name>.json`.
pub(crate) fn start(node: &mut Node, name: &str, manifest: &Value) -> Result<()> {
    let text = manifest.to_string();
    ensure!(text.is_ascii() && !text.contains('\''), "the shell cannot take this manifest: {text}");
    node.must(&format!("mkdir -p {MANIFESTS} && : > {MANIFESTS}/.new"))?;
    for piece in text.as_bytes().chunks(PIECE) {
        let piece = String::from_utf8_lossy(piece);
        node.must(&format!("printf %s '{piece}' >> {MANIFESTS}/.new"))?;
    }
    node.must(&format!("mv {MANIFESTS}/.new {MANIFESTS}/{name}.json")).map(drop)
}

/// The complete output of the pod `name`. The node's own shell waits for it.
pub(crate) fn output(node: &mut Node, out: &str, name: &str) -> Result<String> {
    let wait = format!(
        "n=0; until grep -qx {OVER} {out}/{name} 2>/dev/null || [ $n -ge {LIMIT_S} ]; do \
         n=$((n+1)); sleep 1; done; cat {out}/{name}"
    );
    let text = node.vm()?.shell()?.run(&wait, Duration::from_secs(3 * LIMIT_S))?.text;
    if !text.lines().any(|l| l == OVER) {
        let journal = node.must("journalctl --boot --unit=kubelet --output=cat --lines=40")?;
        anyhow::bail!("pod {name} has said only {text:?} in {LIMIT_S} s:\n{journal}");
    }
    Ok(text)
}
