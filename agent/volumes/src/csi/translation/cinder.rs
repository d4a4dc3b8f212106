//! `cinder`: `cinder.csi.openstack.org`.
//!
//! In: the volume's id, which is its handle. The driver has its own secrets. Upstream:
//! csi-translation-lib/plugins/openstack_cinder.go.

use super::topology::{Keys, Labels};
use super::{Driver, Inline, ONE_NODE, as_they_are, source};

pub(super) const DRIVER: Driver = Driver {
    name: "cinder.csi.openstack.org",
    topology: Some(Keys {
        zone: "topology.cinder.csi.openstack.org/zone",
        region: None,
        labels: Labels::Zones,
    }),
    persistent: |volume| {
        let of = volume.spec.as_ref()?.cinder.as_ref()?;
        Some(Ok(source(&of.volume_id, of.fs_type.as_ref(), of.read_only, [])))
    },
    inline: |volume, _| {
        let of = volume.cinder.as_ref()?;
        Some(Ok(Inline {
            name: format!("{}-{}", DRIVER.name, of.volume_id),
            source: source(&of.volume_id, of.fs_type.as_ref(), of.read_only, []),
            access_mode: ONE_NODE,
        }))
    },
    access_modes: as_they_are,
};
