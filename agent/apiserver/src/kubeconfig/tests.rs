//! Tests of kubeconfigs.

use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;

struct Pem {
    certificate: String,
    key: String,
}

fn pem() -> Pem {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap().self_signed(&key).unwrap();
    Pem { certificate: certificate.pem(), key: key.serialize_pem() }
}

fn config(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\npreferences: {{}}\nclusters: [{{name: c, cluster: {cluster}}}]\n\
         users: [{{name: u, user: {user}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         current-context: x\n"
    )
}

async fn access(text: &str) -> Result<Access, String> {
    access_in(Path::new("/nowhere/kubeconfig"), text).await
}

async fn access_in(path: &Path, text: &str) -> Result<Access, String> {
    let read = Kubeconfig::parse(path, text).map_err(|e| e.to_string())?;
    read.access().await.map_err(|e| e.to_string())
}

#[tokio::test]
async fn inline_data_and_files_and_their_precedence() {
    let (pem, dir) = (pem(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("ca.pem"), &pem.certificate).unwrap();
    std::fs::write(dir.path().join("both.pem"), format!("{}{}", pem.certificate, pem.key)).unwrap();
    let path = dir.path().join("kubeconfig");
    let by_file = config(
        "{server: 'https://api:6443', certificate-authority: ca.pem, tls-server-name: kubernetes}",
        "{client-certificate: both.pem, client-key: both.pem, token: unused}",
    );
    let by_file = access_in(&path, &by_file).await.unwrap();
    let (cert, key) = (STANDARD.encode(&pem.certificate), STANDARD.encode(&pem.key));
    let inline = config(
        &format!(
            "{{server: 'https://api:6443', certificate-authority: absent, certificate-authority-data: {cert}, \
             tls-server-name: kubernetes}}"
        ),
        &format!("{{client-certificate-data: {cert}, client-key-data: {key}, client-key: absent}}"),
    );
    assert_eq!(access_in(&path, &inline).await.unwrap(), by_file);
    assert_eq!(by_file.server.certificate_name(), "kubernetes");
    assert!(matches!(by_file.credentials, Credentials::Certificate { .. }));
    assert!(matches!(by_file.trust, Trust::Certificates(_)));
}

#[tokio::test]
async fn tokens_and_trust() {
    let table = [
        ("{server: 'https://a'}", "{token: abc}", "Token(<secret>) System"),
        ("{server: 'https://a'}", "{token: abc, tokenFile: t}", "TokenFile(\"/nowhere/t\") System"),
        ("{server: 'https://a', insecure-skip-tls-verify: true}", "{}", "None Anyone"),
        ("{server: 'https://a', certificate-authority-data: null, proxy-url: ''}", "null", "None System"),
    ];
    for (cluster, user, expected) in table {
        let found = access(&config(cluster, user)).await.unwrap();
        assert_eq!(format!("{:?} {:?}", found.credentials, found.trust), expected);
    }
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let pem = pem();
    let ca = STANDARD.encode(&pem.certificate);
    let both =
        format!("{{server: 'https://a', insecure-skip-tls-verify: true, certificate-authority-data: {ca}}}");
    let (no_key, no_certificate, no_pem) = (
        format!("{{client-certificate-data: {ca}}}"),
        format!("{{client-key-data: {ca}}}"),
        format!("{{client-certificate-data: {ca}, client-key-data: {ca}}}"),
    );
    let cluster = "{server: 'https://a'}";
    let table = [
        ("{server: 'http://a'}", "{}", "must begin with https://"),
        ("{}", "{}", "is not a URL"),
        ("{server: 'https://a', proxy-url: 'http://p'}", "{}", "proxy-url: is not supported"),
        (both.as_str(), "{}", "insecure-skip-tls-verify: cannot be true"),
        ("{server: 'https://a', certificate-authority: absent.pem}", "{}", "/nowhere/absent.pem: read"),
        ("{server: 'https://a', certificate-authority-data: aGVsbG8=}", "{}", "holds no PEM certificate"),
        ("{server: 'https://a', certificate-authority-data: '?'}", "{}", "is no kubeconfig"),
        (cluster, "{exec: {command: x}}", "exec: is not supported"),
        (cluster, "{auth-provider: {name: x}}", "auth-provider: is not supported"),
        (cluster, "{username: admin, password: x}", "username: is not supported"),
        (cluster, "{as: admin}", "as: is not supported"),
        (cluster, no_key.as_str(), "client-key: is missing"),
        (cluster, no_certificate.as_str(), "client-certificate: is missing"),
        (cluster, no_pem.as_str(), "holds no PEM private key"),
    ];
    for (cluster, user, expected) in table {
        let error = access(&config(cluster, user)).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    for (text, expected) in [
        ("", "current-context: is not set"),
        ("current-context: y", "contexts: has none that is named \"y\""),
        ("clusters: 3", "is no kubeconfig: wrong type at line 1 (clusters)"),
        ("users: [{name: u, user: {token: [topsecret]}}]", "is no kubeconfig"),
        ("{{{", "is no kubeconfig"),
    ] {
        let error = access(text).await.unwrap_err();
        assert!(error.contains(expected) && !error.contains("topsecret"), "{error}");
    }
}

#[tokio::test]
async fn the_kubelets_own_is_as_upstream_lays_it_out() {
    let (pem, dir) = (pem(), tempfile::tempdir().unwrap());
    let path = dir.path().join("sub/kubeconfig");
    let client_pem = dir.path().join("kubelet-client-current.pem");
    std::fs::write(&client_pem, format!("{}{}", pem.certificate, pem.key)).unwrap();
    let own = OwnKubeconfig {
        server: Server::parse("https://[fd00::1]:6443").unwrap(),
        ca_pem: pem.certificate.clone().into_bytes(),
        client_pem: client_pem.clone(),
    };
    write(&path, &own).unwrap();
    // What an interrupted run left does not stand in the way.
    let leftover = orlop_files::temporary_name("kubeconfig".as_ref());
    std::fs::write(dir.path().join("sub").join(leftover), "half").unwrap();
    write(&path, &own).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let read = Kubeconfig::read(&path).await.unwrap();
    assert_eq!(read.client_certificate_file(), Some(client_pem));
    let access = read.access().await.unwrap();
    assert_eq!(access.server, own.server);
    assert_eq!(access.trust, Trust::from_pem(pem.certificate.as_bytes()).unwrap());
    let text = std::fs::read_to_string(&path).unwrap();
    for line in [
        "name: default-cluster",
        "name: default-auth",
        "current-context: default-context",
        "namespace: default",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(!text.contains("PRIVATE"));
}
