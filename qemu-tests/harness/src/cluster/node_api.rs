//! A client of a node's HTTPS API that bypasses the API server.
//!
//! In: the node's address, the client's credentials. Out: status codes and bodies. Invariant: the node's serving
//! certificate is verified with the cluster's CA against the address in the Node.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::json;

use super::kubeconfig::Credentials;
use super::plane::Cluster;
use super::proxy::Proxy;

/// Port of the API.
const PORT: u16 = 10250;
/// Between two questions to a node that is not ready for them.
const AGAIN: Duration = Duration::from_millis(250);

/// The way to one node.
pub struct NodeApi<'a> {
    cluster: &'a Cluster,
    name: String,
    proxy: Proxy,
}

impl<'a> NodeApi<'a> {
    /// To the node at `address`.
    ///
    /// # Errors
    /// If the plane's namespace cannot be entered.
    pub fn at(cluster: &'a Cluster, address: &str) -> Result<NodeApi<'a>> {
        let target: SocketAddr = format!("{address}:{PORT}").parse().context("an address")?;
        Ok(NodeApi { cluster, name: address.to_owned(), proxy: Proxy::start(cluster.pid()?, target)? })
    }

    /// Waits until the node answers with a certificate for its address, and is healthy. There is no event for the
    /// certificate, so the client polls.
    ///
    /// # Errors
    /// At the deadline: the node's answer.
    pub fn await_healthy(&self, who: &Credentials, limit_s: u64) -> Result<()> {
        let client = self.cluster.client();
        let mut again = client.block_on(async { tokio::time::interval(AGAIN) });
        let deadline = Instant::now() + Duration::from_secs(limit_s);
        loop {
            client.block_on(again.tick());
            match self.get(Some(who), "/healthz") {
                Ok((200, _)) => return Ok(()),
                answer if Instant::now() >= deadline => {
                    bail!("no healthy answer at {} after {limit_s} s, but {answer:?}", self.name);
                }
                _ => {}
            }
        }
    }

    /// GET of a path with credentials, or anonymously.
    ///
    /// # Errors
    /// If there is no answer, or the certificate is not the node's.
    pub fn get(&self, who: Option<&Credentials>, path: &str) -> Result<(u16, String)> {
        self.ask(who, "GET", path)
    }

    /// POST of nothing to a path.
    ///
    /// # Errors
    /// If there is no answer, or the certificate is not the node's.
    pub fn post(&self, who: &Credentials, path: &str) -> Result<(u16, String)> {
        self.ask(Some(who), "POST", path)
    }

    /// A request without a body.
    ///
    /// # Errors
    /// If there is no answer, or the certificate is not the node's.
    pub fn ask(&self, who: Option<&Credentials>, method: &str, path: &str) -> Result<(u16, String)> {
        self.send(who, method, path, "")
    }

    /// A request with a body of text.
    ///
    /// # Errors
    /// If there is no answer, or the certificate is not the node's.
    pub fn send(
        &self,
        who: Option<&Credentials>,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(u16, String)> {
        let body = Body::from(body.as_bytes().to_vec());
        let request = http::Request::builder().method(method).uri(path).body(body)?;
        let (status, body) = self.as_user(who)?.send(request)?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// A client that keeps one connection.
    ///
    /// # Errors
    /// If the client cannot be made.
    pub fn as_user(&self, who: Option<&Credentials>) -> Result<User<'a>> {
        let user = match who {
            None => json!({}),
            Some(Credentials::Token(token)) => json!({"token": token}),
            Some(Credentials::Certificate { certificate, key }) => json!({
                "client-certificate-data": ByteString(certificate.clone().into_bytes()),
                "client-key-data": ByteString(key.clone().into_bytes()),
            }),
        };
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "n",
            "clusters": [{"name": "n", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.proxy.port()),
                "certificate-authority-data": ByteString(self.cluster.pki().ca.pem.clone().into_bytes()),
                "tls-server-name": self.name,
            }}],
            "users": [{"name": "n", "user": user}],
            "contexts": [{"name": "n", "context": {"cluster": "n", "user": "n"}}],
        });
        let config = kube::config::Kubeconfig::from_yaml(&config.to_string()).context("a kubeconfig")?;
        let client = self.cluster.client().block_on(async {
            let options = kube::config::KubeConfigOptions::default();
            let mut config = Config::from_custom_kubeconfig(config, &options).await?;
            config.proxy_url = None;
            anyhow::Ok(Client::try_from(config)?)
        })?;
        Ok(User { cluster: self.cluster, name: self.name.clone(), client })
    }
}

/// A client of one node, with its credentials.
pub struct User<'a> {
    cluster: &'a Cluster,
    name: String,
    client: Client,
}

impl User<'_> {
    /// Status and body of the answer to a request.
    ///
    /// # Errors
    /// If there is no answer, or the certificate is not the node's.
    pub fn send(&self, request: http::Request<Body>) -> Result<(u16, Vec<u8>)> {
        let what = format!("{} {} of the node at {}", request.method(), request.uri(), self.name);
        let exchange = async {
            let response = self.client.send(request).await?;
            let status = response.status().as_u16();
            let body = response.into_body().collect_bytes().await?;
            anyhow::Ok((status, body.to_vec()))
        };
        let client = self.cluster.client();
        client
            .block_on(async { tokio::time::timeout(Duration::from_secs(20), exchange).await })
            .context("the node did not answer within 20 s")?
            .context(what)
    }
}
