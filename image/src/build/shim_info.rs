//! What the shim says of itself and of the OCI runtime (`containerd-shim-runc-v2 -info`), asked once at build.
//!
//! containerd asks this twice at each of its starts, and waits for two Go programs and crun. All three, the kernel
//! and containerd's configuration are files of the image, so the answers are too: `orlop-init`, called by the shim's
//! name, gives them to the very questions that they answer (docs/internals/image.md).

use super::namespaced;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// Below the root; `NAME.question`, and `NAME.answer` or `NAME.error`.
const RECORD: &str = "usr/share/orlop/shim-info";
/// Runs inside `unshare --mount`: $1 the root's file tree.
const SCRIPT: &str = r#"
set -e
mount --bind "$1" "$1"
mount --rbind /dev "$1/dev"
mount --rbind /proc "$1/proc"
exec chroot "$1" /usr/bin/containerd-shim-runc-v2 -info
"#;
/// The part of the answer with crun's abilities: without it containerd would know none.
const FEATURES: &[u8] = b"opencontainers/runtime-spec/1/features/Features";

/// What containerd asks: a `google.protobuf.Any` with `containerd.runc.v1.Options`, once without any, and once for
/// the runtime of `etc/containerd/config.toml` with `binary_name` (6) and `systemd_cgroup` (9).
fn questions(runtime: &str) -> [(&'static str, Vec<u8>); 2] {
    let kind = field(1, b"containerd.runc.v1.Options");
    let options = [field(6, runtime.as_bytes()), vec![9 << 3, 1]].concat();
    [("default", kind.clone()), ("crun", [kind, field(2, &options)].concat())]
}

/// A length-delimited protobuf field; all of ours are short.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|n| *n < 128).expect("a short field");
    [&[number << 3 | 2, length], bytes].concat()
}

/// Asks and writes all of it below `root`; returns the paths there.
pub(super) fn record(root: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    fs::create_dir_all(root.join(RECORD))?;
    for (name, question) in questions("/usr/bin/crun") {
        let answer = ask(root, &question).context("asking the shim for its -info")?;
        let said = |bytes: &[u8]| bytes.windows(FEATURES.len()).any(|w| w == FEATURES);
        if name == "crun" && !answer.as_deref().is_ok_and(said) {
            bail!("the shim's -info has no features of crun: {answer:?}");
        }
        let (what, bytes) = answer.map_or_else(|e| ("error", e.into_bytes()), |bytes| ("answer", bytes));
        for (what, bytes) in [("question", question), (what, bytes)] {
            let path = format!("{RECORD}/{name}.{what}");
            fs::write(root.join(&path), bytes).with_context(|| format!("writing {path}"))?;
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The shim's answer, or what it says of why it has none (there is no `runc`, its default, in the image).
fn ask(root: &Path, question: &[u8]) -> Result<Result<Vec<u8>, String>> {
    let mut command = namespaced();
    command.args(["sh", "-c", SCRIPT, "shim-info"]).arg(root);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("stdin is piped")?.write_all(question)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && !said.starts_with("io.containerd.runc.v2: ") {
        bail!("{}: {said}", output.status);
    }
    Ok(if output.status.success() { Ok(output.stdout) } else { Err(said) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_questions_are_containerds() {
        let [default, crun] = questions("/usr/bin/crun").map(|(_, question)| question);
        assert_eq!(default, b"\x0a\x1acontainerd.runc.v1.Options");
        assert_eq!(crun, b"\x0a\x1acontainerd.runc.v1.Options\x12\x112\x0d/usr/bin/crunH\x01");
        // The same runtime as in the configuration.
        let config = include_str!("../../rootfs/common/etc/containerd/config.toml");
        assert!(config.contains("BinaryName = '/usr/bin/crun'\nSystemdCgroup = true\n"));
    }
}
