//! Volumes that are staged on this node for all their pods: which are in use is told to the API server, and those that no pod
//! has are given back to their drivers.
//!
//! ```text
//! a pod wants one, a pod's are gone, back-off over ─► read the disk ─► Staging ─► volumesInUse of the Node
//!                                                                        └─► unstage (a task each) ─► its answer
//! ```
//! In: hints, the disk. Out: the Node's `volumesInUse`, calls of drivers. Invariants: a driver is asked only while nobody else
//! is at the volume, after another look at the disk; what cannot be read is no reason to take anything back, or to say that it
//! is not in use. Upstream: pkg/kubelet/volumemanager/reconciler.

use std::sync::Arc;
use std::time::Duration;

use agent_core::node_status::{NodeInput, NodeStatusEvent};
use agent_volumes::attach::OnDisk;
use agent_volumes::csi::unregistered;
use agent_volumes::key::VolumeKey;

use super::Csi;
use crate::pods::pod_dirs::{PodDirs, chain};
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;
use crate::volumes::network_disks;

/// How often the disk is read without a hint.
const RESCAN: Duration = Duration::from_secs(60);

/// Follows the volumes until the node stops. Without a Node nobody is told.
pub async fn follow(dirs: Arc<PodDirs>, csi: Csi, to: Option<Sender<NodeStatusEvent>>, tasks: Tasks) {
    let mut last: Option<OnDisk> = None;
    let mut told: Option<Vec<String>> = None;
    loop {
        let at = dirs.clone();
        let Some(read) = tasks.blocking(move || at.csi_on_disk()).await else { return };
        let now = tasks.now().mono;
        let in_use = match read {
            Ok(disk) => {
                let (all, due) = csi.volumes.look(&disk, now);
                last = Some(disk);
                for key in due {
                    let (dirs, csi, own) = (dirs.clone(), csi.clone(), tasks.clone());
                    tasks.start(async move { unstage(&dirs, &csi, &key, &own).await });
                }
                Some(all)
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "volumes of CSI drivers are not known; none is given back");
                // What was here is taken to be here still.
                last.as_ref().map(|disk| csi.volumes.in_use(disk))
            }
        };
        if in_use.is_some() && told != in_use {
            told.clone_from(&in_use);
            if let Some(to) = &to {
                to.send(NodeStatusEvent::Input(NodeInput::VolumesInUse(in_use)));
            }
        }
        let rescan = now.after(RESCAN);
        let due = csi.volumes.deadline().map_or(rescan, |at| at.min(rescan));
        tokio::select! {
            // Both may be dropped: a hint that came meanwhile is kept.
            () = csi.volumes.changed() => {}
            () = tasks.wait_until(due) => {}
        }
    }
}

async fn unstage(dirs: &Arc<PodDirs>, csi: &Csi, key: &VolumeKey, tasks: &Tasks) {
    let done = match give_back(dirs, csi, key, tasks).await {
        Ok(done) => done,
        Err(error) => {
            tracing::warn!(
                driver = key.driver,
                volume = key.handle,
                error,
                "UnmountVolume.UnmountDevice failed"
            );
            false
        }
    };
    csi.volumes.unstaged(key, done, tasks.now().mono);
}

/// True if it is given back; false if somebody has it again.
async fn give_back(dirs: &Arc<PodDirs>, csi: &Csi, key: &VolumeKey, tasks: &Tasks) -> Result<bool, String> {
    const STOPS: &str = "the agent stops";
    let _alone = csi.volumes.alone(key).await;
    let at = dirs.clone();
    let disk = tasks.blocking(move || at.csi_on_disk()).await.ok_or(STOPS)?.map_err(|e| chain(&e))?;
    if !csi.volumes.is_idle(key, &disk) {
        return Ok(false);
    }
    let endpoint = || {
        let endpoint = csi.registered.endpoint(&key.driver);
        endpoint.ok_or_else(|| unregistered("attacher.UnmountDevice", &key.driver))
    };
    if key.is_network_disk() {
        return let_go(dirs, csi, key, tasks).await.map(|()| true);
    }
    if key.flex_driver().is_some() {
        return let_flex_go(dirs, csi, key, tasks).await.map(|()| true);
    }
    // Also if it fails it may no longer be what it was.
    csi.volumes.set_staged(key, false);
    let held = disk.get(key).cloned().unwrap_or_default();
    if held.staged {
        let staged = agent_plugins::unstage(&endpoint()?, &key.handle, &dirs.stage_of(key)).await;
        staged.map_err(|e| e.to_string())?;
        let (at, of) = (dirs.clone(), key.clone());
        tasks
            .blocking_of_volume(&key.handle, move || at.unstaged(&of))
            .await
            .ok_or(STOPS)?
            .map_err(|e| chain(&e))?;
    }
    for volume in held.blocks {
        let at = dirs.device_stage(&volume);
        let stage = at.clone();
        // Nothing of a driver that does not stage is there.
        if tasks.blocking_of_volume(&key.handle, move || stage.exists()).await.ok_or(STOPS)? {
            let staged = agent_plugins::unstage(&endpoint()?, &key.handle, &at).await;
            staged.map_err(|e| e.to_string())?;
        }
        let at = dirs.clone();
        tasks
            .blocking_of_volume(&key.handle, move || at.forget_device(&volume))
            .await
            .ok_or(STOPS)?
            .map_err(|e| chain(&e))?;
    }
    tracing::info!(driver = key.driver, volume = key.handle, "volume is given back to its CSI driver");
    Ok(true)
}

/// Has a driver of `flexVolume` let go of a volume.
async fn let_flex_go(dirs: &Arc<PodDirs>, csi: &Csi, key: &VolumeKey, tasks: &Tasks) -> Result<(), String> {
    let at = dirs.clone();
    let all =
        tasks.blocking(move || at.flex_records()).await.ok_or("the agent stops")?.map_err(|e| chain(&e))?;
    for record in all.iter().filter(|record| record.key() == *key) {
        csi.flex.give_back(record, dirs.root(), tasks).await?;
    }
    tracing::info!(driver = key.flex_driver(), volume = key.handle, "a volume is given back to its driver");
    Ok(())
}

/// Has the node let go of a disk that another machine keeps.
async fn let_go(dirs: &Arc<PodDirs>, csi: &Csi, key: &VolumeKey, tasks: &Tasks) -> Result<(), String> {
    let at = dirs.clone();
    let all =
        tasks.blocking(move || at.network_disks()).await.ok_or("the agent stops")?.map_err(|e| chain(&e))?;
    for record in all.iter().filter(|record| record.key() == *key) {
        network_disks::detach(record, dirs.root(), csi, tasks).await?;
    }
    tracing::info!(plugin = key.driver, volume = key.handle, "a disk of another machine is given back");
    Ok(())
}
