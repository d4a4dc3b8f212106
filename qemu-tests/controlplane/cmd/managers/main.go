// Command managers makes up machines and pods and records the processors and the memory that the upstream kubelet's CPU, memory and
// topology managers give them (docs/internals/testing.md, "Golden files"). Upstream's managers are used as they are; the machine, the pods'
// ends and the restarts are made here.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// forever is a reconcile period that no course reaches.
const forever = 1000 * time.Hour

// node is the kubelet's part of a course: managers over one directory, and the pods that are active.
type node struct {
	course   *course
	dir      string
	active   []*v1.Pod
	pods     map[string]*podOf
	topology topologymanager.Manager
	cpus     cpumanager.Manager
	memory   memorymanager.Manager
	cancel   context.CancelFunc
}

type ready struct{}

func (ready) AddSource(string)                            {}
func (ready) AllReady() bool                              { return true }
func (*node) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }
func (*node) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

// start builds the managers over the directory, as a kubelet that starts.
func (n *node) start() error {
	c := n.course
	info := c.Machine.info()
	topology, err := topologymanager.NewManager(info.Topology, c.Topology, c.Scope, c.topologyOptions())
	if err != nil {
		return err
	}
	reservation := v1.ResourceList{}
	if c.ReservedMilli > 0 {
		reservation[v1.ResourceCPU] = *resource.NewMilliQuantity(c.ReservedMilli, resource.DecimalSI)
	}
	var reservedMemory []kubeletconfig.MemoryReservation
	var total int64
	for id, mib := range c.ReservedMemory {
		if mib > 0 {
			limits := v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(mib<<20, resource.BinarySI)}
			reservedMemory = append(reservedMemory, kubeletconfig.MemoryReservation{NumaNode: int32(id), Limits: limits})
			total += mib << 20
		}
	}
	reservation[v1.ResourceMemory] = *resource.NewQuantity(total, resource.BinarySI)
	specific, err := cpuset.Parse(c.ReservedCpus)
	if err != nil {
		return err
	}
	cpus, err := cpumanager.NewManager(logr.Discard(), c.CpuPolicy, c.options(), forever, info, specific, reservation, n.dir, topology)
	if err != nil {
		return err
	}
	memory, err := memorymanager.NewManager(logr.Discard(), c.MemoryPolicy, info, reservation, reservedMemory, n.dir, topology)
	if err != nil {
		return err
	}
	topology.AddHintProvider(logr.Discard(), cpus)
	topology.AddHintProvider(logr.Discard(), memory)
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	active := func() []*v1.Pod { return n.active }
	if err := cpus.Start(ctx, active, ready{}, n, n, containermap.NewContainerMap()); err != nil {
		return err
	}
	if err := memory.Start(ctx, active, ready{}, n, n, containermap.NewContainerMap()); err != nil {
		return err
	}
	// The reconcile loop looks once at the start: nothing may change meanwhile.
	time.Sleep(2 * time.Millisecond)
	n.topology, n.cpus, n.memory = topology, cpus, memory
	return nil
}

// admit is upstream's admission by the managers. A pod counts as active while it is admitted, as in the kubelet, and then if it was.
func (n *node) admit(pod *v1.Pod) string {
	before := n.active
	known := slices.ContainsFunc(before, func(other *v1.Pod) bool { return other.UID == pod.UID })
	if !known {
		n.active = append(slices.Clone(before), pod)
	}
	result := n.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	if result.Admit {
		return ""
	}
	if !known {
		n.active = before
	}
	// Each manager takes back the parts of pods that are not active when it is asked the next time: so that both have, they are.
	other := (&podOf{UID: "none", Containers: []containerOf{{Name: "c", Kind: "a"}}}).pod()
	n.cpus.GetTopologyHints(other, &other.Spec.Containers[0])
	n.memory.GetTopologyHints(other, &other.Spec.Containers[0])
	return result.Reason + ": " + result.Message
}

// state is all that the managers know, as one text that does not depend on the order of maps.
func (n *node) state() string {
	var out strings.Builder
	fmt.Fprintf(&out, "cpu %s\n", n.cpus.State().GetDefaultCPUSet())
	assignments := n.cpus.State().GetCPUAssignments()
	for _, uid := range sorted(assignments) {
		for _, name := range sorted(assignments[uid]) {
			fmt.Fprintf(&out, "%s/%s=%s\n", uid, name, assignments[uid][name])
		}
	}
	machine := n.memory.State().GetMachineState()
	ids := make([]int, 0, len(machine))
	for id := range machine {
		ids = append(ids, id)
	}
	sort.Ints(ids)
	for _, id := range ids {
		state := machine[id]
		fmt.Fprintf(&out, "node %d a=%d g=%s", id, state.NumberOfAssignments, cpuset.New(state.Cells...))
		for _, name := range sorted(state.MemoryMap) {
			table := state.MemoryMap[v1.ResourceName(name)]
			fmt.Fprintf(&out, " %s:%d/%d", name, table.Reserved, table.Free)
		}
		out.WriteString("\n")
	}
	blocks := n.memory.State().GetMemoryAssignments()
	for _, uid := range sorted(blocks) {
		for _, name := range sorted(blocks[uid]) {
			var texts []string
			for _, block := range blocks[uid][name] {
				texts = append(texts, fmt.Sprintf("%s@%s=%d", block.Type, cpuset.New(block.NUMAAffinity...), block.Size))
			}
			sort.Strings(texts)
			fmt.Fprintf(&out, "%s/%s %s\n", uid, name, strings.Join(texts, " "))
		}
	}
	return out.String()
}

// fault is the first of upstream's own promises that its assignments break: on a machine whose cores have different numbers of
// threads it takes a core for free of which a thread is somebody's (isCoreFree and isSocketFree compare with the average).
func (n *node) fault() string {
	reserved := n.cpus.GetAllCPUs().Difference(n.cpus.GetAllocatableCPUs())
	assignments := n.cpus.State().GetCPUAssignments()
	owner := map[int]string{}
	for uid, containers := range assignments {
		pod := n.pods[uid]
		for name, cpus := range containers {
			of := pod.container(name)
			if int64(cpus.Size())*1000 != of.Milli {
				return "a set of another size"
			}
			if !cpus.Intersection(reserved).IsEmpty() {
				return "reserved processors"
			}
			if !cpus.Intersection(n.cpus.State().GetDefaultCPUSet()).IsEmpty() {
				return "shared and exclusive"
			}
			if of.Kind == "i" {
				continue
			}
			for _, cpu := range cpus.List() {
				if _, taken := owner[cpu]; taken {
					return "exclusive twice"
				}
				owner[cpu] = name
			}
		}
	}
	return ""
}

func (p *podOf) container(name string) *containerOf {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

func sorted[K ~string, V any](of map[K]V) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, string(key))
	}
	sort.Strings(keys)
	return keys
}

// pod is the API object of a made-up pod.
func (p *podOf) pod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.UID, Namespace: "default", UID: types.UID(p.UID)}}
	always := v1.ContainerRestartPolicyAlways
	for _, of := range p.Containers {
		amounts := v1.ResourceList{}
		if of.Milli > 0 {
			amounts[v1.ResourceCPU] = *resource.NewMilliQuantity(of.Milli, resource.DecimalSI)
		}
		if of.Memory > 0 {
			amounts[v1.ResourceMemory] = *resource.NewQuantity(of.Memory<<20, resource.BinarySI)
		}
		if of.Huge > 0 {
			amounts["hugepages-2Mi"] = *resource.NewQuantity(of.Huge<<20, resource.BinarySI)
		}
		container := v1.Container{Name: of.Name, Resources: v1.ResourceRequirements{Requests: amounts}}
		if p.Guaranteed {
			container.Resources.Limits = amounts
		}
		switch of.Kind {
		case "i":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
		case "s":
			container.RestartPolicy = &always
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, container)
		}
	}
	return pod
}

// run takes the course through upstream's managers and records each outcome.
func run(c *course, full bool) error {
	dir, err := os.MkdirTemp("", "managers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n := &node{course: c, dir: dir, pods: map[string]*podOf{}}
	record := func(step *step, outcome string) {
		text := n.state()
		hash := fnv.New32a()
		hash.Write([]byte(text))
		step.Outcomes = append(step.Outcomes, outcome)
		step.States = append(step.States, hash.Sum32())
		if full {
			step.Texts = append(step.Texts, text)
		}
	}
	if err := n.start(); err != nil {
		c.Refused = err.Error()
		c.Steps = nil
		return nil
	}
	for i := range c.Steps {
		step := &c.Steps[i]
		switch {
		case step.Admit != nil:
			n.pods[step.Admit.UID] = step.Admit
			record(step, n.admit(step.Admit.pod()))
		case step.End != "":
			var left []*v1.Pod
			for _, pod := range n.active {
				if string(pod.UID) != step.End {
					left = append(left, pod)
				}
			}
			n.active = left
		case step.Restart:
			n.cancel()
			if err := n.start(); err != nil {
				// A kubelet that cannot start with what it wrote itself: the course ends.
				step.Outcomes = []string{"start: " + err.Error()}
				c.Steps = c.Steps[:i+1]
				return nil
			}
			for _, pod := range n.active {
				record(step, n.admit(pod))
			}
		}
		fault := n.fault()
		if c.Machine.irregular() && slices.ContainsFunc(step.Outcomes, func(outcome string) bool {
			return strings.Contains(outcome, "not enough cpus")
		}) {
			// The same fault before it shows: the first run took less than it was asked for.
			fault = "a core taken for free"
		}
		if fault != "" {
			c.Fault = fault
			c.Steps = c.Steps[:i]
			break
		}
	}
	n.cancel()
	return nil
}

func main() {
	count := flag.Int("count", 2000, "courses")
	seed := flag.Int64("seed", 1, "first seed")
	full := flag.Bool("full", false, "record the states as texts, too")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	if err := utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true"); err != nil {
		panic(err)
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "[")
	for i := range *count {
		c := makeUp(rand.New(rand.NewSource(*seed + int64(i))))
		if err := run(c, *full); err != nil {
			panic(fmt.Sprintf("seed %d: %v", *seed+int64(i), err))
		}
		text, err := json.Marshal(c)
		if err != nil {
			panic(err)
		}
		separator := ","
		if i == *count-1 {
			separator = ""
		}
		fmt.Fprintf(out, "%s%s\n", text, separator)
	}
	fmt.Fprintln(out, "]")
}
