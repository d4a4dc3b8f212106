//! What a page gets to see, of nodes that are well, away, and hostile.

use orlop_proto::node_api::v1alpha1::{
    BootPhase, ErrorDetail, LogLine, Meta, MountStatus, NodeStatus, ProblemStatus, ProcessStatus,
    ServiceStatus, SlotStatus,
};

use super::*;

/// Longest document of any node, bytes.
const DOCUMENT_MAX: usize = 4 << 20;
/// A name that would be a script in a page.
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>&amp;\u{2028}\u{1b}[2J";

fn object(kind: &str, name: &str, status: Status) -> Object {
    let metadata = Meta { name: name.to_owned(), boot_id: "boot-1".to_owned(), ..Meta::default() };
    Object { kind: kind.to_owned(), metadata: Some(metadata), status: Some(status), ..Object::default() }
}

fn process(pid: u64, cpu_ms: u64, pod: &str) -> Object {
    let process = ProcessStatus {
        pid,
        cpu_ms,
        started_ms: 1,
        memory_bytes: 2048,
        state: "S".to_owned(),
        command: format!("c{pid}"),
        pod: pod.to_owned(),
        ..ProcessStatus::default()
    };
    object("processes", &pid.to_string(), Status::Process(process))
}

fn service(name: &str, active: &str) -> Object {
    let status = ServiceStatus { active: active.to_owned(), ..ServiceStatus::default() };
    object("services", name, Status::Service(status))
}

fn answer(cpu_ms: u64, text: &str) -> GetResponse {
    let node = NodeStatus {
        image_version: "0.4.0".to_owned(),
        agent: "running".to_owned(),
        cluster: "standalone".to_owned(),
        uptime_seconds: 61,
        ..NodeStatus::default()
    };
    let slot = SlotStatus { slot: "A".to_owned(), partition: "vda2".to_owned(), ..SlotStatus::default() };
    let problem = ProblemStatus {
        subject: text.to_owned(),
        message: text.to_owned(),
        remedy: text.to_owned(),
        runbook: text.to_owned(),
    };
    let phase = BootPhase { at_ms: 1200, took_ms: Some(300), detail: text.to_owned(), ok: true };
    let objects = vec![
        object("node", "edge-7", Status::Node(node)),
        object("slots", "A", Status::Slot(slot)),
        object("problems", "p", Status::Problem(problem)),
        object("mounts", "/var", Status::Mount(MountStatus::default())),
        service("kubelet.service", "active"),
        service("x.service", "failed"),
        service("quiet.service", "active"),
        process(7, cpu_ms, text),
        process(8, 0, ""),
        object("boot", "init.verity", Status::Boot(phase)),
    ];
    GetResponse { objects, failures: Vec::new() }
}

fn new() -> PageState {
    PageState::new(DashboardModel::new("the node at x".to_owned()), Timestamp::from_second(1000).unwrap())
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn parsed(state: &PageState) -> Value {
    serde_json::from_str(&state.document()).unwrap()
}

fn rows(document: &Value, id: &str) -> Vec<Vec<String>> {
    let mut sections = document["sections"].as_array().unwrap().iter();
    let section = sections.find(|section| section["id"] == id).unwrap();
    serde_json::from_value(section["rows"].clone()).unwrap()
}

#[test]
fn a_page_has_what_the_terminal_has_and_processes_pods_and_phases() {
    let mut state = new();
    let first = parsed(&state);
    assert_eq!(
        (&first["link"], &first["name"], &first["sections"]),
        (&json!("connecting"), &json!(""), &json!([]))
    );
    assert_eq!((&first["picture"], state.picture()), (&json!(""), String::new()));
    state.take(DashboardEvent::Answer(answer(0, "default/web")), at(1));
    state.take(DashboardEvent::Answer(answer(500, "default/web")), at(3));
    state.take(DashboardEvent::Line(LogLine { message: "line 1".to_owned(), ..LogLine::default() }), at(3));
    let document = parsed(&state);
    assert_eq!(document["headline"], "edge-7  Orlop 0.4.0  slot A (vda2)  up 1m 1s");
    assert_eq!(
        (&document["link"], &document["bootId"], &document["problems"]),
        (&json!("up"), &json!("boot-1"), &json!("1"))
    );
    assert_eq!(document["facts"][1], json!(["agent", "running"]));
    assert_eq!(document["lines"], json!(["line 1"]));
    assert_eq!(rows(&document, "problems"), [["default/web"; 4]]);
    // 500 ms within 2 s.
    assert_eq!(rows(&document, "pods"), [["default/web", "1", "25.0%", "2.0 KiB"]]);
    assert_eq!(rows(&document, "processes")[0][..2], ["7", "25.0%"]);
    let names: Vec<String> =
        rows(&document, "services").into_iter().map(|mut row| row.swap_remove(0)).collect();
    assert_eq!(names, ["kubelet.service", "x.service"]);
    assert_eq!(rows(&document, "slots")[0][..2], ["A", "vda2"]);
    assert_eq!(rows(&document, "boot")[0][..3], ["init.verity", "1.200s", "0.300s"]);
    assert_eq!(document["picture"], "boot-1-1");
    assert!(state.picture().starts_with("<svg ") && state.picture().contains("edge-7 boot boot-1"));
}

#[test]
fn a_node_that_is_away_keeps_its_answer_and_the_time_since() {
    let mut state = new();
    state.take(DashboardEvent::Answer(answer(0, "p")), at(1));
    state.take(DashboardEvent::Away("refused".to_owned()), at(20));
    state.take(DashboardEvent::Away("no route".to_owned()), at(30));
    let document = parsed(&state);
    assert_eq!(
        (&document["link"], &document["why"], &document["since"]),
        (&json!("away"), &json!("no route"), &json!("1970-01-01T00:17:00Z"))
    );
    assert_eq!(document["name"], "edge-7");
    let mut rebooted = answer(0, "p");
    for object in &mut rebooted.objects {
        object.metadata.as_mut().unwrap().boot_id = "boot-2".to_owned();
    }
    state.take(DashboardEvent::Answer(rebooted), at(40));
    let document = parsed(&state);
    assert_eq!(
        (&document["link"], &document["since"], &document["reboots"], &document["picture"]),
        (&json!("up"), &Value::Null, &json!(1), &json!("boot-2-1"))
    );
}

#[test]
fn texts_of_a_stranger_stay_data() {
    let mut state = new();
    state.take(DashboardEvent::Answer(answer(0, HOSTILE)), at(1));
    state.take(DashboardEvent::Line(LogLine { message: HOSTILE.to_owned(), ..LogLine::default() }), at(1));
    let text = state.document();
    assert!(!text.contains(['<', '>', '&', '\n', '\u{2028}', '\u{1b}']), "{text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    let shown = "</script><img src=x onerror=alert(1)>&amp;??[2J";
    assert_eq!(rows(&document, "pods")[0][0], shown);
    assert_eq!(
        (&rows(&document, "problems")[0][1], &document["lines"][0]),
        (&shown.to_owned(), &json!(shown))
    );
    assert!(!state.picture().contains("<img"), "{}", state.picture());
}

#[test]
fn kinds_that_could_not_be_asked_are_said_but_for_many_processes() {
    let mut state = new();
    let failure = |kind: &str, reason: &str| KindFailure {
        kind: kind.to_owned(),
        message: "m".to_owned(),
        error: Some(ErrorDetail { reason: reason.to_owned(), ..ErrorDetail::default() }),
    };
    let failures = vec![failure("processes", TOO_MANY_OBJECTS)];
    state.take(DashboardEvent::Answer(GetResponse { objects: Vec::new(), failures }), at(1));
    let document = parsed(&state);
    assert!(rows(&document, "failures").is_empty());
    assert_eq!(document["problems"], "none");
    let failures = vec![
        failure("processes", TOO_MANY_OBJECTS),
        failure("services", "PART_DOWN"),
        failure("mounts", TOO_MANY_OBJECTS),
    ];
    state.take(DashboardEvent::Answer(GetResponse { objects: Vec::new(), failures }), at(1));
    let document = parsed(&state);
    assert_eq!(rows(&document, "failures"), [["services", "m"], ["mounts", "m"]]);
    assert_eq!(document["problems"], "none is known, but not everything could be asked");
}

#[test]
fn any_answer_has_a_limited_document() {
    let long = "<".repeat(1000);
    let mut objects = Vec::new();
    for number in 0..100 {
        let mut more = answer(number, &long).objects;
        for object in &mut more {
            object.metadata.as_mut().unwrap().name = format!("{long}{number}");
            if let Some(Status::Process(process)) = &mut object.status {
                (process.pid, process.pod) = (process.pid + number * 10, format!("{number}{long}"));
            }
        }
        objects.extend(more);
    }
    let failures = (0..100).map(|_| KindFailure { kind: long.clone(), message: long.clone(), error: None });
    let mut state = new();
    state.take(DashboardEvent::Answer(GetResponse { objects, failures: failures.collect() }), at(1));
    for _ in 0..300 {
        state.take(DashboardEvent::Line(LogLine { message: long.clone(), ..LogLine::default() }), at(1));
    }
    state.take(DashboardEvent::Away(long), at(2));
    let text = state.document();
    assert!(text.len() < DOCUMENT_MAX, "{} bytes", text.len());
    let document: Value = serde_json::from_str(&text).unwrap();
    let sections = document["sections"].as_array().unwrap();
    assert!(sections.iter().all(|section| section["rows"].as_array().unwrap().len() <= ROWS_MAX));
    assert_eq!(
        (rows(&document, "pods").len(), rows(&document, "processes").len()),
        (ROWS_MAX, PROCESSES_MAX)
    );
    let mut pods = sections.iter().filter(|section| section["id"] == "pods");
    assert_eq!(pods.next().unwrap()["note"], "50 more rows are left out");
    assert_eq!(document["lines"].as_array().unwrap().len(), LINES_MAX);
    let cell = rows(&document, "problems")[0][0].clone();
    assert!(cell.chars().count() == CELL_CHARS_MAX && cell.ends_with('…'), "{cell}");
}
