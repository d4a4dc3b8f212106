//! Facts that a container is configured from, in addition to its pod.

use std::collections::BTreeMap;

use agent_types::ids::ImageId;
use agent_types::objects::Objects;
use agent_types::runtime::claims::ContainerClaims;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::placement::Placement;
use agent_volumes::bound::Claims;
use agent_volumes::env_file::EnvFiles;

/// What is found out between the pod's admission and its container's creation.
#[derive(Clone, Copy, Debug)]
pub struct ContainerInputs<'a> {
    /// The container's image.
    pub image: &'a ImageInfo,
    /// The pod's addresses, the primary one first.
    pub pod_ips: &'a [String],
    /// What is known of the objects that the environment refers to.
    pub objects: &'a Objects,
    /// The files that the environment refers to.
    pub files: &'a EnvFiles,
    /// The volumes of the pod's claims.
    pub claims: &'a Claims,
    /// The images of its image volumes, by the volumes' names.
    pub images: &'a ImageVolumes,
    /// Processors and memory nodes of the pod's containers.
    pub placement: &'a Placement,
    /// What resource claims give the container; `None`: it uses none.
    pub resource_claims: Option<&'a ContainerClaims>,
    /// Read-only mounts can be so all the way down.
    pub recursive_read_only: bool,
}

/// Images that are there for image volumes, by the volumes' names.
pub type ImageVolumes = BTreeMap<String, ImageId>;
