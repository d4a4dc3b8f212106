//! Rules about endpoints, TLS, logs and paths.

use super::Rules;
use crate::duration::Duration;
use crate::formats;
use crate::path;
use serde_json::Value;

/// Suites by IANA name that the TLS protocol versions 1.0 to 1.3 are configured with.
const CIPHER_SUITES: [&str; 26] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];
const TLS_VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
/// The minor version whose hidden metrics may be shown again: the one before ours.
const PREVIOUS_MINOR: &str = "1.35";

impl Rules<'_> {
    pub(super) fn serving(&mut self) {
        let c = self.config;
        for (path, ip) in [("address", &c.address), ("healthzBindAddress", &c.healthz_bind_address)] {
            self.rule(formats::is_ip(ip), path, ip.as_str(), "must be an IP address");
        }
        for (i, ip) in c.cluster_dns.iter().enumerate() {
            let path = path::index("clusterDNS", i);
            self.rule(formats::is_ip(ip), &path, ip.as_str(), "must be an IP address");
        }
        let cidrs = c.pod_cidr.split(',').all(formats::is_cidr);
        self.rule(
            c.pod_cidr.is_empty() || cidrs,
            "podCIDR",
            c.pod_cidr.as_str(),
            "must be a network such as 10.85.0.0/16, or an IPv4 and an IPv6 one with a comma between",
        );
        self.rule(
            !c.container_runtime_endpoint.is_empty(),
            "containerRuntimeEndpoint",
            Value::Null,
            "is missing: name the runtime's CRI socket",
        );
        self.rule(
            !c.server_tls_bootstrap || self.gate("RotateKubeletServerCertificate"),
            "serverTLSBootstrap",
            true,
            "needs feature gate RotateKubeletServerCertificate",
        );
        self.rule(
            c.enable_system_log_handler || !c.enable_system_log_query,
            "enableSystemLogQuery",
            true,
            "needs enableSystemLogHandler: true",
        );
        let hidden = c.show_hidden_metrics_for_version.as_str();
        self.rule(
            hidden.is_empty() || hidden == PREVIOUS_MINOR,
            "showHiddenMetricsForVersion",
            hidden,
            "must be the previous minor version, 1.35, or empty",
        );
        self.tls();
        self.logs();
        self.tracing();
    }

    fn tls(&mut self) {
        let c = self.config;
        let version = c.tls_min_version.as_str();
        self.rule(
            version.is_empty() || TLS_VERSIONS.contains(&version),
            "tlsMinVersion",
            version,
            "must be one of VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13",
        );
        for (i, suite) in c.tls_cipher_suites.iter().enumerate() {
            let known = CIPHER_SUITES.contains(&suite.as_str());
            let path = path::index("tlsCipherSuites", i);
            self.rule(known, &path, suite.as_str(), "is no cipher suite of TLS 1.0 to 1.3 by its IANA name");
        }
        for (i, curve) in c.tls_curve_preferences.iter().enumerate() {
            let path = path::index("tlsCurvePreferences", i);
            self.rule(
                u16::try_from(*curve).is_ok_and(|c| c > 0),
                &path,
                *curve,
                "must be the IANA number of a TLS group, 1 to 65535",
            );
        }
        self.rule(
            c.tls_cert_file.is_empty() == c.tls_private_key_file.is_empty(),
            "tlsCertFile",
            c.tls_cert_file.as_str(),
            "and tlsPrivateKeyFile go together: set both or none",
        );
    }

    fn logs(&mut self) {
        let c = self.config;
        let dir = c.pod_logs_dir.as_str();
        self.rule(
            formats::is_clean_absolute(dir) && dir.is_ascii(),
            "podLogsDir",
            dir,
            "must be an absolute path in ASCII without empty, . or .. components",
        );
        let logging = &c.logging;
        self.rule(
            logging.flush_frequency.0 > Duration::ZERO,
            "logging.flushFrequency",
            logging.flush_frequency.0.to_string(),
            "must be more than 0s",
        );
        if logging.format != super::super::enums::LogFormat::Text && !logging.vmodule.is_empty() {
            self.broken("logging.vmodule", Value::Null, "works with logging.format: text only");
        }
        for (i, item) in logging.vmodule.iter().enumerate() {
            let pattern = item.file_pattern.as_str();
            let ok = !pattern.is_empty() && !pattern.contains(['=', ',']);
            let path = path::child(&path::index("logging.vmodule", i), "filePattern");
            self.rule(ok, &path, pattern, "must be a file name pattern without = and comma");
        }
        let alpha = self.gate("LoggingAlphaOptions");
        for (path, options) in [("text", &logging.options.text), ("json", &logging.options.json)] {
            let used = options.split_stream || options.info_buffer_size.signum() != 0;
            let path = path::child("logging.options", path);
            self.rule(alpha || !used, &path, Value::Null, "needs feature gate LoggingAlphaOptions");
        }
    }

    fn tracing(&mut self) {
        let Some(tracing) = &self.config.tracing else { return };
        let Some(endpoint) = tracing.endpoint.as_deref() else { return };
        let scheme = endpoint.split_once(':').filter(|_| endpoint.contains("//")).map(|(scheme, _)| scheme);
        self.rule(
            matches!(scheme, None | Some("dns" | "unix" | "unix-abstract")),
            "tracing.endpoint",
            endpoint,
            "must be host:port, or have the scheme dns, unix or unix-abstract",
        );
    }
}
