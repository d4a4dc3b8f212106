//! The plan of a node, from settings and machine.
//!
//! In: [`Settings`], the facts of the machine, the state that the last run of the agent left. Out: a [`Plan`], or the
//! setting that cannot be used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_core::eviction::EvictionConfig;
use agent_core::images::pull_records;
use agent_core::node_shutdown::{self, Group};
use agent_core::pod_source::file::FileSourceConfig;
use agent_core::resource_claims::api::ClaimGates;
use agent_kubelet_api::logs;
use agent_types::resources::user_ranges::{self, UserRanges};
use anyhow::{Context, anyhow, bail};
use orlop_config::credential_provider::Provider;
use orlop_config::kubelet::KubeletConfiguration;

use crate::claims::ClaimsPlan;
use crate::devices;
use crate::images::pulls::PullLimits;
use crate::images::{self, credential_plugins};
use crate::node::node_settings::NodeFacts;
use crate::node::shutdown::ShutdownPlan;
use crate::pods::pod_dirs::on_disk::Directories;
use crate::pods::url_source::Manifests;
use crate::process::incarnation::Incarnation;
use crate::process::node::Plan;
use crate::process::resource_managers;
use crate::settings::Settings;

/// The plan of this node.
///
/// # Errors
/// A value of the configuration that cannot be used, or a file that cannot be read.
pub(super) fn node_plan(
    settings: &Settings,
    facts: &NodeFacts,
    incarnation: &Incarnation,
    groups: Vec<Group>,
) -> anyhow::Result<Plan> {
    let kubelet = &settings.kubelet;
    Ok(Plan {
        node_name: facts.node_name().to_owned(),
        static_pods: static_pods(kubelet, facts.node_name()),
        manifests: Manifests::of(kubelet)?,
        directories: Directories {
            root_dir: PathBuf::from(settings.options.root_dir.trim_end_matches('/')),
            pod_logs_dir: PathBuf::from(kubelet.pod_logs_dir.trim_end_matches('/')),
            log_links_dir: PathBuf::from(logs::links::DIRECTORY),
            device_plugins_dir: PathBuf::from(devices::DIRECTORY),
        },
        users: user_ranges(kubelet)?,
        images: images(settings)?,
        fence_until: incarnation.fence_until(),
        pod_output: settings.pod_output,
        admission: Arc::new(facts.admission_context()?),
        shutdown: shutdown_plan(settings, incarnation, groups),
        eviction: eviction(kubelet)?,
        managers: resource_managers::start(settings, facts, incarnation.is_first_of_boot())?,
        claims: ClaimsPlan { gates: claim_gates(settings), first_of_boot: incarnation.is_first_of_boot() },
    })
}

fn claim_gates(settings: &Settings) -> ClaimGates {
    let gates = &settings.gates;
    ClaimGates {
        health: gates.resource_health_status,
        health_message: gates.resource_health_status_message,
        workload_claims: gates.dra_workload_resource_claims,
    }
}

/// The configuration was validated when it was read.
fn eviction(kubelet: &KubeletConfiguration) -> anyhow::Result<EvictionConfig> {
    EvictionConfig::new(kubelet).map_err(|problems| {
        let words = problems.iter().map(|problem| format!("{} {}", problem.path, problem.reason));
        anyhow!("eviction thresholds: {}", words.collect::<Vec<_>>().join("; "))
    })
}

/// The directory of static pods; `None` if the configuration names none.
fn static_pods(kubelet: &KubeletConfiguration, node_name: &str) -> Option<FileSourceConfig> {
    let path = kubelet.static_pod_path.trim_end_matches('/').to_owned();
    (!path.is_empty()).then(|| FileSourceConfig {
        path,
        node_name: node_name.to_owned(),
        check_period: kubelet.file_check_frequency.to_std(),
    })
}

fn images(settings: &Settings) -> anyhow::Result<images::Plan> {
    let (kubelet, options) = (&settings.kubelet, &settings.options);
    Ok(images::Plan {
        pulls: PullLimits::of(kubelet),
        pull_policy: pull_records::Policy {
            verification: kubelet.image_pull_credentials_verification_policy,
            allowlist: kubelet.preloaded_images_verification_allowlist.clone(),
        },
        plugins: plugins(settings)?,
        plugins_dir: PathBuf::from(options.image_credential_provider_bin_dir.clone().unwrap_or_default()),
    })
}

/// Grace periods of pods at a shutdown; empty if the configuration sets none, or the gate is off.
pub(super) fn shutdown_groups(settings: &Settings) -> Vec<Group> {
    let gates = &settings.gates;
    if !gates.graceful_node_shutdown {
        return Vec::new();
    }
    node_shutdown::groups(&settings.kubelet, gates.graceful_node_shutdown_based_on_pod_priority)
}

/// `None` if pods have no grace period.
fn shutdown_plan(settings: &Settings, incarnation: &Incarnation, groups: Vec<Group>) -> Option<ShutdownPlan> {
    (!groups.is_empty()).then(|| ShutdownPlan {
        groups,
        boot_id: incarnation.boot_id().to_owned(),
        last_end: incarnation.last_end().map(|(end, is_news)| (end.clone(), is_news)),
        root_dir: PathBuf::from(settings.options.root_dir.trim_end_matches('/')),
    })
}

/// Credential provider plugins. As upstream, each of the two flags requires the other.
fn plugins(settings: &Settings) -> anyhow::Result<Vec<Provider>> {
    let options = &settings.options;
    let given = |flag: &'_ Option<String>| flag.clone().filter(|text| !text.is_empty());
    let config = given(&options.image_credential_provider_config);
    let directory = given(&options.image_credential_provider_bin_dir);
    match (config, directory) {
        (None, None) => Ok(Vec::new()),
        (Some(config), Some(directory)) => {
            let tokens = settings.gates.kubelet_service_account_token_for_credential_providers;
            credential_plugins::load(Path::new(&config), Path::new(&directory), tokens)
        }
        (Some(_), None) => {
            bail!("--image-credential-provider-config needs --image-credential-provider-bin-dir")
        }
        (None, Some(_)) => {
            bail!("--image-credential-provider-bin-dir needs --image-credential-provider-config")
        }
    }
}

/// Ids for user namespaces: the subordinate ids of user `kubelet` if that user exists, otherwise all ids except the
/// host's own.
fn user_ranges(kubelet: &KubeletConfiguration) -> anyhow::Result<UserRanges> {
    const USER: &str = "kubelet";
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("read {path}"));
    let is_user = |text: String| text.lines().any(|l| l.split(':').next() == Some(USER));
    let subordinate = if read("/etc/passwd").is_ok_and(is_user) {
        let ids = user_ranges::subordinate_ids(&read("/etc/subuid")?, USER)?;
        if ids != user_ranges::subordinate_ids(&read("/etc/subgid")?, USER)? {
            bail!("/etc/subuid and /etc/subgid give user {USER} different ids: give it the same");
        }
        Some(ids)
    } else {
        None
    };
    let ids = u32::try_from(kubelet.ids_per_pod()).context("userNamespaces.idsPerPod")?;
    let pods = u32::try_from(kubelet.max_pods).unwrap_or(0);
    Ok(UserRanges::new(ids, subordinate, pods)?)
}
