//! Scenarios of the static pod directory.

use std::collections::{BTreeSet, VecDeque};

use agent_types::pod;
use agent_types::time::Wall;
use proptest::prelude::*;

use super::*;
use crate::pod_source::PodOp;

const PERIOD: Duration = Duration::from_secs(20);

fn manifest(name: &str, image: &str) -> FileContent {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: '{image}'}}]}}\n"
    );
    FileContent::Bytes(text.into_bytes())
}

fn broken() -> FileContent {
    FileContent::Bytes(b"kind: [".to_vec())
}

fn file(name: &str, content: FileContent) -> (String, FileContent) {
    (name.to_owned(), content)
}

/// A source and a clock.
struct World {
    source: FileSource,
    now: Now,
}

impl World {
    fn new() -> World {
        let config =
            FileSourceConfig { path: "/m".to_owned(), node_name: "n".to_owned(), check_period: PERIOD };
        World { source: FileSource::new(config), now: Now { mono: Mono(1), wall: Wall(1) } }
    }

    /// A source whose first listing had these files.
    fn listed(files: Vec<(String, FileContent)>) -> World {
        let mut world = World::new();
        assert_eq!(world.step(FileEvent::Tick), ["list"]);
        world.step(FileEvent::Listed(Listing::Directory(files)));
        world
    }

    fn later(&mut self, seconds: u64) -> &mut World {
        self.now.mono = self.now.mono.after(Duration::from_secs(seconds));
        self
    }

    /// Actions in short: `list`, `read NAME`, `ADD pod pod`, `report ...`.
    fn step(&mut self, event: FileEvent) -> Vec<String> {
        let mut out = Outbox::new();
        self.source.step(self.now, event, &mut out);
        let actions = out.drain().map(|action| match action {
            FileAction::List => "list".to_owned(),
            FileAction::Read { name } => format!("read {name}"),
            FileAction::Deliver(update) => {
                let mut text = format!("{:?}", update.op).to_uppercase();
                for pod in &update.pods {
                    text.push(' ');
                    text.push_str(pod::name(pod));
                }
                text
            }
            FileAction::Report(FileReport::ListFailed(_)) => "report list failed".to_owned(),
            FileAction::Report(FileReport::BadFile { path, keeps_pod, .. }) => {
                format!("report bad {path} {keeps_pod}")
            }
            FileAction::Report(FileReport::Dropped { path, .. }) => format!("report dropped {path}"),
            FileAction::Report(FileReport::UnknownFields { path, fields }) => {
                format!("report unknown {path} {fields:?}")
            }
            FileAction::Report(FileReport::Duplicate(d)) => {
                format!("report duplicate {}_{}", d.pod.name, d.pod.namespace)
            }
        });
        actions.collect()
    }

    fn list(&mut self, files: Vec<(String, FileContent)>) -> Vec<String> {
        assert_eq!(self.step(FileEvent::Changed(None)), ["list"]);
        self.step(FileEvent::Listed(Listing::Directory(files)))
    }

    fn read(&mut self, name: &str, content: FileContent) -> Vec<String> {
        assert_eq!(self.step(FileEvent::Changed(Some(name.to_owned()))), [format!("read {name}")]);
        self.step(FileEvent::Read { name: name.to_owned(), content })
    }
}

#[test]
fn the_first_listing_makes_the_source_ready() {
    let mut world = World::new();
    assert_eq!(world.step(FileEvent::Tick), ["list"]);
    assert_eq!(world.step(FileEvent::Tick), Vec::<String>::new());
    let files = vec![
        file("b.yaml", manifest("b", "i")),
        file(".hidden.yaml", manifest("hidden", "i")),
        file("a.json", manifest("a", "i")),
        file("dir", FileContent::Gone),
    ];
    assert_eq!(world.step(FileEvent::Listed(Listing::Directory(files))), ["ADD a-n b-n"]);
    assert_eq!(world.source.deadline(), Some(world.now.mono.after(PERIOD)));
    assert_eq!(world.later(20).step(FileEvent::Tick), ["list"]);
}

#[test]
fn a_missing_path_is_an_empty_seen_source() {
    let mut world = World::new();
    world.step(FileEvent::Tick);
    assert_eq!(world.step(FileEvent::Listed(Listing::Missing)), ["ADD"]);
    world.later(20).step(FileEvent::Tick);
    assert_eq!(world.step(FileEvent::Listed(Listing::Missing)), Vec::<String>::new());
}

#[test]
fn a_path_that_cannot_be_listed_is_not_ready_and_changes_nothing() {
    let mut world = World::new();
    world.step(FileEvent::Tick);
    let failed = || FileEvent::Listed(Listing::Failed("permission denied".to_owned()));
    assert_eq!(world.step(failed()), ["report list failed"]);
    assert_eq!(world.later(20).step(FileEvent::Tick), ["list"]);
    assert_eq!(world.step(failed()), Vec::<String>::new());
    world.later(20).step(FileEvent::Tick);
    let files = vec![file("a", manifest("a", "i"))];
    assert_eq!(world.step(FileEvent::Listed(Listing::Directory(files))), ["ADD a-n"]);
    world.later(20).step(FileEvent::Tick);
    assert_eq!(world.step(failed()), ["report list failed"]);
}

#[test]
fn a_file_that_was_removed_takes_its_pod_along_even_if_it_is_back() {
    let a = || manifest("a", "i");
    let read = |content| FileEvent::Read { name: "a".to_owned(), content };
    let removed = || FileEvent::Removed("a".to_owned());
    let mut world = World::listed(vec![file("a", a()), file("b", manifest("b", "i"))]);
    assert_eq!(world.step(removed()), ["REMOVE a-n", "read a"]);
    assert_eq!(world.step(read(a())), ["ADD a-n"]);
    // An answer from before the removal says nothing, however often more is heard meanwhile; neither does a list.
    assert_eq!(world.step(FileEvent::Changed(Some("a".to_owned()))), ["read a"]);
    assert_eq!(world.step(FileEvent::Changed(None)), ["list"]);
    assert_eq!(world.step(removed()), ["REMOVE a-n"]);
    assert_eq!(world.step(FileEvent::Changed(Some("a".to_owned()))), Vec::<String>::new());
    assert_eq!(world.step(read(a())), ["read a"]);
    let files = vec![file("a", a()), file("b", manifest("b", "i"))];
    assert_eq!(world.step(FileEvent::Listed(Listing::Directory(files))), Vec::<String>::new());
    assert_eq!(world.step(read(FileContent::Gone)), Vec::<String>::new());
    // The source reads a file without a pod again and reports nothing else; dot-files never count.
    assert_eq!(world.step(removed()), ["read a"]);
    assert_eq!(world.step(FileEvent::Removed(".a".to_owned())), Vec::<String>::new());
    // Before the first listing everything is looked at.
    assert_eq!(World::new().step(removed()), ["list"]);
}

#[test]
fn a_single_file() {
    let mut world = World::new();
    world.step(FileEvent::Tick);
    assert_eq!(world.step(FileEvent::Listed(Listing::File(manifest("a", "i")))), ["ADD a-n"]);
    assert_eq!(world.step(FileEvent::Changed(Some("m".to_owned()))), ["list"]);
    assert_eq!(world.step(FileEvent::Listed(Listing::File(manifest("a", "j")))), ["REMOVE a-n", "ADD a-n"]);
}

#[test]
fn files_come_change_and_go() {
    let mut world = World::listed(vec![file("a", manifest("a", "i"))]);
    assert_eq!(world.read("b", manifest("b", "i")), ["ADD b-n"]);
    assert_eq!(world.read("b", manifest("b", "i")), Vec::<String>::new());
    assert_eq!(world.read("b", manifest("b", "j")), ["REMOVE b-n", "ADD b-n"]);
    assert_eq!(world.read("a", FileContent::Gone), ["REMOVE a-n"]);
    assert_eq!(world.list(vec![]), ["REMOVE b-n"]);
}

#[test]
fn a_manifest_with_its_own_uid_is_updated_in_place() {
    let with_uid = |image: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, uid: own}}\nspec: {{containers: [{{name: c, image: '{image}'}}]}}\n"
        );
        FileContent::Bytes(text.into_bytes())
    };
    let mut world = World::listed(vec![file("a", with_uid("i"))]);
    assert_eq!(world.read("a", with_uid("j")), ["UPDATE a-n"]);
}

#[test]
fn a_bad_file_hides_no_other() {
    let mut world = World::new();
    world.step(FileEvent::Tick);
    let unreadable = FileContent::Unreadable("permission denied".to_owned());
    let files = vec![file("a", broken()), file("b", manifest("b", "i")), file("c", unreadable)];
    let actions = world.step(FileEvent::Listed(Listing::Directory(files.clone())));
    assert_eq!(actions, ["report bad /m/a false", "report bad /m/c false", "ADD b-n"]);
    // The same problems are not reported again.
    assert_eq!(world.list(files), Vec::<String>::new());
}

#[test]
fn a_file_that_turns_bad_keeps_its_pod_for_one_period() {
    for bad in [broken(), FileContent::Unreadable("EACCES".to_owned()), FileContent::Bytes(vec![])] {
        let mut world = World::listed(vec![file("a", manifest("a", "i"))]);
        world.later(5);
        assert_eq!(world.read("a", bad.clone()), ["report bad /m/a true"]);
        // The periodic check comes first, and is too early.
        assert_eq!(world.later(15).step(FileEvent::Tick), ["list"]);
        let bad_listing = || FileEvent::Listed(Listing::Directory(vec![file("a", bad.clone())]));
        assert_eq!(world.step(bad_listing()), Vec::<String>::new());
        // Twenty seconds after it turned bad.
        assert_eq!(world.source.deadline(), Some(world.now.mono.after(Duration::from_secs(5))));
        assert_eq!(world.later(5).step(FileEvent::Tick), ["list"]);
        assert_eq!(world.step(bad_listing()), ["report dropped /m/a", "REMOVE a-n"]);
        assert_eq!(world.later(20).step(FileEvent::Tick), ["list"]);
        assert_eq!(world.step(bad_listing()), Vec::<String>::new());
        assert_eq!(world.read("a", manifest("a", "i")), ["ADD a-n"]);
    }
}

#[test]
fn a_file_that_is_mended_in_time_loses_nothing() {
    let mut world = World::listed(vec![file("a", manifest("a", "i"))]);
    world.read("a", broken());
    assert_eq!(world.later(19).read("a", manifest("a", "i")), Vec::<String>::new());
    assert_eq!(world.later(1).list(vec![file("a", manifest("a", "i"))]), Vec::<String>::new());
}

#[test]
fn hints_during_a_request_repeat_it() {
    let mut world = World::listed(vec![]);
    let hint = |name: &str| FileEvent::Changed(Some(name.to_owned()));
    assert_eq!(world.step(hint("a")), ["read a"]);
    assert_eq!(world.step(hint("a")), Vec::<String>::new());
    assert_eq!(world.step(hint("a")), Vec::<String>::new());
    let stale = FileEvent::Read { name: "a".to_owned(), content: FileContent::Gone };
    assert_eq!(world.step(stale), ["read a"]);
    let fresh = FileEvent::Read { name: "a".to_owned(), content: manifest("a", "i") };
    assert_eq!(world.step(fresh), ["ADD a-n"]);

    assert_eq!(world.step(FileEvent::Changed(None)), ["list"]);
    assert_eq!(world.step(FileEvent::Changed(None)), Vec::<String>::new());
    assert_eq!(world.step(FileEvent::Listed(Listing::Missing)), ["list", "REMOVE a-n"]);
}

#[test]
fn two_files_with_one_name() {
    let mut world = World::new();
    world.step(FileEvent::Tick);
    let files = vec![file("b", manifest("same", "i")), file("a", manifest("same", "j"))];
    let actions = world.step(FileEvent::Listed(Listing::Directory(files.clone())));
    assert_eq!(actions, ["report duplicate same-n_default", "ADD same-n"]);
    assert_eq!(world.list(files), Vec::<String>::new());
    // Once the first is gone the second takes its place.
    assert_eq!(world.read("a", FileContent::Gone), ["REMOVE same-n", "ADD same-n"]);
}

#[test]
fn unknown_fields_and_api_references() {
    let unknown = FileContent::Bytes(
        b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i, imagee: x}]}".to_vec(),
    );
    let secret = FileContent::Bytes(
        b"apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: c, image: i}], imagePullSecrets: [{name: s}]}".to_vec(),
    );
    let mut world = World::new();
    world.step(FileEvent::Tick);
    let files = vec![file("a", unknown), file("b", secret)];
    let actions = world.step(FileEvent::Listed(Listing::Directory(files)));
    let expected =
        ["report unknown /m/a [\"spec.containers[0].imagee\"]", "report bad /m/b false", "ADD a-n"];
    assert_eq!(actions, expected);
    let problem = &world.source.manifests["b"].bad.as_ref().unwrap().problem;
    assert_eq!(problem, "static pods may not reference secrets");
    let present: Vec<String> =
        world.source.problems().into_iter().map(|p| format!("{} {}", p.path, p.problem)).collect();
    assert_eq!(
        present,
        [
            "/m/a unknown fields are ignored: spec.containers[0].imagee",
            "/m/b refused: static pods may not reference secrets",
        ]
    );
    // A file that turned bad, and the ends of all problems.
    world.read("a", broken());
    assert!(world.source.problems()[0].problem.starts_with("refused, its last good pod runs for now: "));
    world.read("a", manifest("a", "i"));
    world.read("b", FileContent::Gone);
    assert_eq!(world.source.problems(), []);
    world.step(FileEvent::Changed(None));
    world.step(FileEvent::Listed(Listing::Failed("EACCES".to_owned())));
    let problem = world.source.problems().remove(0);
    assert_eq!((problem.path.as_str(), problem.problem.as_str()), ("/m", "cannot be listed: EACCES"));
}

fn content() -> impl Strategy<Value = FileContent> {
    prop_oneof![
        Just(FileContent::Gone),
        Just(FileContent::Unreadable("EIO".to_owned())),
        Just(broken()),
        ("[ab]", "[ij]").prop_map(|(name, image)| manifest(&name, &image)),
    ]
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), Just("b".to_owned()), Just(".c".to_owned()), Just("d/e".to_owned())]
}

fn event() -> impl Strategy<Value = FileEvent> {
    prop_oneof![
        Just(FileEvent::Tick),
        Just(FileEvent::Listed(Listing::Missing)),
        Just(FileEvent::Listed(Listing::Failed("EACCES".to_owned()))),
        proptest::collection::vec((names(), content()), 0..3)
            .prop_map(|files| FileEvent::Listed(Listing::Directory(files))),
        content().prop_map(|c| FileEvent::Listed(Listing::File(c))),
        (names(), content()).prop_map(|(name, content)| FileEvent::Read { name, content }),
        proptest::option::of(names()).prop_map(FileEvent::Changed),
        names().prop_map(FileEvent::Removed),
    ]
}

proptest! {
    /// For all events in any order: the updates add up to the state, names are unique, and once what was asked for was
    /// answered and a good listing was absorbed twice a period apart, the source holds what a restarted source would
    /// hold.
    #[test]
    fn updates_add_up_and_a_restart_arrives_at_the_same(
        events in proptest::collection::vec((event(), 0u64..30), 0..40),
        last in proptest::collection::vec((names(), content()), 0..4),
    ) {
        let mut world = World::new();
        let mut told = BTreeMap::new();
        let listing = FileEvent::Listed(Listing::Directory(last.clone()));
        let mut settle = vec![(listing.clone(), 21), (listing.clone(), 0)];
        let mut events: VecDeque<(FileEvent, u64)> = events.into();
        loop {
            let asked = world.source.reading.keys().next().filter(|_| events.is_empty());
            let answer = asked.map(|name| {
                let found = last.iter().rfind(|(file, _)| file == name);
                let content = found.map_or(FileContent::Gone, |(_, content)| content.clone());
                (FileEvent::Read { name: name.clone(), content }, 0)
            });
            let Some((event, seconds)) = events.pop_front().or(answer).or_else(|| settle.pop()) else { break };
            world.later(seconds);
            let mut out = Outbox::new();
            world.source.step(world.now, event, &mut out);
            for action in out.drain() {
                let FileAction::Deliver(update) = action else { continue };
                for pod in update.pods {
                    let uid = pod::uid(&pod).to_owned();
                    match update.op {
                        PodOp::Remove => prop_assert!(told.remove(&uid).is_some()),
                        PodOp::Add => prop_assert!(told.insert(uid, pod::full_name(&pod)).is_none()),
                        _ => prop_assert!(told.contains_key(&uid)),
                    }
                }
            }
            let unique: BTreeSet<_> = told.values().collect();
            prop_assert_eq!(unique.len(), told.len());
        }
        let mut restarted = World::new();
        let mut out = Outbox::new();
        restarted.source.step(restarted.now, listing, &mut out);
        let pods = |source: &FileSource| -> Vec<String> {
            source.manifests.values().filter_map(|m| m.pod.as_ref()).map(|p| pod::uid(p).to_owned()).collect()
        };
        prop_assert_eq!(pods(&world.source), pods(&restarted.source));
    }
}
