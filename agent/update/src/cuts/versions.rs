//! The versions that the disks of these tests have, and the disk before the first update.

use orlop_config::release::ReleaseDocument;
use orlop_config::slots::SlotName;
use orlop_init::plan::cmdline::RootHash;
use orlop_init::plan::esp_names::EntryState;
use orlop_init::plan::gpt_change::Editor;

use super::image::DiskImage;
use crate::directory::MountedDirectory;
use crate::slot::blocks::{BLOCK, digest};
use crate::slot::places::slot_guids;
use crate::slot::record::tests::release;
use crate::slot::tree::tests::{SALT, grown};
use crate::stage_fixture::{FIRST_A, Node, cluster, roots};

/// What a slot of one version holds, byte for byte.
pub(super) struct KnownVersion {
    pub(super) version: &'static str,
    pub(super) root: Vec<u8>,
    pub(super) tree: Vec<u8>,
    pub(super) hash: RootHash,
    pub(super) uki: Vec<u8>,
}

impl KnownVersion {
    /// The `n`th one. Of the roots, 40 blocks are those of the first one, at other places.
    fn new(version: &'static str, n: u8) -> KnownVersion {
        let [first, mut root] = roots();
        if n == 0 {
            root = first;
        } else {
            let own = root.chunks_mut(BLOCK).take(20).zip(150 + 10 * n..);
            own.for_each(|(block, byte)| block.fill(byte));
        }
        let (tree, parameters) = grown(&root);
        let hash = RootHash(parameters.hash.0);
        // Four blocks of its own, eight that all have, and the end of a block.
        let mut uki = vec![0xa0 + n; 4 * BLOCK];
        let text = format!("IMAGE_VERSION=\"{version}\"\nroothash={hash} ");
        uki[5000..5000 + text.len()].copy_from_slice(text.as_bytes());
        uki.extend((1..9).flat_map(|block| vec![block; BLOCK]));
        uki.extend(vec![0xb0 + n; 77]);
        KnownVersion { version, root, tree, hash, uki }
    }

    /// All versions, the oldest first.
    pub(super) fn all() -> Vec<KnownVersion> {
        let names = ["0.1.0", "0.2.0", "0.3.0", "0.4.0"];
        names.into_iter().zip(0..).map(|(version, n)| KnownVersion::new(version, n)).collect()
    }

    pub(super) fn find<'a>(known: &'a [KnownVersion], version: &str) -> Option<&'a KnownVersion> {
        known.iter().find(|known| known.version == version)
    }

    /// Length of its UKI, bytes.
    pub(super) fn uki_bytes(&self) -> u32 {
        u32::try_from(self.uki.len()).expect("small")
    }

    /// The digests of the blocks of its UKI, as a release lists them.
    pub(super) fn uki_digests(&self) -> Vec<u8> {
        let mut padded = self.uki.clone();
        padded.resize(padded.len().next_multiple_of(BLOCK), 0);
        padded.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect()
    }

    /// Publishes it.
    pub(super) fn publish(&self, node: &Node) -> (MountedDirectory, ReleaseDocument) {
        let like = ReleaseDocument { version: self.version.parse().expect("a version"), ..release() };
        node.publish_as(like, &self.root, self.uki.clone())
    }
}

/// A disk as an image leaves it: this version in slot A, which was booted once; nothing in slot B.
pub(super) fn first_disk(node: &Node, version: &KnownVersion) -> DiskImage {
    node.write(node.starts[1], &version.root);
    node.write(node.starts[2], &version.tree);
    node.write(node.starts[0] + cluster(FIRST_A), &version.uki);
    let renamed = node.names().renamed(SlotName::A, EntryState::Good, version.uki_bytes());
    let (_, write) = renamed.expect("a write");
    node.write(node.starts[0] + write.offset, &write.bytes);
    let bytes = std::fs::metadata(&node.disk).expect("there").len();
    let mut table = Editor::read(bytes, 512, |at, length| Some(node.read(at, length))).expect("sound");
    for (number, guid) in (2..).zip(slot_guids(&version.hash.0)) {
        table.identify(number, guid).expect("there");
    }
    table.writes().iter().for_each(|write| node.write(write.offset, &write.bytes));
    node.set_record(|record| {
        record.a.version = version.version.to_owned();
        record.a.roothash = version.hash.to_string();
        record.a.uki_bytes = u64::from(version.uki_bytes());
        record.a.generation = 2;
        record.boot_open = true;
    });
    DiskImage::of_file(&node.disk)
}
