//! The source of a flexVolume as the API states it, and the name of its driver.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{FlexPersistentVolumeSource, FlexVolumeSource};
use serde::{Deserialize, Serialize};

use crate::csi::source::SecretRef;
use crate::flex::NAME_MAX;
use crate::plugin::Plugin;

/// The name of a driver, as volumes say it: `vendor/driver`, or without a vendor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Driver(String);

impl Driver {
    /// The driver of this name; `None`: there can be none.
    #[must_use]
    pub fn new(name: &str) -> Option<Driver> {
        let part = |part: &str| {
            !matches!(part, "" | "." | "..") && !part.contains('~') && !part.chars().any(char::is_control)
        };
        let plain = name.split('/').all(part) && !name.starts_with('.') && name.len() <= NAME_MAX;
        (plain && !Plugin::ALL.iter().any(|own| own.name() == name)).then(|| Driver(name.to_owned()))
    }

    /// The driver whose directory is called so, below `volumePluginDir` or below a pod's volumes.
    #[must_use]
    pub fn of_directory(name: &str) -> Option<Driver> {
        Driver::new(&name.replace('~', "/"))
    }

    /// Name of the driver, with its vendor.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Its directory: slashes are tildes.
    #[must_use]
    pub fn directory(&self) -> String {
        self.0.replace('/', "~")
    }

    /// Its program, below `volumePluginDir`.
    #[must_use]
    pub fn program(&self) -> String {
        let name = self.0.rsplit('/').next().unwrap_or_default();
        format!("{}/{name}", self.directory())
    }

    /// Directory of a pod's volume, below the pod's. What a volume of an old type is called may be a path.
    #[must_use]
    pub fn below(&self, volume: &str) -> String {
        format!("volumes/{}/{}", self.directory(), volume.replace('/', "~"))
    }

    /// Directory below the pod's whose presence says that the driver was asked for a volume, and whose file that it is done.
    #[must_use]
    pub fn mark_below(&self, volume: &str) -> String {
        format!("plugins/{}/{}/{}", Plugin::Flex.directory(), self.directory(), volume.replace('/', "~"))
    }
}

/// A volume as its source says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// `driver`.
    pub driver: String,
    /// `fsType`.
    pub fs_type: String,
    /// `options`, for the driver.
    pub options: BTreeMap<String, String>,
    /// `secretRef`; its namespace is empty if it is the pod's.
    pub secret: Option<SecretRef>,
    /// `readOnly` of the source.
    pub read_only: bool,
}

impl Source {
    /// `flexVolume` of a pod.
    #[must_use]
    pub fn of_volume(s: FlexVolumeSource) -> Source {
        Source {
            driver: s.driver,
            fs_type: s.fs_type.unwrap_or_default(),
            options: s.options.unwrap_or_default(),
            secret: s.secret_ref.map(|s| SecretRef { namespace: String::new(), name: s.name }),
            read_only: s.read_only == Some(true),
        }
    }

    /// `flexVolume` of a PersistentVolume.
    #[must_use]
    pub fn of_persistent(s: FlexPersistentVolumeSource) -> Source {
        let secret = s.secret_ref.map(|s| SecretRef {
            namespace: s.namespace.unwrap_or_default(),
            name: s.name.unwrap_or_default(),
        });
        Source {
            driver: s.driver,
            fs_type: s.fs_type.unwrap_or_default(),
            options: s.options.unwrap_or_default(),
            secret,
            read_only: s.read_only == Some(true),
        }
    }
}
