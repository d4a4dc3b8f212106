//! Block devices: /proc/diskstats, with what udev knows of them.

use std::collections::BTreeMap;

use super::{DEVICES_MAX, KernelFiles, NodeFacts, number};
use crate::stats::exposition::{Exposition, Kind};

/// Sectors of /proc/diskstats, bytes.
const SECTOR: f64 = 512.0;
/// Milliseconds of /proc/diskstats, seconds.
const MS: f64 = 1e-3;

/// Families in the order of the columns of /proc/diskstats behind the device's name, each with the unit of its column.
const COLUMNS: [(&str, Kind, f64, &str); 17] = [
    ("node_disk_reads_completed_total", Kind::Counter, 1.0, "Reads that were finished."),
    ("node_disk_reads_merged_total", Kind::Counter, 1.0, "Reads that were made part of others."),
    ("node_disk_read_bytes_total", Kind::Counter, SECTOR, "Bytes that were read."),
    ("node_disk_read_time_seconds_total", Kind::Counter, MS, "Seconds of all reads."),
    ("node_disk_writes_completed_total", Kind::Counter, 1.0, "Writes that were finished."),
    ("node_disk_writes_merged_total", Kind::Counter, 1.0, "Writes that were made part of others."),
    ("node_disk_written_bytes_total", Kind::Counter, SECTOR, "Bytes that were written."),
    ("node_disk_write_time_seconds_total", Kind::Counter, MS, "Seconds of all writes."),
    ("node_disk_io_now", Kind::Gauge, 1.0, "Requests under way."),
    ("node_disk_io_time_seconds_total", Kind::Counter, MS, "Seconds in which requests were under way."),
    ("node_disk_io_time_weighted_seconds_total", Kind::Counter, MS, "Seconds of all requests."),
    ("node_disk_discards_completed_total", Kind::Counter, 1.0, "Discards that were finished."),
    ("node_disk_discards_merged_total", Kind::Counter, 1.0, "Discards that were made part of others."),
    ("node_disk_discarded_sectors_total", Kind::Counter, 1.0, "Sectors of 512 bytes that were discarded."),
    ("node_disk_discard_time_seconds_total", Kind::Counter, MS, "Seconds of all discards."),
    ("node_disk_flush_requests_total", Kind::Counter, 1.0, "Flushes that were finished."),
    ("node_disk_flush_requests_time_seconds_total", Kind::Counter, MS, "Seconds of all flushes."),
];

/// A line of /proc/diskstats.
#[derive(Debug, Default)]
struct DiskLine {
    major: String,
    minor: String,
    columns: Vec<f64>,
}

pub(super) fn diskstats<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let disks = disks(&files.text("proc/diskstats").unwrap_or_default());
    info(files, &disks, out);
    for (at, (name, kind, unit, help)) in COLUMNS.into_iter().enumerate() {
        let samples = disks.iter().filter_map(|(device, line)| {
            Some((vec![("device", device.as_str())], *line.columns.get(at)? * unit))
        });
        out.family((name, kind, help), samples, None);
    }
    !disks.is_empty()
}

/// Devices by name, at most [`DEVICES_MAX`].
fn disks(diskstats: &str) -> BTreeMap<String, DiskLine> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let id = |word: &str| word.parse::<u32>().ok().map(|id| id.to_string());
        let (major, minor, device) = (id(words.next()?)?, id(words.next()?)?, words.next()?);
        let columns: Vec<f64> = words.map_while(number).collect();
        (!is_left_out(device)).then(|| (device.to_owned(), DiskLine { major, minor, columns }))
    };
    diskstats.lines().filter_map(line).take(DEVICES_MAX).collect()
}

/// node_exporter's choice: disks in memory, loops, and partitions, whose disks are shown.
fn is_left_out(device: &str) -> bool {
    let base = device.trim_end_matches(|c: char| c.is_ascii_digit());
    if base == device {
        return false;
    }
    let is_one_letter = |rest: &str| rest.len() == 1 && rest.bytes().all(|b| b.is_ascii_lowercase());
    let of_disk =
        ["hd", "sd", "vd", "xvd"].iter().filter_map(|kind| base.strip_prefix(kind)).any(is_one_letter);
    matches!(base, "ram" | "zram" | "loop" | "fd") || of_disk || is_nvme_partition(base)
}

/// `nvme0n1p`.
fn is_nvme_partition(base: &str) -> bool {
    let numbers = base
        .strip_prefix("nvme")
        .and_then(|rest| rest.strip_suffix('p'))
        .and_then(|rest| rest.split_once('n'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|(controller, namespace)| is_number(controller) && is_number(namespace))
}

/// What the devices are, as udev has it; empty where there is no udev.
fn info<F: KernelFiles>(files: &F, disks: &BTreeMap<String, DiskLine>, out: &mut Exposition) {
    let known: Vec<[String; 6]> = disks
        .iter()
        .map(|(device, line)| {
            let udev =
                files.text(&format!("run/udev/data/b{}:{}", line.major, line.minor)).unwrap_or_default();
            let property = |key: &str| {
                let value = udev
                    .lines()
                    .find_map(|line| line.strip_prefix("E:")?.strip_prefix(key)?.strip_prefix('='));
                value.unwrap_or_default().to_owned()
            };
            let serial = ["SCSI_IDENT_SERIAL", "ID_SERIAL_SHORT", "ID_SERIAL"].map(property);
            let serial = serial.into_iter().find(|serial| !serial.is_empty()).unwrap_or_default();
            let rotational = files.text(&format!("sys/block/{device}/queue/rotational")).unwrap_or_default();
            let rotational = if rotational.trim() == "1" { "1" } else { "0" }.to_owned();
            [
                property("ID_MODEL"),
                property("ID_PATH"),
                property("ID_REVISION"),
                rotational,
                serial,
                property("ID_WWN"),
            ]
        })
        .collect();
    let samples =
        disks.iter().zip(&known).map(|((device, line), [model, path, revision, rotational, serial, wwn])| {
            let labels = vec![
                ("device", device.as_str()),
                ("major", line.major.as_str()),
                ("minor", line.minor.as_str()),
                ("model", model.as_str()),
                ("path", path.as_str()),
                ("revision", revision.as_str()),
                ("rotational", rotational.as_str()),
                ("serial", serial.as_str()),
                ("wwn", wwn.as_str()),
            ];
            (labels, 1.0)
        });
    out.family(("node_disk_info", Kind::Gauge, "Block devices; always 1."), samples, None);
}

#[cfg(test)]
mod tests {
    use super::is_left_out;

    #[test]
    fn partitions_and_disks_in_memory_are_left_out() {
        for device in ["sda1", "vda12", "xvdb3", "nvme0n1p1", "loop0", "ram15", "zram0", "fd0", "hdc2"] {
            assert!(is_left_out(device), "{device}");
        }
        for device in
            ["sda", "vda", "nvme0n1", "dm-0", "md127", "sr0", "mmcblk0", "sdaa", "xvda", "nvmep1", ""]
        {
            assert!(!is_left_out(device), "{device}");
        }
    }
}
