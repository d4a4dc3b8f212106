//! Processes with their use of the CPU between two answers of a node. Pure.
//!
//! In: two answers with the kinds `processes` and `memory`, and the time between them. Out: rows, as a table or as a document. Invariant:
//! a process is the same in both answers if its pid and its start are.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetResponse, ProcessStatus};
use serde_json::{Value, json};

use super::amounts::bytes;
use super::{plain, table};

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProcessOrder {
    /// The most CPU
    Cpu,
    /// The most memory
    Memory,
}

/// A process and what it used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProcessUse {
    process: ProcessStatus,
    /// Of one CPU; 0 for a process that was not in the first answer.
    permille: u64,
}

/// Headers of [`ProcessUse::cells`].
pub(crate) const HEADERS: [&str; 7] = ["PID", "CPU", "MEMORY", "STATE", "USER", "COMMAND", "POD OR UNIT"];

impl ProcessUse {
    /// The process for people.
    pub(crate) fn cells(&self) -> Vec<String> {
        let process = &self.process;
        let cells = [
            process.pid.to_string(),
            percent(self.permille),
            bytes(process.memory_bytes),
            process.state.clone(),
            process.user.to_string(),
            process.command.clone(),
            if process.pod.is_empty() { process.unit.clone() } else { process.pod.clone() },
        ];
        cells.iter().map(|cell| plain(cell)).collect()
    }
}

/// Headers of [`pods`].
pub(crate) const POD_HEADERS: [&str; 4] = ["POD", "PROCESSES", "CPU", "MEMORY"];

/// The pods that have processes, with the sums of these, by name.
pub(crate) fn pods(uses: &[ProcessUse]) -> Vec<Vec<String>> {
    let mut sums: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
    for row in uses.iter().filter(|row| !row.process.pod.is_empty()) {
        let (number, permille, memory) = sums.entry(row.process.pod.as_str()).or_default();
        *number += 1;
        *permille = permille.saturating_add(row.permille);
        *memory = memory.saturating_add(row.process.memory_bytes);
    }
    let row = |(pod, (number, permille, memory)): (&str, (usize, u64, u64))| {
        vec![plain(pod), number.to_string(), percent(permille), bytes(memory)]
    };
    sums.into_iter().map(row).collect()
}

/// The processes of the second answer, with what they used since the first, `elapsed` before it.
pub(crate) fn uses(
    before: &GetResponse,
    after: &GetResponse,
    elapsed: Duration,
    order: ProcessOrder,
) -> Vec<ProcessUse> {
    let earlier: BTreeMap<(u64, u64), u64> =
        processes(before).map(|process| ((process.pid, process.started_ms), process.cpu_ms)).collect();
    let elapsed_ms = elapsed.as_millis().max(1);
    let of = |process: &ProcessStatus| {
        let began = earlier.get(&(process.pid, process.started_ms)).copied().unwrap_or(process.cpu_ms);
        let used = u128::from(process.cpu_ms.saturating_sub(began));
        let permille = u64::try_from(used * 1000 / elapsed_ms).unwrap_or(u64::MAX);
        ProcessUse { process: process.clone(), permille }
    };
    let mut found: Vec<ProcessUse> = processes(after).map(of).collect();
    found.sort_by_key(|row| {
        let (cpu, memory) = (row.permille, row.process.memory_bytes);
        let keys = match order {
            ProcessOrder::Cpu => (cpu, memory),
            ProcessOrder::Memory => (memory, cpu),
        };
        (Reverse(keys), row.process.pid)
    });
    found
}

fn processes(response: &GetResponse) -> impl Iterator<Item = &ProcessStatus> {
    response.objects.iter().filter_map(|object| match &object.status {
        Some(Status::Process(process)) => Some(process),
        _ => None,
    })
}

/// The first `rows` of them for people, below the node's memory.
pub(crate) fn text(uses: &[ProcessUse], answer: &GetResponse, rows: usize) -> String {
    let memory = answer.objects.iter().find_map(|object| match &object.status {
        Some(Status::Memory(memory)) => {
            Some(format!(", {} of {} available", bytes(memory.available_bytes), bytes(memory.total_bytes)))
        }
        _ => None,
    });
    let permille: u64 = uses.iter().map(|row| row.permille).fold(0, u64::saturating_add);
    let head = format!("{} processes, {} CPU{}\n", uses.len(), percent(permille), memory.unwrap_or_default());
    let shown = uses.iter().take(rows).map(ProcessUse::cells).collect();
    head + &table::table(&HEADERS, shown)
}

/// The same as a document.
pub(crate) fn document(uses: &[ProcessUse], rows: usize) -> Value {
    let row = |row: &ProcessUse| json!({ "cpuPermille": row.permille, "process": row.process });
    json!({ "processes": uses.len(), "items": uses.iter().take(rows).map(row).collect::<Vec<Value>>() })
}

fn percent(permille: u64) -> String {
    format!("{}.{}%", permille / 10, permille % 10)
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::{MemoryStatus, Object};

    use super::*;

    fn answer(processes: &[(u64, u64, u64, u64)]) -> GetResponse {
        let process = |(pid, started_ms, cpu_ms, memory_bytes): &(u64, u64, u64, u64)| ProcessStatus {
            pid: *pid,
            started_ms: *started_ms,
            cpu_ms: *cpu_ms,
            memory_bytes: *memory_bytes,
            state: "S".to_owned(),
            command: format!("c{pid}\u{1b}"),
            unit: "a.service".to_owned(),
            pod: if *pid == 7 { "default/web".to_owned() } else { String::new() },
            ..ProcessStatus::default()
        };
        let status = |status: Status| Object { status: Some(status), ..Object::default() };
        let memory =
            MemoryStatus { total_bytes: 2 << 30, available_bytes: 1 << 30, ..MemoryStatus::default() };
        let mut objects: Vec<Object> =
            processes.iter().map(|values| status(Status::Process(process(values)))).collect();
        objects.push(status(Status::Memory(memory)));
        GetResponse { objects, failures: Vec::new() }
    }

    #[test]
    fn use_is_what_came_between_and_belongs_to_one_process() {
        let before = answer(&[(7, 1, 1000, 10), (8, 1, 50, 20), (9, 1, 9000, 30)]);
        // 9 is another process than before, and 10 a new one.
        let after = answer(&[(7, 1, 3000, 10), (8, 1, 550, 20), (9, 2, 9999, 30), (10, 3, 70, 40)]);
        let found = uses(&before, &after, Duration::from_secs(2), ProcessOrder::Cpu);
        let rows: Vec<(u64, u64)> = found.iter().map(|row| (row.process.pid, row.permille)).collect();
        assert_eq!(rows, [(7, 1000), (8, 250), (10, 0), (9, 0)]);
        let found = uses(&before, &after, Duration::from_secs(2), ProcessOrder::Memory);
        assert_eq!(found.iter().map(|row| row.process.pid).collect::<Vec<_>>(), [10, 9, 8, 7]);
        // An answer that came at once, and amounts that cannot be.
        let odd = uses(&after, &before, Duration::ZERO, ProcessOrder::Cpu);
        assert!(odd.iter().all(|row| row.permille == 0), "{odd:?}");
    }

    #[test]
    fn a_table_has_the_first_rows_and_the_sum() {
        let (before, after) =
            (answer(&[(7, 1, 0, 2048), (8, 1, 0, 1)]), answer(&[(7, 1, 505, 2048), (8, 1, 0, 1)]));
        let found = uses(&before, &after, Duration::from_secs(1), ProcessOrder::Cpu);
        let expected = "2 processes, 50.5% CPU, 1.0 GiB of 2.0 GiB available\n\
                        PID  CPU    MEMORY   STATE  USER  COMMAND  POD OR UNIT\n\
                        7    50.5%  2.0 KiB  S      0     c7?      default/web\n";
        assert_eq!(text(&found, &after, 1), expected);
        assert_eq!(pods(&found), [["default/web", "1", "50.5%", "2.0 KiB"]]);
        let document = document(&found, 1);
        assert_eq!((&document["processes"], &document["items"][0]["cpuPermille"]), (&json!(2), &json!(505)));
        assert_eq!(document["items"][0]["process"]["pod"], "default/web");
    }
}
