//! Network disks (iSCSI, Fibre Channel): attaching and detaching their devices.
//!
//! In: a [`NetworkDisk`], a [`Record`]. Out: calls of programs (`iscsiadm`, `multipath`, `blockdev`), writes to sysfs.
//! Invariants: a log-in or log-out needs the target's turn; a session ends only if no other record uses it; a device
//! that another record uses is not removed; only `iscsiadm` gets the Secret. The decisions are
//! `agent_volumes::network_disk`'s.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_linux::files::FilesError;
use agent_linux::scsi::Scsi;
use agent_linux::volumes::{disk, network_disk as on_disk};
use agent_volumes::network_disk::fc::{self, Fc, FcPath};
use agent_volumes::network_disk::iscsi::{self, Chap, Command, Iscsi, Link};
use agent_volumes::network_disk::login::{LINK_LIMIT_S, Login, LoginStep, ProgramFailure};
use agent_volumes::network_disk::source::Target;
use agent_volumes::network_disk::{NetworkDisk, Record, missing_program, shares_session, shares_unit};

use crate::pods::execute::programs::{self, Failed};
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;
use crate::tasks::stops::AgentStops;
use crate::volumes::csi::Csi;

/// Pause between two looks for a link.
const LOOK: Duration = Duration::from_millis(250);
/// The same for a device that joins several paths.
const LOOK_JOINED: Duration = Duration::from_secs(1);
/// Time limit of one program. iscsiadm gives up a portal by itself after two minutes.
const PROGRAM_LIMIT: Duration = Duration::from_secs(180);
const MULTIPATH: &str = "multipath";

/// Looks at SCSI devices on a thread for blocking work.
async fn see<T: Send + 'static>(
    tasks: &Tasks,
    look: impl FnOnce(&Scsi) -> Result<T, FilesError> + Send + 'static,
) -> Result<T, String> {
    let seen = tasks.blocking(move || look(&Scsi::default())).await.ok_or(AgentStops)?;
    seen.map_err(|e| chain(&e))
}

async fn run(program: &str, arguments: &[String]) -> Result<String, Failed> {
    match tokio::time::timeout(PROGRAM_LIMIT, programs::output(program, arguments)).await {
        Ok(ended) => ended,
        Err(_) => Err(Failed::late(PROGRAM_LIMIT)),
    }
}

async fn program_output(program: &str, arguments: &[&str]) -> Result<String, Failed> {
    let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
    run(program, &arguments).await
}

/// Attaches a disk; returns its device.
///
/// # Errors
/// The reason why there is no device.
pub(crate) async fn attach(
    disk: &NetworkDisk,
    chap: Chap,
    csi: &Csi,
    tasks: &Tasks,
) -> Result<String, String> {
    let device = match &disk.target {
        Target::Iscsi(iscsi) => {
            let _turn = csi.volumes.turn_at_target(&iscsi.iqn).await.ok_or(AgentStops)?;
            log_in(Login::new(iscsi, &disk.volume, chap), iscsi, tasks).await?
        }
        Target::Fc(fc) => find(fc, tasks).await?,
    };
    // Return the device itself: its links may vanish earlier.
    see(tasks, move |_| Ok(std::fs::canonicalize(&device).map_or(device, |path| path.display().to_string())))
        .await
}

async fn log_in(mut login: Login, iscsi: &Iscsi, tasks: &Tasks) -> Result<String, String> {
    loop {
        match login.step() {
            LoginStep::Run(command) => {
                let ended = run(iscsi::PROGRAM, &command.arguments).await;
                if let Err(failed) = &ended {
                    if failed.missing {
                        return Err(missing_program(iscsi::PROGRAM));
                    }
                    // The message may contain the secret.
                    let words = if command.is_secret() { "" } else { failed.words.trim() };
                    tracing::info!(%command, why = failed.why, words, "no success");
                }
                login.ended(ended.map_err(|Failed { code, why, words, .. }| ProgramFailure {
                    code,
                    why,
                    words,
                }));
            }
            LoginStep::Hosts => {
                let iqn = iscsi.iqn.clone();
                login.hosts(see(tasks, move |scsi| scsi.portal_hosts(&iqn)).await?);
            }
            LoginStep::Scan(host) => {
                let lun = iscsi.lun;
                login.scanned(see(tasks, move |scsi| scsi.scan(host, lun)).await);
            }
            LoginStep::AwaitLink(link) => login.linked(await_link(link, tasks).await?),
            LoginStep::AwaitJoined(paths, times) => login.joined(await_joined(paths, times, tasks).await?),
            LoginStep::Done(device) => return Ok(device),
            LoginStep::Failed(why) => return Err(why),
        }
    }
}

async fn await_link(link: Link, tasks: &Tasks) -> Result<Option<String>, String> {
    let until = tasks.now().mono.after(Duration::from_secs(u64::from(LINK_LIMIT_S)));
    loop {
        let of = link.clone();
        let found = see(tasks, move |scsi| {
            let names = scsi.links(fc::BY_PATH)?;
            Ok(of.choose(&names).and_then(|name| scsi.follow(fc::BY_PATH, name)))
        });
        if let Some(path) = found.await? {
            return Ok(Some(path.display().to_string()));
        }
        let now = tasks.now().mono;
        if now >= until {
            return Ok(None);
        }
        tasks.wait_until(now.after(LOOK)).await;
    }
}

async fn await_joined(paths: Vec<String>, times: u32, tasks: &Tasks) -> Result<Option<String>, String> {
    for time in 1..=times {
        let of = paths.clone();
        let found = see(tasks, move |scsi| {
            let mut joined = None;
            for path in &of {
                joined = joined.or(scsi.joined(Path::new(path))?);
            }
            Ok(joined)
        });
        if let Some(device) = found.await? {
            return Ok(Some(device));
        }
        if time < times {
            tasks.wait_until(tasks.now().mono.after(LOOK_JOINED)).await;
        }
    }
    Ok(None)
}

/// Paths of a disk that a fabric shows.
fn paths(scsi: &Scsi, fc: &Fc) -> Result<Vec<FcPath>, FilesError> {
    let names = scsi.links(fc.links())?;
    let devices = fc.choose(&names).into_iter().filter_map(|name| scsi.follow(fc.links(), name));
    let found = devices.map(|path| {
        let joined = scsi.joined(&path)?;
        Ok(FcPath { path: path.display().to_string(), joined })
    });
    found.collect()
}

async fn find(fc: &Fc, tasks: &Tasks) -> Result<String, String> {
    let of = fc.clone();
    let found = see(tasks, move |scsi| {
        let found = paths(scsi, &of)?;
        if found.iter().any(|f| f.joined.is_some()) {
            return Ok(found);
        }
        // More paths may appear: a device that joins the paths is better than one path.
        scsi.scan_all()?;
        paths(scsi, &of)
    });
    fc::device(&found.await?).ok_or_else(|| fc::NOT_FOUND.to_owned())
}

/// Unmounts and detaches a disk that no pod uses, and removes its files and its record.
///
/// # Errors
/// The step that failed; a repeated call continues there.
pub(crate) async fn detach(record: &Record, root: &Path, csi: &Csi, tasks: &Tasks) -> Result<(), String> {
    let (of, at) = (record.clone(), root.to_owned());
    let unmounted = see(tasks, move |_| {
        on_disk::unmount(&of)?;
        // The cluster may attach the disk to another node next, and later to this node again.
        disk::forget(&at, Path::new(&of.global))
    });
    unmounted.await?;
    match &record.target {
        Target::Iscsi(iscsi) => {
            let _turn = csi.volumes.turn_at_target(&iscsi.iqn).await.ok_or(AgentStops)?;
            let others = records(root, tasks).await?;
            if !shares_unit(record, &others) {
                let (iqn, lun) = (iscsi.iqn.clone(), iscsi.lun);
                let devices = see(tasks, move |scsi| scsi.devices_of(&iqn, lun)).await?;
                // After the log-out the devices are gone anyway, so a device that cannot be removed is only logged.
                if let Err(why) = take_away(devices, false, tasks).await {
                    tracing::warn!(target = iscsi.iqn, lun = iscsi.lun, why, "devices are not taken away");
                }
            }
            if !shares_session(record, &others) {
                log_out(iscsi, &record.volume, tasks).await?;
            }
        }
        Target::Fc(of) => {
            let others = records(root, tasks).await?;
            if !shares_unit(record, &others) {
                let of = of.clone();
                let devices = see(tasks, move |scsi| {
                    let mut devices = Vec::new();
                    for FcPath { path, joined } in paths(scsi, &of)? {
                        match joined {
                            Some(joined) => devices.extend(scsi.parts(&joined)?),
                            None => devices.extend(path.strip_prefix("/dev/").map(str::to_owned)),
                        }
                    }
                    Ok(devices)
                });
                take_away(devices.await?, true, tasks).await?;
            }
        }
    }
    let of = record.clone();
    see(tasks, move |_| on_disk::forget(&of)).await
}

async fn records(root: &Path, tasks: &Tasks) -> Result<Vec<Record>, String> {
    let root: PathBuf = root.to_owned();
    see(tasks, move |_| on_disk::records(&root)).await
}

/// Removes SCSI devices, and before that the devices that join them. `flush`: writes their caches out first.
async fn take_away(mut devices: Vec<String>, flush: bool, tasks: &Tasks) -> Result<(), String> {
    devices.sort_unstable();
    devices.dedup();
    let of = devices.clone();
    let joined = see(tasks, move |scsi| {
        let mut joined = BTreeSet::new();
        for device in &of {
            joined.extend(scsi.joined(&Path::new("/dev").join(device))?);
        }
        Ok(joined)
    });
    let mut failure = None;
    for device in joined.await? {
        if let Err(failed) = program_output(MULTIPATH, &["-f", &device]).await {
            let why = if failed.missing { missing_program(MULTIPATH) } else { failed.words };
            failure = Some(format!("failed to flush multipath device {device}: {}", why.trim()));
        }
    }
    if let Some(why) = failure.take_if(|_| flush) {
        return Err(why);
    }
    for device in devices {
        if flush
            && let Err(failed) = program_output("blockdev", &["--flushbufs", &format!("/dev/{device}")]).await
        {
            tracing::warn!(
                device,
                why = failed.why,
                words = failed.words.trim(),
                "what it holds is not written out"
            );
        }
        if let Err(why) = see(tasks, move |scsi| scsi.delete(&device)).await {
            failure = Some(why);
        }
    }
    failure.map_or(Ok(()), Err)
}

async fn log_out(iscsi: &Iscsi, volume: &str, tasks: &Tasks) -> Result<(), String> {
    let failed = |command: &Command, failed: Failed| {
        let Failed { why, words, .. } = failed;
        format!("iscsi: failed to detach disk: {command}: {} ({why})", words.trim())
    };
    for command in iscsi.logout(volume) {
        match run(iscsi::PROGRAM, &command.arguments).await {
            Ok(_) => {}
            Err(e) if iscsi::is_gone(e.code) => {}
            Err(e) if e.missing => {
                let iqn = iscsi.iqn.clone();
                let sessions = see(tasks, move |scsi| scsi.portal_hosts(&iqn)).await?;
                // Without the program there never was a session, or the machine has restarted.
                return if sessions.is_empty() { Ok(()) } else { Err(missing_program(iscsi::PROGRAM)) };
            }
            Err(e) => return Err(failed(&command, e)),
        }
    }
    Ok(())
}
