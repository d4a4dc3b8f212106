//! `azureDisk`: `disk.csi.azure.com`.
//!
//! In: the disk's URI, which is its handle. Only managed disks have a driver. Upstream:
//! csi-translation-lib/plugins/azure_disk.go.

use k8s_openapi::api::core::v1::{AzureDiskVolumeSource, CSIPersistentVolumeSource};

use super::{Driver, Inline, ONE_NODE, as_they_are, source};

/// The kind of disk that has a driver.
const MANAGED: &str = "Managed";

pub(super) const DRIVER: Driver = Driver {
    name: "disk.csi.azure.com",
    topology: None,
    persistent: |volume| Some(csi(volume.spec.as_ref()?.azure_disk.as_ref()?)),
    inline: |volume, _| Some(inline(volume.azure_disk.as_ref()?)),
    access_modes: as_they_are,
};

fn csi(of: &AzureDiskVolumeSource) -> Result<CSIPersistentVolumeSource, String> {
    if let Some(kind) = of.kind.as_ref().filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
        return Err(format!("kind({kind}) is not supported in csi migration"));
    }
    let caching = of.caching_mode.clone().map(|mode| ("cachingmode", mode));
    let fs_type = of.fs_type.clone().map(|fs_type| ("fstype", fs_type));
    let attributes = [Some(("kind", MANAGED.to_owned())), caching, fs_type];
    Ok(source(&of.disk_uri, of.fs_type.as_ref(), of.read_only, attributes.into_iter().flatten()))
}

fn inline(of: &AzureDiskVolumeSource) -> Result<Inline, String> {
    let mut source = csi(of)?;
    // The driver gets an empty mode of a PersistentVolume, but not of a pod's volume.
    if let Some(attributes) = source.volume_attributes.as_mut() {
        attributes.retain(|name, value| name != "cachingmode" || !value.is_empty());
    }
    Ok(Inline { name: of.disk_uri.clone(), source, access_mode: ONE_NODE })
}
