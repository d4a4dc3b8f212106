//! Puts a NodeConfig on the ESP of a raw disk, by mtools: no mount, no root.

use super::grow::{SECTOR, read_exact};
use crate::host::run;
use anyhow::{Context, Result, bail};
use orlop_config::node::{Source, load};
use orlop_init::plan::gpt::read_table;
use orlop_init::plan::guid::TYPE_ESP;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Its directory and file, where init looks for them.
const DIRECTORY: &str = "::/orlop";
const FILE: &str = "::/orlop/node-config.yaml";
/// init reads no more of a source, bytes.
const BYTES_MAX: usize = 1 << 20;

/// Reads a NodeConfig and checks it as init would: a mistake is better found here than on a console far away.
///
/// # Errors
/// It cannot be read, or init would refuse it: all mistakes.
pub(crate) fn read_config(path: &Path) -> Result<String> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("reading {shown}"))?;
    if text.len() > BYTES_MAX {
        bail!("{shown} is larger than 1 MiB, and init would not read it");
    }
    let effective = load(&[Source { name: "esp".into(), origin: shown, text: text.clone() }], &[]);
    let said: Vec<String> = effective.problems.iter().map(ToString::to_string).collect();
    if effective.accepted.is_empty() {
        bail!("{}", said.join("\n"));
    }
    // Halves, whose other half another source may bring.
    said.iter().for_each(|note| println!("  note: {note}"));
    Ok(text)
}

/// Writes it to the disk's ESP.
///
/// # Errors
/// There is no ESP, or mtools cannot write to it.
pub(super) fn put(raw: &Path, text: &str, log: &Path) -> Result<()> {
    let image = format!("{}@@{}", raw.display(), esp_start(raw)?);
    let file = raw.with_extension("yaml");
    fs::write(&file, "").and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o600)))?;
    fs::write(&file, text).context("writing the configuration")?;
    // Sectors of a track are no matter of a partition's.
    let mtools = |program: &str| {
        let mut command = Command::new(program);
        command.env("MTOOLS_SKIP_CHECK", "1");
        command
    };
    let mut directory = mtools("mmd");
    directory.args(["-D", "s", "-i", &image, DIRECTORY]);
    let mut copy = mtools("mcopy");
    copy.args(["-o", "-i", &image]).arg(&file).arg(FILE);
    // A directory that is there already is an error to mmd; one that could not be made is one to mcopy.
    let _ = run::logged(&mut directory, "making the directory on the ESP", log);
    let made = run::logged(&mut copy, "writing the configuration to the ESP", log);
    fs::remove_file(&file).context("removing the configuration's copy")?;
    made
}

/// Where the ESP begins, bytes.
pub(super) fn esp_start(raw: &Path) -> Result<u64> {
    let file = File::open(raw).with_context(|| format!("opening {}", raw.display()))?;
    let bytes = file.metadata()?.len();
    let table = read_table(bytes, SECTOR, |offset, length| read_exact(&file, offset, length))
        .with_context(|| format!("the partition table of {}", raw.display()))?;
    let esp = table.partitions.iter().find(|p| p.type_guid == TYPE_ESP);
    Ok(esp.with_context(|| format!("{} has no ESP", raw.display()))?.start)
}
