//! Turns of pods that share claims.

use super::*;

fn is_call(action: &ClaimAction) -> bool {
    matches!(action, ClaimAction::Call { .. })
}

impl Node {
    /// All questions but the calls are answered well.
    fn settle_to_calls(&mut self) -> String {
        let mut words = Vec::new();
        while let Some(action) = self.open.iter().find(|action| !is_call(action)) {
            words.push(match action {
                ClaimAction::Fetch { name, .. } => {
                    let claim = object_of(name);
                    self.fetched(Ok(claim))
                }
                _ => self.written(Ok(())),
            });
        }
        words.join(" ")
    }
}

/// Pods `a` and `b` prepare and give back their claims in turns, so that one of the two claims is worked on at any time.
#[test]
fn a_pod_gets_both_claims_that_others_work_on_all_the_time() {
    let mut node = Node::new();
    node.prepare("a", &["c"]);
    node.settle_to_calls();
    assert_eq!(node.prepare("c", &["c", "e"]), "fetch:c");
    assert_eq!(node.settle_to_calls(), "fetch:e ", "c is being prepared");
    let mut answered_in = None;
    for round in 0..20 {
        let (uid, claim) = if round % 2 == 0 { ("b", "e") } else { ("a", "c") };
        // The first round of each pair of rounds prepares for `b`, as the work before the loop does for `a`.
        let prepares = [0, 3].contains(&(round % 4));
        let mut words = if prepares { node.prepare(uid, &[claim]) } else { node.unprepare(uid) };
        words += &node.settle_to_calls();
        if node.open.iter().any(is_call) {
            words += &node.called(None);
            words += &node.settle_to_calls();
        }
        if words.contains("ok2[d1/x=c,d2/x=e]") {
            answered_in.get_or_insert(round);
        }
    }
    assert!(answered_in.is_some_and(|round| round < 10), "{answered_in:?}");
    node.settle();
    assert!(node.open.is_empty());
}
