//! A release out of an OCI registry into slot B of a running node.
//!
//! The registry is the case's own web server: with the layout's blobs at the paths of the distribution API it is one for reading.
//! Manifests and blobs are those of `orlop-image layout`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::lab::Lab;
use orlop_image::update::write_layout;
use serde_json::Value;

use super::published::{Server, publish};
use super::staging::{boot, ensure_staged, take};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "update/oci",
    300,
    "a release of a registry is written into slot B by ranges and read back, and what has not changed is not fetched",
    oci,
)];

/// Name of the repository.
const REPOSITORY: &str = "orlop";

/// The files of a layout where a registry has them.
fn serve_layout(layout: &Path, served: &Path) -> Result<()> {
    let api = served.join("v2").join(REPOSITORY);
    let (manifests, blobs) = (api.join("manifests"), api.join("blobs"));
    for dir in [&manifests, &blobs] {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    for entry in fs::read_dir(layout.join("blobs/sha256")).context("the layout's blobs")? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name is not text")?;
        fs::rename(entry.path(), blobs.join(format!("sha256:{name}")))?;
    }
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?).context("index.json")?;
    for manifest in index["manifests"].as_array().context("no manifests")? {
        let tag = manifest["annotations"]["org.opencontainers.image.ref.name"].as_str().context("no tag")?;
        let digest = manifest["digest"].as_str().context("no digest")?;
        fs::copy(blobs.join(digest), manifests.join(tag)).with_context(|| format!("serve {tag}"))?;
    }
    Ok(())
}

fn oci(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let published = publish(lab.dir(), 1900)?;
    let (layout, served) = (lab.dir().join("layout"), lab.dir().join("served"));
    let made = write_layout(&published.dir, &layout)?;
    ensure!(made.left_out.is_empty() && made.tags.len() == 3, "{made:?}");
    serve_layout(&layout, &served)?;
    let mut server = Server::start(lab.dir(), &served)?;
    server.base = format!("{}/{REPOSITORY}", server.base.replacen("https://", "oci://", 1));
    lab.reach_host();
    let mut vm = boot(&lab, &server, &published)?;
    take(&mut vm)?;
    let given = server.given();
    say::line(format!("  {given} bytes from the registry"));
    ensure!(given <= 10_000_000, "{given} bytes from the registry for 7.4 MiB that have changed");
    vm.power_off(120)?;
    ensure_staged(&lab, &published)
}
