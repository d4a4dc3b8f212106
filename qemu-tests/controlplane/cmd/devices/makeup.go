package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"sort"
	"strings"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type connectOf struct {
	Resource string `json:"r"`
	// Prefers: the plugin states a preference for the first or the last devices; empty: none.
	Prefers  string `json:"prefers,omitempty"`
	PreStart bool   `json:"preStart,omitempty"`
	// Fails: the plugin refuses to allocate.
	Fails bool `json:"fails,omitempty"`
}

type deviceOf struct {
	ID    string  `json:"id"`
	Sick  bool    `json:"sick,omitempty"`
	Nodes []int64 `json:"n,omitempty"`
}

type listOf struct {
	Resource string     `json:"r"`
	Devices  []deviceOf `json:"d"`
}

type containerOf struct {
	Name   string           `json:"n"`
	Kind   string           `json:"k"`
	Limits map[string]int64 `json:"l"`
}

type podOf struct {
	UID        string        `json:"uid"`
	Containers []containerOf `json:"of"`
}

type startOf struct {
	UID       string `json:"uid"`
	Container string `json:"c"`
}

// step is one of its first fields. A new kubelet admits the active pods again in a step of its own, so that plugins may register
// before; until then its pod sources are not ready.
type step struct {
	Connect    *connectOf `json:"connect,omitempty"`
	List       *listOf    `json:"list,omitempty"`
	Disconnect string     `json:"disconnect,omitempty"`
	Admit      *podOf     `json:"admit,omitempty"`
	End        string     `json:"end,omitempty"`
	Start      *startOf   `json:"start,omitempty"`
	Restart    bool       `json:"restart,omitempty"`
	// Running names containers that run when the kubelet starts: pod UID, slash, name.
	Running  []string `json:"running,omitempty"`
	Readmit  bool     `json:"readmit,omitempty"`
	Outcomes []string `json:"outcomes,omitempty"`
	State    uint32   `json:"state"`
	Text     string   `json:"text,omitempty"`
	text     string
}

func (s *step) equals(other *step) bool {
	return slices.Equal(s.Outcomes, other.Outcomes) && s.text == other.text
}

type course struct {
	Nodes    int    `json:"nodes"`
	Topology string `json:"topology"`
	Scope    string `json:"scope"`
	Steps    []step `json:"steps"`
	// File is the checkpoint behind the last step, empty if upstream wrote none or the course was cut.
	File string `json:"file,omitempty"`
	// Fault is the crash of upstream in the step after the last.
	Fault string `json:"fault,omitempty"`
}

func (l *listOf) response() *pluginapi.ListAndWatchResponse {
	response := &pluginapi.ListAndWatchResponse{}
	for _, of := range l.Devices {
		device := &pluginapi.Device{ID: of.ID, Health: pluginapi.Healthy}
		if of.Sick {
			device.Health = pluginapi.Unhealthy
		}
		if of.Nodes != nil {
			device.Topology = &pluginapi.TopologyInfo{}
			for _, node := range of.Nodes {
				device.Topology.Nodes = append(device.Topology.Nodes, &pluginapi.NUMANode{ID: node})
			}
		}
		response.Devices = append(response.Devices, device)
	}
	return response
}

// plugin is a device plugin without a process.
type plugin struct {
	pluginapi.DevicePluginClient
	of      *connectOf
	started []string
}

func (p *plugin) API() pluginapi.DevicePluginClient { return p }
func (p *plugin) Resource() string                  { return p.of.Resource }
func (p *plugin) SocketPath() string                { return "" }

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty, ...grpc.CallOption) (*pluginapi.DevicePluginOptions, error) {
	options := &pluginapi.DevicePluginOptions{PreStartRequired: p.of.PreStart}
	options.GetPreferredAllocationAvailable = p.of.Prefers != ""
	return options, nil
}

// GetPreferredAllocation names as many devices as asked for: those that it must include, then the first or last others.
func (p *plugin) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest, _ ...grpc.CallOption) (*pluginapi.PreferredAllocationResponse, error) {
	of := request.ContainerRequests[0]
	ids := slices.Clone(of.MustIncludeDeviceIDs)
	others := slices.DeleteFunc(slices.Clone(of.AvailableDeviceIDs), func(id string) bool { return slices.Contains(ids, id) })
	sort.Strings(others)
	if p.of.Prefers == "last" {
		slices.Reverse(others)
	}
	for _, id := range others {
		if len(ids) < int(of.AllocationSize) {
			ids = append(ids, id)
		}
	}
	answer := &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids}
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{answer}}, nil
}

// Allocate names the devices in one environment variable, because protobuf has no order of several.
func (p *plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest, _ ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	if p.of.Fails {
		return nil, errors.New("the plugin refuses")
	}
	ids := slices.Clone(request.ContainerRequests[0].DevicesIds)
	sort.Strings(ids)
	answer := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{p.of.Resource: strings.Join(ids, ",")}}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{answer}}, nil
}

func (p *plugin) PreStartContainer(_ context.Context, request *pluginapi.PreStartContainerRequest, _ ...grpc.CallOption) (*pluginapi.PreStartContainerResponse, error) {
	ids := slices.Clone(request.DevicesIds)
	sort.Strings(ids)
	p.started = append(p.started, strings.Join(ids, ","))
	return &pluginapi.PreStartContainerResponse{}, nil
}

// pod is the API object of a made-up pod.
func (p *podOf) pod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.UID, Namespace: "default", UID: types.UID(p.UID)}}
	always := v1.ContainerRestartPolicyAlways
	for _, of := range p.Containers {
		amounts := v1.ResourceList{}
		for name, count := range of.Limits {
			amounts[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
		}
		container := v1.Container{Name: of.Name, Resources: v1.ResourceRequirements{Requests: amounts, Limits: amounts}}
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

func pick[T any](r *rand.Rand, of ...T) T { return of[r.Intn(len(of))] }

var resources = []string{"a.io/x", "b.io/y"}

// maker makes up a course step by step.
type maker struct {
	*rand.Rand
	course *course
	// devices that a plugin may list, by resource.
	devices map[string][]deviceOf
	// connected resources.
	connected map[string]bool
	pods      []*podOf
}

func makeUp(r *rand.Rand) *course {
	c := &course{Nodes: pick(r, 1, 2, 2, 4), Scope: pick(r, "container", "container", "pod")}
	c.Topology = pick(r, "none", "best-effort", "best-effort", "restricted", "single-numa-node")
	m := &maker{r, c, map[string][]deviceOf{}, map[string]bool{}, nil}
	for _, name := range resources {
		m.makeUpDevices(name)
	}
	for _, name := range resources {
		if m.Intn(6) > 0 {
			m.connect(name)
			m.list(name)
		}
	}
	for i := range 5 + m.Intn(10) {
		m.step(fmt.Sprintf("p%d", i))
	}
	return c
}

func (m *maker) makeUpDevices(name string) {
	topology := m.Intn(3) > 0
	for i := range 1 + m.Intn(8) {
		of := deviceOf{ID: fmt.Sprintf("%s%d", name[:1], i)}
		if topology && m.Intn(8) > 0 {
			of.Nodes = []int64{int64(m.Intn(m.course.Nodes))}
			if m.Intn(8) == 0 && m.course.Nodes > 1 {
				of.Nodes = []int64{0, 1}
			}
		}
		m.devices[name] = append(m.devices[name], of)
	}
}

func (m *maker) add(of step) { m.course.Steps = append(m.course.Steps, of) }

func (m *maker) connect(name string) {
	m.connected[name] = true
	of := &connectOf{Resource: name, Prefers: pick(m.Rand, "first", "first", "last", ""), PreStart: m.Intn(3) == 0}
	of.Fails = m.Intn(12) == 0
	m.add(step{Connect: of})
}

func (m *maker) list(name string) {
	list := &listOf{Resource: name, Devices: []deviceOf{}}
	vanishing, ailing := pick(m.Rand, 0, 0, 0, 4), pick(m.Rand, 0, 0, 5)
	for _, of := range m.devices[name] {
		if vanishing > 0 && m.Intn(vanishing) == 0 {
			continue
		}
		of.Sick = ailing > 0 && m.Intn(ailing) == 0
		list.Devices = append(list.Devices, of)
	}
	m.add(step{List: list})
}

func (m *maker) step(uid string) {
	name := pick(m.Rand, resources...)
	switch m.Intn(16) {
	case 0:
		m.connect(name)
	case 1, 2:
		if !m.connected[name] {
			m.connect(name)
		}
		m.list(name)
	case 3:
		if m.connected[name] {
			m.connected[name] = false
			m.add(step{Disconnect: name})
		}
	case 4, 5:
		if len(m.pods) > 0 {
			at := m.Intn(len(m.pods))
			m.add(step{End: m.pods[at].UID})
			m.pods = slices.Delete(slices.Clone(m.pods), at, at+1)
		}
	case 6, 7, 8:
		if len(m.pods) > 0 {
			pod := pick(m.Rand, m.pods...)
			m.add(step{Start: &startOf{UID: pod.UID, Container: pick(m.Rand, pod.Containers...).Name}})
		}
	case 9:
		m.restart()
	default:
		pod := m.makeUpPod(uid)
		m.pods = append(m.pods, pod)
		m.add(step{Admit: pod})
	}
}

func (m *maker) restart() {
	restart := step{Restart: true}
	for _, pod := range m.pods {
		for _, of := range pod.Containers {
			if m.Intn(2) == 0 {
				restart.Running = append(restart.Running, pod.UID+"/"+of.Name)
			}
		}
	}
	m.add(restart)
	for _, name := range resources {
		m.connected[name] = false
		if m.Intn(2) == 0 {
			m.connect(name)
			if m.Intn(4) > 0 {
				m.list(name)
			}
		}
	}
	m.add(step{Readmit: true})
}

func (m *maker) makeUpPod(uid string) *podOf {
	p := &podOf{UID: uid}
	count, apps := 1+m.Intn(4), 0
	for i := range count {
		of := containerOf{Name: fmt.Sprintf("c%d", i), Kind: "a", Limits: map[string]int64{}}
		if i < count-1 && apps == 0 {
			of.Kind = pick(m.Rand, "a", "i", "i", "s")
		}
		if of.Kind == "a" {
			apps++
		}
		for _, name := range resources {
			if m.Intn(2) == 0 {
				of.Limits[name] = int64(pick(m.Rand, 0, 1, 1, 1, 2, 2, 3))
			}
		}
		p.Containers = append(p.Containers, of)
	}
	return p
}
