//! Against a systemd at the other end of a socket.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex as Shared};

use agent_types::resources::cgroups::CpuMax;
use zbus::OwnedVariant;
use zbus::connection::Builder;
use zbus::object_server::SignalEmitter;

use super::*;

#[derive(Clone, Default)]
struct Fake {
    said: Arc<Shared<Vec<String>>>,
    units: Arc<Shared<BTreeSet<String>>>,
    /// How the next job ends.
    result: Arc<Shared<&'static str>>,
}

#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum Refused {
    #[zbus(error)]
    ZBus(zbus::Error),
    UnitExists(String),
    NoSuchUnit(String),
}

fn text(properties: &[(String, OwnedVariant)]) -> String {
    let names = properties.iter().map(|(name, value)| match &**value {
        Variant::U64(number) => format!("{name}={number}"),
        Variant::Bool(flag) => format!("{name}={flag}"),
        Variant::Str(text) => format!("{name}={text}"),
        Variant::Array(list) => format!(
            "{name}={}",
            list.iter()
                .map(|v| match v {
                    Variant::U8(n) => n.to_string(),
                    Variant::Str(s) => s.to_string(),
                    _ => "?".to_owned(),
                })
                .collect::<Vec<_>>()
                .join(",")
        ),
        _ => format!("{name}=?"),
    });
    names.filter(|property| !property.contains("Accounting")).collect::<Vec<_>>().join(" ")
}

impl Fake {
    fn say(&self, text: String) {
        self.said.lock().unwrap().push(text);
    }

    async fn job(&self, unit: &str, emitter: &SignalEmitter<'_>) -> OwnedObjectPath {
        let job = |id: u32| OwnedObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{id}")).unwrap();
        let result = std::mem::replace(&mut *self.result.lock().unwrap(), "done");
        let result = if result.is_empty() { "done" } else { result };
        // What another peer of the bus says of the job does not count.
        let (path, manager) = ("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
        let forged = zbus::Message::signal(path, manager, "JobRemoved").sender(":1.9");
        let forged = forged.build(&(2_u32, job(2), unit, "canceled")).unwrap();
        emitter.connection().send(&forged).await.unwrap();
        // Another one's job first.
        FakeJobs::job_removed(emitter, 1, job(1), unit.to_owned(), "failed".to_owned()).await.unwrap();
        FakeJobs::job_removed(emitter, 2, job(2), unit.to_owned(), result.to_owned()).await.unwrap();
        job(2)
    }
}

struct FakeJobs(Fake);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl FakeJobs {
    async fn subscribe(&self) {
        self.0.say("subscribe".to_owned());
    }

    async fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: Vec<(String, OwnedVariant)>,
        _aux: Vec<(String, Vec<(String, OwnedVariant)>)>,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refused> {
        self.0.say(format!("start {name} {mode} {}", text(&properties)));
        if !self.0.units.lock().unwrap().insert(name.to_owned()) {
            return Err(Refused::UnitExists(name.to_owned()));
        }
        Ok(self.0.job(name, &emitter).await)
    }

    async fn set_unit_properties(&self, name: &str, runtime: bool, properties: Vec<(String, OwnedVariant)>) {
        self.0.say(format!("set {name} {runtime} {}", text(&properties)));
    }

    async fn stop_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refused> {
        self.0.say(format!("stop {name} {mode}"));
        if !self.0.units.lock().unwrap().remove(name) {
            return Err(Refused::NoSuchUnit(name.to_owned()));
        }
        Ok(self.0.job(name, &emitter).await)
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: OwnedObjectPath,
        unit: String,
        result: String,
    ) -> zbus::Result<()>;
}

async fn pair() -> (Fake, Connection, Systemd) {
    let fake = Fake::default();
    let (theirs, ours) = UnixStream::pair().unwrap();
    let server = Builder::unix_stream(theirs)
        .server(zbus::Guid::generate())
        .p2p()
        .serve_at("/org/freedesktop/systemd1", FakeJobs(fake.clone()))
        .build();
    let client = Builder::unix_stream(ours).p2p().build();
    let (server, client) = tokio::try_join!(server, client).unwrap();
    let systemd = Systemd::over(client).await;
    fake.said.lock().unwrap().clear();
    (fake, server, systemd)
}

#[tokio::test]
async fn slices_are_started_changed_and_stopped() {
    let (fake, _server, systemd) = pair().await;
    let name = CgroupName::default().child("kubepods").child("pod1-a");
    let values = CgroupValues {
        cpu_weight: Some(39),
        cpu_max: Some(CpuMax { quota_us: Some(25_000), period_us: 50_000 }),
        memory_max: Some(1 << 20),
        pids_max: Some(0),
        cpus: Some("0-1,9".to_owned()),
        ..CgroupValues::default()
    };
    let own = "CPUWeight=39 CPUQuotaPeriodUSec=50000 CPUQuotaPerSecUSec=500000 MemoryMax=1048576 TasksMax=1 AllowedCPUs=3,2";
    systemd.apply(&name, &values).await.unwrap();
    systemd.apply(&name, &values).await.unwrap();
    let free =
        CgroupValues { cpu_max: Some(CpuMax { quota_us: None, period_us: 1 }), ..CgroupValues::default() };
    systemd.apply(&name, &free).await.unwrap();
    systemd.stop(&name).await.unwrap();
    systemd.stop(&name).await.unwrap();
    let unit = "kubepods-pod1_a.slice";
    let slice = "Description=cgroup [\"kubepods\" \"pod1-a\"] of the kubelet Wants=kubepods.slice DefaultDependencies=false";
    let free = format!("CPUQuotaPeriodUSec=1 CPUQuotaPerSecUSec={}", u64::MAX);
    let said = std::mem::take(&mut *fake.said.lock().unwrap());
    assert_eq!(
        said,
        [
            format!("start {unit} replace {slice} {own}"),
            format!("start {unit} replace {slice} {own}"),
            format!("set {unit} true {own}"),
            format!("start {unit} replace {slice} {free}"),
            format!("set {unit} true {free}"),
            format!("stop {unit} replace"),
            format!("stop {unit} replace"),
        ]
    );
}

#[tokio::test]
async fn a_job_that_fails_is_an_error() {
    let (fake, _server, systemd) = pair().await;
    *fake.result.lock().unwrap() = "failed";
    let name = CgroupName::default().child("kubepods");
    let error = systemd.apply(&name, &CgroupValues::default()).await.unwrap_err();
    assert_eq!((error.object.as_str(), error.class), ("kubepods.slice", Class::Invalid));
    assert!(error.message.contains("job ended with \"failed\""), "{error}");
}

#[test]
fn processors_as_a_mask() {
    assert_eq!(mask("0-7"), Some(vec![255]));
    assert_eq!(mask("1,8,16"), Some(vec![2, 1, 1]));
    assert_eq!((mask(""), mask("x")), (Some(vec![]), None));
}
