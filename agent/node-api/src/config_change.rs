//! Changes of the node's own document: what a request begins, what the record says of it. Pure.
//!
//! In: requests, identities, the sources that the node runs with, the record. Out: a [`NewChange`] for the machine of
//! `orlop_config::change`, messages of the protocol, refusals. Invariants: a document that is refused begins nothing; one on which the
//! way to the node may depend is confirmed unless an administrator says otherwise; nobody takes the own key away without a
//! confirmation, which has to come with another one.

use std::time::Duration;

use orlop_config::change::{
    ChangeAuthor, ChangeOutcome, ChangeRecord, ChangeRefusal, ChangeStage, ChangeTime, ClosedChange,
    Confirmation, DocumentText, NewChange, OpenChange,
};
use orlop_config::node::{ChangeEffect, Effective, KeyChange, RunningSources, changes};
use orlop_proto::node_api::v1alpha1::{ConfigApplyRequest, ConfigChange};

use crate::configuration::{ConfigCandidate, PlannedAnswer};
use crate::guard::{Door, Identity};
use crate::refusal::{Reason, Refusal};

/// Shortest and longest time of a trial, seconds.
const WINDOW_S: (u32, u32) = (10, 86_400);
/// The time without one in the request, seconds.
const WINDOW_DEFAULT_S: u32 = 600;
/// Mistakes that a refusal lists; `check` has all.
const MISTAKES_MAX: usize = 5;
/// A change that is not applied yet is asked for again after this.
const AGAIN: Duration = Duration::from_secs(2);
/// Name of the API's requests in refusals.
const OBJECT: &str = "configuration";

/// What a request begins.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedChange {
    /// For the machine.
    pub change: NewChange,
    /// For the answer.
    pub answer: PlannedAnswer,
}

/// How a request wants its change to be confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfirmWish {
    /// Seconds; 0: the node decides.
    pub seconds: u32,
    /// It counts once it is applied.
    pub not_asked: bool,
}

impl ConfirmWish {
    /// From a request.
    ///
    /// # Errors
    /// It cannot be.
    pub fn new(request: &ConfigApplyRequest) -> Result<ConfirmWish, Refusal> {
        let (seconds, not_asked) = (request.confirm_seconds, request.no_confirm);
        let bad = |message: String| Err(Refusal::new(Reason::BadRequest, OBJECT, message));
        if seconds != 0 && not_asked {
            return bad("it has a time for its confirmation, and wants none".to_owned());
        }
        if seconds != 0 && !(WINDOW_S.0..=WINDOW_S.1).contains(&seconds) {
            return bad(format!("the time is from {} to {} s, not {seconds}", WINDOW_S.0, WINDOW_S.1));
        }
        Ok(ConfirmWish { seconds, not_asked })
    }
}

/// What a candidate begins.
///
/// # Errors
/// It is refused, changes keys of the first boot, or takes the caller's key without a confirmation.
pub fn plan(
    running: &RunningSources,
    candidate: ConfigCandidate,
    wish: ConfirmWish,
    (identity, door): (&Identity, Door),
) -> Result<PlannedChange, Refusal> {
    let before = running.effective();
    let checked = running.check(&before, candidate.document.as_deref(), &candidate.origin);
    if !checked.accepted {
        let mistakes: Vec<String> =
            checked.problems.iter().take(MISTAKES_MAX).map(ToString::to_string).collect();
        let message = format!("{} mistakes: {}", checked.problems.len(), mistakes.join("; "));
        return Err(Refusal::new(Reason::ConfigRefused, candidate.origin, message));
    }
    let rows = changes(&before, &checked.after);
    let keys = |wanted: &dyn Fn(&KeyChange) -> bool| -> Vec<String> {
        rows.iter().filter(|&row| wanted(row)).map(|row| row.path.clone()).collect()
    };
    let of_first_boot = keys(&|row| row.effect == ChangeEffect::FirstBoot);
    if !of_first_boot.is_empty() {
        let message = format!("it changes {}", of_first_boot.join(", "));
        return Err(Refusal::new(Reason::FirstBootOnly, candidate.origin, message));
    }
    let is_way_in = rows.iter().any(|row| row.is_way_in);
    let is_asked = wish.seconds != 0 || is_way_in && !wish.not_asked;
    if !is_asked && door == Door::Tcp && loses_key(identity, &before, &checked.after) {
        let message =
            format!("it takes the key of {} away: it has to be confirmed, with another key", identity.name);
        return Err(Refusal::new(Reason::BadRequest, candidate.origin, message));
    }
    let seconds = if wish.seconds == 0 { WINDOW_DEFAULT_S } else { wish.seconds };
    let change = NewChange {
        document: candidate.document.map(DocumentText),
        author: ChangeAuthor { who: identity.name.clone(), door: door.to_string() },
        keys: keys(&|_| true),
        window_ms: u64::from(seconds) * 1000,
        confirmation: if is_asked { Confirmation::Asked } else { Confirmation::Applied },
        // Another way in says nothing about this one.
        confirm_door: (is_way_in && door == Door::Tcp).then(|| door.to_string()),
        at_boot: rows.iter().any(|row| row.effect == ChangeEffect::Reboot),
    };
    Ok(PlannedChange { change, answer: PlannedAnswer { changes: rows, problems: checked.problems } })
}

/// Whether the caller's key is none of the administrators' any more.
fn loses_key(identity: &Identity, before: &Effective, after: &Effective) -> bool {
    let own = before.config.api.admins.iter().find(|admin| admin.name == identity.name);
    own.is_none_or(|own| !after.config.api.admins.iter().any(|admin| admin.key == own.key))
}

/// The refusal of the machine, for people and programs.
#[must_use]
pub fn refusal(refused: &ChangeRefusal) -> Refusal {
    let reason = match refused {
        ChangeRefusal::Open { .. } => Reason::ChangeOpen,
        ChangeRefusal::Same | ChangeRefusal::NoChange | ChangeRefusal::OtherChange { .. } => Reason::NoChange,
        ChangeRefusal::NotTried { .. }
        | ChangeRefusal::NotApplied(_)
        | ChangeRefusal::OldConnection
        | ChangeRefusal::OtherDoor { .. } => Reason::ChangeNotReady,
    };
    let retry_after = match refused {
        ChangeRefusal::NotApplied(_) => AGAIN,
        _ => Duration::ZERO,
    };
    Refusal { retry_after, ..Refusal::new(reason, OBJECT, refused.to_string()) }
}

/// All changes of a record, the oldest first.
#[must_use]
pub fn history(record: &ChangeRecord, now: ChangeTime<'_>) -> Vec<ConfigChange> {
    record.history.iter().map(closed).chain(record.open.as_ref().map(|change| open(change, now))).collect()
}

fn closed(change: &ClosedChange) -> ConfigChange {
    let stage = match change.outcome {
        ChangeOutcome::Confirmed => "confirmed",
        ChangeOutcome::Reverted => "reverted",
    };
    ConfigChange {
        number: change.number,
        who: change.author.who.clone(),
        door: change.author.door.clone(),
        keys: change.keys.clone(),
        stage: stage.to_owned(),
        message: change.why.clone(),
        begun_seconds: change.begun_s,
        ended_seconds: change.ended_s,
        ..ConfigChange::default()
    }
}

/// A change that has not ended.
#[must_use]
pub fn open(change: &OpenChange, now: ChangeTime<'_>) -> ConfigChange {
    let (stage, message, left_ms) = match &change.stage {
        ChangeStage::Waiting => ("waiting", change.stage.words(now), 0),
        ChangeStage::Trying { deadline_ms, applied_ms, .. } => {
            let stage = if applied_ms.is_some() { "applied" } else { "trying" };
            (stage, change.stage.words(now), deadline_ms.saturating_sub(now.up_ms))
        }
        ChangeStage::Reverting { why } => ("reverting", why.clone(), 0),
    };
    ConfigChange {
        number: change.number,
        who: change.author.who.clone(),
        door: change.author.door.clone(),
        keys: change.keys.clone(),
        stage: stage.to_owned(),
        message,
        at_boot: change.at_boot,
        needs_confirmation: change.confirmation == Confirmation::Asked,
        left_ms,
        begun_seconds: change.begun_s,
        ended_seconds: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Role;

    const HEAD: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";
    const KEY: &str = "ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

    fn running() -> RunningSources {
        let esp = format!("{HEAD}api: {{admins: [{{name: ops-1, key: '{KEY}'}}]}}\nlabels: {{a: b}}\n");
        RunningSources::parse(&[("20-esp.yaml".to_owned(), esp)])
    }

    fn planned(body: &str, wish: ConfirmWish) -> Result<PlannedChange, Refusal> {
        let candidate = ConfigCandidate::new(format!("{HEAD}{body}"), "e.yaml", false).unwrap();
        let ops = Identity { name: "ops-1".to_owned(), role: Role::Admin };
        plan(&running(), candidate, wish, (&ops, Door::Tcp))
    }

    const NODE: ConfirmWish = ConfirmWish { seconds: 0, not_asked: false };
    const NEVER: ConfirmWish = ConfirmWish { seconds: 0, not_asked: true };
    const SOON: ConfirmWish = ConfirmWish { seconds: 30, not_asked: false };

    #[test]
    fn the_way_in_is_confirmed_by_it_and_other_keys_count_when_they_are_applied() {
        let network = "network: {interfaces: [{name: eth0, addresses: [192.0.2.1/24]}]}\n";
        for (body, wish, confirmation, window_ms, door, at_boot) in [
            ("labels: {a: c}\n", NODE, Confirmation::Applied, 600_000, None, false),
            ("labels: {a: c}\n", SOON, Confirmation::Asked, 30_000, None, false),
            (network, NODE, Confirmation::Asked, 600_000, Some("tcp"), false),
            (network, NEVER, Confirmation::Applied, 600_000, Some("tcp"), false),
            ("kernel: {modules: [dummy]}\n", NODE, Confirmation::Asked, 600_000, Some("tcp"), true),
            ("swap: {size: 64Mi}\n", NODE, Confirmation::Applied, 600_000, None, true),
        ] {
            let change = planned(body, wish).unwrap().change;
            assert_eq!(
                (change.confirmation, change.window_ms, change.at_boot),
                (confirmation, window_ms, at_boot),
                "{body}"
            );
            assert_eq!(change.confirm_door.as_deref(), door, "{body}");
            assert_eq!(change.author.who, "ops-1");
        }
        let change = planned("labels: {a: c}\n", NODE).unwrap();
        assert_eq!(change.change.keys, ["labels.a"]);
        assert_eq!(change.answer.changes[0].effect, ChangeEffect::RestartsKubelet);
    }

    #[test]
    fn another_kubeconfig_of_join_is_confirmed_by_its_way() {
        let file = |content: &str| {
            format!("{HEAD}files: [{{path: /var/lib/orlop/files/kubeconfig, content: {content}}}]\n")
        };
        let esp = format!("{}join: {{kubeconfig: /var/lib/orlop/files/kubeconfig}}\n", file("a"));
        let running = RunningSources::parse(&[("20-esp.yaml".to_owned(), esp)]);
        let candidate = ConfigCandidate::new(file("b"), "e.yaml", false).unwrap();
        let ops = Identity { name: "ops-1".to_owned(), role: Role::Admin };
        let change = plan(&running, candidate, NODE, (&ops, Door::Tcp)).unwrap().change;
        assert_eq!((change.confirmation, change.at_boot), (Confirmation::Asked, false));
        assert_eq!(change.confirm_door.as_deref(), Some("tcp"));
    }

    #[test]
    fn what_begins_nothing() {
        let reason = |body: &str, wish| planned(body, wish).unwrap_err().reason;
        assert_eq!(reason("nod: 1\n", NODE), Reason::ConfigRefused);
        assert_eq!(reason("node: {name: other}\n", NODE), Reason::FirstBootOnly);
        assert_eq!(reason("install: {disk: S1}\n", NODE), Reason::FirstBootOnly);
        // The only key of the caller.
        let away = "api: {admins: []}\n";
        assert_eq!(reason(away, NEVER), Reason::BadRequest);
        assert_eq!(planned(away, NODE).unwrap().change.confirmation, Confirmation::Asked);
        let renamed = format!("api: {{admins: [{{name: ops-9, key: '{KEY}'}}]}}\n");
        assert_eq!(planned(&renamed, NEVER).unwrap().change.confirmation, Confirmation::Applied);
        let wish = |confirm_seconds, no_confirm| {
            ConfirmWish::new(&ConfigApplyRequest {
                confirm_seconds,
                no_confirm,
                ..ConfigApplyRequest::default()
            })
        };
        for (seconds, no_confirm) in [(9, false), (86_401, false), (60, true)] {
            assert_eq!(wish(seconds, no_confirm).unwrap_err().reason, Reason::BadRequest);
        }
        assert_eq!(wish(60, false), Ok(ConfirmWish { seconds: 60, not_asked: false }));
    }

    #[test]
    fn the_history_has_every_stage() {
        let now = |up_ms| ChangeTime { boot: "b", up_ms, wall_s: 7 };
        let mut record = ChangeRecord::default();
        let stages = |record: &ChangeRecord, up_ms| {
            let all = history(record, now(up_ms));
            all.iter().map(|change| (change.number, change.stage.clone(), change.left_ms)).collect::<Vec<_>>()
        };
        let change = planned("labels: {a: c}\n", SOON).unwrap().change;
        record.begin(change.clone(), now(1000)).unwrap();
        assert_eq!(stages(&record, 2000), [(1, "trying".to_owned(), 29_000)]);
        record.applied(now(2000));
        assert_eq!(stages(&record, 2000), [(1, "applied".to_owned(), 29_000)]);
        record.failed("no");
        assert_eq!(stages(&record, 2000), [(1, "reverting".to_owned(), 0)]);
        record.reverted(now(3000));
        record.begin(NewChange { at_boot: true, ..change }, now(4000)).unwrap();
        let found = stages(&record, 5000);
        assert_eq!(found, [(1, "reverted".to_owned(), 0), (2, "waiting".to_owned(), 0)]);
        let all = history(&record, now(5000));
        assert_eq!((all[0].message.as_str(), all[0].ended_seconds), ("no", 7));
        assert!(all[1].at_boot && all[1].needs_confirmation);
    }

    #[test]
    fn refusals_of_the_machine_have_reasons() {
        let early = refusal(&ChangeRefusal::NotApplied(3));
        assert_eq!((early.reason, early.retry_after), (Reason::ChangeNotReady, AGAIN));
        assert_eq!(refusal(&ChangeRefusal::Same).reason, Reason::NoChange);
        let open = ChangeRefusal::Open { who: "a".to_owned(), number: 1, stage: "x".to_owned() };
        assert_eq!(refusal(&open).reason, Reason::ChangeOpen);
    }
}
