//! A real NFS server beside a cluster's control plane, for nodes whose kernel has a client: nfs-ganesha, in user space.
//!
//! What comes in: a cluster. What goes out: a directory that is exported, over version 4 and TCP alone. The server and what
//! it needs are the host distribution's packages, fetched by its apt and unpacked into the cache, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::libc::{SIGCONT, SIGSTOP};
use orlop_image::build::debs::{find_deb, unpack};

use super::plane::Cluster;
use crate::process::must;
use crate::run::{Run, cache_dir};
use crate::say;

/// Of the program in its supervisor.
const NAME: &str = "nfs";
/// What clients ask for.
pub const EXPORT: &str = "/export";
const PACKAGES: [&str; 2] = ["nfs-ganesha", "nfs-ganesha-vfs"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// What it says when it serves.
const SERVES: &str = "NFS SERVER INITIALIZED";

/// Where the server's files are.
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
    let root = ganesha(cluster.run())?;
    let dir = cluster.dir().join(NAME);
    let (files, state) = (dir.join("files"), dir.join("state"));
    for dir in [&files, &state] {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let config = dir.join("ganesha.conf");
    fs::write(&config, text(&root, &files, &state)).context("write the server's configuration")?;
    let path = |part: &str| root.join(part).display().to_string();
    let libraries = [path(LIBRARIES), path("lib/x86_64-linux-gnu"), path("usr/lib/ganesha")].join(":");
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

/// It answers nobody any more, and nobody hears that it is away; or it goes on.
///
/// # Errors
/// If its supervisor is gone.
pub fn silence(cluster: &mut Cluster, silent: bool) -> Result<()> {
    cluster.plane()?.signal(NAME, if silent { SIGSTOP } else { SIGCONT })
}

fn text(root: &Path, files: &Path, state: &Path) -> String {
    let plugins = root.join(LIBRARIES).join("ganesha");
    format!(
        "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = 2049; Enable_NLM = false; Enable_RQUOTA = false; \
         Enable_UDP = false; Plugins_Dir = {plugins:?}; mount_path_pseudo = true; }}\n\
         NFSv4 {{ Graceless = true; RecoveryBackend = fs_ng; RecoveryRoot = {state:?}; Minor_Versions = 0,1,2; \
         Only_Numeric_Owners = true; UseGetpwnam = true; DomainName = \"orlop.test\"; }}\n\
         EXPORT {{ Export_Id = 1; Path = {files:?}; Pseudo = {EXPORT:?}; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n"
    )
}

/// The packages that apt would install for the server, unpacked; what is installed on the host is used from there.
fn ganesha(run: &Arc<Run>) -> Result<PathBuf> {
    let cache = cache_dir().join("nfs-ganesha");
    if cache.is_dir() {
        return Ok(cache);
    }
    say::line("  fetching nfs-ganesha from the host's distribution");
    let mut list = Command::new("apt-get");
    list.args(["--print-uris", "--yes", "--no-install-recommends", "install"]).args(PACKAGES);
    let uris = must(run, &mut list)?;
    let names: Vec<&str> = uris.lines().filter_map(package).collect();
    ensure!(!names.is_empty(), "apt names no packages for {PACKAGES:?}: {uris}");
    let partial = cache.with_extension(format!("partial-{}", std::process::id()));
    let files = partial.join("files");
    fs::create_dir_all(&files).with_context(|| format!("make {}", files.display()))?;
    must(run, Command::new("apt-get").arg("download").args(&names).current_dir(&files))?;
    for name in names {
        unpack(&find_deb(&files, name)?, &partial.join("root"), &partial.join("log"))?;
    }
    let renamed = fs::rename(partial.join("root"), &cache);
    // Another run may have been faster.
    ensure!(renamed.is_ok() || cache.is_dir(), "rename to {}: {renamed:?}", cache.display());
    fs::remove_dir_all(&partial).with_context(|| format!("remove {}", partial.display()))?;
    Ok(cache)
}

/// `'URI' name_version_architecture.deb size digest`: the name.
fn package(line: &str) -> Option<&str> {
    line.strip_prefix('\'')?.split(' ').nth(1)?.split('_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_a_list() {
        let line = "'http://deb.example/pool/n/x_4.3-2_amd64.deb' x-y_4.3-2_amd64.deb 123 SHA256:00";
        assert_eq!(package(line), Some("x-y"));
        for other in ["Reading package lists...", "", "'only'"] {
            assert_eq!(package(other), None, "{other}");
        }
    }
}
