package drivertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// fakeHarness returns a harness for a fake that wrap may change.
func fakeHarness(t *testing.T, opts fake.Options, wrap func(driver.Provider) driver.Provider) Harness {
	opts.World, opts.SnapshotDir = &fake.World{}, t.TempDir()
	return Harness{
		SnapshotFiles: func(ref driver.SnapshotRef) string { return filepath.Join(opts.SnapshotDir, ref.Data, "files") },
		New: func(context.Context) (driver.Provider, error) {
			p := driver.Provider(fake.New(opts))
			if wrap != nil {
				p = wrap(p)
			}
			return p, nil
		},
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Echo: []string{"echod"},
	}
}

// passProvider and passInstance change nothing. Like any wrapper, they hide the
// optional interfaces of the wrapped value from a type assertion.
type passProvider struct{ driver.Provider }

func (p passProvider) Unwrap() any { return p.Provider }

func (p passProvider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	inst, err := p.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return passInstance{inst}, nil
}

func (p passProvider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	inst, err := p.Provider.Attach(ctx, id)
	if err != nil {
		return nil, err
	}
	return passInstance{inst}, nil
}

type passInstance struct{ driver.Instance }

func (p passInstance) Unwrap() any { return p.Instance }

func TestThroughWrapper(t *testing.T) {
	h := fakeHarness(t, fake.Options{}, func(p driver.Provider) driver.Provider { return passProvider{p} })
	h.Only = []string{"capabilities/", "probe/", "lifecycle/", "files/", "ports/", "pause/", "snapshot/", "restore/", "watch/", "leaks/"}
	Run(t, h)
}

// leftProbe lists the directory of the cases before its sandbox is destroyed.
type leftProbe struct {
	passInstance
	left func(names string)
}

func (p leftProbe) Destroy(ctx context.Context) error {
	proc, err := p.Exec(ctx, &sandbox.Command{Args: []string{"ls", "/tmp"}})
	if err != nil {
		return err
	}
	r, err := collect(ctx, proc)
	if err != nil {
		return err
	}
	p.left(r.stdout)
	return errors.Join(proc.Close(), p.Instance.Destroy(ctx))
}

// TestCasesLeaveNoDirectory: a provider may show all its sandboxes the same
// /tmp, so each case removes its directory there.
func TestCasesLeaveNoDirectory(t *testing.T) {
	seen := 0
	h := fakeHarness(t, fake.Options{}, func(p driver.Provider) driver.Provider {
		return instanceProvider{passProvider{p}, func(in driver.Instance) driver.Instance {
			return leftProbe{passInstance{in}, func(names string) {
				if seen++; strings.Contains(names, "case-") {
					t.Errorf("the cases have left %q", names)
				}
			}}
		}}
	})
	h.Only = []string{"exec/", "files/"}
	Run(t, h)
	if seen == 0 {
		t.Error("no sandbox was destroyed")
	}
}

func TestCaseNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allCases() {
		if seen[c.name] {
			t.Errorf("two cases are called %s", c.name)
		}
		seen[c.name] = true
		if !strings.Contains(c.name, "/") || strings.ToLower(c.name) != c.name || strings.Contains(c.name, " ") {
			t.Errorf("%s: names are group/case, in lower case", c.name)
		}
		if c.needs != "" && !strings.Contains(capabilityNames(t), `"`+c.needs+`"`) {
			t.Errorf("%s needs the unknown capability %s", c.name, c.needs)
		}
	}
}

// capabilityNames returns the JSON names of all capabilities.
func capabilityNames(t *testing.T) string {
	names, err := json.Marshal(driver.Capabilities{})
	if err != nil {
		t.Fatal(err)
	}
	return string(names)
}

// TestDeclaredKnowsAll checks that the suite knows every capability of the
// contract.
func TestDeclaredKnowsAll(t *testing.T) {
	var names map[string]bool
	if err := json.Unmarshal([]byte(capabilityNames(t)), &names); err != nil {
		t.Fatal(err)
	}
	for name := range names {
		var c driver.Capabilities
		if err := json.Unmarshal([]byte(`{"`+name+`":true}`), &c); err != nil {
			t.Fatal(err)
		}
		s := &suite{facts: driver.Facts{Capabilities: c}}
		if !s.declared(name) {
			t.Errorf("the suite does not know the capability %s", name)
		}
		if !slices.ContainsFunc(capabilityCases, func(c testCase) bool { return c.name == "capabilities/"+name }) {
			t.Errorf("no case compares what is declared and implemented of %s", name)
		}
	}
}

func TestCheckReport(t *testing.T) {
	h := fakeHarness(t, fake.Options{Bare: true}, nil)
	h.Only = []string{"lifecycle/destroy-twice", "files/stat", "exec/env-does-not-leak"}
	var observed []string
	h.Observe = func(r Result) { observed = append(observed, r.Name) }
	r := Check(t.Context(), h)
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Provider != "fake" || len(r.Results) != 3 || len(observed) != 3 {
		t.Errorf("%+v, observed %q", r, observed)
	}
	var text, js bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := "pass            lifecycle/destroy-twice\npass            exec/env-does-not-leak\nnot applicable  files/stat (no files)\nfake: 2 passed, 0 failed, 1 not applicable\n"
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	if err := r.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(js.Bytes(), &back); err != nil || len(back.Results) != 3 || back.Results[2].Status != NotApplicable {
		t.Errorf("the JSON form does not come back: %v, %+v", err, back)
	}
}

func TestCheckUnusable(t *testing.T) {
	broken := errors.New("no such account")
	for name, h := range map[string]Harness{
		"incomplete":  {},
		"New fails":   {New: func(context.Context) (driver.Provider, error) { return nil, broken }, Spec: func() sandbox.Spec { return sandbox.Spec{} }},
		"Probe fails": fakeHarness(t, fake.Options{Fault: func(string) error { return broken }}, nil),
		"unavailable": fakeHarness(t, fake.Options{}, func(p driver.Provider) driver.Provider {
			return factsProvider{passProvider{p}, func(f *driver.Facts) {
				f.Available = false
				f.Findings = append(f.Findings, driver.Finding{Severity: driver.Blocker, Subject: "kernel", Message: "too old"})
			}}
		}),
	} {
		r := Check(t.Context(), h)
		if r.Err() == nil {
			t.Errorf("%s: no failure", name)
		}
		if name == "unavailable" && !strings.Contains(r.Results[0].Messages[0], "kernel: too old") {
			t.Errorf("the report does not say why: %+v", r)
		}
	}
}

func TestCheckStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := fakeHarness(t, fake.Options{}, nil)
	h.Observe = func(Result) { cancel() }
	if r := Check(ctx, h); len(r.Results) != 1 {
		t.Errorf("%d cases after the context had ended", len(r.Results))
	}
}

// TestHang checks that a call that ignores its context fails its case, and that
// the suite continues.
func TestHang(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	h := fakeHarness(t, fake.Options{}, func(p driver.Provider) driver.Provider {
		return instanceProvider{passProvider{p}, func(inst driver.Instance) driver.Instance {
			return execInstance{inst, func(_ context.Context, _ *sandbox.Command, _ driver.Instance) (driver.Process, error) {
				<-release
				return nil, errors.New("too late")
			}}
		}}
	})
	h.Patience = 200 * time.Millisecond
	h.Only = []string{"exec/exit-codes", "probe/facts", "lifecycle/destroy-twice"}
	status := map[string]Status{}
	for _, r := range Check(t.Context(), h).Results {
		status[r.Name] = r.Status
		if r.Name == "exec/exit-codes" && !strings.Contains(strings.Join(r.Messages, "\n"), "hangs") {
			t.Errorf("the report does not say that the case hangs: %q", r.Messages)
		}
	}
	if status["exec/exit-codes"] != Fail || status["lifecycle/destroy-twice"] != Pass || status["probe/facts"] != Pass {
		t.Errorf("%v", status)
	}
}
