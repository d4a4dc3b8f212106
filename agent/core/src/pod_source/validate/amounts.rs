//! Requests and limits of the whole pod (`spec.resources`, KEP-2837).
//!
//! In: a defaulted pod. Out: mistakes.

use agent_types::resources::requests::{
    CPU, HUGEPAGES_PREFIX, MEMORY, all_requests, limit, peak_limit, peak_request, pod_level_limit,
    pod_level_request,
};
use agent_types::{pod, quantity_text};
use k8s_openapi::api::core::v1::Pod;

use super::container;
use crate::pod_source::field_error::Errors;

const PATH: &str = "spec.resources";

pub(super) fn pod_level(p: &Pod, errors: &mut Errors) {
    let Some(own) = &pod::spec(p).resources else { return };
    if own.claims.is_some() {
        errors.forbidden(format!("{PATH}.claims"), "claims may not be set for Resources at pod-level");
    }
    for (kind, name) in [("requests", &own.requests), ("limits", &own.limits)]
        .into_iter()
        .flat_map(|(kind, list)| list.iter().flatten().map(move |(name, _)| (kind, name)))
    {
        if !matches!(name.as_str(), CPU | MEMORY) && !name.starts_with(HUGEPAGES_PREFIX) {
            errors.invalid(format!("{PATH}.{kind}"), name, "must be cpu, memory or hugepages-<size>");
        }
    }
    container::resources(PATH, own, errors);
    consistent(p, errors);
}

/// The pod's own request covers its containers' requests, and no container's limit is above the pod's.
fn consistent(p: &Pod, errors: &mut Errors) {
    for name in all_requests(p).keys() {
        let (sum, own) = (peak_request(p, name), pod_level_request(p, name));
        if let Some(own) = own.filter(|own| sum > *own) {
            let sum = quantity_text::of_resource(name, sum);
            let detail = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.invalid(
                format!("{PATH}.requests[{name}]"),
                quantity_text::of_resource(name, own),
                &detail,
            );
        }
    }
    for (name, own) in pod::spec(p).resources.iter().filter_map(|r| r.limits.as_ref()).flatten() {
        let Some(most) = pod_level_limit(p, name) else { continue };
        let sum = peak_limit(p, name);
        if name.starts_with(HUGEPAGES_PREFIX) && sum > most {
            let sum = quantity_text::of_resource(name, sum);
            let detail = format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.invalid(format!("{PATH}.limits[{name}]"), &own.0, &detail);
        }
        for (index, c) in pod::containers(p).iter().enumerate() {
            if let Some(limit) = limit(c, name).filter(|limit| *limit > most) {
                let detail = format!("must be less than or equal to pod limits of {}", own.0);
                let path = format!("spec.containers[{index}].resources.limits[{name}]");
                errors.invalid(path, quantity_text::of_resource(name, limit), &detail);
            }
        }
    }
}
