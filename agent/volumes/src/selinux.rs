//! SELinux: the label that a mount gives to a volume's files (`-o context=…`), so that they need no
//! relabelling one by one.
//!
//! In: the node's policy from its files, a pod, the volume behind a claim. Out: a label, or the reason
//! against one. Invariants: the label is a function of pod and policy; a volume that needs two labels in a
//! pod has none. Upstream: KEP-1710, pkg/volume/util/selinux.go, opencontainers/selinux (label.InitLabels).

use std::collections::BTreeSet;

use agent_types::node_context::{Label, NodeContext};
use agent_types::pod;
use k8s_openapi::api::core::v1::{Pod, SecurityContext, VolumeMount};

use crate::bound::{Bound, Source};

/// The entry in the file next to a driver's volume: the label that it was mounted with.
pub const CONTEXT: &str = "seLinuxMountContext";
/// What the file system of a plugin's directory is labelled: drivers in containers may use it.
/// Upstream: `KubeletPluginsDirSELinuxLabel`.
pub const PLUGINS_LABEL: &str = "system_u:object_r:container_file_t:s0";
/// `seLinuxChangePolicy`: the runtime goes through all files.
const RECURSIVE: &str = "Recursive";

/// The value of `key` in a file of lines `key = value` (selinux_config(5), lxc_contexts).
#[must_use]
pub fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let mut pairs = lines.filter_map(|line| line.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim() == key)?;
    Some(value.trim().trim_matches('"')).filter(|value| !value.is_empty())
}

/// What files of containers are labelled by a policy's file of container labels; `None` if it knows of no containers.
#[must_use]
pub fn container_files(contexts: &str) -> Option<Label> {
    value(contexts, "process")?;
    Label::parse(value(contexts, "file")?)
}

/// The label that the volume of a claim, which `p` calls `name`, is to be mounted with, as far as pod and node can say: of a
/// driver's volume the driver must be able to, too.
///
/// # Errors
/// Containers that mount it have different labels.
pub fn label(p: &Pod, name: &str, bound: &Bound, node: &NodeContext) -> Result<Option<String>, String> {
    let Some(files) = &node.security.selinux else { return Ok(None) };
    if bound.block || !(bound.one_pod || node.features.selinux_mount) {
        return Ok(None);
    }
    let of_pod = pod::spec(p).security_context.as_ref();
    type Parts<'a> = (&'a Option<Vec<VolumeMount>>, &'a Option<SecurityContext>);
    let all = pod::init_containers(p).iter().chain(pod::containers(p));
    let all = all.map(|c| -> Parts<'_> { (&c.volume_mounts, &c.security_context) });
    let ephemeral = pod::ephemeral_containers(p).iter().map(|c| (&c.volume_mounts, &c.security_context));
    let mounting = all.chain(ephemeral).filter(|(mounts, _)| mounts.iter().flatten().any(|m| m.name == name));
    // A container without options accepts every label. If the options name no level, the label is not known yet.
    let options = mounting.filter_map(|(_, own)| {
        let own = own.as_ref().and_then(|s| s.se_linux_options.as_ref());
        own.or_else(|| of_pod?.se_linux_options.as_ref())
    });
    let labels: Option<BTreeSet<String>> =
        options.map(|options| files.of(options).map(|label| label.to_string())).collect();
    let mut labels = labels.unwrap_or_default().into_iter();
    let (first, others) = (labels.next(), labels.collect::<Vec<_>>());
    if !others.is_empty() {
        let all: Vec<String> = first.into_iter().chain(others).collect();
        return Err(format!("multiple SELinux labels found: {}", all.join(",")));
    }
    let recursive = of_pod.and_then(|s| s.se_linux_change_policy.as_deref()) == Some(RECURSIVE);
    let can = matches!(bound.source, Source::Csi(_) | Source::NetworkDisk(_));
    Ok(first.filter(|_| can && !recursive))
}

/// The option of a mount. It is quoted: levels have commas.
#[must_use]
pub fn option(label: &str) -> String {
    format!("context={label:?}")
}

/// The words about a volume that a pod needs with another label than the one that other pods have it with.
#[must_use]
pub fn conflict(volume: &str, there: &str, wanted: &str) -> String {
    format!("conflicting SELinux labels of volume {volume}: {there:?} and {wanted:?}")
}

#[cfg(test)]
mod tests;
