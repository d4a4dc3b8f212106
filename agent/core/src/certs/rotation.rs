//! Time of a certificate's replacement, and pauses after failures.
//!
//! In: the facts of the certificate, the required names, the time. Out: [`RotationDue`], pauses, and the reason why
//! a clock cannot be right. Invariants: the deadline is between 70 % and 90 % of the certificate's lifetime;
//! a certificate that arrives after that window (short-lived and back-dated) gets the same share of the rest.
//! Upstream: client-go/util/certificate/certificate_manager.go.

use std::time::Duration;

use agent_types::api_time::text;
use agent_types::backoff::Backoff;
use agent_types::certificates::{CertTemplate, CertificateFacts};
use agent_types::entropy::Entropy;
use agent_types::time::Wall;

/// Pauses after a failure.
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(32));
/// Spread of pauses, percent.
const RETRY_JITTER_PERCENT: u32 = 10;

/// What to do about a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RotationDue {
    /// Ask for a new one now, because.
    Now(String),
    /// All is well until then.
    At(Wall),
}

/// Is a new certificate needed at `wall`? `rotate_at` is the deadline drawn for `current`.
pub(super) fn need(
    current: Option<&CertificateFacts>,
    wanted: &CertTemplate,
    rotate_at: Option<Wall>,
    wall: Wall,
) -> RotationDue {
    let Some(current) = current else { return RotationDue::Now("there is no certificate".to_owned()) };
    if current.not_after <= wall {
        return RotationDue::Now(format!("the certificate expired at {}", text(current.not_after)));
    }
    if current.not_before > wall {
        return RotationDue::Now(format!("the certificate is not valid before {}", text(current.not_before)));
    }
    if current.from_bootstrap {
        return RotationDue::Now("the certificate was only given to start with".to_owned());
    }
    if let Some(why) = wanted.unmet(current) {
        return RotationDue::Now(format!("the certificate does not do: {why}"));
    }
    match rotate_at {
        Some(at) if at <= wall => {
            RotationDue::Now(format!("the certificate expires at {}", text(current.not_after)))
        }
        Some(at) => RotationDue::At(at),
        None => RotationDue::At(current.not_after),
    }
}

/// When to replace a certificate that was loaded: at 70 % to 90 % of its lifetime.
pub(super) fn deadline(facts: &CertificateFacts, entropy: &mut Entropy) -> Wall {
    share(facts.not_before, facts.not_after, entropy)
}

/// When to replace a certificate that was issued at `wall`: as [`deadline`], but never at once.
pub(super) fn deadline_of_new(facts: &CertificateFacts, wall: Wall, entropy: &mut Entropy) -> Wall {
    match deadline(facts, entropy) {
        at if at <= wall => share(wall, facts.not_after, entropy),
        at => at,
    }
}

fn share(from: Wall, to: Wall, entropy: &mut Entropy) -> Wall {
    // In tenths first, so that nothing overflows.
    let tenth = to.since(from) / 10;
    let offset = entropy.within(tenth * 7, tenth * 9);
    Wall(from.0.saturating_add(i64::try_from(offset.as_nanos()).unwrap_or(i64::MAX)))
}

/// The pause after this many failures in a row.
pub(super) fn retry_pause(failures: u32, entropy: &mut Entropy) -> Duration {
    RETRY.jittered(failures.saturating_sub(1), RETRY_JITTER_PERCENT, entropy)
}

/// How a clock is known to be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClockProblem {
    /// It shows a time before the image was built: certain.
    BeforeImage(String),
    /// It shows a time before the certificate begins: likely, but the signer's clock may have been the wrong one.
    BeforeCertificate(String),
}

impl ClockProblem {
    pub(super) fn message(&self) -> &str {
        match self {
            ClockProblem::BeforeImage(message) | ClockProblem::BeforeCertificate(message) => message,
        }
    }
}

/// Why the clock cannot be right, if so.
pub(super) fn clock_problem(
    floor: Wall,
    current: Option<&CertificateFacts>,
    wall: Wall,
) -> Option<ClockProblem> {
    const DO: &str = "waiting until NTP (time.servers), the API server's clock or a person sets it";
    if wall < floor {
        let (shown, built) = (text(wall), text(floor));
        return Some(ClockProblem::BeforeImage(format!(
            "the clock shows {shown}, but this image was built at {built}: {DO}"
        )));
    }
    let current = current.filter(|c| c.not_before > wall)?;
    let (shown, from) = (text(wall), text(current.not_before));
    Some(ClockProblem::BeforeCertificate(format!(
        "the clock shows {shown}, but the node's certificate is valid from {from} only: {DO}"
    )))
}
