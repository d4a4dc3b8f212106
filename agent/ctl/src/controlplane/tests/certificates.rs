//! Certificates: each verifies under its authority for its use and names, and for nothing else.

use std::sync::Arc;
use std::time::Duration;

use orlop_config::base64;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::*;

/// Use of a certificate, and whom it names.
struct Expected {
    /// Below the directory of keys and certificates.
    file: &'static str,
    authority: &'static str,
    /// It is a server's, with these names.
    names: Vec<String>,
    is_client: bool,
    common_name: String,
    organization: &'static str,
}

pub(super) fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn roots(authority: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(der(authority)).unwrap();
    Arc::new(roots)
}

fn at(seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap()))
}

pub(super) fn is_server(authority: &str, certificate: &str, name: &str, seconds: i64) -> bool {
    let provider = Arc::new(default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(&der(certificate), &[], &name, &[], at(seconds)).is_ok()
}

pub(super) fn is_client(authority: &str, certificate: &str, seconds: i64) -> bool {
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
    verifier.verify_client_cert(&der(certificate), &[], at(seconds)).is_ok()
}

/// Common name and organisation.
fn subject(certificate: &str) -> (String, String) {
    let der = der(certificate);
    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    let subject = parsed.subject();
    let first = |text: Option<&str>| text.unwrap_or_default().to_owned();
    (
        first(subject.iter_common_name().next().map(|name| name.as_str().unwrap())),
        first(subject.iter_organization().next().map(|name| name.as_str().unwrap())),
    )
}

fn has_key(certificate: &str, key: &str) -> bool {
    use rcgen::PublicKeyData as _;
    let der = der(certificate);
    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    parsed.public_key().raw == rcgen::KeyPair::from_pem(key).unwrap().subject_public_key_info()
}

fn expected(node: &str, api_names: &[&str], etcd_names: &[&str]) -> Vec<Expected> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let client = |file, authority, common_name: &str, organization| Expected {
        file,
        authority,
        names: Vec::new(),
        is_client: true,
        common_name: common_name.to_owned(),
        organization,
    };
    let server = |file, authority, names: &[&str], is_client, common_name: &str| Expected {
        file,
        authority,
        names: owned(names),
        is_client,
        common_name: common_name.to_owned(),
        organization: "",
    };
    vec![
        server("apiserver", "ca", api_names, false, "kube-apiserver"),
        client("apiserver-kubelet-client", "ca", "kube-apiserver-kubelet-client", ""),
        client("apiserver-etcd-client", "etcd/ca", "kube-apiserver-etcd-client", ""),
        client("front-proxy-client", "front-proxy-ca", "front-proxy-client", ""),
        server("etcd/server", "etcd/ca", etcd_names, true, node),
        server("etcd/peer", "etcd/ca", etcd_names, true, node),
        client("etcd/healthcheck-client", "etcd/ca", "kube-etcd-healthcheck-client", ""),
    ]
}

#[test]
fn each_is_of_its_authority_for_its_names_and_its_use_alone() {
    let api = ["kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"];
    let api = [&api[..], &["127.0.0.1", "::1", "10.96.0.1"]].concat();
    let single = [&api[..], &["192.0.2.10", "edge.example", "control-plane-1"]].concat();
    let ha = [&api[..], &["api.example", "cp-3", "192.0.2.13"]].concat();
    let loopback = ["localhost", "127.0.0.1", "::1"];
    for (words, node, api_names, etcd_names) in [
        (SINGLE, "control-plane-1", single, [&loopback[..], &["control-plane-1"]].concat()),
        (HA, "cp-3", ha, [&loopback[..], &["cp-3", "192.0.2.13"]].concat()),
    ] {
        let generated = generated(words);
        let files = placed(generated.text(&format!("{node}.yaml")));
        let text = |name: &str| &files[&format!("/etc/kubernetes/pki/{name}")].1;
        for one in expected(node, &api_names, &etcd_names) {
            let certificate = text(&format!("{}.crt", one.file));
            let authority = text(&format!("{}.crt", one.authority));
            assert!(has_key(certificate, text(&format!("{}.key", one.file))), "{}", one.file);
            assert_eq!(subject(certificate), (one.common_name, one.organization.to_owned()), "{}", one.file);
            for name in &one.names {
                assert!(is_server(authority, certificate, name, NOW), "{} for {name}", one.file);
            }
            assert!(!is_server(authority, certificate, "other.example", NOW), "{}", one.file);
            assert_eq!(is_client(authority, certificate, NOW), one.is_client, "{}", one.file);
            // A name of the common name alone is none.
            assert!(!one.names.is_empty() || !is_server(authority, certificate, "localhost", NOW));
            for other in ["ca", "etcd/ca", "front-proxy-ca"].iter().filter(|other| **other != one.authority) {
                let other = text(&format!("{other}.crt"));
                assert!(!is_client(other, certificate, NOW), "{}", one.file);
            }
        }
        assert_eq!(text("sa.pub"), &generated.authorities.service_account_public);
        assert!(files["/etc/kubernetes/pki/sa.key"].1.starts_with("-----BEGIN PRIVATE KEY-----\n"));
    }
}

#[test]
fn certificates_are_good_for_their_days_and_no_longer_than_their_authority() {
    let certificate = |generated: &Generated| {
        placed(generated.text("control-plane-1.yaml"))["/etc/kubernetes/pki/apiserver.crt"].1.clone()
    };
    let day = 24 * 3600;
    for (days, last) in [("1", 1), ("365", 365), ("3650", 3650)] {
        let generated = generated(&["--single", "--endpoint", "192.0.2.10:6443", "--days", days]);
        let (certificate, authority) = (certificate(&generated), &generated.authorities.cluster.certificate);
        let good = |seconds| is_server(authority, &certificate, "localhost", seconds);
        let ends = NOW + last * day;
        assert!(good(NOW - day) && good(NOW) && good(ends), "{days}");
        assert!(!good(NOW - day - 1) && !good(ends + 1), "{days}");
    }
    // Some of the authority's days are over.
    let early = generated(SINGLE);
    let plan =
        args(&["--single", "--endpoint", "192.0.2.10:6443", "--days", "3650"]).plan(NOW + 10 * day).unwrap();
    let files = files(&plan, &early.authorities, &token().unwrap()).unwrap();
    let late = Generated { plan, authorities: early.authorities, files };
    let (certificate, authority) = (certificate(&late), &late.authorities.cluster.certificate);
    let ends = NOW + 3650 * day;
    assert!(is_server(authority, &certificate, "localhost", ends));
    assert!(!is_server(authority, &certificate, "localhost", ends + 1));
}

#[test]
fn kubeconfigs_have_their_users() {
    let generated = generated(HA);
    let files = placed(generated.text("cp-1.yaml"));
    let own = "https://127.0.0.1:6443";
    let of_node = |name: &str| files[&format!("/etc/kubernetes/{name}.conf")].1.as_str();
    for (text, server, user, group) in [
        (of_node("controller-manager"), own, "system:kube-controller-manager", ""),
        (of_node("scheduler"), own, "system:kube-scheduler", ""),
        (of_node("super-admin"), own, "kubernetes-super-admin", "system:masters"),
        (of_node("bootstrap-kubelet"), own, "system:node:cp-1", "system:nodes"),
        (
            generated.text("admin.conf"),
            "https://api.example:443",
            "kubernetes-admin",
            "kubeadm:cluster-admins",
        ),
        (
            generated.text("super-admin.conf"),
            "https://api.example:443",
            "kubernetes-super-admin",
            "system:masters",
        ),
    ] {
        let config = yaml::parse(text).unwrap().value;
        let data =
            |value: &Value| String::from_utf8(base64::decode(value.as_str().unwrap()).unwrap()).unwrap();
        let (cluster, found) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        assert_eq!(cluster["server"], json!(server), "{user}");
        let authority = data(&cluster["certificate-authority-data"]);
        assert_eq!(authority, generated.authorities.cluster.certificate);
        let certificate = data(&found["client-certificate-data"]);
        assert!(is_client(&authority, &certificate, NOW), "{user}");
        assert!(has_key(&certificate, &data(&found["client-key-data"])), "{user}");
        assert_eq!(subject(&certificate), (user.to_owned(), group.to_owned()));
        let context = &config["contexts"][0];
        assert_eq!(
            (&context["name"], &context["context"]["user"]),
            (&config["current-context"], &config["users"][0]["name"])
        );
    }
}

#[test]
fn tokens_have_kubernetes_form_and_differ() {
    let tokens = [token().unwrap(), token().unwrap()];
    assert_ne!(tokens[0], tokens[1]);
    for token in tokens {
        let (id, secret) = token.split_once('.').unwrap();
        assert_eq!((id.len(), secret.len()), (6, 16));
        assert!(token.bytes().all(|b| b == b'.' || b.is_ascii_digit() || b.is_ascii_lowercase()), "{token}");
    }
}
