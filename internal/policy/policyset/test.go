package policyset

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// Test is a request with the expected answer, from a policy file.
type Test struct {
	Name string
	Request
	// URL is a network request, as METHOD URL or only URL. The limits decide
	// about it.
	URL  string
	Want string // "allow" or "deny"
	Rule string // the rule that refuses it, as POLICY.FIELD; empty for any
	File string
	Line int
}

// Result is the outcome of a test.
type Result struct {
	Name   string `json:"name"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Passed bool   `json:"passed"`
	Got    string `json:"got"` // the decision, and the rule that made it
}

func (d *document) test(n *yaml.Node) error {
	t := Test{File: d.file, Line: n.Line}
	var image, mode string
	var secrets, mounts []string
	var cpus *float64
	var memory, disk, pids *int64
	err := d.fields(n, nil, map[string]func(*yaml.Node) error{
		"name": into(d, &t.Name), "want": into(d, &t.Want), "rule": into(d, &t.Rule), "tenant": into(d, &t.Tenant),
		"labels": func(n *yaml.Node) error { return into(d, &t.Labels)(n) },
		"cpus":   pointer(d, &cpus, number[float64]), "memory": pointer(d, &memory, size), "disk": pointer(d, &disk, size), "pids": pointer(d, &pids, number[int64]),
		"lifetime": func(n *yaml.Node) (err error) {
			if t.Lifetime, err = duration(n.Value); err != nil {
				return d.fail(n, "%q is not a duration such as 1h", clip(n.Value))
			}
			return nil
		},
		"isolation": into(d, &t.Isolation),
		"image":     into(d, &image), "signedBy": d.strings(&t.assumed), "mounts": d.strings(&mounts), "network": into(d, &t.Network), "url": into(d, &t.URL),
		"secrets": d.strings(&secrets), "secretMode": into(d, &mode),
	})
	if err != nil {
		return err
	}
	if t.Want != "allow" && t.Want != "deny" {
		return d.fail(n, "a test wants allow or deny")
	}
	if !t.Isolation.Valid() {
		return d.fail(n, "%q is not one of none, kernel and hardware", clip(string(t.Isolation)))
	}
	take(&t.Resources.CPUs, cpus)
	take(&t.Resources.Memory, memory)
	take(&t.Resources.Disk, disk)
	take(&t.Resources.PIDs, pids)
	if image != "" {
		t.Images = []string{image}
	}
	for _, m := range mounts {
		source, readOnly := strings.CutSuffix(m, ":ro")
		t.Mounts = append(t.Mounts, sandbox.Mount{Source: source, ReadOnly: readOnly})
	}
	for _, s := range secrets {
		t.Secrets = append(t.Secrets, Grant{s, sandbox.SecretMode(mode)})
	}
	d.tests = append(d.tests, t)
	return nil
}

func take[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// Run runs the tests in the policy files.
func (set *Set) Run() []Result {
	out := make([]Result, 0, len(set.tests))
	for _, t := range set.tests {
		out = append(out, set.run(t))
	}
	return out
}

// run decides about one request as at the creation of a sandbox: limits it
// leaves open are filled in.
func (set *Set) run(t Test) Result {
	r := Result{Name: t.Name, File: t.File, Line: t.Line, Got: "allow"}
	t.Complete(set.Caps(t.About), sandbox.Resources{})
	err := set.Check(t.Request)
	rule := ""
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		rule, r.Got = e.Rule, "deny: "+e.Error()
	}
	if err == nil && t.URL != "" {
		allowed, why, ceilErr := set.reach(t)
		if err = ceilErr; err == nil && !allowed {
			err, r.Got, rule = errUnreachable, "deny: "+why, set.egressLimitOf(t.About)
		} else if err != nil {
			r.Got = "error: " + err.Error()
		}
	}
	r.Passed = t.Want == "allow" && err == nil || t.Want == "deny" && err != nil && !strings.HasPrefix(r.Got, "error") && (t.Rule == "" || t.Rule == rule)
	if t.Name == "" {
		r.Name = fmt.Sprintf("%s:%d", t.File, t.Line)
	}
	return r
}

var errUnreachable = &sandbox.Error{Code: sandbox.CodeDenied, Subject: "egress"}

// reach decides with the limits alone.
func (set *Set) reach(t Test) (allowed bool, why string, err error) {
	method, target, both := strings.Cut(t.URL, " ")
	if !both {
		method, target = "GET", t.URL
	}
	p, err := policy.Compile(sandbox.Profile{Default: sandbox.Allow}, policy.Options{EgressLimits: set.EgressLimits(t.About)})
	if err != nil {
		return false, "", err
	}
	e, err := p.Explain(method, target)
	return e.Allow, e.Message, err
}

// egressLimitOf returns the name of the limit, if there is exactly one.
func (set *Set) egressLimitOf(a About) string {
	c := set.EgressLimits(a)
	if len(c) != 1 {
		return ""
	}
	return c[0].Name + ".egress"
}
