//! Tests of the boot record: unknown fields, torn writes, any bytes.

use super::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const SECTOR: usize = 512;

fn record(attempts: u32, reason: &str) -> BootRecord {
    let mut record = BootRecord::new(SlotName::A);
    record.b = SlotRecord {
        state: SlotState::Trial,
        version: "0.2.0".into(),
        generation: 7,
        revokes: 6,
        roothash: "ab".repeat(32),
        uki_bytes: 14_843_904,
        attempts,
        reason: reason.into(),
        failed_check: "gateway".into(),
        kept: Map::new(),
    };
    let (slot, from) = (SlotName::B, SlotName::A);
    let (update, deadline_s, started) = ("u-1".into(), 600, attempts > 0);
    let (was_good, kept) = (attempts > 1, Map::new());
    record.trial = Some(SlotTrial { slot, from, update, deadline_s, started, was_good, kept });
    record
}

fn put(ring: &mut [u8], write: &RingWrite) {
    let at = usize::try_from(write.offset).expect("small");
    ring[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
}

/// A ring in which so many records were written, the last with `attempts` of that number.
fn ring(writes: u32) -> Vec<u8> {
    let mut ring = vec![0; RING_BYTES];
    for n in 1..=writes {
        let position = latest(&ring).map(|found| found.position);
        put(&mut ring, &record(n, "").write(position).expect("fits"));
    }
    ring
}

fn attempts(ring: &[u8]) -> Option<u32> {
    let found = latest(ring)?;
    Some(BootRecord::parse(found.payload).expect("readable").b.attempts)
}

#[test]
fn the_highest_sequence_counts_all_around_the_ring() {
    assert_eq!(latest(&ring(0)), None);
    for writes in [1, 2, 63, 64, 65, 130] {
        let ring = ring(writes);
        let found = latest(&ring).expect("a record");
        let block = (writes as usize - 1) % BLOCKS;
        assert_eq!(found.position, RingPosition { block, sequence: u64::from(writes) });
        assert_eq!(attempts(&ring), Some(writes));
    }
}

#[test]
fn one_damaged_block_leads_to_the_record_before() {
    let mut ring = ring(70);
    let block = latest(&ring).expect("a record").position.block;
    for at in [0, 9, 17, 21, 40] {
        let place = block * BLOCK_BYTES + at;
        ring[place] ^= 1;
        assert_eq!(attempts(&ring), Some(69), "{at}");
        ring[place] ^= 1;
    }
    // Not what stands behind the payload.
    ring[(block + 1) * BLOCK_BYTES - 1] ^= 1;
    assert_eq!(attempts(&ring), Some(70));
}

#[test]
fn a_record_stays_the_same() {
    let mut all = record(2, "it died");
    all.redirect = Some(SlotName::B);
    (all.boot_open, all.unready, all.redirects, all.disagreements, all.floor) = (true, 3, 1, 2, 9);
    for record in [all, BootRecord::new(SlotName::B)] {
        assert_eq!(BootRecord::parse(&record.render()), Ok(record));
    }
    for state in SlotState::ALL {
        let mut record = BootRecord::new(SlotName::A);
        record.b.state = state;
        assert_eq!(BootRecord::parse(&record.render()), Ok(record));
    }
}

#[test]
fn fields_of_other_versions_are_kept() {
    let mut document: Value = serde_json::from_slice(&record(1, "").render()).expect("JSON");
    document["request"] = json!({"kind": "factory-reset", "nonce": "1"});
    document["b"]["signedBy"] = json!(["k1", 2]);
    document["trial"]["holdMax"] = json!(21600);
    let mut record = BootRecord::parse(document.to_string().as_bytes()).expect("readable");
    record.b.attempts += 1;
    let after: Value = serde_json::from_slice(&record.render()).expect("JSON");
    document["b"]["attempts"] = json!(2);
    assert_eq!(after, document);
}

#[test]
fn a_record_that_is_not_understood_is_none() {
    for (text, want) in [
        ("", RecordError::NoObject),
        ("[]", RecordError::NoObject),
        ("{\"desired\":\"a\"", RecordError::NoObject),
        ("{}", RecordError::Field("desired")),
        (r#"{"desired":"c"}"#, RecordError::Field("desired")),
        (r#"{"desired":"a","a":{"state":"new"}}"#, RecordError::Field("state")),
        (r#"{"desired":"a","a":{}}"#, RecordError::Field("state")),
        (r#"{"desired":"a","b":7}"#, RecordError::Field("b")),
        (r#"{"desired":"a","unready":-1}"#, RecordError::Field("unready")),
        (r#"{"desired":"a","unready":4294967296}"#, RecordError::Field("unready")),
        (r#"{"desired":"a","trial":{"slot":"b"}}"#, RecordError::Field("from")),
        (r#"{"desired":"a","bootOpen":1}"#, RecordError::Field("bootOpen")),
    ] {
        assert_eq!(BootRecord::parse(text.as_bytes()), Err(want), "{text}");
    }
    let least = BootRecord::parse(br#"{"desired":"b"}"#).expect("readable");
    assert_eq!(
        (least.desired, least.a.state, least.b.state),
        (SlotName::B, SlotState::Empty, SlotState::Empty)
    );
}

#[test]
fn a_long_reason_is_cut_and_a_long_record_is_refused() {
    let long = BootRecord::parse(&record(1, &"ä".repeat(5000)).render()).expect("readable");
    assert_eq!(long.b.reason.chars().count(), REASON_CHARS_MAX);
    let mut record = record(1, "");
    record.kept.insert("more".into(), "x".repeat(BLOCK_BYTES).into());
    assert!(matches!(record.write(None), Err(RecordError::TooLong(_))));
    let last = RingPosition { block: 3, sequence: u64::MAX };
    assert_eq!(BootRecord::new(SlotName::A).write(Some(last)), Err(RecordError::NoSequence));
}

proptest! {
    #[test]
    fn a_torn_write_leaves_the_old_record_or_the_new_one(
        writes in 0u32..70, sectors in any::<u8>(), prefix in 0usize..=BLOCK_BYTES, by_sector in any::<bool>()
    ) {
        let old = ring(writes);
        let write = record(writes + 1, "the new one").write(latest(&old).map(|found| found.position)).expect("fits");
        let at = usize::try_from(write.offset).expect("small");
        let mut torn = old.clone();
        for (n, byte) in write.bytes.iter().enumerate() {
            let reached = if by_sector { sectors >> (n / SECTOR) & 1 == 1 } else { n < prefix };
            if reached {
                torn[at + n] = *byte;
            }
        }
        let now = attempts(&torn).unwrap_or(0);
        prop_assert!(now == writes || now == writes + 1, "{now} after {writes}");
        // The first sector has all of this record.
        let whole = if by_sector { sectors & 1 == 1 } else { prefix >= SECTOR };
        if whole && write.bytes[SECTOR..].iter().all(|byte| *byte == 0) {
            prop_assert_eq!(now, writes + 1);
        }
        // The next write repairs it, for any remains of the torn one.
        let position = latest(&torn).map(|found| found.position);
        put(&mut torn, &record(999, "").write(position).expect("fits"));
        prop_assert_eq!(attempts(&torn), Some(999));
    }

    #[test]
    fn any_ring(changes in proptest::collection::vec((0usize..RING_BYTES, any::<u8>()), 0..200), length in 0usize..RING_BYTES + 9000) {
        let mut bytes = ring(65);
        for (at, value) in changes {
            // Half of them in headers.
            bytes[if value & 1 == 0 { at } else { at / BLOCK_BYTES * BLOCK_BYTES + at % 32 }] = value;
        }
        bytes.resize(length, 0xff);
        if let Some(found) = latest(&bytes) {
            let _ = BootRecord::parse(found.payload);
            prop_assert!(found.position.block < BLOCKS);
        }
    }

    #[test]
    fn any_payload(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = BootRecord::parse(&bytes);
    }

    #[test]
    fn any_change_of_a_payload(at in 0usize..400, value in any::<u8>()) {
        let mut bytes = record(1, "why").render();
        let length = bytes.len();
        bytes[at % length] = value;
        if let Ok(read) = BootRecord::parse(&bytes) {
            prop_assert_eq!(BootRecord::parse(&read.render()).map(|again| again.render()), Ok(read.render()));
        }
    }
}
