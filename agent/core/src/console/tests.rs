//! Scenarios of the console: what is written when.

use agent_types::time::Wall;

use super::problem::WAITS_FOR;
use super::*;

/// A console and a clock.
struct World {
    console: Console,
    seconds: u64,
}

impl World {
    fn new(cluster: ClusterPlace) -> World {
        let title = NodeTitle { name: "n".to_owned(), version: "1".to_owned(), ..NodeTitle::default() };
        World { console: Console::new(title, "waiting", cluster), seconds: 0 }
    }

    fn step(&mut self, event: ConsoleEvent) -> Vec<String> {
        let now = Now { mono: Mono(self.seconds * 1_000_000_000), wall: Wall(0) };
        let mut out = Outbox::new();
        self.console.step(now, event, &mut out);
        out.drain().flat_map(|l| l.lines).collect()
    }

    /// All that is written until `seconds` later, with the second of each line, ticking at deadlines alone.
    fn until(&mut self, seconds: u64) -> Vec<(u64, String)> {
        let end = self.seconds + seconds;
        let mut written = Vec::new();
        for _ in 0..1000 {
            let Some(at) = self.console.deadline().map(|at| at.0.div_ceil(1_000_000_000)) else { break };
            if at > end {
                break;
            }
            self.seconds = self.seconds.max(at);
            let lines = self.step(ConsoleEvent::Tick);
            assert!(
                !lines.is_empty() || self.console.deadline().is_none_or(|next| next.0 > at * 1_000_000_000),
                "busy"
            );
            written.extend(lines.into_iter().map(|line| (self.seconds, line)));
        }
        self.seconds = end;
        written
    }

    fn say(&mut self, problems: Vec<ConsoleProblem>) -> Vec<String> {
        self.step(ConsoleEvent::Problems(ProblemSource::Cluster, problems))
    }
}

fn problem(subject: &str, text: &str) -> ConsoleProblem {
    ConsoleProblem::new(subject, text, "")
}

fn waiting(subject: &str, kind: &str) -> ConsoleProblem {
    ConsoleProblem { kind: kind.to_owned(), lasts: WAITS_FOR, ..problem(subject, "waits") }
}

fn banners(lines: &[(u64, String)]) -> Vec<u64> {
    lines.iter().filter(|(_, line)| line.starts_with("-- n --")).map(|(at, _)| *at).collect()
}

#[test]
fn a_healthy_boot_has_one_banner_with_its_address() {
    let mut world = World::new(ClusterPlace::Standalone);
    assert!(world.step(ConsoleEvent::Tick).is_empty());
    world.seconds = 5;
    assert!(world.step(ConsoleEvent::State(banner::RUNNING)).is_empty());
    world.seconds = 6;
    assert!(world.step(ConsoleEvent::Addresses(vec!["192.0.2.1".to_owned()])).is_empty());
    let lines = world.until(3600);
    assert_eq!(banners(&lines), [7]);
    let text: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!(
        text,
        [
            "-- n -- Orlop 1 -- up 00:00:07 --",
            "   node agent: ready",
            "   addresses: 192.0.2.1",
            "   cluster: none, a standalone node",
            "   no problem is known"
        ]
    );
}

#[test]
fn a_node_that_does_not_become_ready_has_a_banner_too() {
    let mut world = World::new(ClusterPlace::Standalone);
    world.step(ConsoleEvent::Tick);
    let lines = world.until(100);
    assert_eq!(banners(&lines), [30]);
    assert!(lines.iter().any(|(_, line)| line.contains("node agent: waiting")), "{lines:?}");
}

#[test]
fn a_problem_is_written_once_and_its_end_after_a_while() {
    let mut world = World::new(ClusterPlace::Member { ready: false });
    world.step(ConsoleEvent::State(banner::RUNNING));
    let token = problem("cluster identity", "the token expired");
    assert_eq!(world.say(vec![token.clone()]), ["problem: cluster identity: the token expired"]);
    assert!(world.say(vec![token.clone()]).is_empty());
    let lines = world.until(60);
    assert_eq!(banners(&lines), [2]);
    assert!(lines.iter().any(|(_, line)| line == "   problem: cluster identity: the token expired"));
    assert!(world.say(vec![]).is_empty(), "it may come back");
    let lines = world.until(60);
    assert_eq!(lines[0], (70, "resolved: cluster identity".to_owned()));
    assert_eq!(banners(&lines), [72]);
    assert!(lines.iter().any(|(_, line)| line == "   no problem is known"), "{lines:?}");
}

#[test]
fn a_container_that_waits_shortly_is_no_problem_and_one_that_comes_and_goes_is_one() {
    let mut world = World::new(ClusterPlace::Standalone);
    world.step(ConsoleEvent::State(banner::RUNNING));
    world.until(60);
    assert!(world.say(vec![waiting("pod", "image pull")]).is_empty());
    assert!(world.until(9).is_empty());
    world.say(vec![]);
    assert!(world.until(60).is_empty(), "it waited for nine seconds");
    // It runs for two seconds after each pause: the pauses are one problem.
    world.say(vec![waiting("pod", "CrashLoopBackOff")]);
    let mut lines = world.until(8);
    for _ in 0..5 {
        world.say(vec![]);
        lines.extend(world.until(2));
        lines.extend(world.say(vec![waiting("pod", "CrashLoopBackOff")]).into_iter().map(|line| (0, line)));
        lines.extend(world.until(20));
    }
    let said = lines.iter().filter(|(_, line)| line == "problem: pod: waits").count();
    assert_eq!((said, banners(&lines).len()), (1, 1), "{lines:?}");
}

#[test]
fn a_pulled_cable_is_shown_soon_after_a_busy_boot_and_a_loose_one_less_and_less_often() {
    let mut world = World::new(ClusterPlace::Standalone);
    let addresses = |world: &mut World, all: &[&str]| {
        world.step(ConsoleEvent::Addresses(all.iter().map(|&a| a.to_owned()).collect()));
    };
    world.step(ConsoleEvent::State(banner::RUNNING));
    let mut lines = world.until(5);
    addresses(&mut world, &["192.0.2.1"]);
    lines.extend(world.until(10));
    addresses(&mut world, &["192.0.2.1", "2001:db8::1"]);
    lines.extend(world.until(20));
    addresses(&mut world, &[]);
    lines.extend(world.until(20));
    assert_eq!(banners(&lines), [2, 12, 22, 37]);
    lines.clear();
    for turn in 0..400 {
        addresses(&mut world, if turn % 2 == 0 { &["192.0.2.1"] } else { &[] });
        lines.extend(world.until(10));
    }
    let all = banners(&lines);
    assert!((5..16).contains(&all.len()), "{all:?}");
}

#[test]
fn another_wording_waits_a_minute() {
    let mut world = World::new(ClusterPlace::Standalone);
    world.step(ConsoleEvent::State(banner::RUNNING));
    assert_eq!(world.say(vec![problem("a", "one")]).len(), 1);
    world.until(10);
    assert!(world.say(vec![problem("a", "two")]).is_empty());
    let lines = world.until(100);
    assert_eq!(lines[0], (60, "problem: a: two".to_owned()), "{lines:?}");
}

#[test]
fn what_flaps_for_ever_is_shown_less_and_less_often() {
    let mut world = World::new(ClusterPlace::Member { ready: false });
    world.step(ConsoleEvent::State(banner::RUNNING));
    let mut times = Vec::new();
    for second in 0..7200_u64 {
        world.step(ConsoleEvent::Cluster(ClusterPlace::Member { ready: second % 6 < 3 }));
        times.extend(banners(&world.until(1)));
    }
    assert!(times.len() < 30, "{times:?}");
    assert!(times.len() > 5, "it is shown all the same: {times:?}");
}

#[test]
fn a_flood_of_problems_is_written_slowly_and_whole() {
    let mut world = World::new(ClusterPlace::Standalone);
    world.step(ConsoleEvent::State(banner::RUNNING));
    let many: Vec<ConsoleProblem> = (0..200).map(|n| problem(&format!("pod {n:03}"), "bad")).collect();
    let of_pods = |problems| ConsoleEvent::Problems(ProblemSource::StaticPods, problems);
    let at_once = world.step(of_pods(many)).len();
    assert_eq!(at_once, 20);
    let lines = world.until(600);
    let later = lines.iter().filter(|(_, line)| line.starts_with("problem: ")).count();
    assert_eq!(at_once + later, ProblemSource::StaticPods.places());
    let in_banner = lines.iter().filter(|(_, line)| line.starts_with("   problem: ")).count();
    assert!(in_banner <= banners(&lines).len() * 7, "{in_banner}");
    // They end as slowly, and others have their room then.
    world.step(of_pods(vec![]));
    world.until(600);
    assert_eq!(world.step(of_pods(vec![problem("another", "bad")])), ["problem: another: bad"]);
}

#[test]
fn pods_that_break_leave_the_node_s_own_troubles_their_places() {
    let mut world = World::new(ClusterPlace::Member { ready: false });
    world.step(ConsoleEvent::State(banner::RUNNING));
    for source in [ProblemSource::StaticPods, ProblemSource::Manifests] {
        let many = (0..200).map(|n| problem(&format!("{source:?} {n:03}"), "bad")).collect();
        world.step(ConsoleEvent::Problems(source, many));
    }
    world.until(600);
    let own = [ProblemSource::Cluster, ProblemSource::Configuration];
    let mut said = Vec::new();
    for source in own {
        said.extend(
            world.step(ConsoleEvent::Problems(source, vec![problem(&format!("{source:?}"), "no token")])),
        );
    }
    assert_eq!(said, ["problem: Cluster: no token", "problem: Configuration: no token"]);
    // They are the first of the banner.
    let lines: Vec<String> = world.until(600).into_iter().map(|(_, line)| line).collect();
    let first = lines.iter().find(|line| line.starts_with("   problem: "));
    assert_eq!(first.map(String::as_str), Some("   problem: Configuration: no token"), "{lines:?}");
}

#[test]
fn present_problems_are_those_that_were_written_and_are_not_gone() {
    const PODS: &[ProblemSource] = &[ProblemSource::StaticPods];
    let mut world = World::new(ClusterPlace::Standalone);
    let of_pods = |problems| ConsoleEvent::Problems(ProblemSource::StaticPods, problems);
    let shown = |world: &World| -> Vec<String> {
        world.console.present(PODS).map(|problem| problem.subject.clone()).collect()
    };
    world.step(of_pods(vec![problem("a", "x"), waiting("b", "pull")]));
    world.say(vec![problem("cluster", "x")]);
    assert_eq!(shown(&world), ["a"], "b may be on its way, and the cluster is another source");
    world.until(WAITS_FOR.as_secs() + 1);
    assert_eq!(shown(&world), ["a", "b"]);
    world.step(of_pods(vec![waiting("b", "pull")]));
    assert_eq!(shown(&world), ["b"]);
}
