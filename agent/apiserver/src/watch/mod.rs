//! Watches: a stream of [`WatchEvent`]s of one kind of object, kept up for ever (upstream: the reflector).
//!
//! ```text
//!            ┌──────────── 410, or lost ────────────┐
//!            ▼                                      │
//! list (streamed, else plain) ─► Listed ─► watch ───┴─► Applied, Deleted
//!            │                              ▲  │ ends in time, or the identity is new
//!            └─ fails ─► Lost ─► back-off   └──┘ resourceVersion kept
//! ```
//! In: a client, which objects. Out: a bounded channel and the future that fills it.
//! Invariants: the consumer sees every change after the last `Listed`, or another `Listed`; after `Lost` a `Listed`
//! follows before any event; an object that does not decode is reported by name and stands as it was last, the
//! others go on; a slow consumer slows the stream down; the future ends when the receiver is gone.

mod backoff;
mod decode;
mod lines;
mod session;
mod store;

use agent_types::api::WatchEvent;
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use session::Session;

use crate::ApiClient;
use crate::request::segment;

/// Events waiting for the consumer. Small: what is beyond it waits in the server, held back by HTTP/2's windows.
const EVENTS_MAX: usize = 64;

/// What can be watched.
pub trait Watched: Serialize + DeserializeOwned + Resource<DynamicType = ()> + Send + Sync + 'static {}

impl<T: Serialize + DeserializeOwned + Resource<DynamicType = ()> + Send + Sync + 'static> Watched for T {}

/// Which objects: a collection and a field that all of them share.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// Path of the collection.
    pub(crate) path: String,
    /// `fieldSelector`.
    pub(crate) field: String,
}

impl ApiClient {
    /// Watches the pods that are bound to a node (`spec.nodeName`).
    pub fn watch_pods(
        &self,
        node: &str,
    ) -> (mpsc::Receiver<WatchEvent<Pod>>, impl Future<Output = ()> + Send + use<>) {
        self.watch(Pod::url_path(&(), None), "spec.nodeName", node)
    }

    /// Watches one node.
    pub fn watch_node(
        &self,
        name: &str,
    ) -> (mpsc::Receiver<WatchEvent<Node>>, impl Future<Output = ()> + Send + use<>) {
        self.watch(Node::url_path(&(), None), "metadata.name", name)
    }

    /// Watches one secret.
    pub fn watch_secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> (mpsc::Receiver<WatchEvent<Secret>>, impl Future<Output = ()> + Send + use<>) {
        self.watch(Secret::url_path(&(), Some(&escaped(namespace))), "metadata.name", name)
    }

    /// Watches one ConfigMap.
    pub fn watch_config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> (mpsc::Receiver<WatchEvent<ConfigMap>>, impl Future<Output = ()> + Send + use<>) {
        self.watch(ConfigMap::url_path(&(), Some(&escaped(namespace))), "metadata.name", name)
    }

    /// Watches the Services of a namespace, or the one that is named.
    pub fn watch_services(
        &self,
        namespace: &str,
        name: &str,
    ) -> (mpsc::Receiver<WatchEvent<Service>>, impl Future<Output = ()> + Send + use<>) {
        let path = Service::url_path(&(), Some(&escaped(namespace)));
        let (field, value) =
            if name.is_empty() { ("metadata.namespace", namespace) } else { ("metadata.name", name) };
        self.watch(path, field, value)
    }

    /// Watches one RuntimeClass.
    pub fn watch_runtime_class(
        &self,
        name: &str,
    ) -> (mpsc::Receiver<WatchEvent<RuntimeClass>>, impl Future<Output = ()> + Send + use<>) {
        self.watch(RuntimeClass::url_path(&(), None), "metadata.name", name)
    }

    /// Watches all ClusterTrustBundles.
    pub fn watch_trust_bundles(
        &self,
    ) -> (mpsc::Receiver<WatchEvent<ClusterTrustBundle>>, impl Future<Output = ()> + Send + use<>) {
        self.select(ClusterTrustBundle::url_path(&(), None), String::new())
    }

    /// Watches the requests for certificates of pods bound to `node`.
    pub fn watch_pod_certificates(
        &self,
        node: &str,
    ) -> (mpsc::Receiver<WatchEvent<PodCertificateRequest>>, impl Future<Output = ()> + Send + use<>) {
        self.watch(PodCertificateRequest::url_path(&(), None), "spec.nodeName", node)
    }

    fn watch<T: Watched>(
        &self,
        path: String,
        field: &str,
        value: &str,
    ) -> (mpsc::Receiver<WatchEvent<T>>, impl Future<Output = ()> + Send + use<T>) {
        self.select(path, format!("{field}%3D{}", escaped(value)))
    }

    fn select<T: Watched>(
        &self,
        path: String,
        field: String,
    ) -> (mpsc::Receiver<WatchEvent<T>>, impl Future<Output = ()> + Send + use<T>) {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let selection = Selection { path, field };
        (receiver, Session::new(self.clone(), selection, events).run())
    }
}

/// A name that is none matches nothing: the server answers with an empty list or says what is wrong.
fn escaped(name: &str) -> String {
    segment(name).unwrap_or_else(|_| "-".to_owned())
}
