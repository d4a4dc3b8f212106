//! The two programs as they are built: neither does what the other one is for, and each says which program that is.

use orlop_init::plan::program::Subcommand;
use std::process::Command;

const INIT: &str = env!("CARGO_BIN_EXE_orlop-init");
const INITRD: &str = env!("CARGO_BIN_EXE_orlop-initrd");

/// What the program says to a call that it refuses.
fn refusal(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("the program starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{program} {args:?}: {said}");
    assert!(output.stdout.is_empty(), "{program} {args:?}");
    said
}

#[test]
fn the_initrds_program_refuses_each_subcommand_by_name() {
    for subcommand in Subcommand::ALL.map(Subcommand::name) {
        let said = refusal(INITRD, &[subcommand]);
        let want =
            format!("orlop-initrd: `{subcommand}` is a subcommand of orlop-init; this program is PID 1");
        assert!(said.starts_with(&want), "{said}");
    }
    let others: [&[&str]; 2] = [&[], &["install"]];
    for args in others {
        let said = refusal(INITRD, args);
        assert!(said.ends_with("this program is PID 1 of an initramfs and does nothing else\n"), "{said}");
    }
}

#[test]
fn the_running_systems_program_names_the_one_of_the_initrd() {
    let calls: [&[&str]; 4] = [&[], &["initrd"], &["install", "bringup"], &[""]];
    for args in calls {
        let said = refusal(INIT, args);
        assert!(said.starts_with("orlop-init: "), "{said}");
        assert!(said.ends_with("; PID 1 of the initrd is orlop-initrd\n"), "{said}");
        if let Some(word) = args.first() {
            assert!(said.contains(&format!("there is no subcommand `{word}`")), "{said}");
        }
    }
}
