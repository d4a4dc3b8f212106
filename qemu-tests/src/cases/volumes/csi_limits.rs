//! The number of volumes of a CSI driver on a node: updated with the period of its CSIDriver, and at once when a pod
//! exceeds it; that pod fails.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::{Patch, PatchParams};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_driver::{CsiDriver, DriverInfo};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, await_pod_gone};
use serde_json::json;

use crate::cases::volumes::claims::{create, pod, put_claim, put_volume};
use crate::cases::volumes::csi::{await_drivers, await_event, says};
use crate::cases::volumes::csi_claims::{await_attachment, delete_pod};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/csi-limits",
    160,
    "a driver's limit of volumes is told anew by the clock and when a volume finds no room, and the pod that waits for that is refused",
    limits,
)];

const DRIVER: &str = "limits.e2e.example";
const REASON: &str = "VolumeAttachmentLimitExceeded";

fn await_count(joined: &Joined, count: i64) -> Result<()> {
    let allocatable = json!({"count": count});
    await_drivers(
        joined,
        &json!([{"name": DRIVER, "nodeID": format!("id-of-{DRIVER}"), "allocatable": allocatable}]),
    )
}

fn limits(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let handle = client.handle().clone();
    let spec = json!({"metadata": {"name": DRIVER}, "spec": {"nodeAllocatableUpdatePeriodSeconds": 10}});
    client.create::<CSIDriver>(&client.all(), spec)?;
    let mut has = DriverInfo { volumes_max: 7, ..says(DRIVER) };
    has.topology.clear();
    let driver = CsiDriver::start(&handle, &joined.nodes[0].inside("/"), has.clone())?;
    await_count(joined, 7)?;

    // By the period.
    has.volumes_max = 5;
    driver.say(has.clone());
    await_count(joined, 5)?;
    // The period is read with each look; the next one is in an hour.
    let rare = json!({"spec": {"nodeAllocatableUpdatePeriodSeconds": 3600}});
    client.merge::<CSIDriver>(&client.all(), DRIVER, &rare)?;

    let source = json!({"csi": {"driver": DRIVER, "volumeHandle": "one-too-many"}});
    put_volume(&joined.cluster, "limits", &source, "ReadWriteOnce")?;
    put_claim(&joined.cluster, "limits", "ReadWriteOnce")?;
    create(&joined.cluster, pod("csi-limits", STAYS, "limits", false))?;
    let attachment = await_attachment(&joined.cluster, DRIVER)?;
    let full = json!({"status": {"attached": false, "attachError": {"message": "the machine is full", "errorCode": 8}}});
    let api = client.all::<VolumeAttachment>();
    let patched =
        client.block_on(api.patch_status(&attachment, &PatchParams::default(), &Patch::Merge(&full)));
    patched.context("say that the node is full")?;
    client.wait::<VolumeAttachment, _>(&client.all(), 30, "the error", |all| {
        all.get(&attachment)?.status.as_ref()?.attach_error.as_ref()?.error_code
    })?;
    has.volumes_max = 3;
    driver.say(has);

    let status = client.wait::<Pod, _>(&client.of("default"), 200, "the pod to be refused", |all| {
        all.get("csi-limits")?.status.clone().filter(|s| s.phase.as_deref() == Some("Failed"))
    })?;
    let words = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], unattached \
                 volumes=[data], failed to process volumes=[]: context deadline exceeded";
    let message = format!("Pod was rejected: {words}");
    ensure!(
        status.reason.as_deref() == Some(REASON) && status.message.as_deref() == Some(&message),
        "{:?}: {:?}",
        status.reason,
        status.message
    );
    await_event(joined, REASON, "csi-limits", words)?;
    // The CSINode has the new number soon after the pod has failed.
    await_count(joined, 3)?;

    delete_pod(joined, "csi-limits")?;
    await_pod_gone(&joined.cluster, "csi-limits", 60)?;
    drop(driver);
    await_drivers(joined, &json!([]))?;
    client.delete::<PersistentVolumeClaim>(&client.of("default"), "limits", None)?;
    client.delete::<PersistentVolume>(&client.all(), "pv-limits", None)?;
    client.delete::<CSIDriver>(&client.all(), DRIVER, None)?;
    joined.cluster.ensure_nothing_forbidden()
}
