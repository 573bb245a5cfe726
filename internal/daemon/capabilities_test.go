package daemon_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// anyImage is a provider that takes every image for its only one.
type anyImage struct{ driver.Provider }

func (p anyImage) Unwrap() any { return p.Provider }

func (anyImage) CheckImage(string) error { return nil }

func (p anyImage) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	only := *spec
	only.Image = "host"
	return p.Provider.Create(ctx, &only)
}

// RB-21, RB-24, RB-25: the desktop of a session depends on its image, the key that
// asks, and the sessions that share its sandbox, which are named by their ids.
// RB-21.
func TestSessionDesktops(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t).Start(t, func(o *daemon.Options) {
		open := o.Providers[0].Open
		o.Providers[0].Open = func(h providerset.Host) (driver.Provider, error) {
			p, err := open(h)
			return anyImage{p}, err
		}
	})
	c := daemontest.Client(t, d)
	k, err := c.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read"}})
	if err != nil {
		t.Fatal(err)
	}
	viewer := daemontest.Bearer(t, d, k.Token)
	capabilities := func(c *atoll.Client, name string) catalog.CapabilityDocument {
		t.Helper()
		s, err := c.Sessions().Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := s.Capabilities(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}

	openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "plain"})
	for what, reason := range map[string]catalog.UnavailableReason{
		"desktop":      capabilities(c, "plain").Desktop.Reason,
		"recording":    capabilities(c, "plain").Recording.Reason,
		"computer use": capabilities(c, "plain").ComputerUse.Reason,
	} {
		if reason != catalog.NotProvisioned {
			t.Errorf("%s without a display: %q", what, reason)
		}
	}

	image := sandbox.Spec{Image: "registry.example.com/desktop:1"}
	one := openSession(t, c, image, atoll.SessionOptions{Name: "one", Group: "g"})
	two := openSession(t, c, image, atoll.SessionOptions{Name: "two", Group: "g"})
	doc := capabilities(c, "one")
	if cell := doc.Desktop; cell.Reason != "" || cell.Mode != "interactive" || cell.Client != "novnc" || !cell.RequiresAcknowledgment || cell.Token != "" ||
		!cell.Shared || !slices.Equal(cell.SharedSessionIDs, []string{two.ID()}) || !doc.ComputerUse.Available || doc.ComputerUse.ReadOnly {
		t.Errorf("with a desktop: %+v, %+v", cell, doc.ComputerUse)
	}
	if doc := capabilities(viewer, "two"); doc.Desktop.Mode != "read-only" || !doc.ComputerUse.ReadOnly || !slices.Equal(doc.Desktop.SharedSessionIDs, []string{one.ID()}) {
		t.Errorf("for a key that may only read: %+v, %+v", doc.Desktop, doc.ComputerUse)
	}
}

// RB-8, RB-15: a daemon does not open a provider whose descriptor has another
// name, or contradicts itself. RB-15.
func TestDescriptorsAreChecked(t *testing.T) {
	t.Parallel()
	for _, e := range all.Builtin() {
		if err := e.Check(func(string) string { return "set" }); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
	right, _ := catalog.Find("fake")
	for want, change := range map[string]func(*catalog.Descriptor){
		"is that of":        func(d *catalog.Descriptor) { d.Name = "another" },
		"takes no snapshot": func(d *catalog.Descriptor) { d.Persistable = true },
	} {
		m := daemontest.New(t)
		opts := m.Options()
		wrong := right
		change(&wrong)
		opts.Providers[0].Check = func(func(string) string) error { return catalog.CheckDescriptor("fake", wrong) }
		d, err := daemon.Start(t.Context(), opts)
		if err == nil {
			_, err = daemontest.Client(t, d).Create(t.Context(), sandbox.Spec{}, atoll.CreateOptions{})
			if closed := d.Close(); closed != nil {
				t.Error(closed)
			}
		}
		if e, ok := errors.AsType[*sandbox.Error](err); !ok || !strings.Contains(e.Error(), want) {
			t.Errorf("%v, want that it %s", err, want)
		}
	}
}
