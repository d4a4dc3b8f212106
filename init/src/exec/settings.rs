//! Loads the modules of the image and applies its kernel settings, then those of the node's configuration, and says
//! which were refused. All lists are in systemd's own formats and places.

use super::drivers::is_live;
use super::error::InitError;
use crate::plan::settings::{Setting, in_force, modules, settings};
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Modules of the image.
pub const IMAGE_MODULES: &str = "/usr/lib/modules-load.d/50-orlop.conf";
/// Settings of the image.
pub const IMAGE_SYSCTL: &str = "/usr/lib/sysctl.d/50-orlop.conf";
/// Written by init.
pub const SYSCTL: &str = "/run/sysctl.d/90-orlop.conf";
/// Written by init.
pub const MODULES: &str = "/run/modules-load.d/90-orlop.conf";

/// What became of them.
#[derive(Debug, Default)]
pub struct Outcome {
    /// For the ledger.
    pub detail: String,
    /// One line per refused module or setting.
    pub problems: Vec<String>,
}

/// Loads the modules, then writes the settings (some exist only once their module is loaded); the image's first, because
/// the configuration has the last word.
///
/// # Errors
/// A list is there but cannot be read.
pub fn run() -> Result<Outcome, InitError> {
    let mut outcome = Outcome::default();
    load_all(&modules(&read(IMAGE_MODULES)?), "image", &mut outcome.problems);
    apply(&settings(&read(IMAGE_SYSCTL)?), "image", &mut outcome.problems);
    let wanted_modules = modules(&read(MODULES)?);
    load_all(&wanted_modules, "configuration", &mut outcome.problems);
    let wanted_settings = settings(&read(SYSCTL)?);
    apply(&wanted_settings, "configuration", &mut outcome.problems);
    outcome.detail = format!("{} modules, {} settings", wanted_modules.len(), wanted_settings.len());
    Ok(outcome)
}

/// Loads those that are not loaded yet: with a second processor the process that reads ahead has the image's, and no
/// program is started for them.
fn load_all(names: &[String], whose: &str, problems: &mut Vec<String>) {
    for name in names.iter().filter(|name| !is_live(Path::new(name))) {
        if let Err(why) = load(name) {
            problems.push(format!("module {name} of the {whose} is not loaded: {why}"));
        }
    }
}

fn apply(settings: &[Setting], whose: &str, problems: &mut Vec<String>) {
    for setting in settings {
        if let Err(e) = put(setting) {
            problems.push(format!("sysctl {} of the {whose} is not {}: {e}", setting.name, setting.value));
        }
    }
}

fn read(path: &str) -> Result<String, InitError> {
    match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|source| InitError::File { action: "read", path: path.into(), source }),
    }
}

fn load(module: &str) -> Result<(), String> {
    let mut command = Command::new("/usr/sbin/modprobe");
    command.args(["--", module]).stdin(Stdio::null());
    let output = command.output().map_err(|e| format!("modprobe does not start: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_string())
}

fn put(setting: &Setting) -> io::Result<()> {
    if fs::read_to_string(&setting.path).is_ok_and(|found| in_force(&found, &setting.value)) {
        return Ok(());
    }
    fs::write(&setting.path, format!("{}\n", setting.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_setting_says_why() {
        let setting =
            |path: &str, value: &str| Setting { name: "x".into(), path: path.into(), value: value.into() };
        assert!(put(&setting("/proc/sys/kernel/nonexistent", "1")).is_err());
        let ostype = "/proc/sys/kernel/ostype";
        assert!(put(&setting(ostype, "Linux")).is_ok(), "in force already: nothing is written");
    }
}
