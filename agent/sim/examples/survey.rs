//! Runs seeds one after the other and prints one line for each that fails: `survey KIND FIRST LAST`, where KIND is the name of
//! a file in `agent/sim/tests`.
//!
//! `cargo survey seeds 0 5000` finds the seeds; `survey seeds 17` prints the whole trace of
//! seed 17 if it fails.
#![allow(clippy::print_stdout)] // its whole purpose

use std::fmt::Display;
use std::ops::Range;

use agent_sim::pressing::run_pressing;
use agent_sim::scenario::{Variant, run_and_tell};
use agent_sim::staging;
use agent_sim::updating::run_updating;

const USAGE: &str = "usage: survey KIND FIRST LAST, or survey KIND SEED for one seed's trace; KIND is seeds, probing, \
                     in_place, mounting, ownership, stopping, resizing, placing, claims, devices, or pressing, staging or updating (which have no trace)";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let kind = words.first().and_then(|name| Variant::named(name));
    let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
    if let (Some(name), &[first, ref last @ ..]) = (words.first().map(String::as_str), &numbers[..]) {
        let seeds = first..last.first().copied().unwrap_or(first + 1);
        match name {
            "pressing" => return without_trace(seeds, |seed| run_pressing(seed, None)),
            "staging" => return without_trace(seeds, |seed| staging::run(seed, None)),
            "updating" => return without_trace(seeds, |seed| run_updating(seed, None)),
            _ => {}
        }
    }
    match (kind, &numbers[..]) {
        (Some(kind), [seed]) => match run_and_tell(*seed, kind, usize::MAX) {
            Ok(report) => println!("{report:?}"),
            Err(failure) => println!("{failure}"),
        },
        (Some(kind), [first, last]) => survey(kind, *first, *last),
        _ => println!("{USAGE}"),
    }
}

fn without_trace<T, E: Display>(seeds: Range<u64>, run: impl Fn(u64) -> Result<T, E>) {
    let (mut failed, all) = (0, seeds.end.saturating_sub(seeds.start));
    for seed in seeds {
        if let Err(violation) = run(seed) {
            failed += 1;
            println!("seed {seed}: {violation}");
        }
    }
    println!("{failed} of {all} seeds failed");
}

fn survey(kind: Variant, first: u64, last: u64) {
    let (mut failed, mut steps) = (0, 0);
    for seed in first..last {
        match run_and_tell(seed, kind, 0) {
            Ok(report) => steps += report.steps,
            Err(failure) => {
                failed += 1;
                println!("seed {seed}: {}", failure.violation);
            }
        }
    }
    println!("{failed} of {} seeds failed, {steps} steps in the others", last.saturating_sub(first));
}
