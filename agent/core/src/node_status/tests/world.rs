//! An API server with one Node, strategic merge patches and faults, and a machine in front of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_types::api::{ApiError, ApiReply};
use agent_types::failure::Class;
use agent_types::machine::{Machine, Outbox};
use agent_types::resources::machine::{HostNetwork, InterfaceAddress, MachineFacts};
use agent_types::resources::node_allocatable::{HugePages, MachineAmounts, Reservations};
use agent_types::runtime::status::{RuntimeStatus, RuntimeVersion};
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};

use crate::node_status::*;

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    None,
    /// Refused before anything happens.
    Unavailable,
    /// Applied, but no answer came.
    Lost,
    /// Another client deleted the Node just before.
    Deleted,
    /// Creating is forbidden.
    Forbidden,
    /// Another client deleted the Node and made another just before.
    Remade,
}

pub(super) const FAULTS: [Fault; 6] =
    [Fault::None, Fault::Unavailable, Fault::Lost, Fault::Deleted, Fault::Forbidden, Fault::Remade];

pub(super) fn peace() -> impl Iterator<Item = Fault> {
    std::iter::empty()
}

pub(super) fn machine_facts() -> MachineFacts {
    MachineFacts {
        machine_id: "m".into(),
        system_uuid: "s".into(),
        boot_id: "b".into(),
        kernel_version: "6.12".into(),
        os_image: "Orlop".into(),
        architecture: "amd64".into(),
        swap_bytes: 7,
        amounts: MachineAmounts {
            cpus: 4,
            memory_bytes: 16 << 30,
            hugepages: vec![HugePages { page_bytes: 2 << 20, pages: 0 }],
            ephemeral_storage_bytes: Some(1 << 30),
        },
    }
}

pub(super) fn network(ip: &str) -> HostNetwork {
    let of = |interface: &str, ip: &str| InterfaceAddress {
        interface: interface.into(),
        ip: ip.parse::<IpAddr>().unwrap(),
    };
    HostNetwork {
        addresses: vec![of("lo", "127.0.0.1"), of("eth0", ip), of("cni0", "10.88.0.1")],
        default_v4: vec!["eth0".into()],
        ..HostNetwork::default()
    }
}

pub(super) fn config() -> NodeStatusConfig {
    NodeStatusConfig {
        node_name: "n1".into(),
        register: true,
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        taints: vec![Taint { key: "dedicated".into(), effect: "NoSchedule".into(), ..Taint::default() }],
        provider_id: "metal://1".into(),
        controller_attach_detach: true,
        addresses: AddressPolicy { hostname: "n1".into(), ..AddressPolicy::default() },
        reservations: Reservations::new(&orlop_config::kubelet::KubeletConfiguration {
            eviction_hard: Default::default(),
            ..Default::default()
        }),
        local_storage_capacity_isolation: true,
        images_max: 50,
        port: 10250,
        kubelet_version: "v1.36.0".into(),
        declared_features: Vec::new(),
        update_period: Duration::from_secs(10),
        report_period: Duration::from_secs(300),
        seed: 3,
    }
}

pub(super) struct World {
    pub(super) machine: NodeStatus,
    pub(super) now: Now,
    pub(super) calls: Vec<(Mono, ApiCall)>,
    pub(super) facts: Vec<NodeFact>,
    pub(super) cidrs: Vec<Vec<String>>,
    pub(super) closed: usize,
    /// The runtime does not answer any more.
    pub(super) silent: bool,
    /// It was asked once, and is asked every 5 s since.
    asked: bool,
    events: Vec<NodeEvent>,
    node: Option<Value>,
    uids: u64,
    version: u64,
}

impl World {
    pub(super) fn new() -> World {
        World::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut NodeStatusConfig)) -> World {
        let mut w = World::without_csi_node(change);
        w.input(NodeInput::Storage(Ok(())), &mut peace());
        w
    }

    pub(super) fn without_csi_node(change: impl FnOnce(&mut NodeStatusConfig)) -> World {
        let mut config = config();
        change(&mut config);
        World {
            machine: NodeStatus::new(config),
            now: Now { mono: Mono(1_000_000_000), wall: Wall(1_795_262_400_000_000_000) },
            calls: Vec::new(),
            facts: Vec::new(),
            cidrs: Vec::new(),
            closed: 0,
            silent: false,
            asked: false,
            events: Vec::new(),
            node: None,
            uids: 0,
            version: 0,
        }
    }

    /// A machine that has registered a ready Node.
    pub(super) fn started() -> World {
        let mut w = World::new();
        w.start(&mut peace());
        w
    }

    pub(super) fn start(&mut self, faults: &mut dyn Iterator<Item = Fault>) {
        let version =
            RuntimeVersion { name: "containerd".into(), version: "v2.1.9".into(), api_version: "v1".into() };
        self.input(NodeInput::RuntimeVersion(version), faults);
        self.input(NodeInput::Machine(Ok(machine_facts())), faults);
        self.input(NodeInput::Network(network("192.0.2.1")), faults);
        self.input(NodeInput::Pleg(Ok(())), faults);
        self.runtime_ready(faults);
    }

    pub(super) fn runtime_ready(&mut self, faults: &mut dyn Iterator<Item = Fault>) {
        let asked = self.now.mono;
        self.asked = true;
        self.input(NodeInput::Runtime { asked, result: Ok(RuntimeStatus::ready()) }, faults);
    }

    pub(super) fn input(&mut self, input: NodeInput, faults: &mut dyn Iterator<Item = Fault>) {
        self.step(NodeStatusEvent::Input(input), faults);
    }

    pub(super) fn pass(&mut self, d: Duration) {
        self.now.mono = self.now.mono.after(d);
        self.now.wall.0 += i64::try_from(d.as_nanos()).unwrap();
    }

    pub(super) fn step(&mut self, event: NodeStatusEvent, faults: &mut dyn Iterator<Item = Fault>) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut out = Outbox::new();
            self.machine.step(self.now, event, &mut out);
            for action in out.drain() {
                match action {
                    NodeStatusAction::Call { id, call } => {
                        assert!(events.is_empty(), "one call in flight");
                        let result = self.serve(&call, faults.next().unwrap_or(Fault::None));
                        self.calls.push((self.now.mono, call));
                        self.pass(Duration::from_millis(5));
                        events.push(NodeStatusEvent::Answered { id, result });
                    }
                    NodeStatusAction::Event(event) => self.events.push(event),
                    NodeStatusAction::PodCidr(cidrs) => self.cidrs.push(cidrs),
                    NodeStatusAction::CloseConnections => self.closed += 1,
                    NodeStatusAction::Fact(fact) => self.facts.push(fact),
                }
            }
        }
    }

    /// From deadline to deadline; the runtime is asked every 5 s, as the shell does.
    pub(super) fn run(&mut self, d: Duration, faults: &mut dyn Iterator<Item = Fault>) {
        let end = self.now.mono.after(d);
        let period = Duration::from_secs(5);
        let mut ask = self.now.mono.after(period);
        while let Some(at) = self.machine.deadline().filter(|at| *at <= end) {
            let next = if self.asked && !self.silent { at.min(ask) } else { at };
            let wait = next.since(self.now.mono);
            assert!(!wait.is_zero() || at <= self.now.mono, "time goes on");
            self.pass(wait);
            if next < at {
                self.runtime_ready(faults);
                ask = ask.after(period);
            } else {
                let before = self.calls.len();
                self.step(NodeStatusEvent::Tick, faults);
                let moved = self.machine.deadline().is_none_or(|new| new > self.now.mono);
                assert!(moved || self.calls.len() > before, "hot loop");
            }
        }
        let rest = end.since(self.now.mono);
        self.pass(rest);
    }

    fn error(class: Class, code: u16, reason: &str) -> ApiError {
        ApiError {
            call: "call".into(),
            class,
            code: Some(code),
            reason: reason.into(),
            message: reason.into(),
        }
    }

    fn serve(&mut self, call: &ApiCall, fault: Fault) -> ApiResult {
        match fault {
            Fault::Unavailable => return Err(World::error(Class::Unavailable, 503, "ServiceUnavailable")),
            Fault::Forbidden if matches!(call, ApiCall::CreateNode(_)) => {
                return Err(World::error(Class::Invalid, 403, "Forbidden"));
            }
            Fault::Deleted => self.node = None,
            Fault::Remade if self.node.is_some() => self.store(json!({"metadata": {"name": "n1"}})),
            _ => {}
        }
        match call {
            ApiCall::CreateNode(_) if self.node.is_some() => {
                return Err(World::error(Class::AlreadyExists, 409, "AlreadyExists"));
            }
            ApiCall::CreateNode(node) => self.store(serde_json::to_value(node).unwrap()),
            ApiCall::PatchNodeStatus { patch, .. } => self.patch(patch)?,
            ApiCall::GetNode { .. } if self.node.is_none() => {
                return Err(World::error(Class::NotFound, 404, "NotFound"));
            }
            ApiCall::GetNode { .. } => {}
            other => panic!("{other:?}"),
        }
        if fault == Fault::Lost {
            return Err(World::error(Class::DeadlineExceeded, 504, "Timeout"));
        }
        Ok(ApiReply::Node(Box::new(self.api_node())))
    }

    fn patch(&mut self, patch: &Value) -> Result<(), ApiError> {
        let not_found = || World::error(Class::NotFound, 404, "NotFound");
        let node = self.node.as_ref().ok_or_else(not_found)?;
        assert_eq!(patch.get("spec"), None);
        if patch["metadata"]["uid"] != node["metadata"]["uid"] {
            return Err(World::error(Class::Conflict, 409, "Conflict"));
        }
        let mut merged = merge(node, patch);
        self.version += 1;
        merged["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.node = Some(merged);
        Ok(())
    }

    /// Puts a Node there, under a new UID.
    pub(super) fn store(&mut self, mut node: Value) {
        self.uids += 1;
        self.version += 1;
        node["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.node = Some(node);
    }

    pub(super) fn delete(&mut self) -> Arc<Node> {
        let node = Arc::new(self.api_node());
        self.node = None;
        node
    }

    pub(super) fn node(&self) -> Value {
        self.node.clone().expect("there is a Node")
    }

    pub(super) fn api_node(&self) -> Node {
        serde_json::from_value(self.node()).unwrap()
    }

    /// Status and message of Ready.
    pub(super) fn ready(&self) -> (&str, &str) {
        let conditions = self.node.as_ref().unwrap()["status"]["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
        (ready["status"].as_str().unwrap(), ready["message"].as_str().unwrap())
    }

    pub(super) fn verbs(&mut self) -> Vec<&'static str> {
        let verb = |call: &ApiCall| match call {
            ApiCall::CreateNode(_) => "create",
            ApiCall::GetNode { .. } => "get",
            _ => "patch",
        };
        self.calls.drain(..).map(|(_, call)| verb(&call)).collect()
    }

    pub(super) fn events(&mut self) -> Vec<&'static str> {
        self.events.drain(..).map(|event| event.reason).collect()
    }
}

/// A strategic merge patch of a Node, as the API server applies it.
pub(super) fn merge(old: &Value, patch: &Value) -> Value {
    let (Value::Object(was), Value::Object(changes)) = (old, patch) else { return patch.clone() };
    let mut merged = was.clone();
    for (key, change) in changes.iter().filter(|(key, _)| !key.starts_with("$setElementOrder/")) {
        let new = match (key.as_str(), was.get(key), change) {
            (_, _, Value::Null) => {
                merged.remove(key);
                continue;
            }
            ("conditions" | "addresses", old, Value::Array(items)) => {
                merge_by_type(old.and_then(Value::as_array).map_or(&[], Vec::as_slice), items)
            }
            (_, Some(old @ Value::Object(_)), change) => merge(old, change),
            (_, None, change @ Value::Object(_)) => merge(&json!({}), change),
            (_, _, change) => change.clone(),
        };
        merged.insert(key.clone(), new);
    }
    Value::Object(merged)
}

fn merge_by_type(old: &[Value], items: &[Value]) -> Value {
    if items.iter().any(|item| item["$patch"] == "replace") {
        return items.iter().filter(|item| item.get("$patch").is_none()).cloned().collect();
    }
    let mut list = old.to_vec();
    for item in items {
        let at = list.iter().position(|was| was["type"] == item["type"]);
        match (at, item["$patch"] == "delete") {
            (Some(index), true) => drop(list.remove(index)),
            (Some(index), false) => list[index] = merge(&list[index], item),
            (None, _) => list.push(item.clone()),
        }
    }
    Value::Array(list)
}
