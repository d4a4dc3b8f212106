//! Validates a pod as the API server would.
//!
//! In: a defaulted pod with its identity. Out: every mistake, with the path of its field. Invariants: a pod
//! without mistakes has names that are safe as path elements, quantities that parse, and mounts whose volumes
//! exist; later code relies on it. Upstream: pkg/apis/core/validation.

mod amounts;
mod apparmor;
mod container;
pub(super) mod names;
mod parts;
mod pod;
mod runnable;
mod security;
mod volumes;

use k8s_openapi::api::core::v1::Pod;

use super::field_error::{Errors, FieldError};

pub use runnable::runnable;

/// Mistakes in the name, namespace and UID of a pod; without these the API cannot show a report about it.
#[must_use]
pub fn identity(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    pod::identity(&pod.metadata, &mut errors);
    errors.into_list()
}

/// All mistakes of `pod`, in the order of its fields.
#[must_use]
pub fn validate(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    pod::metadata(&pod.metadata, &mut errors);
    match &pod.spec {
        None => errors.required("spec", ""),
        Some(spec) => {
            pod::spec(spec, &mut errors);
            volumes::volumes(spec, &mut errors);
            container::containers(spec, &mut errors);
            amounts::pod_level(pod, &mut errors);
            apparmor::annotations(pod, &mut errors);
        }
    }
    errors.into_list()
}

#[cfg(test)]
mod tests;
