//! systemd-logind over the system bus: reports a pending shutdown, and delays it.
//!
//! In: calls. Out: logind's signals, a delay lock. Invariants: a lock lives as long as its [`DelayLock`]; a
//! session that has ended (the bus is gone, logind has another owner of its name) gets no further calls:
//! connect again. The interface is in logind's manual (`org.freedesktop.login1(5)`) and
//! systemd.dev/INHIBITOR_LOCKS; the texts of the lock are those of upstream's pkg/kubelet/nodeshutdown.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use zbus::connection::Builder;
use zbus::fdo::DBusProxy;
use zbus::{Connection, OwnedObjectPath, OwnedVariant, Variant};

use crate::files::{self, Durability};

/// Who is named as the holder of the lock.
const WHO: &str = "kubelet";
const WHY: &str = "Kubelet needs time to handle node shutdown";
const NAME: &str = "org.freedesktop.login1";
const UNIT: &str = "systemd-logind.service";
/// Name of the file that raises logind's limit.
const DROP_IN: &str = "99-kubelet.conf";
/// How long logind may take to read its configuration again.
const RELOAD_MAX: Duration = Duration::from_secs(5);
/// How long the bus or logind may take to answer; D-Bus' customary limit. A logind that runs and has lost its name is
/// asked in vain: the bus waits for it to start.
const ANSWER_MAX: Duration = Duration::from_secs(25);

/// What failed, and why.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    /// A call or the connection.
    #[error("{operation} of systemd-logind over the system bus")]
    Bus {
        /// What was asked.
        operation: &'static str,
        /// The bus' words.
        #[source]
        source: zbus::Error,
    },
    /// The limit could not be raised.
    #[error("raise logind's InhibitDelayMaxSec by a file in {directory}")]
    DropIn {
        /// Directory of the drop-in file.
        directory: String,
        /// The file system's words.
        #[source]
        source: files::FilesError,
    },
    /// logind gave a lock and does not list it: logind would not wait for the agent.
    #[error("systemd-logind gave a delay lock that ListInhibitors does not show; it is asked for a new one")]
    NotListed,
    /// The bus or logind went away.
    #[error("systemd-logind went away")]
    Gone,
}

#[zbus::proxy(
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1",
    interface = "org.freedesktop.login1.Manager"
)]
trait Login1 {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<zbus::OwnedFd>;

    fn list_inhibitors(&self) -> zbus::Result<Vec<Inhibitor>>;

    fn reboot(&self, interactive: bool) -> zbus::Result<()>;

    #[zbus(property(emits_changed_signal = "false"), name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> zbus::Result<u64>;

    #[zbus(property(emits_changed_signal = "false"))]
    fn preparing_for_shutdown(&self) -> zbus::Result<bool>;

    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;

    #[zbus(signal)]
    fn prepare_for_shutdown_with_metadata(
        &self,
        start: bool,
        metadata: HashMap<String, OwnedVariant>,
    ) -> zbus::Result<()>;
}

#[zbus::proxy(
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1",
    interface = "org.freedesktop.systemd1.Manager"
)]
trait Systemd1 {
    fn subscribe(&self) -> zbus::Result<()>;

    fn reload_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    #[zbus(signal)]
    fn job_removed(&self, id: u32, job: OwnedObjectPath, unit: String, result: String) -> zbus::Result<()>;
}

/// What, who, why, mode, user, process.
type Inhibitor = (String, String, String, String, u32, u32);

/// Delays the machine's stop while it lives.
#[derive(Debug)]
pub struct DelayLock(#[expect(dead_code, reason = "held, not read")] OwnedFd);

/// logind says that the machine is about to stop, or that it is not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// It is about to.
    pub stopping: bool,
    /// `reboot`, `poweroff`, `halt`, `kexec`, `soft-reboot`, …; empty where logind does not say it (before systemd 255).
    pub kind: String,
}

/// A connection to one logind.
pub struct Logind {
    connection: Connection,
    manager: Login1Proxy<'static>,
    plain: PrepareForShutdownStream,
    with_metadata: PrepareForShutdownWithMetadataStream,
    owner: zbus::fdo::NameOwnerChangedStream,
}

impl Logind {
    /// Connects and listens: no signal from now on is missed.
    ///
    /// # Errors
    /// There is no bus, or logind does not answer on it.
    pub async fn connect() -> Result<Logind, LogindError> {
        let failed = |operation| move |source| LogindError::Bus { operation, source };
        let built =
            tokio::time::timeout(ANSWER_MAX, Builder::system().method_timeout(ANSWER_MAX).build()).await;
        let built = built.unwrap_or_else(|late| Err(std::io::Error::from(late).into()));
        let connection = built.map_err(failed("connection"))?;
        let bus = DBusProxy::new(&connection).await.map_err(failed("connection"))?;
        let owner = bus.receive_name_owner_changed_with_args(&[(0, NAME)]).await;
        Logind::over(connection, owner.map_err(failed("owner"))?).await
    }

    async fn over(
        connection: Connection,
        owner: zbus::fdo::NameOwnerChangedStream,
    ) -> Result<Logind, LogindError> {
        let failed = |operation| move |source| LogindError::Bus { operation, source };
        let manager = Login1Proxy::new(&connection).await.map_err(failed("connection"))?;
        let plain = manager.receive_prepare_for_shutdown().await.map_err(failed("PrepareForShutdown"))?;
        let with_metadata = manager.receive_prepare_for_shutdown_with_metadata().await;
        let with_metadata = with_metadata.map_err(failed("PrepareForShutdownWithMetadata"))?;
        Ok(Logind { connection, manager, plain, with_metadata, owner })
    }

    /// Whether the machine is about to stop now.
    ///
    /// # Errors
    /// The bus' words.
    pub async fn is_stopping(&self) -> Result<bool, LogindError> {
        let failed = |source| LogindError::Bus { operation: "PreparingForShutdown", source };
        self.manager.preparing_for_shutdown().await.map_err(failed)
    }

    /// Takes a delay lock, and sees it in logind's list.
    ///
    /// # Errors
    /// The bus' words; none is given while the machine is stopping already. [`LogindError::NotListed`].
    pub async fn inhibit(&self) -> Result<DelayLock, LogindError> {
        let failed = |operation| move |source| LogindError::Bus { operation, source };
        let lock = self.manager.inhibit("shutdown", WHO, WHY, "delay").await.map_err(failed("Inhibit"))?;
        let list = self.manager.list_inhibitors().await.map_err(failed("ListInhibitors"))?;
        let own = std::process::id();
        let is_ours = |(what, who, _, mode, _, process): &Inhibitor| {
            what.split(':').any(|what| what == "shutdown") && who == WHO && mode == "delay" && *process == own
        };
        list.iter().any(is_ours).then(|| DelayLock(lock.into())).ok_or(LogindError::NotListed)
    }

    /// Asks for a reboot in order: logind waits for who holds a delay lock, then systemd stops the units.
    ///
    /// # Errors
    /// The bus' words; somebody blocks the reboot.
    pub async fn reboot(&self) -> Result<(), LogindError> {
        self.manager.reboot(false).await.map_err(|source| LogindError::Bus { operation: "Reboot", source })
    }

    /// Sees to it that logind waits for `needed` at least: where its limit is lower, a file in `drop_ins`
    /// (`/run/systemd/logind.conf.d`) raises it and logind reads its configuration again. The limit that it has then.
    ///
    /// # Errors
    /// The file, or the bus' words. A limit that stays too low is no error here.
    pub async fn raise_limit(&self, needed: Duration, drop_ins: &Path) -> Result<Duration, LogindError> {
        let limit = self.limit().await?;
        if limit >= needed {
            return Ok(limit);
        }
        let written = files::make_dir(drop_ins, 0o755).and_then(|()| {
            let text = format!(
                "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n",
                needed.as_secs() + u64::from(needed.subsec_nanos() > 0)
            );
            files::write_atomic(&drop_ins.join(DROP_IN), text.as_bytes(), 0o644, Durability::Rebuildable)
        });
        written
            .map_err(|source| LogindError::DropIn { directory: drop_ins.display().to_string(), source })?;
        // A reload that takes too long is seen by the limit, which is read in any case.
        if let Ok(reloaded) = tokio::time::timeout(RELOAD_MAX, self.reload()).await {
            reloaded.map_err(|source| LogindError::Bus { operation: "ReloadUnit", source })?;
        }
        self.limit().await
    }

    /// Has logind read its configuration again, and waits until it has.
    async fn reload(&self) -> zbus::Result<()> {
        let systemd = Systemd1Proxy::new(&self.connection).await?;
        let mut removed = systemd.receive_job_removed().await?;
        // Without it systemd sends no signals of jobs.
        systemd.subscribe().await?;
        let job = systemd.reload_unit(UNIT, "replace").await?;
        while let Some(signal) = removed.next().await {
            if signal.args()?.job == job {
                break;
            }
        }
        Ok(())
    }

    async fn limit(&self) -> Result<Duration, LogindError> {
        let failed = |source| LogindError::Bus { operation: "InhibitDelayMaxUSec", source };
        self.manager.inhibit_delay_max_usec().await.map(Duration::from_micros).map_err(failed)
    }

    /// Waits for logind's next signal. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`LogindError::Gone`]: connect again.
    pub async fn next(&mut self) -> Result<Announced, LogindError> {
        tokio::select! {
            // The one with metadata comes first; the other one says the same again.
            biased;
            signal = self.with_metadata.next() => {
                let signal = signal.ok_or(LogindError::Gone)?;
                let failed = |source| LogindError::Bus { operation: "PrepareForShutdownWithMetadata", source };
                let args = signal.args().map_err(failed)?;
                let kind = args.metadata.get("type").map(|kind| text(kind)).unwrap_or_default();
                Ok(Announced { stopping: args.start, kind })
            }
            signal = self.plain.next() => {
                let signal = signal.ok_or(LogindError::Gone)?;
                let failed = |source| LogindError::Bus { operation: "PrepareForShutdown", source };
                let args = signal.args().map_err(failed)?;
                Ok(Announced { stopping: args.start, kind: String::new() })
            }
            _ = self.owner.next() => Err(LogindError::Gone),
        }
    }
}

fn text(value: &Variant<'_>) -> String {
    match value {
        Variant::Str(text) => text.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
