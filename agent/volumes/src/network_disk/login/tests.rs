//! The way to a disk against a small world.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;

const IQN: &str = "iqn.2026-01.com.example:disk";
const SHOWN: &str = "# BEGIN RECORD 2.1\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n\
                     iface.transport_name = tcp\niface.vlan_id = 0\niface.initiatorname = <empty>\n# END RECORD\n";

fn iscsi(more: Value) -> Iscsi {
    let text = |key: &str| more[key].as_str().map(str::to_owned);
    let is = |key: &str| more[key] == json!(true);
    let portals = serde_json::from_value(more.get("portals").cloned().unwrap_or(json!([]))).unwrap();
    let chap = (is("chapAuthDiscovery"), is("chapAuthSession"));
    let portal = ("10.0.0.1".to_owned(), portals);
    Iscsi::new(portal, IQN.to_owned(), 3, text("iscsiInterface"), text("initiatorName"), chap)
}

/// What the steps meet.
#[derive(Default)]
struct World {
    /// Portals where there are sessions, before.
    sessions: BTreeMap<String, u32>,
    /// Portals that answer.
    answering: BTreeSet<String>,
    /// Portals whose links appear.
    linked: BTreeSet<String>,
    /// The device that joins the paths.
    joined: Option<String>,
    /// A host that cannot look for units.
    broken_scan: bool,
    /// Beginnings of commands that fail, with their exit code.
    failing: Vec<(String, i32)>,
    said: Vec<String>,
}

impl World {
    fn answering(portals: &[&str]) -> World {
        let portals: BTreeSet<String> = portals.iter().map(|p| format!("{p}:3260")).collect();
        World { answering: portals.clone(), linked: portals, ..World::default() }
    }

    fn run(&mut self, command: &Command) -> Result<String, ProgramFailure> {
        let words = command.arguments.join(" ");
        self.said.push(command.to_string().replace("iscsiadm -m ", ""));
        let ended = |code| {
            Err(ProgramFailure {
                code: Some(code),
                why: format!("exit status: {code}"),
                words: "no\n".to_owned(),
            })
        };
        if let Some((_, code)) = self.failing.iter().find(|(part, _)| words.contains(part.as_str())) {
            return ended(*code);
        }
        let portal = command.arguments.iter().skip_while(|a| *a != "-p").nth(1).cloned();
        if words.contains("--discover") && !self.answering.contains(portal.as_ref().unwrap()) {
            return ended(8);
        }
        if words.ends_with("--login") {
            let host = u32::try_from(self.sessions.len()).unwrap() + 5;
            self.sessions.insert(portal.unwrap(), host);
        }
        Ok(if words.contains("show") { SHOWN.to_owned() } else { String::new() })
    }

    fn end(&mut self, login: &mut Login) -> Result<String, String> {
        for _ in 0..500 {
            match login.step() {
                LoginStep::Run(command) => login.ended(self.run(&command)),
                LoginStep::Hosts => login.hosts(self.sessions.clone()),
                LoginStep::Scan(host) => {
                    self.said.push(format!("scan {host}"));
                    login.scanned(if self.broken_scan { Err("no such host".to_owned()) } else { Ok(()) });
                }
                LoginStep::AwaitLink(link) => {
                    let path = link.to_string();
                    let comes = self.linked.iter().any(|p| path.contains(p.as_str()));
                    login.linked(comes.then_some(path));
                }
                LoginStep::AwaitJoined(paths, times) => {
                    self.said.push(format!("await {} {times}", paths.len()));
                    login.joined(self.joined.clone());
                }
                LoginStep::Done(device) => return Ok(device),
                LoginStep::Failed(why) => return Err(why),
            }
        }
        panic!("it does not end: {:?}", self.said);
    }
}

fn way(world: &mut World, more: Value) -> Result<String, String> {
    world.end(&mut Login::new(&iscsi(more), "pv", Chap::new()))
}

#[test]
fn one_portal_is_asked_in_order() {
    let mut world = World::answering(&["10.0.0.1"]);
    let device = way(&mut world, json!({})).unwrap();
    assert_eq!(device, format!("/dev/disk/by-path/ip-10.0.0.1:3260-iscsi-{IQN}-lun-3"));
    let db = "discoverydb -t sendtargets -p 10.0.0.1:3260 -I default";
    let node = format!("node -p 10.0.0.1:3260 -T {IQN}");
    let expected = [
        "iface -I default -o show".to_owned(),
        format!("{db} -o new"),
        format!("{db} --discover"),
        format!("{node} -I default -o update -n node.session.scan -v manual"),
        format!("{node} -I default --login"),
        format!("{node} -o update -n node.startup -v manual"),
        "scan 5".to_owned(),
        "await 1 1".to_owned(),
    ];
    assert_eq!(world.said, expected);
}

#[test]
fn where_there_is_a_session_nobody_logs_in() {
    let mut world = World::answering(&["10.0.0.1"]);
    world.sessions.insert("10.0.0.1:3260".to_owned(), 9);
    way(&mut world, json!({})).unwrap();
    assert_eq!(world.said, ["iface -I default -o show", "scan 9", "await 1 1"]);
}

#[test]
fn a_disk_with_several_paths_waits_for_the_device_that_joins_them() {
    let three = json!({"portals": ["10.0.0.2", "10.0.0.3"]});
    let mut world = World::answering(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    world.joined = Some("/dev/dm-0".to_owned());
    assert_eq!(way(&mut world, three.clone()), Ok("/dev/dm-0".to_owned()));
    assert_eq!(world.said.last().map(String::as_str), Some("await 3 10"));
    let tries = |world: &World| {
        world.said.iter().filter(|s| s.contains("-p 10.0.0.3") && s.contains("--discover")).count()
    };
    assert_eq!(tries(&world), 1);
    // Two of three are enough from the second round on; of one the others are waited for.
    let mut world = World::answering(&["10.0.0.1", "10.0.0.2"]);
    assert!(way(&mut world, three.clone()).unwrap().contains("10.0.0.1"));
    assert_eq!((tries(&world), world.said.last().unwrap().as_str()), (2, "await 2 10"));
    let mut world = World::answering(&["10.0.0.2"]);
    assert!(way(&mut world, three).unwrap().contains("10.0.0.2"));
    assert_eq!((tries(&world), world.said.last().unwrap().as_str()), (5, "await 1 10"));
}

#[test]
fn what_fails_is_told_and_undone() {
    let table: [(World, Value, &str, &str); 6] = [
        (
            World::default(),
            json!({}),
            "failed to sendtargets to portal 10.0.0.1:3260: no (exit status: 8)",
            "-o delete",
        ),
        (
            World { failing: vec![("--login".to_owned(), 24)], ..World::answering(&["10.0.0.1"]) },
            json!({}),
            "iscsi: failed to attach disk: no (exit status: 24)",
            "-o delete",
        ),
        (
            World { linked: BTreeSet::new(), ..World::answering(&["10.0.0.1"]) },
            json!({}),
            "Timed out waiting for device at path /dev/disk/by-path/ip-10.0.0.1:3260-iscsi-",
            "scan 5",
        ),
        (
            World { broken_scan: true, ..World::answering(&["10.0.0.1"]) },
            json!({}),
            "scan of SCSI host 5 failed: no such host",
            "scan 5",
        ),
        (
            World { failing: vec![("show".to_owned(), 1)], ..World::default() },
            json!({}),
            "iscsi: could not read iface: no (exit status: 1)",
            "-o show",
        ),
        (
            World { failing: vec![("iface -I 10.0.0.1:3260:pv -o new".to_owned(), 6)], ..World::default() },
            json!({"initiatorName": "iqn.x:me"}),
            "iscsi: failed to create new iface: no (exit status: 6)",
            "-o new",
        ),
    ];
    for (mut world, more, words, last) in table {
        let error = way(&mut world, more).unwrap_err();
        assert!(error.contains(words), "{error}");
        assert!(world.said.last().unwrap().contains(last), "{:?}", world.said);
    }
    // A session that is there already is no failure.
    let mut world = World { failing: vec![("--login".to_owned(), 15)], ..World::answering(&["10.0.0.1"]) };
    assert!(way(&mut world, json!({})).is_ok());
}

#[test]
fn a_name_of_the_nodes_own_is_an_interface_of_its_own() {
    let own = json!({"initiatorName": "iqn.x:me"});
    let mut world = World::answering(&["10.0.0.1"]);
    way(&mut world, own.clone()).unwrap();
    let interface = "iface -I 10.0.0.1:3260:pv -o";
    let expected = [
        "iface -I default -o show".to_owned(),
        format!("{interface} new"),
        format!("{interface} update -n iface.initiatorname -v iqn.x:me"),
        format!("{interface} update -n iface.transport_name -v tcp"),
        format!("{interface} update -n iface.vlan_id -v 0"),
    ];
    assert_eq!(world.said[..5], expected);
    assert!(world.said.iter().any(|s| s.ends_with("-I 10.0.0.1:3260:pv --login")));
    // It is removed with the disk, and when there is no way to it.
    let gone = format!("{interface} delete");
    let logout: Vec<String> = iscsi(own.clone()).logout("pv").iter().map(ToString::to_string).collect();
    assert_eq!(logout.len(), 3);
    assert!(logout[0].ends_with("-I 10.0.0.1:3260:pv --logout") && logout[2].ends_with(&gone), "{logout:?}");
    let mut world = World::default();
    way(&mut world, own).unwrap_err();
    assert!(world.said.last().unwrap().ends_with(&gone));
    let clash = json!({"initiatorName": "iqn.x:me", "iscsiInterface": "10.0.0.1:3260:pv"});
    let error = way(&mut World::default(), clash).unwrap_err();
    assert!(error.contains("cannot clone iface with same name"), "{error}");
}

#[test]
fn what_the_target_wants_to_see_is_told_before_it_is_asked() {
    let chap: Chap = [
        ("discovery.sendtargets.auth.username", "u"),
        ("discovery.sendtargets.auth.password", "hush"),
        ("node.session.auth.password", "hush"),
        ("node.session.auth.username_in", ""),
        ("other", "x"),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .into();
    let of = iscsi(json!({"chapAuthDiscovery": true, "chapAuthSession": true}));
    let mut world = World::answering(&["10.0.0.1"]);
    world.end(&mut Login::new(&of, "pv", chap.clone())).unwrap();
    let at = |part: &str| world.said.iter().position(|s| s.contains(part)).unwrap_or(usize::MAX);
    let order = [
        "discovery.sendtargets.auth.authmethod -v CHAP",
        "discovery.sendtargets.auth.username -v ***",
        "discovery.sendtargets.auth.password -v ***",
        "--discover",
        "node.session.auth.authmethod -v CHAP",
        "node.session.auth.password -v ***",
        "--login",
    ];
    assert!(order.map(at).is_sorted() && at("--login") != usize::MAX, "{:?}", world.said);
    assert!(
        !world.said.iter().any(|s| s.contains("hush") || s.contains("username_in") || s.contains("other"))
    );
    // The program may repeat its arguments: the agent does not show its output.
    let mut world =
        World { failing: vec![("auth.password".to_owned(), 7)], ..World::answering(&["10.0.0.1"]) };
    let error = world.end(&mut Login::new(&of, "pv", chap)).unwrap_err();
    assert!(error.ends_with("error: exit status: 7"), "{error}");
}
