//! Loads the profile of containers into the kernel's AppArmor, before the agent may start a container.
//!
//! containerd finds the profile loaded. Otherwise it would compile the profile for the first container
//! (docs/decisions/apparmor.md).

use super::error::InitError;
use std::fs::{self, File};
use std::io::{self, Write};

/// The compiled profile, made by the image's build.
const POLICY: &str = "/usr/share/orlop/apparmor/cri-containerd.policy";
/// A whole policy in one write: profiles of these names are added or replaced (kernel, security/apparmor/apparmorfs.c).
const REPLACE: &str = "/sys/kernel/security/apparmor/.replace";

/// Loads it. A kernel that runs without AppArmor (`apparmor=0`, another security module) is no error: the agent refuses
/// pods that ask for a profile.
///
/// # Errors
/// The policy cannot be read, or the kernel refuses it.
pub fn load() -> Result<String, InitError> {
    put(POLICY, REPLACE)
}

fn put(policy: &str, replace: &str) -> Result<String, InitError> {
    let file = |action, path: &str, source| InitError::File { action, path: path.into(), source };
    let mut kernel = match File::options().write(true).open(replace) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok("the kernel runs without AppArmor".into()),
        other => other.map_err(|e| file("open", replace, e))?,
    };
    let text = fs::read(policy).map_err(|e| file("read", policy, e))?;
    kernel.write_all(&text).map_err(|e| file("load the profile of containers into", replace, e))?;
    Ok("cri-containerd.apparmor.d".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_loaded_where_there_is_apparmor() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (policy, kernel) = (path("policy"), path("replace"));
        let without = put(&policy, &kernel).expect("no error");
        assert!(without.contains("without AppArmor"), "{without}");
        fs::write(&kernel, "").expect("fixture");
        let error = put(&policy, &kernel).expect_err("no policy").to_string();
        assert!(error.contains("read") && error.contains(&policy), "{error}");
        fs::write(&policy, b"\x04\x08policy").expect("fixture");
        assert_eq!(put(&policy, &kernel).expect("loaded"), "cri-containerd.apparmor.d");
        assert_eq!(fs::read(&kernel).expect("written"), b"\x04\x08policy");
    }
}
