//! `portworxVolume`: `pxd.portworx.com`.
//!
//! In: the volume's id, which is its handle; two annotations of a PersistentVolume that name its Secret.
//! Upstream: csi-translation-lib/plugins/portworx.go.

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PortworxVolumeSource};

use super::{Driver, Inline, MANY_READ, ONE_NODE, as_they_are, secret, source};

/// Annotation: the Secret's name.
const SECRET: &str = "openstorage.io/auth-secret-name";
/// Annotation: the Secret's namespace.
const SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";

pub(super) const DRIVER: Driver = Driver {
    name: "pxd.portworx.com",
    topology: None,
    persistent: |volume| Some(Ok(persistent(volume, volume.spec.as_ref()?.portworx_volume.as_ref()?))),
    inline: |volume, _| Some(Ok(inline(volume.portworx_volume.as_ref()?))),
    access_modes: as_they_are,
};

/// The translation leaves `readOnly` out.
fn csi(of: &PortworxVolumeSource) -> CSIPersistentVolumeSource {
    source(&of.volume_id, of.fs_type.as_ref(), None, [])
}

fn persistent(volume: &PersistentVolume, of: &PortworxVolumeSource) -> CSIPersistentVolumeSource {
    let annotation = |key: &str| volume.metadata.annotations.as_ref()?.get(key);
    let named = annotation(SECRET).zip(annotation(SECRET_NAMESPACE));
    let secret = named.map(|(name, namespace)| secret(namespace, name));
    CSIPersistentVolumeSource {
        controller_publish_secret_ref: secret.clone(),
        node_stage_secret_ref: secret.clone(),
        node_publish_secret_ref: secret.clone(),
        controller_expand_secret_ref: secret.clone(),
        node_expand_secret_ref: secret,
        ..csi(of)
    }
}

fn inline(of: &PortworxVolumeSource) -> Inline {
    Inline {
        name: format!("{}-{}", DRIVER.name, of.volume_id),
        source: csi(of),
        access_mode: if of.read_only == Some(true) { MANY_READ } else { ONE_NODE },
    }
}
