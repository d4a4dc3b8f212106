//! The key-value files of containerd (bbolt's format, version 2): read whole, made canonical, written afresh.
//!
//! containerd stamps the time of an import and keeps free pages with leftovers. Read into a tree, times set to one
//! value, and written compactly in key order, the same images give the same file. Pure: bytes in, bytes out.

mod read;
mod write;

pub use read::read;
pub use write::write;

use std::collections::BTreeMap;

/// Page size of every file containerd makes on x86-64.
const PAGE: usize = 4096;
/// First word of a meta page.
const MAGIC: u32 = 0xed0c_daed;
/// Format version.
const VERSION: u32 = 2;
/// Page and element flags.
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREELIST: u16 = 0x10;
const BUCKET: u32 = 0x01;

/// A bucket: keys to values or buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Last number handed out.
    pub sequence: u64,
    /// In key order.
    pub items: BTreeMap<Vec<u8>, Item>,
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Bytes.
    Value(Vec<u8>),
    /// A bucket below.
    Bucket(Bucket),
}

/// A file that is none, or damaged.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BoltError {
    /// Neither meta page is valid.
    #[error("no valid meta page: not a bbolt file, or damaged")]
    NoMeta,
    /// A page or element points outside.
    #[error("page {0} is damaged")]
    Page(u64),
    /// Buckets nest deeper than any containerd makes.
    #[error("buckets nest too deeply at page {0}")]
    Depth(u64),
    /// More than a page can count.
    #[error("a bucket has {0} entries, more than fit one page header")]
    TooMany(usize),
}

/// Fixed time of canonical records, seconds since 1970 (mkosi's SourceDateEpoch).
const EPOCH: u64 = 1_760_000_000;

/// Sets every creation and update time to one value and drops leases and unfinished downloads: what is left is a
/// function of the images.
#[must_use]
pub fn canonical(bucket: Bucket) -> Bucket {
    let items = bucket.items.into_iter().filter_map(|(key, item)| {
        let item = match item {
            Item::Bucket(_) if key == b"leases" || key == b"ingests" || key == b"ingest" => return None,
            Item::Bucket(below) => Item::Bucket(canonical(below)),
            Item::Value(_) if key == b"createdat" || key == b"updatedat" => Item::Value(time()),
            value @ Item::Value(_) => value,
        };
        Some((key, item))
    });
    Bucket { sequence: bucket.sequence, items: items.collect() }
}

// Go's binary form of a UTC time: version 1, seconds since year 1, nanoseconds, offset -1 (UTC).
fn time() -> Vec<u8> {
    const YEAR_1_TO_1970: u64 = 62_135_596_800;
    let mut out = vec![1];
    out.extend_from_slice(&(EPOCH + YEAR_1_TO_1970).to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 0, 0xff, 0xff]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket() -> impl Strategy<Value = Bucket> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..600);
        let leaf = proptest::collection::btree_map(bytes(), bytes().prop_map(Item::Value), 0..12);
        let to_bucket = |(sequence, items)| Bucket { sequence, items };
        (any::<u64>(), leaf).prop_map(to_bucket).prop_recursive(3, 40, 5, move |inner| {
            let item = prop_oneof![inner.prop_map(Item::Bucket), bytes().prop_map(Item::Value)];
            (any::<u64>(), proptest::collection::btree_map(bytes(), item, 0..6)).prop_map(to_bucket)
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(tree in bucket()) {
            let file = write(&tree).expect("fits");
            prop_assert_eq!(file.len() % PAGE, 0);
            prop_assert_eq!(read(&file).expect("own file"), tree);
        }

        #[test]
        fn damaged_files_never_panic(tree in bucket(), at in 0usize..60_000, byte in any::<u8>()) {
            let mut file = write(&tree).expect("fits");
            let at = at % file.len();
            file[at] = byte;
            let _ = read(&file);
        }
    }

    #[test]
    fn canonical_forgets_when_and_by_which_lease() {
        let tree = |stamp: u8| {
            let mut inner = Bucket::default();
            inner.items.insert(b"createdat".to_vec(), Item::Value(vec![1, stamp]));
            inner.items.insert(b"size".to_vec(), Item::Value(vec![9]));
            let mut root = Bucket::default();
            root.items.insert(b"leases".to_vec(), Item::Bucket(inner.clone()));
            root.items.insert(b"images".to_vec(), Item::Bucket(inner));
            root
        };
        assert_eq!(canonical(tree(1)), canonical(tree(2)));
        assert_eq!(canonical(tree(1)).items.len(), 1);
        assert_eq!(time().len(), 15);
    }
}
