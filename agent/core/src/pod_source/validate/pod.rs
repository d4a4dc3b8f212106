//! Metadata and the pod-level fields of the spec.
//!
//! In: `ObjectMeta`, `PodSpec`. Out: mistakes.

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::names::{dns_label, dns_subdomain, ip, label_value, qualified_name, uid};
use super::security;
use crate::pod_source::field_error::Errors;
use crate::pod_source::validate::parts;

const ANNOTATION_BYTES_MAX: usize = 256 * 1024;
const GRACE_NEGATIVE: &str = "must be greater than or equal to 0";

pub(super) fn identity(meta: &ObjectMeta, errors: &mut Errors) {
    let check =
        |path: &str, value: Option<&str>, form: fn(&str) -> Option<&'static str>, errors: &mut Errors| {
            match value.filter(|v| !v.is_empty()) {
                None => errors.required(path, ""),
                Some(value) => {
                    if let Some(detail) = form(value) {
                        errors.invalid(path, value, detail);
                    }
                }
            }
        };
    check("metadata.name", meta.name.as_deref(), dns_subdomain, errors);
    check("metadata.namespace", meta.namespace.as_deref(), dns_label, errors);
    check("metadata.uid", meta.uid.as_deref(), uid, errors);
}

pub(super) fn metadata(meta: &ObjectMeta, errors: &mut Errors) {
    identity(meta, errors);
    for (key, value) in meta.labels.iter().flatten() {
        if let Some(detail) = qualified_name(key) {
            errors.invalid("metadata.labels", key, detail);
        }
        if let Some(detail) = label_value(value) {
            errors.invalid("metadata.labels", value, detail);
        }
    }
    let mut bytes = 0;
    for (key, value) in meta.annotations.iter().flatten() {
        bytes += key.len() + value.len();
        if let Some(detail) = qualified_name(&key.to_lowercase()) {
            errors.invalid("metadata.annotations", key, detail);
        }
    }
    if bytes > ANNOTATION_BYTES_MAX {
        errors.invalid("metadata.annotations", bytes, "must have at most 262144 bytes together");
    }
}

pub(super) fn spec(spec: &PodSpec, errors: &mut Errors) {
    errors.one_of("spec.restartPolicy", spec.restart_policy.as_deref(), &["Always", "OnFailure", "Never"]);
    let policies = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.one_of("spec.dnsPolicy", spec.dns_policy.as_deref(), policies);
    if let Some(grace) = spec.termination_grace_period_seconds.filter(|s| *s < 0) {
        errors.invalid("spec.terminationGracePeriodSeconds", grace, GRACE_NEGATIVE);
    }
    if let Some(seconds) = spec.active_deadline_seconds.filter(|s| !(1..=i64::from(i32::MAX)).contains(s)) {
        errors.invalid("spec.activeDeadlineSeconds", seconds, "must be between 1 and 2147483647, inclusive");
    }
    dns(spec, errors);
    hostname(spec, errors);
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = format!("spec.hostAliases[{index}]");
        if let Some(detail) = ip(&alias.ip) {
            errors.invalid(format!("{path}.ip"), &alias.ip, detail);
        }
        for (index, name) in alias.hostnames.iter().flatten().enumerate() {
            if let Some(detail) = dns_subdomain(name) {
                errors.invalid(format!("{path}.hostnames[{index}]"), name, detail);
            }
        }
    }
    errors.one_of("spec.os.name", spec.os.as_ref().map(|os| os.name.as_str()), &["linux", "windows"]);
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        let path = format!("spec.tolerations[{index}]");
        errors.one_of(
            format!("{path}.operator"),
            toleration.operator.as_deref(),
            &["", "Exists", "Equal", "Lt", "Gt"],
        );
        let effects = &["", "NoSchedule", "PreferNoSchedule", "NoExecute"];
        errors.one_of(format!("{path}.effect"), toleration.effect.as_deref(), effects);
    }
    if let Some(name) = &spec.runtime_class_name
        && let Some(detail) = dns_subdomain(name)
    {
        errors.invalid("spec.runtimeClassName", name, detail);
    }
    for (name, quantity) in spec.overhead.iter().flatten() {
        parts::amount(format!("spec.overhead[{name}]"), name, &quantity.0, errors);
    }
    security::pod(spec, errors);
}

fn dns(spec: &PodSpec, errors: &mut Errors) {
    let none = PodDNSConfig::default();
    let config = spec.dns_config.as_ref().unwrap_or(&none);
    let servers = config.nameservers.as_deref().unwrap_or(&[]);
    if spec.dns_policy.as_deref() == Some("None") && servers.is_empty() {
        errors.required(
            "spec.dnsConfig.nameservers",
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        );
    }
    if servers.len() > 3 {
        errors.invalid(
            "spec.dnsConfig.nameservers",
            servers.join(" "),
            "must not have more than 3 nameservers",
        );
    }
    for (index, server) in servers.iter().enumerate() {
        if let Some(detail) = ip(server) {
            errors.invalid(format!("spec.dnsConfig.nameservers[{index}]"), server, detail);
        }
    }
    let searches = config.searches.as_deref().unwrap_or(&[]);
    if searches.len() > 32 {
        errors.invalid("spec.dnsConfig.searches", searches.len(), "must not have more than 32 search paths");
    }
    if searches.join(" ").len() > 2048 {
        errors.invalid(
            "spec.dnsConfig.searches",
            searches.len(),
            "must not have more than 2048 characters together",
        );
    }
    for (index, search) in searches.iter().enumerate() {
        // The relaxed form: underscores and one trailing dot are fine, a lone dot too.
        let name = search.strip_suffix('.').unwrap_or(search).replace('_', "a");
        if search != "." && dns_subdomain(&name).is_some() {
            let detail = "must be a DNS subdomain, optionally with '_' and a trailing '.'";
            errors.invalid(format!("spec.dnsConfig.searches[{index}]"), search, detail);
        }
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or("").is_empty() {
            errors.required(format!("spec.dnsConfig.options[{index}]"), "must not be empty");
        }
    }
}

fn hostname(spec: &PodSpec, errors: &mut Errors) {
    for (path, value) in [("spec.hostname", &spec.hostname), ("spec.subdomain", &spec.subdomain)] {
        if let Some(value) = value.as_deref().filter(|v| !v.is_empty())
            && let Some(detail) = dns_label(value)
        {
            errors.invalid(path, value, detail);
        }
    }
    let Some(name) = &spec.hostname_override else { return };
    let path = "spec.hostnameOverride";
    if name.len() > 64 {
        errors.invalid(path, name, "must have at most 64 characters");
    }
    if let Some(detail) = dns_subdomain(name) {
        errors.invalid(path, name, detail);
    }
    if spec.host_network == Some(true) || spec.set_hostname_as_fqdn == Some(true) {
        errors.forbidden(path, "may not be set together with hostNetwork or setHostnameAsFQDN");
    }
}
