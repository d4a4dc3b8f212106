//! An `iscsiadm` for a node: a script that logs its calls, keeps sessions as files, and makes the links of a target's
//! units as udev would.
//!
//! In: a node, a target, its units. Out: sessions, links, calls. Invariant: dropping the value removes every link.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::native::images::install_busybox;
use crate::native::node::NativeNode;

/// The portal that answers.
pub const PORTAL: &str = "192.0.2.17";
/// Directory of the script's state, in the node.
const STATE: &str = "/run/e2e/iscsi";
/// Directory of udev's links. The node's devices are the machine's.
const LINKS: &str = "/dev/disk/by-path";
const PROGRAM: &str = "/usr/bin/iscsiadm";

/// The script. Exit codes are iscsiadm's: 6 no record, 8 no answer, 15 there is a session, 21 nothing found, 24 no login.
const SCRIPT: &str = r#"#!/run/e2e/iscsi/bin/sh
S=/run/e2e/iscsi
PATH=$S/bin
echo "$*" >> $S/log
mode= portal= target= iface= op= name= value= act=
while [ $# -gt 0 ]; do
    case "$1" in
        -m) mode=$2; shift;;
        -p) portal=$2; shift;;
        -T) target=$2; shift;;
        -I) iface=$2; shift;;
        -o) op=$2; shift;;
        -n) name=$2; shift;;
        -v) value=$2; shift;;
        -t) shift;;
        --discover|--login|--logout) act=$1;;
        *) echo "what is $1?"; exit 7;;
    esac
    shift
done
session=$S/sessions/$portal-$target
record=$S/records/$portal-$target
case "$mode $op$act" in
    "iface show")
        printf 'iface.iscsi_ifacename = %s\niface.transport_name = tcp\niface.initiatorname = <empty>\n' "$iface";;
    "discoverydb new"|"discoverydb delete") ;;
    "discoverydb --discover")
        [ "$portal" = "$(cat $S/portal)" ] || { echo "cannot make connection to $portal"; exit 8; }
        mkdir -p "$S/records/$portal-$(cat $S/target)"
        echo "$portal,1 $(cat $S/target)";;
    "node update")
        [ -d "$record" ] || { echo "no records found"; exit 21; }
        echo "$value" > "$record/$name";;
    "node delete")
        [ -d "$record" ] || exit 21
        rm -r "$record";;
    "node --login")
        [ -e "$session" ] && exit 15
        [ "$(cat "$record/node.session.auth.password")" = "$(cat $S/password)" ] || { echo "login failed"; exit 24; }
        mkdir -p /dev/disk/by-path
        for unit in $S/units/*; do
            ln -sf "$(cat $unit)" "/dev/disk/by-path/ip-$portal-iscsi-$target-lun-${unit##*/}"
        done
        : > "$session";;
    "node --logout")
        [ -e "$session" ] || exit 21
        rm "$session" "/dev/disk/by-path/ip-$portal-iscsi-$target-lun-"*;;
    *) echo "cannot do $mode $op$act"; exit 7;;
esac
"#;

/// The script's world.
pub struct Initiator {
    state: PathBuf,
    program: PathBuf,
    iqn: String,
}

impl Initiator {
    /// A target that requires a password; the program does not exist yet.
    ///
    /// # Errors
    /// If the node's directory cannot be written.
    pub fn new(node: &NativeNode, iqn: &str, password: &str) -> Result<Initiator> {
        let state = node.inside(STATE);
        install_busybox(&state.join("bin"))?;
        for directory in ["sessions", "records", "units"] {
            fs::create_dir_all(state.join(directory))?;
        }
        for (name, text) in
            [("portal", &*format!("{PORTAL}:3260")), ("target", iqn), ("password", password), ("log", "")]
        {
            fs::write(state.join(name), text).with_context(|| format!("write {name}"))?;
        }
        Ok(Initiator { state, program: node.inside(PROGRAM), iqn: iqn.to_owned() })
    }

    /// The program is there from now on.
    ///
    /// # Errors
    /// If the program cannot be written.
    pub fn install(&self) -> Result<()> {
        let new = self.program.with_extension("new");
        fs::write(&new, SCRIPT).with_context(|| format!("write {}", new.display()))?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        fs::rename(&new, &self.program).context("put iscsiadm into the node")
    }

    /// The target has this unit.
    ///
    /// # Errors
    /// If the unit cannot be written.
    pub fn put_unit(&self, lun: usize, device: &Path) -> Result<()> {
        let path = self.state.join("units").join(lun.to_string());
        fs::write(path, device.display().to_string()).context("write the unit")
    }

    /// Number of sessions.
    ///
    /// # Errors
    /// If the directory of sessions cannot be read.
    pub fn sessions(&self) -> Result<usize> {
        Ok(fs::read_dir(self.state.join("sessions")).context("read the sessions")?.count())
    }

    /// Its calls, a line each.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn log(&self) -> Result<String> {
        fs::read_to_string(self.state.join("log")).context("read what iscsiadm was told")
    }

    /// The links of the target's units.
    #[must_use]
    pub fn links(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(LINKS).into_iter().flatten().flatten().map(|entry| entry.path());
        all.filter(|path| path.to_string_lossy().contains(&self.iqn)).collect()
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        for path in self.links().into_iter().chain([self.program.clone()]) {
            let _ = fs::remove_file(path);
        }
    }
}
