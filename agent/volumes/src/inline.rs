//! Volumes of a pod with a type that no kubelet mounts itself any more: most of them belong to a CSI driver
//! under another name ([`crate::csi::translation`]), the others to no driver.
//!
//! In: a pod and its volume. Out: a [`Bound`], as if the volume were a claim's, without a request; or
//! upstream's message. Invariants: a volume that no container uses delays no pod; a pod with a volume without
//! a driver is admitted and waits. Upstream: pkg/kubelet/volumemanager/populator (`createVolumeSpec`),
//! `FindPluginBySpec` of pkg/volume/plugins.go, pkg/volume/git_repo.

use agent_types::pod;
use k8s_openapi::api::core::v1::{GitRepoVolumeSource, Pod, Volume};

use super::claim::{ClaimError, csi_source, no_plugin};
use crate::bound::{Bound, Source};
use crate::csi::source::CsiSource;
use crate::csi::translation;
use crate::plugin::NO_PLUGIN;

/// The words about `gitRepo`, whose gate cannot be turned on.
const NO_GIT: &str = "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the \
                      feature-gate `GitRepoVolumeDriver`";

/// The volume is of a type that the kubelet no longer mounts.
#[must_use]
pub fn has_no_plugin(volume: &Volume) -> bool {
    volume.rbd.is_some()
        || volume.cephfs.is_some()
        || volume.glusterfs.is_some()
        || volume.storageos.is_some()
        || volume.scale_io.is_some()
        || volume.quobyte.is_some()
        || volume.flocker.is_some()
        || volume.photon_persistent_disk.is_some()
        // Of a type that this node has never heard of nothing is left.
        || *volume == Volume { name: volume.name.clone(), ..Volume::default() }
}

/// It is found out by [`bound`] what the volume is.
#[must_use]
pub fn is_inline(volume: &Volume) -> bool {
    translation::is_inline(volume) || has_no_plugin(volume)
}

/// What such a volume is; `None`: it is none.
///
/// # Errors
/// It cannot be translated, or the kubelet no longer mounts its type.
#[must_use]
pub fn bound(p: &Pod, volume: &Volume) -> Option<Result<Bound, ClaimError>> {
    if has_no_plugin(volume) {
        return Some(Err(no_plugin(&volume.name, NO_PLUGIN)));
    }
    let made = translation::inline(volume, pod::namespace(p))?;
    Some(made.map_err(ClaimError::Unprocessed).map(|made| {
        let spec = made.spec.unwrap_or_default();
        let source = csi_source(spec.csi.unwrap_or_default(), spec.access_modes.unwrap_or_default(), "");
        Bound {
            volume: made.metadata.name.unwrap_or_default(),
            source: Source::Csi(Box::new(CsiSource { migrated: true, ..source })),
            // As upstream: what such a volume says of it is for the driver's controller.
            read_only: false,
            options: Vec::new(),
            one_pod: false,
            block: false,
            group: None,
            labelled: false,
        }
    }))
}

/// The pod does not wait for the volume, because no container has it.
#[must_use]
pub fn is_idle(p: &Pod, volume: &Volume) -> bool {
    let perhaps_nobodys = is_inline(volume) || volume.git_repo.is_some() || volume.flex_volume.is_some();
    perhaps_nobodys && !is_used(p, &volume.name)
}

fn is_used(p: &Pod, volume: &str) -> bool {
    let common = || pod::init_containers(p).iter().chain(pod::containers(p));
    let late = pod::ephemeral_containers(p).iter();
    let mounts = common().map(|c| &c.volume_mounts).chain(late.clone().map(|c| &c.volume_mounts));
    let devices = common().map(|c| &c.volume_devices).chain(late.map(|c| &c.volume_devices));
    mounts.flatten().flatten().any(|m| m.name == volume)
        || devices.flatten().flatten().any(|d| d.name == volume)
}

/// Why nothing is fetched from a repository. Upstream looks first at words that git could take for options.
pub(super) fn no_git(volume: &str, git: &GitRepoVolumeSource) -> String {
    let words = [
        (Some(&git.repository), "repository"),
        (git.revision.as_ref(), "revision"),
        (git.directory.as_ref(), "directory"),
    ];
    let option =
        words.into_iter().find_map(|(word, name)| Some((word.filter(|w| w.starts_with('-'))?, name)));
    match option {
        Some((word, name)) => format!(
            "MountVolume.NewMounter initialization failed for volume {volume:?} : {word:?} is an invalid value for {name}"
        ),
        None => NO_GIT.to_owned(),
    }
}

#[cfg(test)]
mod tests;
