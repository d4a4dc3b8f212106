//! The text of one scrape: stored numbers, and numbers read at the time of the request.

use agent_core::resource_claims::api::ClaimsView;
use agent_kubelet_api::metrics::families;
use agent_linux::process::{self, Limits};
use orlop_config::kubelet::gates::{FeatureGates, Stage};

use super::Metrics;
use super::certificates::seconds;
use crate::pods::desired_pods::DesiredPods;
use crate::pods::pod_dirs::chain;
use crate::pods::status::PodViews;

/// Major and minor version of Kubernetes that the agent implements, as in `nodeInfo.kubeletVersion`.
const KUBERNETES_VERSION: (&str, &str) = ("1", "36");

/// The node's state at the time of the request.
pub struct Scrape<'a> {
    /// Name of the Node object.
    pub node_name: &'a str,
    /// `kubeletVersion` of the Node object.
    pub version: &'a str,
    /// Version of the cgroup hierarchy, 1 or 2.
    pub cgroup_version: u8,
    /// The gates' settings.
    pub gates: &'a FeatureGates,
    /// Pods that sources want.
    pub desired: &'a DesiredPods,
    /// Pods' statuses.
    pub statuses: &'a PodViews,
    /// Resource claims.
    pub claims: &'a ClaimsView,
}

impl Metrics {
    /// `/metrics` of a node without pods.
    #[cfg(test)]
    pub(crate) fn text_without_pods(&self) -> String {
        self.text(&Scrape {
            node_name: "n1",
            version: "v1",
            cgroup_version: 2,
            gates: &FeatureGates::default(),
            desired: &DesiredPods::new(),
            statuses: &PodViews::new(),
            claims: &ClaimsView::default(),
        })
    }

    /// `/metrics`. Reads /proc: small reads that may block.
    #[must_use]
    pub fn text(&self, of: &Scrape<'_>) -> String {
        let now = self.now();
        let (usage, limits) = (process::usage(), process::limits());
        self.with(|state| {
            state.tell_certificates(now);
            state.tell_runtime();
            state.tell_pods(of.desired, of.statuses);
            state.tell_resizes(of.statuses);
            state.tell_volumes(of.desired, of.statuses);
            state.tell_claims(of.claims);
            let main = &mut state.main;
            main.set(&families::NODE_NAME, [of.node_name], 1.0);
            main.set(&families::CGROUP_VERSION, [], of.cgroup_version.into());
            let platform = format!("linux/{}", agent_linux::node_info::architecture());
            let build =
                [KUBERNETES_VERSION.0, KUBERNETES_VERSION.1, of.version, "", "", "", "", "rustc", &platform];
            main.set(&families::BUILD_INFO, build, 1.0);
            for (gate, on) in of.gates.iter() {
                let stage = match gate.stage {
                    Stage::Alpha => "ALPHA",
                    Stage::Beta => "BETA",
                    Stage::Ga => "",
                    Stage::Deprecated => "DEPRECATED",
                };
                main.set(&families::FEATURE_ENABLED, [gate.name, stage], f64::from(u8::from(on)));
            }
            match usage {
                Ok(usage) => {
                    main.total(&families::PROCESS_CPU, [], usage.cpu.as_secs_f64());
                    main.set(&families::PROCESS_RESIDENT, [], bytes(usage.resident_bytes));
                    main.set(&families::PROCESS_VIRTUAL, [], bytes(usage.virtual_bytes));
                }
                Err(error) => tracing::warn!(error = %chain(&error), "own use cannot be read"),
            }
            match limits {
                Ok(Limits { open_files, open_files_max }) => {
                    main.set(&families::PROCESS_OPEN_FDS, [], bytes(open_files));
                    main.set(&families::PROCESS_MAX_FDS, [], bytes(open_files_max));
                }
                Err(error) => tracing::warn!(error = %chain(&error), "own files cannot be counted"),
            }
            main.set(&families::PROCESS_START, [], self.began());
            main.text()
        })
    }

    /// `/metrics/probes`.
    #[must_use]
    pub fn probes_text(&self) -> String {
        self.with(|state| {
            state.probes.set(&families::PROCESS_START, [], self.began());
            state.probes.text()
        })
    }

    /// `/metrics/slis`.
    #[must_use]
    pub fn slis_text(&self) -> String {
        self.with(|state| {
            state.slis.set(&families::PROCESS_START, [], self.began());
            state.slis.text()
        })
    }

    fn began(&self) -> f64 {
        seconds(self.0.began.wall.0)
    }
}

#[allow(clippy::cast_precision_loss)] // exact below petabytes
fn bytes(n: u64) -> f64 {
    n as f64
}
