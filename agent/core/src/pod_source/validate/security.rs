//! Security contexts of pods and containers.
//!
//! In: `PodSecurityContext`, `SecurityContext`. Out: mistakes.

use k8s_openapi::api::core::v1::{PodSpec, SeccompProfile, SecurityContext};

use super::apparmor::field as apparmor;
use super::names::local_path;
use crate::container_spec::sandbox::normal_sysctl;
use crate::pod_source::field_error::Errors;
use crate::pod_source::validate::parts::Unique;

const ID_RANGE: &str = "must be between 0 and 2147483647, inclusive";

fn id(path: String, value: Option<i64>, errors: &mut Errors) {
    if let Some(value) = value.filter(|v| !(0..=i64::from(i32::MAX)).contains(v)) {
        errors.invalid(path, value, ID_RANGE);
    }
}

pub(super) fn pod(spec: &PodSpec, errors: &mut Errors) {
    if spec.host_users == Some(false) {
        let shared = [
            ("spec.hostNetwork", spec.host_network),
            ("spec.hostPID", spec.host_pid),
            ("spec.hostIPC", spec.host_ipc),
        ];
        for (path, _) in shared.into_iter().filter(|(_, is)| *is == Some(true)) {
            errors.forbidden(path, "when `hostUsers` is false");
        }
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        errors.invalid("spec.shareProcessNamespace", true, "may not be set together with hostPID");
    }
    let Some(context) = &spec.security_context else { return };
    let at = |field: &str| format!("spec.securityContext.{field}");
    id(at("runAsUser"), context.run_as_user, errors);
    id(at("runAsGroup"), context.run_as_group, errors);
    id(at("fsGroup"), context.fs_group, errors);
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        id(at(&format!("supplementalGroups[{index}]")), Some(*group), errors);
    }
    let policy = context.supplemental_groups_policy.as_deref();
    errors.one_of(at("supplementalGroupsPolicy"), policy, &["Merge", "Strict"]);
    let policy = context.fs_group_change_policy.as_deref();
    errors.one_of(at("fsGroupChangePolicy"), policy, &["OnRootMismatch", "Always"]);
    seccomp(&at("seccompProfile"), context.seccomp_profile.as_ref(), errors);
    apparmor(&at("appArmorProfile"), context.app_armor_profile.as_ref(), errors);
    let mut names = Unique::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = at(&format!("sysctls[{index}].name"));
        let name = normal_sysctl(&sysctl.name);
        let part = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-/".contains(&b))
        };
        if name.is_empty() {
            errors.required(path, "");
        } else if name.len() > 253 || !name.split('.').all(part) {
            errors.invalid(
                path,
                &sysctl.name,
                "must be names of letters, digits, '-' and '_', joined by '.' or '/'",
            );
        } else if names.seen(name) {
            errors.duplicate(path, &sysctl.name);
        }
    }
}

pub(super) fn container(path: &str, context: &SecurityContext, own_users: bool, errors: &mut Errors) {
    let at = |field: &str| format!("{path}.{field}");
    id(at("runAsUser"), context.run_as_user, errors);
    id(at("runAsGroup"), context.run_as_group, errors);
    errors.one_of(at("procMount"), context.proc_mount.as_deref(), &["", "Default", "Unmasked"]);
    if !own_users && context.proc_mount.as_deref() == Some("Unmasked") {
        errors.invalid(at("procMount"), "Unmasked", "`hostUsers` must be false to use `Unmasked`");
    }
    seccomp(&at("seccompProfile"), context.seccomp_profile.as_ref(), errors);
    apparmor(&at("appArmorProfile"), context.app_armor_profile.as_ref(), errors);
    if context.allow_privilege_escalation == Some(false) {
        let added = context.capabilities.iter().flat_map(|c| c.add.iter().flatten());
        if context.privileged == Some(true) {
            errors.invalid(
                at("allowPrivilegeEscalation"),
                false,
                "cannot be false when the container is privileged",
            );
        } else if added.into_iter().any(|c| matches!(c.as_str(), "SYS_ADMIN" | "CAP_SYS_ADMIN")) {
            errors.invalid(at("allowPrivilegeEscalation"), false, "cannot be false when SYS_ADMIN is added");
        }
    }
}

fn seccomp(path: &str, profile: Option<&SeccompProfile>, errors: &mut Errors) {
    let Some(profile) = profile else { return };
    errors.one_of(
        format!("{path}.type"),
        Some(&profile.type_),
        &["Localhost", "RuntimeDefault", "Unconfined"],
    );
    let path = format!("{path}.localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref().unwrap_or("")) {
        ("Localhost", "") => errors.required(path, "must be set when type is Localhost"),
        ("Localhost", name) => {
            if let Some(detail) = local_path(name) {
                errors.invalid(path, name, detail);
            }
        }
        (_, "") => {}
        (_, name) => errors.invalid(path, name, "can only be set when type is Localhost"),
    }
}
