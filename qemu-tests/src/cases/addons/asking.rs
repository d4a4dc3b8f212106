//! Services of the cases, the pods behind them, and requests to them: by busybox from pods and from the control plane's
//! host.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Service};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::requests::await_accepted;
use orlop_harness::cluster::requests::steady::{ServiceReport, slowest};
use orlop_harness::native::images;
use orlop_harness::process::must;
use serde_json::{Value, json};

/// Script of a pod that answers with its name, and at [`FROM`] with the client's address.
pub(super) const ANSWERS: &str = r#"mkdir -p /tmp/www/cgi-bin; hostname > /tmp/www/index.html
printf '#!/bin/sh\nprintf "Content-type: text/plain\\r\\n\\r\\n"; echo "$REMOTE_ADDR"\n' > /tmp/www/cgi-bin/from
chmod +x /tmp/www/cgi-bin/from
exec httpd -f -p 8080 -h /tmp/www"#;
/// Path at which such a pod answers with the client's address.
const FROM: &str = "/cgi-bin/from";
/// Port of such a pod.
pub(super) const PORT: u16 = 8080;
/// Requests at once. That one of two pods gets all of them by chance does not happen.
const REQUESTS: usize = 24;
/// Limit for a new Service to be routed: also by a kube-proxy that must be started again first.
pub(super) const ROUTED: Duration = Duration::from_secs(30);
/// Requests of a script until the first answer, with a pause of a second after each.
const TURNS: u32 = 30;
/// Limit of each of them, seconds: a VM without KVM is slow.
const TURN_S: u32 = 3;
/// Limit of one of the harness's requests until the first answer.
const TRY: Duration = Duration::from_secs(3);
/// Limit for a name to have all of its addresses: an answer that is lost takes seconds.
const NAMED: Duration = Duration::from_secs(60);
/// Time between the beginnings of two questions for a name.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Longest time without an answer while a part of a node is away. The kill of a kubelet or of a runtime takes no connection away; this is
/// for the machine's own delays.
const GAP_MAX: Duration = Duration::from_secs(30);

/// A Service's ways in.
pub(super) struct ServiceAddresses {
    /// Its own address, of its first family.
    pub(super) address: IpAddr,
    /// Its port at the nodes.
    pub(super) node_port: Option<u16>,
    /// The port at the nodes for a load balancer's question whether a node has a pod.
    pub(super) health_port: Option<u16>,
}

impl ServiceAddresses {
    /// Its own address and port, for a script.
    pub(super) fn at(&self) -> String {
        format!("{} 80", self.address)
    }

    /// The same for the harness.
    pub(super) fn socket(&self) -> SocketAddr {
        (self.address, 80).into()
    }

    /// Its port at a node.
    pub(super) fn at_node(&self, node: IpAddr) -> Result<SocketAddr> {
        Ok((node, self.node_port.context("a Service without a port of the nodes")?).into())
    }
}

/// Makes a Service of the pods with the label `app`, with its port 80; `more` has other fields of its spec.
pub(super) fn serve(cluster: &Cluster, name: &str, app: &str, more: Value) -> Result<ServiceAddresses> {
    let mut spec = json!({"selector": {"app": app}, "ports": [{"port": 80, "targetPort": PORT}]});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    let client = cluster.client();
    let object = json!({"metadata": {"name": name}, "spec": spec});
    let made = client.create::<Service>(&client.of("default"), object)?;
    let spec = made.spec.context("a Service without a spec")?;
    let address = spec.cluster_ip.context("a Service without an address")?;
    let port = |port: Option<i32>| port.map(u16::try_from).transpose().context("a port of a Service");
    let node_port = spec.ports.unwrap_or_default().first().and_then(|port| port.node_port);
    Ok(ServiceAddresses {
        address: address.parse().with_context(|| format!("the address {address:?}"))?,
        node_port: port(node_port)?,
        health_port: port(spec.health_check_node_port)?,
    })
}

/// The address that a node says it has.
pub(super) fn address_of(cluster: &Cluster, node: &str) -> Result<IpAddr> {
    let client = cluster.client();
    let object = client.get::<Node>(&client.all(), node)?.with_context(|| format!("no node {node}"))?;
    let address = ready::internal_ip(&object).with_context(|| format!("{node} has no address"))?;
    address.parse().with_context(|| format!("the address {address:?} of {node}"))
}

/// Waits until the cluster's DNS has these addresses for a name of the namespace `default`, as a pod sees them. CoreDNS learns of a new
/// Service within a moment, and one of two answers, those of both families, may be lost.
pub(super) fn await_named(
    cluster: &Cluster,
    from: &str,
    name: &str,
    expected: &BTreeSet<IpAddr>,
) -> Result<()> {
    let script = format!(
        "nslookup {name}.default.svc.cluster.local 2>/dev/null | \
         awk '/^Name:/ {{ named = 1 }} named && /^Address/ {{ print $NF }}'"
    );
    let (begun, client) = (Instant::now(), cluster.client());
    let mut again = client.block_on(async { tokio::time::interval(ASK_AGAIN) });
    loop {
        client.block_on(again.tick());
        let said = cluster.kubectl(&["exec", from, "--", "sh", "-c", &script])?;
        let found = addresses(&said).with_context(|| format!("the addresses of {name}"))?;
        if found == *expected {
            return Ok(());
        }
        ensure!(begun.elapsed() < NAMED, "the name {name} leads to {found:?}, not to {expected:?}");
    }
}

/// The addresses in a text. Pure.
fn addresses(text: &str) -> Result<BTreeSet<IpAddr>> {
    let address = |word: &str| -> Result<IpAddr> {
        word.parse().with_context(|| format!("no address: {word:?} of {text:?}"))
    };
    text.split_whitespace().map(address).collect()
}

/// The client's address that the pod behind `at` sees for a request from the network of process `pid`.
pub(super) fn seen_from(pid: i32, at: SocketAddr) -> Result<IpAddr> {
    let answer = await_accepted(pid, (at, FROM), TRY, ROUTED, |answer| answer.status == 200)?;
    seen_address(&answer.body)
}

/// A Service went on while this part of a node was away.
pub(super) fn ensure_no_gap(reports: &[ServiceReport], part: &str) -> Result<()> {
    let gap = slowest(reports).context("no requests were sent")?.longest_gap;
    ensure!(gap < GAP_MAX, "without {part} nothing answered for {} s", gap.as_secs());
    Ok(())
}

/// An address and a port for a script.
pub(super) fn words(at: SocketAddr) -> String {
    format!("{} {}", at.ip(), at.port())
}

/// Shell command that prints the last line of an answer, or nothing; `$0` is busybox. Debian's static busybox cannot
/// look up the name of a port, as its wget does.
fn ask(at: &str, limit_s: u32) -> String {
    format!(
        "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | \"$0\" nc -w {limit_s} {at} 2>/dev/null | \"$0\" tail -n 1"
    )
}

/// Script that asks until there is an answer: kube-proxy learns of a new Service within a moment.
pub(super) fn first_answer(at: &str) -> String {
    let ask = ask(at, TURN_S);
    format!(
        "i=0; until [ -n \"$({ask})\" ]; do i=$((i + 1)); \
         [ $i -lt {TURNS} ] || {{ echo no answer; exit 1; }}; \"$0\" sleep 1; done"
    )
}

/// Script of several requests; each must be answered after the first one was.
fn requests(at: &str) -> String {
    let (first, ask) = (first_answer(at), ask(at, 5));
    format!(
        "{first}; for i in $(\"$0\" seq {REQUESTS}); do a=$({ask}); \
         [ -n \"$a\" ] || {{ echo no answer to request $i; exit 1; }}; echo $a; done"
    )
}

/// Runs a script in a pod; `$0` is busybox.
pub(super) fn run_in(cluster: &Cluster, pod: &str, script: &str) -> Result<String> {
    cluster.kubectl(&["exec", pod, "--", "sh", "-c", script, "busybox"])
}

/// Names of the pods that answer the requests of a pod; `at` is an address and a port.
pub(super) fn answers(cluster: &Cluster, from: &str, at: &str) -> Result<BTreeSet<String>> {
    let said = run_in(cluster, from, &requests(at)).with_context(|| format!("{from} asks {at}"))?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

/// The same for requests from the control plane's host.
pub(super) fn answers_outside(cluster: &Cluster, at: &str) -> Result<BTreeSet<String>> {
    let busybox = images::host_busybox()?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={}", cluster.pid()?)).args(["--net", "--"]).arg(&busybox);
    command.args(["sh", "-c", &requests(at)]).arg(&busybox);
    let said = must(cluster.run(), &mut command).with_context(|| format!("the host asks {at}"))?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

/// A pod gets no answer.
pub(super) fn ensure_silent(cluster: &Cluster, from: &str, at: &str) -> Result<()> {
    let said = run_in(cluster, from, &ask(at, 3)).with_context(|| format!("{from} asks {at}"))?;
    ensure!(said.trim().is_empty(), "{from} asked {at}, and {:?} answered", said.trim());
    Ok(())
}

pub(super) fn ensure_all_answer(
    pods: &BTreeSet<String>,
    answers: &BTreeSet<String>,
    how: &str,
) -> Result<()> {
    ensure!(answers == pods, "{how}: {answers:?} answered, the pods are {pods:?}");
    Ok(())
}

/// The address in the answer of a pod at [`FROM`]. Its server listens with IPv6 for both families. Pure.
fn seen_address(body: &str) -> Result<IpAddr> {
    let text = body.trim().trim_start_matches('[').trim_end_matches(']');
    let address: IpAddr = text.parse().with_context(|| format!("an answer with an address: {body:?}"))?;
    Ok(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_a_name_are_those_of_both_families() {
        let found = addresses("10.96.0.7\nfd00:96::7\n").unwrap();
        let expected = ["10.96.0.7", "fd00:96::7"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(found, BTreeSet::from(expected));
        assert_eq!(addresses("").unwrap(), BTreeSet::new());
        assert!(addresses("10.96.0.7 nowhere").is_err());
    }

    #[test]
    fn the_address_of_a_client_is_read_in_both_families() {
        for (body, expected) in [
            ("[::ffff:172.30.0.1]\n", "172.30.0.1"),
            ("172.30.0.1\n", "172.30.0.1"),
            ("[fd30::1]\n", "fd30::1"),
        ] {
            assert_eq!(seen_address(body).unwrap(), expected.parse::<IpAddr>().unwrap());
        }
        assert!(seen_address("<html>").is_err());
    }
}
