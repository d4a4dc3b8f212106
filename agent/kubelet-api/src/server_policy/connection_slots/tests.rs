//! Places against crowds: tables, and a property with any order of comers and goers.

use proptest::prelude::*;

use super::*;

fn host(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn slots(all: usize) -> ConnectionSlots {
    ConnectionSlots::new(ConnectionLimits::of(all))
}

#[test]
fn one_source_has_a_quarter_and_its_oldest_make_room_for_its_newest() {
    let mut slots = slots(1000);
    for n in 0..10_000_u64 {
        let taken = slots.take(host(1)).expect("a place");
        assert_eq!(taken, AcceptedConnection { slot: n, displaced: n.checked_sub(250) });
    }
    assert_eq!(slots.taken(), 250);
    assert_eq!(slots.take(host(2)).map(|taken| taken.displaced), Some(None));
}

#[test]
fn a_newcomer_displaces_the_oldest_of_the_largest_crowd() {
    let mut slots = slots(16);
    let of = |slots: &mut ConnectionSlots, n| slots.take(host(n)).map(|taken| taken.displaced);
    for _ in 0..4 {
        for n in 1..=3 {
            assert_eq!(of(&mut slots, n), Some(None));
        }
    }
    // The strangers' twelve places are taken, four by each source: the first of all is ended.
    let displaced = slots.take(host(9)).expect("taken").displaced.expect("somebody goes");
    assert!(displaced < 3, "the oldest of its source: {displaced}");
    slots.leave(displaced);
    assert_eq!(slots.taken(), 12);
    assert_eq!(of(&mut slots, 9).map(|displaced| displaced.is_some()), Some(true));
    assert_eq!(of(&mut slots, 9).map(|displaced| displaced.is_some()), Some(true));
    // Three by each: now its own oldest is ended.
    assert_eq!(of(&mut slots, 9), Some(Some(12)));
}

#[test]
fn known_connections_make_room_for_strangers_and_stay() {
    let mut slots = slots(16);
    for n in 0..16 {
        let taken = slots.take(host(1)).expect("a place");
        assert_eq!(taken, AcceptedConnection { slot: n, displaced: None });
        slots.know(taken.slot);
    }
    assert_eq!(slots.take(host(2)), None, "all are taken by known ones");
    slots.leave(3);
    let stranger = slots.take(host(2)).expect("a place").slot;
    let next = slots.take(host(3)).expect("a place");
    assert_eq!(next.displaced, Some(stranger), "the one place of strangers is the newcomer's");
    assert_eq!(slots.taken(), 16);
}

#[test]
fn a_crowd_of_sources_with_one_connection_each_keeps_nobody_out() {
    let mut slots = slots(1000);
    for n in 0..2000_u32 {
        let taken = slots.take(IpAddr::from((0x0a00_0000_u32 + n).to_be_bytes())).expect("a place");
        assert_eq!(taken, AcceptedConnection { slot: n.into(), displaced: u64::from(n).checked_sub(750) });
    }
    let admin = slots.take(IpAddr::from([192, 0, 2, 1])).expect("a place");
    assert_eq!(admin.displaced, Some(1250), "the oldest of all");
    slots.know(admin.slot);
    for n in 0..2000_u32 {
        let taken = slots.take(IpAddr::from((0x0b00_0000_u32 + n).to_be_bytes())).expect("a place");
        assert_ne!(taken.displaced, Some(admin.slot));
    }
}

#[test]
fn an_ipv6_host_is_one_source_and_a_mapped_address_is_ipv4() {
    let same = |a: &str, b: &str| source(a.parse().expect("a")) == source(b.parse().expect("b"));
    assert!(same("2001:db8::1", "2001:db8::ffff:1:2:3"));
    assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
    assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
    assert!(!same("10.0.0.1", "10.0.0.2"));
}

proptest! {
    #[test]
    fn nothing_is_given_out_twice(
        steps in proptest::collection::vec((0_u8..6, 0_u8..8, any::<prop::sample::Index>()), 1..200),
        all in 0_usize..20,
    ) {
        let (mut slots, mut open) = (slots(all), Vec::new());
        for (what, n, which) in steps {
            match what {
                0..=3 => if let Some(taken) = slots.take(host(n)) {
                    open.retain(|(slot, _)| Some(*slot) != taken.displaced);
                    open.push((taken.slot, false));
                },
                4 if !open.is_empty() => {
                    let (slot, known) = which.get_mut(&mut open);
                    *known = true;
                    slots.know(*slot);
                }
                _ if !open.is_empty() => {
                    let (slot, _) = open.swap_remove(which.index(open.len()));
                    slots.leave(slot);
                }
                _ => {}
            }
            prop_assert_eq!(slots.taken(), open.len());
            prop_assert!(open.len() <= all);
            let strangers = open.iter().filter(|(_, known)| !known).count();
            prop_assert!(strangers <= ConnectionLimits::of(all).strangers);
        }
    }
}
