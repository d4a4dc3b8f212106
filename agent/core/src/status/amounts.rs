//! The status fields about the resources of the whole pod: `resources`, `allocatedResources` (KEP-5419).
//!
//! In: the allocated pod, the last written values of its cgroup, the previous status. Out: two fields.
//! Invariants: while the pod runs, the shown amounts are in force; amounts have the API server's spelling.
//! Upstream reads the cgroup and shows the result of rounded weights and quotas; it never changes the shown
//! memory request again. This module shows both from the pod once its cgroup has its values. Upstream:
//! `convertToAPIPodLevelResourcesStatus` of pkg/kubelet/kubelet_pods.go.

use std::collections::BTreeMap;

use agent_types::resources::cgroups::CgroupValues;
use agent_types::resources::requests::{CPU, MEMORY, all_limits, all_requests};
use agent_types::{Quantity, pod, quantity_text};
use k8s_openapi::api::core::v1::{PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::{Phase, StatusInputs};

/// A request of processor time up to this comes out alike in the kernel, thousandths of a core.
const CPU_MIN_MILLI: i64 = 2;

type List = BTreeMap<String, ApiQuantity>;

/// Fills in the fields.
pub(super) fn fill(inputs: &StatusInputs<'_>, phase: Phase, status: &mut PodStatus) {
    let Some(applied) = inputs.resize.whole else { return };
    let requests = all_requests(inputs.pod);
    status.allocated_resources = Some(spelled(&requests)).filter(|list| !list.is_empty());
    status.resources = Some(if phase == Phase::Running {
        in_force(inputs, &applied, &requests)
    } else {
        let list = |amounts| Some(spelled(amounts)).filter(|list| !list.is_empty());
        let own = pod::spec(inputs.pod).resources.clone().unwrap_or_default();
        ResourceRequirements { requests: list(&requests), limits: list(&all_limits(inputs.pod)), ..own }
    });
}

/// What is known of the pod's cgroup.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodCgroupState<'a> {
    /// Last written values; `None`: unknown, or the pod has no cgroup.
    pub applied: Option<&'a CgroupValues>,
    /// True if these are the pod's values; also true on a node without pod cgroups.
    pub settled: bool,
}

fn in_force(
    inputs: &StatusInputs<'_>,
    whole: &PodCgroupState<'_>,
    requests: &BTreeMap<String, Quantity>,
) -> ResourceRequirements {
    let own = pod::spec(inputs.pod).resources.clone().unwrap_or_default();
    let limits = all_limits(inputs.pod);
    let list =
        |list: &Option<List>| list.iter().flatten().map(|(n, q)| (n.clone(), respelled(n, q))).collect();
    let (mut asked, mut most): (List, List) = (list(&own.requests), list(&own.limits));
    let before = shown_before(inputs);
    let old = |of: fn(&ResourceRequirements) -> Option<&List>, name: &str| {
        before.and_then(of).and_then(|list| list.get(name)).cloned()
    };
    let put = |list: &mut List, name: &str, is: Option<ApiQuantity>| {
        if let Some(is) = is {
            list.insert(name.to_owned(), is);
        }
    };
    let of_pod = |all: &BTreeMap<String, Quantity>, name: &str| all.get(name).map(|q| spell(name, *q));
    if whole.settled {
        let request = requests.get(CPU).copied().unwrap_or_default();
        put(&mut asked, CPU, of_pod(requests, CPU).filter(|_| request.milli_value() > CPU_MIN_MILLI));
        put(&mut asked, MEMORY, of_pod(requests, MEMORY));
    } else {
        let had = inputs.snapshot.and_then(|s| s.actuated).map(|a| Quantity::from_units(a.memory_request));
        let had = had.filter(|q| !q.is_zero()).map(|q| spell(MEMORY, q));
        let memory =
            had.or_else(|| old(|r| r.requests.as_ref(), MEMORY)).or_else(|| of_pod(requests, MEMORY));
        put(&mut asked, CPU, old(|r| r.requests.as_ref(), CPU));
        put(&mut asked, MEMORY, memory);
    }
    for name in [CPU, MEMORY] {
        let limit = match whole.applied {
            Some(applied) => limit_of(applied, name).and_then(|is| {
                let exact = || of_pod(&limits, name).filter(|_| whole.settled);
                exact().or_else(|| Some(spell(name, is)))
            }),
            None => old(|r| r.limits.as_ref(), name).filter(|_| !whole.settled),
        };
        put(&mut most, name, limit);
    }
    let some = |list: List| Some(list).filter(|list| !list.is_empty());
    ResourceRequirements { requests: some(asked), limits: some(most), ..own }
}

/// What was shown while it ran already.
fn shown_before<'a>(inputs: &StatusInputs<'a>) -> Option<&'a ResourceRequirements> {
    let known = inputs.previous.or(inputs.pod.status.as_ref())?;
    known.resources.as_ref().filter(|_| known.phase.as_deref() == Some(Phase::Running.as_str()))
}

fn limit_of(applied: &CgroupValues, name: &str) -> Option<Quantity> {
    if name == MEMORY {
        return i64::try_from(applied.memory_max?).ok().map(Quantity::from_units);
    }
    let max = applied.cpu_max?;
    let milli = max.quota_us?.saturating_mul(1000).checked_div(max.period_us)?;
    i64::try_from(milli).ok().map(Quantity::from_milli)
}

fn spelled(amounts: &BTreeMap<String, Quantity>) -> List {
    amounts.iter().map(|(name, amount)| (name.clone(), spell(name, *amount))).collect()
}

fn respelled(name: &str, amount: &ApiQuantity) -> ApiQuantity {
    Quantity::parse(&amount.0).map_or_else(|_| amount.clone(), |q| spell(name, q))
}

/// What has no power of two is spelled by powers of ten: so does the API server.
fn spell(name: &str, amount: Quantity) -> ApiQuantity {
    let text = quantity_text::of_resource(name, amount);
    ApiQuantity(if text.ends_with('i') { text } else { quantity_text::decimal(amount) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;
    use crate::status::tests::shown;
    use agent_types::node_context::CgroupDriver;
    use agent_types::node_context::NodeContext;
    use agent_types::resources::cgroups::pod::pod_cgroup;

    fn of(resources: Value, container: Value) -> Arc<Pod> {
        let spec = json!({"resources": resources, "containers": [{"name": "a", "resources": container}]});
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).unwrap(),
        )
    }

    fn values(p: &Pod) -> CgroupValues {
        let mut node = NodeContext::new("n");
        node.cgroup.per_qos = true;
        node.cgroup.driver = CgroupDriver::Cgroupfs;
        pod_cgroup(p, &node).unwrap().values
    }

    fn resources(
        p: &Pod,
        phase: Phase,
        whole: PodCgroupState<'_>,
        previous: Option<&PodStatus>,
    ) -> (Value, PodStatus) {
        let mut status = PodStatus { phase: Some(phase.as_str().to_owned()), ..PodStatus::default() };
        shown(p, previous, whole, |inputs| fill(inputs, phase, &mut status));
        (json!([status.resources, status.allocated_resources]), status)
    }

    #[test]
    fn a_pod_that_does_not_run_shows_what_it_was_given() {
        let p = of(
            json!({"limits": {"cpu": "2"}}),
            json!({"requests": {"cpu": "1000m", "memory": "1000k", "ephemeral-storage": "1Gi"}}),
        );
        let all = json!({"cpu": "1", "memory": "1M", "ephemeral-storage": "1Gi"});
        let (seen, _) = resources(&p, Phase::Pending, PodCgroupState::default(), None);
        assert_eq!(seen, json!([{"requests": all, "limits": {"cpu": "2"}}, all]));
        let (none, _) =
            resources(&of(Value::Null, json!({})), Phase::Pending, PodCgroupState::default(), None);
        assert_eq!(none, json!([{}, null]));
    }

    #[test]
    fn a_pod_that_runs_shows_what_is_in_force() {
        let small = of(
            json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "15m", "memory": "128Mi"}}),
            json!({}),
        );
        let settled = values(&small);
        let whole = PodCgroupState { applied: Some(&settled), settled: true };
        let (seen, status) = resources(&small, Phase::Running, whole, None);
        let first =
            json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "15m", "memory": "128Mi"}});
        assert_eq!(seen[0], first, "not what comes back of rounded quotas");
        // It was given more, and does not have it yet.
        let large = of(
            json!({"requests": {"cpu": "2", "memory": "96Mi"}, "limits": {"cpu": "3", "memory": "256Mi"}}),
            json!({}),
        );
        let between = PodCgroupState { applied: Some(&settled), settled: false };
        let (seen, _) = resources(&large, Phase::Running, between, Some(&status));
        assert_eq!(seen[0]["requests"], first["requests"]);
        assert_eq!(seen[0]["limits"]["memory"], json!("128Mi"));
        assert_eq!(seen[1], json!({"cpu": "2", "memory": "96Mi"}));
        // A new agent that has not inspected the pod yet keeps the shown values.
        let (seen, _) = resources(&large, Phase::Running, PodCgroupState::default(), Some(&status));
        assert_eq!(seen[0], first);
        let now = values(&large);
        let (seen, _) = resources(
            &large,
            Phase::Running,
            PodCgroupState { applied: Some(&now), settled: true },
            Some(&status),
        );
        assert_eq!(
            seen[0],
            json!({"requests": {"cpu": "2", "memory": "96Mi"}, "limits": {"cpu": "3", "memory": "256Mi"}})
        );
    }

    #[test]
    fn a_pod_without_amounts_of_its_own_shows_those_of_its_cgroup() {
        let both = json!({"requests": {"cpu": "1", "memory": "1Mi"}, "limits": {"memory": "2Mi"}});
        let p = of(Value::Null, both.clone());
        let settled = values(&p);
        let whole = PodCgroupState { applied: Some(&settled), settled: true };
        let (seen, _) = resources(&p, Phase::Running, whole, None);
        assert_eq!(seen, json!([both, {"cpu": "1", "memory": "1Mi"}]));
        let none = of(Value::Null, json!({}));
        let settled = values(&none);
        let (seen, _) =
            resources(&none, Phase::Running, PodCgroupState { applied: Some(&settled), settled: true }, None);
        assert_eq!(seen, json!([{}, null]));
    }
}
