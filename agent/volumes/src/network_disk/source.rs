//! The source of an iSCSI or Fibre Channel disk as the API states it.

use k8s_openapi::api::core::v1::{FCVolumeSource, ISCSIPersistentVolumeSource, ISCSIVolumeSource};
use serde::{Deserialize, Serialize};

use super::fc::Fc;
use super::iscsi::Iscsi;
use crate::csi::source::SecretRef;
use crate::plugin::Plugin;

/// Where a disk is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// A logical unit of an iSCSI target.
    Iscsi(Iscsi),
    /// One that a Fibre Channel fabric shows.
    Fc(Fc),
}

/// A disk as a volume says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Where it is.
    pub target: Target,
    /// `fsType`; empty: what is there, else ext4.
    pub fs_type: String,
    /// `secretRef`; its namespace is empty if it is the pod's.
    pub secret: Option<SecretRef>,
    /// `readOnly` of the source.
    pub read_only: bool,
}

impl Source {
    /// `iscsi` of a pod.
    #[must_use]
    pub fn of_iscsi(s: ISCSIVolumeSource) -> Source {
        let secret = s.secret_ref.map(|s| SecretRef { namespace: String::new(), name: s.name });
        let chap = (s.chap_auth_discovery == Some(true), s.chap_auth_session == Some(true));
        let portals = (s.target_portal, s.portals.unwrap_or_default());
        let iscsi = Iscsi::new(portals, s.iqn, s.lun, s.iscsi_interface, s.initiator_name, chap);
        Source {
            target: Target::Iscsi(iscsi),
            fs_type: s.fs_type.unwrap_or_default(),
            secret,
            read_only: s.read_only == Some(true),
        }
    }

    /// `iscsi` of a PersistentVolume.
    #[must_use]
    pub fn of_persistent_iscsi(s: ISCSIPersistentVolumeSource) -> Source {
        let secret = s.secret_ref.map(|s| SecretRef {
            namespace: s.namespace.unwrap_or_default(),
            name: s.name.unwrap_or_default(),
        });
        let chap = (s.chap_auth_discovery == Some(true), s.chap_auth_session == Some(true));
        let portals = (s.target_portal, s.portals.unwrap_or_default());
        let iscsi = Iscsi::new(portals, s.iqn, s.lun, s.iscsi_interface, s.initiator_name, chap);
        Source {
            target: Target::Iscsi(iscsi),
            fs_type: s.fs_type.unwrap_or_default(),
            secret,
            read_only: s.read_only == Some(true),
        }
    }

    /// `fc` of either.
    ///
    /// # Errors
    /// It names no disk.
    pub fn of_fc(s: FCVolumeSource) -> Result<Source, String> {
        let fc = Fc::new(s.target_wwns.unwrap_or_default(), s.lun, s.wwids.unwrap_or_default())?;
        Ok(Source {
            target: Target::Fc(fc),
            fs_type: s.fs_type.unwrap_or_default(),
            secret: None,
            read_only: s.read_only == Some(true),
        })
    }

    /// Whose business it is.
    #[must_use]
    pub fn plugin(&self) -> Plugin {
        match self.target {
            Target::Iscsi(_) => Plugin::Iscsi,
            Target::Fc(_) => Plugin::Fc,
        }
    }
}
