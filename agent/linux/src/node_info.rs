//! What the Node object says about the machine: identity, versions, amounts.
//!
//! In: /etc, /proc, /sys, `uname`. Out: [`MachineFacts`]. Parsers are pure. What a machine need not have (DMI, an
//! os-release) has a stand-in; memory and CPUs are on every machine, without them there is an error.

use std::path::Path;

use agent_types::resources::machine::MachineFacts;
use agent_types::resources::node_allocatable::MachineAmounts;

use crate::files::FilesError;
use crate::{machine, process};

/// The machine as it is now. Storage is that of the file system of `root_dir`; `None` does not count it
/// (`localStorageCapacityIsolation: false`).
///
/// # Errors
/// Memory, CPUs, boot id or kernel version cannot be read.
pub fn machine_facts(root_dir: Option<&Path>) -> Result<MachineFacts, FilesError> {
    let uname = Path::new("release");
    let kernel = nix::sys::utsname::uname().map_err(|e| FilesError::at("uname", uname)(e.into()))?;
    let machine_id = first_line(&["/etc/machine-id", "/var/lib/dbus/machine-id"]).unwrap_or_default();
    let dmi = ["/sys/class/dmi/id/product_uuid", "/proc/device-tree/vm,uuid", "/proc/device-tree/system-id"];
    Ok(MachineFacts {
        system_uuid: first_line(&dmi).unwrap_or_else(|| machine_id.clone()),
        machine_id,
        boot_id: process::boot_id()?,
        kernel_version: kernel.release().to_string_lossy().into_owned(),
        os_image: os_image(),
        architecture: architecture().to_owned(),
        swap_bytes: machine::swap_bytes()?,
        amounts: MachineAmounts {
            cpus: machine::cpus_online()?,
            memory_bytes: machine::memory_bytes()?,
            hugepages: machine::hugepages(),
            ephemeral_storage_bytes: root_dir.and_then(|dir| machine::filesystem_bytes(dir).ok()),
        },
    })
}

/// The architecture as Go and Kubernetes spell it.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        other => other,
    }
}

/// The first of these files that says something.
fn first_line(paths: &[&str]) -> Option<String> {
    let lines = paths.iter().filter_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        // The device tree ends its strings with a zero.
        Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
    });
    lines.into_iter().find(|line| !line.is_empty())
}

fn os_image() -> String {
    let texts = ["/etc/os-release", "/usr/lib/os-release"];
    let names = texts.iter().filter_map(|path| pretty_name(&std::fs::read_to_string(path).ok()?));
    names.into_iter().next().unwrap_or_else(|| "Linux".to_owned())
}

/// `PRETTY_NAME` of an os-release file, without its quotes.
fn pretty_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))?.trim();
    let quoted = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    let name = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
    (!name.is_empty()).then(|| name.replace("\\\"", "\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_names() {
        for (text, name) in [
            (
                "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n",
                Some("Debian GNU/Linux 13 (trixie)"),
            ),
            ("PRETTY_NAME='Orlop 0.1'\n", Some("Orlop 0.1")),
            ("PRETTY_NAME=Plain\n", Some("Plain")),
            ("PRETTY_NAME=\"\"\n", None),
            ("PRETTY_NAME=\"\n", Some("\"")),
            ("NAME=\"x\"\n", None),
        ] {
            assert_eq!(pretty_name(text).as_deref(), name, "{text}");
        }
    }

    #[test]
    fn this_machine_can_be_described() {
        let facts = machine_facts(Some(Path::new("/"))).unwrap();
        assert!(facts.kernel_version.starts_with(|c: char| c.is_ascii_digit()));
        assert!(!facts.boot_id.is_empty() && !facts.os_image.is_empty() && !facts.architecture.is_empty());
        assert!(facts.amounts.memory_bytes > 0 && facts.amounts.cpus > 0);
        assert!(facts.amounts.ephemeral_storage_bytes.is_some_and(|bytes| bytes > 0));
        assert_eq!(machine_facts(None).unwrap().amounts.ephemeral_storage_bytes, None);
    }
}
