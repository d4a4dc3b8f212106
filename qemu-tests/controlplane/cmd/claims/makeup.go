package main

import (
	"fmt"
	"math/rand"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// resultOf is a result of an allocation, and the device with which the driver answers for it.
type resultOf struct {
	Driver   string   `json:"d"`
	Device   string   `json:"n"`
	Requests []string `json:"r,omitempty"`
	CDI      []string `json:"cdi,omitempty"`
	Share    string   `json:"share,omitempty"`
}

// claimOf is a ResourceClaim of the API server; Gone: it was deleted.
type claimOf struct {
	Name        string     `json:"n"`
	UID         string     `json:"uid"`
	Gone        bool       `json:"gone,omitempty"`
	Owner       string     `json:"owner,omitempty"`
	Reserved    []string   `json:"reserved"`
	Unallocated bool       `json:"unallocated,omitempty"`
	Results     []resultOf `json:"of,omitempty"`
}

// namedOf is an entry of spec.resourceClaims; the claim's name is the entry's name, too. Skipped: the status says that there is no claim.
type namedOf struct {
	Claim    string `json:"c"`
	Template bool   `json:"t,omitempty"`
	Skipped  bool   `json:"skipped,omitempty"`
}

type useOf struct {
	Claim   string `json:"c"`
	Request string `json:"r,omitempty"`
}

type containerOf struct {
	Name string  `json:"n"`
	Uses []useOf `json:"u"`
}

type podOf struct {
	UID        string        `json:"uid"`
	Claims     []namedOf     `json:"claims"`
	Containers []containerOf `json:"of"`
}

type healthOf struct {
	Driver  string `json:"d"`
	Device  string `json:"n,omitempty"`
	Health  int32  `json:"h,omitempty"`
	Message string `json:"m,omitempty"`
	// Ends: the stream ends.
	Ends bool `json:"ends,omitempty"`
}

// step is one of its first fields. Modes are the ways in which drivers fail in this step.
type step struct {
	Register   string            `json:"register,omitempty"`
	Deregister string            `json:"deregister,omitempty"`
	Claim      *claimOf          `json:"claim,omitempty"`
	Pod        *podOf            `json:"pod,omitempty"`
	Prepare    string            `json:"prepare,omitempty"`
	Unprepare  string            `json:"unprepare,omitempty"`
	Health     *healthOf         `json:"health,omitempty"`
	Restart    bool              `json:"restart,omitempty"`
	Modes      map[string]string `json:"modes,omitempty"`
	// Outcome is the error's text, empty if there is none.
	Outcome string   `json:"outcome,omitempty"`
	Calls   []string `json:"calls,omitempty"`
	State   uint32   `json:"state"`
	Text    string   `json:"text,omitempty"`
	text    string
}

func (s *step) equals(other *step) bool {
	return s.Outcome == other.Outcome && slices.Equal(s.Calls, other.Calls) && s.text == other.text
}

type course struct {
	Steps []step `json:"steps"`
}

// Drivers answer devices of one pool.
const (
	poolName  = "pool"
	namespace = "ns"
)

func (c *claimOf) object() *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: c.Name, UID: types.UID(c.UID)}}
	if c.Owner != "" {
		yes := true
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: c.Owner, UID: types.UID(c.Owner), Controller: &yes}}
	}
	for _, uid := range c.Reserved {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: uid, UID: types.UID(uid)})
	}
	if !c.Unallocated {
		claim.Status.Allocation = &resourceapi.AllocationResult{}
		for _, of := range c.Results {
			result := resourceapi.DeviceRequestAllocationResult{Driver: of.Driver, Pool: poolName, Device: of.Device, Request: "r"}
			claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, result)
		}
	}
	return claim
}

func (p *podOf) pod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod-" + p.UID, UID: types.UID(p.UID)}}
	for i := range p.Claims {
		of := &p.Claims[i]
		claim := v1.PodResourceClaim{Name: of.Claim}
		if of.Template {
			claim.ResourceClaimTemplateName = &of.Claim
			status := v1.PodResourceClaimStatus{Name: of.Claim}
			if !of.Skipped {
				status.ResourceClaimName = &of.Claim
			}
			pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, status)
		} else {
			claim.ResourceClaimName = &of.Claim
		}
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, claim)
	}
	for _, of := range p.Containers {
		container := v1.Container{Name: of.Name}
		for _, use := range of.Uses {
			container.Resources.Claims = append(container.Resources.Claims, v1.ResourceClaim{Name: use.Claim, Request: use.Request})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	return pod
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.Intn(len(of))] }

var (
	driverNames = []string{"a.io", "b.io", "c.io"}
	claimNames  = []string{"c0", "c1", "c2", "c3"}
	podUIDs     = []string{"p0", "p1", "p2", "p3", "p4"}
)

// maker makes up a course step by step.
type maker struct {
	*rand.Rand
	course     *course
	registered map[string]bool
	// silent drivers have ended their stream; upstream listens again after five seconds.
	silent map[string]bool
	claims map[string]*claimOf
	pods   map[string]*podOf
	// generation makes the UIDs of claims of one name differ.
	generation int
}

func makeUp(r *rand.Rand) *course {
	m := &maker{r, &course{}, map[string]bool{}, map[string]bool{}, map[string]*claimOf{}, map[string]*podOf{}, 0}
	for _, name := range driverNames {
		if m.Intn(8) > 0 {
			m.register(name)
		}
	}
	for _, name := range claimNames {
		if m.Intn(10) > 0 {
			m.makeUpClaim(name)
		}
	}
	for range 8 + m.Intn(16) {
		m.step()
	}
	return m.course
}

func (m *maker) add(of step) { m.course.Steps = append(m.course.Steps, of) }

func (m *maker) register(name string) {
	if !m.registered[name] {
		m.registered[name], m.silent[name] = true, false
		m.add(step{Register: name})
	}
}

func (m *maker) makeUpClaim(name string) {
	m.generation++
	of := &claimOf{Name: name, UID: fmt.Sprintf("%s-%d", name, m.generation), Reserved: []string{}}
	of.Unallocated = m.Intn(12) == 0
	if m.Intn(4) == 0 {
		of.Owner = pick(m.Rand, podUIDs...)
	}
	for _, uid := range podUIDs {
		if m.Intn(10) > 0 {
			of.Reserved = append(of.Reserved, uid)
		}
	}
	drivers := m.Perm(len(driverNames))[:pick(m.Rand, 0, 1, 1, 1, 1, 2, 2, 3)]
	for _, driver := range drivers {
		for i := range 1 + m.Intn(2) {
			device := fmt.Sprintf("%s%d", name, i)
			result := resultOf{Driver: driverNames[driver], Device: device, Requests: pick(m.Rand, nil, []string{"r0"}, []string{"r1"}, []string{"r0", "r1"})}
			for range pick(m.Rand, 0, 1, 1, 2) {
				result.CDI = append(result.CDI, fmt.Sprintf("%s/x=%s-%d", result.Driver, device, len(result.CDI)))
			}
			result.Share = pick(m.Rand, "", "", "", "share-"+device)
			of.Results = append(of.Results, result)
		}
	}
	m.claims[name] = of
	m.add(step{Claim: of})
}

func (m *maker) makeUpPod(uid string) *podOf {
	if pod := m.pods[uid]; pod != nil {
		return pod
	}
	pod := &podOf{UID: uid, Claims: []namedOf{}}
	for _, at := range m.Perm(len(claimNames))[:1+m.Intn(3)] {
		of := namedOf{Claim: claimNames[at]}
		if claim := m.claims[of.Claim]; claim != nil && (claim.Owner == uid || m.Intn(12) == 0) {
			of.Template = true
			of.Skipped = m.Intn(5) == 0
		}
		pod.Claims = append(pod.Claims, of)
	}
	for i := range 1 + m.Intn(2) {
		container := containerOf{Name: fmt.Sprintf("k%d", i), Uses: []useOf{}}
		for _, of := range pod.Claims {
			for range pick(m.Rand, 0, 1, 1, 2) {
				container.Uses = append(container.Uses, useOf{of.Claim, pick(m.Rand, "", "", "r0", "r1", "r1/s")})
			}
		}
		pod.Containers = append(pod.Containers, container)
	}
	m.pods[uid] = pod
	m.add(step{Pod: pod})
	return pod
}

func (m *maker) modes() map[string]string {
	if m.Intn(4) > 0 {
		return nil
	}
	return map[string]string{pick(m.Rand, driverNames...): pick(m.Rand, "rpc", "result", "foreign", "skip")}
}

func (m *maker) step() {
	driver := pick(m.Rand, driverNames...)
	switch m.Intn(20) {
	case 0:
		m.register(driver)
	case 1:
		if m.registered[driver] {
			m.registered[driver] = false
			m.add(step{Deregister: driver})
		}
	case 2:
		m.makeUpClaim(pick(m.Rand, claimNames...))
	case 3:
		if m.Intn(2) == 0 {
			m.add(step{Claim: &claimOf{Name: pick(m.Rand, claimNames...), Gone: true, Reserved: []string{}}})
		}
	case 4:
		m.restart()
	case 5, 6:
		m.health(driver)
	case 7, 8, 9, 10, 11:
		m.add(step{Unprepare: m.makeUpPod(pick(m.Rand, podUIDs...)).UID, Modes: m.modes()})
	default:
		m.add(step{Prepare: m.makeUpPod(pick(m.Rand, podUIDs...)).UID, Modes: m.modes()})
	}
}

func (m *maker) restart() {
	m.add(step{Restart: true})
	for _, name := range driverNames {
		m.registered[name] = false
		if m.Intn(6) > 0 {
			m.register(name)
		}
	}
}

func (m *maker) health(driver string) {
	if !m.registered[driver] || m.silent[driver] {
		return
	}
	of := &healthOf{Driver: driver, Ends: m.Intn(6) == 0}
	m.silent[driver] = of.Ends
	if !of.Ends {
		of.Device = pick(m.Rand, claimNames...) + pick(m.Rand, "0", "1")
		of.Health = pick(m.Rand, int32(0), 1, 1, 2)
		of.Message = pick(m.Rand, "", "", "hot")
	}
	m.add(step{Health: of})
}
