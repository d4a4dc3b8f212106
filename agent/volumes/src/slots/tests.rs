//! The volumes of a pod: what each answer of a set-up leads to.

use agent_types::time::Mono;

use super::*;

fn at(ms: u64) -> Mono {
    Mono(ms * 1_000_000)
}

fn volumes() -> PodVolumes {
    let mut volumes = PodVolumes::default();
    volumes.desire([DesiredVolume { name: "a", ..DesiredVolume::default() }].into_iter());
    volumes
}

#[test]
fn a_failure_before_a_set_up_begins_waits_also_after_one_that_was_overtaken() {
    let mut volumes = volumes();
    volumes.began("a");
    volumes.sources_changed();
    volumes.failed("a", at(1));
    assert_eq!(volumes.due(at(1)), ["a"], "its sources are new");
    // What it is made from cannot be said: no set-up begins.
    volumes.failed("a", at(1));
    assert_eq!((volumes.due(at(1)), volumes.deadline(at(1))), (Vec::new(), Some(at(1_001))));
}

#[test]
fn the_reason_is_said_once_by_the_set_up_after_a_long_wait() {
    let mut volumes = volumes();
    volumes.began("a");
    volumes.unattached("a", false, at(0));
    assert!(volumes.wait(at(0)).is_none() && volumes.no_room().is_none());
    let text = volumes.wait(at(0).after(WAIT_MAX)).unwrap();
    assert!(text.contains("unattached volumes=[a], failed to process volumes=[]"), "{text}");
    volumes.sources_changed();
    volumes.began("a");
    assert!(volumes.is_overdue("a") && !volumes.is_overdue("a"));
    assert!(
        volumes.wait_ended("x").contains("unattached volumes=[], "),
        "it is not known while a set-up is under way"
    );
    volumes.unattached("a", true, at(1));
    assert!(volumes.no_room().is_some());
    volumes.began("a");
    assert!(!volumes.is_overdue("a") && volumes.no_room().is_none());
    volumes.unprocessed("a", at(2));
    assert!(volumes.wait_ended("x").contains("unattached volumes=[], failed to process volumes=[a]"));
}

#[test]
fn events_about_files_on_their_way_go_on_until_a_set_up_ends() {
    let (mut volumes, s) = (volumes(), Duration::from_secs);
    for (took, event) in [(10, None), (30, Some(true)), (60, None), (90, Some(false)), (91, None)] {
        volumes.began("a");
        assert_eq!(volumes.giving("a", s(took)), event, "{took}");
        assert_eq!(volumes.due(at(0)), ["a"]);
    }
    volumes.began("a");
    volumes.failed("a", at(0));
    volumes.began("a");
    assert_eq!(volumes.giving("a", s(29)), None);
    volumes.began("a");
    assert_eq!(volumes.giving("a", s(30)), Some(true), "it begins anew");
}

#[test]
fn where_a_device_is_is_said_once_when_it_is_there() {
    let mut volumes = volumes();
    let places = ["g".to_owned(), "p".to_owned()];
    volumes.began("a");
    volumes.maps("a", places.clone());
    assert_eq!((volumes.mapped("a"), volumes.mapped("a")), (Some(places.clone()), None));
    volumes.succeeded("a", None, false);
    volumes.maps("a", places);
    assert_eq!(volumes.mapped("a"), None);
}
