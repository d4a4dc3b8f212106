//! Trust anchors of the cluster and certificates for pods: the API server has their gates on, and the case is the
//! signer.
//!
//! Cases: `volumes/trust-bundle`, `volumes/pod-certificate`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    Joined, STAYS, api_pod, await_event, await_pod_gone, await_pod_ready, await_ready, await_serving, uid,
};
use orlop_harness::cluster::flags::{CERTIFICATE_GATES, Settings};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet_with};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::native::node::NativeNode;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair,
    PublicKeyData,
};
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: Some("certificates-cluster") };
const NODE: &str = "first";
const SIGNER: &str = "example.com/pods";

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/trust-bundle",
        30,
        "ClusterTrustBundles by name and by signer, waited for, changed, watched once and only while a pod has some",
        trust_bundle,
    ),
    HERE.case(
        "volumes/pod-certificate",
        40,
        "certificates for pods: asked for, waited for, signed, refused, and asked for anew after a kill of the agent",
        pod_certificate,
    ),
];

fn start(node: &mut NativeNode) -> Result<()> {
    start_kubelet_with(
        node,
        JoinMethod::BootstrapKubeconfig,
        &[format!("--feature-gates={CERTIFICATE_GATES}")],
    )
}

/// One node in a cluster with the settings of these cases.
fn shared<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Joined> {
    cx.shared_or(|run, artefacts| {
        let agent = built::agent(run, false)?;
        let settings = Settings { pod_certificates: true, ..Settings::default() };
        let mut cluster = Cluster::start(run, artefacts, settings)?;
        let mut node = cluster.start_node(artefacts, NODE, agent)?;
        start(&mut node)?;
        await_ready(&cluster, NODE, 120)?;
        Ok(Joined { nodes: vec![node], cluster })
    })
}

/// A certificate authority, and the text of its certificate.
fn authority(name: &str) -> Result<(Issuer<'static, KeyPair>, String)> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().context("make a key")?;
    let pem = params.self_signed(&key).context("make a CA")?.pem();
    Ok((Issuer::new(params, key), pem))
}

fn bundle(joined: &Joined, name: &str, signer: Option<&str>, anchors: &[&str]) -> Result<()> {
    let client = joined.cluster.client();
    let text = anchors.concat();
    let spec = json!({"signerName": signer, "trustBundle": text});
    if client.get::<ClusterTrustBundle>(&client.all(), name)?.is_some() {
        client.merge::<ClusterTrustBundle>(&client.all(), name, &json!({"spec": {"trustBundle": text}}))?;
    } else {
        let object =
            json!({"metadata": {"name": name, "labels": {"name": name.replace(':', ".")}}, "spec": spec});
        client.create::<ClusterTrustBundle>(&client.all(), object)?;
    }
    Ok(())
}

/// A pod with one projected volume `v`.
fn projecting(name: &str, sources: &Value) -> Value {
    let mut pod = api_pod(name, NODE, STAYS, 1);
    pod["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": sources}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    pod
}

/// A file of the pod's volume, as the node has it.
fn path(joined: &Joined, pod: &Pod, file: &str) -> Result<PathBuf> {
    let node = joined.nodes.first().context("no node")?;
    let uid = uid(pod)?;
    let volume = format!("var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected/v/{file}");
    Ok(PathBuf::from(format!("/proc/{}/root", node.pid())).join(volume))
}

fn file(joined: &Joined, pod: &Pod, name: &str) -> Result<String> {
    let path = path(joined, pod, name)?;
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The blocks of a file, sorted: their order has no meaning.
fn blocks(text: &str) -> Vec<String> {
    let end = "-----END CERTIFICATE-----";
    let mut all: Vec<String> =
        text.split_inclusive(end).map(|b| b.replace(['\n', '\r'], "")).filter(|b| !b.is_empty()).collect();
    all.sort();
    all
}

fn await_mount_error(joined: &Joined, pod: &str, words: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.wait::<Event, _>(&client.of("default"), 60, &format!("{pod} to say {words:?}"), |all| {
        let said = |e: &&Event| {
            e.reason.as_deref() == Some("FailedMount")
                && e.involved_object.name.as_deref() == Some(pod)
                && e.message.as_deref().is_some_and(|m| m.contains(words))
        };
        all.values().find(said).map(|_| ())
    })
}

/// Waits until the file fulfils `is`; `pass` lets the node's clock go on.
fn await_file(joined: &mut Joined, pod: &Pod, name: &str, is: impl Fn(&str) -> bool) -> Result<String> {
    for _ in 0..100 {
        let text = file(joined, pod, name)?;
        if is(&text) {
            return Ok(text);
        }
        joined.nodes.first_mut().context("no node")?.pass(Duration::from_millis(100))?;
    }
    anyhow::bail!("after 10 s {name} still is {:?}", file(joined, pod, name)?)
}

fn remove(joined: &Joined, name: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), name, None)?;
    await_pod_gone(&joined.cluster, name, 60)
}

fn trust_bundle(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = shared(cx)?;
    let cas = (0..5).map(|n| Ok(authority(&format!("ca {n}"))?.1)).collect::<Result<Vec<String>>>()?;
    let cas: Vec<&str> = cas.iter().map(String::as_str).collect();
    bundle(joined, "plain", None, &[cas[0], cas[1]])?;
    bundle(joined, "example.com:pods:a", Some(SIGNER), &[cas[2]])?;
    bundle(joined, "example.com:pods:b", Some(SIGNER), &[cas[2], cas[3]])?;
    let selector = json!({"matchExpressions": [{"key": "name", "operator": "Exists"}]});
    let sources = json!([
        {"clusterTrustBundle": {"name": "plain", "path": "plain.pem"}},
        {"clusterTrustBundle": {"signerName": SIGNER, "labelSelector": selector, "path": "signed.pem"}},
        {"clusterTrustBundle": {"name": "nowhere", "optional": true, "path": "none.pem"}},
        {"clusterTrustBundle": {"name": "later", "path": "later.pem"}}]);
    let client = joined.cluster.client();
    client.create::<Pod>(&client.of("default"), projecting("trusting", &sources))?;
    let missing =
        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"later\" not found";
    await_mount_error(joined, "trusting", missing)?;
    bundle(joined, "later", None, &[cas[4]])?;
    // At once, not when the next try is due.
    let pod = await_pod_ready(&joined.cluster, "trusting", 15)?;
    for (name, expected) in [
        ("plain.pem", &[cas[0], cas[1]][..]),
        ("signed.pem", &[cas[2], cas[3]]),
        ("none.pem", &[]),
        ("later.pem", &[cas[4]]),
    ] {
        let text = file(joined, &pod, name)?;
        ensure!(blocks(&text) == blocks(&expected.concat()), "{name} is {text}");
    }
    // Changes reach the running pod, once more after an outage of the agent.
    bundle(joined, "plain", None, &[cas[3]])?;
    await_file(joined, &pod, "plain.pem", |text| blocks(text) == blocks(cas[3]))?;
    bundle(joined, "nowhere", None, &[cas[1]])?;
    await_file(joined, &pod, "none.pem", |text| blocks(text) == blocks(cas[1]))?;
    joined.nodes.first_mut().context("no node")?.kill_agent()?;
    bundle(joined, "example.com:pods:b", Some(SIGNER), &[cas[4]])?;
    start(joined.nodes.first_mut().context("no node")?)?;
    await_file(joined, &pod, "signed.pem", |text| blocks(text) == blocks(&[cas[2], cas[4]].concat()))?;
    remove(joined, "trusting")?;
    let seen: Vec<String> = joined
        .cluster
        .audit()?
        .into_iter()
        .filter(|r| r.resource == "clustertrustbundles" && r.user == format!("system:node:{NODE}"))
        .map(|r| r.uri)
        .collect();
    // One list and one watch for each of the two agents, independent of the pod's four sources, and room for a watch
    // that ended.
    ensure!(seen.len() <= 6, "asked for bundles {} times: {seen:#?}", seen.len());
    joined.cluster.ensure_nothing_forbidden()
}

/// The requests of a pod, by name, without those in `but`.
fn requests(
    joined: &Joined,
    pod: &Pod,
    count: usize,
    but: &BTreeMap<String, PodCertificateRequest>,
) -> Result<BTreeMap<String, PodCertificateRequest>> {
    let client = joined.cluster.client();
    let uid = uid(pod)?;
    client.wait::<PodCertificateRequest, _>(&client.of("default"), 60, &format!("{count} requests"), |all| {
        let of =
            |(name, r): &(&String, &PodCertificateRequest)| r.spec.pod_uid == uid && !but.contains_key(*name);
        let found: BTreeMap<_, _> = all.iter().filter(of).map(|(n, r)| (n.clone(), r.clone())).collect();
        (found.len() == count).then_some(found)
    })
}

fn answer(joined: &Joined, name: &str, status: Value) -> Result<()> {
    let client = joined.cluster.client();
    let api = client.of::<PodCertificateRequest>("default");
    let patch = Patch::Merge(json!({"status": status}));
    let params = PatchParams::default();
    let call = api.patch_status(name, &params, &patch);
    client.block_on(call).with_context(|| format!("answer request {name}"))?;
    Ok(())
}

fn condition(kind: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()})
}

/// Signs a request for two hours; the answer is the certificate.
fn sign(
    joined: &Joined,
    ca: &Issuer<'_, KeyPair>,
    name: &str,
    request: &PodCertificateRequest,
) -> Result<String> {
    let der = request.spec.stub_pkc_s10_request.0.clone().into();
    let mut csr = CertificateSigningRequestParams::from_der(&der).context("a request of the node")?;
    let whole = Timestamp::from_second(Timestamp::now().as_second()).context("now")?;
    let later = |minutes: i64| Timestamp::from_second(whole.as_second() + minutes * 60);
    let (begins, refresh, ends) = (later(-1)?, later(60)?, later(119)?);
    csr.params.not_before = system_time(begins)?.into();
    csr.params.not_after = system_time(ends)?.into();
    csr.params.distinguished_name.push(DnType::CommonName, request.spec.pod_name.as_str());
    let pem = csr.signed_by(ca).context("sign")?.pem();
    let text = |at: Timestamp| at.to_string();
    answer(
        joined,
        name,
        json!({"conditions": [condition("Issued", "Asked", "as asked")], "certificateChain": pem.clone(),
            "notBefore": text(begins), "notAfter": text(ends), "beginRefreshAt": text(refresh)}),
    )?;
    Ok(pem)
}

fn system_time(at: Timestamp) -> Result<std::time::SystemTime> {
    let seconds = u64::try_from(at.as_second()).context("a time before 1970")?;
    Ok(std::time::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Checks the number of sources with this state in the metrics.
fn ensure_states(joined: &Joined, state: &str, count: u32) -> Result<()> {
    let metrics = joined.cluster.client().raw(&format!("/api/v1/nodes/{NODE}/proxy/metrics"))?;
    let family = "kubelet_podcertificate_states{";
    let told: Vec<&str> = metrics.lines().filter(|line| line.starts_with(family)).collect();
    let wanted = format!("{family}signer_name=\"{SIGNER}\",state=\"{state}\"}} {count}");
    ensure!(told.contains(&wanted.as_str()), "not {wanted}: {told:?}");
    Ok(())
}

fn pod_certificate(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = shared(cx)?;
    await_serving(&joined.cluster, NODE, 60)?;
    let (ca, _) = authority("pods")?;
    let source = |key_type: &str, more: Value| {
        let mut source = json!({"signerName": SIGNER, "keyType": key_type, "maxExpirationSeconds": 7200});
        source.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({"podCertificate": source})
    };
    let sources = json!([
        source(
            "ED25519",
            json!({"credentialBundlePath": "both.pem", "userAnnotations": {"example.com/for": "web"}})
        ),
        source("RSA3072", json!({"keyPath": "rsa/key.pem", "certificateChainPath": "rsa/chain.pem"})),
        source("ECDSAP384", json!({"keyPath": "ec/key.pem", "certificateChainPath": "ec/chain.pem"}))
    ]);
    let client = joined.cluster.client();
    let pod = client.create::<Pod>(&client.of("default"), projecting("certified", &sources))?;
    let first = requests(joined, &pod, 3, &BTreeMap::new())?;
    await_mount_error(joined, "certified", "credential bundle is not issued yet")?;
    ensure_states(joined, "not_yet_issued", 3)?;
    // Other pods do not wait.
    joined.run_pod(api_pod("beside", NODE, STAYS, 1))?;
    let annotated = first.values().filter(|r| r.spec.unverified_user_annotations.is_some()).count();
    ensure!(annotated == 1, "{annotated} of them have the annotation");
    for request in first.values() {
        let spec = &request.spec;
        let said = (spec.node_name.as_str(), spec.service_account_name.as_str(), spec.max_expiration_seconds);
        ensure!(said == (NODE, "default", Some(7200)), "the request says {said:?}");
    }
    let mut signed = Vec::new();
    for (name, request) in &first {
        signed.push(sign(joined, &ca, name, request)?);
    }
    let pod = await_pod_ready(&joined.cluster, "certified", 15)?;
    ensure_states(joined, "fresh", 3)?;
    let both = file(joined, &pod, "both.pem")?;
    let whole = |file: &str, pem: &str| blocks(file) == blocks(pem);
    let rsa = (file(joined, &pod, "rsa/key.pem")?, file(joined, &pod, "rsa/chain.pem")?);
    let ec = (file(joined, &pod, "ec/key.pem")?, file(joined, &pod, "ec/chain.pem")?);
    let at = both.find("-----BEGIN CERTIFICATE").context("no certificate in the bundle")?;
    let ed = (both[..at].to_owned(), both[at..].to_owned());
    for (key, chain) in [&ed, &rsa, &ec] {
        let which = signed.iter().position(|pem| whole(chain, pem)).context("nobody signed that")?;
        let request = first.values().nth(which).context("its request")?;
        let der = request.spec.stub_pkc_s10_request.0.clone().into();
        let asked = CertificateSigningRequestParams::from_der(&der)?.public_key.der_bytes().to_vec();
        let key = KeyPair::from_pem(key).context("a key")?;
        ensure!(key.der_bytes() == asked, "the key is not the certificate's");
    }
    // Keys are in memory only: a new agent requests new certificates, and the pod keeps the old ones until then.
    joined.nodes.first_mut().context("no node")?.kill_agent()?;
    start(joined.nodes.first_mut().context("no node")?)?;
    let second = requests(joined, &pod, 3, &first)?;
    ensure!(file(joined, &pod, "both.pem")? == both, "the pod lost its certificate");
    for (name, request) in &second {
        sign(joined, &ca, name, request)?;
    }
    await_file(joined, &pod, "both.pem", |text| *text != both)?;
    let now = await_pod_ready(&joined.cluster, "certified", 15)?;
    let restarts = |pod: &Pod| {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
        statuses.iter().map(|s| (s.container_id.clone(), s.restart_count)).collect::<Vec<_>>()
    };
    ensure!(restarts(&pod) == restarts(&now), "{:?} became {:?}", restarts(&pod), restarts(&now));
    refused(joined)?;
    for name in ["certified", "beside"] {
        remove(joined, name)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}

/// A denied or failed request is final, and the pod's event has the reason.
fn refused(joined: &Joined) -> Result<()> {
    let client = joined.cluster.client();
    for (kind, words) in [("Denied", "permanently denied"), ("Failed", "permanently failed")] {
        let name = kind.to_lowercase();
        let source = json!([{"podCertificate":
            {"signerName": SIGNER, "keyType": "ECDSAP521", "keyPath": "key.pem"}}]);
        let pod = client.create::<Pod>(&client.of("default"), projecting(&name, &source))?;
        let asked = requests(joined, &pod, 1, &BTreeMap::new())?;
        let request = asked.keys().next().context("no request")?;
        answer(joined, request, json!({"conditions": [condition(kind, "Policy", "not here")]}))?;
        let event = await_event(&joined.cluster, kind, &name, 30)?;
        let said = event.message.unwrap_or_default();
        ensure!(said.contains("reason=\"Policy\", message=\"not here\""), "{said}");
        await_mount_error(joined, &name, &format!("PodCertificateRequest was {words}: reason=\"Policy\""))?;
        ensure_states(joined, &name, 1)?;
        remove(joined, &name)?;
    }
    Ok(())
}
