//! Variables of containers for Services.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, api_pod, await_pod_gone, last_words};
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/services",
    15,
    "variables of Services: the cluster's own for every pod, its namespace's unless it does not want them",
    services,
)];

fn services(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let own =
        client.get::<Service>(&client.of("default"), "kubernetes")?.context("the cluster's own Service")?;
    let host = own.spec.and_then(|s| s.cluster_ip).context("its address")?;
    let made = client.create::<Service>(
        &client.of("default"),
        json!({"metadata": {"name": "my-db"}, "spec": {"ports": [{"name": "sql", "port": 5432}]}}),
    )?;
    let db = made.spec.and_then(|s| s.cluster_ip).context("an address of the new Service")?;
    let told = format!("MY_DB_SERVICE_HOST={db}\nMY_DB_SERVICE_PORT_SQL=5432\n");
    let script = "env | grep -e ^KUBERNETES_SERVICE_HOST -e ^MY_DB_SERVICE_HOST -e ^MY_DB_SERVICE_PORT_SQL | sort \
                  > /dev/termination-log";
    for (name, links) in [("told", true), ("alone", false)] {
        let mut pod = api_pod(name, "first", script, 1);
        pod["spec"]["restartPolicy"] = json!("Never");
        pod["spec"]["enableServiceLinks"] = json!(links);
        client.create::<Pod>(&client.of("default"), pod)?;
        let seen = client.wait::<Pod, _>(&client.of("default"), 60, "the pod to have ended", |all| {
            last_words(all.get(name)?, "c")
        })?;
        let expected = format!("KUBERNETES_SERVICE_HOST={host}\n{}", if links { &told } else { "" });
        ensure!(seen == expected, "{name} sees {seen:?}, expected {expected:?}");
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    client.delete::<Service>(&client.of("default"), "my-db", None)?;
    joined.cluster.ensure_nothing_forbidden()
}
