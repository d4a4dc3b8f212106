//! Fields of a container status other than its state: resources, user, mounts.
//!
//! In: specification, newest instance, the previous status. Out: fields of the status. Invariants: an amount
//! that the runtime reports wins over the requested one; the amounts that an instance got when it was first
//! shown stay, so that the status does not show a later change of the pod's resources as if it were in force.
//! Upstream: `convertToAPIContainerStatuses` of pkg/kubelet/kubelet_pods.go.

use std::collections::BTreeMap;

use agent_types::resources::amounts::Amounts;
use agent_types::resources::requests::{CPU, MEMORY};
use agent_types::runtime::observed::{ContainerObserved, ContainerState, ResourcesObserved, UserObserved};
use agent_types::{Quantity, quantity_text};
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, ContainerUser, LinuxContainerUser, ResourceRequirements, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::container_spec::mounts::recursively;

/// CPU limits up to this come out alike in the kernel, thousandths of a core.
const CPU_LIMIT_MIN_MILLI: i64 = 10;
/// The same for requests.
const CPU_REQUEST_MIN_MILLI: i64 = 2;

type List = BTreeMap<String, ApiQuantity>;

/// Fills in the fields. `status` has its container id already.
pub(super) fn fill(
    spec: &Container,
    newest: Option<&ContainerObserved>,
    before: Option<&ContainerStatus>,
    status: &mut ContainerStatus,
) {
    let same = before.filter(|b| b.container_id.is_some() && b.container_id == status.container_id);
    let Some(newest) = newest else {
        // The runtime has dropped it; its known state stays.
        if let Some(b) = same {
            status.allocated_resources.clone_from(&b.allocated_resources);
            status.resources.clone_from(&b.resources);
            status.user.clone_from(&b.user);
            status.stop_signal.clone_from(&b.stop_signal);
        }
        return;
    };
    let mut resources = spec.resources.clone().unwrap_or_default();
    for amounts in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        amounts.values_mut().for_each(respell);
    }
    let allocated = resources.requests.clone().filter(|r| !r.is_empty());
    if newest.state == ContainerState::Running {
        let shown = same.filter(|b| b.state.as_ref().is_some_and(|s| s.running.is_some()));
        remembered(newest, shown.and_then(|b| b.resources.as_ref()), &mut resources);
        if let Some(actual) = newest.resources {
            in_force(&actual, &mut resources);
        }
    }
    status.allocated_resources = allocated;
    status.resources = Some(resources);
    status.user = newest.user.as_ref().map(user);
    status.stop_signal = newest.stop_signal.clone();
}

/// The mounts of a container; `can`: the runtime has recursive read-only mounts.
pub(super) fn volume_mounts(spec: &Container, can: bool) -> Option<Vec<VolumeMountStatus>> {
    let mounts = spec.volume_mounts.as_ref().filter(|all| !all.is_empty())?;
    let status = |m: &k8s_openapi::api::core::v1::VolumeMount| {
        let read_only = m.read_only.filter(|is| *is);
        VolumeMountStatus {
            name: m.name.clone(),
            mount_path: m.mount_path.clone(),
            read_only,
            recursive_read_only: read_only.map(|_| {
                let is = recursively(m, can).unwrap_or(false);
                if is { "Enabled" } else { "Disabled" }.to_owned()
            }),
            ..VolumeMountStatus::default()
        }
    };
    Some(mounts.iter().map(status).collect())
}

fn user(u: &UserObserved) -> ContainerUser {
    let groups = Some(u.supplemental_groups.clone()).filter(|g| !g.is_empty());
    ContainerUser { linux: Some(LinuxContainerUser { uid: u.uid, gid: u.gid, supplemental_groups: groups }) }
}

/// Replaces requested amounts by the runtime's, in existing lists.
fn in_force(actual: &ResourcesObserved, resources: &mut ResourceRequirements) {
    if let Some(limits) = resources.limits.as_mut().filter(|l| !l.is_empty()) {
        if actual.cpu_period_us > 0 {
            let milli = actual.cpu_quota_us.saturating_mul(1000) / actual.cpu_period_us;
            put_cpu(limits, milli, CPU_LIMIT_MIN_MILLI);
        }
        if actual.memory_limit_bytes > 0 {
            put(limits, MEMORY, Quantity::from_units(actual.memory_limit_bytes));
        }
    }
    if let Some(requests) = resources.requests.as_mut().filter(|r| !r.is_empty()) {
        // Shares are thousandths of a core scaled to 1024 and cut: rounding up gives the request back.
        let milli = actual.cpu_shares.saturating_mul(1000).saturating_add(1023) / 1024;
        put_cpu(requests, milli, CPU_REQUEST_MIN_MILLI);
    }
}

/// What an instance has as far as the agent remembers, else as it was shown.
fn remembered(
    newest: &ContainerObserved,
    shown: Option<&ResourceRequirements>,
    resources: &mut ResourceRequirements,
) {
    let has = newest.actuated.or_else(|| Some(Amounts::of(Some(shown?))));
    if let Some(mut has) = has {
        // What its pod limits it to is not shown as its own.
        let own = Amounts::of(Some(resources));
        has.cpu_limit_milli *= i64::from(own.cpu_limit_milli != 0);
        has.memory_limit *= i64::from(own.memory_limit != 0);
        *resources = has.put_into(Some(resources));
    }
}

fn put_cpu(amounts: &mut List, milli: i64, min: i64) {
    let asked = amounts.get(CPU).and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or_default();
    if milli > 0 && (milli > min || asked.milli_value() > min) {
        put(amounts, CPU, Quantity::from_milli(milli));
    }
}

/// Spells an amount as the API server does, because another spelling would be written again and again:
/// shortest, with a binary suffix if it had one.
fn respell(amount: &mut ApiQuantity) {
    let Ok(asked) = Quantity::parse(&amount.0) else { return };
    let by_two = amount.0.ends_with('i');
    amount.0 = if by_two { quantity_text::binary(asked.value()) } else { quantity_text::decimal(asked) };
}

/// Keeps the spelling of an amount that is the same.
fn put(amounts: &mut List, name: &str, actual: Quantity) {
    let same = |q: &ApiQuantity| Quantity::parse(&q.0).is_ok_and(|asked| asked == actual);
    if !amounts.get(name).is_some_and(same) {
        amounts.insert(name.to_owned(), ApiQuantity(quantity_text::of_resource(name, actual)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use agent_types::time::Wall;

    fn container(resources: Value) -> Container {
        serde_json::from_value(json!({"name": "a", "image": "i", "resources": resources})).unwrap()
    }

    fn instance(state: ContainerState, resources: Option<ResourcesObserved>) -> ContainerObserved {
        ContainerObserved { state, resources, ..ContainerObserved::created("a0", "s", "a", 0, Wall(1)) }
    }

    fn filled(
        spec: &Container,
        newest: Option<&ContainerObserved>,
        before: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let id = Some("containerd://a0".to_owned());
        let mut status = ContainerStatus { container_id: id, ..ContainerStatus::default() };
        fill(spec, newest, before, &mut status);
        status
    }

    fn shown(status: &ContainerStatus) -> Value {
        json!({"resources": status.resources, "allocated": status.allocated_resources})
    }

    #[test]
    fn what_the_runtime_reports_goes_before_what_was_asked_for() {
        let spec = container(json!({"limits": {"cpu": "1", "memory": "64M", "example.com/x": "1"},
            "requests": {"cpu": "333m", "memory": "32Mi"}}));
        let actual = |cpu_quota_us, cpu_shares, memory_limit_bytes| {
            Some(ResourcesObserved { cpu_period_us: 100_000, cpu_quota_us, cpu_shares, memory_limit_bytes })
        };
        let as_asked = shown(&filled(&spec, Some(&instance(ContainerState::Created, None)), None));
        assert_eq!(as_asked["allocated"], json!({"cpu": "333m", "memory": "32Mi"}));
        let same = instance(ContainerState::Running, actual(100_000, 340, 64_000_000));
        assert_eq!(shown(&filled(&spec, Some(&same), None)), as_asked, "spelled as the pod spells it");
        let other = instance(ContainerState::Running, actual(50_000, 512, 64 << 20));
        let changed = shown(&filled(&spec, Some(&other), None));
        let limits = json!({"cpu": "500m", "memory": "64Mi", "example.com/x": "1"});
        assert_eq!(changed["resources"]["limits"], limits);
        assert_eq!(changed["resources"]["requests"], json!({"cpu": "500m", "memory": "32Mi"}));
        let ended = instance(ContainerState::Exited, actual(50_000, 512, 1));
        assert_eq!(shown(&filled(&spec, Some(&ended), None)), as_asked, "an ended one uses nothing");
    }

    #[test]
    fn amounts_that_the_kernel_cannot_tell_apart_stay_as_asked() {
        let spec = container(json!({"limits": {"cpu": "5m"}, "requests": {"cpu": "1m", "memory": "1Mi"}}));
        let smallest = ResourcesObserved {
            cpu_period_us: 100_000,
            cpu_quota_us: 1000,
            cpu_shares: 2,
            memory_limit_bytes: 0,
        };
        let status = filled(&spec, Some(&instance(ContainerState::Running, Some(smallest))), None);
        assert_eq!(
            shown(&status)["resources"],
            json!({"limits": {"cpu": "5m"},
            "requests": {"cpu": "1m", "memory": "1Mi"}})
        );
        let none =
            filled(&container(json!({})), Some(&instance(ContainerState::Running, Some(smallest))), None);
        assert_eq!(shown(&none), json!({"resources": {}, "allocated": null}));
    }

    #[test]
    fn amounts_are_spelled_as_the_api_server_spells_them() {
        let spec = container(json!({"limits": {"cpu": "0.5", "memory": "2048Ki"},
            "requests": {"cpu": "1e-1", "memory": "1M", "example.com/x": "1000"}}));
        let status = shown(&filled(&spec, Some(&instance(ContainerState::Created, None)), None));
        assert_eq!(status["resources"]["limits"], json!({"cpu": "500m", "memory": "2Mi"}));
        assert_eq!(status["allocated"], json!({"cpu": "100m", "memory": "1M", "example.com/x": "1k"}));
    }

    #[test]
    fn a_resized_pod_shows_what_was_given_and_what_is_in_force() {
        let spec = |memory: &str| container(json!({"requests": {"cpu": "1", "memory": memory}}));
        let mut running = instance(ContainerState::Running, None);
        running.actuated = Some(Amounts::of(spec("1Mi").resources.as_ref()));
        let first = filled(&spec("1Mi"), Some(&running), None);
        let between = shown(&filled(&spec("2Mi"), Some(&running), Some(&first)));
        assert_eq!(between["resources"]["requests"], json!({"cpu": "1", "memory": "1Mi"}));
        assert_eq!(between["allocated"], json!({"cpu": "1", "memory": "2Mi"}));
        running.actuated = None;
        let mut seen = first.clone();
        seen.state = serde_json::from_value(json!({"running": {}})).unwrap();
        let unknown = shown(&filled(&spec("2Mi"), Some(&running), Some(&seen)));
        assert_eq!(unknown["resources"]["requests"]["memory"], json!("1Mi"), "as it was shown");
        running.actuated = Some(Amounts::of(spec("2Mi").resources.as_ref()));
        let done = shown(&filled(&spec("2Mi"), Some(&running), Some(&first)));
        assert_eq!(done["resources"]["requests"], json!({"cpu": "1", "memory": "2Mi"}));
        assert_eq!(shown(&filled(&spec("2Mi"), None, Some(&first))), shown(&first), "dropped by the runtime");
    }

    #[test]
    fn mounts_and_user() {
        let mut spec = container(json!({}));
        spec.volume_mounts = serde_json::from_value(json!([{"name": "v", "mountPath": "/v"},
            {"name": "w", "mountPath": "/w", "readOnly": true, "recursiveReadOnly": "IfPossible"}]))
        .unwrap();
        let mut running = instance(ContainerState::Running, None);
        running.user = Some(UserObserved { uid: 1000, gid: 0, supplemental_groups: vec![4, 5] });
        for (can, mode) in [(false, "Disabled"), (true, "Enabled")] {
            assert_eq!(
                json!(volume_mounts(&spec, can)),
                json!([{"name": "v", "mountPath": "/v"},
                    {"name": "w", "mountPath": "/w", "readOnly": true, "recursiveReadOnly": mode}])
            );
        }
        let status = filled(&spec, Some(&running), None);
        let linux = json!({"uid": 1000, "gid": 0, "supplementalGroups": [4, 5]});
        assert_eq!(json!(status.user), json!({"linux": linux}));
        let waiting = filled(&spec, None, None);
        assert!(waiting.user.is_none() && waiting.resources.is_none());
    }
}
