//! Random walks: pods, drivers and restarts in any order, with answers in any order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Move {
    Prepare(usize, usize),
    Unprepare(usize),
    /// Answers an open question; true: with success.
    Answer(usize, bool),
    Driver(u64, bool),
    Active(usize),
    Restart,
}

const PODS: [&str; 3] = ["a", "b", "c"];
const CLAIMS: [&[&str]; 5] = [&["c"], &["c", "e"], &["f"], &["e", "f", "c"], &["x"]];

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (0..3_usize, 0..5_usize).prop_map(|(pod, claims)| Move::Prepare(pod, claims)),
        3 => (0..3_usize).prop_map(Move::Unprepare),
        20 => (0..8_usize, prop::bool::weighted(0.85)).prop_map(|(at, good)| Move::Answer(at, good)),
        1 => (1..3_u64, any::<bool>()).prop_map(|(plugin, there)| Move::Driver(plugin, there)),
        1 => (0..3_usize).prop_map(Move::Active),
        1 => Just(Move::Restart),
    ];
    prop::collection::vec(one, 0..120)
}

/// The shell of a walk: it checks each action.
struct Walk {
    node: Node,
    /// Questions of workers without an answer.
    asked: BTreeSet<u64>,
    plugins: u64,
}

impl Walk {
    fn step(&mut self, event: ClaimEvent) {
        let before = self.node.asks;
        match &event {
            ClaimEvent::Prepare { ask, .. } | ClaimEvent::Unprepare { ask, .. } => {
                self.asked.insert(*ask);
            }
            _ => {}
        }
        let words = self.node.step(event);
        for word in words.split(' ') {
            let number = word.strip_prefix("ok").or_else(|| word.strip_prefix("failed"));
            let digits = number.map(|word| word.chars().take_while(char::is_ascii_digit).collect::<String>());
            if let Some(ask) = digits.and_then(|digits| digits.parse::<u64>().ok()) {
                assert!(self.asked.remove(&ask), "{ask} of {before} is answered twice");
            }
        }
        self.check();
    }

    fn check(&self) {
        let mut called = BTreeSet::new();
        let mut writes = 0;
        for action in &self.node.open {
            match action {
                ClaimAction::Call { method, claims, .. } => {
                    for claim in claims {
                        assert!(called.insert(&claim.uid), "two calls for {}", claim.name);
                        if *method == ClaimMethod::Prepare {
                            let file = self.node.file.as_ref().expect("a file");
                            assert!(file.contains(&claim.uid), "{} is not on the disk", claim.name);
                        }
                    }
                }
                ClaimAction::Write(_) => writes += 1,
                _ => {}
            }
        }
        assert!(writes <= 1, "two writes at once");
    }

    fn answer(&mut self, at: usize, good: bool) {
        if self.node.open.is_empty() {
            return;
        }
        let action = self.node.open.remove(at % self.node.open.len());
        let failed = || "no".to_owned();
        let event = match action {
            ClaimAction::Fetch { fetch, name, .. } => {
                ClaimEvent::Fetched { fetch, answer: if good { Ok(object_of(&name)) } else { Err(failed()) } }
            }
            ClaimAction::Call { call, plugin, method, claims } => {
                let driver = &self.node.drivers[&plugin];
                let answer = if good { Ok(results(driver, method, &claims)) } else { Err(failed()) };
                ClaimEvent::Called { call, answer }
            }
            ClaimAction::Write(text) => {
                if good {
                    self.node.file = Some(text);
                }
                ClaimEvent::Written(if good { Ok(()) } else { Err(failed()) })
            }
            _ => unreachable!(),
        };
        self.step(event);
    }

    fn driver(&mut self, driver: u64, there: bool) {
        if there {
            self.plugins += 1;
            self.node.register(self.plugins, &format!("d{driver}"));
            return;
        }
        let of = format!("d{driver}");
        let plugins = self.node.drivers.iter().filter(|(_, name)| **name == of).map(|(id, _)| *id);
        for plugin in plugins.collect::<Vec<_>>() {
            self.step(ClaimEvent::Deregistered(plugin));
        }
    }

    fn play(&mut self, of: Move) {
        match of {
            Move::Prepare(at, claims) => {
                self.node.asks += 1;
                self.step(ClaimEvent::Prepare { ask: self.node.asks, pod: pod(PODS[at], CLAIMS[claims]) });
            }
            Move::Unprepare(at) => {
                self.node.asks += 1;
                self.step(ClaimEvent::Unprepare { ask: self.node.asks, uid: PodUid::from(PODS[at]) });
            }
            Move::Answer(at, good) => self.answer(at, good),
            Move::Driver(driver, there) => self.driver(driver, there),
            Move::Active(at) => self.step(ClaimEvent::ActivePods([PodUid::from(PODS[at])].into())),
            Move::Restart => {
                self.node.restart();
                self.asked.clear();
            }
        }
    }

    /// Answers all questions with success.
    fn settle(&mut self) {
        while !self.node.open.is_empty() {
            self.answer(0, true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_question_is_answered_and_nothing_stays(moves in moves()) {
        let mut walk = Walk { node: Node::new(), asked: BTreeSet::new(), plugins: 10 };
        for of in moves {
            walk.play(of);
        }
        walk.settle();
        prop_assert!(walk.asked.is_empty(), "without an answer: {:?}", walk.asked);
        walk.driver(1, true);
        walk.driver(2, true);
        for at in 0..PODS.len() {
            walk.play(Move::Unprepare(at));
        }
        walk.settle();
        prop_assert!(walk.asked.is_empty());
        prop_assert!(!walk.node.claims.has_references());
        prop_assert!(walk.node.claims.view().claims.is_empty());
        let file = walk.node.file.clone().unwrap_or_default();
        prop_assert!(file.ends_with("2361995144}") || file.ends_with("4010664294}"), "{}", file);
    }
}
