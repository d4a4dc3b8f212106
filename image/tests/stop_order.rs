//! In which order the image's units stop, and for how long they may: agent, containerd, network (docs/reference/shutdown.md).
//! What the unit files say, with systemd's rule that units stop in the reverse of the order in which they start.

use std::fs;
use std::path::{Path, PathBuf};

fn systemd() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rootfs/common/usr/lib/systemd")
}

/// All values of a key, of the unit's file and of its drop-in.
fn values(unit: &str, key: &str) -> Vec<String> {
    let files = [format!("system/{unit}"), format!("system/{unit}.d/10-orlop.conf")];
    let texts = files.iter().filter_map(|file| fs::read_to_string(systemd().join(file)).ok());
    let text = texts.collect::<Vec<_>>().join("\n");
    assert!(!text.is_empty(), "{unit} is not in image/rootfs");
    let found = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

fn says(unit: &str, key: &str, value: &str) -> bool {
    values(unit, key).iter().any(|have| have == value)
}

/// A time span of systemd with one unit, seconds; a number alone is seconds.
fn seconds(span: &str) -> u64 {
    let digits = span.trim_end_matches(char::is_alphabetic);
    let unit = match &span[digits.len()..] {
        "" | "s" => 1,
        "min" => 60,
        other => panic!("{other:?} in {span:?}"),
    };
    digits.parse::<u64>().expect(span) * unit
}

fn setting(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(systemd().join(file)).expect(file);
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    seconds(found.unwrap_or_else(|| panic!("{file} has no {key}")))
}

/// The later one stops first.
const CHAIN: [(&str, &str); 3] = [
    ("kubelet.service", "containerd.service"),
    ("containerd.service", "orlop-network.target"),
    ("orlop-network.target", "systemd-networkd.service"),
];

#[test]
fn the_agent_stops_before_containerd_and_that_before_the_network() {
    for (later, earlier) in CHAIN {
        assert!(says(later, "After", earlier), "{later} does not stop before {earlier}");
    }
    // An order counts between units that stop: these two have to say so themselves, a target does of its own accord.
    for unit in ["kubelet.service", "containerd.service"] {
        assert!(says(unit, "DefaultDependencies", "no"), "{unit}");
        assert!(
            says(unit, "Conflicts", "shutdown.target") && says(unit, "Before", "shutdown.target"),
            "{unit}"
        );
        // Containers are the agent's to end; one that is left is killed by its own scope's time-out.
        assert!(says(unit, "KillMode", "process"), "{unit}");
    }
    assert_eq!(values("orlop-network.target", "DefaultDependencies"), Vec::<String>::new());
}

/// A stop without a delay lock: the agent ends the pods in its own, and their containers, the runtime and the bus that
/// it needs are there until then. Starts do not wait for the bus for it.
#[test]
fn what_pods_need_stays_while_the_agent_stops() {
    let units = systemd().join("system");
    // Containers, and mounts: their root file systems, networks and volumes.
    for kind in
        ["cri-containerd-.scope", "run-containerd-.mount", "run-netns-.mount", "var-lib-kubelet-.mount"]
    {
        let units = fs::read_to_string(units.join(format!("{kind}.d/10-orlop.conf"))).expect(kind);
        assert!(units.lines().any(|line| line == "Before=kubelet.service"), "{units}");
    }
    assert!(says("orlop-network.target", "After", "dbus-broker.service"));
    for unit in ["kubelet.service", "containerd.service"] {
        assert!(!says(unit, "After", "dbus-broker.service"), "{unit} waits for the bus");
    }
}

/// logind does not notice that its bus went away, and Debian's bus is not started again when it dies.
#[test]
fn logind_comes_back_with_its_bus() {
    assert!(says("systemd-logind.service", "PartOf", "dbus-broker.service"));
    assert!(says("systemd-logind.service", "After", "dbus-broker.service"));
    assert!(says("dbus-broker.service", "Restart", "always"));
}

/// systemd gives up a service that fails five times within ten seconds, and then nobody on the node can start it.
#[test]
fn no_permanent_service_is_given_up() {
    for unit in [
        "containerd.service",
        "dbus-broker.service",
        "kubelet.service",
        "orlop-change.service",
        "orlop-clock.service",
        "orlop-node-api.service",
        "orlop-provision.service",
        "orlop-resolv.service",
        "orlop-serial.service",
        "orlop-trial.service",
        "systemd-journald.service",
        "systemd-logind.service",
        "systemd-networkd.service",
        "systemd-timesyncd.service",
    ] {
        assert!(says(unit, "StartLimitIntervalSec", "0"), "{unit} is given up after some failures");
    }
}

/// What keeps the network until containerd has stopped must not keep containerd until the network has started.
#[test]
fn nothing_waits_for_the_network_at_a_start() {
    for unit in ["kubelet.service", "containerd.service", "orlop-bringup.service", "orlop.target"] {
        for key in ["Requires", "Wants", "Upholds", "BindsTo"] {
            assert!(!says(unit, key, "orlop-network.target"), "{unit}: {key}");
        }
        assert!(!says(unit, "After", "systemd-networkd.service"), "{unit}");
    }
    let started = values("systemd-networkd.service", "ExecStartPost").join(" ");
    assert_eq!(started, "+/usr/bin/systemctl --no-block start orlop-network.target");
}

/// Debian's unit of the time client stands before sysinit.target; this one holds nothing up (docs/reference/time.md).
#[test]
fn nothing_waits_for_the_time_client() {
    assert!(says("systemd-timesyncd.service", "DefaultDependencies", "no"));
    assert_eq!(values("systemd-timesyncd.service", "Before"), ["shutdown.target"]);
    for unit in ["kubelet.service", "containerd.service", "orlop-bringup.service", "orlop.target"] {
        for key in ["Requires", "Wants", "After"] {
            assert!(!says(unit, key, "systemd-timesyncd.service"), "{unit}: {key}");
        }
    }
    assert!(says("orlop-ntp-refused.target", "Conflicts", "systemd-timesyncd.service"));
    // The agent leaves its requests where the units look for them.
    let directory = values("kubelet.service", "RuntimeDirectory").join(" ");
    for (unit, file) in [("orlop-clock.path", "set"), ("orlop-ntp-refused.path", "ntp-refused")] {
        assert!(says(unit, "PathExists", &format!("/run/{directory}/{file}")), "{unit}");
    }
}

#[test]
fn a_stop_that_hangs_is_cut_off() {
    let stop = setting("system.conf.d/10-orlop.conf", "DefaultTimeoutStopSec");
    for target in ["reboot", "poweroff", "halt", "kexec", "soft-reboot"] {
        let limits = values(&format!("{target}.target"), "JobTimeoutSec");
        let limit = limits.last().map(|limit| seconds(limit)).expect(target);
        // Each of the chain may be asked, and then killed, for as long; the target's stock action follows.
        assert!((2 * 3 * stop..=300).contains(&limit), "{target}: {limit} s");
    }
    let watchdog = setting("system.conf.d/10-orlop.conf", "RebootWatchdogSec");
    assert!(watchdog >= stop, "the watchdog is fed once: {watchdog} s");
    // Fed twice in its time, and PID 1 may be busy; a Node is given up after some minutes.
    let runtime = setting("system.conf.d/10-orlop.conf", "RuntimeWatchdogSec");
    assert!((30..=120).contains(&runtime), "{runtime} s");
}

/// What logind waits of its own accord covers the appliance's periods and the agent's five seconds beyond them.
#[test]
fn logind_waits_for_the_periods_that_the_appliance_has() {
    let limit = setting("logind.conf.d/10-orlop.conf", "InhibitDelayMaxSec");
    let config = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";
    let source = orlop_config::node::Source {
        name: "c".to_owned(),
        origin: "test".to_owned(),
        text: config.to_owned(),
    };
    let effective = orlop_config::node::load(&[source], &[]);
    let periods = effective.kubelet.shutdown_grace_period.to_std().as_secs();
    assert!(periods > 0 && limit >= periods + 5, "{limit} s for {periods} s");
    // Nothing of the agent's own is cut off by systemd sooner than its pods.
    assert!(values("kubelet.service", "TimeoutStopSec").is_empty(), "units stop after the pods have ended");
}
