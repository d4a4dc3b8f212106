//! Translation of in-tree volume types to CSI: a PersistentVolume or a pod's volume of such a type becomes a
//! PersistentVolume of the type's CSI driver, and is handled as one.
//!
//! In: a PersistentVolume, or a volume of a pod and the pod's namespace. Out: a PersistentVolume with a `csi`
//! source, or upstream's error. Invariants: pure; the input is not changed; handles, names and attributes are
//! upstream's to the letter, because the cluster attaches the volume under the same ones. The cluster's
//! controllers translate StorageClasses, never a node. Docs: docs/internals/agent/csi.md, "Volumes of drivers under old
//! names". Upstream: k8s.io/csi-translation-lib, pkg/volume/csimigration.

mod aws_ebs;
mod azure_disk;
mod azure_file;
mod cinder;
mod gce_pd;
mod portworx;
mod topology;
mod vsphere;

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// One node at a time.
const ONE_NODE: &str = "ReadWriteOnce";
/// Many nodes, none of which writes.
const MANY_READ: &str = "ReadOnlyMany";
/// Many nodes.
const MANY_WRITE: &str = "ReadWriteMany";

/// A type's driver and how its volumes are translated.
struct Driver {
    /// Name of the CSI driver.
    name: &'static str,
    /// The label of nodes by which it knows zones; `None`: the type has none.
    topology: Option<topology::Keys>,
    /// `None`: the PersistentVolume is of another type.
    persistent: fn(&PersistentVolume) -> Option<Result<CSIPersistentVolumeSource, String>>,
    /// `None`: the pod's volume is of another type.
    inline: fn(&Volume, &str) -> Option<Result<Inline, String>>,
    /// What becomes of the access modes of a PersistentVolume.
    access_modes: fn(Option<Vec<String>>) -> Option<Vec<String>>,
}

/// A volume of a pod, as its driver's.
struct Inline {
    /// What its PersistentVolume would be called: of one disk always the same.
    name: String,
    source: CSIPersistentVolumeSource,
    access_mode: &'static str,
}

const DRIVERS: [Driver; 7] = [
    aws_ebs::DRIVER,
    azure_disk::DRIVER,
    azure_file::DRIVER,
    cinder::DRIVER,
    gce_pd::DRIVER,
    portworx::DRIVER,
    vsphere::DRIVER,
];

/// The PersistentVolume as its driver's; the same one if it is of another type.
///
/// # Errors
/// Upstream's words about what is wrong with it.
pub fn persistent(volume: &PersistentVolume) -> Result<Cow<'_, PersistentVolume>, String> {
    let found = DRIVERS.iter().find_map(|driver| Some((driver, (driver.persistent)(volume)?)));
    let Some((driver, source)) = found else { return Ok(Cow::Borrowed(volume)) };
    let source =
        CSIPersistentVolumeSource { driver: driver.name.to_owned(), ..source.map_err(untranslated)? };
    let mut volume = volume.clone();
    if let Some(keys) = &driver.topology {
        topology::translate(&mut volume, keys);
    }
    let spec = volume.spec.get_or_insert_default();
    (spec.aws_elastic_block_store, spec.azure_disk, spec.azure_file) = (None, None, None);
    (spec.cinder, spec.gce_persistent_disk) = (None, None);
    (spec.portworx_volume, spec.vsphere_volume) = (None, None);
    spec.access_modes = (driver.access_modes)(spec.access_modes.take());
    spec.csi = Some(source);
    Ok(Cow::Owned(volume))
}

/// The PersistentVolume is of one of these types.
#[must_use]
pub fn is_persistent(volume: &PersistentVolume) -> bool {
    DRIVERS.iter().any(|driver| (driver.persistent)(volume).is_some())
}

/// A volume of a pod of the namespace `namespace` as a PersistentVolume of its driver; `None`: it is of another type.
///
/// # Errors
/// Upstream's words about what is wrong with it.
#[must_use]
pub fn inline(volume: &Volume, namespace: &str) -> Option<Result<PersistentVolume, String>> {
    let (driver, made) =
        DRIVERS.iter().find_map(|driver| Some((driver, (driver.inline)(volume, namespace)?)))?;
    let made = made.map_err(untranslated).map(|Inline { name, source, access_mode }| PersistentVolume {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeSpec {
            csi: Some(CSIPersistentVolumeSource { driver: driver.name.to_owned(), ..source }),
            access_modes: Some(vec![access_mode.to_owned()]),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        ..PersistentVolume::default()
    });
    Some(made)
}

/// The pod's volume is of one of these types.
#[must_use]
pub fn is_inline(volume: &Volume) -> bool {
    DRIVERS.iter().any(|driver| (driver.inline)(volume, "").is_some())
}

fn untranslated(why: String) -> String {
    format!("failed to translate in-tree pv to CSI: {why}")
}

/// What most types have.
fn source(
    handle: &str,
    fs_type: Option<&String>,
    read_only: Option<bool>,
    attributes: impl IntoIterator<Item = (&'static str, String)>,
) -> CSIPersistentVolumeSource {
    let attributes: BTreeMap<String, String> =
        attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    CSIPersistentVolumeSource {
        volume_handle: handle.to_owned(),
        fs_type: fs_type.cloned(),
        read_only,
        volume_attributes: Some(attributes),
        ..CSIPersistentVolumeSource::default()
    }
}

/// Most types keep their access modes.
fn as_they_are(modes: Option<Vec<String>>) -> Option<Vec<String>> {
    modes
}

fn secret(namespace: &str, name: &str) -> SecretReference {
    SecretReference { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()) }
}

#[cfg(test)]
mod tests;
