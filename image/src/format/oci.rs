//! Writes an OCI image archive (image-spec 1.0 layout in a tar) of one layer, as `ctr images import` reads it.

use super::{digest, tar::Tar};
use serde_json::json;

/// What an image is made of.
pub struct Image<'a> {
    /// Full reference, for example `localhost/orlop/pause:1`.
    pub reference: &'a str,
    /// Absolute paths and contents; all are executable files.
    pub files: Vec<(&'a str, Vec<u8>)>,
    /// Entry point.
    pub entrypoint: Vec<&'a str>,
    /// `uid:gid`.
    pub user: &'a str,
    /// What its programs run on, in OCI's words (`amd64`).
    pub architecture: &'a str,
}

/// The archive's bytes: the same input gives the same bytes.
#[must_use]
pub fn archive(image: &Image<'_>) -> Vec<u8> {
    let mut layer = Tar::default();
    for (path, data) in &image.files {
        layer.file(path.trim_start_matches('/'), 0o755, data);
    }
    let layer = layer.finish();
    let layer_digest = digest::bytes(&layer);
    let config = json!({
        "architecture": image.architecture,
        "os": "linux",
        "config": { "Entrypoint": image.entrypoint, "User": image.user, "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
    })
    .to_string();
    let config_digest = digest::bytes(config.as_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config_digest, config.len()),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer_digest, layer.len())],
    })
    .to_string();
    let manifest_digest = digest::bytes(manifest.as_bytes());
    let mut entry =
        descriptor("application/vnd.oci.image.manifest.v1+json", &manifest_digest, manifest.len());
    let tag = image.reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    entry["annotations"] = json!({
        "io.containerd.image.name": image.reference,
        "org.opencontainers.image.ref.name": tag,
    });
    entry["platform"] = json!({ "architecture": image.architecture, "os": "linux" });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();

    let mut out = Tar::default();
    out.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
    out.file("index.json", 0o644, index.as_bytes());
    out.dir("blobs");
    out.dir("blobs/sha256");
    for (name, data) in [
        (manifest_digest, manifest.as_bytes()),
        (config_digest, config.as_bytes()),
        (layer_digest, layer.as_slice()),
    ] {
        out.file(&format!("blobs/sha256/{name}"), 0o644, data);
    }
    out.finish()
}

fn descriptor(media_type: &str, digest: &str, size: usize) -> serde_json::Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_input_same_bytes_and_blobs_carry_their_digest() {
        let image = || Image {
            reference: "localhost/orlop/x:1",
            files: vec![("/x", vec![1, 2, 3])],
            entrypoint: vec!["/x"],
            user: "0:0",
            architecture: "arm64",
        };
        let one = archive(&image());
        assert_eq!(one, archive(&image()));
        let text = String::from_utf8_lossy(&one).into_owned();
        assert!(text.contains("\"io.containerd.image.name\":\"localhost/orlop/x:1\""));
        assert_eq!(text.matches("blobs/sha256/").count(), 4);
        // In the index and in the image's configuration.
        assert_eq!(text.matches("\"architecture\":\"arm64\"").count(), 2);
    }
}
