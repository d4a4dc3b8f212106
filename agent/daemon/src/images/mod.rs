//! Images: credentials, records of pulls, the images in use, and the collection of unused images and dead containers.
//!
//! In: [`Plan`] and [`Deps`]. Out: [`Images`], which the executor pulls with.

pub mod credential_plugins;
pub mod garbage_collection;
pub mod image_uses;
pub mod pull_records;
pub mod pulls;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_core::images::pull_records::Policy;
use agent_kubelet_api::drivers::ImageService;
use orlop_config::credential_provider::Provider;

use crate::images::credential_plugins::Plugins;
use crate::images::pull_records::PullRecords;
use crate::images::pulls::PullLimits;
use crate::node::NodeHandles;
use crate::pods::pod_values::Sources;

/// The configuration of images.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bounds on image pulls.
    pub pulls: PullLimits,
    /// Which pods may use images that were pulled.
    pub pull_policy: Policy,
    /// Credential-provider plugins.
    pub plugins: Vec<Provider>,
    /// `--image-credential-provider-bin-dir`.
    pub plugins_dir: PathBuf,
}

/// Inputs of the images' part.
pub struct Deps<'a, I> {
    /// The configuration's part.
    pub plan: &'a Plan,
    /// CRI ImageService.
    pub service: Arc<I>,
    /// `--root-dir`, which contains the pull records.
    pub root_dir: &'a Path,
    /// Service accounts and their tokens, for plugins.
    pub sources: Arc<dyn Sources>,
    /// Handles of the node.
    pub node: &'a NodeHandles,
}

/// The node's images.
pub struct Images<I> {
    /// CRI ImageService.
    pub service: Arc<I>,
    /// Bounds on image pulls.
    pub pulls: PullLimits,
    /// Records of pulls.
    pub records: PullRecords,
    /// Credential-provider plugins.
    pub plugins: Arc<Plugins>,
}

/// Settles pulls that an earlier run of the agent began, and keeps the records in step with the runtime from then on.
pub async fn start<I: ImageService>(deps: Deps<'_, I>) -> Images<I> {
    let Deps { plan, service, root_dir, sources, node } = deps;
    let (metrics, tasks) = (node.node_events.metrics().clone(), node.tasks.clone());
    let records = PullRecords::start(root_dir, plan.pull_policy.clone(), &tasks);
    pull_records::settle(&*service, &records, &tasks).await;
    tasks.start(pull_records::follow_images(
        service.clone(),
        records.clone(),
        metrics.clone(),
        tasks.clone(),
    ));
    let plugins = Plugins::new(&plan.plugins_dir, plan.plugins.clone(), sources, metrics, tasks);
    Images { service, pulls: plan.pulls, records, plugins: Arc::new(plugins) }
}
