//! FlexVolume drivers for a node: a script that mounts a tmpfs, logs its calls, and fails or hangs on request of a
//! case; a driver that only attaches. The cluster's part of the latter is a script in the control plane.
//!
//! In: a node, a cluster. Out: drivers, their calls. Invariant: all files are in the node's own directories, or in the
//! cluster's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::native::images::install_busybox;
use crate::native::node::NativeNode;

/// Upstream's default of `volumePluginDir`.
const DIRECTORY: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";
/// Directory of the scripts' state, in the node.
const STATE: &str = "/run/e2e/flex";
/// The driver that mounts.
pub const PLAIN: &str = "e2e.example/plain";
/// The driver that attaches.
pub const ATTACHING: &str = "e2e.example/attaching";

/// The mounted file system contains a file that names its pod.
const MOUNTS: &str = r#"#!/run/e2e/flex/bin/sh
S=/run/e2e/flex
PATH=$S/bin
echo "$*" >> $S/log
ok() { echo '{"status": "Success"'"$1"'}'; exit 0; }
case "$1" in
    init) ok ', "capabilities": {"attach": false, "supportsMetrics": true}';;
    mount)
        case "$3" in
            *'"kubernetes.io/pvOrVolumeName":"hangs"'*) while [ -e $S/hang ]; do late=1; sleep 1; done; [ -z "$late" ] || exit 1;;
            *'"kubernetes.io/pvOrVolumeName":"fails"'*)
                [ -e $S/fail ] && { echo '{"status": "Failure", "message": "no such share"}'; exit 1; };;
        esac
        how=rw
        case "$3" in *'"kubernetes.io/readwrite":"ro"'*) how=ro;; esac
        mount -t tmpfs -o mode=755 e2e-flex "$2" && echo "$how" > "$2/how" && ok;;
    unmount) umount "$2" && ok;;
    *) echo '{"status": "Not supported"}'; exit 1;;
esac
echo '{"status": "Failure", "message": "it cannot"}'
exit 1
"#;

/// The driver supports only `init`: the node does the rest with its defaults.
const ATTACHES: &str = r#"#!/run/e2e/flex/bin/sh
PATH=/run/e2e/flex/bin
echo "$*" >> /run/e2e/flex/attaching
[ "$1" = init ] && { echo '{"status": "Success"}'; exit 0; }
echo '{"status": "Not supported"}'
exit 1
"#;

/// The drivers of a node, and their world.
pub struct Drivers {
    state: PathBuf,
    directory: PathBuf,
}

impl Drivers {
    /// No driver is there yet.
    ///
    /// # Errors
    /// If the node's directory cannot be written.
    pub fn new(node: &NativeNode) -> Result<Drivers> {
        let state = node.inside(STATE);
        install_busybox(&state.join("bin"))?;
        Ok(Drivers { state, directory: node.inside(DIRECTORY) })
    }

    /// Both are there from now on.
    ///
    /// # Errors
    /// If a program cannot be written.
    pub fn install(&self) -> Result<()> {
        put(&self.directory, PLAIN, MOUNTS)?;
        put(&self.directory, ATTACHING, ATTACHES)
    }

    /// Sets or removes a mark for the driver (`hang`, `fail`).
    ///
    /// # Errors
    /// If the mark cannot be written or removed.
    pub fn set(&self, what: &str, is: bool) -> Result<()> {
        let path = self.state.join(what);
        if is {
            fs::write(&path, "").with_context(|| format!("set {what}"))
        } else {
            fs::remove_file(&path).with_context(|| format!("unset {what}"))
        }
    }

    /// A driver's calls, a line each (`log`, `attaching`).
    ///
    /// # Errors
    /// If the driver was not called yet.
    pub fn driver_log(&self, which: &str) -> Result<Vec<String>> {
        let text = fs::read_to_string(self.state.join(which)).with_context(|| format!("read {which}"))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

impl Drop for Drivers {
    fn drop(&mut self) {
        for driver in [PLAIN, ATTACHING] {
            let _ = fs::remove_dir_all(self.directory.join(driver.replace('/', "~")));
        }
    }
}

/// The control plane's part of the driver that attaches: it answers with the volume's device.
///
/// # Errors
/// If the program cannot be written.
pub fn install_attacher(directory: &Path, device: &Path) -> Result<PathBuf> {
    let log = directory.join(".log");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {}\ncase \"$1\" in\n\
         init|detach) echo '{{\"status\": \"Success\"}}';;\n\
         attach) echo '{{\"status\": \"Success\", \"device\": \"{}\"}}';;\n\
         isattached) echo '{{\"status\": \"Success\", \"attached\": true}}';;\n\
         *) echo '{{\"status\": \"Not supported\"}}'; exit 1;;\nesac\n",
        log.display(),
        device.display()
    );
    put(directory, ATTACHING, &script)?;
    Ok(log)
}

fn put(directory: &Path, driver: &str, script: &str) -> Result<()> {
    let own = directory.join(driver.replace('/', "~"));
    fs::create_dir_all(&own).with_context(|| format!("make {}", own.display()))?;
    let name = driver.rsplit('/').next().unwrap_or(driver);
    let new = own.join(format!(".{name}"));
    fs::write(&new, script).with_context(|| format!("write {}", new.display()))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    fs::rename(&new, own.join(name)).with_context(|| format!("put the driver {driver} there"))
}
