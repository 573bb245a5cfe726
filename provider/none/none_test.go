package none_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/none"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Every error is typed and says what to do, and none says that a sandbox does
// not exist.
func TestRefuses(t *testing.T) {
	p := none.New()
	_, create := p.Create(t.Context(), &sandbox.Spec{ID: "box"})
	_, attach := p.Attach(t.Context(), "box")
	for name, tt := range map[string]struct {
		err  error
		want sandbox.Code
	}{
		"create": {create, sandbox.CodeUnavailable}, "attach": {attach, sandbox.CodeUnsupported}, "image": {p.CheckImage("debian:12"), sandbox.CodeUnavailable},
	} {
		e, ok := errors.AsType[*sandbox.Error](tt.err)
		if !ok || e.Code != tt.want || e.Message == "" || e.Hint == "" || p.ErrorCode(tt.err) != tt.want {
			t.Errorf("%s: %#v", name, tt.err)
		}
	}
	for f, err := range p.List(t.Context()) {
		t.Errorf("it lists %+v, %v", f, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range p.List(ctx) {
		if p.ErrorCode(err) != sandbox.CodeCanceled {
			t.Errorf("canceled: %v", err)
		}
	}
	facts, err := p.Probe(t.Context())
	if err != nil || facts.Available || facts.Capabilities != (driver.Capabilities{}) || facts.Findings[0].Severity != driver.Blocker {
		t.Errorf("%+v, %v", facts, err)
	}
}

// A daemon runs with this provider, keeps its records, and says why it makes no
// sandboxes.
func TestDaemon(t *testing.T) {
	d := daemontest.New(t).Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{{Name: none.Name, Open: func(providerset.Host) (driver.Provider, error) { return none.New(), nil }}}
	})
	c := daemontest.Client(t, d)
	if _, err := c.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "kept"}); err != nil {
		t.Error(err)
	}
	if all, err := c.Workspaces(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	_, err := c.Create(t.Context(), sandbox.Spec{Name: "box"}, atoll.CreateOptions{})
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Code != sandbox.CodeUnavailable || !strings.Contains(e.Message, "makes no sandboxes") {
		t.Errorf("%#v", err)
	}
	for s, err := range c.List(t.Context(), atoll.ListOptions{}) {
		t.Errorf("it lists %+v, %v", s, err)
	}
	all, err := c.Providers(t.Context())
	if err != nil || all[0].Name != none.Name || all[0].Available {
		t.Errorf("%+v, %v", all, err)
	}
}
