//! Every write of the agent's own records and directories refused, one after the other, and cut off there
//! (docs/internals/testing.md, faults).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_core::allocation::{Allocations, PodAllocation};
use agent_core::images::pull_records::Policy;
use agent_core::node_shutdown::LastEnd;
use agent_faults::{FileOperation, Refusal, refusing, survives};
use agent_types::credential::{Credential, Origin, Source};
use agent_types::ids::{PodKey, PodUid};
use agent_types::kill::{KillReason, TerminatingRecord};
use agent_types::resources::user_ranges::{UNIT, UserRanges};
use agent_types::runtime::pod_files::{FileWrite, PodFile};
use agent_types::time::{Mono, Wall};
use k8s_openapi::api::core::v1::ResourceRequirements;
use nix::errno::Errno;
use orlop_agent::images::pull_records::RecordFiles;
use orlop_agent::pods::pod_dirs::{PodDirs, ResourcesOwner};
use orlop_agent::process::incarnation::Incarnation;
use orlop_config::kubelet::enums::ImagePullCredentialsVerificationPolicy as Verification;
use serde_json::json;

fn dirs(root: &Path) -> PodDirs {
    PodDirs::new(&root.join("kubelet"), &root.join("logs"), &root.join("links"))
}

fn key() -> PodKey {
    PodKey { namespace: "ns".into(), name: "web".into(), uid: "u".into() }
}

fn logs(root: &Path) -> String {
    root.join("logs/ns_web_u").display().to_string()
}

/// The pod's directories, a file in them, and a link to a log.
fn make(root: &Path) -> Result<(), agent_types::failure::DriverError> {
    let own = root.join("kubelet/pods/u");
    let hosts = PodFile {
        path: own.join("etc-hosts").display().to_string(),
        content: "hosts".to_owned(),
        mode: 0o644,
        write: FileWrite::KeepExisting,
    };
    let wanted = [(own.join("volumes").display().to_string(), 0o750)];
    dirs(root).create(&"u".into(), &logs(root), &wanted, &[hosts])?;
    let target = logs(root);
    dirs(root).sync_log_links(&"u".into(), &BTreeMap::from([("web.log".to_owned(), target)]), None)?;
    Ok(())
}

#[test]
fn directories_and_links_of_a_pod_are_made_and_removed() {
    // The links' directory exists from the start of the agent on.
    let links = |root: &Path| fs::create_dir_all(root.join("links")).unwrap();
    let calls = survives(&FileOperation {
        prepare: &links,
        act: &make,
        look: &|root| {
            // A half-written file would be kept.
            let hosts = fs::read_to_string(root.join("kubelet/pods/u/etc-hosts"));
            assert!(hosts.is_err() || hosts.unwrap() == "hosts");
        },
    });
    assert!(calls.iter().any(|call| call.to_string() == "symlink of links/web.log"), "{calls:?}");
    survives(&FileOperation {
        prepare: &|root| {
            links(root);
            make(root).unwrap();
            fs::create_dir(root.join("kubelet/pods/other")).unwrap();
        },
        act: &|root| dirs(root).remove(&key(), false),
        look: &|root| assert!(root.join("kubelet/pods/other").is_dir()),
    });
}

fn record(grace_s: u32) -> TerminatingRecord {
    let since = Wall(5);
    TerminatingRecord { pod: key(), reason: KillReason::Removed, grace_s, since, remove: true, ended: false }
}

#[test]
fn a_termination_that_has_begun_is_not_forgotten() {
    survives(&FileOperation {
        prepare: &|root| dirs(root).persist(&record(30)).unwrap(),
        act: &|root| dirs(root).persist(&record(2)),
        look: &|root| {
            let (pods, records) = dirs(root).scan().unwrap();
            assert_eq!(pods.len(), 1);
            assert!([vec![record(30)], vec![record(2)]].contains(&records), "{records:?}");
        },
    });
}

fn cpu(amount: &str) -> ResourceRequirements {
    serde_json::from_value(json!({"requests": {"cpu": amount}})).expect("amounts")
}

fn given(amount: &str) -> Allocations {
    let containers = [("c".to_owned(), cpu(amount))].into();
    [("u".into(), PodAllocation { containers, pod: None })].into()
}

#[test]
fn what_a_pod_was_given_is_the_old_or_the_new() {
    survives(&FileOperation {
        prepare: &|root| {
            fs::create_dir_all(root.join("kubelet/pods/u")).unwrap();
            dirs(root).record_allocated(&given("1")).unwrap();
        },
        act: &|root| dirs(root).record_allocated(&given("2")),
        look: &|root| {
            let (allocated, _) = dirs(root).restore_allocations().unwrap();
            assert!([given("1"), given("2")].contains(&allocated), "{allocated:?}");
        },
    });
}

const REFUSALS: [Refusal; 3] = [Refusal::One(Errno::ENOSPC), Refusal::One(Errno::EIO), Refusal::FromThenOn];

#[test]
fn what_a_container_has_is_written_when_it_is_recorded_again() {
    for refusal in REFUSALS {
        for nth in 0.. {
            let at = tempfile::tempdir().unwrap();
            let agent = dirs(at.path());
            fs::create_dir_all(at.path().join("kubelet/pods/u")).unwrap();
            let record =
                || agent.record_actuated(&"u".into(), ResourcesOwner::Container("c".to_owned()), cpu("2"));
            let (_, call) = refusing(at.path(), nth, refusal, record);
            let Some(call) = call else {
                assert!(nth > 2, "{nth} calls");
                break;
            };
            record().unwrap();
            let next = dirs(at.path());
            assert_eq!(next.restore_allocations().unwrap().1, given("2"), "{refusal:?}, {call}");
        }
    }
}

#[test]
fn no_two_pods_are_given_the_same_ids() {
    let with_users =
        |root: &Path| dirs(root).with_users(UserRanges::new(UNIT, Some((UNIT, 2 * UNIT)), 2).unwrap());
    let [a, b, c] = ["a", "b", "c"].map(PodUid::from);
    // Either the first pod tries again, or its agent dies before that.
    for (refusal, dies) in REFUSALS.into_iter().flat_map(|refusal| [(refusal, false), (refusal, true)]) {
        for nth in 0.. {
            let at = tempfile::tempdir().unwrap();
            let agent = with_users(at.path()).unwrap();
            let (first, call) = refusing(at.path(), nth, refusal, || agent.map_users(&a));
            let Some(call) = call else {
                assert!(nth > 4, "{nth} calls");
                break;
            };
            let which = format!("{refusal:?}, {call}");
            let other = agent.map_users(&b).unwrap();
            // The first pod's ids may be on disk: they are its own until the pod is gone.
            assert!(agent.map_users(&c).is_err(), "{which}");
            let agent = if dies { with_users(at.path()).unwrap() } else { agent };
            assert_eq!(agent.map_users(&b).unwrap(), other, "{which}");
            let ids = agent.map_users(&a).unwrap_or_else(|e| panic!("{which}: {e}"));
            assert!(ids != other && (first.is_err() || first.unwrap() == ids), "{which}");
        }
    }
}

#[test]
fn an_image_that_was_pulled_with_a_secret_is_nobody_elses() {
    let records = |root: &Path| {
        let verification = Some(Verification::NeverVerifyPreloadedImages);
        RecordFiles::new(root, Policy { verification, allowlist: Vec::new() })
    };
    let text = |text: &str| text.to_owned();
    let origin =
        Origin { uid: text("u"), namespace: text("ns"), name: text("s"), credential_hash: text("h") };
    let source = Source::Secret(origin);
    let own = Credential { username: text("u"), password: text("p"), source: Some(source.clone()) };
    let (pulled, id) = (AtomicBool::new(false), "sha256:aa");
    survives(&FileOperation {
        prepare: &|_| pulled.store(false, Ordering::Release),
        act: &|root| {
            let mut agent = records(root);
            agent.begin("a:1")?;
            pulled.store(true, Ordering::Release);
            agent.pulled("a:1", id, Some(&source), Wall(1));
            Ok::<(), agent_linux::files::FilesError>(())
        },
        look: &|root| {
            let mut next = records(root);
            if pulled.load(Ordering::Acquire) {
                assert!(!next.check("a:1", id, &[], Wall(2)).may_use(), "it is everybody's");
            }
        },
    });
    let root = tempfile::tempdir().unwrap();
    let mut agent = records(root.path());
    agent.begin("a:1").unwrap();
    agent.pulled("a:1", id, Some(&source), Wall(1));
    assert!(agent.check("a:1", id, &[own], Wall(2)).may_use());
}

#[test]
fn how_the_last_boot_ended_is_known_to_the_first_agent_that_can_say_so() {
    let begin = |root: &Path, boot: &str| {
        Incarnation::begin(root, boot, Mono(1), |last, stopped| Some(LastEnd::of(last, None, None, stopped)))
            .map(drop)
    };
    survives(&FileOperation {
        prepare: &|root| begin(root, "first").unwrap(),
        act: &|root| begin(root, "second"),
        look: &|root| {
            let state = fs::read_to_string(root.join("orlop-agent-state.json")).unwrap();
            assert!(state.contains("\"boot_id\":\""), "{state}");
        },
    });
}
