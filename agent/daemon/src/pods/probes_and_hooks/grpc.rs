//! gRPC health checks, without TLS. Every error is a failure of the probe, never an error of the prober.

use std::error::Error;
use std::time::Duration;

use agent_core::probe::Outcome;
use agent_core::probe::check::authority;
use orlop_proto::grpc_health::v1::HealthCheckRequest;
use orlop_proto::grpc_health::v1::health_check_response::ServingStatus;
use orlop_proto::grpc_health::v1::health_client::HealthClient;
use tokio::time::{Instant, timeout_at};
use tonic::Code;
use tonic::transport::Endpoint;

use super::ANSWER_BYTES_MAX;
use super::http::PROBE_AGENT;

/// `grpc.health.v1.Health/Check`; SERVING is success.
pub(super) async fn probe(host: &str, port: u16, service: &str, within: Duration) -> Outcome {
    let (at, seconds) = (authority(host, port), within.as_secs());
    let until = Instant::now() + within;
    let endpoint = Endpoint::from_shared(format!("http://{at}")).and_then(|e| e.user_agent(PROBE_AGENT));
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => {
            return Outcome::Failure(format!("error: failed to connect service at {at:?}: {error}"));
        }
    };
    let channel = match timeout_at(until, endpoint.connect()).await {
        Ok(Ok(channel)) => channel,
        // Upstream retries until the timeout; here the next probe retries.
        Ok(Err(error)) => {
            return Outcome::Failure(format!(
                "timeout: failed to connect service {at:?} within {seconds}s: {}",
                cause(&error)
            ));
        }
        Err(_) => {
            return Outcome::Failure(format!(
                "timeout: failed to connect service {at:?} within {seconds}s: context deadline exceeded"
            ));
        }
    };
    let mut client = HealthClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let request = HealthCheckRequest { service: service.to_owned() };
    let status = match timeout_at(until, client.check(request)).await {
        Ok(Ok(answer)) => answer.into_inner().status(),
        Ok(Err(refusal)) if refusal.code() == Code::Unimplemented => {
            return Outcome::Failure(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                refusal.message()
            ));
        }
        Ok(Err(refusal)) if refusal.code() != Code::DeadlineExceeded => {
            return Outcome::Failure(format!(
                "error: health rpc probe failed: rpc error: code = {:?} desc = {}",
                refusal.code(),
                refusal.message()
            ));
        }
        _ => return Outcome::Failure(format!("timeout: health rpc did not complete within {seconds}s")),
    };
    if status == ServingStatus::Serving {
        return Outcome::Success;
    }
    Outcome::Failure(format!("service unhealthy (responded with {:?})", status.as_str_name()))
}

/// The innermost message: the outer ones are only "transport error".
fn cause(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
