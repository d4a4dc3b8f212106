//! Processor and memory amounts of one container or pod: requests and limits.
//!
//! In: `resources` of a container or a pod. Out: the four quantities that an in-place resize can change.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};

use crate::resources::requests::{CPU, MEMORY, limit};
use crate::{Quantity, pod, quantity_text};

/// Quantities by resource name, as the API has them.
pub type List = BTreeMap<String, ApiQuantity>;

/// The amounts that can be changed while a container runs; zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// Thousandths of a core.
    pub cpu_request_milli: i64,
    /// Thousandths of a core.
    pub cpu_limit_milli: i64,
    /// Memory request, bytes.
    pub memory_request: i64,
    /// Memory limit, bytes.
    pub memory_limit: i64,
}

impl Amounts {
    /// Amounts of a container's `resources`.
    #[must_use]
    pub fn of(resources: Option<&ResourceRequirements>) -> Amounts {
        let requests = resources.and_then(|r| r.requests.as_ref());
        let limits = resources.and_then(|r| r.limits.as_ref());
        Amounts {
            cpu_request_milli: amount(requests, CPU).milli_value(),
            cpu_limit_milli: amount(limits, CPU).milli_value(),
            memory_request: amount(requests, MEMORY).value(),
            memory_limit: amount(limits, MEMORY).value(),
        }
    }

    /// Amounts of a container in its pod; the pod's own limits count where the container has none.
    #[must_use]
    pub fn in_pod(p: &Pod, container: &Container) -> Amounts {
        let mut amounts = Amounts::of(container.resources.as_ref());
        let of_pod = pod::spec(p).resources.as_ref().and_then(|r| r.limits.as_ref());
        let inherited = |name: &str| {
            let is = of_pod.filter(|list| list.contains_key(name))?;
            limit(container, name).is_none_or(Quantity::is_zero).then(|| amount(Some(is), name))
        };
        if let Some(limit) = inherited(CPU) {
            amounts.cpu_limit_milli = limit.milli_value();
        }
        if let Some(limit) = inherited(MEMORY) {
            amounts.memory_limit = limit.value();
        }
        amounts
    }

    /// Amounts of the pod itself (`spec.resources`).
    #[must_use]
    pub fn of_pod(p: &Pod) -> Amounts {
        Amounts::of(pod::spec(p).resources.as_ref())
    }

    /// These amounts of memory with the processor time of `other`.
    #[must_use]
    pub fn with_cpu_of(self, other: Amounts) -> Amounts {
        Amounts { cpu_request_milli: other.cpu_request_milli, cpu_limit_milli: other.cpu_limit_milli, ..self }
    }

    /// `resources` with these amounts in place of its own; zero amounts are left out.
    #[must_use]
    pub fn put_into(self, resources: Option<&ResourceRequirements>) -> ResourceRequirements {
        let mut out = resources.cloned().unwrap_or_default();
        let milli = Quantity::from_milli;
        let units = Quantity::from_units;
        put(&mut out.requests, CPU, milli(self.cpu_request_milli));
        put(&mut out.requests, MEMORY, units(self.memory_request));
        put(&mut out.limits, CPU, milli(self.cpu_limit_milli));
        put(&mut out.limits, MEMORY, units(self.memory_limit));
        out
    }
}

fn amount(list: Option<&List>, name: &str) -> Quantity {
    list.and_then(|l| l.get(name)).and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or_default()
}

/// Writes an amount; an equal amount keeps its spelling.
fn put(list: &mut Option<List>, name: &str, is: Quantity) {
    if amount(list.as_ref(), name) == is {
        return;
    }
    let list = list.get_or_insert_default();
    if is.is_zero() {
        list.remove(name);
    } else {
        list.insert(name.to_owned(), ApiQuantity(quantity_text::of_resource(name, is)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::resources::requests::resources_in_pod;

    #[test]
    fn a_container_has_its_pods_limits_where_it_has_none() {
        let lists = [
            json!({}),
            json!({"cpu": "2", "memory": "64Mi"}),
            json!({"cpu": "0"}),
            json!({"memory": "-1Mi"}),
            json!({"cpu": "many", "memory": "1e3"}),
        ];
        for of_pod in &lists {
            for of_container in &lists {
                let resources =
                    |limits: &Value| json!({"limits": limits, "requests": {"cpu": "100m", "memory": "1Mi"}});
                let container = json!({"name": "c", "resources": resources(of_container)});
                let spec = json!({"resources": resources(of_pod), "containers": [container]});
                let p: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
                let container = &pod::containers(&p)[0];
                let expected = Amounts::of(Some(&resources_in_pod(&p, container)));
                assert_eq!(Amounts::in_pod(&p, container), expected, "{of_container} in {of_pod}");
            }
        }
        let p: Pod = serde_json::from_value(
            json!({"spec": {"resources": {"limits": {"cpu": "2"}}, "containers": [{"name": "c"}]}}),
        )
        .unwrap();
        let amounts = Amounts::in_pod(&p, &pod::containers(&p)[0]);
        assert_eq!(amounts, Amounts { cpu_limit_milli: 2000, ..Amounts::default() });
    }
}
