package main

import (
	"fmt"
	"math/rand"

	cadvisorapi "github.com/google/cadvisor/info/v1"
)

// machine is a made-up machine in few numbers; fixture readers build the same one (agent/managers/tests/golden.rs).
type machine struct {
	Sockets int `json:"sockets"`
	Nodes   int `json:"nodes"`
	// Cores of a node.
	Cores int `json:"cores"`
	// Threads of the first Dual cores of the machine are two, of all others one.
	Dual int `json:"dual"`
	// Near: siblings have consecutive numbers. Else all first threads come first.
	Near bool `json:"near,omitempty"`
	// Uncore is the number of cores that share a cache, 0: the node's.
	Uncore  int   `json:"uncore,omitempty"`
	Offline []int `json:"offline,omitempty"`
	// Memory and Huge are MiB of each node.
	Memory []int64 `json:"memory"`
	Huge   []int64 `json:"huge,omitempty"`
	// Far is the distance from node to node but to itself (10) and its neighbour (node id ^ 1; 12).
	Far int `json:"far,omitempty"`
}

type containerOf struct {
	Name   string `json:"n"`
	Kind   string `json:"k"`
	Milli  int64  `json:"c,omitempty"`
	Memory int64  `json:"m,omitempty"`
	Huge   int64  `json:"h,omitempty"`
}

type podOf struct {
	UID        string        `json:"uid"`
	Guaranteed bool          `json:"g,omitempty"`
	Containers []containerOf `json:"of"`
}

// step is one of: a pod that wants to be admitted, a pod that ends, a new kubelet that admits all active pods again.
type step struct {
	Admit    *podOf   `json:"admit,omitempty"`
	End      string   `json:"end,omitempty"`
	Restart  bool     `json:"restart,omitempty"`
	Outcomes []string `json:"outcomes,omitempty"`
	States   []uint32 `json:"states,omitempty"`
	Texts    []string `json:"texts,omitempty"`
}

type course struct {
	Machine        machine  `json:"machine"`
	CpuPolicy      string   `json:"cpuPolicy"`
	CpuOptions     []string `json:"cpuOptions,omitempty"`
	ReservedMilli  int64    `json:"reservedMilli,omitempty"`
	ReservedCpus   string   `json:"reservedCpus,omitempty"`
	MemoryPolicy   string   `json:"memoryPolicy"`
	ReservedMemory []int64  `json:"reservedMemory,omitempty"`
	Topology       string   `json:"topology"`
	Scope          string   `json:"scope"`
	Closest        bool     `json:"closest,omitempty"`
	// Refused is upstream's error at the start.
	Refused string `json:"refused,omitempty"`
	// Fault is a promise that upstream's assignments broke in the step after the last.
	Fault string `json:"fault,omitempty"`
	Steps []step `json:"steps"`
}

func (c *course) options() map[string]string {
	options := map[string]string{}
	for _, name := range c.CpuOptions {
		options[name] = "true"
	}
	return options
}

func (c *course) topologyOptions() map[string]string {
	options := map[string]string{"max-allowable-numa-nodes": "16"}
	if c.Closest {
		options["prefer-closest-numa-nodes"] = "true"
	}
	return options
}

// socket of a core of a node.
func (m *machine) socket(node, core int) int {
	if m.Nodes >= m.Sockets {
		return node / (m.Nodes / m.Sockets)
	}
	perNode := m.Sockets / m.Nodes
	return node*perNode + core/(m.Cores/perNode)
}

// info is the machine as cadvisor describes it.
func (m *machine) info() *cadvisorapi.MachineInfo {
	offline := map[int]bool{}
	for _, cpu := range m.Offline {
		offline[cpu] = true
	}
	info := &cadvisorapi.MachineInfo{NumSockets: m.Sockets}
	all := m.Nodes * m.Cores
	next, second := 0, all
	for id := range m.Nodes {
		node := cadvisorapi.Node{Id: id, Memory: uint64(m.Memory[id]) << 20}
		if m.Huge != nil {
			node.HugePages = []cadvisorapi.HugePagesInfo{{PageSize: 2048, NumPages: uint64(m.Huge[id]) / 2}}
		}
		for other := range m.Nodes {
			distance := m.Far
			switch other {
			case id:
				distance = 10
			case id ^ 1:
				distance = 12
			}
			if m.Far > 0 {
				node.Distances = append(node.Distances, uint64(distance))
			}
		}
		for core := range m.Cores {
			number := id*m.Cores + core
			of := cadvisorapi.Core{Id: core, SocketID: m.socket(id, core)}
			if m.Uncore > 0 {
				of.UncoreCaches = []cadvisorapi.Cache{{Id: number / m.Uncore}}
			}
			threads := []int{next}
			next++
			if number < m.Dual {
				if m.Near {
					threads = append(threads, next)
					next++
				} else {
					threads = append(threads, second)
					second++
				}
			}
			for _, cpu := range threads {
				if !offline[cpu] {
					of.Threads = append(of.Threads, cpu)
				}
			}
			if len(of.Threads) > 0 {
				node.Cores = append(node.Cores, of)
				info.NumCores += len(of.Threads)
			}
		}
		info.Topology = append(info.Topology, node)
	}
	return info
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.Intn(len(of))] }

func makeUp(r *rand.Rand) *course {
	c := &course{CpuPolicy: "static", MemoryPolicy: pick(r, "None", "Static"), Scope: pick(r, "container", "pod")}
	c.Topology = pick(r, "none", "best-effort", "restricted", "single-numa-node")
	m := &c.Machine
	m.Sockets = pick(r, 1, 1, 2, 2, 4, 8)
	m.Nodes = pick(r, 1, 1, 2, 2, 4, 8)
	if r.Intn(40) == 0 {
		// Upstream goes through all pairs of 65,535 sets of nodes for a hint: not in this life.
		m.Sockets, m.Nodes, c.Topology = pick(r, 1, 2), 16, "none"
	}
	if m.Nodes == 8 && c.Topology != "none" {
		// Two resources on eight nodes are 255^2 combinations for each hint: seconds of upstream.
		c.MemoryPolicy = "None"
	}
	m.Cores = pick(r, 1, 2, 3, 4, 6, 8)
	if m.Nodes > 4 {
		m.Cores = pick(r, 1, 2, 4)
	}
	if m.Sockets > m.Nodes {
		m.Cores = m.Sockets / m.Nodes * pick(r, 1, 2, 3)
	}
	all := m.Nodes * m.Cores
	m.Dual = pick(r, 0, all, all, r.Intn(all+1))
	m.Near = r.Intn(2) == 0
	if r.Intn(2) == 0 && m.Cores%2 == 0 {
		m.Uncore = pick(r, 1, 2, m.Cores/2)
		if m.Cores%m.Uncore != 0 {
			m.Uncore = 1
		}
	}
	cpus := all + m.Dual
	if r.Intn(5) == 0 && cpus > 4 {
		m.Offline = []int{1 + r.Intn(cpus-1)}
	}
	c.makeUpOptions(r)
	c.makeUpMemory(r)
	if c.Topology != "none" && r.Intn(2) == 0 {
		c.Closest = true
		m.Far = pick(r, 20, 32, 12)
	}
	c.makeUpReservation(r, cpus)
	var known []string
	for i := range 3 + r.Intn(6) {
		switch {
		case len(known) > 0 && r.Intn(4) == 0:
			at := r.Intn(len(known))
			c.Steps = append(c.Steps, step{End: known[at]})
			known = append(known[:at], known[at+1:]...)
		case len(known) > 0 && r.Intn(8) == 0:
			c.Steps = append(c.Steps, step{Restart: true})
		default:
			uid := fmt.Sprintf("p%d", i)
			known = append(known, uid)
			c.Steps = append(c.Steps, step{Admit: c.makeUpPod(r, uid, cpus)})
		}
	}
	return c
}

// irregular: cores have different numbers of threads.
func (m *machine) irregular() bool {
	return len(m.Offline) > 0 || m.Dual != 0 && m.Dual != m.Nodes*m.Cores
}

func (c *course) makeUpOptions(r *rand.Rand) {
	m := &c.Machine
	regular := !m.irregular()
	full := r.Intn(4) == 0
	if full {
		c.CpuOptions = append(c.CpuOptions, "full-pcpus-only")
	}
	if r.Intn(4) == 0 {
		c.CpuOptions = append(c.CpuOptions, "strict-cpu-reservation")
	}
	switch r.Intn(6) {
	case 0:
		c.CpuOptions = append(c.CpuOptions, "prefer-align-cpus-by-uncorecache")
	case 1:
		// Of more nodes upstream may take another combination than the one that it judged, and on an irregular machine it
		// may look for whole cores without end.
		if m.Nodes <= 4 && (regular || !full) {
			c.CpuOptions = append(c.CpuOptions, "distribute-cpus-across-numa")
		}
	case 2:
		if !full {
			c.CpuOptions = append(c.CpuOptions, "distribute-cpus-across-cores")
		}
	case 3:
		if c.Topology != "single-numa-node" {
			c.CpuOptions = append(c.CpuOptions, "align-by-socket")
		}
	}
}

func (c *course) makeUpMemory(r *rand.Rand) {
	m := &c.Machine
	// Three resources on eight nodes are 255^3 combinations for each hint.
	huge := r.Intn(3) == 0 && (m.Nodes < 8 || c.Topology == "none")
	for range m.Nodes {
		m.Memory = append(m.Memory, int64(1024+r.Intn(8)*256))
		if huge {
			m.Huge = append(m.Huge, int64(r.Intn(5)*64))
		}
	}
	if c.MemoryPolicy == "Static" {
		c.ReservedMemory = make([]int64, m.Nodes)
		c.ReservedMemory[r.Intn(m.Nodes)] = int64(64 + r.Intn(4)*64)
		c.ReservedMemory[0] += int64(r.Intn(2) * 64)
	}
}

func (c *course) makeUpReservation(r *rand.Rand, cpus int) {
	switch r.Intn(12) {
	case 0:
	case 1:
		// Upstream counts reservedSystemCPUs.
		first := r.Intn(cpus)
		c.ReservedCpus = fmt.Sprint(first)
		c.ReservedMilli = 1000
		for _, cpu := range c.Machine.Offline {
			if cpu == first {
				c.ReservedCpus = ""
			}
		}
	case 2, 3:
		c.ReservedMilli = int64(1 + r.Intn(cpus*1000/2+1))
	default:
		c.ReservedMilli = int64(100 + r.Intn(10)*100)
	}
}

func (c *course) makeUpPod(r *rand.Rand, uid string, cpus int) *podOf {
	p := &podOf{UID: uid, Guaranteed: r.Intn(6) > 0}
	count := 1 + r.Intn(3)
	if r.Intn(3) == 0 {
		count += 2
	}
	apps := 0
	for i := range count {
		kind := "a"
		if i < count-1 && apps == 0 {
			kind = pick(r, "a", "a", "i", "s")
		}
		if kind == "a" {
			apps++
		}
		of := containerOf{Name: fmt.Sprintf("c%d", i), Kind: kind}
		switch r.Intn(4) {
		case 0:
			of.Milli = int64(100 + r.Intn(30)*100)
		default:
			of.Milli = int64(1+r.Intn(max(cpus/2, 2))) * 1000
		}
		of.Memory = int64(16 + r.Intn(12)*64)
		if r.Intn(6) == 0 {
			of.Memory *= 3
		}
		if c.Machine.Huge != nil && r.Intn(3) == 0 {
			of.Huge = int64(2 + r.Intn(40)*2)
		}
		p.Containers = append(p.Containers, of)
	}
	return p
}
