//! Volumes of pods in a cluster: tokens that the API server accepts, ConfigMaps and Secrets that change and are
//! missing, a kill of the agent, and owners and modes of the files.
//!
//! Cases: `volumes/token`, `volumes/update`, `volumes/missing`, `volumes/environment`, `volumes/files`,
//! `volumes/sub-path`, `volumes/killed`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Event, Pod, Secret};
use kube::Resource;
use kube::core::NamespaceResourceScope;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::client::Object;
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, container, last_words, uid,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::native::node::NativeNode;
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/token",
        15,
        "a pod that says nothing about tokens has one, and the API server knows the pod by it",
        token,
    ),
    HERE.case(
        "volumes/update",
        30,
        "changes of a ConfigMap and a Secret reach running containers, also those made while the agent is dead",
        update,
    ),
    HERE.case(
        "volumes/missing",
        20,
        "a pod waits for a missing Secret, says so, and runs as soon as it is there",
        missing,
    ),
    HERE.case(
        "volumes/environment",
        20,
        "variables from Secrets and ConfigMaps: waited for, prefixed, optional, one made of another",
        environment,
    ),
    HERE.case(
        "volumes/files",
        20,
        "files, modes, owners, memory and links of each kind of volume, seen from inside",
        files,
    ),
    HERE.case(
        "volumes/sub-path",
        20,
        "parts of volumes: a file of a ConfigMap, a directory named by a variable, none that leads out",
        sub_path,
    ),
    HERE.case(
        "volumes/killed",
        40,
        "an agent that is killed again and again while pods come and go loses no mount and leaves none",
        killed,
    ),
];

fn statuses(pod: &Pod) -> Vec<ContainerStatus> {
    pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default()
}

fn named(name: &str, script: &str, mounts: &Value) -> Value {
    let mut c = container(script);
    c["name"] = json!(name);
    c["volumeMounts"] = mounts.clone();
    c
}

/// Creates the pod and waits for the last words of one of its containers.
fn words_of(joined: &Joined, pod: Value, container: &str) -> Result<String> {
    let client = joined.cluster.client();
    let name = client.create::<Pod>(&client.of("default"), pod)?.metadata.name.unwrap_or_default();
    client.wait::<Pod, _>(&client.of("default"), 60, &format!("{container} of {name} to end"), |all| {
        last_words(all.get(&name)?, container)
    })
}

fn remove(joined: &Joined, name: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), name, None)?;
    await_pod_gone(&joined.cluster, name, 60)
}

/// Mount points of pods' volumes in a node.
pub(crate) fn mounts(node: &NativeNode) -> Result<Vec<String>> {
    let path = format!("/proc/{}/mountinfo", node.pid());
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.filter(|p| p.contains("/kubelet/pods/")).map(str::to_owned).collect())
}

fn token(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let script = "cd /var/run/secrets/kubernetes.io/serviceaccount && grep -q CERTIFICATE ca.crt && \
                  [ \"$(cat namespace)\" = default ] && cat token > /dev/termination-log";
    let mut pod = api_pod("token", "first", script, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    let token = words_of(joined, pod, "c")?;
    let client = joined.cluster.client();
    let review =
        client.create::<TokenReview>(&client.all(), json!({"metadata": {}, "spec": {"token": token}}))?;
    let status = review.status.context("no answer about the token")?;
    ensure!(status.authenticated == Some(true), "the token is not accepted: {:?}", status.error);
    let user = status.user.context("whose token it is")?;
    let pod_name = user.extra.as_ref().and_then(|e| e.get("authentication.kubernetes.io/pod-name")).cloned();
    let seen = (user.username.as_deref(), pod_name);
    let expected = (Some("system:serviceaccount:default:default"), Some(vec!["token".to_owned()]));
    ensure!(seen == expected, "it is {seen:?}'s, expected {expected:?}");
    remove(joined, "token")?;
    joined.cluster.ensure_nothing_forbidden()
}

fn put<K>(joined: &Joined, name: &str, field: &str, value: &str) -> Result<()>
where
    K: Object + Resource<Scope = NamespaceResourceScope>,
{
    let client = joined.cluster.client();
    let api = client.of::<K>("default");
    let data = json!({field: {"k": value}});
    if client.get(&api, name)?.is_some() {
        client.merge(&api, name, &data)?;
    } else {
        let mut object = data;
        object["metadata"] = json!({"name": name});
        client.create(&api, object)?;
    }
    Ok(())
}

fn update(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let config = |joined: &Joined, value: &str| put::<ConfigMap>(joined, "conf", "data", value);
    let secret = |joined: &Joined, value: &str| put::<Secret>(joined, "sec", "stringData", value);
    config(joined, "one")?;
    secret(joined, "one")?;
    let mounts = json!([{"name": "conf", "mountPath": "/conf"}, {"name": "both", "mountPath": "/both"}]);
    let until = |value: &str| {
        format!(
            "until [ \"$(cat /conf/k /both/conf /both/sec | tr -d '\\n')\" = {value}{value}{value} ]; do sleep 0.1; done"
        )
    };
    let mut pod = api_pod("update", "first", STAYS, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["volumes"] = json!([
        {"name": "conf", "configMap": {"name": "conf"}},
        {"name": "both", "projected": {"sources": [
            {"configMap": {"name": "conf", "items": [{"key": "k", "path": "conf"}]}},
            {"secret": {"name": "sec", "items": [{"key": "k", "path": "sec"}]}}]}}]);
    pod["spec"]["containers"] = json!([
        named("stays", STAYS, &mounts),
        named("one", &until("one"), &mounts),
        named("two", &until("two"), &mounts),
        named("three", &until("three"), &mounts),
    ]);
    let client = joined.cluster.client();
    client.create::<Pod>(&client.of("default"), pod)?;
    let await_end = |joined: &Joined, name: &str, limit_s: u64| {
        let client = joined.cluster.client();
        client.wait::<Pod, _>(&client.of("default"), limit_s, &format!("{name} to see its value"), |all| {
            last_words(all.get("update")?, name)?;
            all.get("update").cloned()
        })
    };
    let before = await_end(joined, "one", 60)?;
    config(joined, "two")?;
    secret(joined, "two")?;
    await_end(joined, "two", 10)?;
    // The end of an agent cancels the start of a container, and this pod's containers do not start again.
    let client = joined.cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 30, "the last container to run", |all| {
        let last = statuses(all.get("update")?).into_iter().find(|status| status.name == "three")?;
        last.state?.running
    })?;
    let node = joined.nodes.first_mut().context("no node")?;
    node.kill_agent()?;
    config(joined, "three")?;
    secret(joined, "three")?;
    let node = joined.nodes.first_mut().context("no node")?;
    start_kubelet(node, JoinMethod::BootstrapKubeconfig)?;
    let after = await_end(joined, "three", 60)?;
    let stays = |pod: &Pod| {
        let status = statuses(pod).into_iter().find(|s| s.name == "stays");
        status.map(|s| (s.container_id, s.restart_count, s.state.is_some_and(|s| s.running.is_some())))
    };
    ensure!(stays(&before) == stays(&after), "{:?} became {:?}", stays(&before), stays(&after));
    remove(joined, "update")?;
    joined.cluster.ensure_nothing_forbidden()
}

fn missing(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let mut pod = api_pod("waits", "first", STAYS, 1);
    pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "later"}},
        {"name": "o", "secret": {"secretName": "never", "optional": true}}]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "v", "mountPath": "/v"}, {"name": "o", "mountPath": "/o"}]);
    client.create::<Pod>(&client.of("default"), pod)?;
    let words = "MountVolume.SetUp failed for volume \"v\" : secret \"later\" not found";
    client.wait::<Event, _>(&client.of("default"), 60, "event FailedMount", |all| {
        let said =
            |e: &&Event| e.reason.as_deref() == Some("FailedMount") && e.message.as_deref() == Some(words);
        all.values().find(said).map(|_| ())
    })?;
    let pod = client.get::<Pod>(&client.of("default"), "waits")?.context("the pod is gone")?;
    let waiting = statuses(&pod).into_iter().next().and_then(|s| s.state).and_then(|s| s.waiting);
    let reason = waiting.and_then(|w| w.reason);
    ensure!(reason.as_deref() == Some("ContainerCreating"), "it waits because of {reason:?}");
    put::<Secret>(joined, "later", "stringData", "here")?;
    await_pod_ready(&joined.cluster, "waits", 10)?;
    remove(joined, "waits")?;
    joined.cluster.ensure_nothing_forbidden()
}

fn environment(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    put::<ConfigMap>(joined, "plain", "data", "c")?;
    let script = "env | grep -e ^k= -e ^P_ -e ^OWN | sort > /dev/termination-log";
    let mut pod = api_pod("env", "first", script, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["envFrom"] = json!([
        {"configMapRef": {"name": "plain"}},
        {"prefix": "P_", "secretRef": {"name": "wanted"}},
        {"configMapRef": {"name": "never", "optional": true}}]);
    pod["spec"]["containers"][0]["env"] = json!([
        {"name": "OWN", "valueFrom": {"secretKeyRef": {"name": "wanted", "key": "k"}}},
        {"name": "OWN_NOT", "valueFrom": {"secretKeyRef": {"name": "wanted", "key": "x", "optional": true}}},
        {"name": "OWN_ALL", "value": "$(OWN)-$(k)-$(P_k)"}]);
    client.create::<Pod>(&client.of("default"), pod)?;
    client.wait::<Pod, _>(&client.of("default"), 60, "the missing Secret to be told", |all| {
        let status = statuses(all.get("env")?).into_iter().next()?;
        let waiting = status.state?.waiting?;
        let told = waiting.message.as_deref() == Some("secret \"wanted\" not found");
        (told && waiting.reason.as_deref() == Some("CreateContainerConfigError")).then_some(())
    })?;
    put::<Secret>(joined, "wanted", "stringData", "s")?;
    let seen = client.wait::<Pod, _>(&client.of("default"), 30, "the container to have run", |all| {
        last_words(all.get("env")?, "c")
    })?;
    ensure!(seen == "OWN=s\nOWN_ALL=s-c-s\nP_k=s\nk=c\n", "{seen}");
    remove(joined, "env")?;
    joined.cluster.ensure_nothing_forbidden()
}

fn files(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    put::<Secret>(joined, "shown", "stringData", "s")?;
    let script = "\
        cd /v; for f in secret/a secret secret/..data/a config/k down/labels token/t; do \
        stat -L -c \"$f %a %u %g\" $f; done > /dev/termination-log; \
        readlink secret/a >> /dev/termination-log; cat down/labels >> /dev/termination-log; echo >> /dev/termination-log; \
        for d in memory secret token; do stat -f -c \"$d %T\" $d; done >> /dev/termination-log; \
        stat -c '%a %g' disk >> /dev/termination-log; \
        touch secret/new 2>/dev/null && echo writable >> /dev/termination-log; \
        touch disk/new memory/new && exit 0";
    let mut pod = api_pod("files", "first", script, 1);
    pod["metadata"]["labels"] = json!({"app": "files", "b": "x"});
    put::<ConfigMap>(joined, "plain", "data", "c")?;
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 2000});
    let sources: [(&str, Value); 6] = [
        (
            "secret",
            json!({"secret": {"secretName": "shown", "defaultMode": 0o440,
            "items": [{"key": "k", "path": "a"}]}}),
        ),
        ("config", json!({"configMap": {"name": "plain"}})),
        (
            "down",
            json!({"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
        ),
        (
            "token",
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "x"}}]}}),
        ),
        ("disk", json!({"emptyDir": {"sizeLimit": "1Gi"}})),
        ("memory", json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})),
    ];
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    for (name, mut source) in sources {
        source["name"] = json!(name);
        volumes.push(source);
        mounts.push(json!({"name": name, "mountPath": format!("/v/{name}")}));
    }
    pod["spec"]["volumes"] = json!(volumes);
    pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    let seen = words_of(joined, pod, "c")?;
    let expected = "secret/a 440 0 2000\nsecret 3777 0 2000\nsecret/..data/a 440 0 2000\nconfig/k 644 0 2000\n\
                    down/labels 644 0 2000\ntoken/t 640 1000 2000\n..data/a\napp=\"files\"\nb=\"x\"\n\
                    memory tmpfs\nsecret tmpfs\ntoken tmpfs\n2777 2000\n";
    ensure!(seen == expected, "{seen}\nexpected\n{expected}");
    remove(joined, "files")?;
    joined.cluster.ensure_nothing_forbidden()
}

fn sub_path(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    put::<ConfigMap>(joined, "parted", "data", "one")?;
    let script = "cat /conf/k; echo; cat /etc/k; echo; echo written > /own/f; ls /all; stat -c %a /own; \
                  cat /all/$POD/f; ln -s / /all/out; ls /conf | wc -l";
    let mut pod = api_pod("parts", "first", &format!("({script}) > /dev/termination-log 2>&1"), 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["volumes"] =
        json!([{"name": "conf", "configMap": {"name": "parted"}}, {"name": "all", "emptyDir": {}}]);
    let c = &mut pod["spec"]["containers"][0];
    c["env"] = json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    c["volumeMounts"] = json!([
        {"name": "conf", "mountPath": "/conf"},
        {"name": "conf", "mountPath": "/etc/k", "subPath": "k"},
        {"name": "all", "mountPath": "/all"},
        {"name": "all", "mountPath": "/own", "subPathExpr": "$(POD)"}]);
    // The second container follows the first one's link, once that is there.
    let second = named("out", "ls /out", &json!([{"name": "all", "mountPath": "/out", "subPath": "out"}]));
    let mut escape = pod.clone();
    let seen = words_of(joined, pod, "c")?;
    let expected = "one\none\nparts\n777\nwritten\n1\n";
    ensure!(seen == expected, "{seen}\nexpected\n{expected}");
    remove(joined, "parts")?;
    escape["metadata"]["name"] = json!("escapes");
    let first = escape["spec"]["containers"][0].clone();
    escape["spec"]["initContainers"] = json!([first]);
    escape["spec"]["containers"] = json!([second]);
    client.create::<Pod>(&client.of("default"), escape)?;
    client.wait::<Pod, _>(&client.of("default"), 60, "the link to be refused", |all| {
        let status = statuses(all.get("escapes")?).into_iter().next()?;
        let waiting = status.state?.waiting?;
        let message = waiting.message.unwrap_or_default();
        let refused = message.contains("it leads out of the volume");
        (refused && waiting.reason.as_deref() == Some("CreateContainerConfigError")).then_some(())
    })?;
    remove(joined, "escapes")?;
    let left = mounts(joined.nodes.first().context("no node")?)?;
    let left: Vec<_> = left.iter().filter(|m| m.contains("volume-subpaths")).collect();
    ensure!(left.is_empty(), "left {left:?}");
    joined.cluster.ensure_nothing_forbidden()
}

fn killed(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut moments = orlop_harness::rng::Rng::new(cx.seed);
    let joined = Joined::shared(cx)?;
    put::<Secret>(joined, "shared", "stringData", "x")?;
    let pod = |name: &str| {
        let mut pod = api_pod(name, "first", STAYS, 1);
        let volumes: Vec<Value> =
            (0..4).map(|n| json!({"name": format!("v{n}"), "secret": {"secretName": "shared"}})).collect();
        pod["spec"]["volumes"] = json!(volumes);
        let mounts: Vec<Value> =
            (0..4).map(|n| json!({"name": format!("v{n}"), "mountPath": format!("/v{n}")})).collect();
        pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
        pod
    };
    let client = joined.cluster.client();
    let before = mounts(joined.nodes.first().context("no node")?)?;
    client.create::<Pod>(&client.of("default"), pod("keeps"))?;
    let uid = uid(&await_pod_ready(&joined.cluster, "keeps", 60)?)?;
    // Only its own mounts: pods of the last case may still be ending.
    let mut held = mounts(joined.nodes.first().context("no node")?)?;
    held.retain(|mount| mount.contains(&uid));
    ensure!(held.len() >= 4, "it holds {held:?}");
    for round in 0..4 {
        let name = format!("comes{round}");
        let client = joined.cluster.client();
        client.create::<Pod>(&client.of("default"), pod(&name))?;
        if round > 0 {
            client.delete::<Pod>(&client.of("default"), &format!("comes{}", round - 1), None)?;
        }
        let node = joined.nodes.first_mut().context("no node")?;
        node.pass(Duration::from_millis(u64::from(moments.below(1500))))?;
        node.kill_agent()?;
        start_kubelet(node, JoinMethod::BootstrapKubeconfig)?;
    }
    await_pod_ready(&joined.cluster, "comes3", 90)?;
    let kept = await_pod_ready(&joined.cluster, "keeps", 30)?;
    let restarts: i32 = statuses(&kept).iter().map(|s| s.restart_count).sum();
    ensure!(restarts == 0, "{restarts} restarts of a pod that nobody touched");
    let here = mounts(joined.nodes.first().context("no node")?)?;
    let lost: Vec<_> = held.iter().filter(|m| !here.contains(m)).collect();
    ensure!(lost.is_empty(), "lost {lost:?}");
    for name in ["comes3", "keeps"] {
        remove(joined, name)?;
    }
    for round in 0..3 {
        await_pod_gone(&joined.cluster, &format!("comes{round}"), 60)?;
    }
    let left: Vec<_> = mounts(joined.nodes.first().context("no node")?)?
        .into_iter()
        .filter(|m| !before.contains(m))
        .collect();
    ensure!(left.is_empty(), "left {left:?}");
    joined.cluster.ensure_nothing_forbidden()
}
