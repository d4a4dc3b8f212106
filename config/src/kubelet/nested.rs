//! The objects inside KubeletConfiguration.

use super::enums::{AuthorizationMode, LogFormat, SwapBehavior, TaintEffect};
use crate::duration::Duration;
use crate::field::{Describe, Kind, config_struct};
use crate::quantity::Quantity;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

config_struct! {
    /// Who a request to the HTTPS server comes from.
    pub struct Authentication {
        /// By client certificate.
        x509: X509Authentication = X509Authentication::default(), "x509";
        /// By bearer token, asked of the API server.
        webhook: WebhookAuthentication = WebhookAuthentication::default(), "webhook";
        /// Without credentials.
        anonymous: AnonymousAuthentication = AnonymousAuthentication::default(), "anonymous";
    }
}

config_struct! {
    /// Authentication by client certificate.
    pub struct X509Authentication {
        /// PEM file of the CAs that sign client certificates; empty: none accepted.
        client_ca_file: String = String::new(), "clientCAFile";
    }
}

config_struct! {
    /// Authentication by TokenReview.
    pub struct WebhookAuthentication {
        /// Whether tokens are accepted.
        enabled: bool = true, "enabled";
        /// How long an answer is remembered.
        cache_ttl: Duration = Duration::from_mins(2), "cacheTTL", zero_unset;
    }
}

config_struct! {
    /// Requests that carry no credentials.
    pub struct AnonymousAuthentication {
        /// Whether they are let through as `system:anonymous`.
        enabled: bool = false, "enabled";
    }
}

config_struct! {
    /// What an authenticated request may do.
    pub struct Authorization {
        /// Who decides.
        mode: AuthorizationMode = AuthorizationMode::Webhook, "mode", zero_unset;
        /// Used with mode Webhook.
        webhook: WebhookAuthorization = WebhookAuthorization::default(), "webhook";
    }
}

config_struct! {
    /// Authorisation by SubjectAccessReview.
    pub struct WebhookAuthorization {
        /// How long a yes is remembered.
        cache_authorized_ttl: Duration = Duration::from_mins(5), "cacheAuthorizedTTL", zero_unset;
        /// How long a no is remembered.
        cache_unauthorized_ttl: Duration = Duration::from_secs(30), "cacheUnauthorizedTTL", zero_unset;
    }
}

config_struct! {
    /// Swap for pods.
    pub struct MemorySwap {
        /// Who may swap.
        swap_behavior: SwapBehavior = SwapBehavior::NoSwap, "swapBehavior", zero_unset;
    }
}

config_struct! {
    /// Restart backoff of containers.
    pub struct CrashLoopBackOff {
        /// Longest wait between restarts, 1s to 300s; set (300s) unless the gate KubeletCrashLoopBackOffMax is off.
        max_container_restart_period: Option<Duration> = None, "maxContainerRestartPeriod";
    }
}

config_struct! {
    /// Memory of one NUMA node kept from pods.
    pub struct MemoryReservation {
        /// Index of the NUMA node.
        numa_node: i32 = 0, "numaNode", required;
        /// `memory` and `hugepages-<size>` to amount.
        limits: BTreeMap<String, Quantity> = BTreeMap::new(), "limits", required;
    }
}

config_struct! {
    /// Shutdown grace for pods from a priority upwards.
    pub struct ShutdownGracePeriodByPodPriority {
        /// Smallest pod priority this entry covers.
        priority: i32 = 0, "priority", required;
        /// Grace in seconds.
        shutdown_grace_period_seconds: i64 = 0, "shutdownGracePeriodSeconds", required;
    }
}

config_struct! {
    /// User namespaces of pods.
    pub struct UserNamespaces {
        /// User and group ids per pod: a multiple of 65536, at most 4294967295.
        ids_per_pod: i64 = 65536, "idsPerPod";
    }
}

config_struct! {
    /// A node taint.
    pub struct Taint {
        /// Qualified name.
        key: String = String::new(), "key", required;
        /// Label value.
        value: String = String::new(), "value";
        /// What it does.
        effect: TaintEffect = TaintEffect::NoSchedule, "effect", required;
        /// Belongs to the API server's copy; not allowed here.
        time_added: Option<String> = None, "timeAdded";
    }
}

config_struct! {
    /// OpenTelemetry traces.
    pub struct Tracing {
        /// Collector's address; none: `localhost:4317`.
        endpoint: Option<String> = None, "endpoint";
        /// Share of requests traced.
        sampling_rate_per_million: Option<i32> = None, "samplingRatePerMillion", range(0, 1_000_000);
    }
}

config_struct! {
    /// The agent's own log.
    pub struct Logging {
        /// Form of lines.
        format: LogFormat = LogFormat::Text, "format", zero_unset;
        /// Longest time a line stays in a buffer.
        flush_frequency: FlushFrequency = FlushFrequency(Duration::from_secs(5)), "flushFrequency",
            zero_unset, at_least(0);
        /// Higher is more.
        verbosity: u32 = 0, "verbosity", range(0, 2_147_483_647);
        /// Verbosity per source file.
        vmodule: Vec<VModuleItem> = Vec::new(), "vmodule";
        /// Per format.
        options: LogOptions = LogOptions::default(), "options";
    }
}

config_struct! {
    /// Verbosity of some source files.
    pub struct VModuleItem {
        /// File name without extension, `*` and `?` allowed.
        file_pattern: String = String::new(), "filePattern", required;
        /// Higher is more.
        verbosity: u32 = 0, "verbosity", required, range(0, 2_147_483_647);
    }
}

config_struct! {
    /// Options of the log formats.
    pub struct LogOptions {
        /// Of format text.
        text: OutputRouting = OutputRouting::default(), "text";
        /// Of format json.
        json: OutputRouting = OutputRouting::default(), "json";
    }
}

config_struct! {
    /// Where log lines go.
    pub struct OutputRouting {
        /// Errors to stderr, the rest to stdout; alpha, needs the gate LoggingAlphaOptions.
        split_stream: bool = false, "splitStream";
        /// Buffer before stdout when split; alpha, needs the gate LoggingAlphaOptions.
        info_buffer_size: Quantity = Quantity::default(), "infoBufferSize";
    }
}

/// `logging.flushFrequency`: a duration as text, or nanoseconds as an integer; written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct FlushFrequency(pub Duration);

impl Describe for FlushFrequency {
    const KIND: &'static Kind = &Kind::DurationOrNanos;
}

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<FlushFrequency, D::Error> {
        use serde::de::Error;
        match serde_json::Value::deserialize(d)? {
            serde_json::Value::String(s) => Duration::parse(&s).map_err(D::Error::custom),
            other => other
                .as_i64()
                .map(Duration::from_nanos)
                .ok_or_else(|| D::Error::custom("must be a duration or an integer of nanoseconds")),
        }
        .map(FlushFrequency)
    }
}

/// Values of one HTTP header; `Debug` does not show them, because they authenticate.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct HeaderValues(pub Vec<String>);

impl Describe for HeaderValues {
    const KIND: &'static Kind = &Kind::List(&Kind::Str);
}

impl std::fmt::Debug for HeaderValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<{} values>", self.0.len())
    }
}
