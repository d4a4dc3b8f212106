//! `reboot`, `shutdown`, `restart`, `reset`, `upgrade`, `rollback`, `wait`, `cancel`: operations, which the node carries out without this
//! program.
//!
//! Invariant: an operation has an identifier of this program before the node hears of it, so that a lost answer is asked for again; a
//! wait goes on through the reboot that it waits for, and ends at its limit in any case.

use std::io::Write as _;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use orlop_proto::node_api::v1alpha1::operations_client::OperationsClient;
use orlop_proto::node_api::v1alpha1::{
    FactoryResetRequest, OperationRequest, OperationStatus, RestartServiceRequest, StopRequest,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::cli::OutputForm;
use crate::cluster_node::FoundNode;
use crate::commands::{Verdict, show, within};
use crate::failure::CtlError;
use crate::render::operation::{progress, text};
use crate::render::plain;
use crate::target::Target;
use crate::upgrade::{RollbackArgs, UpgradeArgs, rollback};

/// Pause before each try to reach a node that went away.
const RETRY: Duration = Duration::from_secs(2);
/// Reasons of refusals that are over after a while.
const LATER: [&str; 2] = ["CANNOT_ASK", "TOO_MANY_CALLS"];
/// Between two lines about blocks that are written.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// A node that is to go off has gone when so many tries have failed.
const GONE_TRIES: u32 = 2;

/// How an operation is followed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FollowArgs {
    /// Does not wait for the end
    #[arg(long)]
    no_wait: bool,
    /// Longest wait for the end, seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..=172_800))]
    longest: u64,
}

/// A stop of the machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct StopArgs {
    /// Begins after so many seconds; `orlopctl cancel` calls it off before
    #[arg(long = "in", value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    delay: u32,
    #[command(flatten)]
    wish: WishArgs,
}

/// A restart of a service.
#[derive(Clone, Debug, Args)]
pub(crate) struct RestartArgs {
    /// Service of systemd
    #[arg(value_name = "SERVICE")]
    unit: String,
    #[command(flatten)]
    wish: WishArgs,
}

/// What a factory reset leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResetScopeWord {
    /// Machine id, certificates and configuration
    Keep,
    /// Nothing: the next boot is a first boot
    Forget,
}

impl ResetScopeWord {
    fn word(self) -> &'static str {
        match self {
            ResetScopeWord::Keep => "keep",
            ResetScopeWord::Forget => "forget",
        }
    }
}

/// A factory reset.
#[derive(Clone, Debug, Args)]
pub(crate) struct ResetArgs {
    /// What is left of the node's state
    #[arg(value_enum, value_name = "SCOPE")]
    scope: ResetScopeWord,
    #[command(flatten)]
    wish: WishArgs,
}

/// What every new operation has.
#[derive(Clone, Debug, Args)]
pub(crate) struct WishArgs {
    /// Also if the node's disk cannot keep the record of it
    #[arg(long)]
    unrecorded: bool,
    /// Identifier (UUID); the same one is the same operation. Without it: a new one
    #[arg(long, value_name = "UUID")]
    id: Option<String>,
    #[command(flatten)]
    follow: FollowArgs,
}

/// An operation that is there.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitArgs {
    /// Identifier of the operation (`orlopctl get operations`)
    #[arg(value_name = "UUID")]
    pub(crate) id: String,
    /// Longest wait for the end, seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..=172_800))]
    longest: u64,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) enum OperationVerb {
    Reboot(StopArgs),
    Shutdown(StopArgs),
    Restart(RestartArgs),
    Reset(ResetArgs),
    Upgrade(UpgradeArgs),
    Rollback(RollbackArgs),
    Wait(WaitArgs),
    Cancel(WaitArgs),
}

/// Runs a verb.
pub(crate) async fn run(
    found: &FoundNode,
    limit: Duration,
    form: OutputForm,
    verb: OperationVerb,
) -> Result<Verdict, CtlError> {
    let args = match &verb {
        OperationVerb::Reboot(args) | OperationVerb::Shutdown(args) => &args.wish,
        OperationVerb::Restart(args) => &args.wish,
        OperationVerb::Reset(args) => &args.wish,
        OperationVerb::Upgrade(args) => {
            // A command line without sense needs no node.
            args.request(String::new(), false)?;
            &args.wish
        }
        OperationVerb::Rollback(args) => &args.wish,
        OperationVerb::Wait(args) => {
            let ended = follow(found, limit, &args.id, None, Duration::from_secs(args.longest)).await?;
            return shown(form, &ended);
        }
        OperationVerb::Cancel(args) => {
            let mut client = OperationsClient::new(found.target.connect(limit).await?);
            let request = OperationRequest { id: args.id.clone() };
            let off = within(limit, "the node", client.cancel(request)).await?;
            shown(form, &off)?;
            return Ok(Verdict::Fine);
        }
    };
    let id = match &args.id {
        Some(id) => id.clone(),
        None => new_identifier()?,
    };
    // Before the node hears of it: who loses the answer can ask for it.
    say(&format!("operation {id}"));
    let begun = begin(&found.target, limit, &verb, id.clone(), args.unrecorded).await?;
    if args.follow.no_wait || begun.ended {
        return shown(form, &begun);
    }
    say(&progress(&begun));
    let ended = follow(found, limit, &id, Some(begun), Duration::from_secs(args.follow.longest)).await?;
    shown(form, &ended)
}

async fn begin(
    target: &Target,
    limit: Duration,
    verb: &OperationVerb,
    id: String,
    unrecorded: bool,
) -> Result<OperationStatus, CtlError> {
    let mut client = OperationsClient::new(target.connect(limit).await?);
    let stop = |args: &StopArgs, id: String| StopRequest { id, delay_seconds: args.delay, unrecorded };
    match verb {
        OperationVerb::Reboot(args) => within(limit, "the node", client.reboot(stop(args, id))).await,
        OperationVerb::Shutdown(args) => within(limit, "the node", client.shutdown(stop(args, id))).await,
        OperationVerb::Restart(args) => {
            let request = RestartServiceRequest { id, unit: service(&args.unit), unrecorded };
            within(limit, "the node", client.restart_service(request)).await
        }
        OperationVerb::Reset(args) => {
            let request = FactoryResetRequest { id, scope: args.scope.word().to_owned(), unrecorded };
            within(limit, "the node", client.factory_reset(request)).await
        }
        OperationVerb::Upgrade(args) => {
            let request = args.request(id, unrecorded)?;
            within(limit, "the node", client.upgrade(request)).await
        }
        OperationVerb::Rollback(_) => {
            within(limit, "the node", client.rollback(rollback(id, unrecorded))).await
        }
        // `run` has taken them.
        OperationVerb::Wait(_) | OperationVerb::Cancel(_) => {
            Err(CtlError::Usage("it begins no operation".to_owned()))
        }
    }
}

/// Follows an operation to its end, through losses of the connection. A node that goes off has no end to show: what it said last, which
/// may be its answer to the request.
async fn follow(
    found: &FoundNode,
    limit: Duration,
    id: &str,
    begun: Option<OperationStatus>,
    longest: Duration,
) -> Result<OperationStatus, CtlError> {
    let until = Instant::now() + longest;
    let mut found = found.clone();
    let (mut last, mut tries, mut is_told) = (begun, 0u32, false);
    loop {
        let before = last.clone();
        let error = match changes(&found.target, limit, id, until, &mut last).await {
            Ok(ended) => return Ok(ended),
            Err(error) => error,
        };
        // A node that forgets itself has neither its record nor its key any more.
        if let Some(status) = last.as_ref().filter(|status| forgets(status)) {
            return Ok(status.clone());
        }
        if !is_away(&error) {
            return Err(error);
        }
        if Instant::now() >= until {
            return Err(CtlError::TimedOut { what: format!("operation {id}"), limit: longest });
        }
        (tries, is_told) = if last == before { (tries.saturating_add(1), is_told) } else { (0, false) };
        match &last {
            Some(status) if goes_off(status) && tries >= GONE_TRIES => return Ok(status.clone()),
            _ => {}
        }
        if !is_told {
            say(&format!("no connection; waiting for {}", found.target));
            is_told = true;
        }
        sleep_until((Instant::now() + RETRY).min(until)).await;
        // A node that refuses is there.
        if error.reason().is_empty() {
            found.find_again(limit.min(until.saturating_duration_since(Instant::now()))).await;
        }
    }
}

/// One connection: changes until the end.
async fn changes(
    target: &Target,
    limit: Duration,
    id: &str,
    until: Instant,
    last: &mut Option<OperationStatus>,
) -> Result<OperationStatus, CtlError> {
    let mut client = OperationsClient::new(target.connect(limit).await?);
    let request = OperationRequest { id: id.to_owned() };
    let mut changes = within(limit, "the node", client.watch(request)).await?;
    let mut said: Option<Instant> = None;
    loop {
        let late = |_| CtlError::TimedOut { what: format!("operation {id}"), limit };
        let change = timeout_at(until, changes.message()).await.map_err(late)?;
        let Some(status) = change.map_err(CtlError::Refused)? else {
            let why = "its server has ended".to_owned();
            return Err(CtlError::Unreachable { target: target.to_string(), why });
        };
        if last.as_ref() != Some(&status) {
            let is_quiet = status.phase == "staging" && said.is_some_and(|at| at.elapsed() < SAY_EVERY);
            if !is_quiet {
                say(&progress(&status));
                said = Some(Instant::now());
            }
            *last = Some(status.clone());
        }
        if status.ended {
            return Ok(status);
        }
    }
}

/// Whether a later try may have an answer: a node that starts has its server before the agent that has tokens reviewed.
fn is_away(error: &CtlError) -> bool {
    let is_late = matches!(error, CtlError::TimedOut { .. });
    is_late || error.is_lost_connection() || LATER.contains(&error.reason().as_str())
}

/// Whether the node does not come back by itself.
fn goes_off(status: &OperationStatus) -> bool {
    status.verb == "shutdown" && status.phase != "scheduled"
}

/// Whether the node is about to lose the record.
fn forgets(status: &OperationStatus) -> bool {
    (status.verb.as_str(), status.object.as_str(), status.phase.as_str()) == ("reset", "forget", "waiting")
}

fn shown(form: OutputForm, status: &OperationStatus) -> Result<Verdict, CtlError> {
    let document = serde_json::to_value(status).unwrap_or_default();
    match form {
        OutputForm::Name => crate::commands::write(&format!("operations/{}\n", plain(&status.id)))?,
        other => show(other, &document, || text(status))?,
    }
    let is_bad = matches!(status.phase.as_str(), "failed" | "cancelled");
    Ok(if is_bad { Verdict::Problems } else { Verdict::Fine })
}

/// What is not the answer goes to standard error. If that is gone, there is no other place for it.
fn say(words: &str) {
    let _ = writeln!(std::io::stderr(), "orlopctl: {words}");
}

/// A name of systemd: `kubelet` is `kubelet.service`.
fn service(name: &str) -> String {
    if name.contains('.') { name.to_owned() } else { format!("{name}.service") }
}

fn new_identifier() -> Result<String, CtlError> {
    let mut random = [0; 10];
    let filled = SystemRandom::new().fill(&mut random);
    filled.map_err(|_| CtlError::Output(std::io::Error::other("the system has no random numbers")))?;
    Ok(identifier(Timestamp::now().as_millisecond(), random))
}

/// A UUID of version 7 (RFC 9562, section 5.7): identifiers are in the order of their times.
fn identifier(ms: i64, random: [u8; 10]) -> String {
    let time = ms.to_be_bytes();
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&time[2..]);
    bytes[6..].copy_from_slice(&random);
    bytes[6] = 0x70 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    let mut text = String::with_capacity(36);
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::encode;
    use orlop_proto::node_api::v1alpha1::ErrorDetail;
    use tonic::{Code, Status};

    use super::*;

    #[test]
    fn a_wait_goes_on_while_a_later_try_may_have_an_answer() {
        let refused = |code, reason: &str| {
            let detail = ErrorDetail { reason: reason.to_owned(), ..ErrorDetail::default() };
            CtlError::Refused(Status::with_details(code, "no", encode(&detail).into()))
        };
        let unreachable = CtlError::Unreachable { target: "t".to_owned(), why: "w".to_owned() };
        let late = CtlError::TimedOut { what: "t".to_owned(), limit: RETRY };
        for (error, goes_on) in [
            (refused(Code::Unavailable, "CANNOT_ASK"), true),
            (refused(Code::ResourceExhausted, "TOO_MANY_CALLS"), true),
            (CtlError::Refused(Status::unavailable("the connection broke")), true),
            (unreachable, true),
            (late, true),
            (refused(Code::Unavailable, "PART_DOWN"), false),
            (refused(Code::NotFound, "NO_SUCH_OPERATION"), false),
            (refused(Code::Unauthenticated, "UNKNOWN_TOKEN"), false),
            (CtlError::Usage("u".to_owned()), false),
        ] {
            assert_eq!(is_away(&error), goes_on, "{error}");
        }
    }

    #[test]
    fn identifiers_are_uuids_of_version_7() {
        let id = identifier(0x0193_6f2e_0102, [0xff; 10]);
        assert_eq!(id, "01936f2e-0102-7fff-bfff-ffffffffffff");
        assert!(identifier(1_000, [0xff; 10]) < identifier(1_001, [0; 10]));
        assert_ne!(new_identifier().unwrap(), new_identifier().unwrap());
    }

    #[test]
    fn a_service_needs_no_ending() {
        assert_eq!(
            (service("kubelet"), service("a.service")),
            ("kubelet.service".into(), "a.service".into())
        );
    }

    #[test]
    fn only_a_shutdown_that_has_begun_has_no_end_to_wait_for() {
        let status = |verb: &str, phase: &str| OperationStatus {
            verb: verb.to_owned(),
            phase: phase.to_owned(),
            ..OperationStatus::default()
        };
        assert!(goes_off(&status("shutdown", "waiting")));
        assert!(!goes_off(&status("shutdown", "scheduled")) && !goes_off(&status("reboot", "waiting")));
    }
}
