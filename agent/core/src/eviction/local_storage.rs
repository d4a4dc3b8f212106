//! Pods that exceed a limit of local storage: `emptyDir.sizeLimit`, limits of `ephemeral-storage`.
//!
//! In: a pod, its usage. Out: the exceeded limit, with upstream's message. Invariants: pure; the first of
//! emptyDir, pod and container counts; unmeasured usage exceeds no limit, and partly measured usage exceeds
//! every limit. Upstream: `localStorageEviction` of pkg/kubelet/eviction/eviction_manager.go.

use agent_kubelet_api::stats::disk::Bound;
use agent_types::quantity_text::{binary, decimal};
use agent_types::resources::observation::Layout;
use agent_types::resources::requests::{self, EPHEMERAL_STORAGE};
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::usage::{PodUse, Space};

/// What is wrong: the signal that is counted, the message.
pub(super) type Excess = (&'static str, String);

/// Follows upstream's words.
const COUNTED_IN_PART: &str =
    "Not all of its files could be counted, therefore the usage counts as more than any limit. ";

/// There is a limit that the pod can exceed.
pub(super) fn is_limited(p: &Pod) -> bool {
    let has_limit = |c: &Container| requests::limit(c, EPHEMERAL_STORAGE).is_some();
    sized_volumes(p).next().is_some() || all(p).any(has_limit)
}

/// What the pod has too much of.
pub(super) fn excess(p: &Pod, found: &PodUse, layout: Layout) -> Option<Excess> {
    empty_dir(p, found).or_else(|| whole_pod(p, found)).or_else(|| container(p, found, layout))
}

fn all(p: &Pod) -> impl Iterator<Item = &Container> {
    pod::containers(p).iter().chain(pod::init_containers(p))
}

fn exceeds(used: Space, limit: Quantity) -> bool {
    used.amount(|used| used.bytes) > limit.value() || used.bound == Bound::AtLeast
}

/// The message, and why an amount counts as too much that is not known to be.
fn reason(message: String, used: Space) -> String {
    match used.bound {
        Bound::Exact => message,
        Bound::AtLeast => format!("{message}{COUNTED_IN_PART}"),
    }
}

/// Names and limits of the volumes with a size limit.
fn sized_volumes(p: &Pod) -> impl Iterator<Item = (&str, Quantity, &str)> {
    pod::spec(p).volumes.iter().flatten().filter_map(|volume| {
        let text = &volume.empty_dir.as_ref()?.size_limit.as_ref()?.0;
        let limit = Quantity::parse(text).ok().filter(|limit| !limit.is_zero() && !limit.is_negative())?;
        Some((volume.name.as_str(), limit, text.as_str()))
    })
}

fn empty_dir(p: &Pod, found: &PodUse) -> Option<Excess> {
    let used = |name: &str| found.volumes.iter().find(|v| v.name == name).map(|v| v.space);
    sized_volumes(p).find_map(|(name, limit, text)| {
        let used = used(name).filter(|used| exceeds(*used, limit))?;
        let message = format!("Usage of EmptyDir volume {name:?} exceeds the limit {text:?}. ");
        Some(("emptydirfs.limit", reason(message, used)))
    })
}

/// The sum of the containers' limits, even if some containers have none.
fn whole_pod(p: &Pod, found: &PodUse) -> Option<Excess> {
    let text = |c: &Container| Some(c.resources.as_ref()?.limits.as_ref()?.get(EPHEMERAL_STORAGE)?.0.clone());
    let first = all(p).find_map(text)?;
    let limit = requests::pod_limit(p, EPHEMERAL_STORAGE);
    let used = found.ephemeral();
    if !exceeds(used, limit) {
        return None;
    }
    // A sum is written as the first of its parts is.
    let limit = if first.ends_with('i') { binary(limit.value()) } else { decimal(limit) };
    let message =
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
    Some(("ephemeralpodfs.limit", reason(message, used)))
}

fn container(p: &Pod, found: &PodUse, layout: Layout) -> Option<Excess> {
    found.containers.iter().find_map(|of| {
        let container = pod::containers(p).iter().find(|c| c.name == of.name)?;
        let limit = requests::limit(container, EPHEMERAL_STORAGE).filter(|limit| !limit.is_zero())?;
        // Layers on a disk of their own are that disk's.
        let layer = of.layer.filter(|_| !layout.dedicated_images).unwrap_or_default();
        let used = of.logs.unwrap_or_default().plus(layer);
        let text = &container.resources.as_ref()?.limits.as_ref()?.get(EPHEMERAL_STORAGE)?.0;
        let name = &of.name;
        let message = format!("Container {name} exceeded its local ephemeral storage limit {text:?}. ");
        exceeds(used, limit).then(|| ("ephemeralcontainerfs.limit", reason(message, used)))
    })
}
