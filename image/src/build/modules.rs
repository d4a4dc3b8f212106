//! The kernel modules of the root, unpacked: the kernel's XZ decoder is the slowest part of loading one, and the
//! file system compresses them anyway. A module's signature is part of the unpacked file and stays.

use super::{Builder, namespaced};
use crate::host::run;
use crate::plan::BuildStep;
use crate::select::InclusionReason;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// What Debian's modules are compressed with.
const SUFFIX: &str = ".ko.xz";

/// Runs inside `unshare --mount`: $1 tools tree, $2 root.
const SCRIPT: &str = r#"
set -e
mount --bind "$2" "$1/mnt"
exec chroot "$1" find /mnt/usr/lib/modules -name '*.ko.xz' -exec xz -d '{}' +
"#;

/// Unpacks the modules below `root` in place, and names them so in `all`.
///
/// # Errors
/// A module is damaged, or the tools tree cannot be used.
pub(super) fn unpack(
    builder: &Builder,
    root: &Path,
    all: &mut BTreeMap<String, InclusionReason>,
) -> Result<()> {
    let mut command = namespaced();
    command.args(["sh", "-c", SCRIPT, "unpack"]);
    command.arg(builder.result(BuildStep::Tools)?.join("tools")).arg(root);
    run::logged(&mut command, "unpacking the kernel modules", &builder.log)?;
    *all = std::mem::take(all).into_iter().map(|(path, why)| (unpacked(path), why)).collect();
    Ok(())
}

fn unpacked(mut path: String) -> String {
    if path.ends_with(SUFFIX) {
        path.truncate(path.len() - ".xz".len());
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_modules_change_their_name() {
        for (path, want) in [
            ("usr/lib/modules/6/kernel/x.ko.xz", "usr/lib/modules/6/kernel/x.ko"),
            ("usr/lib/modules/6/kernel/x.ko", "usr/lib/modules/6/kernel/x.ko"),
            ("usr/share/doc.xz", "usr/share/doc.xz"),
        ] {
            assert_eq!(unpacked(path.to_owned()), want);
        }
    }
}
