//! Default confinement of containers: AppArmor's profile of the runtime, its filter of system calls, no core dump.
//! Static pods in the VM of `boot/*`; their programs are the test image's own.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use serde_json::{Value, json};

use crate::cases::boot::bash_pod::{self, MANIFESTS};
use crate::cases::boot::shared_vm::{HERE, node};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "defence/apparmor",
    40,
    "a pod runs under the runtime's AppArmor and seccomp profiles and may not mount, unless it asks otherwise; profiles of the node",
    apparmor,
)];

/// On the node, and `/out` in the pods.
const OUT: &str = "/var/lib/e2e-apparmor";
/// A profile that an operator brings to the node, and the access that it denies.
const OWN: &str = "e2e-own";
const OWN_TEXT: &str = r"
#include <tunables/global>
profile e2e-own flags=(attach_disconnected) {
  #include <abstractions/base>
  file,
  capability,
  deny /out/denied w,
}
";

/// Script of each pod, which prints lines `NAME=VALUE`. Its capabilities allow a mount.
fn script(name: &str) -> String {
    format!(
        "read -r profile < /proc/self/attr/current; echo profile=$profile; \
         while read -r key value; do [ $key = Seccomp: ] && echo seccomp=$value; done < /proc/self/status; \
         echo core=$(ulimit -S -c); \
         mkdir -p /out/{name}.d; mount -t tmpfs none /out/{name}.d; echo mount=$?; \
         (echo x > /out/denied); echo write=$?;"
    )
}

fn pod(name: &str, context: &Value) -> Value {
    let mut security = json!({"runAsUser": 0, "capabilities": {"add": ["SYS_ADMIN"]}});
    for (key, value) in context.as_object().into_iter().flatten() {
        security[key] = value.clone();
    }
    bash_pod::manifest(&full(name), OUT, &script(name), &security)
}

fn full(name: &str) -> String {
    format!("apparmor-{name}")
}

fn apparmor(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let ledger = node.must("cat /run/orlop/boot.json")?;
    ensure!(ledger.contains("cri-containerd.apparmor.d"), "bringup loaded no profile: {ledger}");
    node.must(&format!("mkdir -p {OUT} && printf %s '{OWN_TEXT}' > {OUT}/profile"))?;
    let parsed = node.must(&format!("/sbin/apparmor_parser -r {OUT}/profile"))?;
    ensure!(parsed.trim().is_empty(), "apparmor_parser says {parsed:?}");

    let unconfined = json!({"type": "Unconfined"});
    // Context, and expected result: profile, filter of system calls (2: there is one), whether a mount and a file are
    // allowed. The last two contexts only show which of the two refuses the mount.
    let pods = [
        ("plain", json!({}), "cri-containerd.apparmor.d (enforce)", "2", false, true),
        ("unconfined", json!({"appArmorProfile": unconfined}), "unconfined", "2", true, true),
        (
            "unfiltered",
            json!({"seccompProfile": unconfined}),
            "cri-containerd.apparmor.d (enforce)",
            "0",
            false,
            true,
        ),
        ("privileged", json!({"privileged": true}), "unconfined", "0", true, true),
        (
            "own",
            json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": OWN}}),
            "e2e-own (enforce)",
            "2",
            false,
            false,
        ),
    ];
    for (name, context, ..) in &pods {
        bash_pod::start(node, &full(name), &pod(name, context))?;
    }
    for (name, _, profile, seccomp, mounts, writes) in pods {
        let said = bash_pod::output(node, OUT, &full(name))?;
        let line = |key: &str| {
            said.lines()
                .find_map(|l| l.strip_prefix(key))
                .with_context(|| format!("{name}: no {key} in {said}"))
        };
        ensure!(line("profile=")? == profile, "{name} is not under {profile:?}: {said}");
        ensure!(line("seccomp=")? == seccomp, "{name} has not the filter {seccomp}: {said}");
        ensure!(line("core=")? == "0", "{name} leaves cores: {said}");
        ensure!((line("mount=")? == "0") == mounts, "whether {name} may mount is not {mounts}: {said}");
        ensure!((line("write=")? == "0") == writes, "whether {name} may write is not {writes}: {said}");
    }
    let gone = format!("rm -f {MANIFESTS}/apparmor-*.json && rm -rf {OUT} && apparmor_parser -R /dev/stdin");
    node.must(&format!("printf %s '{OWN_TEXT}' | {{ {gone}; }}")).map(drop)
}
