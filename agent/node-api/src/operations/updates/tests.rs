//! The updater's answers from a fake one, and what the slots allow.

use super::*;

fn seen(other: &str, state: SlotState) -> SlotsSeen {
    SlotsSeen {
        running: "a".to_owned(),
        desired: "a".to_owned(),
        running_version: "0.1.0".to_owned(),
        running_state: "good".to_owned(),
        other_version: other.to_owned(),
        other_state: state.name().to_owned(),
        ..SlotsSeen::default()
    }
}

fn upgrade(version: &str) -> OperationVerb {
    OperationVerb::Upgrade { version: version.to_owned(), to: String::new() }
}

fn rollback() -> OperationVerb {
    OperationVerb::Rollback { to: String::new() }
}

#[test]
fn the_version_before_is_one_that_was_good() {
    let mut back = rollback();
    settle(&mut back, &seen("0.0.9", SlotState::Good)).unwrap();
    assert_eq!(back.tried(), Some("0.0.9"));
    for (other, state, reason) in [
        ("", SlotState::Empty, Reason::NoOtherVersion),
        ("", SlotState::Good, Reason::NoOtherVersion),
        ("0.2.0", SlotState::Staged, Reason::NoOtherVersion),
        ("0.2.0", SlotState::Writing, Reason::NoOtherVersion),
        ("0.2.0", SlotState::Refused, Reason::VersionRefused),
    ] {
        let refusal = settle(&mut rollback(), &seen(other, state)).unwrap_err();
        assert_eq!(refusal.reason, reason, "{other} {state:?}");
        assert_eq!(refusal.object, "slot B");
    }
}

#[test]
fn a_version_that_is_there_is_not_fetched_again() {
    for (version, other, state, to) in [
        ("0.2.0", "0.2.0", SlotState::Staged, "0.2.0"),
        ("0.2.0", "0.2.0", SlotState::Good, "0.2.0"),
        ("0.2.0", "0.2.0", SlotState::Refused, ""),
        ("0.2.0", "0.2.0", SlotState::Writing, ""),
        ("0.2.0", "0.3.0", SlotState::Staged, ""),
        // The channel may have a newer one.
        ("", "0.2.0", SlotState::Staged, ""),
    ] {
        let mut what = upgrade(version);
        settle(&mut what, &seen(other, state)).unwrap();
        assert_eq!((what.tried(), what.has_to_stage()), (Some(to), to.is_empty()), "{version} {other}");
    }
    let refusal = settle(&mut upgrade("0.1.0"), &seen("", SlotState::Empty)).unwrap_err();
    assert_eq!((refusal.reason, refusal.message.as_str()), (Reason::NoOtherVersion, "0.1.0 runs already"));
}

#[test]
fn nothing_begins_while_a_trial_has_no_verdict() {
    let ordered = SlotsSeen { trial: "b".to_owned(), ..seen("0.2.0", SlotState::Trial) };
    let on_trial =
        SlotsSeen { trial: "a".to_owned(), desired: "b".to_owned(), ..seen("0.0.9", SlotState::Good) };
    let returns = SlotsSeen { desired: "b".to_owned(), ..seen("0.0.9", SlotState::Good) };
    for slots in [ordered, on_trial, returns] {
        for mut what in [upgrade(""), rollback(), OperationVerb::Stage { version: "0.3.0".to_owned() }] {
            assert_eq!(settle(&mut what, &slots).unwrap_err().reason, Reason::TrialUnderWay, "{slots:?}");
        }
    }
}

#[test]
fn the_last_report_is_the_outcome() {
    let report = |state| UpdateReport::new(state, "words");
    let version: ReleaseVersion = "0.2.0".parse().unwrap();
    let words = || "words".to_owned();
    for (report, asked, expected) in [
        (report(UpdateState::Staged).about(version), None, StageOutcome::Staged("0.2.0".to_owned())),
        (report(UpdateState::UpToDate), None, StageOutcome::Nothing(words())),
        (report(UpdateState::Waits).about(version), None, StageOutcome::Nothing(words())),
        (report(UpdateState::Failed).about(version), Some(version), StageOutcome::Failed(words())),
        (report(UpdateState::Staged), None, StageOutcome::Failed(words())),
    ] {
        assert_eq!(outcome(&report, asked), expected, "{report:?}");
    }
}

#[tokio::test]
async fn an_updater_is_heard_to_its_end_and_an_absent_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = socket(dir.path());
    let down = slots(&path).await.unwrap_err();
    assert_eq!((down.reason, down.object.as_str()), (Reason::PartDown, UPDATER));
    let gone = Staging::begin(path.clone(), None);
    let mut now = gone.now.clone();
    let ended = now.wait_for(|now| matches!(now, StagingNow::Ended(_))).await.unwrap().clone();
    assert!(matches!(ended, StagingNow::Ended(StageOutcome::Failed(_))), "{ended:?}");
    assert!(matches!(order_trial(&path, "0.2.0").await, AskOutcome::Refused(_)));
    assert!(matches!(order_trial(&path, "new").await, AskOutcome::Refused(_)));
}
