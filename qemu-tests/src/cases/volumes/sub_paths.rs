//! `subPath` and `fsGroup` as the upstream kubelet handles them: a ConfigMap that changes while containers start,
//! absolute links of the host, files that refuse a group.
//!
//! Cases: `volumes/sub-path-changes`, `volumes/sub-path-links`, `volumes/group-refused`.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Patch, PatchParams};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, api_pod, named_container};
use serde_json::{Value, json};

use crate::cases::volumes::claims::{DISKS, create, local, pod, put_claim, put_volume, remove, words_of};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/sub-path-changes",
        30,
        "a ConfigMap that changes all the time fails no container that mounts a part of it and starts meanwhile",
        changes,
    ),
    HERE.case(
        "volumes/sub-path-links",
        15,
        "a part of a hostPath is found through an absolute link that ends in the volume, and made behind one",
        links,
    ),
    HERE.case(
        "volumes/group-refused",
        15,
        "a volume whose files refuse their group is given to its pod all the same",
        group_refused,
    ),
];

/// Pods of the first case, and containers of each.
const PODS: usize = 8;
const CONTAINERS: usize = 4;

/// A pod whose containers all mount the key of the ConfigMap, and end.
fn reader(name: &str) -> Value {
    let mut pod = api_pod(name, "first", "", 1);
    let container = |number: usize| {
        let mut container = named_container(&format!("c{number}"), "cat /part > /dev/termination-log");
        container["volumeMounts"] = json!([{"name": "v", "mountPath": "/part", "subPath": "k"}]);
        container
    };
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["initContainers"] = json!([container(0)]);
    pod["spec"]["containers"] = (1..CONTAINERS).map(container).collect();
    pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "changing"}}]);
    pod
}

fn changes(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let configs = client.of::<ConfigMap>("default");
    client.create(&configs, json!({"metadata": {"name": "changing"}, "data": {"k": "first"}}))?;
    let changing = client.handle().spawn(async move {
        let mut number = 0_u64;
        loop {
            number += 1;
            let patch = Patch::Merge(json!({"data": {"k": number.to_string()}}));
            // An answer that is lost is no reason to stop: the case looks at the pods.
            let _ = configs.patch("changing", &PatchParams::default(), &patch).await;
        }
    });
    let names: Vec<String> = (0..PODS).map(|number| format!("reads-{number}")).collect();
    let ended = names.iter().try_for_each(|name| create(&joined.cluster, reader(name))).and_then(|()| {
        client.wait::<Pod, _>(&client.of("default"), 120, "all readers to have ended", |all| {
            let end = |name: &String| {
                let phase = all.get(name)?.status.as_ref()?.phase.clone()?;
                ["Succeeded", "Failed"].contains(&phase.as_str()).then(|| (name.clone(), phase))
            };
            names.iter().map(end).collect::<Option<Vec<_>>>()
        })
    });
    changing.abort();
    let failed: Vec<_> = ended?.into_iter().filter(|(_, phase)| phase != "Succeeded").collect();
    ensure!(failed.is_empty(), "{} of {PODS} pods failed: {failed:?}", failed.len());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    remove(joined, &names, &[])?;
    let client = joined.cluster.client();
    client.delete::<ConfigMap>(&client.of("default"), "changing", None)
}

fn links(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let volume = format!("{DISKS}/links");
    let script = format!(
        "mkdir -p /v/releases/1 && echo here > /v/releases/1/f && ln -sfn {volume}/releases/1 /v/current && \
         ln -sfn ../links/releases /v/all"
    );
    let mut makes = named_container("makes", &script);
    makes["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let script = "cat /current/f /all/1/f > /dev/termination-log; ls /v/releases/1 >> /dev/termination-log";
    let mut pod = api_pod("links", "first", script, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["initContainers"] = json!([makes]);
    pod["spec"]["volumes"] =
        json!([{"name": "v", "hostPath": {"path": volume, "type": "DirectoryOrCreate"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "v", "mountPath": "/v"},
        {"name": "v", "mountPath": "/current", "subPath": "current"},
        {"name": "v", "mountPath": "/all", "subPath": "all"},
        {"name": "v", "mountPath": "/made", "subPath": "current/made"}]);
    create(&joined.cluster, pod)?;
    let seen = words_of(joined, "links")?;
    ensure!(seen == "here\nhere\nf\nmade\n", "it found {seen:?}");
    remove(joined, &["links"], &[])
}

fn group_refused(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    // Files of sysctl refuse a change of group and mode, also by root.
    let mut source = local("none");
    source["local"]["path"] = json!("/proc/sys/kernel");
    put_volume(&joined.cluster, "refuses", &source, "ReadWriteOnce")?;
    put_claim(&joined.cluster, "refuses", "ReadWriteOnce")?;
    let mut reads = pod("refuses", "cat /d/ostype > /dev/termination-log", "refuses", false);
    reads["spec"]["restartPolicy"] = json!("Never");
    reads["spec"]["securityContext"] = json!({"fsGroup": 2000});
    create(&joined.cluster, reads)?;
    let seen = words_of(joined, "refuses")?;
    ensure!(seen == "Linux\n", "it read {seen:?}");
    remove(joined, &["refuses"], &["refuses"])
}
