//! Nodes that may not join, each for another reason: they report the problem and its remedy, and join without a restart
//! after the repair.
//!
//! Cases: `join/refused-ca`, `join/refused-hash`, `join/refused-token`, `join/refused-approval`, `join/refused-server`.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::bootstrap::{Token, add_token};
use orlop_harness::cluster::fixture::await_words;
use orlop_harness::cluster::identities::{GROUP, Identities};
use orlop_harness::cluster::join::{BOOTSTRAP, JOIN_FILE, JoinMethod, KUBECONFIG, Trust, join_file, write};
use orlop_harness::cluster::pki::OTHER_NAME;
use orlop_harness::cluster::plane::server_url;
use serde_json::Value;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case("join/refused-ca", 40, "caData of another CA: said, and mended by the right one", wrong_ca),
    HERE.case("join/refused-hash", 8, "a hash of another CA: said, and mended by the right one", wrong_hash),
    HERE.case("join/refused-token", 16, "an expired token: said, and mended on either side", expired_token),
    HERE.case(
        "join/refused-approval",
        20,
        "a request that waits for approval, is denied, is approved: each is said",
        approval,
    ),
    HERE.case(
        "join/refused-server",
        20,
        "an API server with another cluster's CA, before and after joining: said, and mended by the right address",
        wrong_server,
    ),
];

fn tell(ids: &Identities, token: &Token, trust: &Trust) -> Result<()> {
    write(&ids.asks, JOIN_FILE, &join_file(&server_url(), token, trust))
}

fn wrong_ca(cx: &mut CaseContext<'_>) -> Result<()> {
    let ids = Identities::shared(cx)?;
    let token = ids.cluster.token().clone();
    ids.reset()?;
    tell(ids, &token, &Trust::Data(ids.cluster.pki().other_ca.pem.clone()))?;
    ids.is_told(
        JoinMethod::JoinFile,
        &["signed by an authority that this node does not trust", "compare the CA data of this node"],
    )?;
    let agent = ids.asks.agent_pid()?;
    tell(ids, &token, &Trust::Data(ids.cluster.pki().ca.pem.clone()))?;
    ids.is_mended(agent)?;
    // Another case needs an identity that has ended; this one will have by then.
    ids.keep_identity()
}

fn wrong_hash(cx: &mut CaseContext<'_>) -> Result<()> {
    let ids = Identities::shared(cx)?;
    let token = ids.cluster.token().clone();
    let right = ids.cluster.pki().ca.public_key_hash.clone();
    ids.reset()?;
    tell(ids, &token, &Trust::Hashes(vec![ids.cluster.pki().other_ca.public_key_hash.clone()]))?;
    let words =
        ["none of the cluster's CAs has a hash from join.caCertHashes", "set the hash to that", &right];
    ids.is_told(JoinMethod::JoinFile, &words)?;
    let agent = ids.asks.agent_pid()?;
    tell(ids, &token, &Trust::Hashes(vec![right]))?;
    ids.is_mended(agent)
}

fn expired_token(cx: &mut CaseContext<'_>) -> Result<()> {
    let ids = Identities::shared(cx)?;
    let (expired, other) = (Token::random()?, ids.cluster.token().clone());
    add_token(ids.cluster.client(), &expired, -60)?;
    // Discovery by hash: cluster-info has no signature for the token any more. The repair is in the cluster, nothing
    // changes on the node.
    ids.reset()?;
    tell(ids, &expired, &Trust::Hashes(vec![ids.cluster.pki().ca.public_key_hash.clone()]))?;
    ids.is_told(JoinMethod::JoinFile, &["is not signed for token id", "expired", "kubeadm token create"])?;
    let agent = ids.asks.agent_pid()?;
    let client = ids.cluster.client();
    let secrets = client.of::<Secret>("kube-system");
    // The cleaner of tokens may have been quicker.
    if client.get(&secrets, &expired.secret_name())?.is_some() {
        client.delete(&secrets, &expired.secret_name(), None)?;
    }
    add_token(client, &expired, 3600)?;
    ids.is_mended(agent)?;
    // Discovery by kubeconfig: the API server refuses the token. The repair is another token on the node.
    ids.reset()?;
    let never = Token { id: expired.id, secret: other.secret.clone() };
    ids.give_token(&never)?;
    ids.is_told(
        JoinMethod::BootstrapKubeconfig,
        &["the first-boot token was refused", "kubeadm token create"],
    )?;
    let agent = ids.asks.agent_pid()?;
    ids.give_token(&other)?;
    ids.is_mended(agent)
}

fn approval(cx: &mut CaseContext<'_>) -> Result<()> {
    let ids = Identities::shared(cx)?;
    ids.reset()?;
    let token = ids.token_by_hand()?;
    ids.give_token(&token)?;
    let user = format!("system:bootstrap:{}", token.id);
    let waits = ids.is_told(
        JoinMethod::BootstrapKubeconfig,
        &["waits for approval", "kubectl certificate approve csr-"],
    )?;
    let agent = ids.asks.agent_pid()?;
    let first = waits.rsplit(' ').next().context("the request's name is the last word")?.to_owned();
    // The token is this node's alone.
    let known = ids.requests(&user)?;
    ensure!(known == [first.as_str()], "{waits:?}, and the requests are {known:?}");
    ids.cluster.kubectl(&["certificate", "deny", &first])?;
    let denied = ids.asks.await_agent_status(30, &["was denied", &first, "kubectl certificate approve"])?;
    orlop_harness::say::line(format!("  {denied}"));
    let second = ids.await_request(&user, &known)?;
    ids.cluster.kubectl(&["certificate", "approve", &second])?;
    ids.is_mended(agent)?;
    let all = ids.requests(&user)?;
    ensure!(all.len() == 2 && all.contains(&second), "{first} and {second} were needed: {all:?}");
    Ok(())
}

fn wrong_server(cx: &mut CaseContext<'_>) -> Result<()> {
    let ids = Identities::shared(cx)?;
    let token = ids.cluster.token().clone();
    ids.reset()?;
    let mut kubeconfig: Value = serde_json::from_str(&ids.cluster.bootstrap_kubeconfig(&token))?;
    kubeconfig["clusters"][0]["cluster"]["tls-server-name"] = OTHER_NAME.into();
    write(&ids.asks, BOOTSTRAP, &kubeconfig.to_string())?;
    ids.is_told(
        JoinMethod::BootstrapKubeconfig,
        &["signed by an authority that this node does not trust", "the address is another cluster's"],
    )?;
    let agent = ids.asks.agent_pid()?;
    ids.give_token(&token)?;
    ids.is_mended(agent)?;
    // The same for a joined node: its address leads to another cluster later.
    let own = ids.asks.inside(KUBECONFIG);
    let right = fs::read_to_string(&own).context("read the node's kubeconfig")?;
    ids.asks.stop_agent()?;
    let server = format!("tls-server-name: {OTHER_NAME}\n    server:");
    fs::write(&own, right.replacen("server:", &server, 1)).context("write the node's kubeconfig")?;
    let words = "signed by an authority that this node does not trust";
    ids.is_told(JoinMethod::BootstrapKubeconfig, &[words, "compare the CA data of this node"])?;
    await_words(&mut ids.asks, 10, &["node status not reported", words])?;
    let agent = ids.asks.agent_pid()?;
    fs::write(&own, right).context("write the node's kubeconfig")?;
    ids.is_mended(agent)
}
