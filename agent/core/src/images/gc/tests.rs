//! Image collection: thresholds, ages, ranking, and images that are never removed.

use agent_types::time::Wall;
use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

fn at(minutes: u32) -> Mono {
    Mono(0).after(MINUTE * minutes)
}

fn policy(maximum_minutes: u32) -> Policy {
    Policy {
        high_percent: 85,
        low_percent: 80,
        minimum_age: 2 * MINUTE,
        maximum_age: (maximum_minutes > 0).then_some(MINUTE * maximum_minutes),
    }
}

fn image(id: &str) -> ImageInfo {
    ImageInfo {
        id: id.into(),
        uid: None,
        username: String::new(),
        size_bytes: 7,
        repo_tags: vec![format!("r.example/{id}:1")],
        repo_digests: vec![format!("r.example/{id}@sha256:{id}")],
        pinned: false,
    }
}

fn used(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn ids(candidates: &[Candidate]) -> Vec<&str> {
    candidates.iter().map(|c| c.id.as_str()).collect()
}

fn disk(capacity_bytes: u64, available_bytes: u64) -> Filesystem {
    Filesystem {
        at: Wall(0),
        available_bytes,
        capacity_bytes,
        used_bytes: capacity_bytes.saturating_sub(available_bytes),
        inodes: None,
        inodes_free: None,
    }
}

#[test]
fn thresholds() {
    let gc = ImageGc::new(policy(0), at(0));
    let wanted = |capacity, available| gc.need(&disk(capacity, available)).map(|n| n.map(|n| n.wanted_bytes));
    assert_eq!(wanted(1000, 151), Ok(Some(49)), "85 % by upstream's rounding");
    assert_eq!(wanted(1000, 160), Ok(None));
    assert_eq!(wanted(1000, 0), Ok(Some(200)));
    assert_eq!(wanted(1000, 5000), Ok(None), "more is free than there is");
    assert_eq!(wanted(0, 0), Err(InvalidCapacity));
    assert_eq!(wanted(u64::MAX, 0), Ok(Some(u64::MAX / 5)));
    let need = gc.need(&disk(10 << 30, 0)).unwrap().unwrap();
    assert!(need.unmet(5).contains("(100% of 10.0 GiB used)") && need.unmet(5).contains("(freed 5 bytes)"));
    for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")] {
        assert_eq!(size(bytes), text);
    }
}

#[test]
fn the_longest_unused_goes_first_and_the_never_used_before_it() {
    let mut gc = ImageGc::new(policy(0), at(0));
    let all = [image("a"), image("b"), image("c"), image("d")];
    gc.detect(at(0), &all, &used(&["a", "r.example/b:1", "r.example/c@sha256:c"]), &BTreeMap::new());
    gc.detect(at(5), &all[..3], &used(&["a"]), &BTreeMap::new());
    gc.detect(at(6), &all, &used(&[]), &BTreeMap::new());
    assert_eq!(ids(&gc.for_space(at(8))), ["d", "b", "c", "a"], "d was gone and came again");
    assert_eq!(ids(&gc.for_space(at(7))), ["b", "c", "a"], "d came less than two minutes ago");
    gc.removed(&"b".into());
    assert_eq!(ids(&gc.for_space(at(7))), ["c", "a"]);
}

#[test]
fn what_is_used_or_pinned_stays() {
    let mut gc = ImageGc::new(policy(1), at(0));
    let pinned = ImageInfo { pinned: true, ..image("pause") };
    gc.detect(at(0), &[pinned, image("a"), image("b")], &used(&["r.example/a:1"]), &BTreeMap::new());
    assert_eq!(ids(&gc.for_space(at(60))), ["b"]);
    assert_eq!(ids(&gc.by_age(at(60))), ["b"]);
}

#[test]
fn ages_count_from_when_the_agent_began_to_watch() {
    let mut gc = ImageGc::new(policy(10), at(0));
    gc.detect(at(0), &[image("a"), image("b")], &used(&["b"]), &BTreeMap::new());
    assert!(gc.by_age(at(10)).is_empty(), "not watched for longer than ten minutes yet");
    gc.detect(at(11), &[image("a"), image("b"), image("new")], &used(&[]), &BTreeMap::new());
    assert_eq!(ids(&gc.by_age(at(11))), ["a", "b"]);
    assert_eq!(ids(&gc.by_age(at(22))), ["a", "new", "b"]);
    assert!(ImageGc::new(policy(0), at(0)).by_age(at(99)).is_empty());
    assert!(Policy { high_percent: 100, ..policy(0) }.is_off() && !policy(0).is_off());
}

#[test]
fn one_that_comes_between_two_looks_is_as_old_as_the_first_question_for_it() {
    let mut gc = ImageGc::new(policy(0), at(0));
    gc.detect(at(0), &[image("a")], &used(&[]), &BTreeMap::new());
    let asked = [("r.example/a:1", 4), ("r.example/b:1", 2), ("b", 3)].map(|(n, m)| (n.to_owned(), at(m)));
    gc.detect(at(4), &[image("a"), image("b"), image("c")], &used(&[]), &asked.clone().into());
    assert_eq!(ids(&gc.for_space(at(4))), ["a", "b"], "who was seen before is as old as that");
    let mut later = ImageGc::new(policy(0), at(3));
    later.detect(at(4), &[image("b")], &used(&[]), &asked.into());
    assert_eq!(ids(&later.for_space(at(4))), [""; 0], "nothing is older than the agent's watch");
}

proptest! {
    #[test]
    fn never_in_use_never_pinned_never_young_and_always_in_the_same_order(
        steps in proptest::collection::vec((0_u32..4, proptest::collection::vec((0_u8..6, any::<bool>(), any::<bool>()), 0..8)), 1..8),
    ) {
        let (mut gc, mut other) = (ImageGc::new(policy(3), at(0)), ImageGc::new(policy(3), at(0)));
        let (mut now, mut seen) = (0, BTreeMap::<String, u32>::new());
        for (minutes, listed) in steps {
            now += minutes;
            let listed: BTreeMap<u8, (bool, bool)> = listed.into_iter().map(|(n, u, p)| (n, (u, p))).collect();
            let images: Vec<ImageInfo> =
                listed.iter().map(|(n, (_, pinned))| ImageInfo { pinned: *pinned, ..image(&n.to_string()) }).collect();
            let in_use: BTreeSet<String> =
                listed.iter().filter(|(_, (used, _))| *used).map(|(n, _)| format!("r.example/{n}:1")).collect();
            seen.retain(|id, _| images.iter().any(|i| i.id.as_str() == id));
            for i in &images {
                seen.entry(i.id.to_string()).or_insert(now);
            }
            gc.detect(at(now), &images, &in_use, &BTreeMap::new());
            let backwards: Vec<ImageInfo> = images.iter().rev().cloned().collect();
            other.detect(at(now), &backwards, &in_use, &BTreeMap::new());
            let found = gc.for_space(at(now));
            prop_assert_eq!(&found, &other.for_space(at(now)));
            for c in found.iter().chain(&gc.by_age(at(now))) {
                let (used, pinned) = listed[&c.id.as_str().parse::<u8>().unwrap()];
                prop_assert!(!used && !pinned && now - seen[c.id.as_str()] >= 2);
            }
        }
    }
}
