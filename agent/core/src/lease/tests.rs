//! The lease against a small API server: every short sequence of faults, then peace.

use agent_types::api::ApiError;
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::Node;

use super::*;

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Refused before anything happens.
    Unavailable,
    /// Applied, but no answer came.
    Lost,
    /// Another client wrote the lease just before.
    Meddled,
    /// Another client deleted the lease just before.
    Deleted,
    /// The Node is not there.
    NoNode,
}

const FAULTS: [Fault; 6] =
    [Fault::None, Fault::Unavailable, Fault::Lost, Fault::Meddled, Fault::Deleted, Fault::NoNode];

struct World {
    machine: NodeLease,
    now: Now,
    lease: Option<Lease>,
    version: u64,
    calls: Vec<(Mono, &'static str)>,
    facts: Vec<LeaseFact>,
    closed: usize,
}

fn error(class: Class, code: u16) -> ApiError {
    ApiError {
        call: "call".into(),
        class,
        code: Some(code),
        reason: String::new(),
        message: format!("{class:?}"),
    }
}

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

impl World {
    fn new() -> World {
        let config = LeaseConfig { node_name: "n1".into(), duration_s: 40, seed: 1 };
        World {
            machine: NodeLease::new(config),
            now: Now { mono: Mono(1_000_000_000), wall: Wall(1_795_262_400_000_000_000) },
            lease: None,
            version: 0,
            calls: Vec::new(),
            facts: Vec::new(),
            closed: 0,
        }
    }

    fn pass(&mut self, d: Duration) {
        self.now.mono = self.now.mono.after(d);
        self.now.wall.0 += i64::try_from(d.as_nanos()).unwrap();
    }

    /// One event and every call that follows, each taking 5 ms and the next fault of `faults`.
    fn step(&mut self, event: LeaseEvent, faults: &mut dyn Iterator<Item = Fault>) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut out = Outbox::new();
            self.machine.step(self.now, event, &mut out);
            for action in out.drain() {
                match action {
                    LeaseAction::Call { id, call } => {
                        assert!(events.is_empty(), "one call in flight");
                        let result = self.serve(&call, faults.next().unwrap_or(Fault::None));
                        self.pass(Duration::from_millis(5));
                        events.push(LeaseEvent::Answered { id, result });
                    }
                    LeaseAction::CloseConnections => self.closed += 1,
                    LeaseAction::Fact(fact) => self.facts.push(fact),
                }
            }
        }
    }

    fn serve(&mut self, call: &ApiCall, fault: Fault) -> ApiResult {
        let at = self.now.mono;
        match fault {
            Fault::Unavailable => {
                self.calls.push((at, "refused"));
                return Err(error(Class::Unavailable, 503));
            }
            Fault::Meddled => self.version += 1,
            Fault::Deleted => self.lease = None,
            Fault::None | Fault::Lost | Fault::NoNode => {}
        }
        let version = self.version;
        let verb = match call {
            ApiCall::GetNode { .. } => "node",
            ApiCall::GetLease { .. } => "get",
            ApiCall::CreateLease(_) => "create",
            ApiCall::ReplaceLease(_) => "replace",
            other => panic!("{other:?}"),
        };
        self.calls.push((at, verb));
        let result = match call {
            ApiCall::GetNode { .. } if fault == Fault::NoNode => Err(error(Class::NotFound, 404)),
            ApiCall::GetNode { .. } => {
                let mut node = Node::default();
                node.metadata.uid = Some("node-uid".into());
                Ok(ApiReply::Node(Box::new(node)))
            }
            ApiCall::CreateLease(_) if self.lease.is_some() => Err(error(Class::AlreadyExists, 409)),
            ApiCall::ReplaceLease(_) if self.lease.is_none() => Err(error(Class::NotFound, 404)),
            ApiCall::ReplaceLease(new) if new.metadata.resource_version != Some(version.to_string()) => {
                Err(error(Class::Conflict, 409))
            }
            ApiCall::CreateLease(new) | ApiCall::ReplaceLease(new) => {
                assert!(verb == "replace" || object::has_owner(new), "created without owner");
                self.version += 1;
                self.lease = Some((**new).clone());
                self.current()
            }
            _ => self.current(),
        };
        if fault == Fault::Lost { Err(error(Class::DeadlineExceeded, 504)) } else { result }
    }

    fn current(&self) -> ApiResult {
        let mut lease = self.lease.clone().ok_or_else(|| error(Class::NotFound, 404))?;
        lease.metadata.resource_version = Some(self.version.to_string());
        Ok(ApiReply::Lease(Box::new(lease)))
    }

    /// Runs from deadline to deadline until this much time has passed.
    fn run(&mut self, d: Duration, faults: &mut dyn Iterator<Item = Fault>) {
        let end = self.now.mono.after(d);
        let mut steps = 0;
        while let Some(at) = self.machine.deadline().filter(|at| *at <= end) {
            let wait = at.since(self.now.mono);
            self.pass(wait);
            self.step(LeaseEvent::Tick, faults);
            steps += 1;
            assert!(steps < 2000, "hot loop");
        }
        let rest = end.since(self.now.mono);
        self.pass(rest);
    }

    fn verbs(&mut self) -> Vec<&'static str> {
        self.calls.drain(..).map(|(_, verb)| verb).collect()
    }
}

fn peace() -> impl Iterator<Item = Fault> {
    std::iter::empty()
}

#[test]
fn created_with_its_owner_then_renewed_every_quarter() {
    let mut w = World::new();
    w.run(Duration::ZERO, &mut peace());
    assert_eq!(w.verbs(), ["get", "node", "create"]);
    let lease = w.lease.clone().unwrap();
    assert_eq!(lease.metadata.namespace.as_deref(), Some("kube-node-lease"));
    let owner = &lease.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("Node", "n1", "node-uid"));
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("n1"));
    assert_eq!(spec.lease_duration_seconds, Some(40));
    w.run(seconds(3600), &mut peace());
    // 10 s and up to 4 % more.
    let renewals = w.verbs();
    assert!((345..=360).contains(&renewals.len()), "{}", renewals.len());
    assert!(renewals.iter().all(|verb| *verb == "replace"));
    assert_eq!(w.facts.iter().filter(|f| **f == LeaseFact::Created).count(), 1);
    assert!(w.machine.renewed().is_some_and(|at| w.now.mono.since(at) <= seconds(11)));
}

#[test]
fn without_a_node_the_lease_waits_and_registration_wakes_it() {
    let mut w = World::new();
    w.run(Duration::ZERO, &mut [Fault::None, Fault::NoNode].into_iter());
    assert_eq!(w.verbs(), ["get", "node"]);
    assert!(w.machine.deadline().unwrap() >= w.now.mono.after(Duration::from_millis(9_900)));
    w.step(LeaseEvent::Registered { uid: "fresh".into() }, &mut peace());
    assert_eq!(w.verbs(), ["get", "create"]);
    assert_eq!(w.lease.as_ref().unwrap().metadata.owner_references.as_ref().unwrap()[0].uid, "fresh");
    // The Node was made again: the garbage collector must not take the lease for an orphan.
    w.step(LeaseEvent::Registered { uid: "newer".into() }, &mut peace());
    w.run(seconds(11), &mut peace());
    assert_eq!(w.lease.as_ref().unwrap().metadata.owner_references.as_ref().unwrap()[0].uid, "newer");
}

#[test]
fn an_existing_lease_without_owner_is_renewed_and_the_owner_tried_again() {
    let mut w = World::new();
    w.lease = Some(Lease::default());
    w.run(Duration::ZERO, &mut [Fault::None, Fault::NoNode].into_iter());
    assert_eq!(w.verbs(), ["get", "node", "replace"]);
    assert!(!object::has_owner(w.lease.as_ref().unwrap()));
    w.run(seconds(11), &mut peace());
    assert_eq!(w.verbs(), ["node", "replace"]);
    assert!(object::has_owner(w.lease.as_ref().unwrap()));
}

#[test]
fn five_tries_then_the_lease_is_asked_for_and_connections_are_closed() {
    let mut w = World::new();
    w.run(Duration::ZERO, &mut peace());
    w.verbs();
    w.run(seconds(11), &mut std::iter::repeat_n(Fault::Unavailable, 5));
    assert_eq!(w.verbs(), ["refused", "refused", "refused", "refused", "refused", "get", "replace"]);
    assert_eq!(w.closed, 4);
}

#[test]
fn a_server_that_stays_away_is_asked_less_and_less() {
    let mut w = World::new();
    w.run(seconds(600), &mut std::iter::repeat(Fault::Unavailable));
    let count = w.verbs().len();
    assert!((80..=100).contains(&count), "{count} calls in 10 minutes");
    w.run(seconds(8), &mut peace());
    assert!(w.lease.is_some());
}

/// Every sequence of five faults, from the start and from a running lease: afterwards the lease is there, owned and
/// renewed, and no second had more than a handful of calls.
#[test]
fn every_short_sequence_of_faults_ends_well() {
    let length = u32::try_from(5).unwrap();
    for running in [false, true] {
        for number in 0..FAULTS.len().pow(length) {
            let mut rest = number;
            let mut faults = (0..length).map(|_| {
                let fault = FAULTS[rest % FAULTS.len()];
                rest /= FAULTS.len();
                fault
            });
            let mut w = World::new();
            if running {
                w.run(Duration::ZERO, &mut peace());
            }
            w.calls.clear();
            w.run(seconds(60), &mut faults);
            let about = || format!("sequence {number}, running {running}: {:?}", w.calls);
            assert!(faults.next().is_none(), "{}", about());
            assert!(w.lease.as_ref().is_some_and(object::has_owner), "{}", about());
            assert!(w.machine.renewed().is_some_and(|at| w.now.mono.since(at) <= seconds(11)), "{}", about());
            for (at, _) in &w.calls {
                let burst = w.calls.iter().filter(|(other, _)| other >= at && other.since(*at) < seconds(1));
                assert!(burst.count() <= 16, "{}", about());
            }
        }
    }
}
