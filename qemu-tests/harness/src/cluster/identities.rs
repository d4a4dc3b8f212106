//! A cluster whose certificates live for less than a minute, with two nodes: one that renews its certificate under load
//! for as long as the fixture lives, and one that a case makes request certificates repeatedly.
//!
//! In: settings of the group. Out: [`Identities`]. Invariants: nodes are dropped before their cluster; no case
//! touches the first node before its own case, which then finds a history.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;

use super::bootstrap::{self, Token};
use super::churn::Churn;
use super::fixture::{await_ready, await_words};
use super::flags::Settings;
use super::join::{BOOTSTRAP, CERT_DIR, JoinMethod, KUBECONFIG, forget, start_kubelet, write};
use super::plane::Cluster;
use super::swaps::Swaps;
use crate::built;
use crate::case::CaseContext;
use crate::native::node::NativeNode;
use crate::run::Run;
use crate::say;

/// Cases with this group share one [`Identities`].
pub const GROUP: Option<&str> = Some("join-identity");
/// The signer's certificates end this long after their requests (and begin five minutes before them), so a node
/// requests the next one after 31 to 40 s.
pub const LIFETIME: Duration = Duration::from_secs(45);
/// Group of tokens whose certificate requests the approver does not approve by itself.
const BY_HAND: &str = "system:bootstrappers:e2e:by-hand";
/// The node that is left alone.
pub const ROTATES: &str = "rotates";
/// Name of the other node.
pub const ASKS: &str = "asks";
/// The latter's address.
pub const ASKS_ADDRESS: &str = "172.30.0.11";
/// The former's.
pub const ROTATES_ADDRESS: &str = "172.30.0.10";

/// See the module.
pub struct Identities {
    /// Churn of pods on the first node; `None` after a case has ended it.
    pub churn: Option<Churn>,
    /// Its certificate directory.
    pub swaps: Swaps,
    /// The node that renews its certificate.
    pub rotates: NativeNode,
    /// The node that requests certificates repeatedly.
    pub asks: NativeNode,
    /// The cluster.
    pub cluster: Cluster,
    old: Option<(PathBuf, Instant)>,
}

impl Identities {
    fn start(run: &Arc<Run>, artefacts: &Path) -> Result<Identities> {
        let agent = built::agent(run, false)?;
        let settings = Settings { certificate_lifetime: LIFETIME, ..Settings::default() };
        let mut cluster = Cluster::start(run, artefacts, settings)?;
        bootstrap::add_unapproved_group(cluster.client(), BY_HAND)?;
        let mut rotates = cluster.start_node(artefacts, ROTATES, agent.clone())?;
        let pairs = rotates.inside(CERT_DIR);
        fs::create_dir_all(&pairs).with_context(|| format!("make {}", pairs.display()))?;
        let swaps = Swaps::follow(&pairs)?;
        start_kubelet(&mut rotates, JoinMethod::BootstrapKubeconfig)?;
        let asks = cluster.start_node(artefacts, ASKS, agent)?;
        await_ready(&cluster, ROTATES, 60)?;
        let churn = Some(Churn::start(cluster.kubeconfig(), ROTATES)?);
        Ok(Identities { churn, swaps, rotates, asks, cluster, old: None })
    }

    /// The group's fixture.
    ///
    /// # Errors
    /// The part that did not start.
    pub fn shared<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Identities> {
        cx.shared_or(Identities::start)
    }

    /// The second node without any identity, its agent stopped; the cluster has forgotten it.
    ///
    /// # Errors
    /// If the agent does not stop.
    pub fn reset(&mut self) -> Result<()> {
        self.stop()?;
        forget(&self.asks)?;
        let client = self.cluster.client();
        let nodes = client.all::<Node>();
        if client.get(&nodes, ASKS)?.is_some() {
            client.delete(&nodes, ASKS, None)?;
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        if self.asks.agent_pid().is_ok() {
            let status = self.asks.stop_agent()?;
            ensure!(status == 0, "the agent ended with {status}");
        }
        Ok(())
    }

    /// Starts the second node's agent, and waits for all of `words` in the log and in its state for the service
    /// manager.
    ///
    /// # Errors
    /// The agent's present messages.
    pub fn is_told(&mut self, way: JoinMethod, words: &[&str]) -> Result<String> {
        start_kubelet(&mut self.asks, way)?;
        let said = self.asks.await_agent_status(30, words)?;
        await_words(&mut self.asks, 5, words)?;
        say::line(format!("  {said}"));
        Ok(said)
    }

    /// Waits until the second node is Ready with the same process and reports no problem any more.
    ///
    /// # Errors
    /// The present state.
    pub fn is_mended(&mut self, agent: i32) -> Result<()> {
        let start = Instant::now();
        // Files are looked at every ten seconds by a node that has joined, and a lease is renewed as often.
        self.asks.await_agent_status(60, &[])?;
        await_ready(&self.cluster, ASKS, 30)?;
        say::line(format!("  Ready {:.1} s after it was mended", start.elapsed().as_secs_f64()));
        ensure!(self.asks.agent_pid()? == agent, "the agent was restarted");
        self.cluster.ensure_nothing_forbidden()
    }

    /// Keeps a copy of the second node's identity, which will have ended when a case needs one that has. Its agent
    /// is stopped: a file that it was writing would be gone before it is copied.
    ///
    /// # Errors
    /// If the agent does not stop, or the files cannot be copied.
    pub fn keep_identity(&mut self) -> Result<()> {
        self.stop()?;
        let dir = self.cluster.dir().join("old-identity");
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        copy(&self.asks.inside(CERT_DIR), &dir.join("pki"))?;
        copy(&self.asks.inside(KUBECONFIG), &dir.join("kubeconfig"))?;
        self.old = Some((dir, Instant::now()));
        Ok(())
    }

    /// As [`Identities::reset`], with an expired identity.
    ///
    /// # Errors
    /// If there is no expired identity.
    pub fn reset_to_expired(&mut self) -> Result<()> {
        if self.old.is_none() {
            self.reset()?;
            self.give_token(&self.cluster.token().clone())?;
            start_kubelet(&mut self.asks, JoinMethod::BootstrapKubeconfig)?;
            await_ready(&self.cluster, ASKS, 60)?;
            self.keep_identity()?;
        }
        self.reset()?;
        let (dir, kept) = self.old.clone().context("kept above")?;
        // The only way for a certificate to end is time.
        let left = (kept + LIFETIME + Duration::from_secs(1)).saturating_duration_since(Instant::now());
        if !left.is_zero() {
            self.asks.pass(left)?;
        }
        copy(&dir.join("pki"), &self.asks.inside(CERT_DIR))?;
        copy(&dir.join("kubeconfig"), &self.asks.inside(KUBECONFIG))
    }

    /// Writes the second node's bootstrap kubeconfig.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn give_token(&self, token: &Token) -> Result<()> {
        write(&self.asks, BOOTSTRAP, &self.cluster.bootstrap_kubeconfig(token))
    }

    /// A token whose requests wait for an approval by the case.
    ///
    /// # Errors
    /// If the API server refuses it.
    pub fn token_by_hand(&self) -> Result<Token> {
        let token = Token::random()?;
        bootstrap::add_token_of(self.cluster.client(), &token, 3600, BY_HAND)?;
        Ok(token)
    }

    /// Waits for an undecided request of `user` whose name is not in `known`; returns its name.
    ///
    /// # Errors
    /// At the deadline, with the present requests.
    pub fn await_request(&self, user: &str, known: &[String]) -> Result<String> {
        let client = self.cluster.client();
        let what = format!("another request of {user}");
        client.wait::<CertificateSigningRequest, _>(&client.all(), 30, &what, |all| {
            all.iter().find(|(name, r)| is_of(r, user) && !known.contains(name)).map(|(name, _)| name.clone())
        })
    }

    /// Names of all requests of `user` that there are.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub fn requests(&self, user: &str) -> Result<Vec<String>> {
        let client = self.cluster.client();
        client.wait::<CertificateSigningRequest, _>(&client.all(), 10, "the requests", |all| {
            Some(all.iter().filter(|(_, r)| is_of(r, user)).map(|(name, _)| name.clone()).collect())
        })
    }
}

fn is_of(request: &CertificateSigningRequest, user: &str) -> bool {
    request.spec.username.as_deref() == Some(user)
}

/// Links stay links.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-aT").arg(from).arg(to).status().context("run cp")?;
    ensure!(status.success(), "cp -aT {} {}: {status}", from.display(), to.display());
    Ok(())
}
