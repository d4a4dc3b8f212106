//! `api-contract`: the contract suite against a real API server.
//!
//! In: kubeconfigs of a node, an administrator, a bootstrap token and of credentials that are good for nothing, and the
//! node's name. Out: one line for each check that held;
//! exit code 1 at the first that did not.

use std::io::Write;
use std::path::{Path, PathBuf};

use agent_apiserver::kubeconfig::Kubeconfig;
use agent_apiserver::testing::{Strangers, contract_suite};
use agent_apiserver::{Access, ApiClient, Credentials, Options};
use clap::Parser;

#[derive(Parser)]
struct Cli {
    /// Kubeconfig of `system:node:<node>` in group `system:nodes`.
    #[arg(long)]
    node_kubeconfig: PathBuf,
    /// Kubeconfig of a user in `system:masters`.
    #[arg(long)]
    admin_kubeconfig: PathBuf,
    /// Kubeconfig of a bootstrap token.
    #[arg(long)]
    bootstrap_kubeconfig: PathBuf,
    /// Kubeconfig of credentials that the server must not know; several may be given.
    #[arg(long)]
    unknown_kubeconfig: Vec<PathBuf>,
    /// Name of a node that only this suite uses: the suite deletes its objects.
    #[arg(long)]
    node: String,
}

async fn access(path: &Path) -> anyhow::Result<Access> {
    Ok(Kubeconfig::read(path).await?.access().await?)
}

async fn client(path: &Path) -> anyhow::Result<ApiClient> {
    Ok(ApiClient::new(access(path).await?, &Options::new("api-contract"))?)
}

async fn strangers(cli: &Cli) -> anyhow::Result<Strangers> {
    let mut unknown = Vec::new();
    for path in &cli.unknown_kubeconfig {
        unknown.push(client(path).await?);
    }
    let nobody = Access { credentials: Credentials::None, ..access(&cli.admin_kubeconfig).await? };
    let anonymous = ApiClient::new(nobody, &Options::new("api-contract"))?;
    Ok(Strangers { unknown, anonymous, bootstrap: client(&cli.bootstrap_kubeconfig).await? })
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (node, admin) = (client(&cli.node_kubeconfig).await?, client(&cli.admin_kubeconfig).await?);
        let checks = contract_suite(&node, &admin, &strangers(&cli).await?, &cli.node).await?;
        let mut out = std::io::stdout().lock();
        for check in &checks {
            writeln!(out, "ok {check}")?;
        }
        writeln!(out, "{} checks held against {}; {:?}", checks.len(), node.server(), node.stats())?;
        Ok(())
    })
}
