//! The command line of `orlopctl controlplane`. Pure.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::plan::{ClusterPlan, PlanWords, PodNetworkChoice};

const EXAMPLES: &str = "Examples:
  orlopctl controlplane gen --single --endpoint 192.0.2.10:6443
  orlopctl controlplane gen --ha 3 --endpoint api.example:6443 \\
    --member cp-1=192.0.2.11 --member cp-2=192.0.2.12 --member cp-3=192.0.2.13 --out cluster
  orlopctl controlplane gen --single --endpoint 192.0.2.10:6443 --renew controlplane --out renewed";

/// Control planes are made without a node.
#[derive(Debug, Subcommand)]
pub(crate) enum ControlplaneVerb {
    /// Makes keys, certificates, and a NodeConfig for each node
    Gen(GenArgs),
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GenArgs {
    /// One node with everything
    #[arg(long, required_unless_present = "ha")]
    single: bool,
    /// So many nodes, each with a member of etcd: 3, 5, ...
    #[arg(long, value_name = "N", conflicts_with = "single")]
    ha: Option<u32>,
    /// Where clients and workers reach the API server: a node, or what is in front of several
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: String,
    /// Name of a node with the control plane, and its address; --single: control-plane-1, and that of its default route
    #[arg(long = "member", value_name = "NAME[=ADDRESS]")]
    nodes: Vec<String>,
    /// Further names and addresses of the API server
    #[arg(long = "san", value_name = "NAME", value_delimiter = ',')]
    names: Vec<String>,
    /// Directory of the output; no file in it is written over
    #[arg(long, value_name = "DIR", default_value = "controlplane")]
    pub(super) out: PathBuf,
    /// Directory of an earlier output: its authorities sign the new certificates
    #[arg(long, value_name = "DIR")]
    pub(super) renew: Option<PathBuf>,
    /// Images in place of the published ones: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl
    #[arg(long, value_name = "NAME=IMAGE", value_delimiter = ',')]
    images: Vec<String>,
    /// Range of the pods' addresses
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16")]
    pod_cidr: String,
    /// Range of the Services' addresses
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/16")]
    service_cidr: String,
    /// Who brings the pods' network; --single: bridge, --ha: cluster
    #[arg(long, value_enum)]
    pod_network: Option<PodNetworkChoice>,
    /// Life of the certificates, days; that of authorities is 3650
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Life of the token that lets workers join, hours
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=87600))]
    token_hours: u32,
}

impl GenArgs {
    /// What is to be made. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub(super) fn plan(&self, now: i64) -> Result<ClusterPlan, String> {
        ClusterPlan::of(&PlanWords {
            ha: self.ha.filter(|_| !self.single),
            nodes: &self.nodes,
            endpoint: &self.endpoint,
            names: &self.names,
            images: &self.images,
            pods: &self.pod_cidr,
            services: &self.service_cidr,
            network: self.pod_network,
            days: self.days,
            token_hours: self.token_hours,
            now,
        })
    }
}
