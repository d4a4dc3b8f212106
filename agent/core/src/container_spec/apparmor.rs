//! The AppArmor profile of a container.
//!
//! In: pod and container. Out: the profile of the runtime's call, or none: the runtime then uses its own
//! default, except for privileged containers. Invariants: the container's field wins over the older
//! annotation, and the annotation over the pod's field (the API server copies annotations to fields, but for
//! static pods only the agent reads them). Upstream: pkg/security/apparmor.

use agent_types::pod;
use agent_types::runtime::config::SecurityProfile;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, SecurityContext};

/// Prefix of the annotation; the container's name follows.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const RUNTIME_DEFAULT: &str = "runtime/default";
const UNCONFINED: &str = "unconfined";
const LOCALHOST: &str = "localhost/";

/// The profile of a container, if the pod names one.
#[must_use]
pub fn profile(pod: &Pod, container: &Container) -> Option<SecurityProfile> {
    effective(pod, &container.name, container.security_context.as_ref())
}

fn effective(pod: &Pod, name: &str, own: Option<&SecurityContext>) -> Option<SecurityProfile> {
    own.and_then(|own| own.app_armor_profile.as_ref())
        .map(of_field)
        .or_else(|| of_annotation(pod::annotation(pod, &format!("{ANNOTATION}{name}"))?))
        .or_else(|| of_pod(pod).map(of_field))
}

fn of_pod(pod: &Pod) -> Option<&AppArmorProfile> {
    pod::spec(pod).security_context.as_ref()?.app_armor_profile.as_ref()
}

fn of_field(profile: &AppArmorProfile) -> SecurityProfile {
    match profile.type_.as_str() {
        "RuntimeDefault" => SecurityProfile::RuntimeDefault,
        "Localhost" => SecurityProfile::Localhost(profile.localhost_profile.clone().unwrap_or_default()),
        _ => SecurityProfile::Unconfined,
    }
}

/// Profile in an annotation's value; `None` for an unknown value.
#[must_use]
pub fn of_annotation(value: &str) -> Option<SecurityProfile> {
    match value {
        RUNTIME_DEFAULT => Some(SecurityProfile::RuntimeDefault),
        UNCONFINED => Some(SecurityProfile::Unconfined),
        value => Some(SecurityProfile::Localhost(value.strip_prefix(LOCALHOST)?.to_owned())),
    }
}

/// True if the pod names a profile anywhere: a node without AppArmor must not run it.
#[must_use]
pub fn is_required(pod: &Pod) -> bool {
    let own = containers(pod).filter_map(|(_, own)| own?.app_armor_profile.as_ref());
    let mut fields = of_pod(pod).into_iter().chain(own).map(of_field);
    let mut annotations = pod::annotations(pod).iter().filter(|(key, _)| key.starts_with(ANNOTATION));
    fields.any(|profile| profile != SecurityProfile::Unconfined)
        || annotations.any(|(_, value)| value != UNCONFINED)
}

/// A profile of the node that a container names with nothing.
#[must_use]
pub fn nameless(pod: &Pod) -> Option<String> {
    containers(pod).find_map(|(name, own)| match effective(pod, name, own) {
        Some(SecurityProfile::Localhost(name)) if name.trim().is_empty() => Some(name),
        _ => None,
    })
}

/// Name and own context of every container, ephemeral ones too.
fn containers(pod: &Pod) -> impl Iterator<Item = (&str, Option<&SecurityContext>)> {
    let lasting = pod::init_containers(pod).iter().chain(pod::containers(pod));
    let lasting = lasting.map(|c| (c.name.as_str(), c.security_context.as_ref()));
    let ephemeral = pod::spec(pod).ephemeral_containers.iter().flatten();
    lasting.chain(ephemeral.map(|c| (c.name.as_str(), c.security_context.as_ref())))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotation: Option<&str>, for_pod: Value, own: Value) -> Pod {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"securityContext": for_pod, "containers": [{"name": "c", "securityContext": own}]}});
        if let Some(value) = annotation {
            pod["metadata"]["annotations"] = json!({format!("{ANNOTATION}c"): value});
        }
        serde_json::from_value(pod).unwrap()
    }

    fn field(kind: &str, name: Option<&str>) -> Value {
        json!({"appArmorProfile": {"type": kind, "localhostProfile": name}})
    }

    /// What v1.36's `apparmor.GetProfile` and `isRequired` answer.
    #[test]
    fn field_then_annotation_then_the_pods_field() {
        let local = |name: &str| Some(SecurityProfile::Localhost(name.into()));
        let (runtime, unconfined) =
            (Some(SecurityProfile::RuntimeDefault), Some(SecurityProfile::Unconfined));
        let none = || json!({});
        let table = [
            (pod(None, none(), none()), None, false),
            (pod(None, none(), field("RuntimeDefault", None)), runtime.clone(), true),
            (pod(None, field("RuntimeDefault", None), none()), runtime.clone(), true),
            (pod(None, field("Localhost", Some("a")), field("Unconfined", None)), unconfined.clone(), true),
            (pod(None, field("Unconfined", None), none()), unconfined.clone(), false),
            (pod(Some("localhost/a/b"), field("RuntimeDefault", None), none()), local("a/b"), true),
            (pod(Some("localhost/a"), none(), field("RuntimeDefault", None)), runtime.clone(), true),
            (pod(Some("runtime/default"), none(), none()), runtime.clone(), true),
            (pod(Some("unconfined"), none(), none()), unconfined, false),
            (
                pod(Some("unconfined"), field("RuntimeDefault", None), field("RuntimeDefault", None)),
                runtime,
                true,
            ),
            (pod(Some("what"), none(), none()), None, true),
            (pod(Some("localhost/"), none(), none()), local(""), true),
        ];
        for (pod, want, required) in table {
            assert_eq!(profile(&pod, &pod::containers(&pod)[0]), want, "{pod:?}");
            assert_eq!(is_required(&pod), required, "{pod:?}");
            assert_eq!(nameless(&pod).is_some(), want == local(""), "{pod:?}");
        }
    }

    #[test]
    fn annotations_of_containers_that_are_not_there_ask_for_a_profile_too() {
        let mut stray = pod(None, json!({}), json!({}));
        stray.metadata.annotations = Some([(format!("{ANNOTATION}other"), "localhost/a".to_owned())].into());
        assert_eq!(profile(&stray, &pod::containers(&stray)[0]), None);
        assert!(is_required(&stray) && nameless(&stray).is_none());
        let blank = pod(None, json!({}), field("Localhost", Some(" ")));
        assert_eq!(nameless(&blank).as_deref(), Some(" "));
        let mut with_ephemeral = pod(None, json!({}), json!({}));
        let e = json!({"name": "e", "securityContext": field("Localhost", Some(""))});
        with_ephemeral.spec.as_mut().unwrap().ephemeral_containers =
            Some(vec![serde_json::from_value(e).unwrap()]);
        assert!(is_required(&with_ephemeral) && nameless(&with_ephemeral).as_deref() == Some(""));
    }
}
