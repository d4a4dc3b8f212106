//! Debugging tools of the node API: commands by `/run`, checkpoints, `/statusz`, `/flagz`, the log level, profiles.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::kubeconfig::Credentials;
use orlop_harness::cluster::node_api::NodeApi;
use serde_json::Value;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "api/tools",
    level: Level::L4n,
    expected_s: 15,
    about: "commands by /run, a checkpoint that the runtime refuses, /statusz and /flagz, the log level, profiles",
    group: GROUP,
    run: tools,
}];

const FIRST: &str = "172.30.0.10";

fn tools(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    joined.run_pod(api_pod("obeys", "first", STAYS, 1))?;
    let node = NodeApi::at(&joined.cluster, FIRST)?;
    let admin = joined.cluster.pki().node_admin()?;
    let post = |path: &str| node.post(&admin, path);
    let (status, said) = post("/run/default/obeys/c?cmd=echo+it+is+done")?;
    ensure!((status, said.as_str()) == (200, "it is done\n"), "/run: {status} {said}");
    let (status, said) = post("/run/default/obeys/c?cmd=ls+/nothing")?;
    let words = "command 'ls /nothing' exited with 1: ls: /nothing: No such file or directory";
    ensure!(status == 500 && said.trim() == words, "/run of a command that fails: {status} {said}");
    ensure!(post("/run/default/obeys/other?cmd=ls")?.0 == 500, "/run in a container that is not there");
    ensure!(post("/run/default/nobody/c?cmd=ls")?.0 == 404, "/run in a pod that is not there");
    ensure!(node.get(Some(&admin), "/run/default/obeys/c?cmd=ls")?.0 == 405, "GET of /run");
    // The image has no criu: the answer has the runtime's error.
    let (status, said) = post("/checkpoint/default/obeys/c")?;
    ensure!(
        status == 500 && said.starts_with("checkpointing of default/obeys/c failed ("),
        "{status} {said}"
    );
    ensure!(post("/checkpoint/default/obeys/none")?.0 == 404, "a checkpoint of nothing");
    let stranger = joined.cluster.pki().client("stranger", "stranger", None)?.credentials()?;
    for (path, subresource) in
        [("/run/default/obeys/c?cmd=id", "proxy"), ("/checkpoint/default/obeys/c", "checkpoint")]
    {
        let (status, said) = node.post(&stranger, path)?;
        ensure!(
            status == 403
                && said.contains(&format!("verb=create, resource=nodes, subresource(s)=[{subresource}")),
            "{said}"
        );
    }
    let (status, page) = node.get(Some(&admin), "/statusz")?;
    ensure!(
        status == 200 && page.contains("kubelet statusz") && page.contains("Emulation version: 1.36"),
        "{page}"
    );
    let (status, flags) = node.get(Some(&admin), "/flagz")?;
    ensure!(status == 200 && flags.contains("\nkubeconfig="), "{flags}");
    debugging(&node, &admin)?;
    let configz: Value = serde_json::from_str(&node.get(Some(&admin), "/configz")?.1)?;
    ensure!(configz["kubeletconfig"]["enableSystemLogQuery"] == true, "{configz}");
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "obeys", None)?;
    await_pod_gone(&joined.cluster, "obeys", 30)
}

/// The log level of the running agent, and profiles.
fn debugging(node: &NodeApi<'_>, admin: &Credentials) -> Result<()> {
    let set = |level: &str| node.send(Some(admin), "PUT", "/debug/flags/v", level);
    for (level, status, words) in [
        ("4", 200, "successfully set klog.logging.verbosity to 4\n"),
        ("much", 400, "strconv.ParseUint: parsing \"much\": invalid syntax\n"),
        ("2", 200, "successfully set klog.logging.verbosity to 2\n"),
    ] {
        let (is, said) = set(level)?;
        ensure!((is, said.as_str()) == (status, words), "level {level}: {is} {said}");
    }
    let (status, said) = set(&"9".repeat(1000))?;
    ensure!(status == 400 && said.starts_with("error reading request body"), "{status} {said}");
    let (status, said) = node.get(Some(admin), "/debug/pprof/cmdline")?;
    ensure!(status == 200 && said.contains("\0--kubeconfig="), "/debug/pprof/cmdline: {status} {said}");
    let (status, said) = node.get(Some(admin), "/debug/pprof/heap")?;
    ensure!(status == 501 && said.contains("keeps no record"), "/debug/pprof/heap: {status} {said}");
    Ok(())
}
