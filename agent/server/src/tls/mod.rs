//! TLS of the HTTPS API: protocol floor, cipher suites and groups from the configuration, certificates that change
//! while connections live.
//!
//! In: `tlsMinVersion`, `tlsCipherSuites`, `tlsCurvePreferences`, a view of the serving certificate. Out: a rustls
//! configuration. Invariants: never below TLS 1.2; a client certificate is asked for and never demanded, and the
//! handshake only proves that the client has its key: whether it is trusted is judged with each request
//! ([`clients::ClientAuthorities`]), so a replaced CA counts at once and a stranger gets 401 instead of an alert. No
//! session is resumed: what was shown in a handshake long ago says nothing now.

pub mod clients;
pub mod serving;
mod version_1;

use std::sync::Arc;

use orlop_config::kubelet::KubeletConfiguration;
use rustls::crypto::CryptoProvider;
use rustls::server::NoServerSessionStorage;
use rustls::{NamedGroup, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};

use clients::AskForCertificate;
use serving::{CurrentCertificate, ServingView};

/// A TLS setting that leaves nothing to speak with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsSettingsError {
    /// No group of `tlsCurvePreferences` is known.
    #[error(
        "tlsCurvePreferences {given:?}: none is supported; use 29 (X25519), 23 (P-256) or 24 (P-384), or leave it out"
    )]
    NoGroup {
        /// As configured.
        given: Vec<i32>,
    },
    /// The library's words; a defect rather than a setting.
    #[error("TLS cannot be set up: {0}")]
    Library(String),
}

/// The configuration of the listener, made with `provider`, and what of the settings has no effect (for the log).
///
/// # Errors
/// Settings that leave nothing.
pub fn server_config(
    kubelet: &KubeletConfiguration,
    provider: CryptoProvider,
    serving: ServingView,
    ask_for_certificates: bool,
) -> Result<(Arc<ServerConfig>, Vec<String>), TlsSettingsError> {
    let mut ignored = Vec::new();
    let provider = Arc::new(narrowed(provider, kubelet, &mut ignored)?);
    let versions = versions(&kubelet.tls_min_version, &provider.cipher_suites);
    let library = |error: rustls::Error| TlsSettingsError::Library(error.to_string());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(library)?;
    let builder = if ask_for_certificates {
        builder.with_client_cert_verifier(Arc::new(AskForCertificate::new(&provider)))
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_cert_resolver(Arc::new(CurrentCertificate(serving)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), ignored))
}

/// With the cipher suites and groups of the configuration.
fn narrowed(
    mut provider: CryptoProvider,
    kubelet: &KubeletConfiguration,
    ignored: &mut Vec<String>,
) -> Result<CryptoProvider, TlsSettingsError> {
    let suites = &kubelet.tls_cipher_suites;
    if !suites.is_empty() {
        // As with upstream's library the suites of TLS 1.3 are not a matter of configuration.
        let known = provider.cipher_suites.clone();
        provider.cipher_suites.retain(|suite| is_tls13(suite) || suites.iter().any(|s| *s == name(suite)));
        let unknown = suites.iter().filter(|s| !known.iter().any(|suite| name(suite) == **s));
        ignored.extend(unknown.map(|s| format!("tlsCipherSuites: {s} is not offered")));
    }
    let groups = &kubelet.tls_curve_preferences;
    if !groups.is_empty() {
        let known = provider.kx_groups.clone();
        let of = |number: &i32| {
            let wanted = NamedGroup::from(u16::try_from(*number).unwrap_or_default());
            known.iter().find(|group| group.name() == wanted).copied()
        };
        provider.kx_groups = groups.iter().filter_map(of).collect();
        let unknown = groups.iter().filter(|number| of(number).is_none());
        ignored.extend(unknown.map(|number| format!("tlsCurvePreferences: group {number} is not offered")));
        if provider.kx_groups.is_empty() {
            return Err(TlsSettingsError::NoGroup { given: groups.clone() });
        }
    }
    Ok(provider)
}

fn is_tls13(suite: &SupportedCipherSuite) -> bool {
    suite.version() == &version::TLS13
}

/// The IANA name as configurations write it.
fn name(suite: &SupportedCipherSuite) -> String {
    // The library names suites of TLS 1.3 TLS13_…, all others as IANA does.
    format!("{:?}", suite.suite()).replacen("TLS13_", "TLS_", 1)
}

static TLS12_AND_13: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
static TLS13: [&SupportedProtocolVersion; 1] = [&version::TLS13];

fn versions(min: &str, suites: &[SupportedCipherSuite]) -> &'static [&'static SupportedProtocolVersion] {
    let tls12 = min != "VersionTLS13" && suites.iter().any(|suite| !is_tls13(suite));
    if tls12 { &TLS12_AND_13 } else { &TLS13 }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring;
    use tokio::sync::watch;

    use super::*;

    fn with(
        change: impl FnOnce(&mut KubeletConfiguration),
    ) -> Result<(Arc<ServerConfig>, Vec<String>), TlsSettingsError> {
        let mut kubelet = KubeletConfiguration::default();
        change(&mut kubelet);
        server_config(&kubelet, agent_apiserver::provider(), watch::channel(None).1, true)
    }

    fn suites(config: &ServerConfig) -> Vec<String> {
        config.crypto_provider().cipher_suites.iter().map(name).collect()
    }

    #[test]
    fn the_default_is_tls_1_2_and_1_3_with_both_http_versions() {
        let (config, ignored) = with(|_| {}).unwrap();
        assert!(ignored.is_empty());
        assert_eq!(config.alpn_protocols, [b"h2".to_vec(), b"http/1.1".to_vec()]);
        assert_eq!(config.send_tls13_tickets, 0);
        let suites = suites(&config);
        assert!(suites.contains(&"TLS_AES_128_GCM_SHA256".to_owned()), "{suites:?}");
        assert!(suites.contains(&"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256".to_owned()), "{suites:?}");
    }

    #[test]
    fn suites_are_chosen_and_unknown_ones_named() {
        let (config, ignored) = with(|k| {
            k.tls_cipher_suites = vec![
                "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384".to_owned(),
                "TLS_RSA_WITH_AES_128_CBC_SHA".to_owned(),
            ];
        })
        .unwrap();
        let old: Vec<String> = suites(&config).into_iter().filter(|s| s.starts_with("TLS_ECDHE")).collect();
        assert_eq!(old, ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]);
        assert_eq!(ignored, ["tlsCipherSuites: TLS_RSA_WITH_AES_128_CBC_SHA is not offered"]);
    }

    #[test]
    fn the_floor_is_never_below_1_2() {
        let all = ring::default_provider().cipher_suites;
        for (min, count) in [("", 2), ("VersionTLS10", 2), ("VersionTLS12", 2), ("VersionTLS13", 1)] {
            assert_eq!(versions(min, &all).len(), count, "{min}");
        }
        let only: Vec<_> = all.into_iter().filter(is_tls13).collect();
        assert_eq!(versions("", &only).len(), 1, "without its suites TLS 1.2 is not offered");
    }

    #[test]
    fn groups_keep_the_order_of_the_configuration() {
        let (config, ignored) = with(|k| k.tls_curve_preferences = vec![24, 4588, 29]).unwrap();
        let groups: Vec<NamedGroup> = config.crypto_provider().kx_groups.iter().map(|g| g.name()).collect();
        assert_eq!(groups, [NamedGroup::secp384r1, NamedGroup::X25519]);
        assert_eq!(ignored, ["tlsCurvePreferences: group 4588 is not offered"]);
        let error = with(|k| k.tls_curve_preferences = vec![4588]).unwrap_err();
        assert!(error.to_string().contains("4588"), "{error}");
    }
}
