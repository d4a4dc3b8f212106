//! The order of eviction: upstream's rules as a table, and independence of the order of the pods.

use proptest::prelude::*;

use super::*;

fn ranked(pods: &[Arc<Pod>], found: &Uses, signal: Signal, layout: Layout) -> Vec<String> {
    names(&rank(pods, found, signal, layout)).into_iter().map(str::to_owned).collect()
}

fn mebi(number: i64) -> Value {
    json!({"memory": format!("{number}Mi")})
}

#[test]
fn memory_by_excess_then_priority_then_amount() {
    let pods = [
        pod_of("within-low", 0, &mebi(100)),
        pod_of("within-high", 9, &mebi(100)),
        pod_of("best-effort", 0, &json!({})),
        pod_of("best-effort-high", 9, &json!({})),
        pod_of("over-little", 0, &mebi(100)),
        pod_of("over-much", 0, &mebi(10)),
        pod_of("unknown-high", 9, &mebi(100)),
        pod_of("unknown", 0, &mebi(100)),
    ];
    let of = |memory: i64| using(memory * MI, 1, Space::default());
    let found = uses([
        ("within-low", of(100)),
        ("within-high", of(1)),
        ("best-effort", of(30)),
        ("best-effort-high", of(300)),
        ("over-little", of(120)),
        ("over-much", of(95)),
    ]);
    for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable] {
        assert_eq!(
            ranked(&pods, &found, signal, Layout::default()),
            [
                "unknown",
                "unknown-high",
                "over-much",
                "best-effort",
                "over-little",
                "best-effort-high",
                "within-low",
                "within-high",
            ]
        );
    }
}

#[test]
fn pids_by_priority_then_processes() {
    let pods = [pod_of("few", 0, &json!({})), pod_of("many", 0, &json!({})), pod_of("high", 1, &json!({}))];
    let of = |processes| using(0, processes, Space::default());
    let found = uses([("few", of(2)), ("many", of(3)), ("high", of(9))]);
    assert_eq!(ranked(&pods, &found, Signal::PidAvailable, Layout::default()), ["many", "few", "high"]);
    let some = uses([("many", of(3)), ("high", of(9))]);
    assert_eq!(ranked(&pods, &some, Signal::PidAvailable, Layout::default()), ["few", "many", "high"]);
}

#[test]
fn disks_by_what_is_on_them() {
    let asked = json!({"ephemeral-storage": "50Mi"});
    let pods = [pod_of("layers", 0, &asked), pod_of("logs", 0, &asked), pod_of("volumes", 0, &asked)];
    let volume = |ephemeral| VolumeUse { name: "v".to_owned(), space: space(70 * MI, 9), ephemeral };
    let mut logs = using(0, 0, Space::default());
    logs.containers[0].logs = Some(space(60 * MI, 3));
    let mut volumes = using(0, 0, Space::default());
    volumes.volumes = vec![volume(true)];
    let found =
        uses([("layers", using(0, 0, space(80 * MI, 5))), ("logs", logs), ("volumes", volumes.clone())]);
    let images = Layout { dedicated_images: true, split_containers: false };
    let split = Layout { dedicated_images: true, split_containers: true };
    let by_size = ["layers", "volumes", "logs"];
    let without_layers = ["volumes", "logs", "layers"];
    for (signal, layout, expected) in [
        (Signal::NodefsAvailable, Layout::default(), by_size),
        (Signal::ImagefsAvailable, Layout::default(), by_size),
        (Signal::ContainerfsAvailable, Layout::default(), by_size),
        (Signal::NodefsAvailable, images, without_layers),
        (Signal::ImagefsAvailable, images, ["layers", "logs", "volumes"]),
        (Signal::ContainerfsAvailable, images, ["layers", "logs", "volumes"]),
        (Signal::NodefsAvailable, split, by_size),
        (Signal::ContainerfsAvailable, split, by_size),
        // Nothing of a pod is there: only the names are left to decide.
        (Signal::ImagefsAvailable, split, ["layers", "logs", "volumes"]),
    ] {
        assert_eq!(ranked(&pods, &found, signal, layout), expected, "{signal:?} {layout:?}");
    }
    let inodes = |layout| ranked(&pods, &found, Signal::NodefsInodesFree, layout);
    assert_eq!(inodes(Layout::default()), ["volumes", "layers", "logs"]);
    volumes.volumes = vec![volume(false)];
    let tmpfs = uses([("volumes", volumes), ("layers", using(0, 0, space(MI, 1)))]);
    let two = [pods[2].clone(), pods[0].clone()];
    assert_eq!(ranked(&two, &tmpfs, Signal::NodefsAvailable, Layout::default()), ["layers", "volumes"]);
}

#[test]
fn what_could_not_be_counted_is_the_most() {
    let pods = [pod_of("large", 0, &json!({})), pod_of("hides", 0, &json!({"ephemeral-storage": "1Ti"}))];
    let mut hides = using(0, 0, Space::default());
    hides.own_files = Some(Space { bound: Bound::AtLeast, ..Space::default() });
    let found = uses([("large", using(0, 0, space(MI << 30, 1 << 40))), ("hides", hides)]);
    for signal in [Signal::NodefsAvailable, Signal::NodefsInodesFree] {
        assert_eq!(ranked(&pods, &found, signal, Layout::default()), ["hides", "large"], "{signal:?}");
    }
    let images = Layout { dedicated_images: true, split_containers: false };
    let ranked = ranked(&pods, &found, Signal::ImagefsAvailable, images);
    assert_eq!(ranked, ["large", "hides"], "its files are on another disk");
}

#[test]
fn what_a_pod_asks_for_as_a_whole_counts_and_overhead_beside_it() {
    let whole = pod_with(
        "p",
        json!({"overhead": {"memory": "1Mi"}, "resources": {"requests": {"memory": "10Mi"}},
            "containers": [{"name": "c", "resources": {"requests": {"memory": "5Mi", "ephemeral-storage": "1Gi"}}}]}),
    );
    assert_eq!(rank::request(&whole, "memory").value(), 11 * MI);
    assert!(rank::request(&whole, "ephemeral-storage").is_zero());
    let none = pod_with("p", json!({"overhead": {"memory": "1Mi"}, "containers": [{"name": "c"}]}));
    assert!(rank::request(&none, "memory").is_zero());
}

const SIGNALS: [Signal; 9] = orlop_config::kubelet::eviction::SIGNALS;

type GeneratedPod = (i32, Option<u8>, Option<(u8, u8, u8)>);

fn made(of: &[GeneratedPod]) -> (Vec<Arc<Pod>>, Uses) {
    let pod = |(index, (priority, asked, _)): (usize, &GeneratedPod)| {
        let asked = asked.map_or_else(|| json!({}), |n| json!({"memory": n, "ephemeral-storage": n}));
        pod_of(&format!("p{index}"), *priority, &asked)
    };
    let found = of.iter().enumerate().filter_map(|(index, (_, _, found))| {
        let (memory, processes, bytes) = (*found)?;
        let found =
            using(i64::from(memory), u64::from(processes), space(i64::from(bytes), u64::from(memory)));
        Some((format!("p{index}").as_str().into(), found))
    });
    (of.iter().enumerate().map(pod).collect(), found.collect())
}

proptest! {
    /// A total order: equal for every order of the pods, without a loss, and equal for any part of them.
    #[test]
    fn the_order_is_of_the_pods_alone(
        of in proptest::collection::vec(
            (0..3_i32, proptest::option::of(0..4_u8), proptest::option::of((0..4_u8, 0..3_u8, 0..4_u8))), 0..9,
        ),
        turn in any::<usize>(),
        signal in proptest::sample::select(&SIGNALS[..]),
        dedicated_images in any::<bool>(),
        split in any::<bool>(),
    ) {
        let (pods, found) = made(&of);
        let layout = Layout { dedicated_images, split_containers: dedicated_images && split };
        let order = ranked(&pods, &found, signal, layout);
        prop_assert_eq!(order.len(), pods.len());
        let mut turned = pods.clone();
        turned.reverse();
        let by = turn % turned.len().max(1);
        turned.rotate_left(by);
        prop_assert_eq!(&ranked(&turned, &found, signal, layout), &order);
        let half = &pods[..pods.len() / 2];
        let of_half: Vec<String> = order.iter().filter(|n| names(half).contains(&n.as_str())).cloned().collect();
        prop_assert_eq!(ranked(half, &found, signal, layout), of_half);
    }
}
