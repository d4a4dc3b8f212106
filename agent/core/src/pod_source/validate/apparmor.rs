//! AppArmor profiles: checks fields and the older annotations, and that both agree.
//!
//! In: a pod. Out: mistakes. Upstream: `ValidateAppArmorProfileField`, `ValidateAppArmorPodAnnotations` and
//! `validateAppArmorAnnotationsAndFieldsMatchOnCreate` of pkg/apis/core/validation/validation.go.

use agent_types::pod;
use agent_types::runtime::config::SecurityProfile;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};

use crate::container_spec::apparmor::{ANNOTATION, of_annotation};
use crate::pod_source::field_error::Errors;

/// Bytes of a profile's name (`PATH_MAX` - 1).
const NAME_MAX: usize = 4095;
const LOCALHOST: &str = "must be set when AppArmor type is Localhost";

/// One profile field.
pub(super) fn field(path: &str, profile: Option<&AppArmorProfile>, errors: &mut Errors) {
    let Some(profile) = profile else { return };
    let kind = format!("{path}.type");
    if profile.type_.is_empty() {
        errors.required(kind, "type is required when appArmorProfile is set");
        return;
    }
    errors.one_of(kind, Some(&profile.type_), &["Localhost", "RuntimeDefault", "Unconfined"]);
    let path = format!("{path}.localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("Localhost", None | Some("")) => errors.required(path, LOCALHOST),
        ("Localhost", Some(name)) if name.trim() != name => {
            errors.invalid(path, name, "must not be padded with whitespace");
        }
        ("Localhost", Some(name)) if name.len() > NAME_MAX => {
            errors.invalid(path, format!("{} bytes", name.len()), "may not be more than 4095 bytes");
        }
        ("Localhost", Some(_)) | (_, None) => {}
        (_, Some(name)) => errors.invalid(path, name, "can only be set when AppArmor type is Localhost"),
    }
}

/// The annotations, each by itself and against the fields.
pub(super) fn annotations(pod: &Pod, errors: &mut Errors) {
    for (key, value) in pod::annotations(pod) {
        let Some(name) = key.strip_prefix(ANNOTATION) else { continue };
        let path = format!("metadata.annotations[{key}]");
        let container = containers(pod).find(|(_, c)| c.name == name);
        if container.is_none() {
            errors.invalid(&path, name, "container not found");
        }
        let said = of_annotation(value);
        if said.is_none() && !value.is_empty() {
            errors.invalid(&path, value, &format!("invalid AppArmor profile name: {value:?}"));
        }
        if let Some((path, container)) = container {
            same(&path, said.as_ref(), in_force(pod, container), errors);
        }
    }
}

fn same(path: &str, said: Option<&SecurityProfile>, field: Option<&AppArmorProfile>, errors: &mut Errors) {
    let Some(field) = field else { return };
    let path = format!("{path}.securityContext.appArmorProfile");
    let same_type = match (field.type_.as_str(), said) {
        ("Unconfined", said) => said == Some(&SecurityProfile::Unconfined),
        ("RuntimeDefault", said) => said == Some(&SecurityProfile::RuntimeDefault),
        ("Localhost", Some(SecurityProfile::Localhost(name))) => {
            if field.localhost_profile.as_ref() != Some(name) {
                let detail = "apparmor profile in annotation and field must match";
                errors.forbidden(format!("{path}.localhostProfile"), detail);
            }
            true
        }
        ("Localhost", _) => false,
        _ => true,
    };
    if !same_type {
        errors.forbidden(format!("{path}.type"), "apparmor type in annotation and field must match");
    }
}

/// The field that counts for a container: its own, or else the pod's.
fn in_force<'p>(pod: &'p Pod, container: &'p Container) -> Option<&'p AppArmorProfile> {
    let own = container.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    own.or_else(|| pod::spec(pod).security_context.as_ref()?.app_armor_profile.as_ref())
}

fn containers(pod: &Pod) -> impl Iterator<Item = (String, &Container)> {
    let init = pod::init_containers(pod).iter().enumerate();
    let init = init.map(|(index, c)| (format!("spec.initContainers[{index}]"), c));
    let regular = pod::containers(pod).iter().enumerate();
    init.chain(regular.map(|(index, c)| (format!("spec.containers[{index}]"), c)))
}
