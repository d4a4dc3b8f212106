//! Sizes, kinds and ends of groups; lists that come late; a restart of the agent.

use agent_types::ids::{IdMapping, PodKey};
use agent_types::runtime::config::{LinuxResources, SandboxSecurity};

use super::*;

fn config(change: impl FnOnce(&mut SandboxConfig)) -> SandboxConfig {
    let mut config = SandboxConfig {
        pod: PodKey { namespace: "ns".into(), name: "p".into(), uid: "u".into() },
        attempt: 0,
        hostname: String::new(),
        log_directory: String::new(),
        dns: None,
        port_mappings: Vec::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        runtime_handler: String::new(),
        cgroup_parent: String::new(),
        sysctls: BTreeMap::new(),
        security: SandboxSecurity::default(),
        overhead: LinuxResources::default(),
        resources: LinuxResources::default(),
    };
    change(&mut config);
    config
}

fn attempt(uid: &str) -> Attempt {
    (uid.into(), 0)
}

fn sandbox(uid: &str, ready: bool, group: Option<&str>) -> ListedSandbox {
    let id = format!("sandbox-of-{uid}").into();
    ListedSandbox { id, uid: uid.into(), attempt: 0, ready, shim_group: group.map(str::to_owned) }
}

/// Asks for a list, gets this one, and places the pod.
fn place(groups: &mut ShimGroups, listed: &[ListedSandbox], uid: &str, kind: ShimSharing) -> Option<String> {
    let look = groups.begin_look();
    groups.listed(look, listed);
    groups.place(listed, &attempt(uid), kind)
}

/// The runtime's list once all of these run.
fn all(placed: &[(String, Option<String>)]) -> Vec<ListedSandbox> {
    placed.iter().map(|(uid, group)| sandbox(uid, true, group.as_deref())).collect()
}

/// Places the pods one after the other; each runs before the next one comes.
fn run(groups: &mut ShimGroups, pods: u32, kind: ShimSharing) -> Vec<(String, Option<String>)> {
    let mut placed = Vec::new();
    for n in 0..pods {
        let uid = format!("{kind:?}-{n}");
        let group = place(groups, &all(&placed), &uid, kind);
        groups.ended(&attempt(&uid), group.as_deref(), Some(&sandbox(&uid, true, None).id));
        placed.push((uid, group));
    }
    placed
}

fn sizes(placed: &[(String, Option<String>)]) -> Vec<usize> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for group in placed.iter().filter_map(|(_, group)| group.as_deref()) {
        *sizes.entry(group).or_default() += 1;
    }
    let mut sizes: Vec<usize> = sizes.into_values().collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn twenty_pods_have_two_shims_of_sixteen() {
    for (per_shim, expected) in [(16, vec![4, 16]), (20, vec![20]), (7, vec![6, 7, 7]), (2, vec![2; 10])] {
        let placed = run(&mut ShimGroups::new(per_shim), 20, ShimSharing::Plain);
        assert_eq!(sizes(&placed), expected, "{per_shim}");
    }
}

#[test]
fn with_one_pod_for_each_shim_no_pod_has_a_group() {
    let mut groups = ShimGroups::new(1);
    assert!(!groups.shares(ShimSharing::Plain));
    assert_eq!(sizes(&run(&mut groups, 3, ShimSharing::Plain)), [0_usize; 0]);
}

#[test]
fn pods_that_start_at_once_count_before_they_are_listed() {
    let mut groups = ShimGroups::new(2);
    let placed: Vec<_> =
        (0..5).map(|n| place(&mut groups, &[], &n.to_string(), ShimSharing::Plain)).collect();
    let placed: Vec<_> = placed.into_iter().enumerate().map(|(n, group)| (n.to_string(), group)).collect();
    assert_eq!(sizes(&placed), [1, 2, 2]);
}

#[test]
fn a_list_that_was_asked_for_before_the_end_of_a_call_does_not_free_its_place() {
    let mut groups = ShimGroups::new(2);
    let first = place(&mut groups, &[], "a", ShimSharing::Plain).unwrap();
    let early = groups.begin_look();
    groups.ended(&attempt("a"), Some(first.as_str()), Some(&"sandbox-of-a".into()));
    groups.listed(early, &[]);
    assert_eq!(groups.place(&[], &attempt("b"), ShimSharing::Plain).as_ref(), Some(&first));
    assert_ne!(groups.place(&[], &attempt("c"), ShimSharing::Plain).unwrap(), first, "the group is full");
    assert_eq!(groups.of(&"sandbox-of-a".into()), Membership::Of(first.clone()), "the list was too early");
    // A later list without the sandbox: it is gone.
    let late = groups.begin_look();
    groups.listed(late, &[]);
    assert_eq!(groups.of(&"sandbox-of-a".into()), Membership::None);
}

#[test]
fn a_failed_start_gives_its_place_back() {
    let mut groups = ShimGroups::new(2);
    let first = place(&mut groups, &[], "a", ShimSharing::Plain);
    place(&mut groups, &[], "b", ShimSharing::Plain);
    groups.ended(&attempt("b"), first.as_deref(), None);
    let running = [sandbox("a", true, first.as_deref())];
    groups.ended(&attempt("a"), first.as_deref(), Some(&running[0].id));
    assert_eq!(place(&mut groups, &running, "c", ShimSharing::Plain), first);
}

#[test]
fn a_restarted_agent_goes_on_with_the_groups_that_the_runtime_lists() {
    let placed = run(&mut ShimGroups::new(4), 6, ShimSharing::Plain);
    let listed = all(&placed);
    let mut groups = ShimGroups::new(4);
    assert_eq!(groups.of(&listed[0].id), Membership::Unknown);
    // The second group has two of four.
    let expected = placed[5].1.clone();
    for uid in ["x", "y"] {
        assert_eq!(place(&mut groups, &listed, uid, ShimSharing::Plain), expected, "{uid}");
    }
    let third = place(&mut groups, &listed, "z", ShimSharing::Plain);
    assert!(third.is_some() && !placed.iter().any(|(_, group)| *group == third), "both are full: {third:?}");
    assert_eq!(groups.of(&listed[0].id), Membership::Of(placed[0].1.clone().unwrap()));
    assert_eq!(groups.of(&"made-without".into()), Membership::None);
    // When shims are not shared any more, nothing is asked; containers of a group that is known go on with it.
    let mut off = ShimGroups::new(1);
    assert_eq!(off.of(&listed[0].id), Membership::None);
    let look = off.begin_look();
    off.listed(look, &listed);
    assert_eq!(off.of(&listed[0].id), Membership::Of(placed[0].1.clone().unwrap()));
    assert_eq!(off.place(&listed, &attempt("new"), ShimSharing::Plain), None);
}

#[test]
fn a_smaller_number_fills_no_group_further() {
    let placed = run(&mut ShimGroups::new(16), 8, ShimSharing::Plain);
    let mut groups = ShimGroups::new(8);
    let group = place(&mut groups, &all(&placed), "new", ShimSharing::Plain);
    assert!(group.is_some() && !placed.iter().any(|(_, other)| *other == group), "{group:?}");
}

#[test]
fn a_group_whose_pods_have_stopped_gets_no_further_pod() {
    let mut groups = ShimGroups::new(4);
    let listed = [sandbox("a", false, Some("orlop-plain-a-0.0"))];
    let group = place(&mut groups, &listed, "b", ShimSharing::Plain);
    assert_eq!(group.as_deref(), Some("orlop-plain-b-0.0"));
}

#[test]
fn the_next_attempt_of_a_pod_does_not_wait_for_its_old_place() {
    let mut groups = ShimGroups::new(2);
    let listed =
        [sandbox("a", true, Some("orlop-plain-a-0.0")), sandbox("b", true, Some("orlop-plain-a-0.0"))];
    let look = groups.begin_look();
    groups.listed(look, &listed);
    let group = groups.place(&listed, &("a".into(), 1), ShimSharing::Plain);
    assert_eq!(group.as_deref(), Some("orlop-plain-a-0.0"), "b is the only other pod of it");
}

#[test]
fn a_lost_answer_is_found_in_the_list() {
    let mut groups = ShimGroups::new(4);
    let grouped = sandbox("a", true, Some("orlop-plain-z-0.0"));
    assert_eq!(
        place(&mut groups, std::slice::from_ref(&grouped), "a", ShimSharing::Plain).as_deref(),
        Some("orlop-plain-z-0.0")
    );
    assert_eq!(place(&mut groups, &[sandbox("a", true, None)], "a", ShimSharing::Plain), None);
}

#[test]
fn pods_of_different_kinds_share_nothing() {
    let mut groups = ShimGroups::new(16);
    let mut placed = Vec::new();
    for kind in [ShimSharing::Plain, ShimSharing::OwnUsers, ShimSharing::Host, ShimSharing::Plain] {
        let uid = placed.len().to_string();
        let group = place(&mut groups, &all(&placed), &uid, kind);
        placed.push((uid, group));
    }
    assert_eq!(sizes(&placed), [1, 1, 2]);
    assert_eq!(placed[0].1, placed[3].1);
    assert_eq!(place(&mut groups, &all(&placed), "alone", ShimSharing::Alone), None);
}

#[test]
fn the_kind_follows_from_the_sandbox() {
    assert_eq!(sharing(&config(|_| ())), ShimSharing::Plain);
    let source = |of: &str| {
        config(|c| {
            c.annotations.insert(CONFIG_SOURCE.to_owned(), of.to_owned());
        })
    };
    assert_eq!(sharing(&source("api")), ShimSharing::Plain);
    assert_eq!(sharing(&source("file")), ShimSharing::Alone);
    assert_eq!(sharing(&source("http")), ShimSharing::Alone);
    assert_eq!(sharing(&config(|c| c.runtime_handler = "kata".to_owned())), ShimSharing::Alone);
    assert_eq!(sharing(&config(|c| c.security.privileged = true)), ShimSharing::Host);
    assert_eq!(sharing(&config(|c| c.security.namespaces.network = NamespaceMode::Node)), ShimSharing::Host);
    assert_eq!(sharing(&config(|c| c.security.namespaces.pid = NamespaceMode::Node)), ShimSharing::Host);
    assert_eq!(sharing(&config(|c| c.security.namespaces.ipc = NamespaceMode::Node)), ShimSharing::Host);
    let users = IdMapping { host_id: 65_536, container_id: 0, length: 65_536 };
    assert_eq!(sharing(&config(|c| c.security.users = Some(users))), ShimSharing::OwnUsers);
}

#[test]
fn the_annotation_of_a_user_chooses_no_group() {
    let with = |value: &str| {
        config(|c| {
            c.annotations.insert(SHIM_GROUP.to_owned(), value.to_owned());
        })
    };
    let mut chosen = with("theirs");
    set(&mut chosen, None);
    assert!(chosen.annotations.is_empty());
    let mut overruled = with("theirs");
    set(&mut overruled, Some("orlop-plain-a-0.0"));
    assert_eq!(overruled.annotations[SHIM_GROUP], "orlop-plain-a-0.0");
    // A sandbox of another program, or of an agent without groups.
    let mut groups = ShimGroups::new(4);
    let listed = [sandbox("a", true, Some("theirs")), sandbox("b", true, Some("orloptheirs"))];
    let look = groups.begin_look();
    groups.listed(look, &listed);
    for sandbox in &listed {
        assert_eq!(groups.of(&sandbox.id), Membership::None);
    }
}

#[test]
fn a_group_that_its_founder_left_and_others_filled_is_not_overfilled() {
    let mut groups = ShimGroups::new(2);
    let founded = place(&mut groups, &[], "a", ShimSharing::Plain).unwrap();
    groups.ended(&attempt("a"), Some(founded.as_str()), None);
    let others = [sandbox("b", true, Some(&founded)), sandbox("c", true, Some(&founded))];
    let again = place(&mut groups, &others, "a", ShimSharing::Plain).unwrap();
    assert_ne!(again, founded);
}
