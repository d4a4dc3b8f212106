//! The unit against the fake of each platform: over TCP, with directories of its own, without a VM.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent_provision::testing::{FakeMetadata, LoopbackMetadata, MetadataFault};
use agent_provision::{Endpoints, Limits, ProvisionOutlet, Settings, StoreError, run};
use orlop_config::platform::{PlatformName, PlatformReport, UserDataState};
use tempfile::TempDir;

const NODE: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nnode: {name: a}\n";

const ALL: [PlatformName; 8] = [
    PlatformName::Aws,
    PlatformName::Gce,
    PlatformName::Azure,
    PlatformName::OpenStack,
    PlatformName::Oracle,
    PlatformName::DigitalOcean,
    PlatformName::Vultr,
    PlatformName::Hetzner,
];

/// Messages that the unit got.
#[derive(Default)]
struct RecordedOutlet {
    ready: u32,
    lines: Vec<String>,
}

impl ProvisionOutlet for RecordedOutlet {
    fn ready(&mut self) {
        self.ready += 1;
    }

    fn say(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }
}

/// A node at its first boot.
struct Node {
    dir: TempDir,
    settings: Settings,
}

impl Node {
    fn new(platform: PlatformName, user_data: UserDataState, service: SocketAddr) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("platform.json");
        let machine = Some("uuid-1".to_owned());
        let of_init = PlatformReport { machine, ..PlatformReport::new(platform, user_data) };
        fs::write(&report, of_init.render()).unwrap();
        let limits = Limits {
            wait_max: Duration::from_secs(30),
            exchange_max: Duration::from_millis(500),
            refused_pause: Duration::from_millis(50),
            ready_tries: 3,
        };
        let endpoints = Endpoints { metadata: service, fabric: service };
        let settings = Settings { endpoints, limits, report, var: dir.path().join("var") };
        Node { dir, settings }
    }

    fn run(&self) -> (RecordedOutlet, Result<(), StoreError>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut told = RecordedOutlet::default();
        let result = runtime.block_on(run(&self.settings, &mut told));
        (told, result)
    }

    fn kept(&self, name: &str) -> PathBuf {
        self.dir.path().join("var/lib/orlop/config").join(name)
    }

    fn report(&self) -> PlatformReport {
        PlatformReport::parse(&fs::read_to_string(&self.settings.report).unwrap()).unwrap()
    }
}

fn first_boot(service: &LoopbackMetadata, platform: PlatformName) -> Node {
    Node::new(platform, UserDataState::Pending, service.address())
}

#[test]
fn every_platform_gives_its_user_data_and_its_facts() {
    for platform in ALL {
        let service = LoopbackMetadata::start(FakeMetadata::new(platform, Some(NODE))).unwrap();
        let node = first_boot(&service, platform);
        let (told, result) = node.run();
        result.unwrap();
        assert_eq!(told.ready, 1, "{platform:?}");
        let document = node.kept("metadata.yaml");
        assert_eq!(fs::read_to_string(&document).unwrap(), NODE, "{platform:?}");
        assert_eq!(fs::metadata(&document).unwrap().permissions().mode() & 0o7777, 0o600);
        let report = node.report();
        assert_eq!(report.user_data, UserDataState::Kept, "{platform:?}");
        assert!(report.facts.hostname.is_some() && report.facts.provider_id.is_some(), "{report:?}");
        assert_eq!(report.machine.as_deref(), Some("uuid-1"), "as init named it");
        let kept = PlatformReport::parse(&fs::read_to_string(node.kept("platform.json")).unwrap()).unwrap();
        assert_eq!(kept, report, "{platform:?}");
        let asked = service.fake().asked();
        let reported = asked.iter().any(|request| request == "POST /machine?comp=health");
        assert_eq!(reported, platform == PlatformName::Azure, "{asked:?}");
    }
}

#[test]
fn a_platform_without_user_data_leaves_defaults_and_facts() {
    for platform in ALL {
        let service = LoopbackMetadata::start(FakeMetadata::new(platform, None)).unwrap();
        let node = first_boot(&service, platform);
        // The disk is a copy of another machine's.
        fs::create_dir_all(node.kept("")).unwrap();
        fs::write(node.kept("metadata.yaml"), "another machine's").unwrap();
        let (told, result) = node.run();
        result.unwrap();
        assert!(!node.kept("metadata.yaml").exists());
        assert_eq!((told.ready, node.report().user_data), (1, UserDataState::None), "{platform:?}");
        assert!(node.report().facts.instance_id.is_some(), "{platform:?}");
        assert!(told.lines.iter().any(|line| line.contains("no user data: defaults")), "{:?}", told.lines);
    }
}

#[test]
fn one_fault_of_each_kind_costs_a_try_and_no_more() {
    let faults = [
        MetadataFault::Status(401),
        MetadataFault::Status(503),
        MetadataFault::Silent,
        MetadataFault::Cut,
        MetadataFault::Redirect,
    ];
    for platform in [PlatformName::Aws, PlatformName::Hetzner] {
        for fault in faults {
            let service = LoopbackMetadata::start(FakeMetadata::new(platform, Some(NODE))).unwrap();
            service.fake().fail([fault]);
            let node = first_boot(&service, platform);
            let (told, result) = node.run();
            result.unwrap();
            assert_eq!((told.ready, node.report().user_data), (1, UserDataState::Kept), "{fault:?}");
            assert_eq!(fs::read_to_string(node.kept("metadata.yaml")).unwrap(), NODE, "{fault:?}");
        }
    }
}

#[test]
fn refused_user_data_are_said_once_and_asked_for_again() {
    let service =
        LoopbackMetadata::start(FakeMetadata::new(PlatformName::Gce, Some("#cloud-config\n"))).unwrap();
    let node = first_boot(&service, PlatformName::Gce);
    let (told, meanwhile, was_kept) = std::thread::scope(|scope| {
        let unit = scope.spawn(|| node.run());
        let deadline = Instant::now() + Duration::from_secs(20);
        let rounds = || {
            let asked = service.fake().asked();
            asked.iter().filter(|request| request.ends_with("/attributes/user-data")).count()
        };
        // Two rounds: the second is not said again.
        while rounds() < 3 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let meanwhile = node.report();
        let was_kept = node.kept("metadata.yaml").exists() || node.kept("platform.json").exists();
        // From here on the unit ends.
        service.fake().set_user_data(NODE.as_bytes());
        let (told, result) = unit.join().unwrap();
        result.unwrap();
        (told, meanwhile, was_kept)
    });
    assert!(meanwhile.problem.is_some_and(|why| why.contains("#cloud-config")) && !was_kept);
    let refusals = told.lines.iter().filter(|line| line.contains("REFUSED")).count();
    assert_eq!((told.ready, refusals), (1, 1), "{:?}", told.lines);
    assert_eq!((node.report().user_data, node.report().problem), (UserDataState::Kept, None));
}

#[test]
fn too_large_an_answer_is_refused_and_not_kept_in_memory() {
    let service = LoopbackMetadata::start(FakeMetadata::new(PlatformName::Vultr, Some(NODE))).unwrap();
    service.fake().fail([MetadataFault::TooLarge]);
    let node = first_boot(&service, PlatformName::Vultr);
    let (told, result) = node.run();
    result.unwrap();
    assert!(told.lines.iter().any(|line| line.contains("larger than 1 MiB")), "{:?}", told.lines);
    assert_eq!(node.report().user_data, UserDataState::Kept);
}

#[test]
fn the_agent_starts_when_nobody_answers_in_time_and_the_answer_counts_later() {
    // A port that nobody listens on until later.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let mut node = Node::new(PlatformName::Aws, UserDataState::Pending, address);
    node.settings.limits.wait_max = Duration::from_millis(300);
    let fake = FakeMetadata::new(PlatformName::Aws, Some(NODE));
    let told = std::thread::scope(|scope| {
        let unit = scope.spawn(|| node.run());
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(700) {
            std::thread::yield_now();
        }
        // The agent has started, and who looks finds the reason.
        let problem = node.report().problem.unwrap_or_default();
        assert!(
            problem.contains("no answer (") && node.report().user_data == UserDataState::Pending,
            "{problem}"
        );
        let listener = TcpListener::bind(address).unwrap();
        let served = &fake;
        scope.spawn(move || served.serve(&listener));
        let joined = unit.join();
        fake.end();
        // The thread waits for a connection.
        let _ = TcpStream::connect(address);
        let (told, result) = joined.unwrap();
        result.unwrap();
        told
    });
    assert_eq!((told.ready, node.report().user_data), (1, UserDataState::Kept));
    assert_eq!(node.report().problem, None);
    let standalone = &told.lines[0];
    assert!(
        standalone.starts_with("metadata of aws at 169.254.169.254: no answer (")
            && standalone.ends_with("standalone until it answers"),
        "{standalone}"
    );
}

#[test]
fn the_agent_does_not_wait_for_answers_that_come_too_slowly() {
    let service = LoopbackMetadata::start(FakeMetadata::new(PlatformName::Hetzner, Some(NODE))).unwrap();
    service.fake().fail([MetadataFault::Slow(Duration::from_millis(300)); 3]);
    let mut node = first_boot(&service, PlatformName::Hetzner);
    node.settings.limits.wait_max = Duration::from_millis(400);
    node.settings.limits.exchange_max = Duration::from_secs(20);
    let (told, result) = node.run();
    result.unwrap();
    assert_eq!((told.ready, node.report().user_data), (1, UserDataState::Kept));
    assert!(told.lines.iter().any(|line| line.contains("take too long: standalone")), "{:?}", told.lines);
}

#[test]
fn with_a_local_document_only_azure_hears_of_the_machine() {
    for platform in [PlatformName::Aws, PlatformName::Azure] {
        let service = LoopbackMetadata::start(FakeMetadata::new(platform, Some(NODE))).unwrap();
        let node = Node::new(platform, UserDataState::Local, service.address());
        let (told, result) = node.run();
        result.unwrap();
        assert_eq!((told.ready, node.report().user_data), (1, UserDataState::Local));
        assert!(!node.kept("metadata.yaml").exists() && !node.kept("platform.json").exists());
        let wanted: &[&str] = match platform {
            PlatformName::Azure => &["GET /machine?comp=goalstate", "POST /machine?comp=health"],
            _ => &[],
        };
        assert_eq!(service.fake().asked(), wanted);
    }
}

#[test]
fn a_report_that_azure_does_not_take_costs_no_node() {
    let service = LoopbackMetadata::start(FakeMetadata::new(PlatformName::Azure, None)).unwrap();
    service.fake().fail([MetadataFault::Status(500); 9]);
    let node = Node::new(PlatformName::Azure, UserDataState::Local, service.address());
    let (told, result) = node.run();
    result.unwrap();
    assert_eq!((told.ready, service.fake().asked().len()), (1, 3));
    assert!(
        told.lines.iter().any(|line| line.contains("Azure does not take the report")),
        "{:?}",
        told.lines
    );
}

#[test]
fn without_a_report_of_init_the_unit_says_what_is_missing() {
    let node = Node::new(PlatformName::Aws, UserDataState::Pending, (Ipv4Addr::LOCALHOST, 1).into());
    fs::write(&node.settings.report, "{").unwrap();
    let (told, result) = node.run();
    assert!(matches!(result, Err(StoreError::Report { .. })));
    assert_eq!(told.ready, 0);
    fs::remove_file(&node.settings.report).unwrap();
    assert!(matches!(node.run().1, Err(StoreError::Read { .. })));
}
