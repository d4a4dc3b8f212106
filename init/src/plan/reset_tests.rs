//! Tests of the factory reset: a power cut behind each write, two of them, disks that lose what was written.

use super::*;
use orlop_config::slots::{BootRecord, ResetOrder, SlotName};

/// Pieces that are erased one after the other, and files that are kept.
const PIECES: usize = 3;
const FILES: usize = 3;
const OLD: Guid = Guid::from_u128(7);

/// What lies behind the boot record.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CarriedArea {
    Zeros,
    Torn,
    For(String),
}

/// The power is cut, or the disk refuses.
#[derive(Debug, PartialEq, Eq)]
struct Cut;

/// A disk whose power is cut after so many writes.
#[derive(Clone, Debug)]
struct FakeDisk {
    record: BootRecord,
    /// PARTUUID of the state partition in the table.
    table: Option<Guid>,
    /// Pieces of the old state that are there.
    old: usize,
    carried: CarriedArea,
    /// Kept files on a new state partition.
    restored: usize,
    /// New state partitions that were made.
    made: u128,
    writes_left: usize,
    /// What is to be kept does not fit.
    too_large: bool,
}

impl FakeDisk {
    fn ordered(text: &str) -> FakeDisk {
        let mut record = BootRecord::new(SlotName::A);
        let order = ResetOrder::parse(text).expect("an order");
        record.order_reset(order, &OLD.to_string()).expect("ordered");
        FakeDisk {
            record,
            table: Some(OLD),
            old: PIECES,
            carried: CarriedArea::Zeros,
            restored: 0,
            made: 0,
            writes_left: usize::MAX,
            too_large: false,
        }
    }

    fn keeps(&self) -> bool {
        self.record.reset.as_ref().is_some_and(|reset| reset.order.scope == ResetScope::Keep)
    }

    /// One write that reaches the disk, and the invariant after it.
    fn write(&mut self, change: impl FnOnce(&mut FakeDisk)) -> Result<(), Cut> {
        self.writes_left = self.writes_left.checked_sub(1).ok_or(Cut)?;
        let keeps = self.keeps();
        change(self);
        let somewhere = self.old == PIECES
            || matches!(self.carried, CarriedArea::For(_))
            || self.restored == FILES && self.table.is_some();
        assert!(!keeps || somewhere, "what is kept is nowhere: {self:?}");
        Ok(())
    }

    /// A boot, until the node runs or the power is cut. Only then may a state partition be used.
    fn boot(&mut self, writes: usize) -> Result<ResetProgress, Cut> {
        self.writes_left = writes;
        let mut progress = advance(self, false)?;
        if self.table.is_none() {
            self.write(|disk| {
                disk.made += 1;
                (disk.table, disk.restored) = (Some(Guid::from_u128(100 + disk.made)), 0);
            })?;
        }
        if progress == ResetProgress::AwaitsState {
            progress = advance(self, true)?;
        }
        Ok(progress)
    }

    fn ensure_over(&self, scope: ResetScope) {
        assert_eq!((self.old, &self.carried), (0, &CarriedArea::Zeros), "{self:?}");
        assert!(self.table.is_some_and(|state| state != OLD), "{self:?}");
        assert_eq!(self.restored, if scope == ResetScope::Keep { FILES } else { 0 }, "{self:?}");
        assert!(self.record.reset.is_none(), "{self:?}");
        assert!(self.record.last_reset.as_ref().is_some_and(|end| end.refused.is_empty()), "{self:?}");
    }
}

impl ResetDisk for FakeDisk {
    type Error = Cut;

    fn request(&self) -> Option<ResetRequest> {
        self.record.reset.clone()
    }

    fn state(&mut self) -> Result<Option<Guid>, Cut> {
        Ok(self.table)
    }

    fn has_carried(&mut self, id: &str) -> Result<bool, Cut> {
        Ok(self.carried == CarriedArea::For(id.to_owned()))
    }

    fn carry(&mut self, id: &str) -> Result<(), String> {
        assert_eq!((self.table, self.old), (Some(OLD), PIECES), "read from a half");
        if self.too_large {
            return Err("it is too large".into());
        }
        let cut = |Cut| "the disk refuses".to_owned();
        self.write(|disk| disk.carried = CarriedArea::Torn).map_err(cut)?;
        self.write(|disk| disk.carried = CarriedArea::For(id.to_owned())).map_err(cut)
    }

    fn erase(&mut self, partition: Guid) -> Result<(), Cut> {
        if self.table != Some(partition) {
            return Ok(());
        }
        assert_eq!(partition, OLD, "another partition is erased");
        while self.old > 0 {
            self.write(|disk| disk.old -= 1)?;
        }
        self.write(|disk| disk.table = None)
    }

    fn restore(&mut self, id: &str) -> Result<(), Cut> {
        assert_eq!(self.carried, CarriedArea::For(id.to_owned()));
        assert!(self.table.is_some_and(|state| state != OLD));
        // A file that is there is written again.
        for n in 0..FILES {
            self.write(|disk| disk.restored = disk.restored.max(n + 1))?;
        }
        Ok(())
    }

    fn forget_carried(&mut self) -> Result<(), Cut> {
        self.write(|disk| {
            if disk.carried != CarriedArea::Zeros {
                disk.carried = CarriedArea::Torn;
            }
        })?;
        self.write(|disk| disk.carried = CarriedArea::Zeros)
    }

    fn enter(&mut self, stage: ResetStage) -> Result<(), Cut> {
        self.write(|disk| {
            if let Some(reset) = &mut disk.record.reset {
                reset.stage = stage;
            }
        })
    }

    fn end(&mut self, refused: &str) -> Result<(), Cut> {
        let refused = refused.to_owned();
        self.write(|disk| disk.record.end_reset(&refused))
    }
}

fn orders() -> [(&'static str, ResetScope); 2] {
    [("keep:1", ResetScope::Keep), ("forget:1", ResetScope::Forget)]
}

#[test]
fn a_reset_without_a_cut_is_over_in_one_boot() {
    for (text, scope) in orders() {
        let mut disk = FakeDisk::ordered(text);
        assert_eq!(disk.boot(usize::MAX), Ok(ResetProgress::Done(scope)));
        disk.ensure_over(scope);
        let after = disk.clone();
        assert_eq!(disk.boot(usize::MAX), Ok(ResetProgress::Nothing));
        assert_eq!((disk.made, disk.restored), (after.made, after.restored), "it happened twice");
    }
}

#[test]
fn a_cut_behind_each_write_repeats_it_and_so_does_a_second_one() {
    for (text, scope) in orders() {
        let mut first = 0;
        loop {
            let mut cut = FakeDisk::ordered(text);
            let whole = cut.boot(first).is_ok();
            let mut second = 0;
            loop {
                let mut disk = cut.clone();
                let ended = disk.boot(second).is_ok();
                disk.boot(usize::MAX).expect("no cut any more");
                disk.ensure_over(scope);
                if ended {
                    break;
                }
                second += 1;
            }
            first += 1;
            if whole {
                break;
            }
        }
        assert!(first > 7, "{text}: only {first} writes");
    }
}

#[test]
fn what_cannot_be_carried_is_refused_and_nothing_is_touched() {
    let mut disk = FakeDisk { too_large: true, ..FakeDisk::ordered("keep:1") };
    assert_eq!(disk.boot(usize::MAX), Ok(ResetProgress::Refused("it is too large".into())));
    assert_eq!((disk.table, disk.old, disk.made), (Some(OLD), PIECES, 0));
    assert!(disk.record.last_reset.as_ref().is_some_and(|end| end.refused == "it is too large"));
    assert_eq!(disk.boot(usize::MAX), Ok(ResetProgress::Nothing));
}

#[test]
fn only_the_named_partition_is_erased() {
    for (text, scope) in orders() {
        for table in [None, Some(Guid::from_u128(8))] {
            let mut disk = FakeDisk { table, ..FakeDisk::ordered(text) };
            assert_eq!(disk.boot(usize::MAX), Ok(ResetProgress::Done(scope)));
            assert_eq!(disk.old, PIECES);
            assert!(table.is_none() || disk.table == table);
        }
        // A request that names none, by a machine without a state partition.
        let mut disk = FakeDisk::ordered(text);
        if let Some(reset) = &mut disk.record.reset {
            reset.partition.clear();
        }
        assert_eq!(disk.boot(usize::MAX), Ok(ResetProgress::Done(scope)));
        assert_eq!((disk.table, disk.old), (Some(OLD), PIECES));
    }
}

#[test]
fn a_disk_that_loses_what_was_carried_is_not_erased_for_it() {
    // Not begun: carried again.
    let mut disk = FakeDisk::ordered("keep:1");
    disk.enter(ResetStage::Carried).expect("written");
    assert_eq!(disk.boot(usize::MAX), Ok(ResetProgress::Done(ResetScope::Keep)));
    disk.ensure_over(ResetScope::Keep);
    // Too late: said, and the node begins anew.
    for stage in [ResetStage::Carried, ResetStage::Erased] {
        let mut disk = FakeDisk::ordered("keep:1");
        disk.enter(stage).expect("written");
        // The invariant is broken by the disk, not by a write.
        (disk.table, disk.old, disk.restored) = (None, 0, 0);
        let request = disk.request().expect("ordered");
        assert_eq!(next(&request, disk.table, false), ResetStep::GiveUp);
    }
}

#[test]
fn edges_and_parts_cover_what_they_should() {
    assert_eq!(edges(512 << 20), [(0, 1 << 20), (127 << 20, 2 << 20)]);
    assert_eq!(edges(100 << 20), [(0, 1 << 20)]);
    let parts: Vec<_> = parts(10, 4).collect();
    assert_eq!(parts, [(0, 4), (4, 4), (8, 2)]);
    assert_eq!(super::parts(0, 4).count(), 0);
}
