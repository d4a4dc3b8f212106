//! Slices of systemd over D-Bus: systemd is the one writer of a hierarchy that it owns, so it must know what we make.
//!
//! In: names and values. Out: transient slices with the properties that stand for the values. Invariants: a slice that is
//! there is changed, not replaced; a job is over before its call returns; no call takes longer than `CALL_MAX`; a
//! connection that broke is made again. systemd's own socket would be there before the bus, but on it systemd signs its
//! messages with a name that is no sender's, which zbus does not read. `org.freedesktop.systemd1(5)`,
//! systemd.resource-control(5); upstream: github.com/opencontainers/cgroups/systemd.

use std::num::NonZeroUsize;
use std::time::Duration;

use agent_types::failure::{Class, DriverError};
use agent_types::resources::cgroups::{CgroupName, CgroupValues};
use futures_util::StreamExt;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;
use zbus::message::Type;
use zbus::{Connection, MatchRule, MessageStream, OwnedObjectPath, Variant};

/// What systemd may take for one slice, as upstream has it.
const CALL_MAX: Duration = Duration::from_secs(30);
/// Calls at once: a job's end is heard by all of them.
const CALLS_MAX: usize = 8;
/// Signals that wait to be looked at; far more than jobs end while one call is under way.
const QUEUED_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// No limit (`CPUQuotaPerSecUSec`).
const INFINITY: u64 = u64::MAX;
const SECOND_US: u64 = 1_000_000;

#[zbus::proxy(
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1",
    interface = "org.freedesktop.systemd1.Manager"
)]
trait Manager {
    fn subscribe(&self) -> zbus::Result<()>;

    fn set_unit_properties(
        &self,
        name: &str,
        runtime: bool,
        properties: &[(&str, Variant<'_>)],
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    fn job_removed(&self, id: u32, job: OwnedObjectPath, unit: String, result: String) -> zbus::Result<()>;
}

/// A way to systemd, made when it is needed.
pub(super) struct Systemd {
    manager: Mutex<Option<ManagerProxy<'static>>>,
    calls: Semaphore,
}

impl Systemd {
    /// Of this machine.
    pub(super) fn of_machine() -> Systemd {
        Systemd { manager: Mutex::new(None), calls: Semaphore::new(CALLS_MAX) }
    }

    /// One that is connected to.
    #[cfg(test)]
    pub(super) async fn over(connection: Connection) -> Systemd {
        let systemd = Systemd::of_machine();
        *systemd.manager.lock().await = Some(subscribed(connection).await.unwrap());
        systemd
    }

    /// Makes the slice with these values, or gives it them.
    pub(super) async fn apply(&self, name: &CgroupName, values: &CgroupValues) -> Result<(), DriverError> {
        let request = Request::Apply { slice: of_slice(name), values: of_values(values) };
        self.call("start slice", &name.unit(), &request).await
    }

    /// Stops the slice and what is left in it.
    pub(super) async fn stop(&self, name: &CgroupName) -> Result<(), DriverError> {
        self.call("stop slice", &name.unit(), &Request::Stop).await
    }

    async fn call(&self, operation: &'static str, unit: &str, request: &Request) -> Result<(), DriverError> {
        let failed =
            |class, message: String| DriverError { operation, object: unit.to_owned(), class, message };
        let unavailable = Class::Retryable { after_ms: 0 };
        let _one_of_few = self.calls.acquire().await.map_err(|e| failed(unavailable, e.to_string()))?;
        let mut again = true;
        loop {
            let sent = timeout(CALL_MAX, async { request.send(&self.manager().await?, unit).await }).await;
            let silence = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            match sent.unwrap_or_else(|_| silence()) {
                Ok(()) => return Ok(()),
                Err(error @ (zbus::Error::MethodError(..) | zbus::Error::Failure(_))) => {
                    return Err(failed(Class::Invalid, error.to_string()));
                }
                // The connection of yesterday: systemd was replaced meanwhile.
                Err(error) => {
                    *self.manager.lock().await = None;
                    if !std::mem::take(&mut again) {
                        return Err(failed(unavailable, error.to_string()));
                    }
                }
            }
        }
    }

    async fn manager(&self) -> zbus::Result<ManagerProxy<'static>> {
        let mut manager = self.manager.lock().await;
        if let Some(manager) = manager.as_ref() {
            return Ok(manager.clone());
        }
        let mut connection = Connection::system().await?;
        connection.set_max_queued(QUEUED_MAX);
        let made = subscribed(connection).await?;
        *manager = Some(made.clone());
        Ok(made)
    }
}

/// Without a subscription systemd sends no signals of jobs.
async fn subscribed(connection: Connection) -> zbus::Result<ManagerProxy<'static>> {
    let manager = ManagerProxy::new(&connection).await?;
    manager.subscribe().await?;
    Ok(manager)
}

/// The ends of jobs: broadcasts of systemd alone, because the rule names the sender, and whatever a peer sends to us itself. The
/// proxy's own stream would compare senders, and ask the bus for that who has the name and who gets it: two more questions
/// before each slice. The sender of the job's answer does as well.
async fn job_ends(connection: &Connection) -> zbus::Result<MessageStream> {
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender("org.freedesktop.systemd1")
        .path("/org/freedesktop/systemd1")
        .interface("org.freedesktop.systemd1.Manager")
        .member("JobRemoved")
        .build()?;
    MessageStream::for_match_rule(rule, connection, Some(QUEUED_MAX)).await
}

fn is(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(found, ..) if found.as_str() == name)
}

/// What is asked for a slice.
enum Request {
    /// Make it, or change it.
    Apply {
        /// What makes it ours.
        slice: Properties,
        /// What it is given.
        values: Properties,
    },
    /// Stop it.
    Stop,
}

impl Request {
    async fn send(&self, manager: &ManagerProxy<'static>, unit: &str) -> zbus::Result<()> {
        // Before the call: its job may be over before its answer is read.
        let mut removed = job_ends(manager.inner().connection()).await?;
        let systemd = manager.inner();
        let answer = match self {
            Request::Apply { slice, values } => {
                let all: Properties = slice.iter().chain(values).cloned().collect();
                let aux: &[(&str, Properties)] = &[];
                match systemd.call_method("StartTransientUnit", &(unit, "replace", all, aux)).await {
                    Err(error) if is(&error, UNIT_EXISTS) && values.is_empty() => return Ok(()),
                    Err(error) if is(&error, UNIT_EXISTS) => {
                        return manager.set_unit_properties(unit, true, values).await;
                    }
                    answer => answer?,
                }
            }
            Request::Stop => match systemd.call_method("StopUnit", &(unit, "replace")).await {
                Err(error) if is(&error, NO_SUCH_UNIT) => return Ok(()),
                answer => answer?,
            },
        };
        let job: OwnedObjectPath = answer.body().deserialize()?;
        while let Some(message) = removed.next().await {
            let message = message?;
            if message.header().sender() != answer.header().sender() {
                continue;
            }
            let Some(signal) = JobRemoved::from_message(message) else { continue };
            let args = signal.args()?;
            if args.job == job {
                return match args.result.as_str() {
                    "done" => Ok(()),
                    result => Err(zbus::Error::Failure(format!("systemd's job ended with {result:?}"))),
                };
            }
        }
        let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        Err(zbus::Error::InputOutput(gone.into()))
    }
}

type Properties = Vec<(&'static str, Variant<'static>)>;

/// The properties that each slice of ours has, in addition to its values.
fn of_slice(name: &CgroupName) -> Properties {
    let above = name.parent().unwrap_or_default().unit();
    vec![
        ("Description", Variant::from(format!("cgroup {name} of the kubelet"))),
        ("Wants", Variant::from(vec![above])),
        // It must not be stopped with the first units of a shutdown: pods are ended in their own order.
        ("DefaultDependencies", Variant::from(false)),
        ("CPUAccounting", Variant::from(true)),
        ("MemoryAccounting", Variant::from(true)),
        ("IOAccounting", Variant::from(true)),
        ("TasksAccounting", Variant::from(true)),
    ]
}

/// The values that systemd has properties for.
fn of_values(values: &CgroupValues) -> Properties {
    let mut properties = Properties::new();
    let mut number = |name: &'static str, value: Option<u64>| {
        properties.extend(value.map(|value| (name, Variant::from(value))));
    };
    number("CPUWeight", values.cpu_weight);
    number("CPUQuotaPeriodUSec", values.cpu_max.map(|max| max.period_us));
    number(
        "CPUQuotaPerSecUSec",
        values.cpu_max.map(|max| match (max.quota_us, max.period_us) {
            (None, _) | (_, 0) => INFINITY,
            (Some(quota), period) => quota.saturating_mul(SECOND_US).div_ceil(period),
        }),
    );
    number("MemoryMax", values.memory_max);
    number("MemoryMin", values.memory_min);
    number("MemoryLow", values.memory_low);
    // It takes no 0: one task is as good as none.
    number("TasksMax", values.pids_max.map(|pids| pids.max(1)));
    if let Some(mask) = values.cpus.as_deref().and_then(mask) {
        properties.push(("AllowedCPUs", Variant::from(mask)));
    }
    properties
}

/// A list of processors as a mask, the lowest ones in the first byte.
fn mask(cpus: &str) -> Option<Vec<u8>> {
    let mut mask = Vec::new();
    for cpu in orlop_config::formats::parse_cpu_list(cpus)? {
        let cpu = usize::try_from(cpu).ok()?;
        if mask.len() <= cpu / 8 {
            mask.resize(cpu / 8 + 1, 0u8);
        }
        mask[cpu / 8] |= 1 << (cpu % 8);
    }
    Some(mask)
}

#[cfg(test)]
mod tests;
