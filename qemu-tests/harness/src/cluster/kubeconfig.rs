//! Kubeconfig files. Pure.
//!
//! In: server, CA, credentials. Out: YAML (as JSON, which is YAML). Certificates and keys are included as data,
//! so that a copy of the file works anywhere.

use k8s_openapi::ByteString;
use serde_json::json;

/// A client's credentials.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// PEM texts of certificate and key.
    Certificate {
        /// Certificate.
        certificate: String,
        /// Private key.
        key: String,
    },
    /// A bearer token.
    Token(String),
}

/// A kubeconfig's text.
#[must_use]
pub fn render(server: &str, ca_pem: &str, credentials: &Credentials) -> String {
    let user = match credentials {
        Credentials::Token(token) => json!({"token": token}),
        Credentials::Certificate { certificate, key } => json!({
            "client-certificate-data": ByteString(certificate.clone().into_bytes()),
            "client-key-data": ByteString(key.clone().into_bytes()),
        }),
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "orlop-e2e", "cluster": {
            "server": server, "certificate-authority-data": ByteString(ca_pem.as_bytes().to_vec()),
        }}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "orlop-e2e", "context": {"cluster": "orlop-e2e", "user": "user"}}],
        "current-context": "orlop-e2e",
    });
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_names_its_context() {
        let text = render("https://172.30.0.1:6443", "ca", &Credentials::Token("a.b".into()));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["current-context"], value["contexts"][0]["name"]);
        assert_eq!(value["users"][0]["user"]["token"], "a.b");
        assert_eq!(value["clusters"][0]["cluster"]["certificate-authority-data"], "Y2E=");
    }
}
