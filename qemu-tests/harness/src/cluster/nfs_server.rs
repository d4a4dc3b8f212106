//! A real NFS server next to a cluster's control plane, for nodes whose kernel has a client: nfs-ganesha, in user
//! space.
//!
//! In: a cluster. Out: an exported directory, over version 4 and TCP only. The server and its dependencies are
//! packages of the host's distribution, downloaded by its apt and unpacked into the cache, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::libc::{SIGCONT, SIGSTOP};

use super::host_debs;
use super::plane::Cluster;

/// Name of the program in its supervisor.
const NAME: &str = "nfs";
/// The exported path.
pub const EXPORT: &str = "/export";
const PACKAGES: [&str; 2] = ["nfs-ganesha", "nfs-ganesha-vfs"];
/// Its message when it serves.
const SERVES: &str = "NFS SERVER INITIALIZED";

/// Directories of the server.
#[derive(Debug)]
pub struct NfsServer {
    /// The directory that it exports.
    pub files: PathBuf,
}

/// Starts it and waits until it serves.
///
/// # Errors
/// If it cannot be had, or ends.
pub fn start(cluster: &mut Cluster, logs: &Path) -> Result<NfsServer> {
    let root = host_debs::unpacked(cluster.run(), &PACKAGES)?;
    let dir = cluster.dir().join(NAME);
    let (files, state) = (dir.join("files"), dir.join("state"));
    for dir in [&files, &state] {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let config = dir.join("ganesha.conf");
    fs::write(&config, text(&root, &files, &state)).context("write the server's configuration")?;
    let path = |part: &str| root.join(part).display().to_string();
    let libraries = [host_debs::library_path(&root), path("usr/lib/ganesha")].join(":");
    let log = logs.join("ganesha.log");
    let argv = [
        &path("usr/bin/ganesha.nfsd"),
        "-F",
        "-L",
        &log.display().to_string(),
        "-f",
        &config.display().to_string(),
        "-p",
        &dir.join("pid").display().to_string(),
        "-N",
        "EVENT",
    ]
    .map(str::to_owned);
    let plane = cluster.plane()?;
    plane.start_program(NAME, &argv, &[("LD_LIBRARY_PATH", &libraries)])?;
    for _ in 0..600 {
        if fs::read_to_string(&log).unwrap_or_default().contains(SERVES) {
            return Ok(NfsServer { files });
        }
        ensure!(plane.is_running(NAME), "the NFS server ended: {}", log.display());
        plane.pass(Duration::from_millis(100))?;
    }
    anyhow::bail!("the NFS server does not serve after a minute: {}", log.display())
}

/// Stops the server with SIGSTOP, so that clients get no answer and no error; or continues it.
///
/// # Errors
/// If its supervisor is gone.
pub fn silence(cluster: &mut Cluster, silent: bool) -> Result<()> {
    cluster.plane()?.signal(NAME, if silent { SIGSTOP } else { SIGCONT })
}

fn text(root: &Path, files: &Path, state: &Path) -> String {
    let plugins = root.join("usr/lib/x86_64-linux-gnu/ganesha");
    format!(
        "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = 2049; Enable_NLM = false; Enable_RQUOTA = false; \
         Enable_UDP = false; Plugins_Dir = {plugins:?}; mount_path_pseudo = true; }}\n\
         NFSv4 {{ Graceless = true; RecoveryBackend = fs_ng; RecoveryRoot = {state:?}; Minor_Versions = 0,1,2; \
         Only_Numeric_Owners = true; UseGetpwnam = true; DomainName = \"orlop.test\"; }}\n\
         EXPORT {{ Export_Id = 1; Path = {files:?}; Pseudo = {EXPORT:?}; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n"
    )
}
