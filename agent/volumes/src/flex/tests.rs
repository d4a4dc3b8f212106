//! Names, calls, answers and the order of calls.

use serde_json::{Value, json};

use super::answer::{Capabilities, DriverResponse, ProgramExit, Refusal, read};
use super::call::{Call, Command};
use super::mounting::{Attachment, ExistingMounts, Mounting, MountingStep};
use super::*;
use crate::{SetUpError, claim};

fn pod() -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"serviceAccountName": "sa", "containers": [],
            "securityContext": {"fsGroupChangePolicy": "OnRootMismatch"}}}))
    .unwrap()
}

fn source(of: Value) -> Source {
    Source::of_volume(serde_json::from_value(of).unwrap())
}

fn flex(of: Value) -> Flex {
    Flex::of_pod(&pod(), "v", &source(of), ("/k", "n")).unwrap()
}

#[test]
fn names_of_drivers_are_directories_and_lead_nowhere_else() {
    for (name, directory, program) in [
        ("vendor/driver", "vendor~driver", "vendor~driver/driver"),
        ("driver", "driver", "driver/driver"),
        ("a/b/c", "a~b~c", "a~b~c/c"),
        ("kubernetes.io/lvm", "kubernetes.io~lvm", "kubernetes.io~lvm/lvm"),
    ] {
        let driver = Driver::new(name).unwrap();
        assert_eq!((driver.directory().as_str(), driver.program().as_str()), (directory, program));
        assert_eq!(Driver::of_directory(directory), Some(driver));
    }
    let long = "x".repeat(256);
    for name in
        ["", "/", "a/", "/a", "..", "../a", "a/..", "a/./b", ".a", "a~b", "a\nb", "kubernetes.io/csi", &long]
    {
        assert_eq!(Driver::new(name), None, "{name:?}");
    }
    assert_eq!(Driver::of_directory("kubernetes.io~secret"), None);
    assert_eq!(Driver::of_directory("kubernetes.io~flexvolume"), None);
}

#[test]
fn places_are_upstreams() {
    let flex = flex(json!({"driver": "vendor/driver"}));
    assert_eq!(flex.global, "/k/plugins/kubernetes.io/flexvolume/vendor/driver/mounts/v");
    assert_eq!(flex.driver.below("v"), "volumes/vendor~driver/v");
    assert_eq!(flex.mark, "/k/pods/u/plugins/kubernetes.io~flexvolume/vendor~driver/v");
    assert!(flex.by_root && !flex.read_only && !flex.one_pod);
    assert_eq!(flex.key().unique_name(), "vendor/driver/v");
    let record = flex.record(true);
    assert_eq!(record.path("/k"), "/k/plugins/kubernetes.io/flexvolume/.records/vendor~driver/v/record.json");
    assert_eq!((record.key(), record.attached_by.clone()), (flex.key(), None));
    assert_eq!(Record::from_json(&record.to_json().unwrap()), Ok(record));
    assert_eq!(flex.record(false).attached_by.as_deref(), Some("n"));
    assert!(Record::from_json(b"{}").is_err());
}

#[test]
fn a_secret_is_the_pods_or_the_one_that_a_persistent_volume_names() {
    let of = |source: Source| {
        let found = Flex::of_pod(&pod(), "v", &source, ("/k", "n")).unwrap().secret;
        found.map(|s| format!("{}/{}", s.namespace, s.name))
    };
    let inline = |of: Value| source(of);
    let persistent = |of: Value| Source::of_persistent(serde_json::from_value(of).unwrap());
    assert_eq!(of(inline(json!({"driver": "d"}))), None);
    assert_eq!(of(inline(json!({"driver": "d", "secretRef": {"name": ""}}))), None);
    assert_eq!(of(inline(json!({"driver": "d", "secretRef": {"name": "s"}}))), Some("ns/s".to_owned()));
    let there = json!({"driver": "d", "secretRef": {"name": "s", "namespace": "other"}});
    assert_eq!(of(persistent(there)), Some("other/s".to_owned()));
    assert_eq!(of(persistent(json!({"driver": "d", "secretRef": {"name": "s"}}))), Some("ns/s".to_owned()));
}

fn options(call: &Call) -> Value {
    serde_json::from_str(call.arguments.iter().find(|a| a.starts_with('{')).unwrap()).unwrap()
}

#[test]
fn what_a_driver_hears() {
    let of = flex(json!({"driver": "vendor/driver", "fsType": "xfs", "readOnly": true,
        "options": {"a": "b", "kubernetes.io/fsType": "theirs"}}));
    let plain = json!({"a": "b", "kubernetes.io/fsType": "theirs", "kubernetes.io/readwrite": "ro",
        "kubernetes.io/pvOrVolumeName": "v"});
    for (call, before, after) in [
        (of.get_volume_name(), vec![], vec![]),
        (of.attach(), vec![], vec!["n"]),
        (of.is_attached(), vec![], vec!["n"]),
        (of.wait_for_attach("/dev/x"), vec!["/dev/x"], vec![]),
        (of.mount_device("/dev/x"), vec![of.global.as_str(), "/dev/x"], vec![]),
    ] {
        assert_eq!(options(&call), plain, "{call:?}");
        let line = call.line();
        assert_eq!(line[0], call.command.word());
        assert_eq!(line[1..=before.len()], before, "{call:?}");
        assert_eq!(line[before.len() + 2..], after, "{call:?}");
    }
    let secret = BTreeMap::from([("password".to_owned(), b"hush".to_vec())]);
    let mount = flex(json!({"driver": "d"})).mount("/t", Some(7), &secret);
    let expected = json!({"kubernetes.io/fsType": "", "kubernetes.io/readwrite": "rw",
        "kubernetes.io/pvOrVolumeName": "v", "kubernetes.io/pod.name": "p", "kubernetes.io/pod.namespace": "ns",
        "kubernetes.io/pod.uid": "u", "kubernetes.io/serviceAccount.name": "sa",
        "kubernetes.io/mounterArgs.FsGroup": "7", "kubernetes.io/secret/password": "aHVzaA=="});
    assert_eq!((mount.arguments[0].as_str(), options(&mount)), ("/t", expected));
    assert_eq!(format!("{mount:?}"), "Call(mount …)", "a Secret is shown");
    let without = flex(json!({"driver": "d"})).mount("/t", None, &BTreeMap::new());
    assert!(options(&without).get("kubernetes.io/mounterArgs.FsGroup").is_none());
    let record = of.record(false);
    assert_eq!(record.unmount_device().line(), ["unmountdevice", of.global.as_str()]);
    assert_eq!(record.detach("n").line(), ["detach", "v", "n"]);
    assert_eq!(
        (Call::init().line(), Call::unmount("/t").line()),
        (vec!["init".into()], vec!["unmount".into(), "/t".into()])
    );
    assert!(Command::WaitForAttach.limit() > Command::Mount.limit());
    assert_eq!(of.bind("/dev/x").options, ["ro"]);
}

fn program_exit(printed: &str, success: bool) -> ProgramExit {
    let how = if success { "exit status: 0" } else { "exit status: 1" };
    ProgramExit { success, how: how.to_owned(), printed: printed.to_owned(), complained: String::new() }
}

#[test]
fn what_an_answer_means() {
    let failed = |words: &str| Err(Refusal::Failed(words.to_owned()));
    let plain = DriverResponse::default();
    for (printed, success, expected) in [
        (r#"{"status": "Success"}"#, true, Ok(plain.clone())),
        (
            r#"{"Status": "Success", "device": "/dev/x"}"#,
            true,
            Ok(DriverResponse { device: "/dev/x".into(), ..plain.clone() }),
        ),
        (r#"{"status": "Success", "attached": true}"#, true, Ok(DriverResponse { attached: true, ..plain })),
        (r#"{"status": "Not supported"}"#, false, Err(Refusal::NotSupported)),
        (r#"{"status": "Not supported", "message": "x"}"#, true, Err(Refusal::NotSupported)),
        (
            r#"{"status": "Failure", "message": "no disk"}"#,
            false,
            failed("mount command failed, status: Failure, reason: no disk"),
        ),
        ("{}", true, failed("mount command failed, status: , reason: ")),
        (r#"{"status": "Success"}"#, false, failed("exit status: 1")),
        ("oops\n", false, failed("mount command failed, exit status: 1, its answer is no JSON: \"oops\"")),
        ("", true, failed("mount command failed, exit status: 0, its answer is no JSON: \"\"")),
        ("[]", true, failed("mount command failed, exit status: 0, its answer is no JSON: \"[]\"")),
    ] {
        assert_eq!(read(Command::Mount, &program_exit(printed, success)), expected, "{printed}");
    }
    let aside = ProgramExit {
        complained: "a warning\n".to_owned(),
        ..program_exit(r#"{"status": "Success"}"#, true)
    };
    assert_eq!(read(Command::Mount, &aside), Ok(DriverResponse::default()));
    let there =
        ProgramExit { complained: r#"{"status": "Not supported"}"#.to_owned(), ..program_exit("", false) };
    assert_eq!(read(Command::Mount, &there), Err(Refusal::NotSupported));
    let long = read(Command::Mount, &program_exit(&"x".repeat(10_000), true)).unwrap_err().to_string();
    assert!(long.len() < 300, "{long}");
}

#[test]
fn a_driver_can_do_all_that_it_does_not_deny() {
    let of = |capabilities: Value| {
        let said_so = json!({"status": "Success", "capabilities": capabilities}).to_string();
        read(Command::Init, &program_exit(&said_so, true)).unwrap().capabilities
    };
    let all = Capabilities { attach: true, fs_group: true, metrics: false, grows: true, relabels: true };
    assert_eq!(of(json!(null)), all);
    let said = json!({"attach": false, "requiresFSResize": false, "selinuxRelabel": false});
    assert_eq!(of(said), Capabilities { attach: false, grows: false, relabels: false, ..all });
    let said = json!({"attach": false, "fsGroup": false, "SupportsMetrics": true});
    assert_eq!(of(said), Capabilities { attach: false, fs_group: false, metrics: true, ..all });
}

#[test]
fn what_nobody_mounted_needs_no_driver() {
    for (driver, mounted, asked, expected) in [
        (Ok(()), false, false, Release::Ask),
        (Ok(()), true, true, Release::Ask),
        (Err("gone"), true, true, Release::Wait("gone".to_owned())),
        (Err("gone"), true, false, Release::Own),
        (Err("gone"), false, true, Release::Own),
    ] {
        assert_eq!(release(driver, mounted, asked), expected);
    }
}

/// What the driver says to a command: a device, that it does not know it, or why not.
type DriverReply<'a> = (&'a str, Result<&'a str, Option<&'a str>>);

/// Goes all the way; `answers` says what the driver answers. What was asked, and how it ended.
fn go(
    (attach, attachment, here): (bool, Attachment, ExistingMounts),
    answers: &[DriverReply<'_>],
) -> (Vec<String>, MountingStep) {
    let flex = flex(json!({"driver": "vendor/driver"}));
    let capabilities = Capabilities { attach, ..Capabilities::default() };
    let mut way = Mounting::new(&flex, (capabilities, attachment, here), "/t", (None, &BTreeMap::new()));
    let mut asked = Vec::new();
    for _ in 0..20 {
        match way.step() {
            MountingStep::Call(call) => {
                let word = call.command.word();
                let named = call.arguments.iter().find(|a| a.starts_with("/dev/"));
                asked.push(
                    [Some(word), named.map(String::as_str)]
                        .into_iter()
                        .flatten()
                        .collect::<Vec<_>>()
                        .join(" "),
                );
                let answer = answers.iter().find(|(to, _)| *to == word).map_or(Err(None), |(_, a)| *a);
                way.answered(match answer {
                    Ok("attached") => Ok(DriverResponse { attached: true, ..DriverResponse::default() }),
                    Ok(device) => {
                        Ok(DriverResponse { device: device.to_owned(), ..DriverResponse::default() })
                    }
                    Err(None) => Err(Refusal::NotSupported),
                    Err(Some(why)) => Err(Refusal::Failed(why.to_owned())),
                });
            }
            MountingStep::WriteDown(device) => {
                asked.push(format!("write {device}"));
                way.done(Ok(()));
            }
            MountingStep::MountDevice(device) => {
                asked.push(format!("format {device}"));
                way.done(Ok(()));
            }
            MountingStep::Bind => {
                asked.push("bind".to_owned());
                way.done(Ok(()));
            }
            end => return (asked, end),
        }
    }
    panic!("it does not end: {asked:?}");
}

#[test]
fn drivers_are_asked_in_upstreams_order() {
    let cluster = |device: &str| Attachment::Cluster(device.to_owned());
    let nothing = ExistingMounts::default();
    let all = |of: &[&str]| of.iter().map(|s| (*s).to_owned()).collect::<Vec<String>>();
    let table: [(_, &[DriverReply<'_>], &[&str]); 9] = [
        ((false, cluster(""), nothing), &[("mount", Ok(""))], &["mount"]),
        ((false, cluster(""), ExistingMounts { pod: true, ..nothing }), &[], &[]),
        // Of a driver that knows nothing the node binds what is there.
        ((false, cluster(""), nothing), &[], &["mount", "bind"]),
        (
            (true, cluster("/dev/a"), nothing),
            &[("waitforattach", Ok("/dev/b")), ("mountdevice", Ok("")), ("mount", Ok(""))],
            &["getvolumename", "waitforattach /dev/a", "mountdevice /dev/b", "mount"],
        ),
        (
            (true, cluster("/dev/a"), nothing),
            &[],
            &[
                "getvolumename",
                "waitforattach /dev/a",
                "mountdevice /dev/a",
                "format /dev/a",
                "mount",
                "bind",
            ],
        ),
        // Another pod has it already.
        (
            (true, cluster("/dev/a"), ExistingMounts { global: true, ..nothing }),
            &[("mount", Ok(""))],
            &["getvolumename", "waitforattach /dev/a", "mount"],
        ),
        (
            (true, Attachment::Node(None), nothing),
            &[("attach", Ok("/dev/a")), ("mountdevice", Ok("")), ("mount", Ok(""))],
            &[
                "getvolumename",
                "attach",
                "write /dev/a",
                "waitforattach /dev/a",
                "mountdevice /dev/a",
                "mount",
            ],
        ),
        // The driver attaches nothing: there is no device to be formatted.
        (
            (true, Attachment::Node(None), nothing),
            &[("mount", Ok(""))],
            &["getvolumename", "attach", "write ", "waitforattach", "mountdevice", "mount"],
        ),
        (
            (true, Attachment::Node(Some("/dev/a".to_owned())), ExistingMounts { global: true, ..nothing }),
            &[("isattached", Ok("attached")), ("mount", Ok(""))],
            &["getvolumename", "isattached", "waitforattach /dev/a", "mount"],
        ),
    ];
    for (of, answers, expected) in table {
        assert_eq!(go(of, answers), (all(expected), MountingStep::Done));
    }
    let lost = go((true, Attachment::Node(Some("/dev/a".to_owned())), nothing), &[("attach", Ok("/dev/c"))]);
    assert_eq!(lost.0[..4], ["getvolumename", "isattached", "attach", "write /dev/c"]);
}

#[test]
fn failures_name_their_step() {
    let cluster = || Attachment::Cluster("/dev/a".to_owned());
    let unnamed = go((true, cluster(), ExistingMounts::default()), &[("getvolumename", Err(Some("why")))]).1;
    let words = claim::no_name("v", "vendor/driver", "why");
    assert_eq!(unnamed, MountingStep::Failed(SetUpError::Unprocessed(words)));
    let go = |attachment, command| {
        let step = go((true, attachment, ExistingMounts::default()), &[(command, Err(Some("why")))]).1;
        match step {
            MountingStep::Failed(SetUpError::Failed(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    for (attachment, command, begins) in [
        (Attachment::Node(None), "attach", "AttachVolume.Attach failed for volume \"v\" : why"),
        (cluster(), "waitforattach", "MountVolume.WaitForAttach failed for volume \"v\" : why"),
        (cluster(), "mountdevice", "MountVolume.MountDevice failed for volume \"v\" : why"),
        (cluster(), "mount", "MountVolume.SetUp failed for volume \"v\" : why"),
    ] {
        let told = go(attachment, command);
        assert_eq!(told, begins);
        assert_eq!(step_failed_again(&told), told);
    }
}

fn step_failed_again(why: &str) -> String {
    crate::step_failed(crate::SET_UP, "v", why)
}
