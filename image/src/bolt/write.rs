//! Writes a [`Bucket`] tree as a bbolt file: two meta pages, an empty free list, then one leaf page (with overflow
//! pages where it must be longer) for each bucket. bbolt splits pages itself when it first changes them.

use orlop_config::fnv::fnv64;

use super::{BUCKET, BoltError, Bucket, FREELIST, Item, LEAF, MAGIC, META, PAGE, VERSION};

/// Writes the file.
///
/// # Errors
/// A bucket has more entries than a page header can count.
pub fn write(root: &Bucket) -> Result<Vec<u8>, BoltError> {
    // Pages 0 and 1 are meta, 2 the free list.
    let mut file = vec![0; 3 * PAGE];
    header(&mut file, 2, FREELIST, 0);
    let root_page = bucket(&mut file, root)?;
    let pages = (file.len() / PAGE) as u64;
    for id in 0..2u64 {
        let at = header(&mut file, id, META, 0) + 16;
        let words = [root_page, root.sequence, 2, pages, id];
        let mut meta = Vec::with_capacity(64);
        for half in [MAGIC, VERSION, 4096, 0] {
            meta.extend_from_slice(&half.to_le_bytes());
        }
        for word in words {
            meta.extend_from_slice(&word.to_le_bytes());
        }
        let sum = fnv64(&meta);
        meta.extend_from_slice(&sum.to_le_bytes());
        file[at..at + meta.len()].copy_from_slice(&meta);
    }
    Ok(file)
}

// Writes the buckets below, then this one; returns its page.
fn bucket(file: &mut Vec<u8>, bucket: &Bucket) -> Result<u64, BoltError> {
    let mut flat = Vec::with_capacity(bucket.items.len());
    for (key, item) in &bucket.items {
        match item {
            Item::Value(value) => flat.push((0, key, value.clone())),
            Item::Bucket(below) => {
                let page = self::bucket(file, below)?;
                let mut value = page.to_le_bytes().to_vec();
                value.extend_from_slice(&below.sequence.to_le_bytes());
                flat.push((BUCKET, key, value));
            }
        }
    }
    let count = u16::try_from(flat.len()).map_err(|_| BoltError::TooMany(flat.len()))?;
    let mut elements = Vec::new();
    let mut data = Vec::new();
    for (i, (flags, key, value)) in flat.iter().enumerate() {
        // An element's position counts from the element itself.
        let pos = (flat.len() - i) * 16 + data.len();
        for half in [*flags, size(pos), size(key.len()), size(value.len())] {
            elements.extend_from_slice(&half.to_le_bytes());
        }
        data.extend_from_slice(key);
        data.extend_from_slice(value);
    }
    let id = file.len() / PAGE;
    let length = (16 + elements.len() + data.len()).next_multiple_of(PAGE);
    file.resize(file.len() + length, 0);
    let at = header(file, id as u64, LEAF, count);
    file[at + 12..at + 16].copy_from_slice(&size(length / PAGE - 1).to_le_bytes());
    file[at + 16..at + 16 + elements.len()].copy_from_slice(&elements);
    file[at + 16 + elements.len()..at + 16 + elements.len() + data.len()].copy_from_slice(&data);
    Ok(id as u64)
}

fn header(file: &mut [u8], id: u64, flags: u16, count: u16) -> usize {
    let at = usize::try_from(id).expect("own pages fit in memory") * PAGE;
    file[at..at + 8].copy_from_slice(&id.to_le_bytes());
    file[at + 8..at + 10].copy_from_slice(&flags.to_le_bytes());
    file[at + 10..at + 12].copy_from_slice(&count.to_le_bytes());
    at
}

fn size(n: usize) -> u32 {
    u32::try_from(n).expect("a containerd database is far smaller than 4 GiB")
}
