// Command evictions makes up nodes that run out of something and records what the upstream kubelet's eviction manager
// does about it: who goes, in which order, with how much grace and with which words (docs/internals/testing.md, "Golden files").
// Upstream's manager is used as it is; time, statistics and the pods' ends are made here.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/utils/clock"
)

// space is bytes and inodes.
type space struct {
	Bytes  uint64 `json:"bytes"`
	Inodes uint64 `json:"inodes"`
}

type containerUse struct {
	Name   string `json:"name"`
	Memory uint64 `json:"memory"`
	Layer  space  `json:"layer"`
	Logs   space  `json:"logs"`
}

type volumeUse struct {
	Name string `json:"name"`
	space
}

// podUse is what a pod uses of everything.
type podUse struct {
	Memory     uint64         `json:"memory"`
	Processes  uint64         `json:"processes"`
	Hosts      space          `json:"hosts"`
	Containers []containerUse `json:"containers"`
	Volumes    []volumeUse    `json:"volumes,omitempty"`
}

// amount is what there is of something, and what is left while every pod is there.
type amount struct {
	Capacity  int64 `json:"capacity"`
	Available int64 `json:"available"`
}

type layout struct {
	DedicatedImages bool `json:"dedicatedImages"`
	SplitContainers bool `json:"splitContainers"`
}

type config struct {
	Hard     map[string]string `json:"evictionHard"`
	Soft     map[string]string `json:"evictionSoft,omitempty"`
	Grace    map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	Reclaim  map[string]string `json:"evictionMinimumReclaim,omitempty"`
	MaxGrace int64             `json:"evictionMaxPodGracePeriod"`
	Isolated bool              `json:"localStorageCapacityIsolation"`
	Enforced []string          `json:"enforceNodeAllocatable"`
	Period   string            `json:"evictionPressureTransitionPeriod"`
}

type victim struct {
	Pod         string            `json:"pod"`
	GraceS      int64             `json:"graceS"`
	Message     string            `json:"message"`
	Disrupted   bool              `json:"disrupted"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// course is a node, what happens to it, and what upstream did.
type course struct {
	Config  config            `json:"config"`
	Layout  layout            `json:"layout"`
	Signals map[string]amount `json:"signals"`
	Pods    []*v1.Pod         `json:"pods"`
	// Uses lacks pods of which nothing is known.
	Uses map[string]*podUse `json:"uses"`
	// Frees is what is left more of each signal when a pod is gone.
	Frees    map[string]map[string]int64 `json:"frees"`
	Victims  []victim                    `json:"victims"`
	Pressure []string                    `json:"pressure"`
}

// period is the time between two looks, and more than the pressure conditions' own period.
const period = 10 * time.Second

// quietLooks without a victim end a course: more than every grace lasts.
const quietLooks = 12

// world is what the manager sees. One goroutine, the manager's, changes it.
type world struct {
	course *course
	mutex  sync.Mutex
	now    time.Time
	gone   map[types.UID]bool
	quiet  int
	last   chan struct{}
	record.EventRecorder
	notes map[string]map[string]string
}

func (w *world) Now() time.Time {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.now
}
func (w *world) Since(t time.Time) time.Duration { return w.Now().Sub(t) }
func (w *world) NewTimer(d time.Duration) clock.Timer {
	return clock.RealClock{}.NewTimer(d)
}
func (w *world) NewTicker(time.Duration) clock.Ticker {
	return clock.RealClock{}.NewTicker(time.Microsecond)
}
func (w *world) After(d time.Duration) <-chan time.Time { return clock.RealClock{}.After(d) }
func (w *world) Sleep(time.Duration)                    {}
func (w *world) Tick(time.Duration) <-chan time.Time    { return clock.RealClock{}.Tick(time.Microsecond) }

func (w *world) HasDedicatedImageFs(context.Context) (bool, error) {
	return w.course.Layout.DedicatedImages, nil
}
func (w *world) HasDedicatedContainerFs(context.Context) (bool, error) {
	return w.course.Layout.SplitContainers, nil
}
func (w *world) DeleteUnusedImages(context.Context) error        { return nil }
func (w *world) DeleteAllUnusedContainers(context.Context) error { return nil }

func (w *world) Eventf(object runtime.Object, kind, reason, format string, args ...any) {}

// active is asked for once a look: time goes on, and the course ends when nothing happens any more.
func (w *world) active() []*v1.Pod {
	w.mutex.Lock()
	w.now = w.now.Add(period)
	w.quiet++
	over := w.quiet > quietLooks
	w.mutex.Unlock()
	if over {
		w.last <- struct{}{}
		select {}
	}
	var pods []*v1.Pod
	for _, pod := range w.course.Pods {
		if !w.gone[pod.UID] {
			pods = append(pods, pod)
		}
	}
	return pods
}

func (w *world) left(signal string) (uint64, uint64) {
	of := w.course.Signals[signal]
	available := of.Available
	for uid := range w.gone {
		available += w.course.Frees[string(uid)][signal]
	}
	return uint64(min(available, of.Capacity)), uint64(of.Capacity)
}

func (w *world) fs(name string) *stats.FsStats {
	bytes, size := w.left(name + ".available")
	inodes, all := w.left(name + ".inodesFree")
	return &stats.FsStats{
		Time: metav1.NewTime(w.now), AvailableBytes: &bytes, CapacityBytes: &size, InodesFree: &inodes, Inodes: &all,
	}
}

func (w *world) GetCPUAndMemoryStats(ctx context.Context) (*stats.Summary, error) {
	return w.Get(ctx, false)
}

func (w *world) memory(signal string) *stats.MemoryStats {
	available, capacity := w.left(signal)
	used := capacity - available
	return &stats.MemoryStats{Time: metav1.NewTime(w.now), AvailableBytes: &available, WorkingSetBytes: &used}
}

func (w *world) Get(context.Context, bool) (*stats.Summary, error) {
	pids, most := w.left("pid.available")
	running, maxPid := int64(most-pids), int64(most)
	summary := &stats.Summary{Node: stats.NodeStats{
		Memory: w.memory("memory.available"),
		Fs:     w.fs("nodefs"),
		Runtime: &stats.RuntimeStats{
			ImageFs: w.fs("imagefs"), ContainerFs: w.fs("containerfs"),
		},
		Rlimit: &stats.RlimitStats{
			Time: metav1.NewTime(w.now), MaxPID: &maxPid, NumOfRunningProcesses: &running,
		},
		SystemContainers: []stats.ContainerStats{
			{Name: stats.SystemContainerPods, Memory: w.memory("allocatableMemory.available")},
		},
	}}
	for _, pod := range w.course.Pods {
		use, known := w.course.Uses[string(pod.UID)]
		if known && !w.gone[pod.UID] {
			summary.Pods = append(summary.Pods, podStats(pod, use))
		}
	}
	return summary, nil
}

func fsOf(used space) *stats.FsStats {
	return &stats.FsStats{UsedBytes: &used.Bytes, InodesUsed: &used.Inodes}
}

func podStats(pod *v1.Pod, use *podUse) stats.PodStats {
	all := use.Hosts
	found := stats.PodStats{
		PodRef:       stats.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
		Memory:       &stats.MemoryStats{WorkingSetBytes: &use.Memory},
		ProcessStats: &stats.ProcessStats{ProcessCount: &use.Processes},
	}
	add := func(more space) { all = space{all.Bytes + more.Bytes, all.Inodes + more.Inodes} }
	for i := range use.Containers {
		container := &use.Containers[i]
		add(container.Layer)
		add(container.Logs)
		found.Containers = append(found.Containers, stats.ContainerStats{
			Name:   container.Name,
			Memory: &stats.MemoryStats{WorkingSetBytes: &container.Memory},
			Rootfs: fsOf(container.Layer),
			Logs:   fsOf(container.Logs),
		})
	}
	for _, volume := range use.Volumes {
		if isEphemeral(pod, volume.Name) {
			add(volume.space)
		}
		found.VolumeStats = append(found.VolumeStats, stats.VolumeStats{Name: volume.Name, FsStats: *fsOf(volume.space)})
	}
	found.EphemeralStorage = fsOf(all)
	return found
}

func isEphemeral(pod *v1.Pod, name string) bool {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == name {
			return volume.EmptyDir == nil || volume.EmptyDir.Medium != v1.StorageMediumMemory
		}
	}
	return false
}

func (w *world) AnnotatedEventf(object runtime.Object, notes map[string]string, kind, reason, format string, args ...any) {
	if pod, ok := object.(*v1.Pod); ok {
		w.notes[pod.Name] = notes
	}
}

func (w *world) kill(pod *v1.Pod, _ bool, grace *int64, change func(*v1.PodStatus)) error {
	var status v1.PodStatus
	change(&status)
	w.gone[pod.UID] = true
	w.quiet = 0
	w.course.Victims = append(w.course.Victims, victim{
		Pod: pod.Name, GraceS: *grace, Message: status.Message, Annotations: w.notes[pod.Name],
		Disrupted: len(status.Conditions) > 0,
	})
	return nil
}

// play lets upstream's manager do its work until it has nothing more to do.
func play(c *course) error {
	thresholds, err := eviction.ParseThresholdConfig(c.Config.Enforced, c.Config.Hard, c.Config.Soft, c.Config.Grace, c.Config.Reclaim)
	if err != nil {
		return err
	}
	w := &world{
		course: c, now: time.Unix(1_000_000, 0), gone: map[types.UID]bool{}, last: make(chan struct{}),
		EventRecorder: &record.FakeRecorder{}, notes: map[string]map[string]string{},
	}
	manager, _ := eviction.NewManager(w, eviction.Config{
		PressureTransitionPeriod: time.Second, MaxPodGracePeriodSeconds: c.Config.MaxGrace, Thresholds: thresholds,
	}, w.kill, w, w, w, &v1.ObjectReference{}, w, c.Config.Isolated)
	manager.Start(context.Background(), w, w.active, func(*v1.Pod) bool { return true }, time.Microsecond)
	<-w.last
	for _, condition := range []struct {
		name  string
		holds func() bool
	}{
		{"memory", manager.IsUnderMemoryPressure}, {"disk", manager.IsUnderDiskPressure}, {"pid", manager.IsUnderPIDPressure},
	} {
		if condition.holds() {
			c.Pressure = append(c.Pressure, condition.name)
		}
	}
	return nil
}

// settled is a course that upstream's manager ends in the same way each time: where two thresholds are met, or two pods
// are equals, it is chance that decides.
func settled(seed int64, n int) (*course, error) {
	for try := int64(0); ; try++ {
		var first *course
		same := true
		for range 100 {
			c := makeUp(rand.New(rand.NewSource(seed+int64(n)*1000+try)), n)
			if err := play(c); err != nil {
				return nil, err
			}
			if first == nil {
				first = c
			}
			same = same && reflect.DeepEqual(first.Victims, c.Victims) && reflect.DeepEqual(first.Pressure, c.Pressure)
		}
		if same && len(first.Victims) > 0 {
			return first, nil
		}
	}
}

func main() {
	courses := flag.Int("courses", 80, "how many")
	seed := flag.Int64("seed", 1, "of what is made up")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintln(out, "[")
	for n := range *courses {
		c, err := settled(*seed, n)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		line, err := json.Marshal(c.told())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		end := ","
		if n+1 == *courses {
			end = ""
		}
		fmt.Fprintln(out, strings.TrimSpace(string(line))+end)
	}
	fmt.Fprintln(out, "]")
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
