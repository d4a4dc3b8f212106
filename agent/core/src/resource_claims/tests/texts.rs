//! Errors with upstream's texts, and the state after them.

use super::*;

/// The text of a failed answer.
fn text(words: &str) -> &str {
    let start = words.find('[').expect("an answer");
    assert!(words.starts_with("failed"), "{words}");
    &words[start + 1..words.len() - 1]
}

#[test]
fn errors_of_the_first_pass_change_nothing() {
    let unreserved = {
        let mut claim = (*object_of("c")).clone();
        claim.status.as_mut().unwrap().reserved_for = None;
        Arc::new(claim)
    };
    let foreign = object("c", &["d1", "gone", "also-gone"]);
    for (answer, expected) in [
        (
            Err("resourceclaims \"c\" not found".to_owned()),
            "fetch ResourceClaim c: resourceclaims \"c\" not found",
        ),
        (Ok(unreserved), "pod pod-a (a) is not allowed to use ResourceClaim c (uid-c)"),
        (Ok(foreign), "DRA driver also-gone is not registered"),
        (Ok(object("c", &[""])), "DRA driver name is empty"),
    ] {
        let mut node = Node::new();
        node.prepare("a", &["c", "e"]);
        assert_eq!(text(&node.fetched(answer)), expected);
        assert!(!node.claims.has_references() && node.open.is_empty());
        assert_eq!(node.unprepare("a"), "ok2[]");
    }
}

#[test]
fn a_claim_of_the_same_name_is_not_the_same_claim() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    node.settle();
    node.prepare("b", &["e", "c"]);
    node.fetched(Ok(object_of("e")));
    let mut later = (*object_of("c")).clone();
    later.metadata.uid = Some("later".to_owned());
    let words = node.fetched(Ok(Arc::new(later)));
    let expected = "failed2[old ResourceClaim with same name c and different UID uid-c still exists (previous pod force-deleted?!)] write";
    assert_eq!(words, expected, "the reference to the other claim is recorded, as upstream");
    node.settle();
    assert!(node.references("b"));
    assert_eq!(node.unprepare("b"), "unprepare@2:e");
}

#[test]
fn errors_of_drivers_have_upstreams_words() {
    let good = |uid: &str| (uid.to_owned(), ClaimResult::default());
    let bad = |uid: &str, error: &str| {
        (uid.to_owned(), ClaimResult { error: error.to_owned(), devices: Vec::new() })
    };
    let rpc = "rpc error: code = Unavailable desc = connection error".to_owned();
    for (answer, expected) in [
        (Err(rpc.clone()), format!(": {rpc}")),
        (
            Ok([good("uid-c"), bad("uid-c2", "no such device")].into()),
            " failed for ResourceClaim c2: no such device".to_owned(),
        ),
        (
            Ok([good("uid-c"), good("other")].into()),
            " returned result for unknown claim UID other".to_owned(),
        ),
        (Ok([good("uid-c")].into()), " skipped 1 ResourceClaims".to_owned()),
        (Ok([].into()), " skipped 2 ResourceClaims".to_owned()),
    ] {
        let mut node = Node::new();
        node.prepare("a", &["c", "c2"]);
        node.fetched(Ok(object_of("c")));
        node.fetched(Ok(object_of("c2")));
        node.written(Ok(()));
        let answer: Result<BTreeMap<_, _>, String> = answer;
        assert_eq!(text(&node.called(Some(answer.clone()))), format!("NodePrepareResources{expected}"));
        assert_eq!(node.claims.view().in_use["<any>"], 0);
        // The next preparation calls the driver for all claims again.
        node.prepare("a", &["c", "c2"]);
        assert!(node.settle().ends_with("write ok2[d1/x=c,d1/x=c2]"));
        node.unprepare("a");
        assert_eq!(text(&node.called(Some(answer))), format!("NodeUnprepareResources{expected}"));
        assert!(node.references("a"), "it is tried again");
        node.unprepare("a");
        assert_eq!(node.settle(), "write ok4[]");
    }
}

#[test]
fn the_first_error_ends_the_calls() {
    let mut node = Node::new();
    node.prepare("a", &["f"]);
    node.fetched(Ok(object_of("f")));
    assert_eq!(node.written(Ok(())), "prepare@1:f");
    assert_eq!(node.called(Some(Err("no".to_owned()))), "failed1[NodePrepareResources: no]");
    node.prepare("a", &["f"]);
    node.fetched(Ok(object_of("f")));
    assert_eq!(node.called(None), "prepare@2:f");
    assert_eq!(node.called(Some(Err("no".to_owned()))), "failed2[NodePrepareResources: no]");
    let devices = &node.claims.view().claims[&("ns".to_owned(), "f".to_owned())].devices;
    assert_eq!((devices["d1"].len(), devices["d2"].len()), (1, 0), "good results are kept");
    node.prepare("a", &["f"]);
    // The first write has the device of the failed attempt.
    assert_eq!(node.settle(), "write prepare@1:f prepare@2:f write ok3[d1/x=f,d2/x=f]", "once, not twice");
}

#[test]
fn a_driver_that_went_holds_the_end_of_its_pods() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    node.settle();
    node.step(ClaimEvent::Deregistered(PluginId(1)));
    assert_eq!(node.unprepare("a"), "failed2[DRA driver d1 is not registered]");
    node.register(3, "d1");
    assert_eq!(node.unprepare("a"), "unprepare@3:c");
}

#[test]
fn a_driver_that_went_between_the_passes_is_told() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    node.fetched(Ok(object_of("c")));
    node.step(ClaimEvent::Deregistered(PluginId(1)));
    assert_eq!(node.written(Ok(())), "failed1[DRA driver d1 is not registered]");
}

#[test]
fn a_drivers_answer_is_bounded() {
    let device = |bytes: usize| ClaimedDevice { device: "x".repeat(bytes), ..ClaimedDevice::default() };
    let answer = |devices: Vec<ClaimedDevice>, error: String| {
        Ok([("uid-c".to_owned(), ClaimResult { error, devices })].into())
    };
    for (answer, expected) in [
        (
            answer(vec![device(1); 4097], String::new()),
            "the driver answered 4097 devices, more than 4096".to_owned(),
        ),
        (
            answer(vec![device(1 << 20); 2], String::new()),
            "the names of the driver's devices have 2097152 bytes, more than 1048576".to_owned(),
        ),
        (answer(Vec::new(), "ü".repeat(5000)), "ü".repeat(2048)),
    ] {
        let mut node = Node::new();
        node.prepare("a", &["c"]);
        node.fetched(Ok(object_of("c")));
        node.written(Ok(()));
        let words = node.called(Some(answer));
        assert_eq!(text(&words), format!("NodePrepareResources failed for ResourceClaim c: {expected}"));
    }
}

#[test]
fn a_claim_that_nobody_prepared_is_missing_for_its_containers() {
    let mut node = Node::new();
    let mut out = Outbox::new();
    node.claims.step(node.now, ClaimEvent::Find { ask: 1, pod: pod("a", &["c"]) }, &mut out);
    let [ClaimAction::Answer { ask: 1, answer: Ok(claims) }] = out.as_slice() else { unreachable!() };
    let words = "internal error: unable to get claim info for ResourceClaim c in namespace ns";
    assert_eq!(claims.containers["c"].missing.as_deref(), Some(words));
}
