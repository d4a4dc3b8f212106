//! The block log of an update, and what a power cut may leave of it.
//!
//! In: writes and flushes in their order. Out: the disk after each prefix of them, and after seeded subsets of the writes that were
//! not flushed, with torn ones: of a write each sector of 512 or 4096 bytes may be there or not. What was flushed is always there.

use std::ops::Range;

use orlop_init::plan::step::DiskWrite;

use super::image::DiskImage;

/// A write, or a flush of all writes before it.
#[derive(Clone, Debug)]
pub(super) struct BlockEvent {
    /// The part of the update that does it.
    pub(super) by: &'static str,
    /// None: a flush.
    pub(super) write: Option<DiskWrite>,
}

impl BlockEvent {
    /// It writes bytes of this place.
    pub(super) fn touches(&self, place: &Range<u64>) -> bool {
        self.write.as_ref().is_some_and(|write| {
            write.offset < place.end && place.start < write.offset + write.bytes.len() as u64
        })
    }
}

/// A power cut.
#[derive(Clone, Debug)]
pub(super) struct PowerCut {
    /// Number of it, from 0.
    pub(super) number: usize,
    /// Events of the log before it.
    pub(super) after: usize,
    /// The part of the update that is cut.
    pub(super) by: &'static str,
    /// Some of the writes that were not flushed are missing or torn.
    pub(super) is_torn: bool,
}

/// Looks at the disk after each cut: each prefix, and before each flush so many subsets. Returns the number of cuts.
pub(super) fn each_cut(
    before: &DiskImage,
    log: &[BlockEvent],
    subsets: u32,
    mut look: impl FnMut(&PowerCut, &DiskImage) -> Result<(), String>,
) -> Result<usize, String> {
    let (mut kept, mut now) = (before.clone(), before.clone());
    let (mut open, mut chance) = (Vec::new(), Chance(0x5eed));
    let mut number = 0;
    let mut cut = |after: usize, by: &'static str, is_torn: bool, image: &DiskImage| -> Result<(), String> {
        look(&PowerCut { number, after, by, is_torn }, image)?;
        number += 1;
        Ok(())
    };
    cut(0, "start", false, before)?;
    for (after, event) in (1..).zip(log) {
        if let Some(write) = &event.write {
            now.write(write.offset, &write.bytes);
            open.push(write);
            cut(after, event.by, false, &now)?;
        }
        // The log's end is a cut before a flush as well.
        if event.write.is_some() && after < log.len() {
            continue;
        }
        let times = if open.is_empty() { 0 } else { subsets };
        for _ in 0..times {
            let mut image = kept.clone();
            open.iter().for_each(|write| tear(&mut image, write, &mut chance));
            cut(after, event.by, true, &image)?;
        }
        kept = now.clone();
        open.clear();
    }
    Ok(number)
}

/// Writes nothing, all, or some of the sectors.
fn tear(image: &mut DiskImage, write: &DiskWrite, chance: &mut Chance) {
    let sector = match chance.below(4) {
        0 => return,
        1 => return image.write(write.offset, &write.bytes),
        2 => 512,
        _ => 4096,
    };
    let (mut at, mut rest) = (write.offset, write.bytes.as_slice());
    while !rest.is_empty() {
        let left = usize::try_from(sector - at % sector).expect("a sector");
        let (part, behind) = rest.split_at(rest.len().min(left));
        if chance.below(2) == 0 {
            image.write(at, part);
        }
        at += part.len() as u64;
        rest = behind;
    }
}

/// Numbers that look like chance, the same in each run (xorshift64*).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

#[test]
fn what_was_flushed_is_there_and_the_rest_in_any_part() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("disk");
    std::fs::write(&path, vec![0; 1 << 20]).expect("written");
    let before = DiskImage::of_file(&path);
    let write = |offset, length, byte| BlockEvent {
        by: "test",
        write: Some(DiskWrite { offset, bytes: vec![byte; length] }),
    };
    let flush = BlockEvent { by: "test", write: None };
    let log = [write(512, 512, 1), flush, write(4096, 8192, 2), write(1024, 512, 3)];
    let (mut whole, mut torn) = (Vec::new(), Vec::new());
    let cuts = each_cut(&before, &log, 100, |cut, image| {
        let seen = [512, 1024, 4096, 4608, 8192].map(|at| image.read(at, 1).expect("there")[0]);
        let list = if cut.is_torn { &mut torn } else { &mut whole };
        list.push((cut.after, seen));
        Ok(())
    });
    assert_eq!(cuts, Ok(204));
    let prefixes: [(usize, [u8; 5]); 4] =
        [(0, [0; 5]), (1, [1, 0, 0, 0, 0]), (3, [1, 0, 2, 2, 2]), (4, [1, 3, 2, 2, 2])];
    assert_eq!(whole, prefixes);
    // Behind the flush the first write is always there, and the others are in each way.
    let behind: Vec<[u8; 5]> = torn.iter().filter(|(after, _)| *after == 4).map(|(_, seen)| *seen).collect();
    assert_eq!(behind.len(), 100);
    assert!(behind.iter().all(|seen| seen[0] == 1), "{behind:?}");
    assert!(behind.iter().any(|seen| seen[1] == 3 && seen[2] == 0), "no later write without the earlier one");
    assert!(behind.iter().any(|seen| seen[2] != seen[3]), "no sector of 512 bytes is torn");
    assert!(behind.iter().any(|seen| seen[2] == seen[3] && seen[3] != seen[4]), "no block is torn");
    let told = each_cut(&before, &log, 1, |cut, _| if cut.after == 3 { Err("x".into()) } else { Ok(()) });
    assert_eq!(told, Err("x".to_owned()));
}
