//! Tests of binding ahead: a library made here by the C compiler, run before and after, damaged in every place.

use super::*;
use std::fs;
use std::path::Path;
use std::process::Command;

// `own` is defined here alone, `shared` in the program too, which therefore is the one that is called.
const LIBRARY: &str = "
int own(void) { return 1; }
int shared(void) { return 2; }
int called(void) { return 3; }
int number = 40;
int (*const table[])(void) = { own, shared };
int sum(void) { return own() + shared() + called() + number + table[0]() + table[1](); }
";
const PROGRAM: &str = "
#include <stdio.h>
int sum(void);
int shared(void) { return 100; }
int main(void) { printf(\"%d\\n\", sum()); return 0; }
";

fn compile(dir: &Path, source: &str, out: &str, arguments: &[&str]) {
    let file = dir.join(format!("{out}.c"));
    fs::write(&file, source).expect("source");
    let status = Command::new("cc")
        .args(["-O0", "-fPIC", "-Wl,-z,now", "-o"])
        .arg(dir.join(out))
        .arg(&file)
        .args(arguments)
        .current_dir(dir)
        .status();
    assert!(status.expect("a C compiler").success());
}

fn run(dir: &Path) -> String {
    let output = Command::new(dir.join("program")).env("LD_LIBRARY_PATH", dir).output().expect("runs");
    String::from_utf8(output.stdout).expect("text")
}

fn known(files: &[&[u8]]) -> Definitions {
    let mut all = Definitions::default();
    for file in files {
        all.add(file).expect("readable");
    }
    all
}

#[test]
fn a_bound_library_does_what_it_did_and_can_still_be_interposed() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let dir = dir.path();
    compile(dir, LIBRARY, "liba.so", &["-shared"]);
    compile(dir, PROGRAM, "program", &["-L.", "-la", "-rdynamic"]);
    assert_eq!(
        run(dir),
        "245\n",
        "own, shared of the program, called, number, the first two again by the table"
    );
    let (library, program) =
        (fs::read(dir.join("liba.so")).expect("library"), fs::read(dir.join("program")).expect("program"));

    let bound = bind(&library, &known(&[&library, &program])).expect("can be bound");
    // own: its address, twice; called: the call; number: its address.
    assert!(bound.bound >= 4 && bound.left > 0, "{} {}", bound.bound, bound.left);
    fs::write(dir.join("liba.so"), &bound.data).expect("written");
    assert_eq!(run(dir), "245\n");

    let again = bind(&bound.data, &known(&[&library, &program])).expect("still well-formed");
    assert_eq!((again.bound, again.data), (0, bound.data.clone()));
    // Not knowing of the program's definition it would be wrong: the checks are what makes it right.
    let blind = bind(&library, &known(&[&library])).expect("can be bound");
    fs::write(dir.join("liba.so"), &blind.data).expect("written");
    assert_eq!(run(dir), "49\n");
}

#[test]
fn what_is_not_bound_at_the_start_stays() {
    let dir = tempfile::tempdir().expect("temporary directory");
    compile(dir.path(), LIBRARY, "liba.so", &["-shared", "-Wl,-z,lazy"]);
    let library = fs::read(dir.path().join("liba.so")).expect("library");
    let why = bind(&library, &known(&[&library])).expect_err("lazy");
    assert_eq!(why, "not bound at its start (BIND_NOW)");
}

#[test]
fn damaged_files_are_refused_or_bound_but_never_a_panic() {
    let dir = tempfile::tempdir().expect("temporary directory");
    compile(dir.path(), LIBRARY, "liba.so", &["-shared"]);
    let library = fs::read(dir.path().join("liba.so")).expect("library");
    let all = known(&[&library]);
    for cut in 0..library.len().min(2000) {
        let _ = bind(&library[..cut], &all);
    }
    let mut damaged = library.clone();
    for at in (0..library.len()).step_by(3) {
        for value in [0xff, 0x00, 0x80] {
            damaged[at] = value;
            let _ = bind(&damaged, &all);
            let _ = Definitions::default().add(&damaged);
        }
        damaged[at] = library[at];
    }
    assert!(bind(b"#!/bin/sh", &all).is_err());
}

#[test]
fn a_version_of_its_own_is_not_answered_by_anothers() {
    let mut all = Definitions::default();
    let mut add = |name: &str, version: Option<&str>| {
        all.0.entry(name.to_owned()).or_default().push(version.map(str::to_owned));
    };
    add("twice", Some("A"));
    add("twice", Some("B"));
    add("loose", Some("A"));
    add("loose", None);
    add("bare", None);
    assert!(all.only_one("twice", Some("A")));
    assert!(!all.only_one("twice", None), "asked without a version either would do");
    assert!(!all.only_one("loose", Some("A")), "a file without versions answers to every one");
    assert!(all.only_one("bare", None));
    assert!(!all.only_one("none", Some("A")));
}
