//! `vsphereVolume`: `csi.vsphere.vmware.com`.
//!
//! In: the disk's path, which is its handle. A pod's volume with a storage policy, at which upstream's
//! library fails, is translated like a PersistentVolume. Upstream:
//! csi-translation-lib/plugins/vsphere_volume.go.

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, VsphereVirtualDiskVolumeSource};

use super::topology::{Keys, Labels};
use super::{Driver, Inline, ONE_NODE, as_they_are, source};

pub(super) const DRIVER: Driver = Driver {
    name: "csi.vsphere.vmware.com",
    topology: Some(Keys {
        zone: "topology.csi.vmware.com/zone",
        region: Some("topology.csi.vmware.com/region"),
        labels: Labels::AsTheyAre,
    }),
    persistent: |volume| Some(Ok(csi(volume.spec.as_ref()?.vsphere_volume.as_ref()?))),
    inline: |volume, _| {
        let of = volume.vsphere_volume.as_ref()?;
        let name = format!("{}-{}", DRIVER.name, of.volume_path);
        Some(Ok(Inline { name, source: csi(of), access_mode: ONE_NODE }))
    },
    access_modes: as_they_are,
};

fn csi(of: &VsphereVirtualDiskVolumeSource) -> CSIPersistentVolumeSource {
    let policy = of.storage_policy_name.clone().filter(|name| !name.is_empty());
    source(&of.volume_path, of.fs_type.as_ref(), None, policy.map(|name| ("storagepolicyname", name)))
}
