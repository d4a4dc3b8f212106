//! A publisher with real keys and a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use orlop_config::release::{
    ARCH, Base64Bytes, ChannelDocument, ChannelRelease, Envelope, HexDigest, KeyAlgorithm, NodeRelease,
    PRODUCT, RELEASE_DOCUMENT, RELEASE_FILES, ReleaseDocument, ReleaseFile, ReleaseVersion, RoleKeys,
    RootTree, SignedDocument, TrustDocument, TrustedKey, UtcSecond, VERITY_ALGORITHM, channel_path,
    release_path, trust_path,
};
use orlop_update::SurveyRequest;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use tempfile::TempDir;

static NOTHING_REFUSED: BTreeSet<ReleaseVersion> = BTreeSet::new();

pub(crate) struct Publisher {
    keys: BTreeMap<String, Ed25519KeyPair>,
    scratch: TempDir,
}

pub(crate) fn version(text: &str) -> ReleaseVersion {
    text.parse().expect("a version")
}

pub(crate) fn at(text: &str) -> UtcSecond {
    text.parse().expect("a time")
}

/// A node with version 0.1.0 and a trusted clock.
pub(crate) fn request() -> SurveyRequest<'static> {
    SurveyRequest {
        channel: "stable",
        node: NodeRelease { arch: ARCH, running: version("0.1.0"), floor: 1 },
        seed: b"seed",
        refused: &NOTHING_REFUSED,
        now: Some(at("2026-11-30T00:00:00Z")),
        version: None,
    }
}

pub(crate) fn channel(sequence: u64) -> ChannelDocument {
    let release = |text| ChannelRelease {
        version: version(text),
        arch: ARCH.to_owned(),
        min_version: None,
        rollout: None,
    };
    ChannelDocument {
        product: PRODUCT.to_owned(),
        channel: "stable".to_owned(),
        trust: 1,
        sequence,
        expires: at("2026-12-31T00:00:00Z"),
        releases: vec![release("0.2.0")],
        withdrawn: Vec::new(),
    }
}

pub(crate) fn release(text: &str) -> ReleaseDocument {
    let file = |name: &&str| ReleaseFile { name: name.to_string(), size: 4096, sha256: HexDigest([1; 32]) };
    ReleaseDocument {
        product: PRODUCT.to_owned(),
        arch: ARCH.to_owned(),
        version: version(text),
        generation: 2,
        revokes: None,
        min_version: None,
        kubernetes: "1.36".to_owned(),
        root: RootTree {
            algorithm: VERITY_ALGORITHM.to_owned(),
            hash: HexDigest([2; 32]),
            salt: HexDigest([3; 32]),
            blocks: 4,
        },
        files: RELEASE_FILES.iter().map(file).collect(),
    }
}

impl Publisher {
    /// Keys, trust 1 in the image, and 0.2.0 in the channel `stable`.
    pub(crate) fn new() -> Publisher {
        let mut publisher =
            Publisher { keys: BTreeMap::new(), scratch: tempfile::tempdir().expect("a scratch directory") };
        for id in ["root-1", "root-2", "root-3", "release", "channel"] {
            publisher.make_key(id);
        }
        let trust = publisher.trust(1, "release", "channel");
        publisher.publish(&trust_path(1), &trust, &["root-1", "root-2"]);
        fs::copy(publisher.served().join(trust_path(1)), publisher.image_trust()).expect("copied");
        publisher.publish(&channel_path("stable"), &channel(5), &["channel"]);
        let path = release_path(version("0.2.0"), ARCH, RELEASE_DOCUMENT);
        publisher.publish(&path, &release("0.2.0"), &["release"]);
        publisher
    }

    pub(crate) fn make_key(&mut self, id: &str) {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        self.keys.insert(id.to_owned(), Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key"));
    }

    /// What a node fetches.
    pub(crate) fn served(&self) -> PathBuf {
        self.scratch.path().join("served")
    }

    /// What the image carries.
    pub(crate) fn image_trust(&self) -> PathBuf {
        self.scratch.path().join("trust.json")
    }

    /// What a node keeps.
    pub(crate) fn kept(&self) -> PathBuf {
        self.scratch.path().join("kept")
    }

    pub(crate) fn trust(&self, number: u64, release: &str, channel: &str) -> TrustDocument {
        let role = |threshold, keys: &[&str]| RoleKeys {
            keys: keys.iter().map(ToString::to_string).collect(),
            threshold,
        };
        let key = |id: &str| {
            let public = Base64Bytes(self.keys[id].public_key().as_ref().to_vec());
            TrustedKey { id: id.to_owned(), algorithm: KeyAlgorithm::Ed25519, public }
        };
        TrustDocument {
            product: PRODUCT.to_owned(),
            number,
            keys: ["root-1", "root-2", "root-3", release, channel].map(key).to_vec(),
            root: role(2, &["root-1", "root-2", "root-3"]),
            release: role(1, &[release]),
            channel: role(1, &[channel]),
        }
    }

    pub(crate) fn signed<T: SignedDocument>(&self, document: &T, keys: &[&str]) -> Vec<u8> {
        let mut envelope = Envelope::around(document).expect("a good document");
        for id in keys {
            let signature = self.keys[*id].sign(&envelope.signed_bytes());
            envelope.sign(id, signature.as_ref().to_vec());
        }
        envelope.text().into_bytes()
    }

    pub(crate) fn publish<T: SignedDocument>(&self, path: &str, document: &T, keys: &[&str]) {
        write(&self.served().join(path), &self.signed(document, keys));
    }
}

pub(crate) fn write(path: &Path, text: &[u8]) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, text).expect("written");
}
