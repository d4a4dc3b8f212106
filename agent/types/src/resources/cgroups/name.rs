//! Names of cgroups as upstream's, for both drivers.
//!
//! In: components. Out: a path inside the hierarchy, a slice's unit name. Invariant: equal components give
//! equal paths. Upstream: pkg/kubelet/cm/cgroup_manager_linux.go; systemd.slice(5).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::node_context::CgroupDriver;

/// Name of the cgroup of all pods.
pub const KUBEPODS: &str = "kubepods";
/// Name of the cgroup of Burstable pods, below it.
pub const BURSTABLE: &str = "burstable";
/// Name of the cgroup of BestEffort pods, below it.
pub const BEST_EFFORT: &str = "besteffort";
const SLICE: &str = ".slice";

/// A cgroup by the components of its name, independent of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// Parses a name from the configuration: a path (cgroupfs), or a path of slices whose last one is
    /// complete (systemd: `/system.slice`, `/a.slice/a-b.slice`).
    #[must_use]
    pub fn parse(text: &str, driver: CgroupDriver) -> CgroupName {
        let mut parts = text.split('/').filter(|part| !part.is_empty());
        match driver {
            CgroupDriver::Cgroupfs => CgroupName(parts.map(str::to_owned).collect()),
            CgroupDriver::Systemd => {
                let last = parts.next_back().unwrap_or_default();
                let levels = last.strip_suffix(SLICE).unwrap_or(last).split('-');
                CgroupName(levels.filter(|l| !l.is_empty()).map(|level| level.replace('_', "-")).collect())
            }
        }
    }

    /// `cgroupRoot`: its components are levels, also where systemd names them.
    #[must_use]
    pub fn of_root(text: &str, driver: CgroupDriver) -> CgroupName {
        let parts = text.split('/').filter(|part| !part.is_empty());
        let plain = |part: &str| match driver {
            CgroupDriver::Cgroupfs => part.to_owned(),
            CgroupDriver::Systemd => part.strip_suffix(SLICE).unwrap_or(part).to_owned(),
        };
        CgroupName(parts.map(plain).collect())
    }

    /// A child cgroup of this one.
    #[must_use]
    pub fn child(&self, component: &str) -> CgroupName {
        let mut components = self.0.clone();
        components.push(component.to_owned());
        CgroupName(components)
    }

    /// The parent cgroup; `None` for the root of the hierarchy.
    #[must_use]
    pub fn parent(&self) -> Option<CgroupName> {
        let (_, above) = self.0.split_last()?;
        Some(CgroupName(above.to_vec()))
    }

    /// Path in the hierarchy; `/` for its root.
    #[must_use]
    pub fn path(&self, driver: CgroupDriver) -> String {
        match driver {
            CgroupDriver::Cgroupfs => format!("/{}", self.0.join("/")),
            CgroupDriver::Systemd if self.0.is_empty() => "/".to_owned(),
            CgroupDriver::Systemd => {
                let above = (1..=self.0.len()).map(|levels| CgroupName(self.0[..levels].to_vec()).unit());
                above.fold(String::new(), |path, unit| path + "/" + &unit)
            }
        }
    }

    /// The slice's name. systemd nests slices by name: `a-b.slice` is in `a.slice`. A dash inside a component
    /// would be another level.
    #[must_use]
    pub fn unit(&self) -> String {
        match self.0.is_empty() {
            true => format!("-{SLICE}"),
            false => {
                let levels: Vec<String> = self.0.iter().map(|level| level.replace('-', "_")).collect();
                levels.join("-") + SLICE
            }
        }
    }
}

impl fmt::Display for CgroupName {
    /// As upstream's messages have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<String> = self.0.iter().map(|level| format!("{level:?}")).collect();
        write!(f, "[{}]", quoted.join(" "))
    }
}

/// The UID in the name of a pod's cgroup, with `_` for `-` as in systemd's names; `None` if the cgroup is not
/// a pod's. `kubepods-burstable-pod12_ab.slice`, `pod12-ab`.
#[must_use]
pub fn pod_of(directory: &str) -> Option<String> {
    let name = directory.strip_suffix(".slice").unwrap_or(directory);
    // A dash inside a component would be another level, so the pod's part begins after the last one.
    let last = if name == directory { name } else { name.rsplit('-').next()? };
    let uid = last.strip_prefix("pod").filter(|uid| !uid.is_empty())?;
    Some(key(uid))
}

/// What [`pod_of`] answers for a pod of this UID.
#[must_use]
pub fn key(uid: &str) -> String {
    uid.replace('-', "_")
}
