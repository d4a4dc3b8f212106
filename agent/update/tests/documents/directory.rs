//! A node and a directory: what it takes, what it keeps over restarts, and the attacks on both.

use std::fs;
use std::os::unix::net::UnixListener;

use crate::publisher::{Publisher, at, channel, release, request, version, write};
use orlop_config::release::{
    ARCH, ChannelClock, ChannelDocument, DocumentFault, NodeRelease, RELEASE_DOCUMENT, channel_path,
    release_path, trust_path,
};
use orlop_update::{
    MountedDirectory, Survey, SurveyAnswer, SurveyRequest, UpdateError, UpdateStore, survey_directory,
};

/// One look of a node that has just started.
fn look(publisher: &Publisher, request: &SurveyRequest<'_>) -> Result<Survey, UpdateError> {
    let mut store = UpdateStore::open(&publisher.kept(), &publisher.image_trust())?;
    survey_directory(&MountedDirectory::new(&publisher.served()), &mut store, request)
}

fn fault(result: Result<Survey, UpdateError>) -> DocumentFault {
    match result {
        Err(UpdateError::Document { error, .. }) => error.fault,
        other => panic!("{other:?}"),
    }
}

fn takes(publisher: &Publisher) -> String {
    match look(publisher, &request()).expect("an answer").answer {
        SurveyAnswer::Take(release) => release.version.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_takes_the_release_of_its_channel() {
    let publisher = Publisher::new();
    let survey = look(&publisher, &request()).expect("an answer");
    assert_eq!((survey.trust.number, survey.channel.sequence), (1, 5));
    assert_eq!((survey.clock, survey.answer), (ChannelClock::Verified, SurveyAnswer::Take(release("0.2.0"))));
    let newest = NodeRelease { running: version("0.2.0"), ..request().node };
    let survey = look(&publisher, &SurveyRequest { node: newest, ..request() }).expect("an answer");
    assert_eq!(survey.answer, SurveyAnswer::UpToDate);
}

#[test]
fn an_image_without_a_trust_document_says_so() {
    let publisher = Publisher::new();
    fs::remove_file(publisher.image_trust()).expect("removed");
    let said = look(&publisher, &request()).expect_err("not configured").to_string();
    assert!(said.starts_with("updates are not configured: this image has no "), "{said}");
    write(&publisher.image_trust(), b"{");
    assert!(matches!(fault(look(&publisher, &request())), DocumentFault::Unreadable(_)));
}

#[test]
fn a_new_release_key_is_taken_and_remembered() {
    let mut publisher = Publisher::new();
    publisher.make_key("release-b");
    let next = publisher.trust(2, "release-b", "channel");
    publisher.publish(&trust_path(2), &next, &["root-2", "root-3"]);
    assert!(matches!(fault(look(&publisher, &request())), DocumentFault::NotSigned { trust: 2, .. }));
    // The source hides the new document: the node has kept it.
    fs::remove_file(publisher.served().join(trust_path(2))).expect("removed");
    assert!(matches!(fault(look(&publisher, &request())), DocumentFault::NotSigned { trust: 2, .. }));
    let path = release_path(version("0.2.0"), ARCH, RELEASE_DOCUMENT);
    publisher.publish(&path, &release("0.2.0"), &["release-b"]);
    assert_eq!(takes(&publisher), "0.2.0");
}

#[test]
fn a_long_chain_is_followed_at_once() {
    let publisher = Publisher::new();
    for number in 2..40 {
        let next = publisher.trust(number, "release", "channel");
        publisher.publish(&trust_path(number), &next, &["root-1", "root-3"]);
    }
    assert_eq!(look(&publisher, &request()).expect("an answer").trust.number, 39);
}

/// A stranger who writes to the state partition plants no keys of his own.
#[test]
fn a_planted_trust_document_does_not_count() {
    let publisher = Publisher::new();
    let stranger = Publisher::new();
    let planted = stranger.trust(2, "release", "channel");
    write(&publisher.kept().join(trust_path(2)), &stranger.signed(&planted, &["root-1", "root-2"]));
    let survey = look(&publisher, &request()).expect("an answer");
    assert_eq!(survey.trust.number, 1);
    assert_eq!(takes(&publisher), "0.2.0");
}

#[test]
fn a_replayed_channel_is_refused_after_a_restart() {
    let publisher = Publisher::new();
    let old = fs::read(publisher.served().join(channel_path("stable"))).expect("read");
    publisher.publish(&channel_path("stable"), &channel(6), &["channel"]);
    assert_eq!(takes(&publisher), "0.2.0");
    write(&publisher.served().join(channel_path("stable")), &old);
    let result = look(&publisher, &request());
    let said = result.as_ref().expect_err("replayed").to_string();
    assert!(said.starts_with("channel stable from ") && said.contains("it has sequence 5"), "{said}");
    assert_eq!(fault(result), DocumentFault::Replayed { found: 5, seen: 6 });
    // A damaged file is no reason to stand still for ever.
    write(&publisher.kept().join(channel_path("stable")), b"\0");
    assert_eq!(takes(&publisher), "0.2.0");
}

/// Attack: a stolen channel key signs the highest sequence, so that no good document could ever follow.
#[test]
fn a_sequence_of_a_stolen_key_ends_with_the_key() {
    let mut publisher = Publisher::new();
    publisher.publish(&channel_path("stable"), &channel((1 << 53) - 1), &["channel"]);
    assert_eq!(takes(&publisher), "0.2.0");
    publisher.publish(&channel_path("stable"), &channel(6), &["channel"]);
    assert!(matches!(fault(look(&publisher, &request())), DocumentFault::Replayed { found: 6, .. }));
    publisher.make_key("channel-b");
    let next = publisher.trust(2, "release", "channel-b");
    publisher.publish(&trust_path(2), &next, &["root-1", "root-2"]);
    publisher.publish(&channel_path("stable"), &channel(6), &["channel-b"]);
    assert_eq!(takes(&publisher), "0.2.0");
}

/// Attack: a key is stolen, and the source hides the trust document that ends it.
#[test]
fn a_hidden_trust_document_is_missed() {
    let publisher = Publisher::new();
    let later = ChannelDocument { trust: 2, ..channel(6) };
    publisher.publish(&channel_path("stable"), &later, &["channel"]);
    assert_eq!(fault(look(&publisher, &request())), DocumentFault::TrustHidden { known: 1, want: 2 });
    let next = publisher.trust(2, "release", "channel");
    publisher.publish(&trust_path(2), &next, &["root-1", "root-2"]);
    assert_eq!(takes(&publisher), "0.2.0");
}

/// What is no file would wait for its writer, or fail at each look.
#[test]
fn what_is_no_file_among_the_kept_does_not_count() {
    let publisher = Publisher::new();
    let kept = [trust_path(2), channel_path("stable")].map(|path| publisher.kept().join(path));
    let _sockets = kept.map(|path| {
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        UnixListener::bind(path).expect("a socket")
    });
    assert_eq!(takes(&publisher), "0.2.0");
    assert!(publisher.kept().join(channel_path("stable")).is_file());
}

#[test]
fn a_frozen_source_is_found_once_the_clock_is_trusted() {
    let publisher = Publisher::new();
    let later = |now| SurveyRequest { now, ..request() };
    assert_eq!(look(&publisher, &later(None)).expect("an answer").clock, ChannelClock::Unverified);
    let expired = look(&publisher, &later(Some(at("2027-06-01T00:00:00Z"))));
    assert!(matches!(fault(expired), DocumentFault::Expired { .. }));
}

#[test]
fn documents_that_the_source_lacks_are_named() {
    let publisher = Publisher::new();
    fs::remove_dir_all(publisher.served().join("releases")).expect("removed");
    let said = look(&publisher, &request()).expect_err("no release").to_string();
    assert!(said.contains("has no release 0.2.0 (releases/0.2.0/x86-64/release.json)"), "{said}");
    let beta = SurveyRequest { channel: "beta", ..request() };
    let said = look(&publisher, &beta).expect_err("no channel").to_string();
    assert!(said.contains("has no channel beta (channels/beta.json)"), "{said}");
    let outside = SurveyRequest { channel: "../trust/1", ..request() };
    assert!(matches!(look(&publisher, &outside), Err(UpdateError::ChannelName(_))));
}

#[test]
fn a_named_version_is_taken_without_the_channels_choice_but_not_below_the_floor() {
    let publisher = Publisher::new();
    let none = ChannelDocument { releases: Vec::new(), ..channel(6) };
    publisher.publish(&channel_path("stable"), &none, &["channel"]);
    let node = NodeRelease { running: version("0.3.0"), ..request().node };
    let named = SurveyRequest { node: node.clone(), version: Some(version("0.2.0")), ..request() };
    assert_eq!(look(&publisher, &named).expect("an answer").answer, SurveyAnswer::Take(release("0.2.0")));
    let named = SurveyRequest { node: NodeRelease { floor: 3, ..node }, ..named };
    assert_eq!(fault(look(&publisher, &named)), DocumentFault::BelowFloor { generation: 2, floor: 3 });
}

/// One byte after another of every document: nothing else is taken for it, and nothing panics.
#[test]
fn a_flipped_byte_takes_no_other_release() {
    for path in
        [trust_path(2), channel_path("stable"), release_path(version("0.2.0"), ARCH, RELEASE_DOCUMENT)]
    {
        let publisher = Publisher::new();
        let next = publisher.trust(2, "release", "channel");
        publisher.publish(&trust_path(2), &next, &["root-1", "root-2"]);
        let file = publisher.served().join(&path);
        let good = fs::read(&file).expect("read");
        for at in (0..good.len()).step_by(31) {
            let mut text = good.clone();
            text[at] ^= 4;
            write(&file, &text);
            let _ = fs::remove_dir_all(publisher.kept());
            match look(&publisher, &request()) {
                Ok(survey) => assert_eq!(survey.answer, SurveyAnswer::Take(release("0.2.0")), "{path} {at}"),
                Err(error) => assert!(matches!(error, UpdateError::Document { .. }), "{path} {at}: {error}"),
            }
        }
    }
}
