//! A hierarchy of cgroups in memory, which outlives agents.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use agent_core::container_manager::Config;
use agent_kubelet_api::drivers::{Applied, Cgroups};
use agent_types::failure::DriverError;
use agent_types::node_context::CgroupDriver;
use agent_types::resources::cgroups::name::KUBEPODS;
use agent_types::resources::cgroups::{CgroupName, CgroupValues};
use orlop_agent::node::container_manager::ContainerManagerPlan;

const DRIVER: CgroupDriver = CgroupDriver::Systemd;

#[derive(Clone, Default)]
pub struct Hierarchy(Arc<Mutex<BTreeSet<String>>>);

impl Hierarchy {
    pub fn plan(&self) -> ContainerManagerPlan {
        let config = Config { kubepods: CgroupName::default().child(KUBEPODS), ..Config::default() };
        ContainerManagerPlan { driver: Arc::new(self.clone()), config }
    }

    /// Paths of pods' own cgroups.
    pub fn of_pods(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|path| path.contains("-pod")).cloned().collect()
    }
}

impl Cgroups for Hierarchy {
    async fn apply(&self, name: &CgroupName, _: &CgroupValues, _: bool) -> Result<Applied, DriverError> {
        let new = self.0.lock().unwrap().insert(name.path(DRIVER));
        Ok(if new { Applied::Made } else { Applied::Unchanged })
    }

    async fn remove(&self, name: &CgroupName) -> Result<bool, DriverError> {
        let path = name.path(DRIVER);
        let mut there = self.0.lock().unwrap();
        let before = there.len();
        there.retain(|other| !other.starts_with(&path));
        Ok(there.len() < before)
    }

    async fn children(&self, name: &CgroupName) -> Result<Vec<String>, DriverError> {
        let above = name.path(DRIVER) + "/";
        let there = self.0.lock().unwrap();
        let below = there.iter().filter_map(|path| path.strip_prefix(&above));
        Ok(below.filter(|rest| !rest.contains('/')).map(str::to_owned).collect())
    }

    async fn memory_in_use(&self, _: &CgroupName) -> Result<Option<u64>, DriverError> {
        Ok(None)
    }
}
