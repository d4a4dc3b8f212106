//! Typed thresholds.

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn the_defaults() {
    let all = thresholds(&KubeletConfiguration::default()).expect("valid");
    let text: Vec<String> = all
        .iter()
        .map(|t| match &t.value {
            Amount::Quantity(q) => format!("{} {}", t.signal.as_str(), q.value()),
            Amount::Share(s) => format!("{} {s}", t.signal.as_str()),
        })
        .collect();
    assert_eq!(
        text,
        [
            "memory.available 104857600",
            "nodefs.available 0.1",
            "nodefs.inodesFree 0.05",
            "imagefs.available 0.15",
            "imagefs.inodesFree 0.05",
            "allocatableMemory.available 104857600",
        ]
    );
    assert!(all.iter().all(|t| t.grace_period.is_none() && t.min_reclaim.is_none()));
}

#[test]
fn soft_thresholds_reclaims_and_switched_off_ones() {
    let config = KubeletConfiguration {
        eviction_hard: map(&[
            ("memory.available", "0%"),
            ("pid.available", "100%"),
            ("nodefs.available", "5%"),
        ]),
        eviction_soft: map(&[("memory.available", "1Gi")]),
        eviction_soft_grace_period: map(&[("memory.available", "1m30s")]),
        eviction_minimum_reclaim: map(&[("memory.available", "500Mi"), ("nodefs.available", "1%")]),
        ..KubeletConfiguration::default()
    };
    let all = thresholds(&config).expect("valid");
    assert_eq!(all.len(), 2, "0% and 100% are off; a soft one makes no allocatable threshold");
    assert_eq!((all[0].signal, &all[0].min_reclaim), (Signal::NodefsAvailable, &Some(Amount::Share(0.01))));
    assert_eq!(all[1].grace_period, Some(Duration::from_secs(90)));
    let none =
        KubeletConfiguration { enforce_node_allocatable: Vec::new(), ..KubeletConfiguration::default() };
    assert_eq!(thresholds(&none).expect("valid").len(), 5, "allocatable follows enforcement");
}

#[test]
fn wrong_amounts() {
    for bad in ["", "%", "-1%", "1e1%", "0", "-5", "5 %", "1.2.3%", "+5%", "nan%", "inf%"] {
        let config = KubeletConfiguration {
            eviction_hard: map(&[("memory.available", bad)]),
            ..KubeletConfiguration::default()
        };
        let problems = thresholds(&config).expect_err(bad);
        assert_eq!(problems[0].path, "evictionHard.\"memory.available\"");
        assert_eq!(problems[0].value.as_deref(), Some(bad));
    }
}
