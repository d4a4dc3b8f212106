//! A published directory as an OCI image layout, which tools copy to a registry.
//!
//! In: the published directory. Out: a directory with `oci-layout`, `index.json` and blobs: an artifact for each trust document,
//! channel and release, with the tag and the titles by which nodes look for them (`orlop_update::oci_place`). Invariants: the same
//! directory gives the same layout; a file that no node looks for is left out by name; blobs are whole under their names.

use crate::format::digest;
use anyhow::{Context, Result, ensure};
use clap::Args;
use orlop_config::release::DOCUMENT_BYTES_MAX;
use orlop_update::{OCI_MANIFEST_TYPE, oci_place};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Type of the artifacts.
const ARTIFACT_TYPE: &str = "application/vnd.orlop.update.v1";
/// Type of a document: a DSSE envelope.
const DOCUMENT_TYPE: &str = "application/vnd.dsse.envelope.v1+json";
/// Type of another file.
const FILE_TYPE: &str = "application/octet-stream";
/// An artifact has no configuration (image specification 1.1).
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
const EMPTY: &[u8] = b"{}";

/// Arguments of `orlop-image layout`.
#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// The published directory
    published: PathBuf,
    /// The layout's directory. What is there of an earlier one is used again
    #[arg(long)]
    to: PathBuf,
}

/// Runs `orlop-image layout`: prints the tags.
///
/// # Errors
/// A file cannot be read or written, or a document is larger than nodes read.
pub fn layout(args: &LayoutArgs) -> Result<()> {
    let made = write_layout(&args.published, &args.to)?;
    made.left_out.iter().for_each(|path| println!("left out: {path}"));
    made.tags.iter().for_each(|tag| println!("{tag}"));
    Ok(())
}

/// What a layout has.
#[derive(Debug, PartialEq, Eq)]
pub struct WrittenLayout {
    /// Tags of the artifacts.
    pub tags: Vec<String>,
    /// Files that nodes do not look for.
    pub left_out: Vec<String>,
}

/// Writes the published directory as a layout.
///
/// # Errors
/// A file cannot be read or written, or a document is larger than nodes read.
pub fn write_layout(published: &Path, to: &Path) -> Result<WrittenLayout> {
    let blobs = to.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("making {}", blobs.display()))?;
    let mut layers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut left_out = Vec::new();
    for path in files(published)? {
        let Some(place) = oci_place(&path) else {
            left_out.push(path);
            continue;
        };
        let file = published.join(&path);
        let size = fs::metadata(&file).with_context(|| format!("reading {}", file.display()))?.len();
        let is_document = path.ends_with(".json") && !path.ends_with("/sbom.json");
        ensure!(!is_document || size <= DOCUMENT_BYTES_MAX as u64, "{path} is larger than nodes read");
        let name = digest::file(&file)?;
        keep(&file, &blobs.join(&name), !is_document)?;
        let kind = if is_document { DOCUMENT_TYPE } else { FILE_TYPE };
        let mut layer = descriptor(kind, &name, size);
        layer["annotations"] = json!({ "org.opencontainers.image.title": place.title });
        layers.entry(place.tag).or_default().push(layer);
    }
    let empty = digest::bytes(EMPTY);
    write(&blobs.join(&empty), EMPTY)?;
    let mut manifests = Vec::new();
    for (tag, layers) in &layers {
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": descriptor(EMPTY_TYPE, &empty, EMPTY.len() as u64),
            "layers": layers,
        })
        .to_string();
        let name = digest::bytes(manifest.as_bytes());
        write(&blobs.join(&name), manifest.as_bytes())?;
        let mut entry = descriptor(OCI_MANIFEST_TYPE, &name, manifest.len() as u64);
        entry["artifactType"] = json!(ARTIFACT_TYPE);
        entry["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
        manifests.push(entry);
    }
    write(&to.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    // Last: until then an earlier index counts, whose blobs are there.
    write(&to.join("index.json"), index.to_string().as_bytes())?;
    Ok(WrittenLayout { tags: layers.into_keys().collect(), left_out })
}

fn descriptor(media_type: &str, name: &str, size: u64) -> Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{name}"), "size": size })
}

/// Paths of all files below a directory, with slashes, sorted.
fn files(root: &Path) -> Result<Vec<String>> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        let at = root.join(&folder);
        let entries = fs::read_dir(&at).with_context(|| format!("reading {}", at.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", at.display()))?;
            let below = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(below);
            } else {
                found.push(below.to_str().context("a name is not text")?.to_owned());
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Copies the file to its blob. The large files of a release, which nobody writes twice, are linked if that works.
fn keep(file: &Path, blob: &Path, link: bool) -> Result<()> {
    if blob.exists() {
        return Ok(());
    }
    if !link || fs::hard_link(file, blob).is_err() {
        let half = blob.with_extension("new");
        fs::copy(file, &half).with_context(|| format!("copying {}", file.display()))?;
        fs::rename(&half, blob).with_context(|| format!("writing {}", blob.display()))?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let half = path.with_extension("new");
    match fs::remove_file(&half) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            return Err(e).context("removing a file of an earlier run");
        }
        _ => {}
    }
    fs::write(&half, bytes)
        .and_then(|()| fs::rename(&half, path))
        .with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::release::{channel_path, release_path, trust_path};

    fn published(dir: &Path) {
        let version = "0.2.0".parse().expect("a version");
        for (path, text) in [
            (trust_path(1), "trust"),
            (channel_path("stable"), "channel"),
            (release_path(version, "x86-64", "release.json"), "release"),
            (release_path(version, "x86-64", "root.erofs"), "root"),
            ("README".to_owned(), "words"),
        ] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
    }

    fn json_of(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
    }

    #[test]
    fn each_artifact_has_its_tag_and_its_files() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let (from, to) = (dir.path().join("published"), dir.path().join("layout"));
        published(&from);
        let made = write_layout(&from, &to).expect("a layout");
        assert_eq!(made.tags, ["channel-stable", "release-0.2.0-x86-64", "trust-1"]);
        assert_eq!(made.left_out, ["README"]);
        let index = json_of(&to.join("index.json"));
        let blob = |named: &Value| {
            let name = named.as_str().and_then(|text| text.strip_prefix("sha256:")).expect("a digest");
            let path = to.join("blobs/sha256").join(name);
            assert_eq!(digest::file(&path).expect("a blob"), name);
            path
        };
        let release = &index["manifests"][1];
        assert_eq!(release["annotations"]["org.opencontainers.image.ref.name"], "release-0.2.0-x86-64");
        let manifest = json_of(&blob(&release["digest"]));
        assert_eq!(fs::read(blob(&manifest["config"]["digest"])).expect("a blob"), EMPTY);
        let layers = manifest["layers"].as_array().expect("layers");
        let titles: Vec<_> =
            layers.iter().map(|l| &l["annotations"]["org.opencontainers.image.title"]).collect();
        assert_eq!(titles, ["release.json", "root.erofs"]);
        assert_eq!((&layers[0]["mediaType"], &layers[1]["size"]), (&json!(DOCUMENT_TYPE), &json!(4)));
        assert_eq!(fs::read(blob(&layers[1]["digest"])).expect("a blob"), b"root");
        // Again: the same, and what has changed.
        let before = fs::read(to.join("index.json")).expect("an index");
        write_layout(&from, &to).expect("a layout");
        assert_eq!(fs::read(to.join("index.json")).expect("an index"), before);
        fs::write(from.join(trust_path(2)), "next").expect("written");
        assert_eq!(write_layout(&from, &to).expect("a layout").tags.len(), 4);
    }

    #[test]
    fn a_document_that_no_node_reads_is_refused() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let from = dir.path().join("published");
        published(&from);
        fs::write(from.join(channel_path("stable")), vec![b' '; DOCUMENT_BYTES_MAX + 1]).expect("written");
        let refused = write_layout(&from, &dir.path().join("layout")).expect_err("too large").to_string();
        assert!(refused.contains("channels/stable.json"), "{refused}");
    }
}
