//! The verbs of the configuration: calls of a node, or the same answers from sources on this machine.
//!
//! In: arguments. Out: what a document would change, its mistakes, the sources of values. Invariant: a node and this machine give the
//! same text for the same sources: both are `orlop_config`'s answers, rendered here.

use jiff::Timestamp;
use orlop_config::Problem;
use orlop_config::node::{RunningSources, changes};
use orlop_proto::node_api::v1alpha1::config_client::ConfigClient;
use orlop_proto::node_api::v1alpha1::{
    ConfigApplyRequest, ConfigApplyResponse, ConfigChange, ConfigCheckRequest, ConfigCheckResponse,
    ConfigConfirmRequest, ConfigExplainRequest, ConfigExplainResponse, ConfigExplainedKey,
    ConfigHistoryRequest, ConfigHistoryResponse, ConfigKeyChange, ConfigProblem, ConfigRevertRequest,
};

use crate::cli::Cli;
use crate::commands::{Verdict, show, way, within};
use crate::config_args::{ConfigApplyArgs, ConfigCheckArgs, ConfigExplainArgs, ConfigVerb, ReadDocument};
use crate::failure::CtlError;
use crate::render::amounts::seconds;
use crate::render::{plain, table};
use crate::target::NodeChannel;

/// What a value that is not there looks like in a table.
const NONE: &str = "-";

/// Runs a verb.
pub(crate) async fn run(cli: &Cli, verb: &ConfigVerb) -> Result<Verdict, CtlError> {
    match verb {
        ConfigVerb::Check(args) => {
            let (document, answer) = checked(cli, args).await?;
            let value = serde_json::to_value(&answer).unwrap_or_default();
            show(cli.output, &value, || check_text(&document.origin, &answer))?;
            Ok(verdict(&answer))
        }
        ConfigVerb::Diff(args) => {
            let (_, answer) = checked(cli, args).await?;
            let value = serde_json::to_value(&answer).unwrap_or_default();
            show(cli.output, &value, || diff_text(&answer))?;
            Ok(verdict(&answer))
        }
        ConfigVerb::Explain(args) => explain(cli, args).await,
        ConfigVerb::Apply(args) => apply(cli, args).await,
        ConfigVerb::Confirm(args) => {
            let request = ConfigConfirmRequest { number: args.number };
            let mut client = client(cli).await?;
            let answer = within(cli.timeout(), "the node", client.confirm(request)).await?;
            let value = serde_json::to_value(answer).unwrap_or_default();
            show(cli.output, &value, || format!("change {} counts from now on\n", answer.number))?;
            Ok(Verdict::Fine)
        }
        ConfigVerb::Revert(args) => {
            let request = ConfigRevertRequest { number: args.number };
            let mut client = client(cli).await?;
            let answer = within(cli.timeout(), "the node", client.revert(request)).await?;
            let value = serde_json::to_value(answer).unwrap_or_default();
            show(cli.output, &value, || format!("change {} is being taken back\n", answer.number))?;
            Ok(Verdict::Fine)
        }
        ConfigVerb::History => {
            let mut client = client(cli).await?;
            let answer = within(cli.timeout(), "the node", client.history(ConfigHistoryRequest {})).await?;
            show(cli.output, &serde_json::to_value(&answer).unwrap_or_default(), || history_text(&answer))?;
            Ok(Verdict::Fine)
        }
    }
}

/// Begins a change. The answer comes before it is applied: it may end this connection.
async fn apply(cli: &Cli, args: &ConfigApplyArgs) -> Result<Verdict, CtlError> {
    let confirm_seconds = args.confirm_seconds()?;
    let ReadDocument { text, origin, remove } = args.document.read()?;
    let request =
        ConfigApplyRequest { document: text, origin, remove, confirm_seconds, no_confirm: args.no_confirm };
    let mut client = client(cli).await?;
    let answer = within(cli.timeout(), "the node", client.apply(request)).await?;
    show(cli.output, &serde_json::to_value(&answer).unwrap_or_default(), || apply_text(&answer))?;
    Ok(Verdict::Fine)
}

fn verdict(answer: &ConfigCheckResponse) -> Verdict {
    if answer.accepted { Verdict::Fine } else { Verdict::Problems }
}

async fn client(cli: &Cli) -> Result<ConfigClient<NodeChannel>, CtlError> {
    Ok(ConfigClient::new(way(cli).await?.target.connect(cli.timeout()).await?))
}

/// What a document would change.
async fn checked(cli: &Cli, args: &ConfigCheckArgs) -> Result<(ReadDocument, ConfigCheckResponse), CtlError> {
    let document = args.document.read()?;
    if let Some(sources) = args.offline.sources()? {
        let answer = check_here(&sources, &document);
        return Ok((document, answer));
    }
    let request = ConfigCheckRequest {
        document: document.text.clone(),
        origin: document.origin.clone(),
        remove: document.remove,
    };
    let mut client = client(cli).await?;
    let answer = within(cli.timeout(), "the node", client.check(request)).await?;
    Ok((document, answer))
}

fn check_here(sources: &RunningSources, document: &ReadDocument) -> ConfigCheckResponse {
    let before = sources.effective();
    let text = (!document.remove).then_some(document.text.as_str());
    let checked = sources.check(&before, text, &document.origin);
    let changes = if checked.accepted { changes(&before, &checked.after) } else { Vec::new() };
    ConfigCheckResponse {
        accepted: checked.accepted,
        problems: checked
            .problems
            .into_iter()
            .map(|problem| ConfigProblem {
                source: problem.source,
                line: problem.line.and_then(|line| u64::try_from(line).ok()).unwrap_or(0),
                path: problem.path,
                value: problem.value.unwrap_or_default(),
                reason: problem.reason,
            })
            .collect(),
        changes: changes
            .into_iter()
            .map(|change| ConfigKeyChange {
                path: change.path,
                before: change.before,
                after: change.after,
                effect: change.effect.word().to_owned(),
                is_way_in: change.is_way_in,
            })
            .collect(),
    }
}

async fn explain(cli: &Cli, args: &ConfigExplainArgs) -> Result<Verdict, CtlError> {
    let answer = match args.offline.sources()? {
        Some(sources) => {
            let keys = sources.effective().explain(&args.below, args.defaults);
            let row = |key: orlop_config::node::ExplainedKey| ConfigExplainedKey {
                path: key.path,
                value: key.value,
                source: key.source,
            };
            ConfigExplainResponse { keys: keys.into_iter().map(row).collect() }
        }
        None => {
            let request = ConfigExplainRequest { below: args.below.clone(), defaults: args.defaults };
            let mut client = client(cli).await?;
            within(cli.timeout(), "the node", client.explain(request)).await?
        }
    };
    show(cli.output, &serde_json::to_value(&answer).unwrap_or_default(), || explain_text(&answer))?;
    Ok(Verdict::Fine)
}

fn problem_lines(answer: &ConfigCheckResponse) -> String {
    let line = |problem: &ConfigProblem| {
        let shown = Problem {
            source: problem.source.clone(),
            line: usize::try_from(problem.line).ok().filter(|line| *line > 0),
            path: problem.path.clone(),
            value: Some(problem.value.clone()).filter(|value| !value.is_empty()),
            reason: problem.reason.clone(),
        };
        format!("{}\n", plain(&shown.to_string()))
    };
    answer.problems.iter().map(line).collect()
}

fn check_text(origin: &str, answer: &ConfigCheckResponse) -> String {
    let lines = problem_lines(answer);
    if !answer.accepted {
        return lines;
    }
    let keys = match answer.changes.len() {
        1 => "1 key".to_owned(),
        count => format!("{count} keys"),
    };
    format!("{lines}{} is right; it would change {keys}\n", plain(origin))
}

fn diff_text(answer: &ConfigCheckResponse) -> String {
    let lines = problem_lines(answer);
    if !answer.accepted {
        return lines;
    }
    if answer.changes.is_empty() {
        return format!("{lines}no key would change\n");
    }
    let value = |value: &Option<String>| value.as_deref().map_or_else(|| NONE.to_owned(), plain);
    let row = |change: &ConfigKeyChange| {
        let (before, after) = (value(&change.before), value(&change.after));
        vec![plain(&change.path), before, after, plain(&change.effect)]
    };
    let rows = answer.changes.iter().map(row).collect();
    format!("{lines}{}", table::table(&["KEY", "BEFORE", "AFTER", "EFFECT"], rows))
}

fn apply_text(answer: &ConfigApplyResponse) -> String {
    let checked = ConfigCheckResponse {
        accepted: true,
        problems: answer.problems.clone(),
        changes: answer.changes.clone(),
    };
    let change = answer.change.clone().unwrap_or_default();
    let number = change.number;
    let time = seconds(change.left_ms.div_ceil(1000));
    let next = match (change.at_boot, change.needs_confirmation) {
        (true, true) => "it is tried in the next boot, and has to be confirmed there".to_owned(),
        (true, false) => "it counts from the next boot on".to_owned(),
        (false, true) => format!("confirm it within {time}: orlopctl config confirm {number}"),
        (false, false) => "it counts once it is applied: orlopctl config history".to_owned(),
    };
    format!("{}change {number}: {next}\n", diff_text(&checked))
}

fn history_text(answer: &ConfigHistoryResponse) -> String {
    let row = |change: &ConfigChange| {
        let who = format!("{} by {}", change.who, change.door);
        let ended = if change.ended_seconds == 0 { NONE.to_owned() } else { time(change.ended_seconds) };
        let cells = [
            change.number.to_string(),
            time(change.begun_seconds),
            ended,
            who,
            change.stage.clone(),
            change.keys.join(","),
            change.message.clone(),
        ];
        cells.iter().map(|cell| plain(cell)).collect()
    };
    let headers = ["NUMBER", "BEGUN", "ENDED", "WHO", "STAGE", "KEYS", "WHY"];
    table::table(&headers, answer.changes.iter().map(row).collect())
}

/// A time of the node's clock.
fn time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.to_string())
}

fn explain_text(answer: &ConfigExplainResponse) -> String {
    let row = |key: &ConfigExplainedKey| vec![plain(&key.path), plain(&key.value), plain(&key.source)];
    table::table(&["KEY", "VALUE", "SOURCE"], answer.keys.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, before: Option<&str>) -> ConfigKeyChange {
        ConfigKeyChange {
            path: path.to_owned(),
            before: before.map(str::to_owned),
            after: Some("\"b\u{1b}\"".to_owned()),
            effect: "live".to_owned(),
            is_way_in: false,
        }
    }

    #[test]
    fn an_answer_says_what_comes_next() {
        let answer = |at_boot: bool, needs_confirmation: bool| {
            let change = ConfigChange {
                number: 3,
                left_ms: 299_500,
                at_boot,
                needs_confirmation,
                ..ConfigChange::default()
            };
            apply_text(&ConfigApplyResponse { change: Some(change), ..ConfigApplyResponse::default() })
        };
        let confirm = "change 3: confirm it within 5m 0s: orlopctl config confirm 3\n";
        assert!(answer(false, true).ends_with(confirm), "{}", answer(false, true));
        assert!(answer(false, false).contains("once it is applied"));
        assert!(answer(true, false).contains("from the next boot on"));
        assert!(answer(true, true).contains("has to be confirmed there"));
    }

    #[test]
    fn changes_have_their_times_and_reasons() {
        let ended = ConfigChange {
            number: 1,
            who: "ops-1".to_owned(),
            door: "tcp".to_owned(),
            keys: vec!["labels.a".to_owned()],
            stage: "reverted".to_owned(),
            message: "no\u{1b}".to_owned(),
            begun_seconds: 0,
            ended_seconds: 86_400,
            ..ConfigChange::default()
        };
        let text = history_text(&ConfigHistoryResponse { changes: vec![ended] });
        let line = text.lines().nth(1).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = [
            "1",
            "1970-01-01T00:00:00Z",
            "1970-01-02T00:00:00Z",
            "ops-1",
            "by",
            "tcp",
            "reverted",
            "labels.a",
            "no?",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn changes_are_a_table_and_mistakes_are_lines() {
        let mut answer = ConfigCheckResponse { accepted: true, ..ConfigCheckResponse::default() };
        assert_eq!(diff_text(&answer), "no key would change\n");
        answer.changes = vec![change("labels.a", None), change("update.policy", Some("1"))];
        let table = "KEY            BEFORE  AFTER  EFFECT\n\
                     labels.a       -       \"b?\"   live\n\
                     update.policy  1       \"b?\"   live\n";
        assert_eq!(diff_text(&answer), table);
        assert_eq!(check_text("e.yaml", &answer), "e.yaml is right; it would change 2 keys\n");
        answer.accepted = false;
        answer.problems = vec![ConfigProblem {
            source: "e.yaml".to_owned(),
            line: 3,
            path: "nod".to_owned(),
            value: String::new(),
            reason: "is an unknown field".to_owned(),
        }];
        assert_eq!(check_text("e.yaml", &answer), "e.yaml:3: nod: is an unknown field\n");
        assert_eq!(diff_text(&answer), "e.yaml:3: nod: is an unknown field\n");
    }
}
