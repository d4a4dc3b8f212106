//! Variables from files that containers leave in volumes (`fileKeyRef`).

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, api_pod, await_event, await_pod_gone, container, last_words,
};
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/env-files",
    25,
    "variables from a file that an init container wrote: read anew by each container, optional, broken, never from outside",
    env_files,
)];

/// Files of the init container: one with all parts of the format, an invalid one, links that lead out.
const WRITES: &str = r#"
    printf '%s\n' '# said by init' "A='one'" "  B='two' # more" "EMPTY=''" "LINES='first" "second'" > /box/env
    echo "A=one" > /box/broken
    echo "A='in'" > /box/passwd
    ln -s /passwd /box/inside
    ln -s ../../../../../../../../../etc/passwd /box/outside
    mkfifo /box/pipe"#;

fn variable(name: &str, path: &str, key: &str, optional: bool) -> Value {
    let source = json!({"volumeName": "work", "path": path, "key": key, "optional": optional});
    json!({"name": name, "valueFrom": {"fileKeyRef": source}})
}

/// A pod whose init container writes files, and whose container has variables from them but not the volume.
fn pod(name: &str, script: &str, variables: Value) -> Value {
    let mut pod = api_pod(name, "first", script, 1);
    let mut init = container(WRITES);
    init["name"] = json!("init");
    init["volumeMounts"] = json!([{"name": "work", "mountPath": "/box"}]);
    pod["spec"]["initContainers"] = json!([init]);
    pod["spec"]["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["env"] = variables;
    pod
}

fn env_files(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let script = "env | grep -e ^V_ -e ^second | sort > /dev/termination-log";
    let variables = json!([
        variable("V_A", "env", "A", false),
        variable("V_B", "/env", "B", true),
        variable("V_EMPTY", "env", "EMPTY", true),
        variable("V_NONE", "env", "NONE", true),
        variable("V_LINES", "env", "LINES", false),
        variable("V_LINK", "inside", "A", false),
        {"name": "V_ALL", "value": "$(V_A)-$(V_B)-$(V_NONE)"},
    ]);
    client.create::<Pod>(&client.of("default"), pod("env-files", script, variables))?;
    let seen = client.wait::<Pod, _>(&client.of("default"), 60, "the container to have run", |all| {
        last_words(all.get("env-files")?, "c")
    })?;
    ensure!(
        seen == "V_A=one\nV_ALL=one-two-$(V_NONE)\nV_B=two\nV_LINES=first\nV_LINK=in\nsecond\n",
        "it was given {seen:?}"
    );

    let bad = [
        ("no-key", "env", "NONE", "environment variable key \"NONE\" not found in file "),
        ("no-file", "none", "A", "couldn't parse env file"),
        ("no-format", "broken", "A", "couldn't parse env file"),
        ("leads-out", "outside", "root", "couldn't parse env file"),
        ("is-a-pipe", "pipe", "A", "couldn't parse env file"),
    ];
    for (name, path, key, _) in bad {
        // A file that cannot be read is an error even if the key is optional.
        let variables = json!([variable("V", path, key, name != "no-key")]);
        client.create::<Pod>(&client.of("default"), pod(name, "exit 0", variables))?;
    }
    for (name, _, _, words) in bad {
        client.wait::<Pod, _>(&client.of("default"), 60, &format!("{name} to be told {words:?}"), |all| {
            let statuses = all.get(name)?.status.as_ref()?.container_statuses.clone()?;
            let waiting = statuses.into_iter().next()?.state?.waiting?;
            let told = waiting.message.is_some_and(|m| m.starts_with(words));
            (told && waiting.reason.as_deref() == Some("CreateContainerConfigError")).then_some(())
        })?;
    }
    let event = await_event(&joined.cluster, "Failed", "no-format", 30)?;
    let said = event.message.unwrap_or_default();
    ensure!(said.starts_with("Error: couldn't parse env file"), "the event says {said:?}");
    for name in ["env-files", "no-key", "no-file", "no-format", "leads-out", "is-a-pipe"] {
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}
