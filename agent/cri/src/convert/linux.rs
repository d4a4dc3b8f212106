//! What sandboxes and containers share: resources, namespaces, profiles, maps.

use std::collections::{BTreeMap, HashMap};

use agent_types::ids::{ContainerId, IdMapping};
use agent_types::runtime::config::{
    LinuxResources, NamespaceMode, Namespaces, SecurityProfile, SelinuxOption, SupplementalGroupsPolicy,
};
use orlop_proto::cri::v1;
use orlop_proto::cri::v1::security_profile::ProfileType;

/// A string map as prost wants it.
pub(super) fn map(map: &BTreeMap<String, String>) -> HashMap<String, String> {
    map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// An absent number stays absent.
pub(super) fn int64(value: Option<i64>) -> Option<v1::Int64Value> {
    value.map(|value| v1::Int64Value { value })
}

/// CRI `LinuxContainerResources`.
#[must_use]
pub fn resources(r: &LinuxResources) -> v1::LinuxContainerResources {
    let limit = |(size, limit): (&String, &u64)| v1::HugepageLimit { page_size: size.clone(), limit: *limit };
    v1::LinuxContainerResources {
        cpu_period: r.cpu_period_us,
        cpu_quota: r.cpu_quota_us,
        cpu_shares: r.cpu_shares,
        memory_limit_in_bytes: r.memory_limit_bytes,
        oom_score_adj: r.oom_score_adj,
        cpuset_cpus: r.cpuset_cpus.clone(),
        cpuset_mems: r.cpuset_mems.clone(),
        hugepage_limits: r.hugepage_limits.iter().map(limit).collect(),
        unified: map(&r.unified),
        memory_swap_limit_in_bytes: r.memory_swap_limit_bytes,
    }
}

/// CRI `NamespaceOption`. With `target` the PID namespace is that container's, with `users` the user namespace is the pod's.
pub(super) fn namespaces(
    n: Namespaces,
    target: Option<&ContainerId>,
    users: Option<IdMapping>,
) -> v1::NamespaceOption {
    let mode = |m| {
        i32::from(match m {
            NamespaceMode::Pod => v1::NamespaceMode::Pod,
            NamespaceMode::Container => v1::NamespaceMode::Container,
            NamespaceMode::Node => v1::NamespaceMode::Node,
        })
    };
    v1::NamespaceOption {
        network: mode(n.network),
        pid: target.map_or_else(|| mode(n.pid), |_| v1::NamespaceMode::Target.into()),
        ipc: mode(n.ipc),
        target_id: target.map(|id| id.as_str().to_owned()).unwrap_or_default(),
        // The node's own, in words: upstream says it of every pod that has no user namespace.
        userns_options: Some(v1::UserNamespace {
            mode: users.map_or(v1::NamespaceMode::Node, |_| v1::NamespaceMode::Pod).into(),
            uids: id_mappings(users),
            gids: id_mappings(users),
        }),
    }
}

/// CRI `IDMapping`s, of users or of groups.
pub(super) fn id_mappings(users: Option<IdMapping>) -> Vec<v1::IdMapping> {
    let mapping =
        |m: IdMapping| v1::IdMapping { host_id: m.host_id, container_id: m.container_id, length: m.length };
    users.map(mapping).into_iter().collect()
}

/// CRI `SecurityProfile`.
pub(super) fn profile(p: &SecurityProfile) -> v1::SecurityProfile {
    let (kind, localhost_ref) = match p {
        SecurityProfile::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        SecurityProfile::Unconfined => (ProfileType::Unconfined, String::new()),
        SecurityProfile::Localhost(reference) => (ProfileType::Localhost, reference.clone()),
    };
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref }
}

/// The profile in the older one-string form that runtimes still read.
pub(super) fn profile_string(p: &SecurityProfile) -> String {
    match p {
        SecurityProfile::RuntimeDefault => "runtime/default".to_owned(),
        SecurityProfile::Unconfined => "unconfined".to_owned(),
        SecurityProfile::Localhost(reference) => format!("localhost/{reference}"),
    }
}

/// CRI `SELinuxOption`.
pub(super) fn selinux(s: &SelinuxOption) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: s.user.clone(),
        role: s.role.clone(),
        r#type: s.type_.clone(),
        level: s.level.clone(),
    }
}

/// CRI `SupplementalGroupsPolicy`, as its number.
pub(super) fn groups_policy(p: SupplementalGroupsPolicy) -> i32 {
    match p {
        SupplementalGroupsPolicy::Merge => v1::SupplementalGroupsPolicy::Merge,
        SupplementalGroupsPolicy::Strict => v1::SupplementalGroupsPolicy::Strict,
    }
    .into()
}
