package main

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const mebi = 1 << 20

var disks = []string{"nodefs", "imagefs", "containerfs"}

// oneOf is one of those.
func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.Intn(len(all))] }

// some is between nothing and `most` MiB, never twice the same.
func some(r *rand.Rand, most int64) uint64 { return uint64(r.Int63n(most * mebi)) }

// makeUp makes the n-th node: pods, what they use, and something that runs out, each kind in turn.
func makeUp(r *rand.Rand, n int) *course {
	kinds := []string{
		"memory.available", "nodefs.available", "pid.available", "nodefs.inodesFree", "allocatableMemory.available",
		"imagefs.available", "memory.available", "imagefs.inodesFree",
	}
	starved := []string{kinds[n%len(kinds)]}
	if r.Intn(4) == 0 {
		starved = append(starved, kinds[r.Intn(len(kinds))])
	}
	// Limits of storage are looked at beside memory and process ids by one kubelet, and before them by the other.
	ofDisks := !slices.ContainsFunc(starved, func(signal string) bool { return !isDisk(signal) })
	c := &course{
		Config: config{
			Hard: map[string]string{}, Soft: map[string]string{}, Grace: map[string]string{}, Reclaim: map[string]string{},
			MaxGrace: oneOf[int64](r, 0, 7, 60), Enforced: []string{"pods"}, Period: "1s", Isolated: ofDisks && r.Intn(2) == 0,
		},
		Layout:   layout{DedicatedImages: n%2 == 1},
		Signals:  map[string]amount{},
		Uses:     map[string]*podUse{},
		Frees:    map[string]map[string]int64{},
		Victims:  []victim{},
		Pressure: []string{},
	}
	c.Layout.SplitContainers = c.Layout.DedicatedImages && r.Intn(3) == 0
	for i := range 2 + r.Intn(5) {
		c.addPod(r, i)
	}
	if r.Intn(4) == 0 {
		delete(c.Uses, string(c.Pods[r.Intn(len(c.Pods))].UID))
	}
	c.Signals["memory.available"] = amount{Capacity: 4096 * mebi, Available: 2000 * mebi}
	c.Signals["allocatableMemory.available"] = amount{Capacity: 3800 * mebi, Available: 2000 * mebi}
	c.Signals["pid.available"] = amount{Capacity: 32768, Available: 30000}
	for _, disk := range disks {
		c.Signals[disk+".available"] = amount{Capacity: 100_000 * mebi, Available: 50_000 * mebi}
		c.Signals[disk+".inodesFree"] = amount{Capacity: 6_000_000, Available: 5_000_000}
	}
	c.layersWithOthers()
	for _, signal := range starved {
		c.starve(r, signal)
	}
	return c
}

func isDisk(signal string) bool {
	return !strings.HasPrefix(signal, "pid") && !strings.Contains(strings.ToLower(signal), "memory")
}

// told is the course without signals that have no threshold.
func (c *course) told() *course {
	named := map[string]bool{}
	for _, of := range []map[string]string{c.Config.Hard, c.Config.Soft} {
		for signal := range of {
			if isDisk(signal) {
				// A threshold of one file system may be another's as well.
				for _, disk := range disks {
					named[disk+signal[strings.Index(signal, "."):]] = true
				}
			} else {
				named[signal] = true
				named["allocatableMemory.available"] = named["memory.available"]
			}
		}
	}
	unnamed := func(signal string) bool { return !named[signal] }
	maps.DeleteFunc(c.Signals, func(signal string, _ amount) bool { return unnamed(signal) })
	for _, of := range c.Frees {
		maps.DeleteFunc(of, func(signal string, freed int64) bool { return freed == 0 || unnamed(signal) })
	}
	return c
}

// starve lets one signal be short, by so much that some pods have to go, or all, or none is enough.
func (c *course) starve(r *rand.Rand, signal string) {
	of := c.Signals[signal]
	configured := signal
	if signal == "allocatableMemory.available" {
		configured = "memory.available"
	}
	var all int64
	for _, pod := range c.Pods {
		all += c.Frees[string(pod.UID)][signal]
	}
	least := of.Capacity / 10
	text := "10%"
	if r.Intn(2) == 0 {
		text = resource.NewQuantity(least, resource.BinarySI).String()
	}
	short := 1 + r.Int63n(max(all*5/4, 2))
	if r.Intn(3) == 0 {
		c.Config.Soft[configured] = text
		c.Config.Grace[configured] = oneOf(r, "15s", "30s", "1m0s")
		// A hard one, too, that is not met, or met beside it.
		c.Config.Hard[configured] = oneOf(r, "5%", "1%")
	} else {
		c.Config.Hard[configured] = text
	}
	if r.Intn(3) == 0 {
		c.Config.Reclaim[configured] = resource.NewQuantity(1+of.Capacity/100, resource.BinarySI).String()
	}
	of.Available = max(least-short, 0)
	c.Signals[signal] = of
	c.layersWithOthers()
}

// layers is the file system of writable layers.
func (c *course) layers() string {
	if c.Layout.DedicatedImages && !c.Layout.SplitContainers {
		return "imagefs"
	}
	return "nodefs"
}

// layersWithOthers lets containerfs be the file system that it is on.
func (c *course) layersWithOthers() {
	for _, what := range []string{".available", ".inodesFree"} {
		c.Signals["containerfs"+what] = c.Signals[c.layers()+what]
	}
}

func quantity(amount uint64) resource.Quantity {
	return *resource.NewQuantity(int64(amount), resource.BinarySI)
}

func someSpace(r *rand.Rand, most int64) space {
	return space{Bytes: some(r, most), Inodes: uint64(r.Intn(20_000))}
}

func (c *course) addPod(r *rand.Rand, i int) {
	name := fmt.Sprintf("p%d", i)
	grace := oneOf[int64](r, 0, 5, 30, 600)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{TerminationGracePeriodSeconds: &grace},
	}
	if r.Intn(3) > 0 {
		priority := oneOf[int32](r, -5, 0, 0, 100, 1000)
		pod.Spec.Priority = &priority
	}
	switch r.Intn(12) {
	case 0:
		priority := int32(2_000_000_000)
		pod.Spec.Priority = &priority
		pod.Spec.PriorityClassName = "system-cluster-critical"
	case 1:
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	}
	if r.Intn(8) == 0 {
		pod.Spec.Overhead = v1.ResourceList{v1.ResourceMemory: resource.MustParse("20Mi")}
	}
	if r.Intn(6) == 0 {
		pod.Spec.Resources = &v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceMemory: quantity((1 + some(r, 300)/mebi) * mebi)},
		}
	}
	use := &podUse{Processes: 1 + uint64(r.Intn(5000)), Hosts: space{Bytes: 4096, Inodes: 1}}
	container := func(name string) v1.Container {
		used := containerUse{Name: name, Memory: some(r, 300), Layer: someSpace(r, 4000), Logs: someSpace(r, 500)}
		use.Containers = append(use.Containers, used)
		use.Memory += used.Memory
		return v1.Container{Name: name, Image: "i", Resources: c.resources(r)}
	}
	if r.Intn(5) == 0 {
		always := v1.ContainerRestartPolicyAlways
		sidecar := container("beside")
		sidecar.RestartPolicy = &always
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, sidecar)
	}
	if r.Intn(5) == 0 {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, v1.Container{
			Name: "before", Image: "i", Resources: c.resources(r),
		})
	}
	for n := range 1 + r.Intn(2) {
		pod.Spec.Containers = append(pod.Spec.Containers, container(fmt.Sprintf("c%d", n)))
	}
	use.Memory += uint64(r.Intn(mebi))
	c.addVolumes(r, pod, use)
	c.Pods = append(c.Pods, pod)
	c.Uses[string(pod.UID)] = use
	c.Frees[string(pod.UID)] = c.frees(use)
}

func (c *course) resources(r *rand.Rand) v1.ResourceRequirements {
	requests, limits := v1.ResourceList{}, v1.ResourceList{}
	if r.Intn(2) == 0 {
		requests[v1.ResourceMemory] = quantity((1 + some(r, 300)/mebi) * mebi)
	}
	if r.Intn(3) == 0 {
		requests[v1.ResourceEphemeralStorage] = quantity((1 + some(r, 4000)/mebi) * mebi)
	}
	if c.Config.Isolated && r.Intn(3) == 0 {
		limits[v1.ResourceEphemeralStorage] = quantity((4000 + some(r, 600)/mebi) * mebi)
	}
	return v1.ResourceRequirements{Requests: requests, Limits: limits}
}

func (c *course) addVolumes(r *rand.Rand, pod *v1.Pod, use *podUse) {
	add := func(name string, source v1.VolumeSource) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		use.Volumes = append(use.Volumes, volumeUse{Name: name, space: someSpace(r, 1000)})
	}
	if r.Intn(3) == 0 {
		empty := &v1.EmptyDirVolumeSource{}
		if c.Config.Isolated && r.Intn(2) == 0 {
			limit := quantity((800 + some(r, 300)/mebi) * mebi)
			empty.SizeLimit = &limit
		}
		add("scratch", v1.VolumeSource{EmptyDir: empty})
	}
	if r.Intn(6) == 0 {
		add("ram", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}})
	}
	if r.Intn(6) == 0 {
		add("settings", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}})
	}
}

// frees is what is left more when the pod is gone.
func (c *course) frees(use *podUse) map[string]int64 {
	freed := map[string]int64{
		"memory.available":            int64(use.Memory),
		"allocatableMemory.available": int64(use.Memory),
		"pid.available":               int64(use.Processes),
	}
	on := func(disk string, used space) {
		freed[disk+".available"] += int64(used.Bytes)
		freed[disk+".inodesFree"] += int64(used.Inodes)
	}
	for _, container := range use.Containers {
		on(c.layers(), container.Layer)
		on("nodefs", container.Logs)
	}
	for _, volume := range use.Volumes {
		if volume.Name != "ram" {
			on("nodefs", volume.space)
		}
	}
	for _, what := range []string{".available", ".inodesFree"} {
		freed["containerfs"+what] = freed[c.layers()+what]
	}
	return freed
}
