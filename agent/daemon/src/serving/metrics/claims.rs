//! Metrics of resource claims (dynamic resource allocation) and of the watcher of plugins.
//!
//! In: calls of DRA drivers, operations for pods, registration sockets. Out: families `dra_*` and `plugin_manager_total_plugins`.
//! Invariant: a plugin is a pod that can invent names without end, so a label has at most [`NAMES_MAX`] values that plugins choose; the
//! others are counted as `other`, or do not appear. Upstream: pkg/kubelet/metrics, pkg/kubelet/pluginmanager/metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_core::resource_claims::api::ClaimsView;
use agent_kubelet_api::metrics::families;

use super::{Metrics, MetricsState, pods};

/// Names of drivers, and paths of sockets in each state, that metrics show.
const NAMES_MAX: usize = 256;
/// The driver of calls beyond [`NAMES_MAX`] names.
const OTHER: &str = "other";
/// The label of all drivers together.
const ANY: &str = "<any>";

/// `operation_name` of preparing a pod's claims.
pub(crate) const PREPARE: &str = "PrepareResources";
/// `operation_name` of giving a pod's claims back.
pub(crate) const UNPREPARE: &str = "UnprepareResources";

/// The names of drivers that metrics have shown.
#[derive(Debug, Default)]
pub(super) struct ShownDrivers(BTreeSet<String>);

impl ShownDrivers {
    /// The label for a driver.
    fn label<'a>(&mut self, driver: &'a str) -> &'a str {
        if self.0.contains(driver) {
            return driver;
        }
        if self.0.len() >= NAMES_MAX {
            return OTHER;
        }
        self.0.insert(driver.to_owned());
        driver
    }
}

impl Metrics {
    /// A DRA driver answered a call, or failed. `method` is the gRPC path with its leading slash, `code` the gRPC status as Go writes it
    /// (`OK`, `DeadlineExceeded`).
    pub fn dra_called(&self, driver: &str, method: &str, code: &str, took: Duration) {
        self.with(|state| {
            let driver = state.dra_drivers.label(driver);
            state.main.observe(&families::DRA_CALLS, [driver, method, code], took.as_secs_f64());
        });
    }

    /// The claims of a pod were prepared (`PrepareResources`) or given back (`UnprepareResources`), or could not be.
    pub fn dra_operation(&self, operation: &str, is_error: bool, took: Duration) {
        let is_error = if is_error { "true" } else { "false" };
        self.with(|state| {
            state.main.observe(&families::DRA_OPERATIONS, [operation, is_error], took.as_secs_f64());
        });
    }

    /// The registration sockets of plugins: those that exist, and those whose plugins are registered.
    pub fn plugin_sockets<'a>(
        &self,
        exist: impl IntoIterator<Item = &'a str>,
        registered: impl IntoIterator<Item = &'a str>,
    ) {
        let exist = exist.into_iter().take(NAMES_MAX).map(|socket| (socket, "desired_state_of_world"));
        let registered =
            registered.into_iter().take(NAMES_MAX).map(|socket| (socket, "actual_state_of_world"));
        self.with(|state| {
            state.main.clear(families::PLUGINS.name);
            for (socket, label) in exist.chain(registered) {
                state.main.set(&families::PLUGINS, [socket, label], 1.0);
            }
        });
    }
}

impl MetricsState {
    /// Prepared claims by driver.
    pub(super) fn tell_claims(&mut self, claims: &ClaimsView) {
        self.main.clear(families::DRA_CLAIMS_IN_USE.name);
        self.main.set(&families::DRA_CLAIMS_IN_USE, [ANY], 0.0);
        for (driver, claims) in claims.in_use.iter().take(NAMES_MAX) {
            let claims = pods::count(usize::try_from(*claims).unwrap_or(usize::MAX));
            self.main.set(&families::DRA_CLAIMS_IN_USE, [driver], claims);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_show_a_limited_number_of_drivers() {
        let mut shown = ShownDrivers::default();
        let names: Vec<String> = (0..=NAMES_MAX).map(|number| format!("driver-{number}")).collect();
        let labels: Vec<&str> = names.iter().map(|name| shown.label(name)).collect();
        assert_eq!(labels.iter().filter(|label| **label == OTHER).count(), 1);
        assert_eq!(shown.label("driver-0"), "driver-0", "a name that is known");
    }
}
