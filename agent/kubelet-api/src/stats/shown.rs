//! The part of the node's pods that appears in statistics.
//!
//! In: pods and their statuses. Out: [`ShownPod`]. Invariant: the containers are those that run now.

use agent_types::ids::PodKey;
use agent_types::time::Wall;
use agent_types::{api_time, pod};
use agent_volumes::plan::{self, plugin_of};
use agent_volumes::plugin::Plugin;
use agent_volumes::{claim, project};
use k8s_openapi::api::core::v1::{Pod, PodStatus, Volume};

/// A pod that the node shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownPod {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `status.startTime`.
    pub started: Option<Wall>,
    /// Containers that run.
    pub containers: Vec<ShownContainer>,
    /// Volumes that the node made, and those of claims.
    pub volumes: Vec<ShownVolume>,
}

impl ShownPod {
    /// Identity of the pod.
    #[must_use]
    pub fn key(&self) -> PodKey {
        let (namespace, name) = (self.namespace.as_str().into(), self.name.as_str().into());
        PodKey { namespace, name, uid: self.uid.as_str().into() }
    }
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownContainer {
    /// Its name in the pod.
    pub name: String,
    /// CRI id of the container.
    pub id: String,
    /// `image` of its status.
    pub image: String,
    /// `state.running.startedAt`.
    pub started: Option<Wall>,
}

/// A volume that the node made, or a claim's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownVolume {
    /// Its name in the pod.
    pub name: String,
    /// Its directory below the pod's; `None`: a driver's, or a claim's, of which that is not known here.
    pub below: Option<String>,
    /// Name of its claim, in the pod's namespace.
    pub claim: Option<String>,
    /// It counts as the pod's ephemeral storage. Upstream: `IsLocalEphemeralVolume`.
    pub ephemeral: bool,
    /// True if the volume may have a project quota ([`project::may_have`]).
    pub countable: bool,
}

/// The statistics entry of a pod.
#[must_use]
pub fn shown(p: &Pod, status: Option<&PodStatus>) -> ShownPod {
    let key = pod::key(p);
    let containers = status.into_iter().flat_map(pod::container_statuses).filter_map(|container| {
        let running = container.state.as_ref()?.running.as_ref()?;
        Some(ShownContainer {
            name: container.name.clone(),
            id: pod::runtime_id(container.container_id.as_deref()?).to_owned(),
            image: container.image.clone(),
            started: running.started_at.as_ref().map(api_time::wall),
        })
    });
    let volumes = pod::spec(p).volumes.iter().flatten().filter_map(|v| volume(p, v));
    ShownPod {
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        uid: key.uid.to_string(),
        started: status.and_then(|s| s.start_time.as_ref()).map(api_time::wall),
        containers: containers.collect(),
        volumes: volumes.collect(),
    }
}

/// A hostPath belongs to the host: it has no statistics, as upstream.
fn volume(p: &Pod, volume: &Volume) -> Option<ShownVolume> {
    let claim = claim::of_volume(p, volume).map(|claim| claim.name);
    // A server may never answer, and of a repository nothing is ever there.
    let untold = [Plugin::HostPath, Plugin::Nfs, Plugin::GitRepo];
    let plugin = plugin_of(volume).filter(|plugin| !untold.contains(plugin));
    if claim.is_none() && plugin.is_none() {
        return None;
    }
    // The driver or program that mounted these measures them.
    let elsewhere = [Plugin::Csi, Plugin::Iscsi, Plugin::Fc, Plugin::Flex];
    let below =
        plugin.filter(|plugin| !elsewhere.contains(plugin)).map(|plugin| plan::below(plugin, &volume.name));
    let on_disk = |medium: &Option<String>| medium.as_deref().unwrap_or_default().is_empty();
    let ephemeral =
        volume.empty_dir.as_ref().is_some_and(|v| on_disk(&v.medium)) || volume.config_map.is_some();
    let countable = project::may_have(p, volume);
    Some(ShownVolume { name: volume.name.clone(), below, claim, ephemeral, countable })
}
