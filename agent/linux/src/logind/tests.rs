//! A logind and a systemd at the other end of a socket: the lock and its limit, and what is said.

use std::io::Read;
use std::sync::{Arc, Mutex};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use std::os::unix::net::UnixStream;
use zbus::object_server::SignalEmitter;

use super::*;

/// A logind and a systemd at the other end of a socket.
#[derive(Clone)]
struct Fake {
    limit_us: Arc<Mutex<u64>>,
    /// What a reload makes of the limit.
    after_reload_us: u64,
    asked: Arc<Mutex<Vec<String>>>,
    /// The far end of the last lock's pipe.
    lock: Arc<Mutex<Option<std::fs::File>>>,
    /// It forgets the locks that it gives.
    forgetful: bool,
}

struct FakeSystemd(Fake);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Fake {
    async fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::OwnedFd {
        self.asked.lock().unwrap().push(format!("{what} {who} {why} {mode}"));
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        *self.lock.lock().unwrap() = Some(read.into());
        write.into()
    }

    async fn reboot(&self, interactive: bool) {
        self.asked.lock().unwrap().push(format!("reboot, interactive: {interactive}"));
    }

    async fn list_inhibitors(&self) -> Vec<Inhibitor> {
        let entry = |who: &str, mode: &str| {
            (
                "sleep:shutdown".to_owned(),
                who.to_owned(),
                String::new(),
                mode.to_owned(),
                0,
                std::process::id(),
            )
        };
        let mut all = vec![entry("somebody", "delay"), entry(WHO, "block")];
        if !self.forgetful && self.lock.lock().unwrap().is_some() {
            all.push(entry(WHO, "delay"));
        }
        all
    }

    #[zbus(property(emits_changed_signal = "false"), name = "InhibitDelayMaxUSec")]
    async fn inhibit_delay_max_usec(&self) -> u64 {
        *self.limit_us.lock().unwrap()
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn preparing_for_shutdown(&self) -> bool {
        true
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn prepare_for_shutdown_with_metadata(
        emitter: &SignalEmitter<'_>,
        start: bool,
        metadata: HashMap<String, Variant<'_>>,
    ) -> zbus::Result<()>;
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl FakeSystemd {
    async fn subscribe(&self) {
        self.0.asked.lock().unwrap().push("subscribe".to_owned());
    }

    async fn reload_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> OwnedObjectPath {
        self.0.asked.lock().unwrap().push(format!("reload {name} {mode}"));
        let job = |id: u32| OwnedObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{id}")).unwrap();
        // Another one's job, before logind has read anything.
        let (unit, done) = (UNIT.to_owned(), "done".to_owned());
        FakeSystemd::job_removed(&emitter, 6, job(6), unit.clone(), done.clone()).await.unwrap();
        *self.0.limit_us.lock().unwrap() = self.0.after_reload_us;
        FakeSystemd::job_removed(&emitter, 7, job(7), unit, done).await.unwrap();
        job(7)
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

async fn pair(limit_s: u64, after_reload_s: u64) -> (Fake, Connection, Logind) {
    pair_with(limit_s, after_reload_s, false).await
}

async fn pair_with(limit_s: u64, after_reload_s: u64, forgetful: bool) -> (Fake, Connection, Logind) {
    let fake = Fake {
        forgetful,
        limit_us: Arc::new(Mutex::new(limit_s * 1_000_000)),
        after_reload_us: after_reload_s * 1_000_000,
        asked: Arc::default(),
        lock: Arc::default(),
    };
    let (theirs, ours) = UnixStream::pair().unwrap();
    let server = Builder::unix_stream(theirs)
        .server(zbus::Guid::generate())
        .p2p()
        .serve_at("/org/freedesktop/login1", fake.clone())
        .serve_at("/org/freedesktop/systemd1", FakeSystemd(fake.clone()))
        .build();
    let client = Builder::unix_stream(ours).p2p().build();
    let (server, client) = tokio::try_join!(server, client).unwrap();
    let owner = DBusProxy::new(&client).await.unwrap().receive_name_owner_changed().await.unwrap();
    let logind = Logind::over(client, owner).await.unwrap();
    (fake, server, logind)
}

/// No process holds the other end any more.
fn is_closed(lock: &mut std::fs::File) -> bool {
    matches!(lock.read(&mut [0; 1]), Ok(0))
}

#[tokio::test]
async fn a_lock_is_held_as_long_as_it_lives() {
    let (fake, _server, logind) = pair(300, 300).await;
    assert!(logind.is_stopping().await.unwrap());
    let lock = logind.inhibit().await.unwrap();
    let wanted = "shutdown kubelet Kubelet needs time to handle node shutdown delay";
    assert_eq!(*fake.asked.lock().unwrap(), [wanted]);
    let mut far = fake.lock.lock().unwrap().take().unwrap();
    assert!(!is_closed(&mut far));
    drop(lock);
    assert!(is_closed(&mut far));
}

#[tokio::test]
async fn a_reboot_is_asked_for_without_a_person() {
    let (fake, _server, logind) = pair(300, 300).await;
    logind.reboot().await.unwrap();
    assert_eq!(*fake.asked.lock().unwrap(), ["reboot, interactive: false"]);
}

#[tokio::test]
async fn a_lock_that_is_not_listed_is_none() {
    let (fake, _server, logind) = pair_with(300, 300, true).await;
    assert!(matches!(logind.inhibit().await, Err(LogindError::NotListed)));
    assert!(is_closed(&mut fake.lock.lock().unwrap().take().unwrap()), "it is given back");
}

#[tokio::test]
async fn the_limit_is_raised_where_it_is_too_low() {
    let directory = tempfile::tempdir().unwrap();
    let drop_ins = directory.path().join("logind.conf.d");
    let (fake, _server, logind) = pair(300, 300).await;
    let seconds = Duration::from_secs;
    assert_eq!(logind.raise_limit(seconds(300), &drop_ins).await.unwrap(), seconds(300));
    assert!(!drop_ins.exists() && fake.asked.lock().unwrap().is_empty(), "nothing to do");

    let (fake, _server, logind) = pair(5, 31).await;
    let needed = Duration::from_millis(30_500);
    assert_eq!(logind.raise_limit(needed, &drop_ins).await.unwrap(), seconds(31));
    let text = std::fs::read_to_string(drop_ins.join("99-kubelet.conf")).unwrap();
    assert_eq!(text, "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=31\n");
    assert_eq!(*fake.asked.lock().unwrap(), ["subscribe", "reload systemd-logind.service replace"]);

    std::fs::write(directory.path().join("file"), "").unwrap();
    let (_fake, _server, logind) = pair(5, 31).await;
    let refused = logind.raise_limit(needed, &directory.path().join("file/d")).await.unwrap_err();
    assert!(matches!(refused, LogindError::DropIn { .. }), "{refused}");
}

#[tokio::test]
async fn a_limit_that_stays_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (_fake, _server, logind) = pair(5, 5).await;
    let limit = logind.raise_limit(Duration::from_secs(30), directory.path()).await.unwrap();
    assert_eq!(limit, Duration::from_secs(5));
}

#[tokio::test]
async fn signals_with_and_without_metadata() {
    let (_fake, server, mut logind) = pair(300, 300).await;
    let emitter = SignalEmitter::new(&server, "/org/freedesktop/login1").unwrap();
    let metadata = HashMap::from([("type".to_owned(), Variant::from("soft-reboot"))]);
    Fake::prepare_for_shutdown_with_metadata(&emitter, true, metadata).await.unwrap();
    let said = |stopping, kind: &str| Announced { stopping, kind: kind.to_owned() };
    assert_eq!(logind.next().await.unwrap(), said(true, "soft-reboot"));
    Fake::prepare_for_shutdown(&emitter, true).await.unwrap();
    assert_eq!(logind.next().await.unwrap(), said(true, ""));
    Fake::prepare_for_shutdown(&emitter, false).await.unwrap();
    assert_eq!(logind.next().await.unwrap(), said(false, ""));
    let odd = HashMap::from([("type".to_owned(), Variant::from(7_u32))]);
    Fake::prepare_for_shutdown_with_metadata(&emitter, false, odd).await.unwrap();
    assert_eq!(logind.next().await.unwrap(), said(false, ""), "a type that is no text");
    server.close().await.unwrap();
    assert!(matches!(logind.next().await, Err(LogindError::Gone)));
}
