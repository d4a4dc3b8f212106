//! The node on one screen: what it is, what is wrong, what to do. Pure.

use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetResponse, MountStatus, ProblemStatus};

use super::amounts::{bytes, seconds};
use super::{name, plain};

/// File systems that a person asks for first.
const PLACES: [&str; 1] = ["/var"];

/// The screen.
pub(crate) fn screen(response: &GetResponse) -> String {
    let mut lines: Vec<String> = headline(response).into_iter().collect();
    lines.extend(facts(response).iter().map(|(key, value)| row(key, value)));
    let problems = problems(response);
    lines.push(row("problems", &number(&problems, response.failures.is_empty())));
    for problem in problems {
        lines.push(format!("  {}: {}", problem.subject, problem.message));
        lines.push(format!("    -> {} [{}]", problem.remedy, problem.runbook));
    }
    lines.iter().map(|line| plain(line) + "\n").collect()
}

fn statuses(response: &GetResponse) -> impl Iterator<Item = (&str, &Status)> {
    response.objects.iter().filter_map(|object| Some((name(object), object.status.as_ref()?)))
}

/// Which node it is, which version, from where, for how long.
pub(crate) fn headline(response: &GetResponse) -> Option<String> {
    let slot = statuses(response).find_map(|(_, status)| match status {
        Status::Slot(slot) if slot.slot.is_empty() => Some(format!("  root {}", slot.partition)),
        Status::Slot(slot) => Some(format!("  slot {} ({})", slot.slot, slot.partition)),
        _ => None,
    });
    statuses(response).find_map(|(name, status)| {
        let Status::Node(node) = status else { return None };
        let version =
            if node.image_version.is_empty() { "(no version)" } else { node.image_version.as_str() };
        let slot = slot.as_deref().unwrap_or_default();
        Some(format!("{name}  Orlop {version}{slot}  up {}", seconds(node.uptime_seconds)))
    })
}

/// The node's own words about itself, and its amounts.
pub(crate) fn facts(response: &GetResponse) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |key: &str, value: String| facts.push((key.to_owned(), value));
    for (_, status) in statuses(response) {
        if let Status::Node(node) = status {
            let addresses =
                if node.addresses.is_empty() { "none".to_owned() } else { node.addresses.join(", ") };
            add("addresses", addresses);
            add("agent", node.agent.clone());
            let cluster = match node.cluster.as_str() {
                "member" => format!("member of {}", node.api_server),
                other => other.to_owned(),
            };
            add("cluster", cluster);
            if !node.firmware.is_empty() {
                add("firmware", node.firmware.clone());
            }
        }
    }
    for (place, status) in statuses(response) {
        match status {
            Status::Memory(memory) => {
                let text =
                    format!("{} of {} available", bytes(memory.available_bytes), bytes(memory.total_bytes));
                add("memory", text);
            }
            Status::Mount(mount) if PLACES.contains(&place) => add(place, free(mount)),
            _ => {}
        }
    }
    facts
}

/// The problems that the node knows.
pub(crate) fn problems(response: &GetResponse) -> Vec<&ProblemStatus> {
    let all = statuses(response).filter_map(|(_, status)| match status {
        Status::Problem(problem) => Some(problem),
        _ => None,
    });
    all.collect()
}

/// How many there are, in words; `is_complete`: everything could be asked.
pub(crate) fn number(problems: &[&ProblemStatus], is_complete: bool) -> String {
    match problems.len() {
        0 if is_complete => "none".to_owned(),
        0 => "none is known, but not everything could be asked".to_owned(),
        number => number.to_string(),
    }
}

fn row(key: &str, value: &str) -> String {
    format!("{key:<11}{value}")
}

fn free(mount: &MountStatus) -> String {
    format!("{} of {} free ({})", bytes(mount.available_bytes), bytes(mount.size_bytes), mount.fstype)
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::{KindFailure, MemoryStatus, Meta, NodeStatus, Object, SlotStatus};

    use super::*;

    fn object(name: &str, status: Status) -> Object {
        let metadata = Some(Meta { name: name.to_owned(), ..Meta::default() });
        Object { metadata, status: Some(status), ..Object::default() }
    }

    fn node() -> Vec<Object> {
        let node = NodeStatus {
            image_version: "0.4.0".to_owned(),
            uptime_seconds: 61,
            agent: "running".to_owned(),
            cluster: "member".to_owned(),
            api_server: "https://a:6443".to_owned(),
            addresses: vec!["192.0.2.17".to_owned(), "2001:db8::1".to_owned()],
            ..NodeStatus::default()
        };
        let slot = SlotStatus { slot: "A".to_owned(), partition: "vda2".to_owned(), ..SlotStatus::default() };
        let memory =
            MemoryStatus { total_bytes: 1 << 31, available_bytes: 1 << 30, ..MemoryStatus::default() };
        let mount = MountStatus {
            fstype: "ext4".to_owned(),
            size_bytes: 1 << 31,
            available_bytes: 1 << 30,
            ..MountStatus::default()
        };
        vec![
            object("edge-7", Status::Node(node)),
            object("A", Status::Slot(slot)),
            object("memory", Status::Memory(memory)),
            object("/run", Status::Mount(mount.clone())),
            object("/var", Status::Mount(mount)),
        ]
    }

    const START: &str = "edge-7  Orlop 0.4.0  slot A (vda2)  up 1m 1s\n\
        addresses  192.0.2.17, 2001:db8::1\n\
        agent      running\n\
        cluster    member of https://a:6443\n\
        memory     1.0 GiB of 2.0 GiB available\n\
        /var       1.0 GiB of 2.0 GiB free (ext4)\n";

    #[test]
    fn a_healthy_node() {
        let response = GetResponse { objects: node(), failures: Vec::new() };
        assert_eq!(screen(&response), format!("{START}problems   none\n"));
    }

    #[test]
    fn a_firmware_with_secure_boot_has_a_line() {
        let mut objects = node();
        if let Some(Status::Node(node)) = &mut objects[0].status {
            node.firmware = "Secure Boot on (keys: Orlop db 1a2b3c4d)".to_owned();
        }
        let shown = screen(&GetResponse { objects, failures: Vec::new() });
        assert!(shown.contains("firmware   Secure Boot on (keys: Orlop db 1a2b3c4d)\nmemory "), "{shown}");
    }

    #[test]
    fn problems_have_their_remedies() {
        let problem = ProblemStatus {
            subject: "kubelet.service".to_owned(),
            message: "the node agent does not run: masked".to_owned(),
            remedy: "reboot".to_owned(),
            runbook: "docs/reference/node-api.md#problems".to_owned(),
        };
        let mut objects = node();
        objects.push(object("kubelet.service", Status::Problem(problem)));
        let shown = screen(&GetResponse { objects, failures: Vec::new() });
        let end = "problems   1\n  kubelet.service: the node agent does not run: masked\n    -> reboot [docs/reference/node-api.md#problems]\n";
        assert_eq!(shown, format!("{START}{end}"));
    }

    #[test]
    fn what_could_not_be_asked_is_no_health() {
        let failures = vec![KindFailure { kind: "problems".to_owned(), ..KindFailure::default() }];
        let shown = screen(&GetResponse { objects: Vec::new(), failures });
        assert_eq!(shown, "problems   none is known, but not everything could be asked\n");
    }
}
