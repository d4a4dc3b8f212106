//! The cluster's keys and certificates, made with rcgen for one run.
//!
//! In: a directory and the API server's addresses. Out: PEM files named as kubeadm names them. Invariant: private
//! keys have mode 0600 and never leave the directory; nothing is taken from an earlier run.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, date_time_ymd,
};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::kubeconfig::Credentials;

/// A certificate authority with its files.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Its certificate's text.
    pub pem: String,
    /// SHA-256 of its SubjectPublicKeyInfo, in the format of `kubeadm join --discovery-token-ca-cert-hash`.
    pub public_key_hash: String,
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Certificate file.
    pub certificate: PathBuf,
    /// Private key file.
    pub key: PathBuf,
}

impl Pair {
    /// The credentials of a client with these files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn credentials(&self) -> Result<Credentials> {
        let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
        Ok(Credentials::Certificate { certificate: read(&self.certificate)?, key: read(&self.key)? })
    }

    /// TLS as the server with this certificate.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>> {
        let chain = CertificateDer::pem_file_iter(&self.certificate)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&self.key)?;
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Arc::new(config))
    }
}

/// Everything the control plane's programs need.
pub struct Pki {
    /// Signs the API server's, its clients' and (through the controller manager) the nodes' certificates.
    pub ca: Authority,
    /// Signs the aggregation layer's client.
    pub front_proxy_ca: Authority,
    /// The API server's serving certificate.
    pub apiserver: Pair,
    /// Another cluster's authority.
    pub other_ca: Authority,
    /// The API server's certificate under [`OTHER_NAME`]: one of another cluster.
    pub other_apiserver: Pair,
    /// The API server as client of kubelets.
    pub apiserver_kubelet_client: Pair,
    /// The API server as front proxy.
    pub front_proxy_client: Pair,
    /// Signs service account tokens.
    pub service_account_key: PathBuf,
    /// Checks them.
    pub service_account_public_key: PathBuf,
    dir: PathBuf,
}

/// For this server name the API server presents another cluster's certificate.
pub const OTHER_NAME: &str = "api.other.example";

/// Subject and use of a certificate.
#[derive(Clone)]
struct Subject<'a> {
    common_name: &'a str,
    organization: Option<&'a str>,
    names: &'a [&'a str],
    purpose: ExtendedKeyUsagePurpose,
    /// The certificate expired years ago.
    ended: bool,
}

impl Pki {
    /// Makes everything in `dir`; `names` are the API server's host names and addresses.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn make(dir: &Path, names: &[&str]) -> Result<Pki> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let ca = Authority::make(dir, "ca", "kubernetes")?;
        let front_proxy_ca = Authority::make(dir, "front-proxy-ca", "front-proxy-ca")?;
        let client = |common_name, organization| Subject {
            common_name,
            organization,
            names: &[],
            purpose: ExtendedKeyUsagePurpose::ClientAuth,
            ended: false,
        };
        let server = Subject {
            common_name: "kube-apiserver",
            organization: None,
            names,
            purpose: ExtendedKeyUsagePurpose::ServerAuth,
            ended: false,
        };
        let other_ca = Authority::make(dir, "other-ca", "kubernetes")?;
        let other_server = Subject { names: &[OTHER_NAME], ..server.clone() };
        let kubelet_client = client("kube-apiserver-kubelet-client", Some("kubeadm:cluster-admins"));
        let service_account_key = dir.join("sa.key");
        let service_account_public_key = dir.join("sa.pub");
        let pair = KeyPair::generate().context("make a key")?;
        write_private(&service_account_key, &pair.serialize_pem())?;
        fs::write(&service_account_public_key, pair.public_key_pem()).context("write sa.pub")?;
        Ok(Pki {
            apiserver: ca.issue(dir, "apiserver", &server)?,
            other_apiserver: other_ca.issue(dir, "other-apiserver", &other_server)?,
            apiserver_kubelet_client: ca.issue(dir, "apiserver-kubelet-client", &kubelet_client)?,
            front_proxy_client: front_proxy_ca.issue(
                dir,
                "front-proxy-client",
                &client("front-proxy-client", None),
            )?,
            ca,
            other_ca,
            front_proxy_ca,
            service_account_key,
            service_account_public_key,
            dir: dir.to_owned(),
        })
    }

    /// A user with all permissions, also for the nodes' APIs.
    ///
    /// # Errors
    /// If files cannot be written or read.
    pub fn node_admin(&self) -> Result<Credentials> {
        self.client("node-admin", "node-admin", Some("system:masters"))?.credentials()
    }

    /// A client's certificate: user name and, if any, its group.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<Pair> {
        let purpose = ExtendedKeyUsagePurpose::ClientAuth;
        let subject = Subject { common_name: user, organization: group, names: &[], purpose, ended: false };
        self.ca.issue(&self.dir, file, &subject)
    }

    /// Certificates that the API server must not take for a node's: one that ended, one of another cluster's.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn unknown_clients(&self, node: &str) -> Result<[Pair; 2]> {
        let (user, purpose) = (format!("system:node:{node}"), ExtendedKeyUsagePurpose::ClientAuth);
        let organization = Some("system:nodes");
        let subject = Subject { common_name: &user, organization, names: &[], purpose, ended: true };
        let ended = self.ca.issue(&self.dir, &format!("{node}-ended"), &subject)?;
        let subject = Subject { ended: false, ..subject };
        Ok([ended, self.other_ca.issue(&self.dir, &format!("{node}-other"), &subject)?])
    }
}

impl Authority {
    /// A self-signed authority in `dir`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn make(dir: &Path, file: &str, common_name: &str) -> Result<Authority> {
        let mut params = dated();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
        let key_pair = KeyPair::generate().context("make a key")?;
        let pem = params.self_signed(&key_pair).context("sign an authority's certificate")?.pem();
        let (certificate, key) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
        fs::write(&certificate, &pem).with_context(|| format!("write {}", certificate.display()))?;
        write_private(&key, &key_pair.serialize_pem())?;
        let hash = Sha256::digest(key_pair.subject_public_key_info());
        let public_key_hash = format!("sha256:{}", hex::encode(hash));
        Ok(Authority { issuer: Issuer::new(params, key_pair), certificate, key, pem, public_key_hash })
    }

    /// A server's certificate for these names.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn server(&self, dir: &Path, file: &str, names: &[&str]) -> Result<Pair> {
        let purpose = ExtendedKeyUsagePurpose::ServerAuth;
        self.issue(
            dir,
            file,
            &Subject { common_name: file, organization: None, names, purpose, ended: false },
        )
    }

    fn issue(&self, dir: &Path, file: &str, subject: &Subject<'_>) -> Result<Pair> {
        let names: Vec<String> = subject.names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = dated();
        params.subject_alt_names = sans(names)?;
        params.distinguished_name.push(DnType::CommonName, subject.common_name);
        if let Some(organization) = subject.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        if subject.ended {
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![subject.purpose.clone()];
        let key = KeyPair::generate().context("make a key")?;
        let signed = params.signed_by(&key, &self.issuer).with_context(|| format!("sign {file}"))?;
        let pair =
            Pair { certificate: dir.join(format!("{file}.crt")), key: dir.join(format!("{file}.key")) };
        fs::write(&pair.certificate, signed.pem())
            .with_context(|| format!("write {}", pair.certificate.display()))?;
        write_private(&pair.key, &key.serialize_pem())?;
        Ok(pair)
    }
}

fn sans(names: Vec<String>) -> Result<Vec<rcgen::SanType>> {
    Ok(CertificateParams::new(names).context("names of a certificate")?.subject_alt_names)
}

/// Valid long before and after any clock a test sets; nodes' certificates get their life from the signer.
fn dated() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2060, 1, 1);
    params.use_authority_key_identifier_extension = true;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

/// Writes a file that only its owner can read.
///
/// # Errors
/// If it cannot be written.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("make {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("write {}", path.display()))
}

/// A certificate request as a node makes it: its PEM, and the key.
///
/// # Errors
/// If rcgen refuses the names.
pub fn node_request(node: &str, names: &[&str]) -> Result<(String, KeyPair)> {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    // A request has no validity and no CA flag.
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.subject_alt_names = sans(names)?;
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let key = KeyPair::generate().context("make a key")?;
    let request = params.serialize_request(&key).context("make a certificate request")?;
    Ok((request.pem().context("write a certificate request")?, key))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_private_and_every_run_has_its_own() {
        let dir = std::env::temp_dir().join(format!("orlop-pki-{}", std::process::id()));
        let pki = Pki::make(&dir, &["172.30.0.1", "localhost"]).unwrap();
        for file in [&pki.ca.key, &pki.apiserver.key, &pki.service_account_key] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
        }
        let first = pki.ca.public_key_hash.clone();
        assert!(first.starts_with("sha256:") && first.len() == 71, "{first}");
        assert_ne!(Pki::make(&dir, &["localhost"]).unwrap().ca.public_key_hash, first);
        let pair = pki.client("admin", "kubernetes-admin", Some("system:masters")).unwrap();
        assert!(fs::read_to_string(pair.certificate).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_request_is_a_request() {
        let (pem, _) = node_request("n", &["172.30.0.10", "n"]).unwrap();
        assert!(pem.starts_with("-----BEGIN CERTIFICATE REQUEST-----"), "{pem}");
        assert!(node_request("n", &["\u{e9}"]).is_err());
    }
}
