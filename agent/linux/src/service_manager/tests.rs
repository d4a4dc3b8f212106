//! A PID 1 at the other end of a socket: as zbus speaks, and as systemd does.

use std::os::unix::net::UnixListener;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener as Listener;
use zbus::connection;
use zbus::message::Message;

use super::*;

type Jobs = &'static [(&'static str, &'static str)];

fn jobs_of(jobs: Jobs) -> Vec<Job> {
    let path = |kind: &str| OwnedObjectPath::try_from(format!("/org/freedesktop/systemd1/{kind}/1"));
    let job = |&(unit, what): &(&str, &str)| {
        let state = "waiting".to_owned();
        (7, unit.to_owned(), what.to_owned(), state, path("job").unwrap(), path("unit").unwrap())
    };
    jobs.iter().map(job).collect()
}

/// A systemd in a state, with jobs.
struct Fake(&'static str, Jobs);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Fake {
    async fn list_jobs(&self) -> Vec<Job> {
        jobs_of(self.1)
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn system_state(&self) -> String {
        self.0.to_owned()
    }
}

async fn told(state: &'static str, jobs: Jobs) -> Result<Option<String>, ServiceManagerError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("private");
    let listener = UnixListener::bind(&path).unwrap();
    let serve = async {
        let (stream, _) = tokio::task::spawn_blocking(move || listener.accept()).await.unwrap().unwrap();
        let builder = connection::Builder::unix_stream(stream).server(zbus::Guid::generate()).p2p();
        builder.serve_at(OBJECT, Fake(state, jobs)).build().await.unwrap()
    };
    let (_server, answer) = tokio::join!(serve, going_down(&path));
    answer
}

#[tokio::test]
async fn a_machine_that_goes_down_and_one_that_does_not() {
    let jobs = &[("reboot.target", "start"), ("orlop-agent.service", "stop")];
    assert_eq!(told("running", jobs).await.unwrap(), None);
    assert_eq!(told("degraded", &[]).await.unwrap(), None);
    assert_eq!(told("stopping", jobs).await.unwrap().as_deref(), Some("reboot"));
    let soft = &[("shutdown.target", "start"), ("soft-reboot.target", "start")];
    assert_eq!(told("stopping", soft).await.unwrap().as_deref(), Some("soft-reboot"));
    // A start that never ended, and a shutdown.target that is only kept away.
    assert_eq!(told("starting", soft).await.unwrap().as_deref(), Some("soft-reboot"));
    assert_eq!(told("starting", &[("shutdown.target", "stop")]).await.unwrap(), None);
    // Somebody's own target, and a job that is no start.
    let other = &[("mine.target", "start"), ("poweroff.target", "stop"), ("reboot.service", "start")];
    assert_eq!(told("stopping", other).await.unwrap().as_deref(), Some(""));
}

/// What systemd says of itself in each message over its own socket, and a unique name that is as long.
const SENDER: (&str, &str) = ("org.freedesktop.systemd1", ":rg.freedesktop.systemd1");

fn named_as_systemd(message: &Message) -> Vec<u8> {
    let mut bytes = message.data().bytes().to_vec();
    let at = bytes.windows(SENDER.1.len()).position(|part| part == SENDER.1.as_bytes());
    let at = at.expect("it has a sender");
    bytes[at..at + SENDER.0.len()].copy_from_slice(SENDER.0.as_bytes());
    bytes
}

/// Lets the caller in with `welcome`, and answers each of its calls with all that `answer` makes of it.
async fn asked_of(
    welcome: &str,
    answer: impl Fn(&Message, &str) -> Vec<Vec<u8>>,
) -> Result<Option<String>, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("private");
    let listener = Listener::bind(&path).unwrap();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut line = vec![0; "\0AUTH EXTERNAL ".len()];
        stream.read_exact(&mut line).await.unwrap();
        assert_eq!(line, b"\0AUTH EXTERNAL ");
        while stream.read_u8().await.unwrap() != b'\n' {}
        stream.write_all(welcome.as_bytes()).await.unwrap();
        let mut begin = [0; 7];
        if stream.read_exact(&mut begin).await.is_err() {
            return;
        }
        assert_eq!(&begin, b"BEGIN\r\n");
        let mut head = [0; 16];
        while stream.read_exact(&mut head).await.is_ok() {
            let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
            let rest =
                usize::try_from(word(12)).unwrap().next_multiple_of(8) + usize::try_from(word(4)).unwrap();
            let mut body = vec![0; rest];
            stream.read_exact(&mut body).await.unwrap();
            let text = String::from_utf8_lossy(&body).into_owned();
            assert!(text.contains("\u{6}\u{1}s\0"), "a call without a destination is not answered: {text:?}");
            let call =
                Message::method_call("/x", "X").serial(word(8).try_into().unwrap()).build(&()).unwrap();
            for bytes in answer(&call, &text) {
                stream.write_all(&bytes).await.unwrap();
            }
        }
    };
    let limit = Duration::from_millis(500);
    let told = async { asked_within(&path, limit).await.map_err(|error| format!("{error:?}")) };
    let (told, ()) = tokio::join!(told, serve);
    told
}

/// Seen of systemd 257: a header that zbus refuses, and news that nobody asked for.
#[tokio::test]
async fn as_systemd_speaks() {
    let answer = |call: &Message, asked: &str| {
        let news =
            Message::signal(OBJECT, MANAGER, "UnitNew").sender(SENDER.1).build(&("a.scope", "x")).unwrap();
        let reply = Message::method_return(&call.header()).sender(SENDER.1);
        let reply = if asked.contains("ListJobs") {
            reply.build(&jobs_of(&[("kexec.target", "start"), ("shutdown.target", "start")]))
        } else {
            assert!(asked.contains("SystemState"), "{asked}");
            reply.build(&zbus::Variant::from("stopping"))
        };
        vec![named_as_systemd(&news), named_as_systemd(&reply.unwrap())]
    };
    assert_eq!(asked_of("OK 0123\r\n", answer).await.unwrap().as_deref(), Some("kexec"));
}

#[tokio::test]
async fn what_is_no_answer() {
    let refused = asked_of("REJECTED ANONYMOUS\r\n", |_, _| Vec::new()).await.unwrap_err();
    assert!(refused.contains("Refused") && refused.contains("REJECTED"), "{refused}");
    let endless = asked_of(&"x".repeat(1000), |_, _| Vec::new()).await.unwrap_err();
    assert!(endless.contains("a line without an end"), "{endless}");
    let silent = asked_of("OK 0123\r\n", |_, _| Vec::new()).await.unwrap_err();
    assert!(silent.contains("Silent"), "{silent}");
    let error = |call: &Message, _: &str| {
        let error = Message::error(&call.header(), "org.freedesktop.DBus.Error.AccessDenied");
        vec![error.build(&("no",)).unwrap().data().bytes().to_vec()]
    };
    let failed = asked_of("OK 0123\r\n", error).await.unwrap_err();
    assert!(failed.contains("SystemState") && failed.contains("AccessDenied"), "{failed}");
    let other = |call: &Message, _: &str| {
        vec![Message::method_return(&call.header()).build(&7_u32).unwrap().data().bytes().to_vec()]
    };
    let types = asked_of("OK 0123\r\n", other).await.unwrap_err();
    assert!(types.contains("of other types"), "{types}");
    let long = [b"l\x02\0\x01".as_slice(), &[0xff; 12]].concat();
    for (bytes, words) in [(vec![b'x'; 16], "order of bytes"), (long, "too long")] {
        let malformed = asked_of("OK 0123\r\n", |_, _| vec![bytes.clone()]).await.unwrap_err();
        assert!(malformed.contains(words), "{malformed}");
    }
    // Fields that are none: an array of a code whose value has no type.
    let fields =
        [b"l\x02\0\x01".as_slice(), &[0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 5, 9, b'u', 0, 0, 0, 0, 0]]
            .concat();
    let malformed = asked_of("OK 0123\r\n", |_, _| vec![fields.clone()]).await.unwrap_err();
    assert!(malformed.contains("Values"), "{malformed}");
}

#[tokio::test]
async fn no_systemd_and_one_that_says_nothing() {
    let gone = going_down(Path::new("/nonexistent/private")).await.unwrap_err();
    assert!(gone.to_string().contains("/nonexistent/private"), "{gone}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("private");
    let _silent = UnixListener::bind(&path).unwrap();
    let refused = asked_within(&path, Duration::from_millis(50)).await;
    assert!(matches!(refused, Err(ServiceManagerError::Silent { .. })), "{refused:?}");
}
