//! Tests of gate, verdict, watch and examination.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::node_update::check::{CheckName, CheckSeen, FailedCheck, GateFacts, GatePod, TrialFault};
use crate::node_update::gate::{CheckRule, GateRules, GateVerdict, gate, verdict};
use crate::node_update::watch::{Examination, ExaminationEnd, TrialDecision, TrialLimits, TrialWatch};

fn green() -> GateFacts {
    let pod =
        |name: &str| (format!("uid-{name}"), GatePod { name: format!("ns/{name}"), seen: CheckSeen::Green });
    GateFacts {
        checks: CheckName::ALL.into_iter().map(|check| (check, CheckSeen::Green)).collect(),
        static_pods: BTreeMap::from([pod("etcd"), pod("dns")]),
        api_pods: Some(BTreeMap::from([pod("web"), pod("db")])),
        api_certificate: Some("aa".into()),
    }
}

/// The same with these checks red.
fn without(red: &[CheckName]) -> GateFacts {
    let mut facts = green();
    for check in red {
        facts.checks.insert(*check, CheckSeen::Red(format!("no {check}")));
    }
    facts
}

fn judged(baseline: &GateFacts, now: &GateFacts) -> GateVerdict {
    verdict(&gate(&GateRules::default(), baseline, now), baseline, now)
}

fn failed(baseline: &GateFacts, now: &GateFacts) -> Option<String> {
    match judged(baseline, now) {
        GateVerdict::Green => None,
        GateVerdict::Red { failed, .. } => Some(failed.to_string()),
    }
}

#[test]
fn equal_facts_are_green_and_each_lost_check_is_red() {
    assert_eq!(judged(&green(), &green()), GateVerdict::Green);
    for check in
        CheckName::ALL.into_iter().filter(|c| !matches!(c, CheckName::StaticPods | CheckName::ApiPods))
    {
        let red = gate(&GateRules::default(), &green(), &without(&[check]));
        assert_eq!(red.iter().map(|red| red.check).collect::<Vec<_>>(), [check]);
        assert_eq!(red[0].words, format!("no {check}"));
        let off = GateRules::default().with(check, CheckRule::Off);
        assert!(gate(&off, &green(), &without(&[check])).is_empty(), "{check}");
        // What was red before counts only where it is required.
        let before = without(&[check]);
        let required = gate(&GateRules::default().with(check, CheckRule::Required), &before, &before);
        assert_eq!(required.len(), 1, "{check}");
        let as_before = gate(&GateRules::default().with(check, CheckRule::AsBefore), &before, &before);
        assert!(as_before.is_empty(), "{check}");
    }
}

#[test]
fn pods_count_if_they_were_ready_and_are_still_here() {
    let broken = CheckSeen::Red("ImagePullBackOff".into());
    let mut now = green();
    if let Some(pod) = now.static_pods.get_mut("uid-etcd") {
        pod.seen = broken.clone();
    }
    assert_eq!(failed(&green(), &now).as_deref(), Some("static-pods"));
    let GateVerdict::Red { words, .. } = judged(&green(), &now) else { panic!("red") };
    assert_eq!(words, "pod ns/etcd is not ready: ImagePullBackOff");
    assert_eq!(judged(&now, &now), GateVerdict::Green);
    let mut gone = green();
    gone.static_pods.remove("uid-dns");
    assert_eq!(failed(&green(), &gone).as_deref(), Some("static-pods"));
    // A pod of the API that was moved away is none of this node's.
    let mut now = green();
    now.api_pods.as_mut().expect("listed").remove("uid-web");
    assert_eq!(judged(&green(), &now), GateVerdict::Green);
    if let Some(pod) = now.api_pods.as_mut().expect("listed").get_mut("uid-db") {
        pod.seen = broken;
    }
    assert_eq!(failed(&green(), &now).as_deref(), Some("api-pods"));
    now.api_pods = None;
    assert_eq!(failed(&green(), &now).as_deref(), Some("api-pods"));
    assert_eq!(judged(&GateFacts { api_pods: None, ..green() }, &now), GateVerdict::Green);
}

#[test]
fn whose_fault_it_seems_to_be() {
    use CheckName::{
        Address, Api, ApiIdentity, ApiTrust, Certificate, Dns, Gateway, Lease, Link, NodeReady, ProbePod,
    };
    for (red, want) in [
        (&[Link, Address, Gateway, Api, NodeReady][..], Some("link")),
        (&[Gateway, Dns, Api][..], Some("gateway")),
        (&[Api, Lease, NodeReady][..], Some("api/cluster")),
        (&[ApiIdentity, Lease, NodeReady][..], Some("api-identity/cluster")),
        (&[Dns, Api][..], Some("api/unclear")),
        (&[Dns][..], Some("dns/cluster")),
        // The pod network may be a DaemonSet's: an API server that is away must refuse no version.
        (&[Api, ProbePod][..], Some("api/cluster")),
        (&[Dns, ProbePod][..], Some("probe-pod")),
        (&[Api, Certificate][..], Some("certificate")),
        (&[NodeReady][..], Some("node-ready")),
        (&[Lease][..], Some("lease")),
        (&[ApiTrust][..], Some("api-trust")),
    ] {
        assert_eq!(failed(&green(), &without(red)).as_deref(), want, "{red:?}");
    }
    // Another certificate than before: the cluster has changed.
    let other = GateFacts { api_certificate: Some("bb".into()), ..without(&[ApiTrust]) };
    assert_eq!(failed(&green(), &other).as_deref(), Some("api-trust/cluster"));
    // Pods of an API that is away are not missed.
    let away = GateFacts { api_pods: None, ..without(&[Api]) };
    assert_eq!(failed(&green(), &away).as_deref(), Some("api/cluster"));
    // A standalone node has the local checks alone.
    let alone = without(&[Api, ApiTrust, ApiIdentity, Certificate, Lease, NodeReady]);
    assert_eq!(judged(&alone, &alone), GateVerdict::Green);
    assert_eq!(failed(&alone, &without(&[Api, ProbePod])).as_deref(), Some("probe-pod"));
}

#[test]
fn a_failed_check_survives_the_boot_record() {
    for check in CheckName::ALL {
        for fault in [TrialFault::Slot, TrialFault::Cluster, TrialFault::Unclear] {
            let failed = FailedCheck { check, fault };
            assert_eq!(FailedCheck::parse(&failed.to_string()), Some(failed));
        }
        let json = serde_json::to_string(&check).expect("a word");
        assert_eq!(json, format!("\"{}\"", check.name()));
    }
    assert_eq!(FailedCheck::parse(""), None);
    let unknown = FailedCheck { check: CheckName::Agent, fault: TrialFault::Slot };
    assert_eq!(FailedCheck::parse("of another version"), Some(unknown));
    let facts = without(&[CheckName::Dns]);
    let text = serde_json::to_string(&facts).expect("JSON");
    assert_eq!(serde_json::from_str::<GateFacts>(&text).expect("facts"), facts);
}

fn red(fault: TrialFault) -> GateVerdict {
    let failed = FailedCheck { check: CheckName::Api, fault };
    GateVerdict::Red { failed, words: "why".into() }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_commit_needs_a_whole_soak() {
    let mut watch = TrialWatch::new(TrialLimits::default());
    for (up, verdict, want) in [
        (30, GateVerdict::Green, TrialDecision::Wait),
        (89, GateVerdict::Green, TrialDecision::Wait),
        (95, red(TrialFault::Slot), TrialDecision::Wait),
        (100, GateVerdict::Green, TrialDecision::Wait),
        (159, GateVerdict::Green, TrialDecision::Wait),
        (160, GateVerdict::Green, TrialDecision::Commit),
    ] {
        assert_eq!(watch.observe(at(up), &verdict), want, "{up}");
    }
    // Green just before the deadline: the soak is waited for.
    let mut watch = TrialWatch::new(TrialLimits::default());
    assert_eq!(watch.observe(at(595), &GateVerdict::Green), TrialDecision::Wait);
    assert_eq!(watch.observe(at(640), &GateVerdict::Green), TrialDecision::Wait);
    assert_eq!(watch.observe(at(655), &GateVerdict::Green), TrialDecision::Commit);
}

#[test]
fn a_trial_returns_at_its_deadline_and_holds_for_a_cluster() {
    let returns = |decision: TrialDecision| matches!(decision, TrialDecision::Return { .. });
    for fault in [TrialFault::Slot, TrialFault::Unclear] {
        let mut watch = TrialWatch::new(TrialLimits::default());
        assert_eq!(watch.observe(at(30), &red(fault)), TrialDecision::Wait);
        assert_eq!(watch.observe(at(599), &red(fault)), TrialDecision::Wait);
        assert!(returns(watch.observe(at(600), &red(fault))));
    }
    let mut watch = TrialWatch::new(TrialLimits::default());
    assert_eq!(watch.observe(at(30), &red(TrialFault::Cluster)), TrialDecision::Wait);
    assert_eq!(watch.observe(at(599), &red(TrialFault::Cluster)), TrialDecision::Wait);
    let hold = TrialDecision::Hold { words: "why".into() };
    assert_eq!(watch.observe(at(600), &red(TrialFault::Cluster)), hold);
    assert_eq!(watch.observe(at(21_599), &red(TrialFault::Cluster)), hold);
    // It is back: the node gets the time of a boot.
    let mut back = watch.clone();
    assert_eq!(back.observe(at(21_610), &red(TrialFault::Slot)), TrialDecision::Wait);
    assert!(returns(back.observe(at(22_199), &red(TrialFault::Slot))));
    assert!(returns(watch.observe(at(21_600), &red(TrialFault::Cluster))));
}

#[test]
fn an_agent_that_starts_late_may_make_its_checks_first() {
    let returns = |decision: TrialDecision| matches!(decision, TrialDecision::Return { .. });
    // In a hold, long after the deadline.
    let mut watch = TrialWatch::new(TrialLimits::default());
    assert_eq!(watch.observe(at(9000), &red(TrialFault::Slot)), TrialDecision::Wait);
    assert_eq!(watch.observe(at(9119), &red(TrialFault::Slot)), TrialDecision::Wait);
    assert!(returns(watch.clone().observe(at(9120), &red(TrialFault::Slot))));
    assert_eq!(watch.observe(at(9120), &GateVerdict::Green), TrialDecision::Wait);
    assert_eq!(watch.observe(at(9180), &GateVerdict::Green), TrialDecision::Commit);
    // Not for ever.
    let mut watch = TrialWatch::new(TrialLimits::default());
    assert!(returns(watch.observe(at(21_600), &red(TrialFault::Slot))));
}

#[test]
fn the_old_slot_examines_the_check() {
    let begin = |fault| {
        let failed = FailedCheck { check: CheckName::Api, fault };
        Examination::new(failed, TrialLimits::default())
    };
    for (fault, want) in [
        (TrialFault::Slot, ExaminationEnd::Refused),
        (TrialFault::Cluster, ExaminationEnd::Doubtful),
        (TrialFault::Unclear, ExaminationEnd::Doubtful),
    ] {
        let mut examination = begin(fault);
        assert_eq!(examination.observe(at(5), Some(true)), None);
        assert_eq!(examination.observe(at(30), Some(false)), None);
        assert_eq!(examination.observe(at(40), Some(true)), None);
        assert_eq!(examination.observe(at(99), Some(true)), None);
        assert_eq!(examination.observe(at(100), Some(true)), Some(want));
        let mut examination = begin(fault);
        assert_eq!(examination.observe(at(599), Some(false)), None);
        assert_eq!(examination.observe(at(600), Some(false)), Some(ExaminationEnd::Inconclusive));
        assert_eq!(begin(fault).observe(at(600), None), Some(ExaminationEnd::Inconclusive));
    }
    assert_eq!(begin(TrialFault::Slot).longest(), at(660));
}
