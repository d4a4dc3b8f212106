//! Client certificates that live for less than a minute: renewed under load, interrupted by a kill, expired while the
//! node was off. Also the contract suite of the agent's client, against the real API server.
//!
//! Cases: `join/api-contract`, `join/certificate-expired`, `join/certificates-rotate`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::audit;
use orlop_harness::cluster::bootstrap::Token;
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::identities::{
    ASKS, ASKS_ADDRESS, GROUP, Identities, LIFETIME, ROTATES, ROTATES_ADDRESS,
};
use orlop_harness::cluster::join::{CERT_DIR, JoinMethod, start_kubelet};
use orlop_harness::cluster::pki::{Pair, write_private};
use orlop_harness::cluster::swaps::CURRENT;
use orlop_harness::native::node::NativeNode;
use orlop_harness::process::must;
use orlop_harness::say;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file. The last one checks the history of its node during the others.
pub const CASES: &[Case] = &[
    HERE.case(
        "join/api-contract",
        10,
        "the contract that the fake API server keeps is the real one's",
        api_contract,
    ),
    HERE.case(
        "join/certificate-expired",
        15,
        "a certificate that ended while the node was off: with a token at once, without one when there is one",
        expired,
    ),
    HERE.case(
        "join/certificates-rotate",
        60,
        "certificates are renewed under load without a failed request, also by an agent that is killed meanwhile",
        rotate,
    ),
];

/// No answer of these is routine: not authenticated, forbidden, throttled, broken.
const FAILURES: [u16; 7] = [0, 401, 403, 429, 500, 503, 504];
/// The first certificate, and three that replaced it.
const CERTIFICATES: usize = 4;

fn api_contract(cx: &mut CaseContext<'_>) -> Result<()> {
    let suite = built::example(&cx.run, "api-contract")?;
    let ids = Identities::shared(cx)?;
    ids.cluster.ensure_nothing_forbidden()?;
    let cluster = &ids.cluster;
    let kubeconfig = |name: &str, text: &str| -> Result<PathBuf> {
        let path = cluster.dir().join(format!("{name}.kubeconfig"));
        write_private(&path, text)?;
        Ok(path)
    };
    let of_pair = |name: &str, pair: Pair| {
        let (certificate, key) = (fs::read_to_string(pair.certificate)?, fs::read_to_string(pair.key)?);
        kubeconfig(name, &cluster.host_kubeconfig(certificate, key))
    };
    let node = of_pair("suite", cluster.pki().client("suite", "system:node:suite", Some("system:nodes"))?)?;
    let token = kubeconfig("suite-token", &cluster.host_bootstrap_kubeconfig(cluster.token()))?;
    let [ended, other] = cluster.pki().unknown_clients("suite")?;
    let never = kubeconfig("suite-never", &cluster.host_bootstrap_kubeconfig(&Token::random()?))?;
    let unknown = [of_pair("suite-ended", ended)?, of_pair("suite-other", other)?, never];
    let mut command = Command::new(suite);
    command.arg("--node-kubeconfig").arg(node).arg("--admin-kubeconfig").arg(cluster.kubeconfig());
    command.arg("--bootstrap-kubeconfig").arg(token).args(["--node", "suite"]);
    for path in unknown {
        command.arg("--unknown-kubeconfig").arg(path);
    }
    let output = must(&cx.run.clone(), &mut command)?;
    say::line(format!("  {}", output.lines().last().unwrap_or_default()));
    // The suite makes forbidden requests, and checks that they are refused.
    let ids = Identities::shared(cx)?;
    let bootstrap = format!("system:bootstrap:{}", ids.cluster.token().id);
    ids.cluster.ensure_nothing_forbidden_but(|request| {
        let of_suite = request.user_agent.starts_with("orlop/api-contract");
        of_suite && (request.user == "system:node:suite" || request.user == bootstrap)
    })
}

fn expired(cx: &mut CaseContext<'_>) -> Result<()> {
    let ids = Identities::shared(cx)?;
    ids.reset_to_expired()?;
    ids.is_told(JoinMethod::BootstrapKubeconfig, &["client certificate expired at", "kubeadm token create"])?;
    let agent = ids.asks.agent_pid()?;
    let token = ids.cluster.token().clone();
    ids.give_token(&token)?;
    ids.is_mended(agent)?;
    // With a token that is still there: no action is needed, and the node makes no request with its old name.
    ids.reset_to_expired()?;
    ids.give_token(&token)?;
    let before = ids.cluster.audit()?.len();
    let start = Instant::now();
    start_kubelet(&mut ids.asks, JoinMethod::BootstrapKubeconfig)?;
    await_ready(&ids.cluster, ASKS, 60)?;
    say::line(format!("  with a token Ready {:.1} s after the start", start.elapsed().as_secs_f64()));
    let requests = ids.cluster.audit()?;
    let refused = audit::failed_from(&requests[before..], ASKS_ADDRESS, &[401, 403]);
    ensure!(refused.is_empty(), "refused on the way: {refused:#?}");
    ids.cluster.ensure_nothing_forbidden()
}

fn rotate(cx: &mut CaseContext<'_>) -> Result<()> {
    let ids = Identities::shared(cx)?;
    // The last of the renewals happens before our eyes.
    ids.swaps.await_count(CERTIFICATES - 1, LIFETIME * 3)?;
    let before = connections(&ids.rotates)?;
    let already = ids.swaps.count()?;
    ids.swaps.await_count(CERTIFICATES.max(already + 1), LIFETIME * 2)?;
    replaced(&mut ids.rotates, &before)?;
    nothing_failed(ids)?;
    killed_meanwhile(ids)?;
    ids.swaps.ensure_atomic()?;
    let pods = ids.churn.take().context("nobody else ends it")?.finish()?;
    ensure!(pods >= 5, "{pods} pods are no load");
    let requests = ids.cluster.audit()?;
    let refused = audit::failed_from(&requests, ROTATES_ADDRESS, &[401, 403]);
    ensure!(refused.is_empty(), "the node was refused: {refused:#?}");
    say::line(format!("  {} certificates, {pods} pods came and went", ids.swaps.count()?));
    ids.cluster.ensure_nothing_forbidden()
}

/// Local ports of the node's connections to the API server.
fn connections(node: &NativeNode) -> Result<BTreeSet<String>> {
    let path = format!("/proc/{}/net/tcp", node.agent_pid()?);
    let table = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // Columns: number, local address, remote address, state. 172.30.0.1:6443 as the kernel writes it, and ESTABLISHED.
    let of = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, ..] = columns.as_slice() else { return None };
        (*remote == "01001EAC:192B" && *state == "01").then(|| (*local).to_owned())
    };
    Ok(table.lines().filter_map(of).collect())
}

/// Old connections end when they have no request in progress; one new connection stays.
fn replaced(node: &mut NativeNode, before: &BTreeSet<String>) -> Result<()> {
    ensure!(!before.is_empty(), "the node had no connection to the API server");
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = connections(node)?;
        if now.len() == 1 && now.is_disjoint(before) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "connections before {before:?}, after a new certificate {now:?}");
        // The kernel's table sends no event.
        node.pass(Duration::from_millis(100))?;
    }
}

fn nothing_failed(ids: &Identities) -> Result<()> {
    let requests = ids.cluster.audit()?;
    let failed = audit::failed_from(&requests, ROTATES_ADDRESS, &FAILURES);
    ensure!(failed.is_empty(), "requests of the node failed: {failed:#?}");
    let of_node: Vec<_> = requests.iter().filter(|r| r.source == ROTATES_ADDRESS).collect();
    let lists: Vec<_> = of_node.iter().filter(|r| r.uri.contains("sendInitialEvents=true")).collect();
    // The watches' lines are written when they end; those that replaced them began where they were.
    let of_what: BTreeSet<_> = lists.iter().map(|r| (&r.resource, selector(&r.uri))).collect();
    ensure!(lists.len() == of_what.len(), "a watch was not moved over but listed anew: {lists:#?}");
    let log = fs::read_to_string(ids.rotates.logs().join("agent.log")).context("read the agent's log")?;
    let lost: Vec<_> = log.lines().filter(|l| l.contains("watch lost") || l.contains("broke")).collect();
    ensure!(lost.is_empty(), "connections or watches broke: {lost:#?}");
    say::line(format!("  {} requests of the node answered, none failed", of_node.len()));
    Ok(())
}

/// The field selector of a request.
fn selector(uri: &str) -> Option<&str> {
    uri.split(['?', '&']).find(|part| part.starts_with("fieldSelector="))
}

/// kill -9 between the request for a certificate and its use, and during the replacement of the pair; the next start
/// uses the current one.
fn killed_meanwhile(ids: &mut Identities) -> Result<()> {
    let user = format!("system:node:{ROTATES}");
    ids.rotates.kill_agent()?;
    for moment in [Moment::Requested, Moment::Written, Moment::Linked] {
        let known = ids.requests(&user)?;
        let already = ids.swaps.seen()?;
        // A certificate with little remaining life is replaced at once, or within ten seconds.
        start_kubelet(&mut ids.rotates, JoinMethod::BootstrapKubeconfig)?;
        match moment {
            Moment::Requested => ids.await_request(&user, &known).map(|_| ())?,
            Moment::Written => ids.swaps.await_name(already, ".pem.new", Duration::from_secs(30))?,
            Moment::Linked => ids.swaps.await_name(already, "-updated.pem", Duration::from_secs(30))?,
        }
        ids.rotates.kill_agent()?;
        whole_pair(&ids.rotates).with_context(|| format!("after a kill at {moment:?}"))?;
    }
    let swaps = ids.swaps.count()?;
    start_kubelet(&mut ids.rotates, JoinMethod::BootstrapKubeconfig)?;
    ids.swaps.await_count(swaps + 1, Duration::from_secs(30))?;
    ids.rotates.await_agent_status(30, &[])?;
    ids.churn.as_mut().context("nobody else ends it")?.await_round(Duration::from_secs(60))
}

/// When the agent is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The request is at the API server.
    Requested,
    /// A new pair is being written.
    Written,
    /// The link to it is on its way.
    Linked,
}

fn whole_pair(node: &NativeNode) -> Result<()> {
    let link = node.inside(CERT_DIR).join(CURRENT);
    let target = fs::read_link(&link).with_context(|| format!("read the link {}", link.display()))?;
    let pair = fs::read_to_string(node.inside(&target.to_string_lossy()))
        .with_context(|| format!("read {}", target.display()))?;
    for part in ["BEGIN CERTIFICATE", "END CERTIFICATE", "BEGIN PRIVATE KEY", "END PRIVATE KEY"] {
        ensure!(pair.contains(part), "{} is no whole pair", target.display());
    }
    Ok(())
}
