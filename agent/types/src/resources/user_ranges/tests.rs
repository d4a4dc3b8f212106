//! Ranges given, kept and freed, as a table and against a model.

use proptest::prelude::*;

use super::*;

fn uid(n: usize) -> PodUid {
    PodUid::from(format!("u{n}"))
}

fn small() -> UserRanges {
    UserRanges::new(UNIT, Some((2 * UNIT, 3 * UNIT)), 3).unwrap()
}

fn record(host_id: u32, length: u32) -> Vec<u8> {
    serde_json::to_vec(&Record::from(IdMapping { host_id, container_id: 0, length })).unwrap()
}

#[test]
fn a_range_each_kept_and_given_again_last() {
    let mut ranges = small();
    let give =
        |ranges: &mut UserRanges, n: usize| ranges.give(&uid(n)).map(|(m, new)| (m.host_id / UNIT, new));
    assert_eq!(give(&mut ranges, 1), Ok((2, true)));
    assert_eq!(give(&mut ranges, 1), Ok((2, false)));
    assert_eq!(give(&mut ranges, 2), Ok((3, true)));
    ranges.release(&uid(1));
    assert_eq!(give(&mut ranges, 3), Ok((4, true)));
    assert_eq!(give(&mut ranges, 4), Ok((2, true)));
    assert_eq!(give(&mut ranges, 5), Err(RangeError::Exhausted(3)));
    ranges.release(&uid(5));
    ranges.release(&uid(3));
    assert_eq!(give(&mut ranges, 5), Ok((4, true)));
}

#[test]
fn a_record_is_upstreams_and_comes_back() {
    let mut ranges = small();
    let (mapping, _) = ranges.give(&uid(1)).unwrap();
    let text = serde_json::to_string(&Record::from(mapping)).unwrap();
    let one = r#"[{"hostId":131072,"containerId":0,"length":65536}]"#;
    assert_eq!(text, format!(r#"{{"uidMappings":{one},"gidMappings":{one}}}"#));
    let mut later = small();
    assert_eq!(later.restore(&uid(1), text.as_bytes()), Ok(mapping));
    assert_eq!(later.restore(&uid(1), text.as_bytes()), Ok(mapping), "again");
    assert_eq!(later.give(&uid(1)), Ok((mapping, false)));
    assert_eq!(later.give(&uid(2)).unwrap().0.host_id, 3 * UNIT);
}

#[test]
fn nobody_is_given_ids_that_a_broken_record_may_mean() {
    let with =
        |uids: &str, gids: &str| format!(r#"{{"uidMappings":[{uids}],"gidMappings":[{gids}]}}"#).into_bytes();
    let one = |host: u32, own: u32| format!(r#"{{"hostId":{host},"containerId":{own},"length":65536}}"#);
    let table = [
        (b"{".to_vec(), "EOF"),
        (with("", ""), "exactly one mapping"),
        (with(&one(131_072, 0), ""), "exactly one mapping"),
        (with(&one(131_072, 0), &one(196_608, 0)), "mapped differently"),
        (with(&one(131_072, 1), &one(131_072, 1)), "id 0 is not mapped"),
        (record(131_072, 2 * UNIT), "has 131072 ids"),
        (record(65_536, UNIT), "begins no range"),
        (record(131_073, UNIT), "begins no range"),
        (record(5 * UNIT, UNIT), "begins no range"),
        (record(2 * UNIT, UNIT), "pod u9's already"),
    ];
    for (text, words) in table {
        let mut ranges = small();
        ranges.restore(&uid(9), &record(2 * UNIT, UNIT)).unwrap();
        let said = ranges.restore(&uid(1), &text).unwrap_err().to_string();
        assert!(said.contains(words) && said.contains("pod u1"), "{said}");
        assert!(ranges.give(&uid(2)).is_err(), "{said}");
        assert!(ranges.give(&uid(9)).is_ok(), "who has a range keeps it");
        ranges.release(&uid(1));
        assert!(ranges.give(&uid(2)).is_ok(), "{said}");
    }
}

#[test]
fn settings() {
    let whole = UserRanges::new(UNIT, None, 110).unwrap();
    assert_eq!((whole.first, whole.count), (UNIT, 65_535));
    let wide = UserRanges::new(1 << 20, None, 110).unwrap();
    assert_eq!((wide.first, wide.count), (1 << 20, 4095));
    let top = UserRanges::new(UNIT, Some((65_535 * UNIT, UNIT)), 1).unwrap();
    assert_eq!(top.clone().give(&uid(1)).unwrap().0.host_id, 65_535 * UNIT);
    for (ids, subordinate, pods, words) in [
        (0, None, 1, "multiple of 65536"),
        (65_537, None, 1, "multiple of 65536"),
        (UNIT, Some((65_537, UNIT)), 1, "no multiples"),
        (UNIT, Some((UNIT, 65_537)), 1, "no multiples"),
        (UNIT, Some((0, UNIT)), 1, "begin below"),
        (UNIT, Some((UNIT, 2 * UNIT)), 3, "not enough for 3 pods"),
        (1 << 31, None, 2, "not enough for 2 pods"),
        (UNIT, Some((65_535 * UNIT, 2 * UNIT)), 2, "not enough for 2 pods"),
    ] {
        let said = UserRanges::new(ids, subordinate, pods).unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn subordinate_ids_of_a_user() {
    let text = "other:1:2\nkubelet:65536:2147483648\nkubelets:3:4\n";
    assert_eq!(subordinate_ids(text, "kubelet"), Ok((65_536, 2_147_483_648)));
    for (text, words) in [
        ("", "exactly one line"),
        ("kubelet:1:2\nkubelet:3:4", "exactly one line"),
        ("kubelet:1", "kubelet:1 is no line"),
        ("kubelet:1:4294967296", "no line"),
        ("kubelet:x:y", "no line"),
    ] {
        let said = subordinate_ids(text, "kubelet").unwrap_err().to_string();
        assert!(said.contains(words), "{text:?}: {said}");
    }
}

proptest! {
    #[test]
    fn no_two_pods_share_an_id(steps in prop::collection::vec((0usize..6, 0..3), 0..60)) {
        let mut ranges = small();
        let mut disk: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for (pod, what) in steps {
            match what {
                0 => match ranges.give(&uid(pod)) {
                    Ok((mapping, new)) => {
                        prop_assert_eq!(new, !disk.contains_key(&pod));
                        let text = serde_json::to_vec(&Record::from(mapping)).unwrap();
                        prop_assert!(disk.insert(pod, text.clone()).is_none_or(|before| before == text));
                    }
                    Err(_) => prop_assert!(disk.len() == 3 && !disk.contains_key(&pod)),
                },
                1 => {
                    ranges.release(&uid(pod));
                    disk.remove(&pod);
                }
                _ => {
                    ranges = small();
                    for (pod, text) in &disk {
                        ranges.restore(&uid(*pod), text).unwrap();
                    }
                }
            }
            let all: BTreeSet<&Vec<u8>> = disk.values().collect();
            prop_assert_eq!(all.len(), disk.len());
        }
    }

    #[test]
    fn records_never_panic(text in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = small().restore(&uid(1), &text);
    }
}
