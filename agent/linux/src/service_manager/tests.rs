//! What systemctl answers: tables, and programs in its place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

#[test]
fn a_machine_that_goes_down_and_one_that_does_not() {
    for (jobs, expected) in [
        ("", None),
        ("No jobs running.\n", None),
        ("7 reboot.target start waiting\n8 kubelet.service stop running\n", None),
        ("7 reboot.target start waiting\n9 shutdown.target start waiting\n", Some("reboot")),
        ("  9 shutdown.target    start waiting\n 11 soft-reboot.target start waiting\n", Some("soft-reboot")),
        ("9 shutdown.target start waiting\n7 kexec.target start waiting\n", Some("kexec")),
        // A shutdown.target that is only kept away.
        ("9 shutdown.target stop waiting\n7 reboot.target start waiting\n", None),
        // A user's own target, and jobs that are no start of a target.
        (
            "9 shutdown.target start waiting\n1 mine.target start waiting\n2 poweroff.target stop done\n\
             3 reboot.service start waiting\n",
            Some(""),
        ),
        ("9 shutdown.target\nstart\n\u{0}\u{7f} shutdown.target startle\n", None),
    ] {
        assert_eq!(stop_of(jobs).as_deref(), expected, "{jobs}");
    }
}

/// A program in systemctl's place, and the directory that it is in.
fn program(script: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("systemctl");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    (directory, path)
}

#[tokio::test]
async fn what_systemctl_says_counts() {
    let (_directory, path) = program(
        "[ \"$1\" = list-jobs ] || exit 9\necho 'warning' >&2\necho '9 shutdown.target start waiting'\n\
         echo '7 poweroff.target start waiting'",
    );
    assert_eq!(going_down(&path).await.unwrap().as_deref(), Some("poweroff"));
}

#[tokio::test]
async fn who_cannot_be_asked() {
    let missing = going_down(Path::new("/nowhere/systemctl")).await.unwrap_err();
    assert!(matches!(missing, ServiceManagerError::Run { .. }), "{missing}");
    let (_directory, path) = program("echo 'System has not been booted with systemd' >&2; exit 1");
    let failed = going_down(&path).await.unwrap_err().to_string();
    assert!(failed.contains("exit status: 1: System has not been booted with systemd"), "{failed}");
    let (_directory, path) = program("exec sleep 1000");
    let silent = asked_within(&path, Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(silent, ServiceManagerError::Silent { .. }), "{silent}");
}
