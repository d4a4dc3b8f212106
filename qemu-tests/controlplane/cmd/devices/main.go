// Command devices makes up device plugins and pods and records the devices that the upstream kubelet's device and topology managers
// give them (docs/internals/testing.md, "Golden files"). Upstream's managers are used as they are; the plugins, the pods' ends and the
// restarts are made here. Upstream's directory is fixed: run the command where /var/lib is an empty tmpfs.
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
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	schedulerframework "k8s.io/kubernetes/pkg/scheduler/framework"
)

const (
	kubeletDir = "/var/lib/kubelet"
	pluginsDir = kubeletDir + "/device-plugins"
	file       = pluginsDir + "/kubelet_internal_checkpoint"
	// runs is the number of times that each course is taken: the course ends where upstream's random choice shows.
	runs = 16
)

// node is the kubelet's part of a course.
type node struct {
	course   *course
	active   []*v1.Pod
	pods     map[string]*v1.Pod
	plugins  map[string]*plugin
	ready    bool
	topology topologymanager.Manager
	devices  *devicemanager.ManagerImpl
}

func (n *node) AddSource(string) {}
func (n *node) AllReady() bool   { return n.ready }

// start builds the managers over the directory, as a kubelet that starts.
func (n *node) start(running []string) error {
	var nodes []cadvisorapi.Node
	for id := range n.course.Nodes {
		nodes = append(nodes, cadvisorapi.Node{Id: id})
	}
	topology, err := topologymanager.NewManager(nodes, n.course.Topology, n.course.Scope, nil)
	if err != nil {
		return err
	}
	devices, err := devicemanager.NewManagerImpl(nodes, topology)
	if err != nil {
		return err
	}
	topology.AddHintProvider(logr.Discard(), devices)
	containers, set := containermap.NewContainerMap(), sets.New[string]()
	for _, name := range running {
		uid, container, _ := strings.Cut(name, "/")
		containers.Add(uid, container, name)
		set.Insert(name)
	}
	n.topology, n.devices, n.plugins = topology, devices, map[string]*plugin{}
	return devices.Start(logr.Discard(), func() []*v1.Pod { return n.active }, n, containers, set)
}

func (n *node) isActive(uid string) bool {
	return slices.ContainsFunc(n.active, func(pod *v1.Pod) bool { return string(pod.UID) == uid })
}

func (n *node) end(uid string) {
	n.active = slices.DeleteFunc(slices.Clone(n.active), func(pod *v1.Pod) bool { return string(pod.UID) == uid })
}

// admit is upstream's admission by the managers. A refused pod is not active.
func (n *node) admit(pod *v1.Pod) string {
	if !n.isActive(string(pod.UID)) {
		n.active = append(slices.Clone(n.active), pod)
	}
	result := n.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	if result.Admit {
		return ""
	}
	n.end(string(pod.UID))
	return stopped(result.Reason + ": " + result.Message)
}

var pointer = regexp.MustCompile(`endpoint .* has been stopped`)

// stopped replaces the pointer that upstream prints for an endpoint.
func stopped(message string) string {
	return pointer.ReplaceAllString(message, "endpoint has been stopped")
}

// startContainer is the container's part of the run options, with the calls to plugins before the start.
func (n *node) startContainer(of *startOf) string {
	pod, ok := n.pods[of.UID]
	if !ok {
		return "no pod"
	}
	for _, plugin := range n.plugins {
		plugin.started = nil
	}
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	at := slices.IndexFunc(containers, func(c v1.Container) bool { return c.Name == of.Container })
	options, err := n.devices.GetDeviceRunContainerOptions(context.Background(), pod, &containers[at])
	if err != nil {
		return stopped(err.Error())
	}
	var out []string
	for _, name := range sorted(n.plugins) {
		for _, call := range n.plugins[name].started {
			out = append(out, "pre-start "+name+" "+call)
		}
	}
	if options != nil {
		envs := []string{"options"}
		for _, env := range options.Envs {
			envs = append(envs, env.Name+"="+env.Value)
		}
		sort.Strings(envs[1:])
		out = append(out, envs...)
	}
	return strings.Join(out, " ")
}

// state is all that the manager shows, as one text that does not depend on the order of maps.
func (n *node) state() string {
	var out strings.Builder
	n.devices.UpdateAllocatedDevices()
	capacity, allocatable, removed := n.devices.GetCapacity()
	for _, name := range sorted(capacity) {
		count, healthy := capacity[v1.ResourceName(name)], allocatable[v1.ResourceName(name)]
		fmt.Fprintf(&out, "%s %d/%d\n", name, count.Value(), healthy.Value())
	}
	for _, name := range removed {
		fmt.Fprintf(&out, "removed %s\n", name)
	}
	free := n.devices.GetAllocatableDevices()
	for _, name := range sorted(free) {
		if len(free[name]) > 0 {
			fmt.Fprintf(&out, "allocatable %s %s\n", name, instances(free[name]))
		}
	}
	for _, uid := range sorted(n.pods) {
		pod := n.pods[uid]
		info := schedulerframework.NewNodeInfo()
		if err := n.devices.UpdatePluginResources(info, &lifecycle.PodAdmitAttributes{Pod: pod}); err != nil {
			panic(err)
		}
		for _, name := range sorted(info.Allocatable.ScalarResources) {
			// Upstream's table of devices in use keeps resources without any for a while.
			if count := info.Allocatable.ScalarResources[v1.ResourceName(name)]; count > 0 {
				fmt.Fprintf(&out, "%s raises %s to %d\n", uid, name, count)
			}
		}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			devices := n.devices.GetDevices(uid, container.Name)
			status := v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: container.Name}}}
			n.devices.UpdateAllocatedResourcesStatus(pod, &status)
			for _, name := range sorted(devices) {
				fmt.Fprintf(&out, "%s/%s %s %s", uid, container.Name, name, instances(devices[name]))
				fmt.Fprintf(&out, " %s\n", health(status.ContainerStatuses[0].AllocatedResourcesStatus, name))
			}
		}
	}
	fmt.Fprintf(&out, "sync %s\n", strings.Join(n.updates(), " "))
	fmt.Fprintf(&out, "file %s\n", n.file())
	return out.String()
}

// updates are the pods that the manager wants synced since the last look.
func (n *node) updates() []string {
	pods := sets.New[string]()
	for {
		select {
		case update := <-n.devices.Updates():
			pods.Insert(update.PodUIDs...)
		default:
			return sets.List(pods)
		}
	}
}

// file is upstream's checkpoint with sorted lists, written by upstream.
func (n *node) file() string {
	bytes, err := os.ReadFile(file)
	if err != nil {
		return "none"
	}
	read := checkpoint.New(nil, nil)
	if err := read.UnmarshalCheckpoint(bytes); err != nil {
		panic(err)
	}
	entries, registered := read.GetData()
	slices.SortFunc(entries, func(a, b checkpoint.PodDevicesEntry) int {
		return strings.Compare(key(a), key(b))
	})
	for _, entry := range entries {
		for _, ids := range entry.DeviceIDs {
			sort.Strings(ids)
		}
	}
	for _, ids := range registered {
		sort.Strings(ids)
	}
	bytes, err = checkpoint.New(entries, registered).MarshalCheckpoint()
	if err != nil {
		panic(err)
	}
	return string(bytes)
}

func key(of checkpoint.PodDevicesEntry) string {
	return of.PodUID + "\x00" + of.ContainerName + "\x00" + of.ResourceName
}

func instances(of devicemanager.DeviceInstances) string {
	var ids []string
	for _, id := range sorted(of) {
		var nodes []string
		if of[id].Topology != nil {
			for _, node := range of[id].Topology.Nodes {
				nodes = append(nodes, fmt.Sprint(node.ID))
			}
		}
		sort.Strings(nodes)
		ids = append(ids, id+"@"+strings.Join(nodes, "+"))
	}
	return strings.Join(ids, ",")
}

func health(all []v1.ResourceStatus, name string) string {
	var ids []string
	for _, of := range all {
		if string(of.Name) == name {
			for _, resource := range of.Resources {
				ids = append(ids, string(resource.ResourceID)+"="+string(resource.Health))
			}
		}
	}
	sort.Strings(ids)
	return strings.Join(ids, ",")
}

func sorted[K ~string, V any](of map[K]V) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, string(key))
	}
	sort.Strings(keys)
	return keys
}

// take takes one step. An error is a crash of upstream.
func (n *node) take(step *step) (crash error) {
	defer func() {
		if caught := recover(); caught != nil {
			crash = fmt.Errorf("%v", caught)
		}
	}()
	log := logr.Discard()
	switch {
	case step.Connect != nil:
		plugin := &plugin{of: step.Connect}
		n.plugins[step.Connect.Resource] = plugin
		if err := n.devices.PluginConnected(context.Background(), step.Connect.Resource, plugin); err != nil {
			panic(err)
		}
	case step.List != nil:
		n.devices.PluginListAndWatchReceiver(log, step.List.Resource, step.List.response())
	case step.Disconnect != "":
		n.devices.PluginDisconnected(log, step.Disconnect)
	case step.Admit != nil:
		n.pods[step.Admit.UID] = step.Admit.pod()
		step.Outcomes = append(step.Outcomes, n.admit(n.pods[step.Admit.UID]))
	case step.End != "":
		n.end(step.End)
	case step.Start != nil:
		step.Outcomes = append(step.Outcomes, n.startContainer(step.Start))
	case step.Restart:
		if err := n.devices.Stop(log); err != nil {
			panic(err)
		}
		n.ready = false
		if err := n.start(step.Running); err != nil {
			panic(err)
		}
	case step.Readmit:
		for _, pod := range slices.Clone(n.active) {
			step.Outcomes = append(step.Outcomes, n.admit(pod))
		}
		n.ready = true
	}
	step.text = n.state()
	hash := fnv.New32a()
	hash.Write([]byte(step.text))
	step.State = hash.Sum32()
	return nil
}

// run takes the course through upstream's managers and records each outcome.
func run(c *course) {
	if err := os.RemoveAll(kubeletDir); err != nil {
		panic(err)
	}
	if err := os.MkdirAll(pluginsDir, 0o750); err != nil {
		panic(err)
	}
	n := &node{course: c, pods: map[string]*v1.Pod{}, ready: true}
	if err := n.start(nil); err != nil {
		panic(err)
	}
	for i := range c.Steps {
		if crash := n.take(&c.Steps[i]); crash != nil {
			c.Fault = crash.Error()
			c.Steps = c.Steps[:i]
			break
		}
	}
	bytes, err := os.ReadFile(file)
	if err == nil {
		c.File = string(bytes)
	}
	if c.Fault == "" {
		// After a crash the manager's lock may be held.
		_ = n.devices.Stop(logr.Discard())
	}
}

// settle takes a course several times and keeps the steps that always end in the same way.
func settle(seed int64, full bool) *course {
	var kept *course
	for range runs {
		c := makeUp(rand.New(rand.NewSource(seed)))
		run(c)
		if kept == nil {
			kept = c
			continue
		}
		same := 0
		for same < min(len(kept.Steps), len(c.Steps)) && kept.Steps[same].equals(&c.Steps[same]) {
			same++
		}
		if same < len(kept.Steps) {
			kept.Steps, kept.File = kept.Steps[:same], ""
		}
	}
	for i := range kept.Steps {
		if full {
			kept.Steps[i].Text = kept.Steps[i].text
		}
	}
	return kept
}

func main() {
	count := flag.Int("count", 2000, "courses")
	seed := flag.Int64("seed", 1, "first seed")
	full := flag.Bool("full", false, "record the states as texts, too")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	if _, err := os.Stat(filepath.Dir(pluginsDir)); err == nil {
		panic(kubeletDir + " exists: run the command with a tmpfs over /var/lib")
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "[")
	for i := range *count {
		text, err := json.Marshal(settle(*seed+int64(i), *full))
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
