//! The machine: network, disks, processes, memory, clock.

use orlop_config::procfs::kilobytes;
use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{AddressStatus, MemoryStatus, TimeStatus};

use super::NamedObjects;
use crate::facts::Facts;
use crate::refusal::{Reason, Refusal};

pub(super) fn addresses(facts: &Facts) -> NamedObjects {
    let address = |(interface, ip): &(String, std::net::IpAddr)| {
        let status = AddressStatus { interface: interface.clone(), address: ip.to_string() };
        (format!("{interface}/{ip}"), Status::Address(status))
    };
    facts.addresses.iter().map(address).collect()
}

pub(super) fn links(facts: &Facts) -> NamedObjects {
    facts.links.iter().map(|(name, link)| (name.clone(), Status::Link(link.clone()))).collect()
}

pub(super) fn disks(facts: &Facts) -> NamedObjects {
    facts.disks.iter().map(|(name, disk)| (name.clone(), Status::Disk(disk.clone()))).collect()
}

pub(super) fn mounts(facts: &Facts) -> Result<NamedObjects, Refusal> {
    let mounts = facts.mounts.clone().unwrap_or_else(|| Ok(Vec::new()))?;
    Ok(mounts.into_iter().map(|(place, mount)| (place, Status::Mount(mount))).collect())
}

pub(super) fn processes(facts: &Facts) -> Result<NamedObjects, Refusal> {
    let processes = facts.processes.clone().unwrap_or_else(|| Ok(Vec::new()))?;
    Ok(processes.into_iter().map(|process| (process.pid.to_string(), Status::Process(process))).collect())
}

pub(super) fn memory(facts: &Facts) -> Result<NamedObjects, Refusal> {
    let amount = |name: &str| kilobytes(&facts.meminfo, name);
    let Some(total_bytes) = amount("MemTotal") else {
        return Err(Refusal::new(Reason::PartDown, "/proc/meminfo", "it has no MemTotal"));
    };
    let status = MemoryStatus {
        total_bytes,
        available_bytes: amount("MemAvailable").unwrap_or(0),
        swap_total_bytes: amount("SwapTotal").unwrap_or(0),
        swap_free_bytes: amount("SwapFree").unwrap_or(0),
        pressure_some_60s: pressure(&facts.memory_pressure),
    };
    Ok(vec![("memory".to_owned(), Status::Memory(status))])
}

/// `avg60` of the line `some` (kernel: Documentation/accounting/psi.rst).
fn pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = some.split_whitespace().find_map(|word| word.strip_prefix("avg60="))?;
    value.parse().ok().filter(|share: &f64| share.is_finite())
}

pub(super) fn time(facts: &Facts) -> NamedObjects {
    let status = TimeStatus {
        now: facts.observed_at.clone(),
        ntp_synchronized: facts.ntp_synchronized,
        ntp_refused: facts.ntp_refused,
    };
    vec![("clock".to_owned(), Status::Time(status))]
}
