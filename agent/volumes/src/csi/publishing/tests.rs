//! The way to a pod: tables of the steps, with each failure that ends it.

use agent_types::failure::Class;
use serde_json::{Value, json};

use super::*;
use crate::csi::{Persistent, unregistered};

const GROUP: u32 = 7;

/// What answers the steps, and the steps so far. `fails` names the step that fails, `is_final` how.
struct World {
    object: Value,
    attached: Attached,
    attachment: Value,
    driver: Capabilities,
    facts: Facts,
    held: VolumeOnDisk,
    /// Records are there already.
    old: bool,
    given: bool,
    fails: &'static str,
    is_final: bool,
    steps: Vec<String>,
}

impl Default for World {
    fn default() -> Self {
        World {
            object: json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}),
            attached: Attached::Yes,
            attachment: json!({"attached": true, "attachmentMetadata": {"lun": "3"}}),
            driver: Capabilities { stages: true, ..Capabilities::default() },
            facts: Facts::default(),
            held: VolumeOnDisk::default(),
            old: false,
            given: true,
            fails: "",
            is_final: true,
            steps: Vec::new(),
        }
    }
}

fn label(step: &PublishStep) -> String {
    let at = |staged: &StagedAs| match staged {
        StagedAs::Files => "files".to_owned(),
        StagedAs::Device(volume) => volume.clone(),
    };
    match step {
        PublishStep::Secret(SecretFor::Inline(_)) => "secret inline".to_owned(),
        PublishStep::Secret(SecretFor::Publish(_)) => "secret publish".to_owned(),
        PublishStep::Secret(SecretFor::Stage(_)) => "secret stage".to_owned(),
        PublishStep::Wish { attach } => format!("wish {attach}"),
        PublishStep::Staged(is) => format!("staged {is}"),
        PublishStep::ForgetStage(staged) => format!("forget {}", at(staged)),
        PublishStep::RecordStage(staged) => format!("record stage {}", at(staged)),
        PublishStep::Stage(request) => format!("stage {}", request.path),
        PublishStep::Publish(request) => {
            format!("publish {} {}", request.target, request.staging.as_deref().unwrap_or("-"))
        }
        PublishStep::Give(group) => format!("give {group}"),
        PublishStep::Grow { staged, in_use } => format!("grow {staged} {in_use}"),
        PublishStep::Published { again } => format!("published {again}"),
        step => format!("{step:?}").to_lowercase(),
    }
}

impl World {
    fn called(&self, fails: bool) -> PublishAnswer {
        let failed = CallFailed { words: "no".to_owned(), is_final: self.is_final };
        PublishAnswer::Called(if fails { Err(failed) } else { Ok(()) })
    }

    fn answer(&self, step: &PublishStep, fails: bool) -> PublishAnswer {
        let no = || "no".to_owned();
        let failure = || Failure { class: Class::Invalid, message: no() };
        match step {
            PublishStep::Object if fails => PublishAnswer::Object(Err(no())),
            PublishStep::Object => {
                let object = json!({"metadata": {"name": "d"}, "spec": self.object});
                PublishAnswer::Object(Ok(serde_json::from_value(object).ok().map(Box::new)))
            }
            PublishStep::Wish { .. } => PublishAnswer::Attached(self.attached),
            PublishStep::Attachment if fails => PublishAnswer::Attachment(Err(no())),
            PublishStep::Attachment => {
                let spec = json!({"attacher": "d", "nodeName": "n", "source": {}});
                let found = json!({"metadata": {}, "spec": spec, "status": self.attachment});
                PublishAnswer::Attachment(Ok(serde_json::from_value(found).unwrap()))
            }
            PublishStep::Driver => PublishAnswer::Found(!fails),
            PublishStep::Capabilities => {
                PublishAnswer::Capabilities(if fails { Err(no()) } else { Ok(self.driver) })
            }
            PublishStep::Secret(_) => {
                PublishAnswer::Secret(if fails { Err(no()) } else { Ok(BTreeMap::new()) })
            }
            PublishStep::Turn | PublishStep::Facts => PublishAnswer::Facts(self.facts),
            PublishStep::ReadDisk => {
                PublishAnswer::Held(if fails { Err(failure()) } else { Ok(self.held.clone()) })
            }
            PublishStep::Record | PublishStep::RecordStage(_) => {
                PublishAnswer::Recorded(if fails { Err(failure()) } else { Ok(!self.old) })
            }
            PublishStep::Unstage | PublishStep::Stage(_) | PublishStep::Publish(_) => self.called(fails),
            PublishStep::ForgetStage(_) | PublishStep::Release | PublishStep::Keep => {
                PublishAnswer::Node(if fails { Err(failure()) } else { Ok(()) })
            }
            PublishStep::Tokens if fails => PublishAnswer::Tokens(Err(no())),
            PublishStep::Tokens => {
                let renew_after = Some(Duration::from_secs(60));
                PublishAnswer::Tokens(Ok(Tokens { given: Vec::new(), renew_after }))
            }
            PublishStep::Give(_) => PublishAnswer::Given(if fails { Err(failure()) } else { Ok(self.given) }),
            PublishStep::Grow { .. } => PublishAnswer::Grown(if fails { Err(no()) } else { Ok(None) }),
            PublishStep::AskLimits
            | PublishStep::Staged(_)
            | PublishStep::Published { .. }
            | PublishStep::End(_) => PublishAnswer::Done,
        }
    }

    /// Goes the whole way.
    fn go(&mut self, mut way: Publishing) -> End {
        for _ in 0..40 {
            let step = way.step();
            if let PublishStep::End(end) = step {
                return end;
            }
            let label = label(&step);
            let fails = !self.fails.is_empty() && label.starts_with(self.fails);
            self.steps.push(label);
            way.answered(self.answer(&step, fails));
        }
        panic!("it never ends: {:?}", self.steps);
    }

    fn run(&mut self, csi: &CsiVolume) -> End {
        self.go(way(csi))
    }
}

fn way(csi: &CsiVolume) -> Publishing {
    let paths = Paths { target: "/t".to_owned(), staging: "/s".to_owned() };
    Publishing::new(csi, &PodUid::from("u"), paths, Some(GROUP))
}

fn inline() -> CsiVolume {
    CsiVolume {
        driver: "d".to_owned(),
        handle: "h".to_owned(),
        volume: "v".to_owned(),
        node: "n".to_owned(),
        fs_type: String::new(),
        read_only: false,
        attributes: BTreeMap::new(),
        secret: None,
        pod: ("ns".to_owned(), "p".to_owned(), "u".to_owned()),
        account: "sa".to_owned(),
        by_root: false,
        persistent: None,
        block: None,
        overdue: false,
    }
}

fn persistent() -> CsiVolume {
    let persistent = Persistent {
        stage_secret: None,
        publish_secret: None,
        expand_secret: None,
        claim: String::new(),
        migrated: false,
        access_modes: vec!["ReadWriteOnce".to_owned()],
        flags: Vec::new(),
        one_pod: false,
        label: None,
    };
    CsiVolume { volume: "pv".to_owned(), persistent: Some(persistent), ..inline() }
}

fn with(change: impl FnOnce(&mut Persistent)) -> CsiVolume {
    let mut csi = persistent();
    change(csi.persistent.as_mut().unwrap());
    csi
}

fn device() -> CsiVolume {
    CsiVolume { block: Some("/global".to_owned()), ..persistent() }
}

fn secret(name: &str) -> Option<SecretRef> {
    Some(SecretRef { namespace: "ns".to_owned(), name: name.to_owned() })
}

fn published(again: bool) -> End {
    End::Published { renew_after: None, again, resize: None, labelled: false }
}

fn message(end: End) -> String {
    match end {
        End::Failed(why) => why.message,
        other => panic!("{other:?}"),
    }
}

const BEFORE: [&str; 6] = ["object", "wish true", "attachment", "driver", "capabilities", "turn"];

#[test]
fn a_volume_is_recorded_staged_and_published_in_this_order() {
    let mut world = World::default();
    assert_eq!(world.run(&persistent()), published(false));
    let rest =
        ["record", "record stage files", "stage /s", "staged true", "publish /t /s", "published false"];
    assert_eq!(world.steps, [&BEFORE[..], &rest].concat());
    let mut world = World::default();
    world.run(&device());
    let rest =
        ["record", "record stage pv", "stage /s", "staged true", "publish /t /s", "keep", "published false"];
    assert_eq!(world.steps, [&BEFORE[..], &rest].concat());
    let mut world = World { driver: Capabilities::default(), ..World::default() };
    world.run(&persistent());
    assert_eq!(world.steps, [&BEFORE[..], &["record", "publish /t -", "published false"]].concat());
    let mut world = World { facts: Facts { staged: true, ..Facts::default() }, ..World::default() };
    world.run(&persistent());
    assert_eq!(world.steps, [&BEFORE[..], &["record", "publish /t /s", "published false"]].concat());
}

#[test]
fn an_inline_volume_has_no_turn_and_no_stage() {
    let mut world = World::default();
    let secret = ObjectRef {
        kind: agent_types::objects::ObjectKind::Secret,
        namespace: "ns".to_owned(),
        name: "s".to_owned(),
    };
    let csi = CsiVolume { secret: Some(secret), ..inline() };
    assert_eq!(world.run(&csi), published(false));
    let steps = ["object", "driver", "secret inline", "capabilities", "facts", "record", "publish /t -"];
    assert_eq!(world.steps, [&steps[..], &["published false"]].concat());
}

#[test]
fn all_that_a_volume_may_have_comes_in_its_place() {
    let object = json!({"volumeLifecycleModes": ["Persistent"], "requiresRepublish": true, "attachRequired": false,
        "tokenRequests": [{"audience": "a"}], "fsGroupPolicy": "File"});
    let driver = Capabilities { stages: true, expands: true, ..Capabilities::default() };
    let csi = with(|p| {
        (p.stage_secret, p.publish_secret) = (secret("s"), secret("p"));
        (p.claim, p.one_pod) = ("c".to_owned(), true);
    });
    let mut world = World { object, driver, ..World::default() };
    let renew_after = Some(Duration::from_secs(60));
    let end = End::Published { renew_after, again: true, resize: None, labelled: false };
    assert_eq!(world.run(&csi), end);
    let steps = [
        "object",
        "wish false",
        "driver",
        "capabilities",
        "secret publish",
        "turn",
        "readdisk",
        "record",
        "secret stage",
        "record stage files",
        "stage /s",
        "staged true",
        "tokens",
        "publish /t /s",
        "give 7",
        "grow true false",
        "published true",
    ];
    assert_eq!(world.steps, steps);
    world.given = false;
    assert_eq!(world.run(&csi), End::Giving);
    // The driver gives the group itself.
    world.driver.gives_groups = true;
    world.steps.clear();
    assert_eq!(world.run(&csi), end);
    assert!(!world.steps.contains(&"give 7".to_owned()), "{:?}", world.steps);
}

#[test]
fn what_is_published_is_published_again_only_if_the_driver_wants_it() {
    let facts = Facts { staged: true, published: true, walked: false };
    let mut world = World { facts, ..World::default() };
    world.run(&persistent());
    assert_eq!(world.steps, [&BEFORE[..], &["record", "published false"]].concat());
    let walked = Facts { walked: true, published: false, ..facts };
    let csi = CsiVolume { fs_type: "ext4".to_owned(), ..persistent() };
    let mut world = World { facts: walked, ..World::default() };
    world.run(&csi);
    assert_eq!(world.steps, [&BEFORE[..], &["record", "give 7", "published false"]].concat());
}

#[test]
fn a_claim_that_nobody_writes_to_is_looked_at_once() {
    let driver = Capabilities { expands: true, ..Capabilities::default() };
    let csi = CsiVolume { read_only: true, ..with(|p| p.claim = "c".to_owned()) };
    let mut world = World { driver, ..World::default() };
    assert_eq!(world.run(&csi), published(false));
    assert_eq!(world.steps[world.steps.len() - 2..], ["grow false false", "published false"]);
    let facts = Facts { staged: false, published: true, walked: false };
    let mut world = World { driver, facts, ..World::default() };
    world.run(&csi);
    assert_eq!(world.steps.iter().filter(|step| step.starts_with("grow")).count(), 0);
    let mut world = World { driver, ..World::default() };
    assert_eq!(world.go(way(&csi).settled()), published(false));
    assert_eq!(world.steps, ["driver", "capabilities"]);
}

#[test]
fn a_settled_volume_is_looked_at_for_growth_alone() {
    let driver = Capabilities { expands: true, ..Capabilities::default() };
    let csi = with(|p| p.claim = "c".to_owned());
    for (csi, driver, fails, steps, again) in [
        (&csi, driver, "", &["driver", "capabilities", "turn", "grow false true"][..], true),
        (&csi, Capabilities::default(), "", &["driver", "capabilities"], false),
        (&csi, driver, "driver", &["driver"], true),
        (&csi, driver, "capabilities", &["driver", "capabilities"], true),
        (&inline(), driver, "driver", &["driver"], false),
        (&inline(), driver, "", &["driver", "capabilities"], false),
    ] {
        let mut world = World { driver, fails, ..World::default() };
        assert_eq!(
            (world.go(way(csi).settled()), world.steps),
            (published(again), steps.iter().map(|s| (*s).to_owned()).collect())
        );
    }
    let mut world = World { driver, fails: "grow", ..World::default() };
    let resize = Some(Resize::Failed("no".to_owned()));
    let end = End::Published { renew_after: None, again: true, resize, labelled: false };
    assert_eq!(world.go(way(&csi).settled()), end, "containers go on as they are");
}

#[test]
fn a_volume_that_is_not_attached_is_not_touched() {
    let unattached = |full| End::Unattached { full };
    for attached in [Attached::No, Attached::NotInUse] {
        let mut world = World { attached, ..World::default() };
        assert_eq!(world.run(&persistent()), unattached(false));
        assert_eq!(world.steps, ["object", "wish true"]);
    }
    let overdue = CsiVolume { overdue: true, ..persistent() };
    let recounts = json!({"volumeLifecycleModes": ["Persistent"], "nodeAllocatableUpdatePeriodSeconds": 60});
    let full = json!({"attached": false, "attachError": {"errorCode": 8}});
    let base = || World { attached: Attached::No, attachment: full.clone(), ..World::default() };
    for (mut world, end, last) in [
        (base(), unattached(false), "wish true"),
        (World { object: recounts.clone(), ..base() }, unattached(true), "asklimits"),
        (World { object: recounts.clone(), fails: "attachment", ..base() }, unattached(false), "attachment"),
        (
            World { object: recounts.clone(), attachment: json!({"attached": false}), ..base() },
            unattached(false),
            "attachment",
        ),
    ] {
        assert_eq!(world.run(&overdue), end);
        assert_eq!(world.steps.last().map(String::as_str), Some(last));
    }
}

#[test]
fn pods_that_do_not_fit_end_before_the_driver_is_asked() {
    let other = PodUid::from("v");
    let held = VolumeOnDisk { pods: [other.clone()].into(), staged: true, ..VolumeOnDisk::default() };
    let mut world = World { held: held.clone(), ..World::default() };
    let words = "MountVolume.SetUp failed for volume \"pv\" : volume uses the ReadWriteOncePod access mode and is already in \
                 use by another pod";
    assert_eq!(message(world.run(&with(|p| p.one_pod = true))), words);
    let object = json!({"volumeLifecycleModes": ["Persistent"], "seLinuxMount": true});
    let csi = with(|p| p.label = Some("a".to_owned()));
    let labels = [(other, "b".to_owned())].into();
    let mut world =
        World { object: object.clone(), held: VolumeOnDisk { labels, ..held }, ..World::default() };
    let why = crate::selinux::conflict("pv", "b", "a");
    assert_eq!(world.run(&csi), End::Unprocessed { why });
    assert_eq!(world.steps.last().map(String::as_str), Some("readdisk"));
    // No pod has it: it is staged again.
    let held = VolumeOnDisk { staged: true, stage_label: "b".to_owned(), ..VolumeOnDisk::default() };
    let facts = Facts { staged: true, ..Facts::default() };
    let mut world = World { object, held, facts, ..World::default() };
    assert_eq!(
        world.run(&csi),
        End::Published { renew_after: None, again: false, resize: None, labelled: true }
    );
    let rest = [
        "readdisk",
        "staged false",
        "unstage",
        "forget files",
        "record",
        "record stage files",
        "stage /s",
        "staged true",
        "publish /t /s",
        "published false",
    ];
    assert_eq!(world.steps, [&BEFORE[..], &rest].concat());
    for fails in ["unstage", "forget"] {
        world.fails = fails;
        assert_eq!(message(world.run(&csi)), "MountVolume.MountDevice failed for volume \"pv\" : no");
    }
}

#[test]
fn a_record_goes_only_if_it_is_new_and_the_driver_refused_for_good() {
    for (csi, fails, is_final, old, undone) in [
        (persistent(), "stage", true, false, &["forget files", "release"][..]),
        (device(), "stage", true, false, &["forget pv", "release"]),
        (persistent(), "stage", false, false, &[]),
        (persistent(), "stage", true, true, &[]),
        (persistent(), "publish", true, false, &["release"]),
        (persistent(), "publish", false, false, &[]),
        (persistent(), "publish", true, true, &[]),
        (with(|p| p.stage_secret = secret("s")), "secret stage", false, false, &["release"]),
        (persistent(), "record stage", true, false, &[]),
        (inline(), "publish", true, false, &["release"]),
        (inline(), "publish", false, false, &[]),
    ] {
        let mut world = World { fails, is_final, old, ..World::default() };
        message(world.run(&csi));
        let failed = world.steps.iter().rposition(|step| step.starts_with(fails)).unwrap();
        assert_eq!(world.steps[failed + 1..], *undone, "{fails} {is_final} {old}");
    }
}

#[test]
fn what_people_read_is_upstreams() {
    let stages = Capabilities { stages: true, expands: true, ..Capabilities::default() };
    let claim = with(|p| p.claim = "c".to_owned());
    let claimed_device = CsiVolume { block: Some("/global".to_owned()), ..claim.clone() };
    for (csi, fails, words) in [
        (persistent(), "object", "no"),
        (
            persistent(),
            "attachment",
            "MountVolume.WaitForAttach failed for volume \"pv\" : volume h has GET error for volume attachment NAME: no",
        ),
        (persistent(), "capabilities", "MountVolume.MountDevice failed for volume \"pv\" : no"),
        (device(), "capabilities", "MapVolume.SetUpDevice failed for volume \"pv\" : no"),
        (inline(), "capabilities", "no"),
        (with(|p| p.publish_secret = secret("s")), "secret", "fetching NodePublishSecretRef ns/s failed: no"),
        (
            with(|p| p.stage_secret = secret("s")),
            "secret",
            "MountVolume.MountDevice failed for volume \"pv\" : fetching NodeStageSecretRef ns/s failed: no",
        ),
        (persistent(), "record stage", "MountVolume.MountDevice failed for volume \"pv\" : no"),
        (persistent(), "stage", "MountVolume.MountDevice failed for volume \"pv\" : no"),
        (persistent(), "publish", "no"),
        (device(), "publish", "MapVolume.MapPodDevice failed for volume \"pv\" : no"),
        (device(), "keep", "MapVolume.MapBlockVolume failed for volume \"pv\" : no"),
        (claim, "grow", "MountVolume.Setup failed while expanding volume for volume \"pv\" : no"),
        (
            claimed_device,
            "grow",
            "MapVolume.MarkVolumeAsMounted failed while expanding volume for volume \"pv\" : no",
        ),
    ] {
        let mut world = World { fails, driver: stages, ..World::default() };
        let expected = words.replace("NAME", &csi.attachment());
        assert_eq!(message(world.run(&csi)), expected, "{fails}");
    }
    let mut world = World { fails: "driver", ..World::default() };
    assert_eq!(message(world.run(&inline())), unregistered("mounter.SetUpAt", "d"));
    let why = message(World { fails: "driver", ..World::default() }.run(&persistent()));
    assert!(why.ends_with(&unregistered("attacher.MountDevice", "d")), "{why}");
    let mut world = World { attachment: json!({"attached": false}), ..World::default() };
    let why = message(world.run(&device()));
    assert!(
        why.starts_with("MapVolume.WaitForAttach failed for volume \"pv\" : volume h is not attached"),
        "{why}"
    );
    // The node's own failures keep their class.
    for fails in ["readdisk", "record"] {
        let mut world = World { fails, ..World::default() };
        let End::Failed(why) = world.run(&with(|p| p.one_pod = true)) else { panic!("{fails}") };
        assert_eq!((why.class, why.message.as_str()), (Class::Invalid, "no"), "{fails}");
    }
}

#[test]
fn an_answer_to_another_question_ends_the_way() {
    let mut way = way(&persistent());
    way.answered(PublishAnswer::Done);
    assert_eq!(way.step(), PublishStep::End(End::Failed(Failure::mixed_up())));
    way.answered(PublishAnswer::Done);
    assert_eq!(way.step(), PublishStep::End(End::Failed(Failure::mixed_up())));
}
