//! Fake trees of machines that this one is not, and this one's own tree.

use std::fs;

use agent_managers::cpu_set::CpuSet;
use agent_managers::topology::Unit;

use super::*;

/// Numbers of threads.
#[derive(Clone, Copy)]
enum Numbering {
    /// Threads of a core follow each other.
    Adjacent,
    /// First all first threads, then all second ones.
    Split,
}

/// A regular machine in totals: sockets, nodes and dies take consecutive cores. The processors of a die share its L3.
struct Shape {
    sockets: u32,
    nodes: u32,
    dies: u32,
    cores: u32,
    threads: u32,
    numbering: Numbering,
}

const SMT: Shape = Shape { sockets: 1, nodes: 1, dies: 1, cores: 4, threads: 2, numbering: Numbering::Split };

#[derive(Clone, Copy)]
struct FakeCpu {
    number: u32,
    core_id: u32,
    package_id: i32,
    node: u32,
    l3: u32,
}

struct FakeNode {
    id: u32,
    kilobytes: u64,
    distances: Option<&'static str>,
    /// Kilobytes of a page, and pages.
    huge_pages: Vec<(u64, u64)>,
}

/// A machine whose tree a test writes.
struct FakeMachine {
    cpus: Vec<FakeCpu>,
    nodes: Vec<FakeNode>,
    offline: Vec<u32>,
}

/// Ids of caches of level 3 begin here, so that none of them is a socket's id.
const L3_IDS: u32 = 64;

impl FakeMachine {
    fn of(shape: &Shape) -> FakeMachine {
        let mut cpus = Vec::new();
        for core in 0..shape.cores {
            let part = |groups: u32| core / (shape.cores / groups);
            for thread in 0..shape.threads {
                cpus.push(FakeCpu {
                    number: match shape.numbering {
                        Numbering::Adjacent => core * shape.threads + thread,
                        Numbering::Split => thread * shape.cores + core,
                    },
                    core_id: core % (shape.cores / shape.sockets),
                    package_id: i32::try_from(part(shape.sockets)).unwrap(),
                    node: part(shape.nodes),
                    l3: L3_IDS + part(shape.dies),
                });
            }
        }
        let node = |id| FakeNode { id, kilobytes: 1 << 20, distances: None, huge_pages: Vec::new() };
        FakeMachine { cpus, nodes: (0..shape.nodes).map(node).collect(), offline: Vec::new() }
    }

    fn online(&self) -> impl Iterator<Item = &FakeCpu> {
        self.cpus.iter().filter(|cpu| !self.offline.contains(&cpu.number))
    }

    fn write(&self) -> FakeTree {
        let tree = FakeTree { root: tempfile::tempdir().unwrap() };
        let online: CpuSet = self.online().map(|cpu| cpu.number).collect();
        tree.file("sys/devices/system/cpu/online", &format!("{online}\n"));
        for cpu in &self.cpus {
            tree.directory(&format!("sys/devices/system/cpu/cpu{}", cpu.number));
            tree.directory(&format!("sys/devices/system/node/node{}/cpu{}", cpu.node, cpu.number));
        }
        for cpu in self.online() {
            self.write_cpu(&tree, cpu);
        }
        for node in &self.nodes {
            node.write(&tree);
        }
        let cpuinfo: String = self
            .online()
            .map(|cpu| format!("processor\t: {}\nphysical id\t: {}\n\n", cpu.number, cpu.package_id))
            .collect();
        tree.file("proc/cpuinfo", &cpuinfo);
        tree
    }

    fn write_cpu(&self, tree: &FakeTree, cpu: &FakeCpu) {
        let directory = format!("sys/devices/system/cpu/cpu{}", cpu.number);
        tree.file(&format!("{directory}/topology/core_id"), &format!("{}\n", cpu.core_id));
        tree.file(&format!("{directory}/topology/physical_package_id"), &format!("{}\n", cpu.package_id));
        let core = |of: &FakeCpu| (of.core_id, of.package_id);
        let of_core = |other: &FakeCpu| core(other) == core(cpu);
        let of_die = |other: &FakeCpu| other.l3 == cpu.l3;
        let cache = |index: &str, level: u32, id: u32, shares: &dyn Fn(&FakeCpu) -> bool| {
            for (file, text) in [
                ("id", id.to_string()),
                ("level", level.to_string()),
                ("size", "32768K".to_owned()),
                ("type", "Unified".to_owned()),
                ("shared_cpu_map", map(self.online().filter(|other| shares(other)))),
            ] {
                tree.file(&format!("{directory}/cache/{index}/{file}"), &format!("{text}\n"));
            }
        };
        cache("index0", 1, cpu.core_id, &of_core);
        cache("index2", 2, cpu.core_id, &of_core);
        cache("index3", 3, cpu.l3, &of_die);
    }

    fn read(&self) -> MachineTopology {
        self.write().read().unwrap()
    }
}

impl FakeNode {
    fn write(&self, tree: &FakeTree) {
        let directory = format!("sys/devices/system/node/node{}", self.id);
        let memory =
            format!("Node {} MemTotal:       {} kB\nNode 0 MemFree: 1 kB\n", self.id, self.kilobytes);
        tree.file(&format!("{directory}/meminfo"), &memory);
        if let Some(distances) = self.distances {
            tree.file(&format!("{directory}/distance"), &format!("{distances}\n"));
        }
        for (size, pages) in &self.huge_pages {
            let file = format!("{directory}/hugepages/hugepages-{size}kB/nr_hugepages");
            tree.file(&file, &format!("{pages}\n"));
        }
    }
}

/// `shared_cpu_map`: words of 32 processors, the highest first.
fn map<'c>(cpus: impl Iterator<Item = &'c FakeCpu>) -> String {
    let mut words = [0_u32; 2];
    for cpu in cpus {
        words[1 - cpu.number as usize / 32] |= 1 << (cpu.number % 32);
    }
    format!("{:08x},{:08x}", words[0], words[1])
}

struct FakeTree {
    root: tempfile::TempDir,
}

impl FakeTree {
    fn directory(&self, path: &str) {
        fs::create_dir_all(self.root.path().join(path)).unwrap();
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.root.path().join(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    fn read(&self) -> Result<MachineTopology, FilesError> {
        read(&Roots { sys: self.root.path().join("sys"), proc: self.root.path().join("proc") })
    }

    fn error(&self) -> String {
        let error = self.read().unwrap_err();
        let path = error.path.strip_prefix(self.root.path()).unwrap().display().to_string();
        format!("{} {path}: {}", error.operation, error.source)
    }
}

/// Core, socket, node and uncore cache of a processor.
fn place(machine: &MachineTopology, cpu: u32) -> (u32, u32, u32, u32) {
    let cpu = machine.cpus.cpus().get(cpu).unwrap();
    (cpu.core, cpu.socket, cpu.node, cpu.uncore)
}

fn numbers(machine: &MachineTopology) -> String {
    machine.cpus.cpus().set().to_string()
}

#[test]
fn threads_of_a_core_have_its_lowest_number() {
    let machine = FakeMachine::of(&SMT).read();
    assert_eq!(numbers(&machine), "0-7");
    // The L3 is the node's, so the socket stands for it.
    assert_eq!(place(&machine, 5), (1, 0, 0, 0));
    assert_eq!((machine.cpus.sockets(), machine.cpus.cpus_per_core()), (1, 2));
    assert_eq!(machine.memory()[&0].total, 1 << 30);
    assert_eq!(machine.nodes[&0].distances, None);

    let machine = FakeMachine::of(&Shape { numbering: Numbering::Adjacent, ..SMT }).read();
    assert_eq!(place(&machine, 5), (4, 0, 0, 0));
}

#[test]
fn two_sockets_are_two_nodes_with_memory_huge_pages_and_distances() {
    let mut fake = FakeMachine::of(&Shape { sockets: 2, nodes: 2, dies: 2, ..SMT });
    for (node, distances) in fake.nodes.iter_mut().zip(["10 21", "21 10"]) {
        node.distances = Some(distances);
    }
    fake.nodes[1].huge_pages = vec![(2048, 3), (1 << 20, 0)];
    let machine = fake.read();
    assert_eq!(place(&machine, 6), (2, 1, 1, 1));
    assert_eq!((machine.cpus.sockets(), machine.cpus.nodes()), (2, 2));
    assert_eq!(machine.nodes[&1].distances, Some(BTreeMap::from([(0, 21), (1, 10)])));
    let pages = BTreeMap::from([("hugepages-1Gi".to_owned(), 0), ("hugepages-2Mi".to_owned(), 6 << 20)]);
    assert_eq!(machine.memory()[&1].huge_pages, pages);
    assert_eq!(machine.memory()[&0].huge_pages, BTreeMap::new());
}

#[test]
fn a_cache_of_two_nodes_is_an_uncore_cache_of_both() {
    let machine = FakeMachine::of(&Shape { sockets: 2, nodes: 4, dies: 2, cores: 8, ..SMT }).read();
    assert_eq!(
        [0, 2, 4, 6].map(|cpu| place(&machine, cpu)),
        [(0, 0, 0, L3_IDS), (2, 0, 1, L3_IDS), (4, 1, 2, L3_IDS + 1), (6, 1, 3, L3_IDS + 1),]
    );
}

#[test]
fn dies_of_a_node_have_uncore_caches_of_their_own() {
    let machine = FakeMachine::of(&Shape { dies: 2, ..SMT }).read();
    assert_eq!(machine.cpus.cpus().ids(Unit::Uncore), BTreeSet::from([L3_IDS, L3_IDS + 1]));
    assert_eq!(place(&machine, 7), (3, 0, 0, L3_IDS + 1));
    assert_eq!(machine.cpus.cpus_per_uncore(), 4);
}

#[test]
fn a_processor_offline_is_none() {
    let mut fake = FakeMachine::of(&SMT);
    fake.offline = vec![1, 6];
    let machine = fake.read();
    assert_eq!(numbers(&machine), "0,2-5,7");
    assert_eq!(place(&machine, 5).0, 5, "the other thread of the core is offline");
    // Six processors share the L3: neither four cores with two threads nor four with one.
    assert_eq!(place(&machine, 0).3, L3_IDS);

    let tree = FakeMachine::of(&SMT).write();
    tree.file("sys/devices/system/cpu/online", "0-2\n");
    assert_eq!(numbers(&tree.read().unwrap()), "0-2", "the list decides, not the directories");
    tree.remove("sys/devices/system/cpu/online");
    assert_eq!(numbers(&tree.read().unwrap()), "0-7", "a kernel without hotplug has no list");
}

#[test]
fn a_processor_without_topology_is_left_out() {
    let tree = FakeMachine::of(&SMT).write();
    tree.remove("sys/devices/system/cpu/cpu2/topology/core_id");
    tree.remove("sys/devices/system/cpu/cpu3/topology/physical_package_id");
    assert_eq!(numbers(&tree.read().unwrap()), "0-1,4-7");
}

#[test]
fn numbers_may_have_holes() {
    let mut fake = FakeMachine::of(&Shape { sockets: 2, nodes: 2, dies: 2, ..SMT });
    for cpu in fake.cpus.iter_mut().filter(|cpu| cpu.package_id == 1) {
        cpu.number += 10;
        cpu.package_id = 3;
        cpu.node = 2;
    }
    fake.nodes[1].id = 2;
    fake.nodes[0].distances = Some("10 21");
    let machine = fake.read();
    assert_eq!(numbers(&machine), "0-1,4-5,12-13,16-17");
    assert_eq!(place(&machine, 17), (13, 3, 2, 3));
    assert_eq!(machine.nodes.keys().copied().collect::<Vec<u32>>(), [0, 2]);
    assert_eq!(machine.nodes[&0].distances, Some(BTreeMap::from([(0, 10), (2, 21)])));
}

#[test]
fn a_node_without_processors_has_memory() {
    let mut fake = FakeMachine::of(&SMT);
    fake.nodes.push(FakeNode { id: 1, kilobytes: 1 << 22, distances: Some("20 10"), huge_pages: vec![] });
    let machine = fake.read();
    assert_eq!(machine.memory()[&1].total, 4 << 30);
    assert_eq!((machine.nodes.len(), machine.cpus.nodes()), (2, 1));
}

#[test]
fn cores_of_two_kinds() {
    let mut fake = FakeMachine::of(&Shape { cores: 8, numbering: Numbering::Adjacent, ..SMT });
    fake.cpus.retain(|cpu| cpu.core_id < 4 || cpu.number % 2 == 0);
    let machine = fake.read();
    assert_eq!(numbers(&machine), "0-8,10,12,14");
    assert_eq!(machine.cpus.cpus_per_core(), 1, "a quotient that fits no core with two threads");
    // Twelve processors share the L3: neither eight cores with two threads nor eight with one.
    assert_eq!([0, 14].map(|cpu| place(&machine, cpu)), [(0, 0, 0, L3_IDS), (14, 0, 0, L3_IDS)]);
}

#[test]
fn without_nodes_each_package_stands_for_one() {
    let tree = FakeMachine::of(&Shape { sockets: 2, nodes: 2, dies: 4, ..SMT }).write();
    tree.remove("sys/devices/system/node");
    let machine = tree.read().unwrap();
    assert_eq!(place(&machine, 6), (2, 1, 1, L3_IDS + 2));
    assert_eq!(machine.nodes, BTreeMap::from([(0, NumaNode::default()), (1, NumaNode::default())]));

    let mut fake = FakeMachine::of(&SMT);
    for cpu in &mut fake.cpus {
        cpu.package_id = -1;
    }
    let tree = fake.write();
    tree.remove("sys/devices/system/node");
    let machine = tree.read().unwrap();
    assert_eq!(place(&machine, 5), (1, 0, 0, 0), "a machine that does not describe its packages");
    assert_eq!(machine.cpus.sockets(), 1);

    tree.remove("sys/devices/system/cpu");
    assert_eq!(tree.error(), "parse sys/devices/system/cpu: \"no processor\"");
}

#[test]
fn a_cache_file_that_cannot_be_read_ends_the_search_for_caches() {
    for file in ["id", "size", "level", "type", "shared_cpu_map"] {
        let tree = FakeMachine::of(&Shape { dies: 2, ..SMT }).write();
        tree.remove(&format!("sys/devices/system/cpu/cpu2/cache/index0/{file}"));
        let machine = tree.read().unwrap();
        assert_eq!([0, 1, 2, 3].map(|cpu| place(&machine, cpu).3), [L3_IDS, L3_IDS, 0, 0], "{file}");
    }
    let tree = FakeMachine::of(&Shape { dies: 4, cores: 12, ..SMT }).write();
    tree.remove("sys/devices/system/cpu/cpu10/cache");
    let uncore = tree.read().unwrap().cpus.cpus().ids(Unit::Uncore);
    assert_eq!(uncore, BTreeSet::from([0, L3_IDS]), "upstream visits cpu10 after cpu1 and before cpu2");
}

#[test]
fn packages_are_those_of_cpuinfo_if_it_has_any() {
    let tree = FakeMachine::of(&SMT).write();
    tree.file("proc/cpuinfo", "physical id\t: 0\nphysical id\t: 1\n");
    assert_eq!(tree.read().unwrap().cpus.sockets(), 2);
    tree.file("proc/cpuinfo", "processor\t: 0\n");
    assert_eq!(tree.read().unwrap().cpus.sockets(), 1);
    tree.remove("proc/cpuinfo");
    assert_eq!(tree.read().unwrap().cpus.sockets(), 1);
}

#[test]
fn texts_of_another_form_are_errors() {
    let cpu = "sys/devices/system/cpu";
    let node = "sys/devices/system/node/node0";
    for (file, text) in [
        (format!("{cpu}/online"), "3-1"),
        (format!("{cpu}/cpu0/topology/core_id"), "x"),
        (format!("{cpu}/cpu0/topology/physical_package_id"), ""),
        (format!("{node}/meminfo"), "Node 0 MemFree: 1 kB"),
        (format!("{node}/distance"), "10  21"),
        (format!("{node}/hugepages/hugepages-2048kB/nr_hugepages"), "many"),
    ] {
        let tree = FakeMachine::of(&SMT).write();
        tree.file(&file, text);
        assert_eq!(tree.error(), format!("parse {file}: {text:?}"));
    }
    let tree = FakeMachine::of(&SMT).write();
    tree.file(&format!("{cpu}/online"), &"0,".repeat(1 << 16));
    assert!(tree.error().contains("larger than 65536 bytes"));
}

#[test]
fn a_node_without_memory_information_has_none() {
    let tree = FakeMachine::of(&SMT).write();
    tree.remove("sys/devices/system/node/node0/meminfo");
    assert_eq!(tree.read().unwrap().nodes[&0], NumaNode::default());
}

#[test]
fn this_machine_can_be_read() {
    match read(&Roots::default()) {
        Ok(machine) => {
            let cpus = machine.cpus.cpus();
            assert!(cpus.ids(Unit::Node).iter().all(|node| machine.nodes.contains_key(node)));
            assert!(cpus.ids(Unit::Core).iter().all(|core| cpus.get(*core).is_some()));
        }
        // A sandbox without sysfs.
        Err(error) => assert!(!error.path.as_os_str().is_empty(), "{error}"),
    }
}
