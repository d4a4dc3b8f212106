//! A driver of cgroups whose work is counted (`kubelet_cgroup_manager_duration_seconds`). What changes nothing is not.

use std::sync::Arc;
use std::time::Instant;

use agent_kubelet_api::drivers::Applied;
use agent_types::failure::DriverError;
use agent_types::resources::cgroups::{CgroupName, CgroupValues};
use futures_util::future::BoxFuture;

use crate::node::container_manager::Driver;
use crate::serving::metrics::Metrics;

/// See the module.
pub(super) struct Metered {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) metrics: Metrics,
}

impl Driver for Metered {
    fn apply<'a>(
        &'a self,
        name: &'a CgroupName,
        values: &'a CgroupValues,
        make: bool,
    ) -> BoxFuture<'a, Result<Applied, DriverError>> {
        Box::pin(async move {
            let start = Instant::now();
            let applied = self.driver.apply(name, values, make).await?;
            match applied {
                Applied::Unchanged => {}
                Applied::Made => self.metrics.cgroup("create", start.elapsed()),
                Applied::Changed => self.metrics.cgroup("update", start.elapsed()),
            }
            Ok(applied)
        })
    }

    fn remove<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<bool, DriverError>> {
        Box::pin(async move {
            let start = Instant::now();
            let was_there = self.driver.remove(name).await?;
            if was_there {
                self.metrics.cgroup("destroy", start.elapsed());
            }
            Ok(was_there)
        })
    }

    fn memory_in_use<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<Option<u64>, DriverError>> {
        self.driver.memory_in_use(name)
    }

    fn children<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<Vec<String>, DriverError>> {
        self.driver.children(name)
    }
}
