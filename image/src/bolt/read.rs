//! Reads a bbolt file into a [`Bucket`] tree. Total: every offset is checked.

use orlop_config::fnv::fnv64;

use super::{BRANCH, BUCKET, BoltError, Bucket, Item, LEAF, MAGIC, META, PAGE, VERSION};
use std::collections::BTreeMap;

const MAX_DEPTH: u32 = 32;

/// Reads the newest valid state of the file.
///
/// # Errors
/// See [`BoltError`].
pub fn read(file: &[u8]) -> Result<Bucket, BoltError> {
    let metas = [0, PAGE].into_iter().filter_map(|at| meta(file.get(at..at + PAGE)?));
    let (_, root, sequence) = metas.max_by_key(|(txid, _, _)| *txid).ok_or(BoltError::NoMeta)?;
    let mut items = BTreeMap::new();
    page(file, root, 0, &mut items)?;
    Ok(Bucket { sequence, items })
}

// (transaction, root page, root sequence)
fn meta(page: &[u8]) -> Option<(u64, u64, u64)> {
    let flags = u16::from_le_bytes(page.get(8..10)?.try_into().ok()?);
    let meta = page.get(16..16 + 64)?;
    let sum = word(meta, 56)?;
    let right = flags == META && half(meta, 0)? == MAGIC && half(meta, 4)? == VERSION;
    (right && fnv64(&meta[..56]) == sum).then_some((word(meta, 48)?, word(meta, 16)?, word(meta, 24)?))
}

fn page(file: &[u8], id: u64, depth: u32, items: &mut BTreeMap<Vec<u8>, Item>) -> Result<(), BoltError> {
    if depth > MAX_DEPTH {
        return Err(BoltError::Depth(id));
    }
    let damaged = || BoltError::Page(id);
    let at = usize::try_from(id).ok().and_then(|id| id.checked_mul(PAGE)).ok_or_else(damaged)?;
    let header = file.get(at..at.saturating_add(16)).ok_or_else(damaged)?;
    let overflow = half(header, 12).ok_or_else(damaged)? as usize;
    let size = overflow.checked_add(1).and_then(|n| n.checked_mul(PAGE)).ok_or_else(damaged)?;
    let body = file.get(at..at.saturating_add(size)).ok_or_else(damaged)?;
    elements(file, body, id, depth, items)
}

fn elements(
    file: &[u8],
    body: &[u8],
    id: u64,
    depth: u32,
    items: &mut BTreeMap<Vec<u8>, Item>,
) -> Result<(), BoltError> {
    let damaged = || BoltError::Page(id);
    let flags = u16::from_le_bytes([*body.get(8).ok_or_else(damaged)?, *body.get(9).ok_or_else(damaged)?]);
    let count = u16::from_le_bytes([*body.get(10).ok_or_else(damaged)?, *body.get(11).ok_or_else(damaged)?]);
    for i in 0..usize::from(count) {
        let at = 16 + 16 * i;
        match flags {
            BRANCH => {
                let child = word(body, at + 8).ok_or_else(damaged)?;
                page(file, child, depth + 1, items)?;
            }
            LEAF => {
                let (key, item) = leaf(file, body, at, id, depth)?;
                items.insert(key, item);
            }
            _ => return Err(damaged()),
        }
    }
    Ok(())
}

fn leaf(file: &[u8], body: &[u8], at: usize, id: u64, depth: u32) -> Result<(Vec<u8>, Item), BoltError> {
    let damaged = || BoltError::Page(id);
    let field = |i: usize| half(body, at + 4 * i).ok_or_else(damaged);
    let (flags, pos, ksize, vsize) = (field(0)?, field(1)? as usize, field(2)? as usize, field(3)? as usize);
    let start = at.checked_add(pos).ok_or_else(damaged)?;
    let middle = start.checked_add(ksize).ok_or_else(damaged)?;
    let end = middle.checked_add(vsize).ok_or_else(damaged)?;
    let key = body.get(start..middle).ok_or_else(damaged)?.to_vec();
    let value = body.get(middle..end).ok_or_else(damaged)?;
    if flags & BUCKET == 0 {
        return Ok((key, Item::Value(value.to_vec())));
    }
    let root = word(value, 0).ok_or_else(damaged)?;
    let sequence = word(value, 8).ok_or_else(damaged)?;
    let mut items = BTreeMap::new();
    if root == 0 {
        // Small buckets stand inside their parent's value.
        if depth >= MAX_DEPTH {
            return Err(BoltError::Depth(id));
        }
        elements(file, value.get(16..).ok_or_else(damaged)?, id, depth + 1, &mut items)?;
    } else {
        page(file, root, depth + 1, &mut items)?;
    }
    Ok((key, Item::Bucket(Bucket { sequence, items })))
}

fn half(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn word(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
