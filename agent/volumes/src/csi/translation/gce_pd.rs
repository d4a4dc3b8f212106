//! `gcePersistentDisk`: `pd.csi.storage.gke.io`.
//!
//! In: the disk's name, the zones in a PersistentVolume's labels. Out: a handle with an unspecified project:
//! the driver knows it. Upstream: csi-translation-lib/plugins/gce_pd.go.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, GCEPersistentDiskVolumeSource, PersistentVolume,
};

use super::topology::{BETA_ZONE, Keys, Labels, SEPARATOR, ZONE};
use super::{Driver, Inline, MANY_READ, MANY_WRITE, ONE_NODE, source};

/// In a handle: not said.
const UNSPECIFIED: &str = "UNSPECIFIED";

pub(super) const DRIVER: Driver = Driver {
    name: "pd.csi.storage.gke.io",
    topology: Some(Keys { zone: "topology.gke.io/zone", region: None, labels: Labels::Zones }),
    persistent: |volume| Some(persistent(volume, volume.spec.as_ref()?.gce_persistent_disk.as_ref()?)),
    inline: |volume, _| Some(Ok(inline(volume.gce_persistent_disk.as_ref()?))),
    access_modes,
};

fn persistent(
    volume: &PersistentVolume,
    of: &GCEPersistentDiskVolumeSource,
) -> Result<CSIPersistentVolumeSource, String> {
    let labels = volume.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|all| all.get(key)).filter(|value| !value.is_empty());
    let zones = label(BETA_ZONE).or_else(|| label(ZONE));
    let place = match zones.map(|zones| zones.split(SEPARATOR).collect::<Vec<_>>()) {
        None => format!("zones/{UNSPECIFIED}"),
        Some(zones) if zones.len() == 1 => format!("zones/{}", zones.concat()),
        Some(zones) => {
            let region =
                region_of(&zones).map_err(|why| format!("failed to get region from zones: {why}"))?;
            format!("regions/{region}")
        }
    };
    Ok(csi(of, &place))
}

fn csi(of: &GCEPersistentDiskVolumeSource, place: &str) -> CSIPersistentVolumeSource {
    let handle = format!("projects/{UNSPECIFIED}/{place}/disks/{}", of.pd_name);
    let partition = of.partition.filter(|n| *n != 0).map(|n| n.to_string()).unwrap_or_default();
    source(&handle, of.fs_type.as_ref(), of.read_only, [("partition", partition)])
}

fn inline(of: &GCEPersistentDiskVolumeSource) -> Inline {
    Inline {
        name: format!("{}-{}", DRIVER.name, of.pd_name),
        source: csi(of, &format!("zones/{UNSPECIFIED}")),
        access_mode: if of.read_only == Some(true) { MANY_READ } else { ONE_NODE },
    }
}

/// The one region in which all these zones are: `us-east1-b` is in `us-east1`.
fn region_of(zones: &[&str]) -> Result<String, String> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        let parts: Vec<&str> = zone.split('-').collect();
        let [place, region, _] = parts[..] else {
            return Err(format!(
                "zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            ));
        };
        regions.insert(format!("{place}-{region}"));
    }
    match regions.len() {
        1 => Ok(regions.into_iter().collect()),
        _ => {
            let all: Vec<String> = regions.iter().map(|region| format!("{region}:{{}}")).collect();
            Err(format!("multiple or no regions gotten from zones, got: map[{}]", all.join(" ")))
        }
    }
}

/// One node writes, or many read: the driver refuses anything else; the in-tree plugin did not check it.
fn access_modes(modes: Option<Vec<String>>) -> Option<Vec<String>> {
    let modes = modes?;
    let has = |mode: &str| modes.iter().any(|m| m == mode);
    let read_alone = has(MANY_READ) && !has(ONE_NODE) && !has(MANY_WRITE);
    Some(vec![if read_alone { MANY_READ } else { ONE_NODE }.to_owned()])
}
