//! Processors, memory and devices that containers have for themselves.

use anyhow::Result;
use orlop_harness::case::CaseContext;
use orlop_harness::cluster::fixture::Joined;
use orlop_harness::cluster::flags::Settings;

pub mod claims;
pub mod devices;
pub mod numa;
pub mod processors;

/// Cases with this group share one cluster with one node.
const GROUP: Option<&str> = Some("resources-cluster");
/// Name of its node.
const NODE: &str = "first";

/// The group's cluster.
fn cluster<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Joined> {
    cx.shared_or(|run, artefacts| Joined::start(run, artefacts, Settings::default(), &[NODE]))
}
