//! Releases for a node whose firmware has Secure Boot on: only a signed UKI is staged.
//!
//! Case: `trust/update-signed`. Nothing boots the release: staged is the end.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::lab::Lab;
use orlop_image::secure_boot::file_signatures;

use super::secure_boot::{sign, signer};
use crate::cases::update::published::{Server, new_keys, publish_release, published};
use crate::cases::update::staging::{PROGRAM, STAGE_LIMIT, boot};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "trust/update-signed",
    420,
    "with Secure Boot on, a release without a signature and one of a foreign key are refused by name, and a signed one is staged",
    update_signed,
)];

/// Blocks of the root that are other ones.
const CHANGED: u64 = 300;
/// Not signed, of a foreign key, of the image's key.
const VERSIONS: [&str; 3] = ["0.9.0", "0.9.1", "0.9.2"];

fn as_built(uki: Vec<u8>) -> Result<Vec<u8>> {
    Ok(uki)
}

fn update_signed(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let ((own, keys), (foreign, _)) = (signer(&lab, "own")?, signer(&lab, "foreign")?);
    sign(&lab, &own, &keys)?;
    let scratch = lab.dir().join("releases");
    std::fs::create_dir_all(&scratch).context("make a directory for releases")?;
    let release_keys = new_keys(&scratch)?;
    let publish = |version: &str, finish: &dyn Fn(Vec<u8>) -> Result<Vec<u8>>| {
        publish_release(&scratch, &release_keys, version, CHANGED, finish)
    };
    publish(VERSIONS[0], &as_built)?;
    publish(VERSIONS[1], &|uki| foreign.sign(&uki))?;
    let release = publish(VERSIONS[2], &|uki| own.sign(&uki))?;
    let published = published(&scratch, release)?;
    let uki = published.dir.join(format!("releases/{}/{}/orlop.efi", VERSIONS[2], published.release.arch));
    ensure!(file_signatures(&uki)?.len() == 1, "the release has lost its signature");

    let server = Server::start(lab.dir(), &published.dir)?;
    lab.reach_host();
    let mut vm = boot(&lab, &server, &published)?;
    let name = own.certificate().name();
    let refusals = [
        format!("its UKI is not signed, and the firmware of this node starts only what {name} has signed"),
        format!("its UKI is signed by {}, and the firmware", foreign.certificate().name()),
    ];
    for (version, words) in VERSIONS.iter().zip(&refusals) {
        let refused = vm.shell()?.run(&format!("{PROGRAM} take {version}"), STAGE_LIMIT)?;
        ensure!(refused.status != 0 && refused.text.contains(words.as_str()), "{version}: {}", refused.text);
    }
    let taken = vm.shell()?.run(&format!("{PROGRAM} take {}", VERSIONS[2]), STAGE_LIMIT)?;
    let want = format!("{} is staged in slot B", VERSIONS[2]);
    ensure!(taken.status == 0 && taken.text.contains(&want), "the updater says {}", taken.text);
    say::line(format!("  {want}"));
    vm.power_off(120)
}
