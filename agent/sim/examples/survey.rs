//! Runs seeds one after the other and prints one line for each that fails: `survey FIRST LAST`.
//!
//! `cargo run -p agent-sim --example survey -- 0 5000` finds the seeds; `survey 0 0 17` prints
//! the whole trace of seed 17 if it fails.
#![allow(clippy::print_stdout)] // its whole purpose

use agent_sim::scenario::{run, run_and_tell};

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if let [_, _, seed] = numbers[..] {
        return match run_and_tell(seed) {
            Ok(report) => println!("{report:?}"),
            Err(failure) => println!("{failure}"),
        };
    }
    let [first, last] = numbers[..] else {
        println!("usage: survey FIRST LAST, or survey 0 0 SEED for one seed's trace");
        return;
    };
    let (mut failed, mut steps) = (0, 0);
    for seed in first..last {
        match run(seed, None) {
            Ok(report) => steps += report.steps,
            Err(failure) => {
                failed += 1;
                println!("seed {seed}: {}", failure.violation);
            }
        }
    }
    println!("{failed} of {} seeds failed, {steps} steps in the others", last - first);
}
