//! The clients of a real node's container runtime and image service: the node's drivers.
//!
//! In: endpoints from the configuration. Out: connected clients, and the event stream for PLEG.

use std::sync::Arc;
use std::time::Duration;

use agent_cri::CriClient;
use agent_types::runtime::observed::RuntimeSignal;
use anyhow::Context;
use orlop_config::kubelet::KubeletConfiguration;
use tokio::sync::mpsc;

use crate::runtime::pleg::Signals;
use crate::serving::metrics::Metrics;

/// Connects to the runtime, and to the image service if it has an endpoint of its own; `metrics` counts the calls.
///
/// # Errors
/// No answer within runtimeRequestTimeout, or a runtime that does not speak CRI v1.
pub async fn connect(
    kubelet: &KubeletConfiguration,
    metrics: &Metrics,
) -> anyhow::Result<(Arc<CriClient>, Arc<CriClient>)> {
    let request_timeout: Duration = kubelet.runtime_request_timeout.to_std();
    let endpoint = &kubelet.container_runtime_endpoint;
    let runtime = CriClient::connect(endpoint, request_timeout)
        .await
        .with_context(|| format!("connect to the container runtime at {endpoint}"))?;
    let runtime = Arc::new(runtime.observed(Arc::new(metrics.clone())));
    let image_endpoint = kubelet.image_endpoint();
    if image_endpoint == endpoint {
        return Ok((runtime.clone(), runtime));
    }
    let images = CriClient::connect(image_endpoint, request_timeout)
        .await
        .with_context(|| format!("connect to the image service at {image_endpoint}"))?;
    Ok((runtime, Arc::new(images.observed(Arc::new(metrics.clone())))))
}

/// The client's event stream.
pub struct CriSignals(pub Arc<CriClient>);

impl Signals for CriSignals {
    fn signals(&self) -> (mpsc::Receiver<RuntimeSignal>, impl Future<Output = ()> + Send + 'static) {
        self.0.events()
    }
}
