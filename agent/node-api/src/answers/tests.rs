//! Answers from snapshots of a healthy node, a broken one, and one of which nothing can be read.

use std::net::{IpAddr, Ipv4Addr};

use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetRequest, GetResponse, MountStatus, NodeStatus};

use super::problems::problems;
use super::*;
use crate::answers::services::ESSENTIAL;

const LEDGER: &str = r#"{"boot_id":"b","entries":[
    {"phase":"kernel","at_ms":900},
    {"phase":"init.verity","at_ms":1200,"took_ms":40,"detail":"/dev/vda4 root hash 00112233"},
    {"phase":"bringup.modules","at_ms":2000,"detail":"no module named x","ok":false}]}"#;

fn services(agent: &str) -> String {
    let others: String = ESSENTIAL
        .iter()
        .skip(1)
        .map(|(name, _)| {
            format!("Id={name}\nLoadState=loaded\nActiveState=active\nSubState=running\nResult=success\n\n")
        })
        .collect();
    format!("{agent}\n\n{others}Id=\n")
}

fn healthy() -> Facts {
    let agent = "Id=kubelet.service\nLoadState=loaded\nActiveState=active\nSubState=running\nResult=success\n\
                 StatusText=running\nMainPID=512\nNRestarts=1\nMemoryCurrent=17000000\nExecMainStatus=0";
    Facts {
        observed_at: "2026-11-30T09:00:00Z".to_owned(),
        os_release: "PRETTY_NAME=\"Orlop 0.4\"\nIMAGE_VERSION=0.4.0\n".to_owned(),
        hostname: "edge-7\n".to_owned(),
        boot_id: "boot-1\n".to_owned(),
        uptime: "73.51 120.00\n".to_owned(),
        ledger: r#"{"boot_id":"b","entries":[{"phase":"init.verity","at_ms":1,"detail":"/dev/vda2 root hash ab"}]}"#.to_owned(),
        node_config: r#"{"config":{"join":{"server":"https://a:6443"}},"problems":[]}"#.to_owned(),
        meminfo: "MemTotal: 1000 kB\nMemAvailable: 400 kB\n".to_owned(),
        memory_pressure: "some avg10=0.50 avg60=1.25 avg300=0.00 total=5\nfull avg10=0 avg60=9 avg300=0 total=1\n".to_owned(),
        node_addresses: vec![IpAddr::from(Ipv4Addr::new(192, 0, 2, 17))],
        addresses: vec![("enp0s2".to_owned(), IpAddr::from(Ipv4Addr::new(192, 0, 2, 17)))],
        services: Some(Ok(services(agent))),
        mounts: Some(Ok(vec![("/var".to_owned(), mount(100 << 30, 50 << 30, false))])),
        ..Facts::default()
    }
}

fn mount(size_bytes: u64, available_bytes: u64, read_only: bool) -> MountStatus {
    MountStatus { size_bytes, available_bytes, read_only, ..MountStatus::default() }
}

fn ask(facts: &Facts, kinds: &[&str], names: &[&str]) -> GetResponse {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    get(&GetRequest { kinds: owned(kinds), names: owned(names) }, facts).unwrap()
}

fn node_of(facts: &Facts) -> NodeStatus {
    match ask(facts, &["node"], &[]).objects.remove(0).status {
        Some(Status::Node(node)) => node,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_healthy_node_has_no_problem_and_every_kind() {
    let facts = healthy();
    assert_eq!(problems(&facts), []);
    let node = node_of(&facts);
    assert_eq!((node.agent.as_str(), node.cluster.as_str(), node.uptime_seconds), ("running", "member", 73));
    assert_eq!((node.api_server.as_str(), node.image_version.as_str()), ("https://a:6443", "0.4.0"));
    assert_eq!(node.addresses, ["192.0.2.17"]);
    let all: Vec<&str> = ObjectKind::ALL.iter().map(|kind| kind.name()).collect();
    let response = ask(&facts, &all, &[]);
    assert_eq!(response.failures, []);
    for object in &response.objects {
        let meta = object.metadata.as_ref().unwrap();
        assert_eq!((object.api_version.as_str(), meta.boot_id.as_str()), (API_VERSION, "boot-1"));
        assert!(!meta.name.is_empty() && object.status.is_some(), "{object:?}");
    }
    let info = version("9.9.9", "SHA256:k", &facts);
    assert_eq!((info.server_version.as_str(), info.node.as_str()), ("9.9.9", "edge-7"));
    assert_eq!(info.server_key, "SHA256:k");
}

#[test]
fn the_node_says_what_its_firmware_trusts() {
    let ledger = |phases: &str| format!(r#"{{"boot_id":"b","entries":[{phases}]}}"#);
    let trust = r#"{"phase":"init.trust","at_ms":5,"detail":"Secure Boot on (keys: Orlop db 1a2b3c4d)"}"#;
    for (text, want) in [
        (
            ledger(&format!(r#"{{"phase":"kernel","at_ms":1}},{trust}"#)),
            "Secure Boot on (keys: Orlop db 1a2b3c4d)",
        ),
        (ledger(r#"{"phase":"kernel","at_ms":1}"#), ""),
        (String::new(), ""),
    ] {
        assert_eq!(node_of(&Facts { ledger: text, ..healthy() }).firmware, want);
    }
}

#[test]
fn objects_are_found_by_their_names() {
    let response = ask(&healthy(), &["services", "memory"], &["containerd.service", "memory", "no-such"]);
    let names: Vec<&str> =
        response.objects.iter().map(|o| o.metadata.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(names, ["containerd.service", "memory"]);
    let Some(Status::Memory(memory)) = &response.objects[1].status else { panic!("{response:?}") };
    assert_eq!((memory.total_bytes, memory.available_bytes, memory.swap_free_bytes), (1_024_000, 409_600, 0));
    assert_eq!(memory.pressure_some_60s, Some(1.25));
}

#[test]
fn objects_are_what_json_has() {
    let response = ask(&healthy(), &["slots"], &[]);
    let json = serde_json::to_value(&response.objects[0]).unwrap();
    let expected = serde_json::json!({
        "apiVersion": "orlop.node/v1alpha1",
        "kind": "slots",
        "metadata": {"name": "A", "bootId": "boot-1", "observedAt": "2026-11-30T09:00:00Z"},
        "status": {"slot": "A", "partition": "vda2", "rootHash": "ab", "imageVersion": "0.4.0"}
    });
    assert_eq!(json, expected);
}

#[test]
fn why_the_node_is_not_ready_is_a_problem_with_a_remedy() {
    let masked = "Id=kubelet.service\nLoadState=masked\nActiveState=inactive\nSubState=dead\nResult=success";
    let failed = "Id=kubelet.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainStatus=1";
    let outside = "Id=kubelet.service\nLoadState=loaded\nActiveState=active\nStatusText=running; no token: kubeadm token create";
    let with = |agent: &str| Facts { services: Some(Ok(services(agent))), ..healthy() };
    let silent = Refusal::new(Reason::PartSilent, "systemd", "no answer within 5 s");
    let short = Some(Ok(vec![
        ("/var".to_owned(), mount(100 << 20, 4 << 20, false)),
        ("/".to_owned(), mount(100 << 20, 0, true)),
        ("/x".to_owned(), mount(0, 0, false)),
    ]));
    let mistakes = r#"{"config":{},"problems":[{"source":"fw_cfg","line":4,"path":"kubelet.maxPods","reason":"must be an integer"}]}"#;
    for (facts, subject, message) in [
        (with(masked), "kubelet.service", "the node agent does not run: masked"),
        (with(failed), "kubelet.service", "the node agent does not run: failed (exit status 1)"),
        (with("Id=x.service"), "kubelet.service", "the node agent does not run: systemd does not know it"),
        (with(outside), "cluster", "no token: kubeadm token create"),
        (Facts { services: Some(Err(silent)), ..healthy() }, "systemd", "no answer within 5 s"),
        (Facts { node_addresses: Vec::new(), ..healthy() }, "network", "this machine has no address"),
        (
            Facts { degraded: "vda7: bad magic\n".to_owned(), ..healthy() },
            "state partition",
            "vda7: bad magic",
        ),
        (Facts { mounts: short, ..healthy() }, "file system /var", "4 MiB of 100 MiB are free"),
        (Facts { ledger: LEDGER.to_owned(), ..healthy() }, "boot phase bringup.modules", "no module named x"),
        (
            Facts { node_config: mistakes.to_owned(), ..healthy() },
            "configuration, 1 of 1",
            "fw_cfg:4: kubelet.maxPods: must be an integer",
        ),
    ] {
        let found = problems(&facts);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].subject.as_str(), found[0].message.as_str()), (subject, message));
        assert!(!found[0].remedy.is_empty() && found[0].runbook.starts_with("docs/"), "{found:?}");
    }
}

#[test]
fn another_service_that_failed_is_a_problem_and_texts_are_printable() {
    let mut text = services("Id=kubelet.service\nLoadState=loaded\nActiveState=active");
    text.push_str("\n\nId=x.service\nLoadState=loaded\nActiveState=failed\nResult=oom-kill");
    let found = problems(&Facts { services: Some(Ok(text)), ..healthy() });
    assert_eq!((found[0].subject.as_str(), found[0].message.as_str()), ("x.service", "failed (oom-kill)"));
    let told = "Id=kubelet.service\nLoadState=loaded\nActiveState=active\nStatusText=running; a\u{1b}[2Jb";
    let found = problems(&Facts { services: Some(Ok(services(told))), ..healthy() });
    assert_eq!(found[0].message, "a [2Jb");
}

#[test]
fn a_service_that_ends_again_and_again_is_one_problem_with_its_count_and_reason() {
    let unit = |name: &str, state: &str, restarts: u64, started_s: u64| {
        format!(
            "Id={name}\nLoadState=loaded\n{state}\nNRestarts={restarts}\nExecMainStatus=2\n\
             ExecMainStartTimestampMonotonic={started_s}000000"
        )
    };
    let waits = "ActiveState=activating\nSubState=auto-restart\nResult=exit-code";
    let runs = "ActiveState=active\nSubState=running\nResult=success";
    let with = |agent: String| Facts {
        services: Some(Ok(services(&agent))),
        uptime: "2000.51 1.00\n".to_owned(),
        ..healthy()
    };
    let found = problems(&with(unit("kubelet.service", waits, 7, 1999)));
    assert_eq!(found.len(), 1, "{found:?}");
    let want = "ends again and again: systemd has started it again 7 times, the last time with exit status 2";
    assert_eq!((found[0].subject.as_str(), found[0].message.as_str()), ("kubelet.service", want));
    assert!(found[0].remedy.contains("orlopctl logs kubelet.service"), "{found:?}");
    assert_eq!(found[0].runbook, "docs/runbooks/node.md#service-ends");
    let found = problems(&with(unit("kubelet.service", runs, 3, 1990)));
    assert!(found.len() == 1 && found[0].message.ends_with("3 times, it runs for now"), "{found:?}");
    // One that has stopped ending, and one that has ended twice.
    assert_eq!(problems(&with(unit("kubelet.service", runs, 30, 1000))), []);
    assert_eq!(problems(&with(unit("kubelet.service", runs, 2, 1990))), []);
    let other = format!("{}\n\n{}", unit("kubelet.service", runs, 0, 10), unit("x.service", waits, 4, 0));
    let found = problems(&with(other));
    assert_eq!(found.iter().map(|problem| problem.subject.as_str()).collect::<Vec<_>>(), ["x.service"]);
    // The check for releases waits for its source.
    let check = unit("orlop-update-check.service", waits, 40, 0);
    assert_eq!(problems(&with(format!("{}\n\n{check}", unit("kubelet.service", runs, 0, 10)))), []);
}

#[test]
fn problems_of_pods_are_those_of_an_agent_that_runs() {
    let file = r#"[{"subject":"static pod default/web, container web","text":"ErrImagePull: no","remedy":"check the name","runbook":"image-pull"}]"#;
    let facts = Facts { agent_problems: file.to_owned(), ..healthy() };
    let found = problems(&facts);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].message.as_str(), found[0].remedy.as_str()), ("ErrImagePull: no", "check the name"));
    assert_eq!(found[0].runbook, "docs/runbooks/static-pods.md#image-pull");
    let dead = "Id=kubelet.service\nLoadState=loaded\nActiveState=failed\nResult=exit-code\nExecMainStatus=1";
    let found = problems(&Facts { services: Some(Ok(services(dead))), ..facts });
    assert_eq!(found.iter().map(|problem| problem.subject.as_str()).collect::<Vec<_>>(), ["kubelet.service"]);
}

#[test]
fn a_change_that_has_not_ended_is_a_problem() {
    let file = r#"[{"subject":"configuration","text":"change 1 of ops-1 (labels.a) is tried","remedy":"confirm it","runbook":"open-change"}]"#;
    let found = problems(&Facts { change_problems: file.to_owned(), ..healthy() });
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].subject.as_str(), found[0].remedy.as_str()), ("configuration", "confirm it"));
    assert_eq!(found[0].runbook, "docs/runbooks/configuration.md#open-change");
}

#[test]
fn a_failed_update_is_a_problem_while_the_agent_is_dead() {
    let file = r#"[{"subject":"update","text":"the update failed: 0.5.0 runtime: no answer","remedy":"name it again","runbook":"update-failed"}]"#;
    let dead = "Id=kubelet.service\nLoadState=loaded\nActiveState=failed\nResult=exit-code\nExecMainStatus=1";
    let facts = Facts { update_problems: file.to_owned(), services: Some(Ok(services(dead))), ..healthy() };
    let found = problems(&facts);
    let subjects: Vec<&str> = found.iter().map(|problem| problem.subject.as_str()).collect();
    assert_eq!(subjects, ["update", "kubelet.service"]);
    assert_eq!(found[0].runbook, "docs/runbooks/node.md#update-failed");
}

#[test]
fn what_cannot_be_read_fails_for_itself() {
    let silent = Refusal::new(Reason::PartSilent, "systemd", "no answer within 5 s");
    let facts = Facts { services: Some(Err(silent)), ..Facts::default() };
    let response = ask(&facts, &["services", "boot", "slots", "memory", "time", "node"], &[]);
    let failed: Vec<(&str, &str)> = response
        .failures
        .iter()
        .map(|failure| (failure.kind.as_str(), failure.error.as_ref().unwrap().reason.as_str()))
        .collect();
    let expected =
        [("services", "PART_SILENT"), ("boot", "PART_DOWN"), ("slots", "PART_DOWN"), ("memory", "PART_DOWN")];
    assert_eq!(failed, expected);
    let kinds: Vec<&str> = response.objects.iter().map(|object| object.kind.as_str()).collect();
    assert_eq!(kinds, ["time", "node"]);
    assert_eq!(node_of(&facts).agent, "not known: systemd: no answer within 5 s");
}

#[test]
fn more_objects_than_an_answer_has_are_said() {
    let disks = (0..OBJECTS_MAX + 7).map(|n| (format!("d{n}"), Default::default())).collect();
    let response = ask(&Facts { disks, ..Facts::default() }, &["disks"], &[]);
    assert_eq!(response.objects.len(), OBJECTS_MAX);
    assert_eq!(response.failures[0].error.as_ref().unwrap().reason, "TOO_MANY_OBJECTS");
    assert!(response.failures[0].message.contains("507 objects"), "{:?}", response.failures);
}

#[test]
fn a_phase_has_its_times() {
    let response = ask(
        &Facts { ledger: LEDGER.to_owned(), ..Facts::default() },
        &["boot", "slots"],
        &["init.verity", "B"],
    );
    let Some(Status::Boot(phase)) = &response.objects[0].status else { panic!("{response:?}") };
    assert_eq!((phase.at_ms, phase.took_ms, phase.ok), (1200, Some(40), true));
    let Some(Status::Slot(slot)) = &response.objects[1].status else { panic!("{response:?}") };
    assert_eq!((slot.slot.as_str(), slot.root_hash.as_str()), ("B", "00112233"));
}
