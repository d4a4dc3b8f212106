//! `api-contract`: the contract suite against a real API server.
//!
//! In: two kubeconfigs, a node's and an administrator's, and the node's name. Out: one line for each check that held;
//! exit code 1 at the first that did not.

use std::io::Write;
use std::path::{Path, PathBuf};

use agent_apiserver::kubeconfig::Kubeconfig;
use agent_apiserver::testing::contract_suite;
use agent_apiserver::{ApiClient, Options};
use clap::Parser;

#[derive(Parser)]
struct Cli {
    /// Kubeconfig of `system:node:<node>` in group `system:nodes`.
    #[arg(long)]
    node_kubeconfig: PathBuf,
    /// Kubeconfig of somebody in `system:masters`.
    #[arg(long)]
    admin_kubeconfig: PathBuf,
    /// Name of a node that is nobody else's: its objects are deleted.
    #[arg(long)]
    node: String,
}

async fn client(path: &Path) -> anyhow::Result<ApiClient> {
    let access = Kubeconfig::read(path).await?.access().await?;
    Ok(ApiClient::new(access, &Options::new("api-contract"))?)
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (node, admin) = (client(&cli.node_kubeconfig).await?, client(&cli.admin_kubeconfig).await?);
        let checks = contract_suite(&node, &admin, &cli.node).await?;
        let mut out = std::io::stdout().lock();
        for check in &checks {
            writeln!(out, "ok {check}")?;
        }
        writeln!(out, "{} checks held against {}; {:?}", checks.len(), node.server(), node.stats())?;
        Ok(())
    })
}
