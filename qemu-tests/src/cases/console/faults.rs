//! Five planted faults: each is named with its remedy on the serial port and on the screen within a minute.
//!
//! A standalone VM has a NodeConfig with mistakes and a static pod with a wrong image. Three VMs, one after another, want to
//! join a cluster with a wrong token, a wrong CA and a wrong clock.

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::bootstrap::Token;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::vm::lab::Firmware;

use crate::cases::boot::shared_vm::BOOT_LIMIT_S;
use crate::cases::console::{TOLD_LIMIT_S, await_told, lab_with_screen};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "console/faults",
    400,
    "wrong YAML, image, token, CA and clock: each is named with its remedy on serial port and screen within 60 s",
    faults,
)];

/// Three mistakes, of two kinds.
const MISTAKES: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nnode: {name: Edge_7}\nnoSuchField: 1\nkubelet:\n  maxPods: many\n";

/// A pod whose image is not there.
const POD: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nstaticPods:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: \
    typo\n  spec:\n    containers:\n    - {name: web, image: 'localhost/orlop/helo:1', imagePullPolicy: Never}\n";

fn faults(cx: &mut CaseContext<'_>) -> Result<()> {
    standalone(cx)?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let (token, other) = (cluster.token().clone(), Token::random()?);
    joins(
        cx,
        &mut cluster,
        "no-token",
        &other,
        |_| (),
        &["is not signed for token id", "kubeadm token create"],
    )?;
    let wrong_hash = cluster.pki().other_ca.public_key_hash.clone();
    let ca = ["none of the cluster's CAs has a hash from join.caCertHashes", "set the hash to that"];
    joins(cx, &mut cluster, "wrong-ca", &token, |vm| vm.trust(&wrong_hash), &ca)?;
    // The API server's clock sets it: what stays wrong is that no NTP server answers. Without a pods' range it is not Ready.
    let clock = ["clock: ClockUnverified: no NTP server answers", "time.servers"];
    joins(cx, &mut cluster, "early", &token, |vm| vm.mislead("2001-01-01T00:00:00"), &clock)
}

/// A machine that does not get into its cluster, and the words about that.
fn joins(
    cx: &CaseContext<'_>,
    cluster: &mut Cluster,
    name: &str,
    token: &Token,
    plant: impl FnOnce(&mut VmNode),
    words: &[&str],
) -> Result<()> {
    let mut node = VmNode::plug(cluster, &cx.artefacts, name)?;
    node.give_screen();
    plant(&mut node);
    node.boot(Some(token))?;
    let dir = cx.artefacts.join(name);
    let vm = node.vm()?;
    vm.await_phase("agent.ready", READY_LIMIT_S)?;
    let all: Vec<&str> = ["orlop-agent: problem: cluster, "].iter().chain(words).copied().collect();
    await_told(vm, &dir, &all)?;
    let heading = format!("-- {name} -- Orlop ");
    await_told(vm, &dir, &[heading.as_str()])?;
    await_told(vm, &dir, &["cluster: the Node is NOT READY"])
}

fn standalone(cx: &CaseContext<'_>) -> Result<()> {
    let mut lab = lab_with_screen(cx)?;
    // The command line is a source of its own: it counts, although the host's document is refused.
    lab.tell_kernel(&format!("orlop.config={}", base64(POD.as_bytes())));
    let mut vm = lab.boot(Firmware::Direct, Some(MISTAKES))?;
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    // init says all of them, and that the whole document does not count.
    let init =
        ["kubelet.maxPods", "noSuchField", "Edge_7", "REFUSED (3 mistakes above); this node runs with"];
    for words in init {
        vm.await_console(TOLD_LIMIT_S, words, |line| line.contains("orlop-init: ") && line.contains(words))?;
    }
    let ledger = vm.await_phase("init.configuration", TOLD_LIMIT_S)?;
    ensure!(!ledger.ok && ledger.detail.contains("REFUSED"), "the ledger says {ledger:?}");
    for words in ["kubelet.maxPods", "noSuchField", "Edge_7"] {
        await_told(
            &mut vm,
            lab.dir(),
            &["orlop-agent: ", "problem: configuration, ", words, "correct it: `orlopctl config apply FILE`"],
        )?;
    }
    let image = [
        "static pod default/typo-",
        "container web: ErrImageNeverPull",
        "correct `image` or `imagePullPolicy`",
    ];
    await_told(&mut vm, lab.dir(), &image)
}

/// Base64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let value =
            (0..3).fold(0_usize, |sum, n| (sum << 8) | usize::from(three.get(n).copied().unwrap_or(0)));
        for n in 0..4 {
            let letter = char::from(LETTERS[(value >> (18 - 6 * n)) & 63]);
            text.push(if n <= three.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use orlop_config::node::{Source, load};

    use super::*;

    #[test]
    fn base64_is_what_init_decodes() {
        for length in 1..8 {
            let bytes = &b"\x00\xffabc\x80~"[..length];
            assert_eq!(orlop_config::base64::decode(&base64(bytes)).as_deref(), Some(bytes));
        }
    }

    #[test]
    fn the_document_has_three_mistakes_and_the_pod_s_none() {
        let source =
            |text: &str| Source { name: "fw-cfg".into(), origin: "fw_cfg".into(), text: text.into() };
        assert_eq!(load(&[source(MISTAKES)], &[]).problems.len(), 3);
        let pod = load(&[source(POD)], &[]);
        assert_eq!(pod.problems, []);
        assert_eq!(pod.config.static_pods.len(), 1);
    }
}
