//! Many streams at once, without a loss. `cargo e2e bench streams` does the same with more.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined};
use orlop_harness::cluster::load::{self, Load};
use orlop_harness::say;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "api/load",
    level: Level::L4n,
    expected_s: 20,
    about: "10 execs that echo over WebSocket and 20 followers of a log at 10 MB/s lose no byte",
    group: GROUP,
    run: loaded,
}];

const LOAD: Load = Load { execs: 10, echo_bytes: 1_000_000, followers: 20, rounds: 3 };

fn loaded(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    for pod in [load::writer("first", LOAD.rounds), load::echoer("first")] {
        joined.run_pod(pod)?;
    }
    let node = SocketAddr::from(([172, 30, 0, 10], 10250));
    let seen = load::run(&joined.cluster, node, joined.nodes[0].agent_pid()?, LOAD)?;
    say::line(format!(
        "  {} bytes echoed, {} bytes followed in {:.1} s; resident KiB before, at most, after: {:?}",
        seen.echoed, seen.followed, seen.took_s, seen.resident_kib
    ));
    ensure!(seen.problems.is_empty(), "streams lost bytes: {:?}", seen.problems);
    ensure!(seen.echoed == LOAD.execs * LOAD.echo_bytes, "{} bytes echoed", seen.echoed);
    load::clean(&joined.cluster)?;
    joined.cluster.ensure_nothing_forbidden()
}
