package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

type pod struct {
	API    string    `json:"apiVersion,omitempty"`
	Kind   string    `json:"kind,omitempty"`
	Meta   meta      `json:"metadata"`
	Spec   podSpec   `json:"spec"`
	Status podStatus `json:"status,omitzero"`
}

type podSpec struct {
	Restart     string      `json:"restartPolicy"`
	Runtime     string      `json:"runtimeClassName,omitempty"`
	Token       *bool       `json:"automountServiceAccountToken"`
	Links       *bool       `json:"enableServiceLinks"`
	Grace       *int64      `json:"terminationGracePeriodSeconds"`
	Deadline    int64       `json:"activeDeadlineSeconds,omitempty"`
	Hostname    string      `json:"hostname,omitempty"`
	Node        string      `json:"nodeName,omitempty"`
	HostNetwork bool        `json:"hostNetwork,omitempty"`
	HostPID     bool        `json:"hostPID,omitempty"`
	HostIPC     bool        `json:"hostIPC,omitempty"`
	Containers  []container `json:"containers"`
	Gates       []any       `json:"readinessGates,omitempty"`
}

type container struct {
	Name      string                       `json:"name"`
	Image     string                       `json:"image"`
	Pull      string                       `json:"imagePullPolicy"`
	Command   []string                     `json:"command"`
	Dir       string                       `json:"workingDir"`
	Resources map[string]map[string]string `json:"resources,omitempty"`
	Security  security                     `json:"securityContext"`
}

// security is what a container may do.
type security struct {
	Privileged bool  `json:"privileged"`
	Escalation bool  `json:"allowPrivilegeEscalation"`
	User       int64 `json:"runAsUser"`
	Group      int64 `json:"runAsGroup"`
	Seccomp    struct {
		Type string `json:"type"`
	} `json:"seccompProfile"`
	Capabilities struct {
		Add  []string `json:"add"`
		Drop []string `json:"drop"`
	} `json:"capabilities"`
}

type podStatus struct {
	Phase      string      `json:"phase"`
	Reason     string      `json:"reason"`
	Message    string      `json:"message"`
	Conditions []condition `json:"conditions"`
	PodIPs     []address   `json:"podIPs,omitempty"`
	HostIPs    []address   `json:"hostIPs,omitempty"`
	HostIP     string      `json:"hostIP,omitempty"` // the only one of older API servers
	Containers []struct {
		Name  string `json:"name"`
		State struct {
			Waiting    *cause `json:"waiting"`
			Terminated *cause `json:"terminated"`
		} `json:"state"`
	} `json:"containerStatuses"`
}

type address struct {
	IP string `json:"ip"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (c cause) String() string {
	if c.Message == "" {
		return c.Reason
	}
	return c.Reason + ": " + c.Message
}

// mainName is the name of the container of a sandbox. Others may be added by the
// cluster.
const mainName = "sandbox"

// entry is the first process of a container. It reaps orphans, and ends at once
// when it is told to. With the status 0, a pod that is evicted would have
// succeeded, without a reason.
const entry = `trap 'exit 143' TERM
while :; do
	sleep 86400 &
	wait $!
	case $? in 126|127) exit 70 ;; esac
done`

// capabilities are those of Docker's default set without AUDIT_WRITE, MKNOD,
// NET_RAW, SETFCAP and SETPCAP.
var capabilities = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT"}

// slack is how much later than Atoll the cluster ends a pod.
const slack = 30 * time.Second

// newPod returns the pod of a sandbox.
func newPod(scope, try, image, runtime string, spec *sandbox.Spec) *pod {
	c := container{Name: mainName, Image: image, Pull: "IfNotPresent", Command: []string{"/bin/sh", "-c", entry}, Dir: "/", Resources: limits(spec.Resources)}
	c.Security.Seccomp.Type = "RuntimeDefault"
	c.Security.Capabilities.Add, c.Security.Capabilities.Drop = capabilities, []string{"ALL"}
	p := &pod{API: "v1", Kind: "Pod", Meta: meta{Name: podName(scope, spec.ID), Labels: labels(scope, try, spec)}, Spec: podSpec{
		Restart: "Never", Runtime: runtime, Token: new(bool), Links: new(bool), Grace: new(int64), Containers: []container{c},
	}}
	*p.Spec.Grace = 2
	if life := spec.Lifetime.HardTimeout(); life > 0 {
		p.Spec.Deadline = min(hosted.Seconds(life+slack), math.MaxInt32)
	}
	if usableName.MatchString(spec.Hostname) {
		p.Spec.Hostname = spec.Hostname
	}
	text, _ := json.Marshal(spec.Labels) // only strings
	p.Meta.Annotations = map[string]string{noteLabels: string(text)}
	return p
}

var (
	usablePool  = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	usableName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	usableLabel = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

// labels returns the labels of a pod: its marks, and those of the sandbox's that
// Kubernetes accepts.
func labels(scope, try string, spec *sandbox.Spec) map[string]string {
	all := map[string]string{managedBy: managerName, labelScope: scope, labelID: string(spec.ID), labelTry: try}
	for k, v := range spec.Labels {
		if usableLabel.MatchString(k) && (v == "" || usableLabel.MatchString(v)) {
			all[labelUser+k] = v
		}
	}
	return all
}

// limits returns the resources of a container. Memory is reserved, and so is a
// tenth of a processor at most, because most sandboxes wait most of the time.
func limits(r sandbox.Resources) map[string]map[string]string {
	most, least := map[string]string{}, map[string]string{}
	if r.CPUs > 0 {
		milli := max(1, int64(r.CPUs*1000))
		most["cpu"], least["cpu"] = strconv.FormatInt(milli, 10)+"m", strconv.FormatInt(min(milli, 100), 10)+"m"
	}
	if r.Memory > 0 {
		most["memory"] = strconv.FormatInt(r.Memory, 10)
	}
	if r.Disk > 0 {
		most["ephemeral-storage"] = strconv.FormatInt(r.Disk, 10)
	}
	if len(most) == 0 {
		return nil
	}
	return map[string]map[string]string{"limits": most, "requests": least} // a limit without a request is also that
}

// main returns the container of the sandbox, or an empty one.
func (p *pod) main() container {
	for _, c := range p.Spec.Containers {
		if c.Name == mainName {
			return c
		}
	}
	return container{}
}

// state returns the phase of a pod as Kubernetes names it, and the state that this means.
func (p *pod) state() (word string, state sandbox.State, why string) {
	s := &p.Status
	why = cause{s.Reason, s.Message}.String()
	for _, c := range s.Containers {
		if t := c.State.Terminated; c.Name == mainName && t != nil && why == "" {
			why = t.String()
		}
	}
	switch {
	case p.Meta.Deleted != nil:
		return "Terminating", sandbox.Lost, "its pod is being ended"
	case s.Phase == "Running" && p.deserted():
		return "NodeLost", sandbox.Lost, "its node " + p.Spec.Node + " does not answer the cluster"
	case s.Phase == "Running" || s.Phase == "Pending":
		return s.Phase, sandbox.Running, ""
	case s.Phase == "Succeeded" || s.Phase == "Failed":
		return s.Phase, sandbox.Failed, cmp.Or(why, "its pod has ended")
	}
	return s.Phase, sandbox.Lost, "" // "Unknown", and those of later versions
}

// waits returns the phase of a pod that does not run yet, and what it waits for, if
// it says so.
func (p *pod) waits() string {
	word, _, _ := p.state()
	if status, reason, message := p.condition("PodScheduled"); status == "False" {
		return word + ": " + cause{reason, message}.String()
	}
	for _, c := range p.Status.Containers {
		if w := c.State.Waiting; c.Name == mainName && w != nil {
			return word + ": " + w.String()
		}
	}
	return word
}

func (p *pod) condition(kind string) (status, reason, message string) {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status, c.Reason, c.Message
		}
	}
	return "", "", ""
}

// deserted reports whether the cluster lost the node: it then changes only this
// condition of the pod.
func (p *pod) deserted() bool {
	ready, _, _ := p.condition("Ready")
	containers, _, _ := p.condition("ContainersReady")
	return ready == "False" && containers == "True" && len(p.Spec.Gates) == 0
}

// describe converts a pod.
func (p *pod) describe() hosted.Sandbox {
	if p.Meta.UID == "" {
		return hosted.Sandbox{}
	}
	b := hosted.Sandbox{ID: p.Meta.sandboxID(), Sandbox: sandbox.ID(p.Meta.Labels[labelID]), Scope: p.Meta.Labels[labelScope], Created: p.Meta.Created}
	b.Status, b.State, b.Why = p.state()
	if text, ok := p.Meta.Annotations[noteLabels]; ok && json.Unmarshal([]byte(text), &b.Labels) == nil && b.Labels == nil {
		b.Labels = map[string]string{}
	}
	return b
}

// unplaced is how long a pod may wait for a node that has room.
var unplaced = time.Minute

// started reports whether a new pod runs, or why it never will.
func (p *pod) started(asked time.Time) (bool, error) {
	image := p.main().Image
	fail := func(code sandbox.Code, subject, message, hint string) (bool, error) {
		return false, &sandbox.Error{Code: code, Op: "kubernetes.create", Subject: subject, Message: message, Hint: hint}
	}
	if status, reason, message := p.condition("PodScheduled"); status == "False" && reason == "Unschedulable" && time.Since(asked) > unplaced {
		return fail(sandbox.CodeExhausted, "nodes", "no node has room for the sandbox: "+message, "remove sandboxes, ask for less, or add a node")
	}
	for _, c := range p.Status.Containers {
		if c.Name != mainName {
			continue
		}
		if w := c.State.Waiting; w != nil {
			switch w.Reason {
			case "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError":
				return fail(sandbox.CodeNotFound, image, "the node cannot get the image: "+w.Message, "check its name, and that the cluster's nodes reach its registry")
			case "CreateContainerConfigError", "CreateContainerError":
				return fail(sandbox.CodeUnavailable, image, "the node cannot start the container: "+w.Message, "")
			}
		}
		if t := c.State.Terminated; t != nil && strings.Contains(t.Message, "/bin/sh") {
			return fail(sandbox.CodeUnsupported, image, "the image has no /bin/sh: "+t.Message, "use an image with a shell, such as debian:12")
		}
	}
	switch word, state, why := p.state(); {
	case state == sandbox.Running:
		return word == "Running", nil
	case state == sandbox.Failed:
		return fail(sandbox.CodeUnavailable, p.Meta.Name, "the new pod has ended: "+why, "the image needs /bin/sh and sleep")
	default:
		return fail(sandbox.CodeUnavailable, p.Meta.Name, "the new pod cannot be used: "+cmp.Or(why, word), "")
	}
}

// confirm checks that the cluster made the pod as it was requested: its admission
// may change pods.
func (p *pod) confirm(want *pod, how way) error {
	differs := func(what string) error {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "kubernetes.create", Subject: p.Meta.Name, Message: "the cluster changed the pod: " + what, Hint: "see its admission webhooks and policies",
		}
	}
	now, asked := p.main(), want.main()
	switch {
	case p.Spec.Runtime != want.Spec.Runtime:
		return differs("its RuntimeClass is " + strconv.Quote(p.Spec.Runtime))
	case p.Spec.HostNetwork || p.Spec.HostPID || p.Spec.HostIPC || now.Security.Privileged || now.Security.Escalation || p.Spec.Token == nil || *p.Spec.Token:
		return differs("it may do more than it was to")
	case now.Image != asked.Image:
		return differs("its image is " + now.Image)
	case p.Meta.Labels[labelTry] != want.Meta.Labels[labelTry]:
		return differs("it has lost the label that its NetworkPolicy needs")
	case p.Spec.Deadline != want.Spec.Deadline && (how != claimed || p.Spec.Deadline != 0): // a claim has the lifetime
		return differs("its lifetime is another")
	}
	for name, quantity := range asked.Resources["limits"] {
		if got := now.Resources["limits"][name]; !sameQuantity(got, quantity) {
			return differs(fmt.Sprintf("its limit of %s is %q", name, got))
		}
	}
	return nil
}

// sameQuantity compares quantities, which the API server writes in its own way.
func sameQuantity(a, b string) bool {
	x, ok1 := quantity(a)
	y, ok2 := quantity(b)
	return ok1 && ok2 && x == y
}

var suffixes = map[string]float64{
	"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}

func quantity(text string) (float64, bool) {
	number := strings.TrimRight(text, "mkMGTPi")
	n, err := strconv.ParseFloat(number, 64)
	by, ok := suffixes[text[len(number):]]
	return n * by, err == nil && ok
}

// policy is a NetworkPolicy.
type policy struct {
	API  string     `json:"apiVersion,omitempty"`
	Kind string     `json:"kind,omitempty"`
	Meta meta       `json:"metadata"`
	Spec policySpec `json:"spec"`
}

type policySpec struct {
	Pods struct {
		Labels map[string]string `json:"matchLabels"`
	} `json:"podSelector"`
	Egress []egressRule `json:"egress,omitempty"` // empty: nothing
	Types  []string     `json:"policyTypes"`
}

type egressRule struct {
	Ports []port `json:"ports,omitempty"` // empty: all
	To    []peer `json:"to,omitempty"`    // empty: everything
}

type peer struct {
	Block     *ipBlock  `json:"ipBlock,omitempty"`
	Pod       *selector `json:"podSelector,omitempty"`
	Namespace *selector `json:"namespaceSelector,omitempty"`
}

type ipBlock struct {
	CIDR string `json:"cidr"`
}

type selector struct {
	Labels map[string]string `json:"matchLabels"`
}

func block(p netip.Prefix) peer { return peer{Block: &ipBlock{p.Masked().String()}} }

type port struct {
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	End      uint16 `json:"endPort,omitempty"`
}

const (
	networking  = "networking.k8s.io/v1"
	policies    = "networkpolicies"
	policyKinds = "networkpolicies.networking.k8s.io" // as errors name them
	domain      = 53                                  // the port of DNS
)

// newPolicy returns the policy of a pod. Nobody connects to it: Atoll's
// connections come from the node. As with Atoll's gateway, only TCP leaves it,
// but a rule for port 53 alone is one for DNS, which needs UDP, too.
func newPolicy(p *pod, rules *sandbox.EgressRules) *policy {
	n := &policy{API: networking, Kind: "NetworkPolicy", Meta: meta{Name: p.Meta.Name, Labels: maps.Clone(p.Meta.Labels)}}
	n.Spec.Pods.Labels, n.Spec.Types = map[string]string{labelTry: p.Meta.Labels[labelTry]}, []string{"Ingress", "Egress"}
	if rules == nil {
		return n
	}
	if rules.Open {
		n.Spec.Egress = []egressRule{{}}
		return n
	}
	for _, t := range rules.Allow {
		r := egressRule{To: []peer{block(t.Prefix)}}
		ranges := t.Ports
		if ranges == nil {
			ranges = []sandbox.PortRange{{Low: 1, High: math.MaxUint16}}
		}
		for _, x := range ranges {
			r.Ports = append(r.Ports, portOf("TCP", x))
			if x.Low == domain && x.High == domain {
				r.Ports = append(r.Ports, portOf("UDP", x))
			}
		}
		n.Spec.Egress = append(n.Spec.Egress, r)
	}
	return n
}

func portOf(protocol string, r sandbox.PortRange) port {
	p := port{Protocol: protocol, Port: max(1, r.Low)}
	if r.High > p.Port {
		p.End = r.High
	}
	return p
}

// limit makes the policy of a pod that does not exist yet. One that an earlier
// attempt left is replaced.
func (a *api) limit(ctx context.Context, want *policy) error {
	name, now := want.Meta.Name, policy{}
	err := a.Call(ctx, http.MethodPost, a.path(networking, policies, ""), want, &now)
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		if err = a.unlimit(ctx, name, want.Meta.Labels[labelID]); err == nil {
			err = a.Call(ctx, http.MethodPost, a.path(networking, policies, ""), want, &now)
		}
	}
	if err != nil && !hosted.Refused(err) { // whether it was made is not known
		err = a.Call(ctx, http.MethodGet, a.path(networking, policies, name), nil, &now)
	}
	if err != nil {
		return explain(err, "network")
	}
	got, err1 := json.Marshal(now.Spec)
	asked, err2 := json.Marshal(want.Spec)
	if err1 != nil || err2 != nil || string(got) != string(asked) || now.Meta.Name != name {
		return a.ProtocolError("the API server does not confirm the NetworkPolicy")
	}
	return nil
}

// unlimit removes the policy of a sandbox, and no other with its name.
func (a *api) unlimit(ctx context.Context, name, id string) error {
	var now policy
	err := a.Call(ctx, http.MethodGet, a.path(networking, policies, name), nil, &now)
	if err == nil && now.Meta.Labels[labelID] != id {
		return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "kubernetes.create", Subject: name, Message: "somebody else has a NetworkPolicy with this name"}
	}
	if err == nil {
		err = a.Call(ctx, http.MethodDelete, a.path(networking, policies, name), map[string]any{"preconditions": map[string]string{"uid": now.Meta.UID}}, nil)
	}
	if missing(err, policyKinds, name) {
		return nil
	}
	return err
}

// Clear implements hosted.Clearer: it removes the policy of a sandbox that has
// ended, and the object of one that got no pod.
func (a *api) Clear(ctx context.Context, id sandbox.ID, _ bool) error {
	b, err := a.sandboxOf(id)
	if err != nil {
		return err
	}
	p, err := a.pod(ctx, b.name)
	if err == nil && p.Meta.Labels[labelID] == string(id) {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: string(id), Message: "its pod still exists"}
	}
	if err == nil || err == hosted.ErrNone {
		err = a.leftover(ctx, b.own(), id)
	}
	if err != nil || !a.policed {
		return err
	}
	if err := a.forget(id); err != nil {
		return err
	}
	err = a.unlimit(ctx, b.own(), string(id))
	if sandbox.CodeOf(err) == sandbox.CodeAlreadyExists {
		return nil
	}
	return err
}
