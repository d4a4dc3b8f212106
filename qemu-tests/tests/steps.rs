//! The tracer against a real program: it does not live to make its n-th step, and one that is let be goes on.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A program that waits for a line and then makes three directories of volumes, and what it makes.
fn program(name: &str) -> (Child, [PathBuf; 3]) {
    let dir = std::env::temp_dir().join(format!("orlop-steps-{}-{name}", std::process::id()));
    let volumes = dir.join("kubelet/pods/u/volumes");
    std::fs::create_dir_all(&volumes).unwrap();
    // One that does not count, too.
    let made = ["one", "two", "three"].map(|name| volumes.join(name));
    let child = Command::new("sh")
        .args(["-c", "read line; exec mkdir \"$@\"", "sh"])
        .arg(dir.join("other"))
        .args(&made)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    (child, made)
}

fn tracer(of: &Child, nth: usize) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut tracer = Command::new(env!("CARGO_BIN_EXE_orlop-e2e"))
        .args(["kill-before-step", &of.id().to_string(), &nth.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tracer.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("watches"));
    (tracer, lines)
}

fn remove(made: &[PathBuf; 3]) {
    std::fs::remove_dir_all(made[0].ancestors().nth(5).unwrap()).unwrap();
}

fn go(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
}

#[test]
fn a_program_is_killed_before_its_nth_step() {
    let (mut child, made) = program("killed");
    let (mut tracer, mut lines) = tracer(&child, 2);
    go(&mut child);
    assert_eq!(lines.next(), Some(format!("mkdir {}", made[1].display())));
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(tracer.wait().unwrap().success());
    assert_eq!(made.each_ref().map(|dir| dir.exists()), [true, false, false]);
    remove(&made);
}

#[test]
fn a_program_with_fewer_steps_ends_by_itself() {
    let (mut child, made) = program("fewer");
    let (mut tracer, mut lines) = tracer(&child, 4);
    go(&mut child);
    assert_eq!(lines.next(), None);
    assert!(child.wait().unwrap().success() && tracer.wait().unwrap().success());
    assert!(made.iter().all(|dir| dir.exists()));
    remove(&made);
}

#[test]
fn a_program_goes_on_when_its_tracer_is_killed() {
    let (mut child, made) = program("let-be");
    let (mut tracer, _) = tracer(&child, 1);
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    go(&mut child);
    assert!(child.wait().unwrap().success());
    assert!(made.iter().all(|dir| dir.exists()));
    remove(&made);
}
