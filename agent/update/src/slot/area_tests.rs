//! Tests of the writing of an area: any content before, any cut, any lie of the source.

use super::*;
use crate::slot::blocks::digest;
use proptest::prelude::*;

const SALT: [u8; 32] = [7; 32];

/// Blocks of these bytes, one each.
fn blocks(fill: &[u8]) -> Vec<u8> {
    fill.iter().flat_map(|byte| vec![*byte; BLOCK]).collect()
}

fn digests(data: &[u8]) -> Vec<u8> {
    data.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect()
}

/// The writer for `target`, whose file ends with the last block that is not zeros.
fn writer(target: &[u8], running: &[u8]) -> AreaWriter {
    let used = target.chunks(BLOCK).rposition(|block| block.iter().any(|byte| *byte != 0));
    let file_bytes = used.map_or(BLOCK, |n| (n + 1) * BLOCK) as u64;
    let target = AreaTarget { digests: digests(target), salt: SALT, file_bytes };
    AreaWriter::new(target, BlockIndex::new(digests(running)))
}

/// How a source answers its n-th request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FakeAnswer {
    Right,
    /// The whole file in place of a range.
    Whole,
    /// So many bytes, and it breaks off.
    Short(usize),
    /// A bit of the n-th byte is another one.
    Flipped(usize),
    /// Other bytes than those that were asked for.
    OtherRange,
    /// More than was asked for.
    Endless,
    Nothing,
}

struct FakeSource<'a> {
    file: &'a [u8],
    answers: Vec<FakeAnswer>,
    requests: Vec<ByteRange>,
    /// Bytes in a piece.
    piece: usize,
}

impl FakeSource<'_> {
    /// The pieces of an answer, each with its place.
    fn answer(&mut self, range: ByteRange) -> (u64, Vec<u8>) {
        let n = self.requests.len();
        self.requests.push(range);
        let answer = self.answers.get(n).or(self.answers.last()).copied().unwrap_or(FakeAnswer::Right);
        let [from, to] = [range.from, range.to].map(|at| usize::try_from(at).expect("small"));
        let mut bytes = self.file[from..to.min(self.file.len())].to_vec();
        match answer {
            FakeAnswer::Right => {}
            FakeAnswer::Whole => return (0, self.file.to_vec()),
            FakeAnswer::Short(length) => bytes.truncate(length),
            FakeAnswer::Flipped(at) => {
                let at = at % bytes.len();
                bytes[at] ^= 1;
            }
            FakeAnswer::OtherRange => return (range.from + 4096, bytes),
            FakeAnswer::Endless => bytes.extend(vec![0xee; 9 * BLOCK]),
            FakeAnswer::Nothing => bytes.clear(),
        }
        (range.from, bytes)
    }
}

/// The disk under an area: what is not synced may be lost.
struct FakeDisk {
    synced: Vec<u8>,
    written: Vec<(usize, Vec<u8>)>,
    /// Writes until the power is cut.
    writes_left: usize,
}

/// The power is gone.
struct PowerCut;

impl FakeDisk {
    fn new(content: Vec<u8>, writes_left: usize) -> FakeDisk {
        FakeDisk { synced: content, written: Vec::new(), writes_left }
    }

    fn write(&mut self, run: BlockRun, bytes: &[u8]) -> Result<(), PowerCut> {
        assert_eq!(run.bytes(), bytes.len());
        self.writes_left = self.writes_left.checked_sub(1).ok_or(PowerCut)?;
        self.written.push((usize::try_from(run.offset()).expect("small"), bytes.to_vec()));
        Ok(())
    }

    fn sync(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.written) {
            self.synced[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn read(&self, run: BlockRun) -> Vec<u8> {
        let mut all = self.synced.clone();
        for (at, bytes) in &self.written {
            all[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        let at = usize::try_from(run.offset()).expect("small");
        all[at..at + run.bytes()].to_vec()
    }

    /// What is there after a cut: of the writes that were not synced any sectors may have come.
    fn after_cut(mut self, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        for (at, bytes) in std::mem::take(&mut self.written) {
            for (n, sector) in bytes.chunks(512).enumerate() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if state >> 63 == 1 {
                    self.synced[at + n * 512..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
        self.synced
    }
}

enum Outcome {
    Done(AreaCounts),
    Fault(AreaFault),
    Cut,
}

fn run(writer: &mut AreaWriter, disk: &mut FakeDisk, running: &[u8], source: &mut FakeSource<'_>) -> Outcome {
    // Far more steps than any run of these sizes may take.
    for _ in 0..20_000 {
        let step = match writer.step() {
            Ok(step) => step,
            Err(fault) => return Outcome::Fault(fault),
        };
        let writes = match step {
            AreaStep::Survey(run) => {
                writer.surveyed(run, &disk.read(run));
                Vec::new()
            }
            AreaStep::Zero(run) => {
                writer.zeroed(run);
                vec![AreaWrite { run, bytes: vec![0; run.bytes()] }]
            }
            AreaStep::Copy { from, to } => {
                let at = usize::try_from(from.offset()).expect("small");
                writer.copied(to, &running[at..at + from.bytes()])
            }
            AreaStep::Fetch(range) => {
                let (at, bytes) = source.answer(range);
                let mut writes = Vec::new();
                for (n, piece) in bytes.chunks(source.piece).enumerate() {
                    let piece = writer.received(at + (n * source.piece) as u64, piece);
                    writes.extend(piece.writes);
                    if piece.is_over {
                        break;
                    }
                }
                writes.extend(writer.ended(Some("cut off".to_owned())));
                writes
            }
            AreaStep::Sync => {
                disk.sync();
                writer.synced();
                Vec::new()
            }
            AreaStep::Verify(run) => {
                writer.verified(run, &disk.read(run));
                Vec::new()
            }
            AreaStep::Done => return Outcome::Done(writer.counts()),
        };
        for write in writes {
            if disk.write(write.run, &write.bytes).is_err() {
                return Outcome::Cut;
            }
        }
    }
    panic!("it goes on for ever")
}

fn source<'a>(file: &'a [u8], answers: &[FakeAnswer]) -> FakeSource<'a> {
    FakeSource { file, answers: answers.to_vec(), requests: Vec::new(), piece: 1000 }
}

/// Content before, content of the running slot, and the release's.
const TARGET: [u8; 12] = [1, 2, 0, 0, 3, 4, 5, 1, 6, 0, 7, 0];

fn done(before: &[u8], running: &[u8], answers: &[FakeAnswer]) -> (AreaCounts, Vec<ByteRange>) {
    let (target, running) = (blocks(&TARGET), blocks(running));
    let mut disk = FakeDisk::new(blocks(before), usize::MAX);
    let mut source = source(&target, answers);
    let mut writer = writer(&target, &running);
    match run(&mut writer, &mut disk, &running, &mut source) {
        Outcome::Done(counts) => {
            assert!(disk.written.is_empty(), "all is synced before it is read back");
            assert!(disk.synced == target);
            let (done, all) = writer.progress();
            assert_eq!((done, all), (12, 12));
            (counts, source.requests)
        }
        Outcome::Fault(fault) => panic!("{fault}"),
        Outcome::Cut => panic!("no cut was asked for"),
    }
}

#[test]
fn everything_has_its_cheapest_way() {
    // Blocks 0 and 6 are there, block 2 and 3 have to be zeroed, 4 and 5 come from the running slot, the rest from the network.
    let before = [1, 9, 9, 9, 9, 9, 5, 9, 9, 9, 9, 0];
    let (counts, requests) = done(&before, &[8, 3, 4], &[]);
    let want = AreaCounts { present: 3, zeroed: 3, copied: 2, fetched: 4, ..counts };
    assert_eq!(counts, want);
    // One request: no gap is wider than 64 KiB.
    assert_eq!(requests, [ByteRange { from: 4096, to: 11 * 4096 }]);
    // Nothing is asked for twice, and nothing at all if the slot has it.
    let (counts, requests) = done(&TARGET, &[], &[]);
    assert_eq!((counts.present, counts.received_bytes, requests), (12, 0, Vec::new()));
}

#[test]
fn wide_gaps_are_not_fetched() {
    let target: Vec<u8> = (0..60).map(|n| n + 1).collect();
    let mut before = target.clone();
    (before[3], before[4], before[21], before[59]) = (0, 0, 0, 0);
    let target = blocks(&target);
    let mut source = source(&target, &[]);
    let mut disk = FakeDisk::new(blocks(&before), usize::MAX);
    assert!(matches!(run(&mut writer(&target, &[]), &mut disk, &[], &mut source), Outcome::Done(_)));
    let range = |from: u64, to: u64| ByteRange { from: from * 4096, to: to * 4096 };
    // 16 blocks lie between 4 and 21, 37 between 21 and 59.
    assert_eq!(source.requests, [range(3, 22), range(59, 60)]);
}

#[test]
fn a_server_without_ranges_is_read_from_the_start_once() {
    let (counts, requests) = done(&[1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9], &[], &[FakeAnswer::Whole]);
    assert_eq!((counts.fetched, requests.len()), (7, 1));
    // Where it breaks off, the next request knows that there are no ranges.
    let (_, requests) = done(&[9; 12], &[], &[FakeAnswer::Short(3 * BLOCK), FakeAnswer::Whole]);
    assert_eq!(requests.len(), 2);
}

#[test]
fn a_wrong_block_is_asked_for_once_more() {
    for (answers, want) in [
        (vec![FakeAnswer::Flipped(0), FakeAnswer::Right], None),
        (vec![FakeAnswer::Flipped(4 * BLOCK), FakeAnswer::Right], None),
        (vec![FakeAnswer::Flipped(0), FakeAnswer::Flipped(0)], Some(AreaFault::Mismatch(0))),
        (vec![FakeAnswer::Endless], None),
        (vec![FakeAnswer::OtherRange, FakeAnswer::Right], None),
        (vec![FakeAnswer::Nothing, FakeAnswer::Short(100), FakeAnswer::Right], None),
        (vec![FakeAnswer::Nothing], Some(AreaFault::Fruitless("cut off".into()))),
        (vec![FakeAnswer::Short(4095)], Some(AreaFault::Fruitless("cut off".into()))),
        (vec![FakeAnswer::OtherRange], Some(AreaFault::Fruitless("cut off".into()))),
        // A block for each request is slow, and it ends.
        (vec![FakeAnswer::Short(4096)], None),
    ] {
        let target = blocks(&TARGET);
        let mut disk = FakeDisk::new(blocks(&[9; 12]), usize::MAX);
        let mut writer = writer(&target, &[]);
        match run(&mut writer, &mut disk, &[], &mut source(&target, &answers)) {
            Outcome::Done(_) => assert!(want.is_none() && disk.synced == target, "{answers:?}"),
            Outcome::Fault(fault) => {
                assert_eq!(Some(fault.clone()), want, "{answers:?}");
                assert_eq!(writer.step(), Err(fault), "it stays so");
            }
            Outcome::Cut => panic!("{answers:?}"),
        }
    }
}

#[test]
fn a_source_with_ever_other_wrong_blocks_is_left() {
    let target: Vec<u8> = (0..400).map(|n| u8::try_from(n % 250 + 1).expect("small")).collect();
    let target = blocks(&target);
    let mut disk = FakeDisk::new(vec![0; target.len()], usize::MAX);
    let mut source = source(&target, &[FakeAnswer::Flipped(16 * BLOCK)]);
    // Blocks 16, 32, 48, each of them right at the next request.
    let outcome = run(&mut writer(&target, &[]), &mut disk, &[], &mut source);
    assert!(matches!(outcome, Outcome::Fault(AreaFault::Mismatch(256))));
    assert_eq!(source.requests.len(), 16);
}

#[test]
fn a_disk_that_forgets_is_named() {
    let target = blocks(&TARGET);
    let mut writer = writer(&target, &[]);
    let mut disk = FakeDisk::new(blocks(&TARGET), usize::MAX);
    loop {
        match writer.step() {
            Ok(AreaStep::Survey(run)) => writer.surveyed(run, &disk.read(run)),
            Ok(AreaStep::Verify(run)) => {
                disk.synced[8 * BLOCK + 5] ^= 1;
                writer.verified(run, &disk.read(run));
            }
            Ok(step) => panic!("{step:?}"),
            Err(fault) => {
                assert_eq!(fault, AreaFault::ReadBack(8));
                break;
            }
        }
    }
}

#[test]
fn content_behind_the_file_is_no_release() {
    let target = AreaTarget { digests: digests(&blocks(&[1, 2])), salt: SALT, file_bytes: 4096 };
    let mut writer = AreaWriter::new(target, BlockIndex::default());
    let file = blocks(&[1]);
    let mut disk = FakeDisk::new(blocks(&[0, 0]), usize::MAX);
    let outcome = run(&mut writer, &mut disk, &[], &mut source(&file, &[]));
    assert!(matches!(outcome, Outcome::Fault(AreaFault::NotInFile(1))));
}

#[test]
fn the_last_block_of_a_file_is_filled_with_zeros() {
    let mut file = blocks(&[1, 2]);
    file.truncate(BLOCK + 100);
    let mut filled = file.clone();
    filled.resize(2 * BLOCK, 0);
    let target = AreaTarget { digests: digests(&filled), salt: SALT, file_bytes: file.len() as u64 };
    let mut disk = FakeDisk::new(blocks(&[9, 9]), usize::MAX);
    let mut source = source(&file, &[]);
    let outcome = run(&mut AreaWriter::new(target, BlockIndex::default()), &mut disk, &[], &mut source);
    assert!(matches!(outcome, Outcome::Done(_)));
    assert!(disk.synced == filled);
    assert_eq!(source.requests, [ByteRange { from: 0, to: BLOCK as u64 + 100 }]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever was there, wherever the power is cut, and however often: the end is the same.
    #[test]
    fn any_content_and_any_cut_lead_to_the_same_end(
        target in proptest::collection::vec(0u8..6, 1..40),
        before in proptest::collection::vec(0u8..6, 40),
        running in proptest::collection::vec(0u8..6, 0..20),
        cuts in proptest::collection::vec((0usize..12, any::<u64>()), 0..4),
        piece in 1usize..9000,
        whole in any::<bool>(),
    ) {
        let (file, running) = (blocks(&target), blocks(&running));
        let mut content = blocks(&before[..target.len()]);
        let answers: &[FakeAnswer] = if whole { &[FakeAnswer::Whole] } else { &[] };
        for (writes, seed) in cuts.into_iter().chain([(usize::MAX, 0)]) {
            let mut disk = FakeDisk::new(content, writes);
            let mut source = FakeSource { piece, ..source(&file, answers) };
            let outcome = run(&mut writer(&file, &running), &mut disk, &running, &mut source);
            match outcome {
                Outcome::Done(counts) => {
                    prop_assert!(disk.synced == file);
                    let all = counts.present + counts.zeroed + counts.copied + counts.fetched;
                    prop_assert_eq!(all as usize, target.len());
                }
                Outcome::Cut => prop_assert!(writes < usize::MAX),
                Outcome::Fault(fault) => prop_assert!(false, "{fault}"),
            }
            content = disk.after_cut(seed);
        }
        prop_assert!(content == file);
    }

    /// Whatever a source says: the run ends, and what is in the slot is the release's or what was there before.
    #[test]
    fn any_answers_end(
        target in proptest::collection::vec(0u8..6, 1..30),
        lies in proptest::collection::vec((0usize..7, 0usize..200_000), 0..8),
    ) {
        let answers: Vec<FakeAnswer> = lies.into_iter().map(|(kind, n)| match kind {
            0 => FakeAnswer::Whole,
            1 => FakeAnswer::Short(n),
            2 => FakeAnswer::Flipped(n),
            3 => FakeAnswer::OtherRange,
            4 => FakeAnswer::Endless,
            5 => FakeAnswer::Nothing,
            _ => FakeAnswer::Right,
        }).collect();
        let file = blocks(&target);
        let before = blocks(&vec![9; target.len()]);
        let mut disk = FakeDisk::new(before.clone(), usize::MAX);
        let outcome = run(&mut writer(&file, &[]), &mut disk, &[], &mut source(&file, &answers));
        disk.sync();
        let is_done = matches!(outcome, Outcome::Done(_));
        for (n, block) in disk.synced.chunks(BLOCK).enumerate() {
            let own = &file[n * BLOCK..][..BLOCK];
            prop_assert!(block == own || !is_done && block == &before[n * BLOCK..][..BLOCK], "{n}");
        }
    }
}
