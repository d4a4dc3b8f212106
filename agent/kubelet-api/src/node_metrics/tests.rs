//! The text of a machine of fixtures, node_exporter's families as the record has them, and any bytes in any file.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use agent_types::time::Wall;
use proptest::prelude::*;

use super::filesystem::NodeMount;
use super::*;

/// Families of node_exporter: name, type, labels.
const RECORD: &str = include_str!("../../../../qemu-tests/golden/node-exporter.json");

/// A machine with two processors, two disks, two interfaces, a sensor and a file of each kind.
const FILES: &[(&str, &str)] = &[
    (
        "proc/stat",
        "cpu  300 4 70 9000 20 3 5 1 8 2\ncpu0 100 2 30 4000 15 1 2 1 5 2\ncpu1 200 2 40 5000 5 2 3 0 3 0\n\
         intr 9001 1 2 3\nctxt 70000\nbtime 1795000000\nprocesses 4711\nprocs_running 2\nprocs_blocked 1\n\
         softirq 5 1 1\n",
    ),
    ("proc/loadavg", "0.21 0.37 0.39 1/719 19737\n"),
    (
        "proc/meminfo",
        "MemTotal:       2000000 kB\nMemFree:         500000 kB\nMemAvailable:   1500000 kB\nActive(anon):      100 kB\n\
         HugePages_Total:       3\nHugepagesize:       2048 kB\nSecPageTables:  1 kB\nnonsense\n",
    ),
    (
        "proc/vmstat",
        "nr_free_pages 977769\npgpgin 1500\npgpgout 77\npswpin 3\npswpout 4\npgfault 40000\npgmajfault 12\noom_kill 2\n",
    ),
    ("proc/sys/fs/file-nr", "1024\t0\t1631329\n"),
    (
        "proc/diskstats",
        "   7       0 loop0 1 0 8 0 0 0 0 0 0 0 0\n 254       0 vda 100 2 800 50 60 3 1600 70 1 90 120 5 0 40 6 7 8\n \
         254       7 vda7 90 1 700 40 50 2 1500 60 0 80 100\n 252       0 dm-0 30 0 240 10 0 0 0 0 0 10 10\n",
    ),
    (
        "run/udev/data/b254:0",
        "S:disk/by-id/virtio-x\nE:ID_SERIAL=virtio-x\nE:ID_PATH=pci-0000:00:04.0\nE:ID_MODEL=\n",
    ),
    ("sys/block/vda/queue/rotational", "1\n"),
    (
        "proc/net/dev",
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
         lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0\n  \
         eth0: 5000      50    1    2    3     4          5         6     7000      70    8    9   10    11      12         13\n\
         vethab12: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n",
    ),
    ("sys/class/net/eth0/statistics/rx_nohandler", "17\n"),
    ("sys/class/net/eth0/address", "52:54:00:12:34:56\n"),
    ("sys/class/net/eth0/addr_assign_type", "0\n"),
    ("sys/class/net/eth0/broadcast", "ff:ff:ff:ff:ff:ff\n"),
    ("sys/class/net/eth0/carrier", "1\n"),
    ("sys/class/net/eth0/carrier_changes", "2\n"),
    ("sys/class/net/eth0/carrier_down_count", "1\n"),
    ("sys/class/net/eth0/carrier_up_count", "1\n"),
    ("sys/class/net/eth0/dev_id", "0x20\n"),
    ("sys/class/net/eth0/dormant", "0\n"),
    ("sys/class/net/eth0/duplex", "full\n"),
    ("sys/class/net/eth0/flags", "0x1303\n"),
    ("sys/class/net/eth0/ifalias", "the \"uplink\"\n"),
    ("sys/class/net/eth0/ifindex", "2\n"),
    ("sys/class/net/eth0/iflink", "2\n"),
    ("sys/class/net/eth0/link_mode", "0\n"),
    ("sys/class/net/eth0/mtu", "1500\n"),
    ("sys/class/net/eth0/name_assign_type", "4\n"),
    ("sys/class/net/eth0/netdev_group", "0\n"),
    ("sys/class/net/eth0/operstate", "up\n"),
    ("sys/class/net/eth0/speed", "1000\n"),
    ("sys/class/net/eth0/tx_queue_len", "1000\n"),
    ("sys/class/net/eth0/type", "1\n"),
    ("sys/class/net/vethab12/ifindex", "9\n"),
    ("sys/class/net/bonding_masters", "bond0\n"),
    (
        "proc/pressure/cpu",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=14036781\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
    ),
    (
        "proc/pressure/io",
        "some avg10=0.10 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
    ),
    (
        "proc/pressure/memory",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    ),
    ("proc/pressure/irq", "full avg10=0.00 avg60=0.00 avg300=0.00 total=8494\n"),
    (
        "proc/net/netstat",
        "TcpExt: SyncookiesSent ListenDrops TCPTimeouts TW\nTcpExt: 1 2 3 4\nIpExt: InNoRoutes InOctets\nIpExt: 5 600\n",
    ),
    (
        "proc/net/snmp",
        "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: CurrEstab InErrs RetransSegs\nTcp: 7 8 9\nUdp: InErrors NoPorts\nUdp: 10 11\n",
    ),
    (
        "proc/net/snmp6",
        "Ip6InOctets                     \t460\nIcmp6InMsgs \t3\nUdp6NoPorts\t4\nIp6InReceives\t7\n",
    ),
    (
        "proc/net/sockstat",
        "sockets: used 229\nTCP: inuse 4 orphan 0 tw 4 alloc 17 mem 2\nUDP: inuse 3 mem 1\nFRAG: inuse 0 memory 0\n",
    ),
    ("proc/net/sockstat6", "TCP6: inuse 17\nOther6: inuse 1\n"),
    ("proc/sys/net/netfilter/nf_conntrack_count", "123\n"),
    ("proc/sys/net/netfilter/nf_conntrack_max", "65536\n"),
    (
        "proc/net/stat/nf_conntrack",
        "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  \
         expect_new expect_create expect_delete search_restart\n0000007b  00000000 00000002 00000000 0000000a 00000000 \
         00000000 00000000 00000000 00000000 00000003 00000000 00000000  00000000 00000000 00000000 00000001\n0000007b  \
         00000000 00000001 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000  \
         00000000 00000000 00000000 00000000\n",
    ),
    ("sys/devices/system/cpu/cpu0/online", "1\n"),
    ("sys/devices/system/cpu/online", "0-1\n"),
    ("sys/devices/system/cpu/present", "0-2\n"),
    ("sys/devices/system/cpu/isolated", "1\n"),
    ("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "5\n"),
    ("sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", "30\n"),
    ("sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
    ("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
    ("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm \n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("sys/class/thermal/thermal_zone0/type", "cpu-thermal\n"),
    ("sys/class/thermal/thermal_zone0/temp", "12376\n"),
    ("sys/class/thermal/cooling_device0/type", "Processor\n"),
    ("sys/class/thermal/cooling_device0/cur_state", "0\n"),
    ("sys/class/thermal/cooling_device0/max_state", "3\n"),
    ("sys/class/hwmon/hwmon0/name", "coretemp\n"),
    ("sys/class/hwmon/hwmon0/temp1_input", "55000\n"),
    ("sys/class/hwmon/hwmon0/temp1_crit", "100000\n"),
    ("sys/class/hwmon/hwmon0/temp1_label", "Package id 0\n"),
    ("sys/class/hwmon/hwmon0/fan1_input", "not a number\n"),
    (
        "etc/os-release",
        "NAME=\"Orlop\"\nID=orlop\nID_LIKE=debian\nVERSION_ID=0.4.0\nIMAGE_VERSION=0.4.0\nPRETTY_NAME='Orlop 0.4.0'\n",
    ),
    (
        "run/orlop/boot.json",
        "{\"boot_id\": \"b\", \"entries\": [{\"phase\": \"init.verity\", \"at_ms\": 1250}, {\"phase\": \"pod.running\", \"at_ms\": 9000}]}",
    ),
    ("run/orlop/node-config.json", "{\"config\": {}, \"problems\": [{\"path\": \"x\"}, {\"path\": \"y\"}]}"),
];

/// A tree of fixtures.
struct FixtureFiles(BTreeMap<String, String>);

impl FixtureFiles {
    fn new() -> FixtureFiles {
        FixtureFiles(FILES.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }
}

impl KernelFiles for FixtureFiles {
    fn text(&self, path: &str) -> Option<String> {
        self.0.get(path).cloned()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        let names = self.0.keys().filter_map(|file| file.strip_prefix(&below)?.split('/').next());
        names.map(str::to_owned).collect::<BTreeSet<String>>().into_iter().collect()
    }

    fn real_path(&self, path: &str) -> Option<String> {
        (path == "sys/class/hwmon/hwmon0/device").then(|| "/sys/devices/platform/coretemp.0".to_owned())
    }
}

fn facts() -> NodeFacts {
    let mount = |device: &str, path: &str| NodeMount {
        device: device.to_owned(),
        mount_point: path.to_owned(),
        fstype: "ext4".to_owned(),
        major: "254".to_owned(),
        minor: "7".to_owned(),
        read_only: false,
    };
    let usage = FilesystemUsage {
        size_bytes: 1000,
        free_bytes: 600,
        available_bytes: 500,
        files: 64,
        files_free: 32,
    };
    let unit = |name: &str, state: &str| SystemUnit {
        name: name.to_owned(),
        active_state: state.to_owned(),
        service_type: "notify".to_owned(),
        restarts: Some(3),
    };
    NodeFacts {
        now: Wall(1_795_000_123_500_000_000),
        page_bytes: 4096,
        uname: Some(UnameFacts {
            sysname: "Linux".to_owned(),
            machine: "x86_64".to_owned(),
            ..UnameFacts::default()
        }),
        timex: Some(TimexReading {
            synchronized: true,
            status: 0x2001,
            offset: 1500,
            freq: 65536,
            maxerror: 500,
            tick: 10_000,
            ..TimexReading::default()
        }),
        filesystems: Some(vec![
            MountUsage { mount: mount("/dev/vda7", "/var"), usage: Ok(usage) },
            MountUsage { mount: mount("/dev/sdb", "/mnt/b"), usage: Err("mountpoint timeout".to_owned()) },
        ]),
        units: Some(SystemUnits {
            running: false,
            counts: vec![("active".to_owned(), 90), ("failed".to_owned(), 1)],
            units: vec![unit("kubelet.service", "active"), unit("x.service", "failed")],
        }),
        problems: vec![("identity", false), ("clock", true)],
    }
}

fn scrape(files: &FixtureFiles, facts: &NodeFacts) -> String {
    let ticks = Cell::new(0);
    text(files, facts, &|| {
        ticks.set(ticks.get() + 1);
        Duration::from_millis(ticks.get())
    })
}

/// Name, type and labels of each family, after checks of what a scraper could misread.
fn families(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut families: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    let (mut current, mut samples) = (String::new(), BTreeSet::new());
    for line in text.split_terminator('\n') {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(is_name(name), "{name:?}");
            assert!(
                families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new())).is_none(),
                "{name} twice"
            );
            name.clone_into(&mut current);
        } else if !line.starts_with("# HELP ") {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().unwrap().is_finite(), "{line:?}");
            assert!(samples.insert(sample.to_owned()), "{sample} twice");
            let rest = sample.strip_prefix(current.as_str()).unwrap();
            let labels = &mut families.get_mut(&current).unwrap().1;
            for pair in rest.trim_matches(['{', '}']).split("\",").filter(|pair| !pair.is_empty()) {
                labels.insert(pair.split_once("=\"").unwrap().0.to_owned());
            }
        }
    }
    families
}

#[test]
fn values_are_those_of_the_files() {
    let text = scrape(&FixtureFiles::new(), &facts());
    for line in [
        "node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} 40",
        "node_cpu_seconds_total{cpu=\"1\",mode=\"user\"} 2",
        "node_cpu_guest_seconds_total{cpu=\"0\",mode=\"user\"} 0.05",
        "node_cpu_online{cpu=\"2\"} 0",
        "node_cpu_isolated{cpu=\"1\"} 1",
        "node_cpu_core_throttles_total{core=\"0\",package=\"0\"} 5",
        "node_cpu_package_throttles_total{package=\"0\"} 30",
        "node_intr_total 9001",
        "node_context_switches_total 70000",
        "node_forks_total 4711",
        "node_boot_time_seconds 1795000000",
        "node_procs_running 2",
        "node_load15 0.39",
        "node_memory_MemTotal_bytes 2048000000",
        "node_memory_Active_anon_bytes 102400",
        "node_memory_HugePages_Total 3",
        "node_memory_Hugepagesize_bytes 2097152",
        "node_vmstat_oom_kill 2",
        "node_filefd_maximum 1631329",
        "node_disk_read_bytes_total{device=\"vda\"} 409600",
        "node_disk_write_time_seconds_total{device=\"vda\"} 0.07",
        "node_disk_flush_requests_total{device=\"vda\"} 7",
        "node_disk_reads_completed_total{device=\"dm-0\"} 30",
        "node_disk_info{device=\"vda\",major=\"254\",minor=\"0\",model=\"\",path=\"pci-0000:00:04.0\",revision=\"\",\
         rotational=\"1\",serial=\"virtio-x\",wwn=\"\"} 1",
        "node_filesystem_avail_bytes{device=\"/dev/vda7\",device_error=\"\",fstype=\"ext4\",mountpoint=\"/var\"} 500",
        "node_filesystem_device_error{device=\"/dev/sdb\",device_error=\"mountpoint timeout\",fstype=\"ext4\",mountpoint=\"/mnt/b\"} 1",
        "node_network_receive_bytes_total{device=\"eth0\"} 5000",
        "node_network_transmit_compressed_total{device=\"eth0\"} 13",
        "node_network_receive_nohandler_total{device=\"eth0\"} 17",
        "node_network_device_id{device=\"eth0\"} 32",
        "node_network_flags{device=\"eth0\"} 4867",
        "node_network_speed_bytes{device=\"eth0\"} 125000000",
        "node_network_info{address=\"52:54:00:12:34:56\",adminstate=\"up\",broadcast=\"ff:ff:ff:ff:ff:ff\",device=\"eth0\",\
         duplex=\"full\",ifalias=\"the \\\"uplink\\\"\",operstate=\"up\"} 1",
        "node_pressure_cpu_waiting_seconds_total 14.036781",
        "node_pressure_io_stalled_seconds_total 0.5",
        "node_pressure_irq_stalled_seconds_total 0.008494",
        "node_netstat_Tcp_InErrs 8",
        "node_netstat_TcpExt_ListenDrops 2",
        "node_netstat_IpExt_InOctets 600",
        "node_netstat_Ip6_InOctets 460",
        "node_sockstat_TCP_mem_bytes 8192",
        "node_sockstat_TCP6_inuse 17",
        "node_sockstat_sockets_used 229",
        "node_nf_conntrack_entries 123",
        "node_nf_conntrack_stat_found 3",
        "node_nf_conntrack_stat_invalid 11",
        "node_time_seconds 1795000123.5",
        "node_time_clocksource_current_info{clocksource=\"tsc\",device=\"0\"} 1",
        "node_timex_sync_status 1",
        "node_timex_offset_seconds 0.0000015",
        "node_timex_frequency_adjustment_ratio 1.000001",
        "node_thermal_zone_temp{type=\"cpu-thermal\",zone=\"0\"} 12.376",
        "node_cooling_device_max_state{name=\"0\",type=\"Processor\"} 3",
        "node_hwmon_temp_celsius{chip=\"platform_coretemp_0\",sensor=\"temp1\"} 55",
        "node_hwmon_chip_names{chip=\"platform_coretemp_0\",chip_name=\"coretemp\"} 1",
        "node_hwmon_sensor_label{chip=\"platform_coretemp_0\",label=\"Package id 0\",sensor=\"temp1\"} 1",
        "node_os_version{id=\"orlop\",id_like=\"debian\",name=\"Orlop\"} 0.4",
        "node_systemd_unit_state{name=\"x.service\",state=\"failed\",type=\"notify\"} 1",
        "node_systemd_unit_state{name=\"x.service\",state=\"active\",type=\"notify\"} 0",
        "node_systemd_units{state=\"inactive\"} 0",
        "node_systemd_service_restart_total{name=\"kubelet.service\"} 3",
        "orlop_boot_phase_seconds{phase=\"pod.running\"} 9",
        "orlop_config_refused 2",
        "orlop_problem{part=\"clock\"} 1",
        "orlop_state_degraded 0",
        "node_scrape_collector_success{collector=\"hwmon\"} 1",
        "node_scrape_collector_duration_seconds{collector=\"cpu\"} 0.001",
    ] {
        assert!(text.lines().any(|told| told == line), "{line} is not in:\n{text}");
    }
    for absent in ["veth", "vda7\"} ", "loop0", "TCP_TW", "SecPageTables", "Other6", "bonding_masters"] {
        assert!(!text.contains(absent), "{absent} is in:\n{text}");
    }
}

/// Every family is node_exporter's with its type and labels, but for those of this system.
#[test]
fn names_types_and_labels_are_those_of_node_exporter() {
    let record: serde_json::Value = serde_json::from_str(RECORD).unwrap();
    let told = families(&scrape(&FixtureFiles::new(), &facts()));
    assert!(told.len() > 150, "{} families", told.len());
    for (name, (kind, labels)) in told.iter().filter(|(name, _)| !name.starts_with("orlop_")) {
        let family = &record[name.as_str()];
        let words: BTreeSet<String> = family["labels"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|l| l.as_str().map(str::to_owned))
            .collect();
        assert_eq!((family["type"].as_str(), &words), (Some(kind.as_str()), labels), "{name}");
    }
}

#[test]
fn a_machine_without_any_file_says_so() {
    let told = scrape(&FixtureFiles(BTreeMap::new()), &NodeFacts::default());
    let without =
        told.lines().filter(|line| line.starts_with("node_scrape_collector_success") && line.ends_with(" 0"));
    assert_eq!(without.count(), 21, "all but the time:\n{told}");
    assert!(told.contains("node_scrape_collector_success{collector=\"time\"} 1\n"));
}

/// Bytes of a file as a hostile driver or a later kernel may write them.
fn bytes() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("cpu0 1 2 3 4 5 6 7 8 9 10\n".to_owned()),
        Just("Tcp: InErrs InErrs\nTcp: 1 2\n".to_owned()),
        Just("TcpExt: \u{e9}Listen} 5\n".to_owned()),
        Just("TCP: inuse 1 inuse 2 mem -3\n".to_owned()),
        Just("eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n".to_owned()),
        Just("8 0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n".to_owned()),
        Just("pgfault 1\npgfault 2\npg\u{e9}fault 1\noom_kill{x 1\n".to_owned()),
        Just("MemTotal: 99999999999999999999999999 kB\nMemTotal: nan kB\nMemFree: inf kB\n".to_owned()),
        Just("some total=18446744073709551616\nfull total=x\n".to_owned()),
        Just("0-4294967295,3-1,,-\n".to_owned()),
        Just("0xffffffffffffffff".to_owned()),
        Just("-9223372036854775808\n".to_owned()),
        Just("{\"entries\": [{\"phase\": \"a\\n\\\"b\", \"at_ms\": 18446744073709551615}]}".to_owned()),
        proptest::collection::vec(any::<u8>(), 0..60).prop_map(|b| String::from_utf8_lossy(&b).into_owned()),
    ];
    proptest::collection::vec(word, 0..6).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_bytes_of_any_file_are_borne(texts in proptest::collection::vec(bytes(), FILES.len())) {
        let mut files = FixtureFiles::new();
        for ((path, _), text) in FILES.iter().zip(texts) {
            files.0.insert((*path).to_owned(), text);
        }
        let told = scrape(&files, &facts());
        let (mut names, mut samples) = (BTreeSet::new(), BTreeSet::new());
        for line in told.split_terminator('\n') {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').unwrap_or_default();
                prop_assert!(is_name(name), "{line:?}");
                prop_assert!(["counter", "gauge", "untyped"].contains(&kind), "{line:?}");
                prop_assert!(names.insert(name.to_owned()), "{name} twice");
            } else if !line.starts_with("# HELP ") {
                // A label may hold anything but the end of a line.
                let (sample, value) = line.rsplit_once(' ').unwrap_or_default();
                prop_assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line:?}");
                prop_assert!(samples.insert(sample.to_owned()), "{sample} twice");
            }
        }
        prop_assert!(told.len() < 1 << 20, "{} bytes", told.len());
    }

    #[test]
    fn any_table_of_mounts_is_borne(text in "(?s).{0,200}|([0-9]+ 1 8:1 / /[a-z]* rw( shared:1)? - (ext4|nfs) /dev/x ro\n)*") {
        for mount in filesystem::own_mounts(&text, &["/a"]) {
            prop_assert!(mount.fstype == "ext4" && !mount.mount_point.starts_with("/a/"));
        }
    }
}

/// `cargo test -p agent-kubelet-api node_metrics -- --ignored --nocapture` prints what a text costs without the reads.
#[test]
#[ignore = "prints figures"]
fn cost_of_a_text() {
    let (files, facts) = (FixtureFiles::new(), facts());
    let began = std::time::Instant::now();
    let bytes: usize = (0..1000).map(|_| scrape(&files, &facts).len()).sum();
    eprintln!("{} bytes, {:?} for each of 1000 texts", bytes / 1000, began.elapsed() / 1000);
}
