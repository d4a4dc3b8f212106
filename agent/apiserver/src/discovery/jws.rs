//! The signature on cluster-info: a JWS (RFC 7515) with HS256 and detached payload, keyed with the token's secret.
//!
//! In: `header..signature`, the payload, the token. Out: good or not. Invariants: no algorithm but HS256; the header
//! names the token; the comparison takes the same time wherever a difference is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::Deserialize;

use super::DiscoveryError;

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: String,
}

/// Checks a detached signature.
pub(super) fn verify(jws: &str, payload: &[u8], id: &str, secret: &[u8]) -> Result<(), DiscoveryError> {
    let bad = || DiscoveryError::Signature { id: id.to_owned() };
    let mut parts = jws.trim().split('.');
    let (Some(header), Some(""), Some(signature), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(bad());
    };
    let decoded = URL_SAFE_NO_PAD.decode(header).map_err(|_| bad())?;
    let decoded: Header = serde_json::from_slice(&decoded).map_err(|_| bad())?;
    if decoded.alg != "HS256" || decoded.kid != id {
        return Err(bad());
    }
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| bad())?;
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::verify(&key, signed.as_bytes(), &signature).map_err(|_| bad())
}

/// Signs as the bootstrap signer of kube-controller-manager does; for tests and fakes.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn sign(payload: &[u8], id: &str, secret: &[u8]) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From upstream's own test of its signer: a fact about the format, not code.
    const UPSTREAM: &str =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";

    #[test]
    fn upstreams_own_signature_is_good() {
        verify(
            UPSTREAM,
            b"Hello from the other side. I must have called a thousand times.",
            "joshua",
            b"my voice is my passcode",
        )
        .unwrap();
    }

    #[test]
    fn anything_else_is_not() {
        let good = sign(b"text", "abcdef", b"secret");
        assert!(verify(&good, b"text", "abcdef", b"secret").is_ok());
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"abcdef"}"#);
        let table = [
            (good.clone(), &b"other"[..], "abcdef", &b"secret"[..]),
            (good.clone(), b"text", "abcdeg", b"secret"),
            (good.clone(), b"text", "abcdef", b"Secret"),
            (good.replace("..", ".dGV4dA."), b"text", "abcdef", b"secret"),
            (format!("{none}.."), b"text", "abcdef", b"secret"),
            (String::new(), b"text", "abcdef", b"secret"),
            ("..".to_owned(), b"text", "abcdef", b"secret"),
            (format!("{good}."), b"text", "abcdef", b"secret"),
            ("?..?".to_owned(), b"text", "abcdef", b"secret"),
        ];
        for (jws, payload, id, secret) in table {
            assert!(verify(&jws, payload, id, secret).is_err(), "{jws}");
        }
    }
}
