//! The volume behind a mount of a container.

use agent_types::node_context::NodeContext;
use agent_types::pod;
use agent_types::spec_error::SpecError;
use agent_volumes::bound::Claims;
use agent_volumes::plan::{Location, location};
use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod, VolumeMount};

/// Where the volume of a mount is on the host.
///
/// # Errors
/// The pod does not have it, or this node cannot provide it.
pub(crate) fn mounted_volume(
    pod: &Pod,
    container: &Container,
    mount: &VolumeMount,
    claims: &Claims,
    node: &NodeContext,
) -> Result<Location, SpecError> {
    let volumes = pod::spec(pod).volumes.as_deref().unwrap_or(&[]);
    let volume = volumes.iter().find(|v| v.name == mount.name).ok_or_else(|| {
        SpecError::container(format!(
            "cannot find volume {:?} to mount into container {:?}",
            mount.name, container.name
        ))
    })?;
    location(pod, volume, claims, node).ok_or_else(|| {
        SpecError::container(format!("volume {:?} has a type that this node cannot provide", mount.name))
    })
}

pub(super) fn image_of<'p>(pod: &'p Pod, volume: &str) -> Option<&'p ImageVolumeSource> {
    pod::spec(pod).volumes.iter().flatten().find(|v| v.name == volume)?.image.as_ref()
}
