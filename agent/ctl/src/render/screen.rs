//! The node on one screen: what it is, what is wrong, what to do. Pure.

use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetResponse, MountStatus, ProblemStatus};

use super::amounts::{bytes, seconds};
use super::{name, plain};

/// File systems that a person asks for first.
const PLACES: [&str; 1] = ["/var"];

/// The screen.
pub(crate) fn screen(response: &GetResponse) -> String {
    let mut lines = Vec::new();
    let statuses =
        || response.objects.iter().filter_map(|object| Some((name(object), object.status.as_ref()?)));
    let slot = statuses().find_map(|(_, status)| match status {
        Status::Slot(slot) if slot.slot.is_empty() => Some(format!("  root {}", slot.partition)),
        Status::Slot(slot) => Some(format!("  slot {} ({})", slot.slot, slot.partition)),
        _ => None,
    });
    for (name, status) in statuses() {
        if let Status::Node(node) = status {
            let version =
                if node.image_version.is_empty() { "(no version)" } else { node.image_version.as_str() };
            let slot = slot.as_deref().unwrap_or_default();
            lines.push(format!("{name}  Orlop {version}{slot}  up {}", seconds(node.uptime_seconds)));
            let addresses =
                if node.addresses.is_empty() { "none".to_owned() } else { node.addresses.join(", ") };
            lines.push(row("addresses", &addresses));
            lines.push(row("agent", &node.agent));
            let cluster = match node.cluster.as_str() {
                "member" => format!("member of {}", node.api_server),
                other => other.to_owned(),
            };
            lines.push(row("cluster", &cluster));
        }
    }
    for (place, status) in statuses() {
        match status {
            Status::Memory(memory) => {
                let text =
                    format!("{} of {} available", bytes(memory.available_bytes), bytes(memory.total_bytes));
                lines.push(row("memory", &text));
            }
            Status::Mount(mount) if PLACES.contains(&place) => lines.push(row(place, &free(mount))),
            _ => {}
        }
    }
    let problems: Vec<&ProblemStatus> = statuses()
        .filter_map(|(_, status)| match status {
            Status::Problem(problem) => Some(problem),
            _ => None,
        })
        .collect();
    match problems.len() {
        0 if response.failures.is_empty() => lines.push(row("problems", "none")),
        0 => lines.push(row("problems", "none is known, but not everything could be asked")),
        number => lines.push(row("problems", &number.to_string())),
    }
    for problem in problems {
        lines.push(format!("  {}: {}", problem.subject, problem.message));
        lines.push(format!("    -> {} [{}]", problem.remedy, problem.runbook));
    }
    lines.iter().map(|line| plain(line) + "\n").collect()
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
    fn problems_have_their_remedies() {
        let problem = ProblemStatus {
            subject: "kubelet.service".to_owned(),
            message: "the node agent does not run: masked".to_owned(),
            remedy: "reboot".to_owned(),
            runbook: "docs/node-api.md#problems".to_owned(),
        };
        let mut objects = node();
        objects.push(object("kubelet.service", Status::Problem(problem)));
        let shown = screen(&GetResponse { objects, failures: Vec::new() });
        let end = "problems   1\n  kubelet.service: the node agent does not run: masked\n    -> reboot [docs/node-api.md#problems]\n";
        assert_eq!(shown, format!("{START}{end}"));
    }

    #[test]
    fn what_could_not_be_asked_is_no_health() {
        let failures = vec![KindFailure { kind: "problems".to_owned(), ..KindFailure::default() }];
        let shown = screen(&GetResponse { objects: Vec::new(), failures });
        assert_eq!(shown, "problems   none is known, but not everything could be asked\n");
    }
}
