//! `top`: processes with their use of CPU and memory, again and again.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Args;
use orlop_proto::node_api::v1alpha1::node_client::NodeClient;
use orlop_proto::node_api::v1alpha1::{GetRequest, GetResponse, KindFailure};
use tokio::time::{Instant, sleep_until};

use crate::cli::OutputForm;
use crate::commands::{Verdict, show, within, write};
use crate::failure::{CtlError, TOO_MANY_OBJECTS};
use crate::render::plain;
use crate::render::processes::{self, ProcessOrder};
use crate::target::{NodeChannel, Target};

/// Kinds that are asked for.
const KINDS: [&str; 2] = ["processes", "memory"];
/// Clears a terminal, and goes to its first line (ECMA-48: ED, CUP).
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// What is shown.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Ends after so many tables
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    number: Option<u64>,
    /// Time between two tables, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// What comes first
    #[arg(long, value_enum, default_value_t = ProcessOrder::Cpu)]
    sort: ProcessOrder,
    /// Rows of a table
    #[arg(long, value_name = "N", default_value_t = 25)]
    rows: usize,
}

/// Shows tables until there were enough. The first one comes after the second answer: use is a difference.
pub(crate) async fn run(
    target: &Target,
    limit: Duration,
    form: OutputForm,
    args: &TopArgs,
) -> Result<Verdict, CtlError> {
    let mut client = NodeClient::new(target.connect(limit).await?);
    let clear = if io::stdout().is_terminal() && form == OutputForm::Table { CLEAR } else { "" };
    let mut before = ask(&mut client, limit).await?;
    let mut shown = 0;
    loop {
        sleep_until(before.at + Duration::from_secs(args.every)).await;
        let after = ask(&mut client, limit).await?;
        let elapsed = after.at.duration_since(before.at);
        let uses = processes::uses(&before.response, &after.response, elapsed, args.sort);
        let text =
            || format!("{clear}{}{}", processes::text(&uses, &after.response, args.rows), said(&after));
        show(form, &processes::document(&uses, args.rows), text)?;
        shown += 1;
        if args.number.is_some_and(|number| shown >= number) {
            return Ok(if after.response.failures.iter().all(is_usual) {
                Verdict::Fine
            } else {
                Verdict::Problems
            });
        }
        if clear.is_empty() {
            write("\n")?;
        }
        before = after;
    }
}

/// A healthy node may have more processes than an answer has; those with the most memory are there.
fn is_usual(failure: &KindFailure) -> bool {
    failure.error.as_ref().is_some_and(|error| error.reason == TOO_MANY_OBJECTS)
}

/// What the node could not say, for people.
fn said(answer: &TimedAnswer) -> String {
    let failures = answer.response.failures.iter();
    failures.map(|failure| format!("{}: {}\n", plain(&failure.kind), plain(&failure.message))).collect()
}

struct TimedAnswer {
    response: GetResponse,
    at: Instant,
}

async fn ask(client: &mut NodeClient<NodeChannel>, limit: Duration) -> Result<TimedAnswer, CtlError> {
    let request = GetRequest { kinds: KINDS.map(str::to_owned).to_vec(), names: Vec::new() };
    let response = within(limit, "the node", client.get(request)).await?;
    Ok(TimedAnswer { response, at: Instant::now() })
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::ErrorDetail;

    use super::*;

    #[test]
    fn many_processes_are_no_problem_and_none_are_one() {
        let failure = |reason: &str| {
            let error = ErrorDetail { reason: reason.to_owned(), ..ErrorDetail::default() };
            KindFailure { error: Some(error), ..KindFailure::default() }
        };
        assert!(is_usual(&failure(TOO_MANY_OBJECTS)));
        assert!(!is_usual(&failure("PART_DOWN")) && !is_usual(&KindFailure::default()));
    }
}
