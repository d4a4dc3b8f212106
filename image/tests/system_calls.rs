//! Which system calls the agent's unit lets through: `SystemCallFilter=` of systemd.exec(5).

use std::fs;
use std::path::Path;

/// Values of a key, one for each line.
fn lines<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn the_agent_asks_how_the_clock_is_corrected_and_cannot_set_it() {
    let path = "rootfs/common/usr/lib/systemd/system/kubelet.service";
    let unit = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let filters = lines(&unit, "SystemCallFilter");
    // The first line makes a list of what is refused, so a later line without `~` takes calls off that list.
    let [refused, allowed] = filters[..] else { panic!("{filters:?}") };
    assert!(refused.starts_with("~@clock "), "{refused}");
    assert_eq!(allowed, "adjtimex clock_adjtime");
    let dropped = lines(&unit, "CapabilityBoundingSet");
    assert!(dropped.iter().all(|set| set.starts_with('~')), "{dropped:?}");
    assert!(dropped.iter().any(|set| set.contains("CAP_SYS_TIME")), "{dropped:?}");
}
