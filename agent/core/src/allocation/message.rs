//! Messages of events about resizes. Upstream: pkg/kubelet/events/resize.go.

use agent_types::pod;
use agent_types::resources::amounts::List;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde::Serialize;

#[derive(Serialize)]
struct NamedResources<'a> {
    name: &'a str,
    resources: Resources<'a>,
}

/// There even if it is empty, its lists only if they are not.
#[derive(Serialize)]
struct Resources<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'a List>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a List>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<NamedResources<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<NamedResources<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

fn named(c: &Container) -> NamedResources<'_> {
    let resources = c.resources.as_ref();
    let filled = |list: Option<&'_ List>| list.is_some_and(|l| !l.is_empty());
    let limits = resources.and_then(|r| r.limits.as_ref());
    let requests = resources.and_then(|r| r.requests.as_ref());
    let resources = Resources {
        limits: limits.filter(|l| filled(Some(l))),
        requests: requests.filter(|l| filled(Some(l))),
    };
    NamedResources { name: &c.name, resources }
}

/// `what`, then the pod's amounts, the generation of the requesting pod, and the error.
#[must_use]
pub fn of(what: &str, p: &Pod, generation: Option<i64>, error: &str) -> String {
    let summary = Summary {
        init_containers: pod::init_containers(p).iter().map(named).collect(),
        containers: pod::containers(p).iter().map(named).collect(),
        generation: generation.unwrap_or(0),
        error,
    };
    // Strings and numbers only: that cannot fail.
    format!("{what}: {}", serde_json::to_string(&summary).unwrap_or_default())
}
