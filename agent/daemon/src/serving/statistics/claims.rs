//! `kubelet_volume_stats_*`: usage of the volumes of claims.
//!
//! In: pods with their claims, measured volumes. Out: the text for `/metrics`. Invariants: one series for a
//! claim, also if several pods use it; a volume without a measurement has no series. Upstream:
//! pkg/kubelet/metrics/collectors/volume_stats.go.

use std::collections::BTreeMap;

use agent_kubelet_api::stats::ShownPod;
use agent_kubelet_api::stats::disk::VolumeUse;
use agent_kubelet_api::stats::exposition::{Exposition, Kind};

type Amount = fn(&VolumeUse) -> Option<u64>;

const FAMILIES: [(&str, &str, Amount); 7] = [
    ("available_bytes", "Bytes that may still be taken of the claim's volume.", |v| {
        Some(v.filesystem?.available_bytes)
    }),
    ("capacity_bytes", "Size of the claim's volume, bytes.", |v| Some(v.filesystem?.capacity_bytes)),
    (
        "health_status_abnormal",
        "1 if the driver says that something is wrong with the claim's volume, else 0.",
        |v| v.abnormal.map(u64::from),
    ),
    ("inodes", "Inodes of the claim's volume.", |v| v.filesystem?.inodes),
    ("inodes_free", "Inodes that may still be taken of the claim's volume.", |v| v.filesystem?.inodes_free),
    ("inodes_used", "Inodes that are taken of the claim's volume.", |v| Some(v.taken?.inodes)),
    ("used_bytes", "Bytes that are taken of the claim's volume.", |v| Some(v.taken?.bytes)),
];

/// The text; `uses` are by the pod's UID and the volume's name.
pub(super) fn text(shown: &[ShownPod], uses: &BTreeMap<(String, String), VolumeUse>) -> String {
    let mut claims = BTreeMap::<(&str, &str), &VolumeUse>::new();
    for pod in shown {
        for volume in &pod.volumes {
            let Some(claim) = &volume.claim else { continue };
            if let Some(found) = uses.get(&(pod.uid.clone(), volume.name.clone())) {
                claims.entry((&pod.namespace, claim)).or_insert(found);
            }
        }
    }
    let mut out = Exposition::default();
    for (name, help, amount) in FAMILIES {
        let samples = claims.iter().filter_map(|((namespace, claim), found)| {
            let labels = vec![("namespace", *namespace), ("persistentvolumeclaim", *claim)];
            Some((labels, amount(found)? as f64))
        });
        out.family((&format!("kubelet_volume_stats_{name}"), Kind::Gauge, help), samples, None);
    }
    out.into_text()
}

#[cfg(test)]
mod tests {
    use agent_kubelet_api::stats::ShownVolume;
    use agent_types::time::Wall;
    use agent_volumes::csi::request::{Amounts, BytesAndInodes, Condition, Usage};

    use super::*;

    fn pod(uid: &str, claims: &[(&str, Option<&str>)]) -> ShownPod {
        let volume = |(name, claim): &(&str, Option<&str>)| ShownVolume {
            name: (*name).to_owned(),
            claim: claim.map(str::to_owned),
            ..ShownVolume::default()
        };
        ShownPod {
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            started: None,
            containers: Vec::new(),
            volumes: claims.iter().map(volume).collect(),
        }
    }

    #[test]
    fn a_claim_is_told_once_and_only_what_is_measured() {
        let pods = [
            pod("u1", &[("a", Some("c")), ("e", None), ("n", Some("none"))]),
            pod("u2", &[("b", Some("c"))]),
        ];
        let amounts = BytesAndInodes {
            bytes: Amounts { available: 6, total: 10, used: 4 },
            inodes: Amounts { available: 2, total: 5, used: 3 },
        };
        let usage = Usage { amounts: Some(amounts), condition: Some(Condition::default()) };
        let found = VolumeUse::from_driver(&usage, Wall(0));
        let key = |uid: &str, name: &str| (uid.to_owned(), name.to_owned());
        let uses = [(key("u1", "a"), found), (key("u2", "b"), found), (key("u1", "e"), found)].into();
        let told = text(&pods, &uses);
        let samples: Vec<&str> = told.lines().filter(|line| !line.starts_with('#')).collect();
        let of = "{namespace=\"ns\",persistentvolumeclaim=\"c\"}";
        let expected = [
            ("available_bytes", 6),
            ("capacity_bytes", 10),
            ("health_status_abnormal", 0),
            ("inodes", 5),
            ("inodes_free", 2),
            ("inodes_used", 3),
            ("used_bytes", 4),
        ];
        assert_eq!(samples, expected.map(|(name, n)| format!("kubelet_volume_stats_{name}{of} {n}")));
        let bytes_alone = VolumeUse { filesystem: None, abnormal: None, ..found };
        let told = text(&pods, &[(key("u1", "a"), bytes_alone)].into());
        assert!(
            told.contains("_used_bytes{") && !told.contains("capacity") && !told.contains("health"),
            "{told}"
        );
        assert!(text(&pods, &BTreeMap::new()).is_empty());
    }
}
