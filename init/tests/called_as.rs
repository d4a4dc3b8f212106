//! The binary under its other names: what it answers arrives whole, although nothing flushes a program's standard
//! output at its end here.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

#[test]
fn portmap_without_host_ports_answers_to_the_last_byte() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let name = dir.path().join("portmap");
    symlink(env!("CARGO_BIN_EXE_orlop-init"), &name).expect("link");
    let result = r#"{"cniVersion":"1.0.0","dns":{},"ips":[]}"#;
    let config =
        format!(r#"{{"type":"portmap","runtimeConfig":{{"portMappings":[]}},"prevResult":{result}}}"#);
    let mut command = Command::new(&name);
    command.env("CNI_COMMAND", "ADD").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    child.stdin.take().expect("piped").write_all(config.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ends");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), result);
}
