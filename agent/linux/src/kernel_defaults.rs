//! Kernel parameters that a node must have, and their present values.
//!
//! In: /proc/sys. Out: the parameters that differ. Nothing is written: the image sets them at boot
//! (`image/rootfs/common/usr/lib/sysctl.d/50-orlop.conf`). Upstream: pkg/kubelet/cm/container_manager_linux.go
//! (`setupKernelTunables`), component-helpers' `node/util/sysctl`.

use std::fmt;
use std::path::Path;

/// Name below /proc/sys, value.
const EXPECTED: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// A parameter with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differs {
    /// Name below /proc/sys.
    pub name: &'static str,
    /// The value that a node must have.
    pub expected: i64,
    /// The present value, or the reason why the kernel does not give it.
    pub actual: String,
}

impl fmt::Display for Differs {
    /// Upstream's words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Differs { name, expected, actual } = self;
        write!(f, "invalid kernel flag: {name}, expected value: {expected}, actual value: {actual}")
    }
}

/// All parameters below `proc_sys` (/proc/sys) that differ.
#[must_use]
pub fn differing(proc_sys: &Path) -> Vec<Differs> {
    EXPECTED
        .iter()
        .filter_map(|(name, expected)| {
            let actual = match std::fs::read_to_string(proc_sys.join(name)) {
                Ok(text) => text.trim().to_owned(),
                Err(error) => error.to_string(),
            };
            (actual.parse() != Ok(*expected)).then_some(Differs { name, expected: *expected, actual })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_with_another_value_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for (name, value) in EXPECTED {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }
        assert_eq!(differing(dir.path()), vec![]);
        std::fs::write(dir.path().join("kernel/panic"), "0\n").unwrap();
        std::fs::remove_file(dir.path().join("vm/panic_on_oom")).unwrap();
        let told: Vec<String> = differing(dir.path()).iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with(
            "invalid kernel flag: vm/panic_on_oom, expected value: 0, actual value: No such file"
        ));
        assert_eq!(told[1], "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0");
    }

    #[test]
    fn the_image_sets_each_of_them() {
        let conf =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../image/rootfs/common/usr/lib/sysctl.d/50-orlop.conf");
        let conf = std::fs::read_to_string(conf).unwrap();
        for (name, value) in EXPECTED {
            let line = format!("{} = {value}", name.replace('/', "."));
            assert!(conf.lines().any(|l| l == line), "{line}");
        }
    }
}
