// Command claims makes up DRA drivers, claims and pods and records how the upstream kubelet's DRA manager prepares and unprepares them
// (docs/internals/testing.md, "Records of upstream"). Upstream's manager is used as it is; the drivers answer over gRPC by a script.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra/state"
)

const (
	checkpointFile = "dra_manager_state"
	healthFile     = "dra_health_state"
	// runs is the number of times that each course is taken: the course ends where upstream's random order shows.
	runs = 8
	// timeoutSeconds of health reports is longer than a course.
	timeoutSeconds = 36000
)

// driver is a DRA driver on a socket. All courses use the same drivers.
type driver struct {
	drapb.UnimplementedDRAPluginServer
	healthapi.UnimplementedDRAResourceHealthServer
	name, endpoint string
	mutex          sync.Mutex
	node           *node
	mode           string
	// reports go to the last stream.
	reports chan *healthapi.NodeWatchResourcesResponse
	marks   int
}

func (d *driver) serve() {
	listener, err := net.Listen("unix", d.endpoint)
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	drapb.RegisterDRAPluginServer(server, d)
	healthapi.RegisterDRAResourceHealthServer(server, d)
	go func() { panic(server.Serve(listener)) }()
}

// called records the call. The answer is the claims that get a result.
func (d *driver) called(method string, claims []*drapb.Claim) ([]string, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	var uids []string
	for _, claim := range claims {
		uids = append(uids, claim.Uid)
	}
	sort.Strings(uids)
	d.node.calls = append(d.node.calls, method+" "+d.name+" "+strings.Join(uids, ","))
	switch d.mode {
	case "rpc":
		return nil, status.Error(codes.Internal, "scripted")
	case "skip":
		uids = uids[1:]
	case "foreign":
		uids = append(uids, "foreign")
	}
	return uids, nil
}

// fails is the error of one claim's result.
func (d *driver) fails(uids []string, uid string) string {
	if d.mode == "result" && uid == uids[0] {
		return "scripted for " + uid
	}
	return ""
}

func (d *driver) NodePrepareResources(_ context.Context, request *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	uids, err := d.called("prepare", request.Claims)
	response := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for _, uid := range uids {
		result := &drapb.NodePrepareResourceResponse{Error: d.fails(uids, uid)}
		if result.Error == "" {
			for _, of := range d.node.results[uid] {
				if of.Driver != d.name {
					continue
				}
				device := &drapb.Device{PoolName: poolName, DeviceName: of.Device, RequestNames: of.Requests, CdiDeviceIds: of.CDI}
				if of.Share != "" {
					device.ShareId = &of.Share
				}
				result.Devices = append(result.Devices, device)
			}
		}
		response.Claims[uid] = result
	}
	return response, err
}

func (d *driver) NodeUnprepareResources(_ context.Context, request *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	uids, err := d.called("unprepare", request.Claims)
	response := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	for _, uid := range uids {
		response.Claims[uid] = &drapb.NodeUnprepareResourceResponse{Error: d.fails(uids, uid)}
	}
	return response, err
}

// NodeWatchResources sends the reports of the steps. The first report shows that upstream listens.
func (d *driver) NodeWatchResources(_ *healthapi.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[healthapi.NodeWatchResourcesResponse]) error {
	d.mutex.Lock()
	reports := make(chan *healthapi.NodeWatchResourcesResponse, 1)
	d.reports = reports
	reports <- d.report()
	d.mutex.Unlock()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case report, open := <-reports:
			if !open {
				return nil
			}
			if err := stream.Send(report); err != nil {
				return nil
			}
		}
	}
}

// report has one more device, whose message shows in upstream's file that the report was processed.
func (d *driver) report(devices ...*healthapi.DeviceHealth) *healthapi.NodeWatchResourcesResponse {
	d.marks++
	return &healthapi.NodeWatchResourcesResponse{Devices: append(devices, health("mark", healthapi.HealthStatus_UNKNOWN, d.mark()))}
}

func (d *driver) mark() string { return fmt.Sprintf("%s-mark-%d.", d.name, d.marks) }

func health(device string, of healthapi.HealthStatus, message string) *healthapi.DeviceHealth {
	id := &healthapi.DeviceIdentifier{PoolName: poolName, DeviceName: device}
	return &healthapi.DeviceHealth{Device: id, Health: of, HealthCheckTimeoutSeconds: timeoutSeconds, Message: message}
}

// node is the kubelet's part of a course.
type node struct {
	dir     string
	drivers map[string]*driver
	client  *fake.Clientset
	manager *dra.Manager
	// managers of the course, the last one is the current one.
	managers []*dra.Manager
	cancels  []context.CancelFunc
	claims   map[string]*claimOf
	// results of claims by UID, also of claims that are gone.
	results map[string][]resultOf
	pods    map[string]*podOf
	calls   []string
}

func newNode(root string, drivers map[string]*driver) *node {
	dir, err := os.MkdirTemp(root, "node")
	if err != nil {
		panic(err)
	}
	n := &node{dir: dir, drivers: drivers, client: &fake.Clientset{}, claims: map[string]*claimOf{}, results: map[string][]resultOf{}, pods: map[string]*podOf{}}
	n.client.AddReactor("get", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.GetAction).GetName()
		claim := n.claims[name]
		if claim == nil {
			return true, nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
		}
		return true, claim.object(), nil
	})
	for _, driver := range drivers {
		driver.node = n
	}
	n.start()
	return n
}

// start builds the manager over the directory, as a kubelet that starts.
func (n *node) start() {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	manager, err := dra.NewManager(logr.Discard(), n.client, n.dir)
	if err != nil {
		panic(err)
	}
	getNode := func(context.Context) (*v1.Node, error) {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, nil
	}
	if err := manager.Start(ctx, func() []*v1.Pod { return nil }, getNode, nil); err != nil {
		panic(err)
	}
	n.manager, n.managers, n.cancels = manager, append(n.managers, manager), append(n.cancels, cancel)
}

// stop ends all managers of the course and their connections. A manager before a restart lives until then, because upstream forgets the
// health of devices when it ends a stream in peace.
func (n *node) stop() {
	for i, manager := range n.managers {
		n.cancels[i]()
		for _, d := range n.drivers {
			manager.GetWatcherHandler().DeRegisterPlugin(d.name, d.endpoint)
		}
	}
}

// healthFile has a text.
func (n *node) healthFile(text string) bool {
	bytes, err := os.ReadFile(filepath.Join(n.dir, healthFile))
	return err == nil && strings.Contains(string(bytes), text)
}

func await(what string, is func() bool) {
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			panic("no " + what)
		}
	}
}

// listens waits until upstream has processed the last report of the driver.
func (n *node) listens(d *driver) {
	await("report of "+d.name, func() bool {
		d.mutex.Lock()
		defer d.mutex.Unlock()
		return d.marks > 0 && n.healthFile(d.mark())
	})
}

func (n *node) register(d *driver) error {
	d.mutex.Lock()
	d.marks += 1000
	d.mutex.Unlock()
	err := n.manager.GetWatcherHandler().RegisterPlugin(d.name, d.endpoint, []string{"v1.DRAPlugin"}, nil)
	if err == nil {
		n.listens(d)
	}
	return err
}

// forgets waits until upstream has forgotten the health of the driver's devices.
func (n *node) forgets(d *driver) {
	await("end of "+d.name, func() bool { return !n.healthFile(d.name + "-mark-") })
}

func (n *node) health(of *healthOf) {
	d := n.drivers[of.Driver]
	d.mutex.Lock()
	if of.Ends {
		close(d.reports)
		d.mutex.Unlock()
		n.forgets(d)
		return
	}
	d.reports <- d.report(health(of.Device, healthapi.HealthStatus(of.Health), of.Message))
	d.mutex.Unlock()
	n.listens(d)
}

// state is all that the manager shows, as one text that does not depend on the order of maps.
func (n *node) state() string {
	var out strings.Builder
	for _, uid := range sorted(n.pods) {
		pod := n.pods[uid].pod()
		fmt.Fprintf(&out, "%s %v\n", uid, n.manager.PodMightNeedToUnprepareResources(types.UID(uid)))
		shown := v1.PodStatus{}
		for _, container := range pod.Spec.Containers {
			shown.ContainerStatuses = append(shown.ContainerStatuses, v1.ContainerStatus{Name: container.Name})
		}
		n.manager.UpdateAllocatedResourcesStatus(pod, &shown)
		for i := range pod.Spec.Containers {
			fmt.Fprintf(&out, "%s/%s %s\n", uid, pod.Spec.Containers[i].Name, n.devices(pod, &pod.Spec.Containers[i]))
			fmt.Fprintf(&out, "%s", entries(shown.ContainerStatuses[i].AllocatedResourcesStatus))
		}
	}
	fmt.Fprintf(&out, "file %s\n", n.file())
	return out.String()
}

// devices are the CDI devices of a container, each once. Of several missing claims upstream names any: here it is none.
func (n *node) devices(pod *v1.Pod, container *v1.Container) string {
	info, err := n.manager.GetResources(pod, container)
	if err != nil {
		return "missing"
	}
	var names []string
	for _, device := range info.CDIDevices {
		names = append(names, device.Name)
	}
	sort.Strings(names)
	return strings.Join(slices.Compact(names), ",")
}

func entries(of []v1.ResourceStatus) string {
	var lines []string
	for _, entry := range of {
		for _, device := range entry.Resources {
			line := fmt.Sprintf("%s %s=%s", entry.Name, device.ResourceID, device.Health)
			if device.Message != nil {
				line += " " + *device.Message
			}
			lines = append(lines, line+"\n")
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "")
}

// file is upstream's checkpoint with sorted claims, written by upstream. Upstream doubles the devices of a claim that is prepared again:
// here each comes once.
func (n *node) file() string {
	bytes, err := os.ReadFile(filepath.Join(n.dir, checkpointFile))
	if err != nil {
		panic(err)
	}
	read := &state.Checkpoint{}
	if err := read.UnmarshalCheckpoint(bytes); err != nil {
		panic(err)
	}
	claims, err := read.GetClaimInfoStateList()
	if err != nil {
		panic(err)
	}
	slices.SortFunc(claims, func(a, b state.ClaimInfoState) int { return strings.Compare(a.ClaimName, b.ClaimName) })
	for _, claim := range claims {
		for name, of := range claim.DriverState {
			claim.DriverState[name] = state.DriverState{Devices: once(of.Devices)}
		}
	}
	if claims == nil {
		// Upstream empties the list whenever a pod ends, also one without claims.
		claims = state.ClaimInfoStateList{}
	}
	written, err := state.NewCheckpoint(claims)
	if err != nil {
		panic(err)
	}
	bytes, err = written.MarshalCheckpoint()
	if err != nil {
		panic(err)
	}
	return string(bytes)
}

func once(devices []state.Device) []state.Device {
	var kept []state.Device
	for _, device := range devices {
		if !slices.ContainsFunc(kept, func(other state.Device) bool { return other.DeviceName == device.DeviceName }) {
			kept = append(kept, device)
		}
	}
	return kept
}

func sorted[K ~string, V any](of map[K]V) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, string(key))
	}
	sort.Strings(keys)
	return keys
}

// take takes one step.
func (n *node) take(step *step) {
	ctx := klog.NewContext(context.Background(), logr.Discard())
	n.calls = nil
	for name, driver := range n.drivers {
		driver.mutex.Lock()
		driver.mode = step.Modes[name]
		driver.mutex.Unlock()
	}
	var err error
	switch {
	case step.Register != "":
		err = n.register(n.drivers[step.Register])
	case step.Deregister != "":
		n.manager.GetWatcherHandler().DeRegisterPlugin(step.Deregister, n.drivers[step.Deregister].endpoint)
		n.forgets(n.drivers[step.Deregister])
	case step.Claim != nil && step.Claim.Gone:
		delete(n.claims, step.Claim.Name)
	case step.Claim != nil:
		n.claims[step.Claim.Name] = step.Claim
		n.results[step.Claim.UID] = step.Claim.Results
	case step.Pod != nil:
		n.pods[step.Pod.UID] = step.Pod
	case step.Prepare != "":
		err = n.manager.PrepareResources(ctx, n.pods[step.Prepare].pod())
	case step.Unprepare != "":
		err = n.manager.UnprepareResources(ctx, n.pods[step.Unprepare].pod())
	case step.Health != nil:
		n.health(step.Health)
	case step.Restart:
		n.start()
	}
	if err != nil {
		step.Outcome = err.Error()
	}
	step.Calls = n.calls
	sort.Strings(step.Calls)
	step.text = n.state()
	hash := fnv.New32a()
	hash.Write([]byte(step.text))
	step.State = hash.Sum32()
}

// run takes the course through upstream's manager and records each outcome.
func run(c *course, root string, drivers map[string]*driver) {
	n := newNode(root, drivers)
	for i := range c.Steps {
		n.take(&c.Steps[i])
	}
	n.stop()
}

// settle takes a course several times and keeps the steps that always end in the same way.
func settle(seed int64, full bool, root string, drivers map[string]*driver) *course {
	var kept *course
	for range runs {
		c := makeUp(rand.New(rand.NewSource(seed)))
		run(c, root, drivers)
		if kept == nil {
			kept = c
			continue
		}
		same := 0
		for same < len(kept.Steps) && kept.Steps[same].equals(&c.Steps[same]) {
			same++
		}
		kept.Steps = kept.Steps[:same]
	}
	for i := range kept.Steps {
		if full {
			kept.Steps[i].Text = kept.Steps[i].text
		}
	}
	return kept
}

func main() {
	count := flag.Int("count", 823, "courses")
	seed := flag.Int64("seed", 1, "first seed")
	full := flag.Bool("full", false, "record the states as texts, too")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	root, err := os.MkdirTemp("", "claims")
	if err != nil {
		panic(err)
	}
	// Files of managers that are still ending are left to the next start of the machine.
	defer func() { _ = os.RemoveAll(root) }()
	drivers := map[string]*driver{}
	for _, name := range driverNames {
		drivers[name] = &driver{name: name, endpoint: filepath.Join(root, name)}
		drivers[name].serve()
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "[")
	for i := range *count {
		text, err := json.Marshal(settle(*seed+int64(i), *full, root, drivers))
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
