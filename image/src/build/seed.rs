//! The containerd seed: the package tree's own containerd, run in a private mount namespace, imports the baked-in
//! images; its directory becomes `/usr/share/orlop/containerd-seed`. Times and random names in its databases are
//! made canonical (`crate::bolt`), so the same images give the same bytes.

use super::{Builder, containers, namespaced};
use crate::bolt;
use crate::host::{run, tools};
use crate::plan::BuildStep;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs inside `unshare --mount`: $1 package tree, $2 scratch, $3... images. containerd says `READY=1` to us
/// ($NOTIFY_SOCKET); a line on standard input then reports it to the script.
const SCRIPT: &str = r#"
set -e
tree=$1 scratch=$2; shift 2
mount --bind "$tree" "$tree"
mount -t tmpfs -o mode=755 tmpfs "$tree/run"
mount -t tmpfs -o mode=755 tmpfs "$tree/var/lib"
mkdir -p "$tree/run/images" "$tree/var/lib/containerd"
mount --rbind /dev "$tree/dev"
mount --rbind /proc "$tree/proc"
mount --bind "$scratch/state" "$tree/var/lib/containerd"
mount --bind "$scratch/images" "$tree/run/images"
cp "$scratch/config.toml" "$tree/run/config.toml"
chroot "$tree" /usr/bin/containerd --config /run/config.toml &
daemon=$!
trap 'kill $daemon 2>/dev/null; wait $daemon || true' EXIT
ctr="chroot $tree /usr/bin/ctr --address /run/containerd/containerd.sock --namespace k8s.io"
read -r ready
for image in "$@"; do
    $ctr images import --local --snapshotter overlayfs "/run/images/$image"
done
# The archives' index files were stored too, and nothing refers to them: a synchronous removal collects them now
# instead of on the node.
$ctr images tag "$(cat "$scratch/first")" localhost/orlop/collect:1
$ctr images rm --sync localhost/orlop/collect:1
$ctr images ls
kill $daemon
wait $daemon || true
trap - EXIT
"#;

/// Only what an import needs; no CRI.
const CONFIG: &str = r#"version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images',
    'io.containerd.cri.v1.runtime', 'io.containerd.nri.v1.nri', 'io.containerd.snapshotter.v1.erofs',
    'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.btrfs',
    'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.native',
    'io.containerd.snapshotter.v1.zfs', 'io.containerd.differ.v1.erofs', 'io.containerd.internal.v1.opt',
    'io.containerd.monitor.task.v1.cgroups', 'io.containerd.monitor.container.v1.restart']
"#;

/// What of containerd's directory is kept.
const KEEP: [&str; 3] = [
    "io.containerd.content.v1.content",
    "io.containerd.metadata.v1.bolt",
    "io.containerd.snapshotter.v1.overlayfs",
];

/// Writes `out/seed`.
pub(super) fn build(builder: &Builder, out: &Path) -> Result<String> {
    check_namespaces(builder)?;
    let scratch = builder.dirs.work().join("seed-scratch");
    super::remove_tree(&scratch)?;
    fs::create_dir_all(scratch.join("state"))?;
    fs::create_dir_all(scratch.join("images"))?;
    fs::write(scratch.join("config.toml"), CONFIG)?;
    fs::write(scratch.join("first"), containers::IMAGES[0].1)?;
    let images = builder.result(BuildStep::Containers)?;
    let mut names = Vec::new();
    for (name, _, _) in containers::IMAGES {
        let file = format!("{name}.tar");
        fs::copy(images.join(&file), scratch.join("images").join(&file))?;
        names.push(file);
    }
    let mut command = namespaced();
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "seed"]);
    command.arg(builder.result(BuildStep::Base)?.join("base")).arg(&scratch).args(&names);
    import(builder, command)?;
    let seed = out.join("seed");
    for dir in KEEP {
        let from = scratch.join("state").join(dir);
        if !from.is_dir() {
            bail!("containerd left no {dir}; its log: {}", builder.log.display());
        }
        fs::create_dir_all(&seed)?;
        run::logged(
            Command::new("cp").arg("-a").arg(&from).arg(seed.join(dir)),
            "keeping the seed",
            &builder.log,
        )?;
    }
    // Manifest, configuration and layer of each; more would be collected on the node and look like a loss there.
    let blobs = fs::read_dir(seed.join("io.containerd.content.v1.content/blobs/sha256"))?.count();
    if blobs != 3 * containers::IMAGES.len() {
        bail!("the seed has {blobs} blobs, not 3 for each of {} images", containers::IMAGES.len());
    }
    let _ = fs::remove_dir_all(seed.join("io.containerd.content.v1.content/ingest"));
    fs::create_dir_all(seed.join("io.containerd.content.v1.content/ingest"))?;
    for db in ["io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"]
    {
        let path = seed.join(db);
        let data = fs::read(&path).with_context(|| format!("reading {db}"))?;
        let tree = bolt::read(&data).with_context(|| format!("reading {db}"))?;
        fs::write(&path, bolt::write(&bolt::canonical(tree)).with_context(|| format!("writing {db}"))?)?;
    }
    Ok(String::new())
}

/// Longest start of containerd that is waited for.
const READY_WITHIN: Duration = Duration::from_secs(120);

fn import(builder: &Builder, mut command: Command) -> Result<()> {
    const WHAT: &str = "importing the baked-in images with containerd";
    // An abstract socket is reachable from the changed root.
    let name = format!("orlop-seed-{}", std::process::id());
    let socket =
        UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?).context("making a socket")?;
    socket.set_read_timeout(Some(READY_WITHIN))?;
    let log = fs::File::options().create(true).append(true).open(&builder.log)?;
    command.env("NOTIFY_SOCKET", format!("@{name}")).stdin(Stdio::piped());
    let mut child = command.stdout(log.try_clone()?).stderr(log).spawn().context(WHAT)?;
    let mut stdin = child.stdin.take().context("stdin is piped")?;
    let mut buffer = [0u8; 4096];
    let ready = loop {
        match socket.recv(&mut buffer) {
            Ok(n) if buffer[..n].windows(7).any(|w| w == b"READY=1") => break true,
            Ok(_) => {}
            Err(_) => break false,
        }
    };
    if ready {
        stdin.write_all(b"ready\n").context(WHAT)?;
    }
    // Closed without a line, `read` fails and the script ends containerd.
    drop(stdin);
    let status = child.wait().context(WHAT)?;
    if !status.success() {
        bail!("{WHAT}: {status}\n{}\nThe whole log: {}", run::tail(&builder.log), builder.log.display());
    }
    Ok(())
}

fn check_namespaces(builder: &Builder) -> Result<()> {
    let mut probe = namespaced();
    probe.arg("true");
    if run::logged(&mut probe, "making a namespace", &builder.log).is_err() && !tools::is_root() {
        bail!(
            "the baked-in images are unpacked by the image's own containerd in a user namespace, and this machine \
             does not let you make one; run the build as root, or allow it: sudo sysctl -w \
             kernel.apparmor_restrict_unprivileged_userns=0"
        );
    }
    Ok(())
}
