//! The task with a script as systemctl, a directory as the node's root, and servers that die.

use std::fs;

use agent_linux::files::temporary_name;
use agent_types::lock::Lock;
use futures_util::StreamExt as _;

use super::*;
use crate::collect::Sources;
use crate::operations::handle::WATCHERS_MAX;
use crate::operations::notices::notices;
use crate::operations::record::OperationFailure;

const ID: &str = "01936f2e-0000-7abc-8def-0123456789ab";
const OTHER: &str = "01936f2e-0000-7abc-8def-0123456789ac";

/// Keeps its arguments. `show` prints a file, and everything else ends with the exit code of another one, which its verb may have for
/// itself.
const SYSTEMCTL: &str = "echo \"$*\" >> \"$DIR/asked\"\n\
    case \"$1\" in show) exec cat \"$DIR/unit\";; esac\n\
    if [ \"$1\" = restart ]; then cp \"$DIR/unit.after\" \"$DIR/unit\"; fi\n\
    code=$(cat \"$DIR/code.$1\" 2>/dev/null || cat \"$DIR/code\")\n\
    [ \"$code\" = 0 ] || echo 'Operation inhibited' >&2\n\
    exit \"$code\"\n";

/// A node between its servers.
struct FakeMachine {
    dir: tempfile::TempDir,
}

impl FakeMachine {
    fn new() -> FakeMachine {
        let machine = FakeMachine { dir: tempfile::tempdir().unwrap() };
        machine.boots("b1");
        machine.write("code", "0");
        let text = format!("#!/bin/sh\nDIR='{}'\n{SYSTEMCTL}", machine.dir.path().display());
        // Another process writes it: a program that another test starts meanwhile would keep a descriptor of this one open, and a file
        // that is open for writing is not executed (execve(2), ETXTBSY).
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"]);
        assert!(shell.arg(machine.dir.path().join("systemctl")).arg(text).status().unwrap().success());
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn boots(&self, boot_id: &str) {
        self.write("root/proc/sys/kernel/random/boot_id", &format!("{boot_id}\n"));
    }

    fn unit(&self, file: &str, invocation: &str, active: &str) {
        let text = format!(
            "Id=kubelet.service\nLoadState=loaded\nActiveState={active}\nResult=success\nInvocationID={invocation}\n"
        );
        self.write(file, &text);
    }

    /// What systemctl was asked, without looks.
    fn asked(&self) -> Vec<String> {
        let asked = fs::read_to_string(self.dir.path().join("asked")).unwrap_or_default();
        asked.lines().filter(|line| !line.starts_with("show")).map(str::to_owned).collect()
    }

    /// Does work while a server runs, which dies afterwards.
    async fn with_server<T>(
        &self,
        work: impl AsyncFnOnce(OperationHandle, watch::Receiver<usize>) -> T,
    ) -> T {
        let sources = Sources {
            root: self.dir.path().join("root"),
            systemctl: self.dir.path().join("systemctl"),
            ..Sources::default()
        };
        let (open, stays) = watch::channel(0);
        // No agent listens.
        let (notices, notice_task) = notices(&sources.root);
        let (handle, keeper) = keeper(Arc::new(Collector::new(sources)), open, notices);
        tokio::select! {
            done = work(handle, stays) => done,
            () = keeper.run() => panic!("the task ended before its handle"),
            () = notice_task.run() => panic!("the notices ended before their sender"),
        }
    }
}

fn wish(id: &str, what: OperationVerb, delay_s: u64) -> OperationWish {
    OperationWish {
        id: id.to_owned(),
        what,
        by: "uid 0 (operator, unix)".to_owned(),
        delay: Duration::from_secs(delay_s),
        unrecorded: false,
    }
}

fn restart() -> OperationVerb {
    OperationVerb::Restart { unit: "kubelet.service".to_owned(), invocation: String::new() }
}

/// Waits until the operation has this phase, or ends.
async fn until(handle: &OperationHandle, id: &str, phase: OperationPhase) -> OperationStatus {
    let mut changes = handle.watch(id).await.unwrap();
    while let Some(change) = changes.next().await {
        let status = change.unwrap();
        if status.phase == phase.word() || status.ended {
            return status;
        }
    }
    panic!("it has no end")
}

#[tokio::test]
async fn a_reboot_goes_on_without_client_and_server_and_is_finished_by_the_next_boot() {
    let machine = FakeMachine::new();
    machine
        .with_server(async |handle, stays| {
            let begun = handle.begin(wish(ID, OperationVerb::Reboot, 0)).await.unwrap();
            assert_eq!((begun.verb.as_str(), begun.boot_id_before.as_str()), ("reboot", "b1"));
            assert_eq!(*stays.borrow(), 1, "the process stays");
            until(&handle, ID, OperationPhase::Waiting).await;
            let again = handle.begin(wish(ID, OperationVerb::Reboot, 0)).await.unwrap();
            assert_eq!(again.accepted_at, begun.accepted_at);
            let other = handle.begin(wish(OTHER, OperationVerb::Shutdown, 0)).await.unwrap_err();
            assert_eq!(other.reason, Reason::OperationRunning);
            assert!(other.message.contains(ID), "{other}");
            let same = handle.begin(wish(ID, OperationVerb::Shutdown, 0)).await.unwrap_err();
            assert_eq!(same.reason, Reason::BadRequest);
            assert_eq!(handle.cancel(ID.to_owned()).await.unwrap_err().reason, Reason::TooLate);
        })
        .await;
    machine.write(
        "root/var/lib/kubelet/graceful_node_shutdown_state",
        r#"{"startTime":"2026-11-30T09:00:00Z","endTime":"2026-11-30T09:00:05Z","bootId":"b1","kind":"reboot",
            "pods":[{"namespace":"a","name":"p","uid":"u","ended":true,"told":true}]}"#,
    );
    machine.boots("b2");
    machine
        .with_server(async |handle, _| {
            let ended = until(&handle, ID, OperationPhase::Finished).await;
            assert_eq!((ended.phase.as_str(), ended.boot_id_after.as_str()), ("finished", "b2"));
            assert_eq!(ended.pods.map(|pods| (pods.in_order, pods.ended)), Some((true, 1)));
        })
        .await;
    // The third server reads what the second one has written.
    machine.boots("b3");
    machine
        .with_server(async |handle, stays| {
            let ended = handle.get(ID).await.unwrap();
            assert_eq!((ended.boot_id_after.as_str(), *stays.borrow()), ("b2", 0));
        })
        .await;
    assert_eq!(machine.asked(), ["reboot --no-ask-password --no-wall"]);
}

#[tokio::test]
async fn a_reset_is_ordered_before_the_reboot_and_ends_by_what_init_says() {
    let keep = || OperationVerb::Reset { scope: "keep".to_owned() };
    for (end, phase, words) in [
        (r#"{"id":"ID","refused":""}"#, OperationPhase::Finished, ""),
        (r#"{"id":"ID","refused":"no room"}"#, OperationPhase::Failed, "no room"),
        ("", OperationPhase::Failed, "no reset was carried out"),
    ] {
        let machine = FakeMachine::new();
        machine
            .with_server(async |handle, _| {
                let begun = handle.begin(wish(ID, keep(), 0)).await.unwrap();
                assert_eq!((begun.verb.as_str(), begun.object.as_str()), ("reset", "keep"));
                until(&handle, ID, OperationPhase::Waiting).await;
            })
            .await;
        let order = format!("start --no-ask-password -- orlop-reset@keep:{ID}.service");
        assert_eq!(machine.asked(), [order.as_str(), "reboot --no-ask-password --no-wall"]);
        machine.boots("b2");
        machine.write("root/run/orlop/reset.json", &end.replace("ID", ID));
        machine
            .with_server(async |handle, _| {
                let ended = until(&handle, ID, phase).await;
                assert_eq!(ended.phase, phase.word(), "{ended:?}");
                assert!(ended.message.contains(words), "{ended:?}");
            })
            .await;
    }
    // An order that is not taken reboots nothing.
    let machine = FakeMachine::new();
    machine.write("code", "1");
    machine
        .with_server(async |handle, _| {
            handle.begin(wish(ID, keep(), 0)).await.unwrap();
            let ended = until(&handle, ID, OperationPhase::Failed).await;
            assert_eq!(ended.reason, OperationFailure::Refused.word());
        })
        .await;
    assert_eq!(machine.asked().len(), 1);
    // Whoever reads of a reboot that was refused hears that the order stands.
    let machine = FakeMachine::new();
    machine.write("code.reboot", "1");
    machine
        .with_server(async |handle, _| {
            handle.begin(wish(ID, keep(), 0)).await.unwrap();
            let ended = until(&handle, ID, OperationPhase::Failed).await;
            assert_eq!(ended.reason, OperationFailure::Refused.word());
            assert!(ended.message.ends_with("the next boot carries it out"), "{ended:?}");
        })
        .await;
    assert_eq!(machine.asked().len(), 2);
}

/// Answers each request by a line of `answers`, whose words begin a request, and keeps what it was asked.
async fn updater(listener: tokio::net::UnixListener, answers: &[(&str, &str)], asked: &Lock<Vec<String>>) {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let Some(line) = lines.next_line().await.unwrap() else { continue };
        let answer = answers.iter().find(|(request, _)| line.contains(request)).map(|(_, answer)| *answer);
        asked.lock().push(line);
        let mut stream = lines.into_inner().into_inner();
        stream.write_all(answer.unwrap_or_default().as_bytes()).await.unwrap();
    }
}

impl FakeMachine {
    /// Does work while a server and an updater run; the requests of the updater.
    async fn with_updater(
        &self,
        answers: &[(&str, &str)],
        work: impl AsyncFnOnce(OperationHandle, watch::Receiver<usize>),
    ) -> Vec<String> {
        self.write("root/run/orlop/x", "");
        let path = self.dir.path().join("root/run/orlop/update.sock");
        // An earlier one may have left it.
        let _ = fs::remove_file(&path);
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let asked = Lock::new(Vec::new());
        tokio::select! {
            () = self.with_server(work) => {}
            () = updater(listener, answers, &asked) => panic!("the updater ended"),
        }
        asked.lock().clone()
    }
}

/// The report of both slots: slot B has 0.2.0.
fn slots_line(runs: &str, other_state: &str, reason: &str) -> String {
    let (version, other) = if runs == "b" { ("0.2.0", "0.1.0") } else { ("0.1.0", "0.2.0") };
    let slots = serde_json::json!({
        "running": runs, "desired": runs, "runningVersion": version, "runningState": "good",
        "otherVersion": other, "otherState": other_state, "otherReason": reason
    });
    format!("{}\n", serde_json::json!({"state": "idle", "message": "both", "slots": slots}))
}

#[tokio::test]
async fn a_version_is_staged_tried_by_a_reboot_and_ends_by_its_verdict() {
    const STAGED: &str = "{\"state\":\"writing\",\"message\":\"writes 0.2.0\"}\n\
        {\"state\":\"staged\",\"message\":\"0.2.0 is staged\",\"version\":\"0.2.0\"}\n";
    const ORDERED: &str = "{\"state\":\"ordered\",\"message\":\"the next boot tries 0.2.0\"}\n";
    let upgrade = || OperationVerb::Upgrade { version: String::new(), to: String::new() };
    for (after, phase, words) in [
        (slots_line("b", "good", ""), OperationPhase::Finished, "0.2.0 is committed"),
        (slots_line("a", "staged", "runtime: it is down"), OperationPhase::Failed, "runtime: it is down"),
    ] {
        let machine = FakeMachine::new();
        let before = slots_line("a", "empty", "");
        let asked = machine
            .with_updater(
                &[("slots", before.as_str()), ("take", STAGED), ("try", ORDERED)],
                async |handle, _| {
                    let begun = handle.begin(wish(ID, upgrade(), 0)).await.unwrap();
                    assert_eq!((begun.verb.as_str(), begun.phase.as_str()), ("upgrade", "staging"));
                    until(&handle, ID, OperationPhase::Waiting).await;
                    let again = handle.begin(wish(ID, upgrade(), 0)).await.unwrap();
                    assert_eq!(again.accepted_at, begun.accepted_at);
                },
            )
            .await;
        assert_eq!(asked, [r#"{"do":"slots"}"#, r#"{"do":"take"}"#, r#"{"do":"try","version":"0.2.0"}"#]);
        assert_eq!(machine.asked(), ["reboot --no-ask-password --no-wall"]);
        machine.boots("b2");
        machine
            .with_updater(&[("slots", after.as_str())], async |handle, _| {
                let ended = until(&handle, ID, phase).await;
                assert_eq!((ended.phase.as_str(), ended.boot_id_after.as_str()), (phase.word(), "b2"));
                assert!(ended.message.contains(words), "{ended:?}");
            })
            .await;
    }
}

#[tokio::test]
async fn what_the_slots_do_not_allow_is_refused_by_name_and_a_trial_that_is_not_ordered_reboots_nothing() {
    let rollback = || OperationVerb::Rollback { to: String::new() };
    let machine = FakeMachine::new();
    for (state, reason) in [("staged", Reason::NoOtherVersion), ("refused", Reason::VersionRefused)] {
        let before = slots_line("a", state, "");
        machine
            .with_updater(&[("slots", before.as_str())], async |handle, _| {
                let refused = handle.begin(wish(ID, rollback(), 0)).await.unwrap_err();
                assert_eq!(refused.reason, reason, "{refused}");
                assert_eq!(handle.list().await.unwrap(), []);
            })
            .await;
    }
    let (before, no) = (slots_line("a", "good", ""), "{\"state\":\"failed\",\"message\":\"no chain\"}\n");
    machine
        .with_updater(&[("slots", before.as_str()), ("try", no)], async |handle, _| {
            handle.begin(wish(ID, rollback(), 0)).await.unwrap();
            let ended = until(&handle, ID, OperationPhase::Failed).await;
            assert_eq!((ended.reason.as_str(), ended.message.as_str()), ("REFUSED", "no chain"));
        })
        .await;
    assert!(machine.asked().is_empty());
    // Without the updater nothing is known about the slots.
    let _ = fs::remove_file(machine.dir.path().join("root/run/orlop/update.sock"));
    machine
        .with_server(async |handle, _| {
            let refused = handle.begin(wish(OTHER, rollback(), 0)).await.unwrap_err();
            assert_eq!(refused.reason, Reason::PartDown, "{refused}");
        })
        .await;
}

#[tokio::test]
async fn what_systemd_refuses_is_said_and_the_next_operation_may_begin() {
    let machine = FakeMachine::new();
    machine.write("code", "1");
    machine
        .with_server(async |handle, _| {
            handle.begin(wish(ID, OperationVerb::Shutdown, 0)).await.unwrap();
            let ended = until(&handle, ID, OperationPhase::Failed).await;
            assert_eq!(ended.reason, OperationFailure::Refused.word());
            assert!(ended.message.contains("Operation inhibited"), "{ended:?}");
            handle.begin(wish(OTHER, OperationVerb::Reboot, 0)).await.unwrap();
            let listed: Vec<String> =
                handle.list().await.unwrap().into_iter().map(|status| status.id).collect();
            assert_eq!(listed, [ID, OTHER]);
        })
        .await;
}

#[tokio::test]
async fn a_service_is_restarted_once_and_its_new_run_ends_the_operation() {
    let machine = FakeMachine::new();
    machine.unit("unit", "old", "active");
    machine.unit("unit.after", "new", "active");
    machine
        .with_server(async |handle, stays| {
            handle.begin(wish(ID, restart(), 0)).await.unwrap();
            let ended = until(&handle, ID, OperationPhase::Finished).await;
            assert_eq!((ended.phase.as_str(), ended.object.as_str()), ("finished", "kubelet.service"));
            let mut stays = stays;
            // Only an open operation keeps the process.
            stays.wait_for(|count| *count == 0).await.unwrap();
        })
        .await;
    assert_eq!(machine.asked(), ["restart --no-block --no-ask-password -- kubelet.service"]);
    machine.write("unit", "");
    let refused = machine.with_server(async |handle, _| handle.begin(wish(OTHER, restart(), 0)).await).await;
    assert_eq!(refused.unwrap_err().reason, Reason::NotRestartable);
}

#[tokio::test]
async fn one_that_waits_survives_its_server_and_is_called_off() {
    let machine = FakeMachine::new();
    machine
        .with_server(async |handle, _| {
            let begun = handle.begin(wish(ID, OperationVerb::Reboot, 600)).await.unwrap();
            assert_eq!(begun.phase, "scheduled");
        })
        .await;
    machine
        .with_server(async |handle, _| {
            assert_eq!(handle.get(ID).await.unwrap().phase, "scheduled");
            for _ in 0..2 {
                assert_eq!(handle.cancel(ID.to_owned()).await.unwrap().phase, "cancelled");
            }
            assert_eq!(handle.cancel(OTHER.to_owned()).await.unwrap_err().reason, Reason::NoSuchOperation);
        })
        .await;
    let phase =
        machine.with_server(async |handle, _| handle.cancel(ID.to_owned()).await.unwrap().phase).await;
    assert_eq!(phase, "cancelled");
    assert!(machine.asked().is_empty());
}

#[tokio::test]
async fn without_a_disk_for_the_record_nothing_is_done_unless_the_client_says_so() {
    let machine = FakeMachine::new();
    // No directory can be made there.
    machine.write("root/var/lib/orlop/api", "a file");
    machine
        .with_server(async |handle, _| {
            let refused = handle.begin(wish(ID, OperationVerb::Reboot, 0)).await.unwrap_err();
            assert_eq!(refused.reason, Reason::NotRecorded, "{refused}");
            assert_eq!(machine.asked(), Vec::<String>::new());
            let unrecorded = OperationWish { unrecorded: true, ..wish(OTHER, OperationVerb::Reboot, 0) };
            handle.begin(unrecorded).await.unwrap();
            until(&handle, OTHER, OperationPhase::Waiting).await;
        })
        .await;
    assert_eq!(machine.asked().len(), 1);
}

#[tokio::test]
async fn a_disk_that_comes_late_is_read_by_the_next_request() {
    let machine = FakeMachine::new();
    machine
        .with_server(async |handle, _| handle.begin(wish(OTHER, OperationVerb::Reboot, 600)).await.unwrap())
        .await;
    let (there, away) = (machine.dir.path().join("root/var/lib/orlop/api"), machine.dir.path().join("away"));
    fs::rename(&there, &away).unwrap();
    machine.write("root/var/lib/orlop/api", "a file");
    machine
        .with_server(async |handle, _| {
            for wanted in [Reason::NotRecorded, Reason::OperationRunning] {
                let refused = handle.begin(wish(ID, OperationVerb::Reboot, 600)).await.unwrap_err();
                assert_eq!(refused.reason, wanted, "{refused}");
                if wanted == Reason::NotRecorded {
                    fs::remove_file(&there).unwrap();
                    fs::rename(&away, &there).unwrap();
                }
            }
            assert_eq!(handle.get(OTHER).await.unwrap().phase, "scheduled");
        })
        .await;
    assert!(machine.asked().is_empty());
}

#[tokio::test]
async fn a_refused_operation_leaves_no_record_for_a_later_server() {
    let machine = FakeMachine::new();
    machine
        .with_server(async |handle, _| {
            assert_eq!(handle.list().await.unwrap(), []);
            // A directory in the place of the file through which the record is written, and a write that has ended late.
            let file = format!("root/var/lib/orlop/api/operations/{ID}.json");
            machine.write(&file, "late");
            let name = temporary_name(format!("{ID}.json").as_ref());
            fs::create_dir_all(machine.dir.path().join("root/var/lib/orlop/api/operations").join(name))
                .unwrap();
            let refused = handle.begin(wish(ID, OperationVerb::Reboot, 600)).await.unwrap_err();
            assert_eq!(refused.reason, Reason::NotRecorded, "{refused}");
            // Orders come one after the other: the record was removed before this one.
            assert_eq!(handle.cancel(ID.to_owned()).await.unwrap_err().reason, Reason::NoSuchOperation);
            assert!(!machine.dir.path().join(&file).exists());
        })
        .await;
    assert!(machine.asked().is_empty());
}

#[test]
fn a_stop_has_time_for_a_logind_that_hangs() {
    let longest = |what| answer_max(&what);
    for what in [OperationVerb::Reboot, OperationVerb::Shutdown] {
        assert!(longest(what) > Duration::from_secs(25) + ANSWER_MAX);
    }
    assert_eq!(longest(restart()), ANSWER_MAX);
}

#[tokio::test]
async fn readers_that_wait_are_few_and_an_unknown_operation_is_said() {
    let machine = FakeMachine::new();
    machine
        .with_server(async |handle, _| {
            assert_eq!(
                handle.watch(ID).await.err().map(|refusal| refusal.reason),
                Some(Reason::NoSuchOperation)
            );
            handle.begin(wish(ID, OperationVerb::Reboot, 600)).await.unwrap();
            let mut readers = Vec::new();
            for _ in 0..WATCHERS_MAX {
                readers.push(handle.watch(ID).await.ok().unwrap());
            }
            let refused = handle.watch(ID).await.err().map(|refusal| refusal.reason);
            assert_eq!(refused, Some(Reason::TooManyStreams));
            readers.pop();
            assert!(handle.watch(ID).await.is_ok());
        })
        .await;
}
