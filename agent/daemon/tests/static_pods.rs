//! The whole daemon over a fake runtime: static pods through a real directory, the agent dropped and started again over
//! the same runtime. Time is tokio's, paused: it passes only while all tasks wait.

// A test's helpers fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use agent_linux::clock::Clock;
use agent_types::time::Mono;
use orlop_agent::pods::status::PodViews;

use support::{Machine, put};

#[tokio::test(start_paused = true)]
async fn added_changed_removed() {
    let machine = Machine::new();
    let mut agent = machine.agent(Mono(0)).await;
    machine.write("web", "one");
    agent.running(1).await;
    let first = machine.running();
    assert_eq!((first.len(), machine.cgroups.of_pods().len()), (1, 1));
    let uid = agent.pods.borrow().keys().next().unwrap().clone();
    assert!(machine.path("kubelet/pods").join(uid.as_str()).is_dir());

    machine.write("web", "two");
    agent.until("replaced", |pods| pods.len() == 1 && !pods.contains_key(&uid)).await;
    agent.running(1).await;
    let second = machine.running();
    assert_eq!(second.len(), 1);
    assert_ne!(first, second);
    assert!(!machine.path("kubelet/pods").join(uid.as_str()).exists());

    machine.remove("web");
    agent.until("gone", PodViews::is_empty).await;
    assert!(machine.is_empty());
    assert_eq!(machine.cgroups.of_pods(), [""; 0]);
    assert_eq!(std::fs::read_dir(machine.path("kubelet/pods")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(machine.path("logs")).unwrap().count(), 0);
    assert!(agent.node.stop().await);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_changes_nothing_that_runs() {
    let machine = Machine::new();
    for name in ["a", "b", "c"] {
        machine.write(name, name);
    }
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(3).await;
    let before = machine.running();
    assert_eq!(before.len(), 3);
    for fence_s in [0, 10, 240] {
        agent.kill().await;
        let fence_until = machine.clock.now().mono.after(Duration::from_secs(fence_s));
        agent = machine.agent(fence_until).await;
        // Adopted at once, however long absence has to wait.
        let adopted = tokio::time::timeout(Duration::from_secs(2), agent.running(3)).await;
        assert!(adopted.is_ok(), "fence of {fence_s} s");
        agent.pass(400).await;
        assert_eq!(machine.running(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn what_changed_while_the_agent_was_down_is_caught_up() {
    let machine = Machine::new();
    for name in ["gone", "changed", "stays"] {
        machine.write(name, name);
    }
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(3).await;
    let before = machine.running();
    agent.kill().await;
    machine.remove("gone");
    machine.write("changed", "other");
    machine.write("new", "new");
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(3).await;
    agent.pass(60).await;
    let names: Vec<String> = agent.pods.borrow().values().map(|p| p.key.name.to_string()).collect();
    assert_eq!(names.len(), 3);
    for name in ["changed-node", "new-node", "stays-node"] {
        assert!(names.iter().any(|n| n == name), "{names:?}");
    }
    let after = machine.running();
    assert_eq!(after.len(), 3);
    assert_eq!(after.iter().filter(|id| before.contains(id)).count(), 1, "only the unchanged one stays");
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_moment_of_a_pods_start_and_end() {
    let machine = Machine::new();
    for round in 0..12u64 {
        machine.write("web", "x");
        let agent = machine.agent(machine.clock.now().mono.after(Duration::from_secs(10))).await;
        // A different number of steps of the start each time; nothing waits on real time here.
        for _ in 0..round * 7 {
            tokio::task::yield_now().await;
        }
        agent.kill().await;
        machine.remove("web");
        let agent = machine.agent(machine.clock.now().mono.after(Duration::from_secs(10))).await;
        for _ in 0..round * 5 {
            tokio::task::yield_now().await;
        }
        agent.kill().await;
    }
    let mut agent = machine.agent(machine.clock.now().mono.after(Duration::from_secs(10))).await;
    agent.until("gone", PodViews::is_empty).await;
    agent.pass(30).await;
    assert!(machine.is_empty(), "something was left behind");
    machine.write("web", "x");
    agent.running(1).await;
    assert_eq!(machine.running().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_pods() {
    let machine = Machine::new();
    for n in 0..100 {
        machine.write(&format!("pod-{n}"), "x");
    }
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(100).await;
    assert_eq!(machine.running().len(), 100);
    for n in 0..100 {
        machine.remove(&format!("pod-{n}"));
    }
    agent.until("gone", PodViews::is_empty).await;
    assert!(machine.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_broken_manifest_hides_no_other_and_its_repair_counts() {
    let machine = Machine::new();
    put(&machine.path("manifests/bad.yaml"), "kind: Pod\nmetadata: [");
    machine.write("good", "x");
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(1).await;
    machine.write("bad", "x");
    agent.running(2).await;
}

#[tokio::test(start_paused = true)]
async fn links_to_logs_come_and_go_with_containers_whoever_made_them() {
    let machine = Machine::new();
    machine.write("web", "x");
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(1).await;
    agent.kill().await;
    // The fake runtime writes no logs; what the runtime had when the agent was killed is linked by the next one.
    let log = machine.driver.with(|r| r.containers.values().next().unwrap().observed.log_path.clone());
    std::fs::write(&log, "").unwrap();
    let stale = machine.path("links/gone_ns_c-id.log");
    std::os::unix::fs::symlink(machine.path("logs/ns_gone_u-9/c/0.log"), &stale).unwrap();
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(1).await;
    agent.pass(1).await;
    let links: Vec<_> =
        std::fs::read_dir(machine.path("links")).unwrap().map(|e| e.unwrap().path()).collect();
    let id = machine.running().remove(0);
    assert_eq!(links, [machine.path(&format!("links/web-node_default_main-{id}.log"))]);
    assert_eq!(std::fs::read_link(&links[0]).unwrap().to_str(), Some(log.as_str()));
    machine.remove("web");
    agent.until("gone", PodViews::is_empty).await;
    assert_eq!(std::fs::read_dir(machine.path("links")).unwrap().count(), 0);
}
