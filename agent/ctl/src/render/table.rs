//! Tables: one for each kind, columns as wide as their longest cell. Pure.

use orlop_proto::node_api::v1alpha1::Object;
use orlop_proto::node_api::v1alpha1::object::Status;

use super::amounts::{bytes, milliseconds, seconds};
use super::{name, plain};

/// Characters between two columns.
const GAP: usize = 2;

/// A table for people: no column is cut.
pub(crate) fn table(headers: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut all = vec![headers.iter().map(|header| (*header).to_owned()).collect::<Vec<_>>()];
    all.extend(rows);
    let columns = all.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + GAP));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// One table for each kind, in the order of the objects, with an empty line between two.
pub(crate) fn objects(objects: &[Object]) -> String {
    let of_kind = |group: &[Object]| {
        let headers: Vec<&str> = std::iter::once("NAME").chain(columns(&group[0]).iter().copied()).collect();
        let row = |object: &Object| {
            let cells = std::iter::once(name(object).to_owned()).chain(cells(object));
            cells.map(|cell| plain(&cell)).collect::<Vec<String>>()
        };
        table(&headers, group.iter().map(row).collect())
    };
    let groups = objects.chunk_by(|a, b| a.kind == b.kind);
    groups.map(of_kind).collect::<Vec<_>>().join("\n")
}

/// The same of several nodes, with the node of each object in front.
pub(crate) fn objects_of_nodes(objects: &[(&str, &Object)]) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    for (_, object) in objects {
        if !kinds.contains(&object.kind.as_str()) {
            kinds.push(&object.kind);
        }
    }
    let of_kind = |kind: &&str| {
        let group: Vec<&(&str, &Object)> =
            objects.iter().filter(|(_, object)| object.kind.as_str() == *kind).collect();
        let titles = group.first().map(|(_, object)| columns(object)).unwrap_or_default();
        let headers: Vec<&str> = ["NODE", "NAME"].into_iter().chain(titles.iter().copied()).collect();
        let row = |(node, object): &(&str, &Object)| {
            let named = [(*node).to_owned(), name(object).to_owned()];
            named.into_iter().chain(cells(object)).map(|cell| plain(&cell)).collect::<Vec<String>>()
        };
        table(&headers, group.into_iter().map(row).collect())
    };
    kinds.iter().map(of_kind).collect::<Vec<_>>().join("\n")
}

/// Headers of the columns after the name.
pub(crate) fn columns(object: &Object) -> &'static [&'static str] {
    match &object.status {
        Some(Status::Node(_)) => &["AGENT", "CLUSTER", "VERSION", "UP", "ADDRESSES"],
        Some(Status::Slot(_)) => &["PARTITION", "VERSION", "ROOT HASH"],
        Some(Status::Boot(_)) => &["AT", "TOOK", "OK", "DETAIL"],
        Some(Status::Problem(_)) => &["PROBLEM", "REMEDY"],
        Some(Status::Service(_)) => &["ACTIVE", "SUB", "PID", "RESTARTS", "MEMORY", "STATUS"],
        Some(Status::Process(_)) => &["COMMAND", "STATE", "USER", "MEMORY", "CPU TIME", "UNIT", "POD"],
        Some(Status::Address(_)) => &["INTERFACE", "ADDRESS"],
        Some(Status::Link(_)) => &["STATE", "MAC", "MTU", "DRIVER"],
        Some(Status::Disk(_)) => &["SIZE", "MODEL", "FLAGS", "PARTITIONS"],
        Some(Status::Mount(_)) => &["SOURCE", "TYPE", "SIZE", "FREE", "MODE"],
        Some(Status::Memory(_)) => &["TOTAL", "AVAILABLE", "SWAP", "PRESSURE"],
        Some(Status::Time(_)) => &["NOW", "NTP"],
        Some(Status::Operation(_)) => &["VERB", "OBJECT", "PHASE", "BY", "ACCEPTED", "ENDED", "MESSAGE"],
        // A node that is newer than this program.
        None => &[],
    }
}

pub(crate) fn cells(object: &Object) -> Vec<String> {
    match &object.status {
        Some(Status::Node(node)) => vec![
            node.agent.clone(),
            node.cluster.clone(),
            node.image_version.clone(),
            seconds(node.uptime_seconds),
            node.addresses.join(","),
        ],
        Some(Status::Slot(slot)) => {
            vec![slot.partition.clone(), slot.image_version.clone(), slot.root_hash.clone()]
        }
        Some(Status::Boot(phase)) => vec![
            milliseconds(phase.at_ms),
            phase.took_ms.map_or_else(String::new, milliseconds),
            if phase.ok { "yes" } else { "no" }.to_owned(),
            phase.detail.clone(),
        ],
        Some(Status::Problem(problem)) => vec![problem.message.clone(), problem.remedy.clone()],
        Some(Status::Service(service)) => vec![
            service.active.clone(),
            service.sub.clone(),
            service.main_pid.to_string(),
            service.restarts.to_string(),
            service.memory_bytes.map_or_else(String::new, bytes),
            service.status.clone(),
        ],
        Some(Status::Process(process)) => vec![
            process.command.clone(),
            process.state.clone(),
            process.user.to_string(),
            bytes(process.memory_bytes),
            milliseconds(process.cpu_ms),
            process.unit.clone(),
            process.pod.clone(),
        ],
        Some(Status::Address(address)) => vec![address.interface.clone(), address.address.clone()],
        Some(Status::Link(link)) => {
            vec![link.state.clone(), link.mac.clone(), link.mtu.to_string(), link.driver.clone()]
        }
        Some(Status::Disk(disk)) => {
            let flags =
                [(disk.read_only, "ro"), (disk.removable, "removable"), (disk.rotational, "rotational")];
            let flags: Vec<&str> = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect();
            vec![bytes(disk.size_bytes), disk.model.clone(), flags.join(","), disk.partitions.join(",")]
        }
        Some(Status::Mount(mount)) => vec![
            mount.source.clone(),
            mount.fstype.clone(),
            bytes(mount.size_bytes),
            bytes(mount.available_bytes),
            if mount.read_only { "ro" } else { "rw" }.to_owned(),
        ],
        Some(Status::Memory(memory)) => vec![
            bytes(memory.total_bytes),
            bytes(memory.available_bytes),
            bytes(memory.swap_total_bytes),
            memory.pressure_some_60s.map_or_else(String::new, |share| format!("{share}%")),
        ],
        Some(Status::Time(time)) => {
            vec![time.now.clone(), ntp(time.ntp_synchronized, time.ntp_refused).to_owned()]
        }
        Some(Status::Operation(operation)) => vec![
            operation.verb.clone(),
            operation.object.clone(),
            operation.phase.clone(),
            operation.by.clone(),
            operation.accepted_at.clone(),
            operation.ended_at.clone(),
            operation.message.clone(),
        ],
        None => Vec::new(),
    }
}

fn ntp(synchronized: bool, refused: bool) -> &'static str {
    match (synchronized, refused) {
        (_, true) => "refused",
        (true, false) => "synchronized",
        (false, false) => "no",
    }
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::{
        AddressStatus, BootPhase, DiskStatus, LinkStatus, MemoryStatus, Meta, MountStatus, NodeStatus,
        OperationStatus, ProblemStatus, ProcessStatus, ServiceStatus, SlotStatus, TimeStatus,
    };

    use super::*;

    fn object(kind: &str, name: &str, status: Status) -> Object {
        let metadata = Some(Meta { name: name.to_owned(), ..Meta::default() });
        Object { kind: kind.to_owned(), metadata, status: Some(status), ..Object::default() }
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let rows = vec![vec!["é".to_owned(), "bb".to_owned()], vec!["aaa".to_owned()]];
        assert_eq!(table(&["A", "B"], rows), "A    B\né    bb\naaa\n");
        assert_eq!(table(&["A"], Vec::new()), "A\n");
    }

    #[test]
    fn each_kind_has_a_table_of_its_own() {
        let mount = MountStatus {
            source: "/dev/vda7".to_owned(),
            fstype: "ext4".to_owned(),
            size_bytes: 1 << 30,
            available_bytes: 1 << 29,
            ..MountStatus::default()
        };
        let phase = BootPhase { at_ms: 1204, took_ms: None, detail: "a\u{1b}b".to_owned(), ok: false };
        let text = objects(&[
            object("boot", "init.verity", Status::Boot(phase)),
            object("mounts", "/var", Status::Mount(mount.clone())),
            object("mounts", "/", Status::Mount(mount)),
        ]);
        let expected = "NAME         AT      TOOK  OK  DETAIL\ninit.verity  1.204s        no  a?b\n\n\
                        NAME  SOURCE     TYPE  SIZE     FREE       MODE\n\
                        /var  /dev/vda7  ext4  1.0 GiB  512.0 MiB  rw\n\
                        /     /dev/vda7  ext4  1.0 GiB  512.0 MiB  rw\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn every_status_has_a_cell_for_each_column() {
        let all = [
            Status::Node(NodeStatus::default()),
            Status::Slot(SlotStatus::default()),
            Status::Boot(BootPhase::default()),
            Status::Problem(ProblemStatus::default()),
            Status::Service(ServiceStatus::default()),
            Status::Process(ProcessStatus::default()),
            Status::Address(AddressStatus::default()),
            Status::Link(LinkStatus::default()),
            Status::Disk(DiskStatus::default()),
            Status::Mount(MountStatus::default()),
            Status::Memory(MemoryStatus::default()),
            Status::Time(TimeStatus::default()),
            Status::Operation(OperationStatus::default()),
        ];
        for status in all {
            let object = object("k", "n", status);
            assert_eq!(cells(&object).len(), columns(&object).len(), "{object:?}");
        }
        assert_eq!((ntp(true, true), ntp(true, false), ntp(false, false)), ("refused", "synchronized", "no"));
    }
}
