//! Malformed and malicious volumes: objects of the maximum size, names that look like paths, host paths of the wrong
//! type, and containers that place links in the node's way.
//!
//! Cases: `volumes/bad-input`, `volumes/hostile`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Pod, Secret};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, uid};
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::volumes::claims::{await_told, create, words_of};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/bad-input",
        40,
        "objects of a mebibyte with odd names are whole inside; each type of hostPath refuses what is something else, in upstream's words",
        bad_input,
    ),
    HERE.case(
        "volumes/hostile",
        60,
        "a container that lays links, pipes and deep trees in a volume, and swaps a directory for a link all the time, leads nobody out and is removed without a trace",
        hostile,
    ),
];

/// The host's, in the node.
const OURS: &str = "/var/lib/e2e-hostile";
/// Largest size of all values of an object (`MaxSecretSize`, and the same for ConfigMaps), bytes.
const OBJECT_BYTES: usize = 1 << 20;
const NAMES: [&str; 4] = ["a..b", ".hidden", "-dash", "x.."];
/// Number of looks, and the pause between, until the directory of a deleted pod must be gone.
const GONE_LOOKS: usize = 150;
const LOOK: Duration = Duration::from_millis(200);
/// Number of pods that mount the swapped path.
const VISITORS: usize = 12;

fn ours(joined: &Joined) -> PathBuf {
    joined.nodes[0].inside(OURS)
}

/// A pod that ends, with these volumes at paths of their names.
fn with(name: &str, script: &str, volumes: &[(&str, Value)]) -> Value {
    let mut pod = api_pod(name, "first", script, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    let named = |(name, source): &(&str, Value)| {
        let mut volume = source.clone();
        volume["name"] = json!(name);
        volume
    };
    pod["spec"]["volumes"] = volumes.iter().map(named).collect();
    pod["spec"]["containers"][0]["volumeMounts"] =
        volumes.iter().map(|(name, _)| json!({"name": name, "mountPath": format!("/{name}")})).collect();
    pod
}

fn host_path(path: &str, kind: &str) -> Value {
    json!({"hostPath": {"path": path, "type": kind}})
}

fn remove(joined: &Joined, names: &[String]) -> Result<()> {
    let client = joined.cluster.client();
    for name in names {
        client.delete::<Pod>(&client.of("default"), name, Some(1))?;
    }
    names.iter().try_for_each(|name| await_pod_gone(&joined.cluster, name, 90))
}

fn bad_input(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let part = "x".repeat(OBJECT_BYTES / NAMES.len());
    let data: Value =
        NAMES.iter().map(|name| ((*name).to_owned(), json!(part))).collect::<serde_json::Map<_, _>>().into();
    client
        .create::<ConfigMap>(&client.of("default"), json!({"metadata": {"name": "large"}, "data": data}))?;
    client.create::<Secret>(
        &client.of("default"),
        json!({"metadata": {"name": "large"}, "stringData": data}),
    )?;
    // Names with two leading dots belong to the atomic writer.
    let script = "for v in map secret; do cd /$v; for f in $(ls -A | grep -v '^\\.\\.[0-9d]' | sort); do wc -c \"./$f\"; done; done";
    let volumes = [
        ("map", json!({"configMap": {"name": "large"}})),
        ("secret", json!({"secret": {"secretName": "large"}})),
    ];
    create(&joined.cluster, with("large", &format!("({script}) > /dev/termination-log 2>&1"), &volumes))?;
    let seen = words_of(joined, "large")?;
    for name in NAMES {
        let line = format!("{} ./{name}\n", part.len());
        ensure!(
            seen.matches(&line).count() == 2,
            "{name} is not there twice with {} bytes: {seen}",
            part.len()
        );
    }
    remove(joined, &["large".to_owned()])?;
    client.delete::<ConfigMap>(&client.of("default"), "large", None)?;
    client.delete::<Secret>(&client.of("default"), "large", None)?;

    let at = ours(joined);
    fs::create_dir_all(at.join("directory")).and_then(|()| fs::write(at.join("file"), "x"))?;
    std::os::unix::fs::symlink("nowhere", at.join("dangling")).context("link to nothing")?;
    let mut pods = Vec::new();
    for (kind, what, words) in [
        ("Directory", "file", "is not a directory"),
        ("Directory", "none", "is not a directory"),
        ("DirectoryOrCreate", "file", "is not a directory"),
        ("File", "directory", "is not a file"),
        ("FileOrCreate", "directory", "is not a file"),
        ("File", "dangling", "is not a file"),
        ("Socket", "file", "is not a socket file"),
        ("CharDevice", "file", "is not a character device"),
        ("BlockDevice", "file", "is not a block device"),
    ] {
        let name = format!("{}-{what}", kind.to_lowercase());
        let path = format!("{OURS}/{what}");
        create(&joined.cluster, with(&name, STAYS, &[("v", host_path(&path, kind))]))?;
        pods.push((
            name,
            format!("MountVolume.SetUp failed for volume \"v\" : hostPath type check failed: {path} {words}"),
        ));
    }
    for (name, words) in &pods {
        await_told(joined, name, words)?;
    }
    let volumes = [
        ("made", host_path(&format!("{OURS}/made/deep"), "DirectoryOrCreate")),
        ("empty", host_path(&format!("{OURS}/empty"), "FileOrCreate")),
        ("null", host_path("/dev/null", "CharDevice")),
    ];
    create(
        &joined.cluster,
        with("right", "stat -c '%F %a' /made /empty /null > /dev/termination-log", &volumes),
    )?;
    let seen = words_of(joined, "right")?;
    ensure!(seen == "directory 755\nregular empty file 644\ncharacter special file 666\n", "{seen}");
    let names: Vec<String> = pods.into_iter().map(|(name, _)| name).chain(["right".to_owned()]).collect();
    remove(joined, &names)?;
    fs::remove_dir_all(&at).with_context(|| format!("remove {}", at.display()))?;
    joined.cluster.ensure_nothing_forbidden()
}

fn status(pod: &Pod) -> Option<ContainerStatus> {
    pod.status.as_ref()?.container_statuses.iter().flatten().next().cloned()
}

fn hostile(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let at = ours(joined);
    fs::create_dir_all(&at).and_then(|()| fs::write(at.join("precious"), "kept\n"))?;

    // Only the pod's own files are removed; the targets of its links stay. Its tree is deeper than a path may be long.
    let script = "cd /v; ln -s / root; ln -s /host/precious one; ln -s .. up; mkfifo pipe; mkdir closed; touch closed/f; \
                  chmod 0 closed; touch \"$(printf 'two\\nlines')\" ./-rf; ln -sf /etc/passwd /dev/termination-log 2>/dev/null; \
                  echo mine > /dev/termination-log; d=; for i in $(seq 80); do d=$d/a-directory-with-a-long-name-$i; done; \
                  mkdir -p upper$d lower$d && mv lower upper$d/";
    let volumes = [("v", json!({"emptyDir": {}})), ("host", host_path(OURS, ""))];
    create(&joined.cluster, with("plants", script, &volumes))?;
    let client = joined.cluster.client();
    let said = words_of(joined, "plants")?;
    ensure!(said == "mine\n", "its last words are {said:?}");
    let pod = client.get::<Pod>(&client.of("default"), "plants")?.context("no pod")?;
    let ended = status(&pod).and_then(|s| s.state).and_then(|s| s.terminated).map(|t| t.exit_code);
    ensure!(ended == Some(0), "it planted too little: {ended:?}");
    let uid = uid(&pod)?;
    remove(joined, &["plants".to_owned()])?;
    let own = joined.nodes[0].inside(&format!("/var/lib/kubelet/pods/{uid}"));
    for _ in 0..GONE_LOOKS {
        if own.exists() {
            joined.nodes[0].pass(LOOK)?;
        }
    }
    ensure!(!own.exists(), "{} is still there", own.display());
    ensure!(fs::read_to_string(at.join("precious"))? == "kept\n", "what a link named was written to");

    // Files deeper than a path may be long count, too.
    let hides = "cd /v; d=; for i in $(seq 80); do d=$d/a-directory-with-a-long-name-$i; done; mkdir -p upper$d lower$d; \
                 head -c 5000000 /dev/zero > lower$d/f; mv lower upper$d/";
    let small = json!({"emptyDir": {"sizeLimit": "1Mi"}});
    create(&joined.cluster, with("hides", &format!("{hides}; {STAYS}"), &[("v", small)]))?;
    let words = client.wait::<Pod, _>(&client.of("default"), 90, "hides to be evicted", |all| {
        let status = all.get("hides")?.status.clone()?;
        (status.reason.as_deref() == Some("Evicted")).then(|| status.message.unwrap_or_default())
    })?;
    ensure!(words == "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ", "it is told {words:?}");
    remove(joined, &["hides".to_owned()])?;

    // The container swaps a directory for a link to the root, as fast as possible.
    let swaps = "cd /v; while :; do ln -s / d; rm -f d; mkdir d; rmdir d; done 2>/dev/null";
    create(&joined.cluster, with("swaps", swaps, &[("v", host_path(OURS, "Directory"))]))?;
    await_pod_ready(&joined.cluster, "swaps", 60)?;
    let names: Vec<String> = (0..VISITORS).map(|n| format!("visits-{n}")).collect();
    let look = "(ls -A /v; [ -e /v/etc ] && echo ESCAPED) > /dev/termination-log 2>&1; exit 0";
    for name in &names {
        let mut visits = with(name, look, &[("v", host_path(OURS, "Directory"))]);
        visits["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = json!("d");
        create(&joined.cluster, visits)?;
    }
    let mut refused = 0;
    for name in &names {
        let seen = client.wait::<Pod, _>(
            &client.of("default"),
            60,
            &format!("{name} to be let in or not"),
            |all| {
                let status = status(all.get(name)?)?;
                let state = status.state?;
                let waits = state.waiting.and_then(|w| w.reason);
                match state.terminated {
                    Some(ended) => Some(ended.message.unwrap_or_default()),
                    None => {
                        (waits.as_deref() == Some("CreateContainerConfigError")).then(|| "refused".to_owned())
                    }
                }
            },
        )?;
        ensure!(!seen.contains("ESCAPED") && !seen.contains("etc\n"), "{name} saw {seen:?}");
        refused += usize::from(seen == "refused");
    }
    say::line(format!("  {} of {VISITORS} let in, {refused} refused at first", VISITORS - refused));
    remove(joined, &names)?;
    remove(joined, &["swaps".to_owned()])?;
    fs::remove_dir_all(&at).with_context(|| format!("remove {}", at.display()))?;
    joined.cluster.ensure_nothing_forbidden()
}
