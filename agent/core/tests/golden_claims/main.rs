//! Made-up drivers, claims and pods, and what the upstream kubelet's DRA manager did with them: the same errors, calls, devices, health
//! and checkpoints here, over drivers that fail, come and go, claims that are replaced, and restarts.
//!
//! In: `fixtures/claims.json.gz`, recorded by `qemu-tests/controlplane/cmd/claims` (docs/internals/testing.md). Each state is compared by
//! the hash of one text. The recorder ends a course where upstream's random order shows, and makes each device of a claim come once, which
//! upstream doubles when a claim is prepared again. [`Departure`] names the places where a course ends because we depart on purpose.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod recording;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read as _;
use std::time::Duration;

use agent_core::resource_claims::ResourceClaims;
use agent_core::resource_claims::api::{
    ClaimAction, ClaimEvent, ClaimGates, ClaimMethod, DeviceHealth, PluginId, ReportedHealth,
};
use agent_types::ids::PodUid;
use agent_types::machine::{Machine, Outbox};
use agent_types::runtime::claims::{ContainerClaims, PodClaims};
use agent_types::time::{Mono, Now, Wall};

use recording::{ClaimOf, HealthOf, PodOf, RecordedCourse, RecordedStep, ResultOf, answer};

const GATES: ClaimGates = ClaimGates { health: true, health_message: true, workload_claims: false };
/// Time between two steps.
const STEP: Duration = Duration::from_secs(2);
/// The file without a claim that was ever there, and the emptied one, with which the recorder replaces it.
const NULL: (&str, &str) = ("null}\",\"Checksum\":4010664294", "[]}\",\"Checksum\":2361995144");

/// Why a course ends here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Departure {
    /// A pod ends that names a claim that only another pod uses: upstream takes it away from that pod.
    ForeignReference,
    /// A claim whose unpreparation failed is wanted again: upstream takes it for prepared.
    HalfUnprepared,
    /// Upstream asks drivers and reads results in random order, and the first error ends both.
    RandomOrder,
}

/// The shell: it answers each question at once.
struct Node {
    claims: ResourceClaims,
    now: Now,
    asks: u64,
    plugins: u64,
    registered: BTreeMap<String, PluginId>,
    objects: BTreeMap<String, ClaimOf>,
    results: BTreeMap<String, Vec<ResultOf>>,
    pods: BTreeMap<String, PodOf>,
    file: Option<String>,
    health: Option<String>,
    calls: Vec<String>,
    answers: BTreeMap<u64, Result<PodClaims, String>>,
    /// Claims whose unpreparation failed.
    half_unprepared: BTreeSet<String>,
}

impl Node {
    fn new() -> Node {
        let now = Now { mono: Mono(1 << 40), wall: Wall(1 << 60) };
        let mut node = Node {
            claims: ResourceClaims::new(GATES),
            now,
            asks: 0,
            plugins: 0,
            registered: BTreeMap::new(),
            objects: BTreeMap::new(),
            results: BTreeMap::new(),
            pods: BTreeMap::new(),
            file: None,
            health: None,
            calls: Vec::new(),
            answers: BTreeMap::new(),
            half_unprepared: BTreeSet::new(),
        };
        node.act(ClaimEvent::Tick, &BTreeMap::new());
        node
    }

    /// Steps the machine until it asks nothing more.
    fn act(&mut self, event: ClaimEvent, modes: &BTreeMap<String, String>) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut out = Outbox::new();
            self.claims.step(self.now, event, &mut out);
            for action in out.drain() {
                match action {
                    ClaimAction::Fetch { fetch, name, .. } => {
                        let absent = || format!("resourceclaims.resource.k8s.io {name:?} not found");
                        let answer = self.objects.get(&name).map(ClaimOf::object).ok_or_else(absent);
                        events.push(ClaimEvent::Fetched { fetch, answer });
                    }
                    ClaimAction::Call { call, plugin, method, claims } => {
                        let (driver, _) =
                            self.registered.iter().find(|(_, id)| **id == plugin).expect("registered");
                        let mut uids: Vec<&str> = claims.iter().map(|claim| claim.uid.as_str()).collect();
                        uids.sort_unstable();
                        let word = if method == ClaimMethod::Prepare { "prepare" } else { "unprepare" };
                        self.calls.push(format!("{word} {driver} {}", uids.join(",")));
                        let mode = modes.get(driver).map_or("", String::as_str);
                        let answer = answer(driver, mode, method, &claims, &self.results);
                        events.push(ClaimEvent::Called { call, answer });
                    }
                    ClaimAction::Write(text) => {
                        self.file = Some(text);
                        events.push(ClaimEvent::Written(Ok(())));
                    }
                    ClaimAction::WriteHealth(text) => self.health = Some(text),
                    ClaimAction::Answer { ask, answer } => {
                        assert!(self.answers.insert(ask, answer).is_none(), "answered twice");
                    }
                    ClaimAction::DeleteSlices { .. }
                    | ClaimAction::NotGivenBack { .. }
                    | ClaimAction::Changed { .. } => {}
                }
            }
        }
    }

    fn ask(
        &mut self,
        event: impl FnOnce(u64) -> ClaimEvent,
        modes: &BTreeMap<String, String>,
    ) -> Result<PodClaims, String> {
        self.asks += 1;
        self.act(event(self.asks), modes);
        self.answers.remove(&self.asks).expect("an answer")
    }

    fn register(&mut self, driver: &str) {
        self.plugins += 1;
        let plugin = PluginId(self.plugins);
        self.registered.insert(driver.to_owned(), plugin);
        self.act(ClaimEvent::Registered { plugin, driver: driver.to_owned() }, &BTreeMap::new());
        self.act(ClaimEvent::Connected(plugin), &BTreeMap::new());
    }

    fn report(&mut self, of: &HealthOf) {
        let plugin = self.registered[&of.d];
        if of.ends {
            return self.act(ClaimEvent::HealthEnded(plugin), &BTreeMap::new());
        }
        let health = match of.h {
            1 => DeviceHealth::Healthy,
            2 => DeviceHealth::Unhealthy,
            _ => DeviceHealth::Unknown,
        };
        let device = ReportedHealth {
            pool: "pool".to_owned(),
            device: of.n.clone(),
            health,
            timeout: Some(Duration::from_secs(36_000)),
            message: of.m.clone(),
        };
        self.act(ClaimEvent::Health { plugin, devices: vec![device] }, &BTreeMap::new());
    }

    fn restart(&mut self) {
        let (file, health) = (self.file.as_deref(), self.health.as_deref());
        self.claims = ResourceClaims::restore(GATES, file, health, self.now).expect("the agent's file");
        self.registered.clear();
        self.half_unprepared.clear();
        self.act(ClaimEvent::Tick, &BTreeMap::new());
    }

    /// The names of the pod's claims.
    fn names(&self, uid: &str) -> BTreeSet<String> {
        self.pods[uid].claims.iter().filter(|of| !of.skipped).map(|of| of.c.clone()).collect()
    }

    fn departure(&self, step: &RecordedStep) -> Option<Departure> {
        if self.is_random(step) {
            return Some(Departure::RandomOrder);
        }
        if let Some(uid) = &step.unprepare {
            let names = self.names(uid);
            let of_another = self.claims.view().claims.iter().any(|((_, name), claim)| {
                names.contains(name)
                    && claim.pods.len() == 1
                    && !claim.pods.contains(&PodUid::from(uid.as_str()))
            });
            return of_another.then_some(Departure::ForeignReference);
        }
        let uid = step.prepare.as_ref()?;
        let is_half = !self.names(uid).is_disjoint(&self.half_unprepared);
        is_half.then_some(Departure::HalfUnprepared)
    }

    /// The step's error depends on the order of drivers or results. Upstream's random order is uneven, so that the recorder does not
    /// see each such step.
    fn is_random(&self, step: &RecordedStep) -> bool {
        let Some(uid) = step.prepare.as_ref().or(step.unprepare.as_ref()) else { return false };
        let names = self.names(uid);
        let results = names.iter().filter_map(|name| self.objects.get(name)).flat_map(|claim| &claim.of);
        let cached = self.claims.view().claims;
        let cached = cached.iter().filter(|((_, name), _)| names.contains(name));
        let cached = cached.flat_map(|(_, claim)| claim.devices.keys().cloned());
        let drivers: BTreeSet<String> = results.map(|of| of.d.clone()).chain(cached).collect();
        let absent = drivers.iter().filter(|driver| !self.registered.contains_key(*driver)).count();
        if step.outcome.ends_with(" is not registered") {
            return if step.prepare.is_some() { absent > 1 } else { drivers.len() > 1 };
        }
        if !step.outcome.contains("NodePrepareResources") && !step.outcome.contains("NodeUnprepareResources")
        {
            return false;
        }
        let is_mode = |mode: &str| step.modes.values().any(|of| of == mode);
        drivers.len() > 1
            || step.prepare.is_some() && (is_mode("foreign") || is_mode("result") && names.len() > 1)
    }

    fn unprepare(&mut self, uid: &str, modes: &BTreeMap<String, String>) -> String {
        let event = |ask| ClaimEvent::Unprepare { ask, uid: PodUid::from(uid) };
        let outcome = self.ask(event, modes);
        let claims = self.claims.view().claims;
        let left = claims.iter().filter(|(_, claim)| claim.pods.contains(&PodUid::from(uid)));
        self.half_unprepared.extend(left.map(|((_, name), _)| name.clone()));
        self.half_unprepared.retain(|name| claims.contains_key(&("ns".to_owned(), name.clone())));
        outcome.err().map_or_else(String::new, |error| format!("unprepare dynamic resources: {error}"))
    }

    fn prepare(&mut self, uid: &str, modes: &BTreeMap<String, String>) -> String {
        let pod = self.pods[uid].claims();
        let outcome = self.ask(|ask| ClaimEvent::Prepare { ask, pod }, modes);
        outcome.err().map_or_else(String::new, |error| format!("prepare dynamic resources: {error}"))
    }

    /// The recorder's text of all that the manager shows.
    fn text(&mut self) -> String {
        let mut out = String::new();
        for (uid, pod) in self.pods.clone() {
            writeln!(
                out,
                "{uid} {}",
                self.claims
                    .view()
                    .claims
                    .values()
                    .any(|claim| claim.pods.contains(&PodUid::from(uid.as_str())))
            )
            .unwrap();
            let claims = pod.claims();
            let found =
                self.ask(|ask| ClaimEvent::Find { ask, pod: claims }, &BTreeMap::new()).expect("devices");
            for container in &pod.of {
                let claims = &found.containers[&container.n];
                writeln!(out, "{uid}/{} {}", container.n, devices(claims)).unwrap();
                let mut lines: Vec<String> = Vec::new();
                for (name, health) in &claims.health {
                    for of in health {
                        let message = of.message.as_ref().map_or_else(String::new, |text| format!(" {text}"));
                        lines.push(format!("{name} {}={}{message}\n", of.resource_id, of.health));
                    }
                }
                lines.sort();
                out.extend(lines);
            }
        }
        let file = self.file.clone().unwrap_or_default().replace(NULL.0, NULL.1);
        writeln!(out, "file {file}").unwrap();
        out
    }

    /// The first difference to upstream.
    fn take(&mut self, step: &RecordedStep) -> Result<(), String> {
        self.now.mono = self.now.mono.after(STEP);
        self.calls.clear();
        let mut outcome = String::new();
        if let Some(driver) = &step.register {
            self.register(driver);
        } else if let Some(driver) = &step.deregister {
            let plugin = self.registered[driver];
            self.act(ClaimEvent::Deregistered(plugin), &BTreeMap::new());
            self.registered.remove(driver);
        } else if let Some(claim) = &step.claim {
            self.objects.insert(claim.n.clone(), claim.clone());
            self.results.insert(claim.uid.clone(), claim.of.clone());
            if claim.gone {
                self.objects.remove(&claim.n);
            }
        } else if let Some(pod) = &step.pod {
            self.pods.insert(pod.uid.clone(), pod.clone());
        } else if let Some(uid) = &step.prepare {
            outcome = self.prepare(uid, &step.modes);
        } else if let Some(uid) = &step.unprepare {
            outcome = self.unprepare(uid, &step.modes);
        } else if let Some(of) = &step.health {
            self.report(of);
        } else if step.restart {
            self.restart();
        }
        self.calls.sort();
        if (&outcome, &self.calls) != (&step.outcome, &step.calls) {
            return Err(format!(
                "upstream {:?} {:?}, here {outcome:?} {:?}",
                step.outcome, step.calls, self.calls
            ));
        }
        let text = self.text();
        if hash(&text) == step.state {
            return Ok(());
        }
        Err(format!("upstream\n{}here\n{text}", step.text))
    }
}

/// The names of CDI devices, sorted.
fn devices(claims: &ContainerClaims) -> String {
    if claims.missing.is_some() {
        return "missing".to_owned();
    }
    let names: BTreeSet<&str> = claims.cdi_devices.iter().map(String::as_str).collect();
    names.into_iter().collect::<Vec<_>>().join(",")
}

fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The number of steps that are the same, and the departure that ends the course.
fn compare(course: &RecordedCourse) -> Result<(usize, Option<Departure>), String> {
    let mut node = Node::new();
    for (at, step) in course.steps.iter().enumerate() {
        if let Some(departure) = node.departure(step) {
            return Ok((at, Some(departure)));
        }
        node.take(step).map_err(|error| format!("step {at}: {error}"))?;
    }
    Ok((course.steps.len(), None))
}

#[test]
fn every_course_is_upstreams() {
    let packed: &[u8] = include_bytes!("../fixtures/claims.json.gz");
    let mut json = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut json).expect("gzip");
    let courses: Vec<RecordedCourse> = serde_json::from_str(&json).expect("courses");
    let mut wrong = Vec::new();
    let (mut steps, mut departures) = (0, BTreeMap::<Departure, usize>::new());
    for (seed, course) in (1..).zip(&courses) {
        match compare(course) {
            Ok((same, departure)) => {
                steps += same;
                departure.into_iter().for_each(|of| *departures.entry(of).or_default() += 1);
            }
            Err(error) => wrong.push(format!("seed {seed}: {error}")),
        }
    }
    let some = wrong.get(..wrong.len().min(5)).unwrap_or_default().join("\n");
    assert!(wrong.is_empty(), "{} of {} courses differ:\n{some}", wrong.len(), courses.len());
    assert!(courses.len() >= 500 && steps > 8000, "{} courses, {steps} steps", courses.len());
    assert!(departures.contains_key(&Departure::ForeignReference), "{departures:?}");
}
