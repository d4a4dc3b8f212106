//! The AppArmor profile that containerd gives to containers, compiled at build.
//!
//! containerd has the profile as a template inside, and compiles it at the first container unless the kernel knows a
//! profile of that name. bringup loads the compiled one before (docs/decisions/apparmor.md). The template is kept here
//! as containerd has it (`contrib/apparmor/template.go`), and the build compares it with the program in the image: a
//! containerd with another profile fails the build instead of running with the old one.

use super::namespaced;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// containerd's, byte for byte.
const TEMPLATE: &str = include_str!("../../apparmor/containerd.template");
/// The name under which containerd looks for it (`internal/cri/sputil`, `appArmorDefaultProfileName`).
const NAME: &str = "cri-containerd.apparmor.d";
/// Below the root; bringup loads it from there.
const POLICY: &str = "usr/share/orlop/apparmor/cri-containerd.policy";
/// Debian's own set of features of its kernels: the build must not depend on the kernel that it runs under.
const FEATURES: &str = "/usr/share/apparmor-features/features";

/// What containerd puts in on a node that has Debian's tunables and abstractions, and runs unconfined itself.
const FILLED: [(&str, &str); 6] = [
    ("{{if .Abi}}abi <{{.Abi}}>,\n{{end}}", "abi <abi/3.0>,\n"),
    ("{{range $value := .Imports}}\n{{$value}}\n{{end}}", "#include <tunables/global>\n"),
    ("{{range $value := .InnerImports}}\n  {{$value}}\n{{end}}", "  #include <abstractions/base>\n"),
    (
        "{{if .RootlessKit}}\n  # https://github.com/containerd/nerdctl/issues/2730\n  signal (receive) \
         peer={{.RootlessKit}},\n{{end}}\n",
        "",
    ),
    ("{{.DaemonProfile}}", "unconfined"),
    ("{{.Name}}", NAME),
];

/// Writes the compiled profile below `root`, by the parser of the package tree `base`; returns its path there.
pub(super) fn compile(base: &Path, root: &Path) -> Result<String> {
    let containerd = fs::read(base.join("usr/bin/containerd")).context("reading containerd")?;
    if !contains(&containerd, TEMPLATE.as_bytes()) {
        bail!(
            "image/apparmor/containerd.template is not the template of this containerd: take over \
             contrib/apparmor/template.go of its release"
        );
    }
    let policy = parse(base, &profile()?)?;
    let path = root.join(POLICY);
    fs::create_dir_all(path.parent().context("a path with a directory")?)?;
    fs::write(&path, policy).with_context(|| format!("writing {POLICY}"))?;
    Ok(POLICY.to_owned())
}

/// The profile's text.
fn profile() -> Result<String> {
    let mut text = TEMPLATE.to_owned();
    for (place, content) in FILLED {
        if !text.contains(place) {
            bail!("the template has no {place:?}");
        }
        text = text.replace(place, content);
    }
    if text.contains("{{") {
        bail!("the template has a place that is not filled:\n{text}");
    }
    Ok(text)
}

fn parse(base: &Path, profile: &str) -> Result<Vec<u8>> {
    let mut command = namespaced();
    command.arg("chroot").arg(base).arg("/usr/sbin/apparmor_parser");
    command.args(["--skip-kernel-load", "--skip-cache", "--kernel-features", FEATURES, "--stdout"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("chroot")?;
    child.stdin.take().context("stdin is piped")?.write_all(profile.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    // The parser does not answer each mistake with its status.
    if !output.status.success() || !said.is_empty() || output.stdout.is_empty() {
        bail!("apparmor_parser: {} and {} bytes: {said}", output.status, output.stdout.len());
    }
    Ok(output.stdout)
}

fn contains(data: &[u8], part: &[u8]) -> bool {
    let Some(first) = part.first() else { return true };
    let mut at = 0;
    while let Some(found) = data[at..].iter().position(|byte| byte == first) {
        if data[at + found..].starts_with(part) {
            return true;
        }
        at += found + 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_template_is_filled() {
        let text = profile().expect("a template that is known");
        assert!(text.starts_with("\nabi <abi/3.0>,\n"), "{text}");
        let head = format!("\nprofile {NAME} flags=(attach_disconnected,mediate_deleted) {{\n");
        let (before, body) = text.split_once(&head).expect("the profile's head");
        assert!(before.contains("#include <tunables/global>"), "{before}");
        for rule in [
            "  #include <abstractions/base>",
            "  deny mount,",
            "  signal (receive) peer=unconfined,",
            "  signal (send,receive) peer=cri-containerd.apparmor.d,",
            "  ptrace (trace,tracedby,read,readby) peer=cri-containerd.apparmor.d,",
        ] {
            assert!(body.lines().any(|line| line == rule), "{rule:?} is not in\n{text}");
        }
        assert!(!body.contains("Rootless"), "{body}");
    }

    #[test]
    fn a_part_is_found_wherever_it_is() {
        for (data, part, want) in [
            (&b"aab"[..], &b"ab"[..], true),
            (b"ab", b"abc", false),
            (b"", b"a", false),
            (b"xxa", b"a", true),
            (b"x", b"", true),
        ] {
            assert_eq!(contains(data, part), want, "{part:?} in {data:?}");
        }
    }
}
