//! One round of questions as a machine: which request is next, and what an answer changes.
//!
//! In: a platform, then for each [`Inquiry::request`] what came of it. Out: [`Findings`]. The user data are asked until the service
//! answers, with any answer; a fact that it refuses, or does not give after [`FACT_TRIES`] tries, is absent. The caller owns
//! time: it waits after each [`Fault`], and asks the same again.

use super::exchange::{ExchangeFailure, MetadataRequest, MetadataResponse, RequestMethod, Service};
use super::facts::facts;
use super::questions::{Dialect, FactKey, METADATA_ADDRESS, Question, dialect, fact_text};
use super::user_data::{self, UserDataRefusal};
use orlop_config::platform::{PlatformFacts, PlatformName};
use serde_json::Value;
use std::collections::BTreeMap;

/// After so many failures a fact is not asked for any more. What is missing then is missing for good: the tries span three seconds.
pub const FACT_TRIES: u32 = 5;
/// Longest token, bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// Why the same question has to be asked again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Nothing came back.
    #[error("no answer ({0})")]
    NoAnswer(ExchangeFailure),
    /// AWS gives no token.
    #[error("IMDSv2 gives no token ({0}): hop limit 1 behind a router?")]
    NoToken(String),
    /// An answer that is neither the thing nor its absence.
    #[error("{target} is answered with status {status}")]
    Status {
        /// Path.
        target: &'static str,
        /// Status code.
        status: u16,
    },
    /// A redirect.
    #[error("{target} is redirected, and redirects are not followed")]
    Redirected {
        /// Path.
        target: &'static str,
    },
}

impl Fault {
    /// The machine has no network yet: no service was asked.
    #[must_use]
    pub fn is_before_network(&self) -> bool {
        matches!(self, Fault::NoAnswer(ExchangeFailure::NoRoute(_)))
    }
}

/// The result of a round. The user data may hold a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Findings {
    /// The text of the user data; `None` if there are none.
    pub user_data: Result<Option<String>, UserDataRefusal>,
    /// Facts about the machine.
    pub facts: PlatformFacts,
}

/// A round.
pub struct Inquiry {
    platform: PlatformName,
    dialect: &'static Dialect,
    /// Secret.
    token: Option<String>,
    /// Index of the question.
    at: usize,
    /// Failures of this question in a row.
    failures: u32,
    user_data: Result<Option<String>, UserDataRefusal>,
    answers: BTreeMap<FactKey, String>,
}

impl Inquiry {
    /// A round of questions for this platform; `None` if it has no metadata service.
    #[must_use]
    pub fn new(platform: PlatformName) -> Option<Inquiry> {
        let dialect = dialect(platform)?;
        let (user_data, answers) = (Ok(None), BTreeMap::new());
        Some(Inquiry { platform, dialect, token: None, at: 0, failures: 0, user_data, answers })
    }

    /// The next request; `None` at the end of the round.
    #[must_use]
    pub fn request(&self) -> Option<MetadataRequest> {
        let question = self.dialect.questions.get(self.at)?;
        let mut headers: Vec<(&'static str, String)> =
            self.dialect.headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let (method, target, bytes_max) = match (&self.dialect.token, &self.token) {
            (Some(wanted), None) => {
                headers.push((wanted.ttl.0, wanted.ttl.1.to_owned()));
                (RequestMethod::Put, wanted.target, TOKEN_BYTES_MAX)
            }
            (Some(wanted), Some(token)) => {
                headers.push((wanted.header, token.clone()));
                (RequestMethod::Get, question.target(), user_data::BYTES_MAX)
            }
            (None, _) => (RequestMethod::Get, question.target(), user_data::BYTES_MAX),
        };
        let (service, body) = (Service::Metadata, String::new());
        let Dialect { host, ipv6, .. } = *self.dialect;
        Some(MetadataRequest { method, service, host, ipv6, target, headers, body, bytes_max })
    }

    /// Takes what came of the request.
    ///
    /// # Errors
    /// The same is to be asked again, after a pause.
    pub fn answer(&mut self, answer: Result<MetadataResponse, ExchangeFailure>) -> Result<(), Fault> {
        let Some(question) = self.dialect.questions.get(self.at) else { return Ok(()) };
        if self.dialect.token.is_some() && self.token.is_none() {
            return self.take_token(answer);
        }
        if let (Question::UserData { .. }, Err(ExchangeFailure::TooLarge(_))) = (question, &answer) {
            self.user_data = Err(UserDataRefusal::TooLarge);
            self.step();
            return Ok(());
        }
        match judge(question.target(), answer) {
            Ok(body) => {
                self.take(question, body.as_deref());
                self.step();
                Ok(())
            }
            Err(fault) => {
                if matches!(fault, Fault::Status { status: 401 | 403, .. }) {
                    // The token may have expired.
                    self.token = None;
                }
                self.failures += 1;
                if self.failures >= FACT_TRIES && !matches!(question, Question::UserData { .. }) {
                    self.step();
                    return Ok(());
                }
                Err(fault)
            }
        }
    }

    /// What the round found.
    #[must_use]
    pub fn into_findings(self) -> Findings {
        Findings { user_data: self.user_data, facts: facts(self.platform, &self.answers) }
    }

    fn step(&mut self) {
        (self.at, self.failures) = (self.at + 1, 0);
    }

    fn take_token(&mut self, answer: Result<MetadataResponse, ExchangeFailure>) -> Result<(), Fault> {
        let why = match answer {
            Ok(MetadataResponse { status: 200, body }) => match fact_bytes(&body) {
                Some(token) => {
                    self.token = Some(token);
                    return Ok(());
                }
                None => "the answer is no token".to_owned(),
            },
            Ok(MetadataResponse { status, .. }) => format!("status {status}"),
            // Nobody is there at all: that says nothing about tokens.
            Err(failure @ (ExchangeFailure::NoRoute(_) | ExchangeFailure::NoConnection(_))) => {
                return Err(Fault::NoAnswer(failure));
            }
            Err(failure) => failure.to_string(),
        };
        Err(Fault::NoToken(why))
    }

    fn take(&mut self, question: &Question, body: Option<&[u8]>) {
        let Some(body) = body else { return };
        match question {
            Question::UserData { base64, .. } => self.user_data = user_data::decode(body, *base64),
            Question::Fact { key, .. } => {
                self.answers.extend(fact_text(body).map(|text| (*key, text)));
            }
            Question::Document { fields, .. } => {
                let document: Value = serde_json::from_slice(body).unwrap_or_default();
                for (pointer, key) in *fields {
                    let text = match document.pointer(pointer) {
                        Some(Value::String(text)) => fact_text(text.as_bytes()),
                        Some(Value::Number(number)) => Some(number.to_string()),
                        _ => None,
                    };
                    self.answers.extend(text.map(|text| (*key, text)));
                }
            }
        }
    }
}

/// A token may be longer than a fact.
fn fact_bytes(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?.trim();
    let visible = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    visible.then(|| text.to_owned())
}

/// The body of an answer, or `None` if there is no such thing.
fn judge(
    target: &'static str,
    answer: Result<MetadataResponse, ExchangeFailure>,
) -> Result<Option<Vec<u8>>, Fault> {
    match answer.map_err(Fault::NoAnswer)? {
        MetadataResponse { status: 200, body } => Ok(Some(body)),
        MetadataResponse { status: 204 | 404 | 410, .. } => Ok(None),
        MetadataResponse { status: 300..=399, .. } => Err(Fault::Redirected { target }),
        MetadataResponse { status, .. } => Err(Fault::Status { target, status }),
    }
}

/// The beginning of every message about a platform's service.
#[must_use]
pub fn service_name(platform: PlatformName) -> String {
    format!("metadata of {} at {METADATA_ADDRESS}", platform.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(text: &str) -> Result<MetadataResponse, ExchangeFailure> {
        status(200, text)
    }

    fn status(status: u16, text: &str) -> Result<MetadataResponse, ExchangeFailure> {
        Ok(MetadataResponse { status, body: text.as_bytes().to_vec() })
    }

    fn unreachable() -> Result<MetadataResponse, ExchangeFailure> {
        Err(ExchangeFailure::NoRoute("Network is unreachable".into()))
    }

    fn header(inquiry: &Inquiry, name: &str) -> Option<String> {
        let request = inquiry.request().expect("a question");
        request.headers.into_iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    #[test]
    fn aws_gets_a_token_first_and_carries_it() {
        let mut inquiry = Inquiry::new(PlatformName::Aws).expect("a dialect");
        let first = inquiry.request().expect("a question");
        assert_eq!((first.method, first.target), (RequestMethod::Put, "/latest/api/token"));
        assert_eq!(inquiry.answer(ok("secret==")), Ok(()));
        assert_eq!(inquiry.request().map(|r| r.target), Some("/latest/user-data"));
        assert_eq!(header(&inquiry, "x-aws-ec2-metadata-token").as_deref(), Some("secret=="));
        // It expired meanwhile.
        let refused = Fault::Status { target: "/latest/user-data", status: 401 };
        assert_eq!(inquiry.answer(status(401, "")), Err(refused));
        assert_eq!(inquiry.request().map(|r| r.method), Some(RequestMethod::Put));
        assert_eq!(inquiry.answer(ok("again")), Ok(()));
        assert_eq!(inquiry.answer(status(404, "no data")), Ok(()));
        while inquiry.request().is_some() {
            assert_eq!(inquiry.answer(ok("x")), Ok(()));
        }
        let findings = inquiry.into_findings();
        assert_eq!(findings.user_data, Ok(None));
        assert_eq!(findings.facts.provider_id.as_deref(), Some("aws:///x/x"));
    }

    #[test]
    fn a_token_that_is_not_given_is_named() {
        let mut inquiry = Inquiry::new(PlatformName::Aws).expect("a dialect");
        for answer in
            [status(401, ""), status(403, ""), Err(ExchangeFailure::Silent), ok(" "), status(302, "")]
        {
            let fault = inquiry.answer(answer).expect_err("no token");
            assert!(matches!(&fault, Fault::NoToken(_)), "{fault:?}");
            assert!(fault.to_string().contains("hop limit"), "{fault}");
        }
        assert!(inquiry.answer(unreachable()).is_err_and(|fault| fault.is_before_network()));
        let refused = inquiry.answer(Err(ExchangeFailure::NoConnection("Connection refused".into())));
        assert!(
            refused.is_err_and(|fault| matches!(&fault, Fault::NoAnswer(_)) && !fault.is_before_network())
        );
        assert_eq!(inquiry.request().map(|r| r.target), Some("/latest/api/token"));
    }

    #[test]
    fn user_data_are_asked_until_there_is_an_answer() {
        let mut inquiry = Inquiry::new(PlatformName::Gce).expect("a dialect");
        assert_eq!(header(&inquiry, "metadata-flavor").as_deref(), Some("Google"));
        for _ in 0..10 {
            assert!(matches!(inquiry.answer(unreachable()), Err(Fault::NoAnswer(_))));
            assert!(matches!(inquiry.answer(status(503, "")), Err(Fault::Status { status: 503, .. })));
            assert!(matches!(inquiry.answer(status(302, "")), Err(Fault::Redirected { .. })));
        }
        assert_eq!(inquiry.answer(ok("#cloud-config\n")), Ok(()));
        let mut faults = 0;
        while inquiry.request().is_some() {
            faults += u32::from(inquiry.answer(unreachable()).is_err());
        }
        // Each fact is given up after its last try.
        assert_eq!(faults, 7 * (FACT_TRIES - 1));
        let findings = inquiry.into_findings();
        assert_eq!(findings.user_data, Err(UserDataRefusal::CloudConfig));
        assert_eq!(findings.facts, PlatformFacts::default());
    }

    #[test]
    fn too_much_user_data_are_refused_and_end_nothing() {
        let mut inquiry = Inquiry::new(PlatformName::Hetzner).expect("a dialect");
        assert_eq!(inquiry.answer(Err(ExchangeFailure::TooLarge(1 << 20))), Ok(()));
        assert_eq!(inquiry.answer(ok("4711")), Ok(()));
        while inquiry.request().is_some() {
            assert_eq!(inquiry.answer(status(404, "")), Ok(()));
        }
        let findings = inquiry.into_findings();
        assert_eq!(findings.user_data, Err(UserDataRefusal::TooLarge));
        assert_eq!(findings.facts.provider_id.as_deref(), Some("hcloud://4711"));
    }

    #[test]
    fn documents_give_several_facts() {
        let mut inquiry = Inquiry::new(PlatformName::OpenStack).expect("a dialect");
        assert_eq!(inquiry.answer(status(404, "")), Ok(()));
        let document = r#"{"name": "n1", "uuid": "u", "availability_zone": "nova", "x": 1}"#;
        assert_eq!(inquiry.answer(ok(document)), Ok(()));
        assert_eq!(inquiry.answer(ok("m1.small")), Ok(()));
        assert_eq!(inquiry.answer(ok("10.0.0.5")), Ok(()));
        assert_eq!(inquiry.answer(ok("")), Ok(()));
        assert_eq!(inquiry.request(), None);
        assert_eq!(inquiry.answer(ok("late")), Ok(()), "nothing is asked any more");
        let facts = inquiry.into_findings().facts;
        assert_eq!((facts.hostname.as_deref(), facts.zone.as_deref()), (Some("n1"), Some("nova")));
        assert_eq!(facts.provider_id.as_deref(), Some("openstack:///u"));
        assert_eq!(facts.instance_type.as_deref(), Some("m1.small"));
        assert_eq!((facts.local_ipv4.as_deref(), facts.public_ipv4), (Some("10.0.0.5"), None));
        for broken in ["", "[", "{\"name\": 7}", "[1]"] {
            let mut inquiry = Inquiry::new(PlatformName::OpenStack).expect("a dialect");
            assert_eq!(inquiry.answer(status(404, "")), Ok(()));
            assert_eq!(inquiry.answer(ok(broken)), Ok(()));
        }
    }
}
