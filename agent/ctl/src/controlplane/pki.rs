//! Authorities, keys and certificates, with the names, uses and subjects of kubeadm.
//!
//! In: a plan, or authorities of an earlier output. Out: texts in PEM. Invariants: each key is new and ECDSA P-256; a certificate of a
//! client has no other use, and none begins before its authority or ends after it.
//!
//! Upstream: cmd/kubeadm/app/phases/certs/certlist.go.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, date_time_ymd,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::failure::ControlplaneError;
use super::plan::{CLUSTER_DOMAIN, ClusterPlan, ControlPlaneNode};

/// Group of the nodes' users.
const NODES: &str = "system:nodes";
/// Group that RBAC binds to all permissions, so that a binding's end ends them.
pub(super) const ADMINS: &str = "kubeadm:cluster-admins";
/// User as whom the API server asks nodes. It has no group: its permissions are those of nodes' servers alone.
pub(super) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// Group that the API server refuses nothing.
const MASTERS: &str = "system:masters";
const SERVER: &[ExtendedKeyUsagePurpose] = &[ExtendedKeyUsagePurpose::ServerAuth];
const CLIENT: &[ExtendedKeyUsagePurpose] = &[ExtendedKeyUsagePurpose::ClientAuth];
/// etcd is a client of itself, and of its peers, with its own certificate.
const BOTH: &[ExtendedKeyUsagePurpose] =
    &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
/// Characters of a bootstrap token.
const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// Characters of a token's public and of its secret half.
const TOKEN_HALVES: (usize, usize) = (6, 16);

/// A certificate and its key, PEM.
#[derive(Clone)]
pub(super) struct KeyedCertificate {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// A certificate authority.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// PEM.
    pub(super) certificate: String,
    /// PEM.
    pub(super) key: String,
    /// Seconds since 1970.
    pub(super) begins: i64,
    /// Seconds since 1970.
    pub(super) ends: i64,
}

/// What is the same for all nodes and lives for years.
pub(super) struct Authorities {
    /// Signs the API server's certificate, and those of its clients and of the nodes.
    pub(super) cluster: Authority,
    /// Signs those of etcd and of its clients.
    pub(super) etcd: Authority,
    /// Signs that of the API server towards servers behind it.
    pub(super) front_proxy: Authority,
    /// Signs tokens of service accounts, PEM.
    pub(super) service_account: String,
    /// Its public half, PEM.
    pub(super) service_account_public: String,
}

/// Common names of the authorities.
pub(super) const COMMON_NAMES: [&str; 3] = ["kubernetes", "etcd-ca", "front-proxy-ca"];

/// Certificates of one node with the control plane.
pub(super) struct NodeCertificates {
    pub(super) apiserver: KeyedCertificate,
    pub(super) apiserver_kubelet_client: KeyedCertificate,
    pub(super) apiserver_etcd_client: KeyedCertificate,
    pub(super) front_proxy_client: KeyedCertificate,
    pub(super) etcd_server: KeyedCertificate,
    pub(super) etcd_peer: KeyedCertificate,
    pub(super) etcd_healthcheck_client: KeyedCertificate,
    pub(super) controller_manager: KeyedCertificate,
    pub(super) scheduler: KeyedCertificate,
    /// Applies the first objects: before them nobody else has a permission.
    pub(super) super_admin: KeyedCertificate,
    /// With this the node asks for its first certificate.
    pub(super) kubelet: KeyedCertificate,
}

/// Subject and use of a certificate.
struct CertificateSubject<'a> {
    common_name: &'a str,
    organization: Option<&'a str>,
    names: Vec<String>,
    uses: &'a [ExtendedKeyUsagePurpose],
}

impl<'a> CertificateSubject<'a> {
    fn client(common_name: &'a str, organization: Option<&'a str>) -> CertificateSubject<'a> {
        CertificateSubject { common_name, organization, names: Vec::new(), uses: CLIENT }
    }
}

impl Authorities {
    /// New ones.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn make(plan: &ClusterPlan) -> Result<Authorities, ControlplaneError> {
        let [cluster, etcd, front_proxy] = COMMON_NAMES;
        let service_account = new_key("the key of service accounts")?;
        Ok(Authorities {
            cluster: Authority::make(cluster, plan)?,
            etcd: Authority::make(etcd, plan)?,
            front_proxy: Authority::make(front_proxy, plan)?,
            service_account: service_account.serialize_pem(),
            service_account_public: service_account.public_key_pem(),
        })
    }

    /// The certificates of an administrator: the everyday one, and the one that needs no permission.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn administrators(
        &self,
        plan: &ClusterPlan,
    ) -> Result<[KeyedCertificate; 2], ControlplaneError> {
        let everyday = CertificateSubject::client("kubernetes-admin", Some(ADMINS));
        let super_admin = CertificateSubject::client("kubernetes-super-admin", Some(MASTERS));
        Ok([self.cluster.issue(plan, &everyday)?, self.cluster.issue(plan, &super_admin)?])
    }

    /// The certificates of a node.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn node(
        &self,
        plan: &ClusterPlan,
        node: &ControlPlaneNode,
    ) -> Result<NodeCertificates, ControlplaneError> {
        let server =
            |common_name, names, uses| CertificateSubject { common_name, organization: None, names, uses };
        let client = CertificateSubject::client;
        let of_cluster = |subject: CertificateSubject<'_>| self.cluster.issue(plan, &subject);
        let of_etcd = |subject: CertificateSubject<'_>| self.etcd.issue(plan, &subject);
        let user = format!("system:node:{}", node.name);
        Ok(NodeCertificates {
            apiserver: of_cluster(server("kube-apiserver", api_names(plan, node), SERVER))?,
            apiserver_kubelet_client: of_cluster(client(KUBELET_CLIENT, None))?,
            apiserver_etcd_client: of_etcd(client("kube-apiserver-etcd-client", None))?,
            front_proxy_client: self.front_proxy.issue(plan, &client("front-proxy-client", None))?,
            etcd_server: of_etcd(server(node.name.as_str(), etcd_names(node), BOTH))?,
            etcd_peer: of_etcd(server(node.name.as_str(), etcd_names(node), BOTH))?,
            etcd_healthcheck_client: of_etcd(client("kube-etcd-healthcheck-client", None))?,
            controller_manager: of_cluster(client("system:kube-controller-manager", None))?,
            scheduler: of_cluster(client("system:kube-scheduler", None))?,
            super_admin: of_cluster(client("kubernetes-super-admin", Some(MASTERS)))?,
            kubelet: of_cluster(client(&user, Some(NODES)))?,
        })
    }
}

impl Authority {
    fn make(common_name: &str, plan: &ClusterPlan) -> Result<Authority, ControlplaneError> {
        let params = authority_params(common_name, plan.begins, plan.authorities_end);
        let key = new_key(common_name)?;
        let certificate = params.self_signed(&key).map_err(|why| failed(common_name, &why))?.pem();
        let text = key.serialize_pem();
        let (begins, ends) = (plan.begins, plan.authorities_end);
        Ok(Authority { issuer: Issuer::new(params, key), certificate, key: text, begins, ends })
    }

    /// One that this program made before.
    ///
    /// # Errors
    /// What is wrong with the texts.
    pub(super) fn load(common_name: &str, certificate: String, key: String) -> Result<Authority, String> {
        let pair = KeyPair::from_pem(&key).map_err(|why| format!("its key: {why}"))?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|why| why.to_string())?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|why| why.to_string())?;
        if !parsed.is_ca() {
            return Err("it is no authority's certificate".to_owned());
        }
        if parsed.public_key().raw != pair.subject_public_key_info() {
            return Err("its key is another one's".to_owned());
        }
        let (begins, ends) =
            (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let params = authority_params(common_name, begins, ends);
        // Verifiers compare names byte by byte, and other programs write the same name in other bytes.
        let own = params.self_signed(&pair).map_err(|why| why.to_string())?;
        let (_, own) = X509Certificate::from_der(own.der()).map_err(|why| why.to_string())?;
        if parsed.subject().as_raw() != own.subject().as_raw() {
            return Err(format!("its subject is not the CN={common_name} of `orlopctl controlplane gen`"));
        }
        Ok(Authority { issuer: Issuer::new(params, pair), certificate, key, begins, ends })
    }

    fn issue(
        &self,
        plan: &ClusterPlan,
        subject: &CertificateSubject<'_>,
    ) -> Result<KeyedCertificate, ControlplaneError> {
        let failed = |why: rcgen::Error| failed(subject.common_name, &why);
        let names = CertificateParams::new(subject.names.clone()).map_err(failed)?.subject_alt_names;
        let mut params = dated(plan.begins.max(self.begins), plan.ends.min(self.ends));
        params.subject_alt_names = names;
        params.distinguished_name.push(DnType::CommonName, subject.common_name);
        if let Some(organization) = subject.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = subject.uses.to_vec();
        let key = new_key(subject.common_name)?;
        let signed = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(KeyedCertificate { certificate: signed.pem(), key: key.serialize_pem() })
    }
}

/// The private key's public half, PEM.
///
/// # Errors
/// The text is no key.
pub(super) fn public_half(key: &str) -> Result<String, String> {
    KeyPair::from_pem(key).map(|pair| pair.public_key_pem()).map_err(|why| why.to_string())
}

/// A bootstrap token: `abcdef.0123456789abcdef`.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn token() -> Result<String, ControlplaneError> {
    let random = SystemRandom::new();
    let (public, secret) = TOKEN_HALVES;
    let mut text = String::new();
    while text.len() < public + secret {
        let mut byte = [0_u8];
        random.fill(&mut byte).map_err(|_| ControlplaneError::NoRandomness)?;
        // Below the largest multiple of 36, so that each letter is as likely as the others.
        if byte[0] < 252 {
            text.push(char::from(LETTERS[usize::from(byte[0]) % LETTERS.len()]));
        }
    }
    text.insert(public, '.');
    Ok(text)
}

/// Names and addresses under which the API server of a node is reached.
fn api_names(plan: &ClusterPlan, node: &ControlPlaneNode) -> Vec<String> {
    let mut names = vec![
        "kubernetes".to_owned(),
        "kubernetes.default".to_owned(),
        "kubernetes.default.svc".to_owned(),
        format!("kubernetes.default.svc.{CLUSTER_DOMAIN}"),
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
        plan.api_service(),
        plan.endpoint.host.clone(),
        node.name.clone(),
    ];
    names.extend(node.address.map(|ip| ip.to_string()));
    names.extend(plan.names.iter().cloned());
    without_repetition(names)
}

fn etcd_names(node: &ControlPlaneNode) -> Vec<String> {
    let mut names = vec![node.name.clone(), "localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(node.address.map(|ip| ip.to_string()));
    without_repetition(names)
}

fn without_repetition(names: Vec<String>) -> Vec<String> {
    let mut left: Vec<String> = Vec::new();
    for name in names {
        if !left.contains(&name) {
            left.push(name);
        }
    }
    left
}

fn authority_params(common_name: &str, begins: i64, ends: i64) -> CertificateParams {
    let mut params = dated(begins, ends);
    params.distinguished_name.push(DnType::CommonName, common_name);
    // It signs no other authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    params
}

/// No subject yet.
fn dated(begins: i64, ends: i64) -> CertificateParams {
    // Before 1970 nothing begins.
    let after_1970 = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(1970, 1, 1) + after_1970(begins);
    params.not_after = date_time_ymd(1970, 1, 1) + after_1970(ends);
    params.use_authority_key_identifier_extension = true;
    params.distinguished_name = DistinguishedName::new();
    params
}

fn new_key(what: &str) -> Result<KeyPair, ControlplaneError> {
    KeyPair::generate().map_err(|why| failed(what, &why))
}

fn failed(what: &str, why: &rcgen::Error) -> ControlplaneError {
    ControlplaneError::Certificate { what: what.to_owned(), why: why.to_string() }
}
