//! `orlop-image inspect`: unpacks the published root as it is in the verity slot and accounts for it: every
//! executable with its reason, every component within its budget, no shell in the release profile.

mod report;

use crate::build;
use crate::format::elf;
use crate::host::{run, tools};
use crate::profile::{Dirs, Profile};
use anyhow::{Context, Result, bail};
use report::{File, Reasons, Report};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Largest compressed disk, bytes (issue: 150 MB; the aim is 100).
const DISK_BUDGET: u64 = 150_000_000;

/// Prints the account.
///
/// # Errors
/// There is no built image, or it cannot be read.
pub fn run(dirs: &Dirs, profile: Profile, list: bool) -> Result<ExitCode> {
    let manifest = build::read_manifest(dirs, profile).with_context(|| {
        format!("no {0} image; `orlop-image build --profile {0}` makes one", profile.name())
    })?;
    let output = dirs.output(profile);
    let scratch = dirs.cache.join(format!("image/inspect-{}", std::process::id()));
    let result = account(dirs, &output, &scratch, &manifest);
    let _ = fs::remove_dir_all(&scratch);
    let (files, compressed) = result?;
    let contents = build::contents(dirs)?;
    let reasons = fs::read_to_string(output.join("contents.json")).context("reading contents.json")?;
    let reasons: Reasons = serde_json::from_str(&reasons).context("parsing contents.json")?;
    let mut report = Report::new(&files, &reasons, &contents, profile);
    report.disk(compressed, DISK_BUDGET);
    print!("{}", report.render(list));
    println!("root hash {}", manifest.roothash);
    Ok(if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// $1 tools tree, $2 scratch directory with `root.erofs`.
const UNPACK: &str = r#"mount --bind "$2" "$1/mnt" && exec chroot "$1" fsck.erofs --extract=/mnt/root --no-preserve-owner /mnt/root.erofs"#;

fn account(
    dirs: &Dirs,
    output: &Path,
    scratch: &Path,
    manifest: &build::Manifest,
) -> Result<(Vec<File>, u64)> {
    fs::create_dir_all(scratch)?;
    let image = scratch.join("root.erofs");
    if fs::hard_link(output.join("root.erofs"), &image).is_err() {
        fs::copy(output.join("root.erofs"), &image)?;
    }
    let key =
        manifest.steps.get("tools").and_then(|k| k.get(..16)).context("the manifest names the tools tree")?;
    let tools_tree = dirs.steps().join(format!("tools-{key}/tools"));
    if !tools_tree.is_dir() {
        bail!("the tools tree of this build is gone; build the image again");
    }
    let mut unpack = Command::new("unshare");
    unpack.args(["--mount", "--propagation", "private"]);
    if !tools::is_root() {
        unpack.arg("--map-root-user");
    }
    unpack.args(["sh", "-c", UNPACK, "unpack"]).arg(&tools_tree).arg(scratch);
    run::logged(&mut unpack, "unpacking the root", &scratch.join("log"))?;
    let mut files = Vec::new();
    list(&scratch.join("root"), "", &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((files, compressed_size(&tools_tree, &output.join("orlop.raw"))?))
}

fn list(root: &Path, at: &str, out: &mut Vec<File>) -> Result<()> {
    for entry in fs::read_dir(root.join(at))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if at.is_empty() { name } else { format!("{at}/{name}") };
        let meta = entry.metadata()?;
        if meta.is_dir() {
            list(root, &path, out)?;
        } else if meta.is_file() {
            let mut start = [0u8; 128];
            let n = fs::File::open(entry.path())?.read(&mut start)?;
            let executable = meta.permissions().mode() & 0o111 != 0;
            let script = start.starts_with(b"#!");
            let interpreter = script.then(|| report::interpreter(&start[..n]));
            let program = executable && (script || elf::is_elf(&start));
            out.push(File { path, size: meta.len(), program: program || executable, interpreter });
        } else if meta.is_symlink() {
            out.push(File { path, size: 0, program: false, interpreter: None });
        }
    }
    Ok(())
}

// The disk as it is shipped: zstd level 10, read in a stream because it is large and sparse.
fn compressed_size(tools_tree: &Path, disk: &Path) -> Result<u64> {
    let mut command = Command::new("unshare");
    command.args(["--mount"]);
    if !tools::is_root() {
        command.arg("--map-root-user");
    }
    command.arg("chroot").arg(tools_tree).args(["zstd", "-10", "-T0", "-q", "-c"]);
    let mut child = command.stdin(fs::File::open(disk)?).stdout(Stdio::piped()).spawn().context("zstd")?;
    let mut stdout = child.stdout.take().context("stdout is piped")?;
    let size = std::io::copy(&mut stdout, &mut std::io::sink())?;
    if !child.wait()?.success() {
        bail!("compressing the disk failed");
    }
    Ok(size)
}
