//! The clock of an API server, asked by a node that does not trust its own.
//!
//! ```text
//! TCP ─► TLS, verified but for dates ─► GET /livez without credentials ─► Date of the answer, whatever the answer is
//! ```
//! In: address and pinned authorities. Out: [`ServerClock`]. Invariants: no credentials are sent, because a verification
//! without dates takes the key of an old certificate as well; nothing of the answer but `Date` is used; the call ends within
//! its limit. Decisions are in core's machine of the clock.

use std::pin::pin;
use std::time::Duration;

use agent_types::certificates::ServerClock;
use agent_types::time::Wall;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{DATE, HeaderMap, USER_AGENT};
use hyper::{Request, Response};
use jiff::fmt::rfc2822::DateTimeParser;
use orlop_config::error_chain::chain;
use tokio::time::timeout;

use crate::access::{Access, Credentials, Server, Trust};
use crate::client::Options;
use crate::connect::{ConnectError, Dialed, Dialer, dial_http1};
use crate::http1;
use crate::tls::{latest_not_before, undated_client};

/// Why the server's clock is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerClockError {
    /// The node would believe the machine's authorities, or anybody.
    #[error(
        "{server}: this node pins no certificate authority of the cluster, so nobody can be asked for the time"
    )]
    NotPinned {
        /// URL.
        server: String,
    },
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection, and no answer.
    #[error("{server}: no answer to a question for the time: {reason}")]
    Broken {
        /// URL.
        server: String,
        /// What happened.
        reason: String,
    },
}

/// Latest `notBefore` of the authorities that `trust` pins; `None` if it pins none that can be read.
#[must_use]
pub fn pinned_since(trust: &Trust) -> Option<Wall> {
    match trust {
        Trust::Certificates(list) => latest_not_before(list),
        Trust::System | Trust::Anyone => None,
    }
}

/// Asks the server for the time.
///
/// # Errors
/// See [`ServerClockError`].
pub async fn server_clock(
    server: &Server,
    trust: &Trust,
    options: &Options,
) -> Result<ServerClock, ServerClockError> {
    server_clock_over(server, trust, options, &Dialer::Tcp).await
}

pub(crate) async fn server_clock_over(
    server: &Server,
    trust: &Trust,
    options: &Options,
    dialer: &Dialer,
) -> Result<ServerClock, ServerClockError> {
    let Trust::Certificates(authorities) = trust else {
        return Err(ServerClockError::NotPinned { server: server.to_string() });
    };
    let (config, verifier) = undated_client(authorities).map_err(ConnectError::Tls)?;
    let access = Access { server: server.clone(), trust: trust.clone(), credentials: Credentials::None };
    let broken = |reason: String| ServerClockError::Broken { server: server.to_string(), reason };
    let exchange = async {
        let Dialed { mut sender, task, .. } = dial_http1(&access, config, dialer).await?;
        let request = question(server, &options.user_agent).map_err(|error| broken(error.to_string()))?;
        let mut answer = pin!(sender.send_request(request));
        let response: Result<Response<_>, hyper::Error> = tokio::select! {
            biased;
            response = &mut answer => response,
            // The connection may end with its answer: the answer is there then.
            _ = task => answer.await,
        };
        let response = response.map_err(|error| broken(chain(&error)))?;
        Ok::<_, ServerClockError>(date(response.headers()))
    };
    let limit: Duration = options.timeout;
    let date = timeout(limit, exchange)
        .await
        .unwrap_or_else(|_| Err(broken(format!("none within {} s", limit.as_secs()))))?;
    let (not_before, not_after) =
        verifier.proven().ok_or_else(|| broken("its certificate was not verified".to_owned()))?;
    Ok(ServerClock { not_before, not_after, date })
}

fn question(server: &Server, user_agent: &str) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    // Whether it is alive is for anybody to ask; a refusal has a date as well.
    let request = Request::get(format!("{server}/livez"))
        .header(USER_AGENT, user_agent)
        .body(Full::<Bytes>::default())?;
    Ok(http1::to_origin(request))
}

/// `Date` (RFC 9110, 6.6.1); `None` if there is none that can be read.
fn date(headers: &HeaderMap) -> Option<Wall> {
    const PARSER: DateTimeParser = DateTimeParser::new();
    let value = headers.get(DATE)?.to_str().ok()?;
    let nanos = PARSER.parse_timestamp(value.trim()).ok()?.as_nanosecond();
    i64::try_from(nanos).ok().map(Wall)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{SystemTime, UNIX_EPOCH};

    use agent_types::api::{ApiCall, ApiServer};
    use hyper::header::HeaderValue;

    use super::*;
    use crate::testing::{FakeServer, TestPki, Validity};

    const DAY: i64 = 24 * 3600;
    const SECOND: i64 = 1_000_000_000;

    fn now() -> i64 {
        i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
    }

    #[tokio::test]
    async fn a_server_whose_certificate_is_not_valid_yet_tells_the_time_to_nobody_but_its_own() {
        let fake = FakeServer::start(Arc::new(TestPki::new())).await.unwrap();
        let name = fake.server().host;
        for (from, until) in [(DAY, 9 * DAY), (-9 * DAY, -DAY)] {
            fake.set_tls(fake.pki.server_config(&[name.as_str()], Validity(from, until)));
            // The client that judges dates says that they are wrong, and gets nothing.
            let client = fake.node("n");
            let error = client.call(&ApiCall::GetNode { name: "n".into() }).await.unwrap_err();
            let wrong = if from > 0 { "not valid yet" } else { "has expired" };
            assert!(error.message.contains(wrong), "{error}");
            let options = Options::new("test");
            let seen = server_clock(&fake.server(), &fake.pki.trust(), &options).await.unwrap();
            assert!((seen.not_before.0 - now() - from * SECOND).abs() < 60 * SECOND, "{seen:?}");
            assert!((seen.not_after.0 - now() - until * SECOND).abs() < 60 * SECOND, "{seen:?}");
            let date = seen.date.expect("every answer has a date");
            assert!((date.0 - now()).abs() < 5 * SECOND, "{date:?}");
            let error = server_clock(&fake.server(), &TestPki::new().trust(), &options).await.unwrap_err();
            assert!(error.to_string().contains("does not trust"), "{error}");
        }
        let seen = fake.seen();
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(seen.iter().all(|s| s.who == "system:anonymous" && s.path == "/livez"), "{seen:?}");
    }

    #[tokio::test]
    async fn only_a_pinned_authority_can_vouch() {
        let fake = FakeServer::in_memory(Arc::new(TestPki::new()));
        for trust in [Trust::System, Trust::Anyone] {
            let options = Options::new("test");
            let error =
                server_clock_over(&fake.server(), &trust, &options, &fake.dialer()).await.unwrap_err();
            assert!(error.to_string().contains("pins no certificate authority"), "{error}");
            assert_eq!(pinned_since(&trust), None);
        }
        assert!(pinned_since(&fake.pki.trust()).is_some());
        assert!(fake.seen().is_empty());
    }

    #[test]
    fn dates_of_answers() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(DATE, HeaderValue::from_str(text).unwrap());
            date(&headers)
        };
        assert_eq!(of("Thu, 26 Nov 2026 12:00:00 GMT"), Some(Wall(1_795_694_400 * SECOND)));
        for text in ["", "yesterday", "Thu, 26 Nov 99999 12:00:00 GMT", "Thu, 26 Nov 2026"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(date(&HeaderMap::new()), None);
    }
}
