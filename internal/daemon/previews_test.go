package daemon_test

import (
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

// showing is a provider that gives ports fake URLs.
type showing struct {
	driver.Provider
	mu    sync.Mutex
	ports map[sandbox.ID]map[uint16]sandbox.Preview
}

func (p *showing) Probe(ctx context.Context) (driver.Facts, error) {
	facts, err := p.Provider.Probe(ctx)
	facts.Capabilities.Previews = true
	return facts, err
}

func (p *showing) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	in, err := p.Provider.Create(ctx, spec)
	return &shown{in, p}, err
}

func (p *showing) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	in, err := p.Provider.Attach(ctx, id)
	return &shown{in, p}, err
}

type shown struct {
	driver.Instance
	p *showing
}

func (s *shown) Unwrap() any { return s.Instance }

func (s *shown) Preview(_ context.Context, req sandbox.PreviewRequest) (sandbox.Preview, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	made := sandbox.Preview{Port: req.Port, Public: req.Public, URL: "https://" + strconv.Itoa(int(req.Port)) + ".provider.example"}
	if s.p.ports[s.ID()] == nil {
		s.p.ports[s.ID()] = map[uint16]sandbox.Preview{}
	}
	s.p.ports[s.ID()][req.Port] = made
	if !req.Public {
		made.Header, made.Token = "X-Provider", "canary"
	}
	return made, nil
}

func (s *shown) Unpreview(_ context.Context, port uint16) error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	delete(s.p.ports[s.ID()], port)
	return nil
}

func (s *shown) Previews(context.Context) (all []sandbox.Preview, err error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	for _, p := range s.p.ports[s.ID()] {
		all = append(all, p)
	}
	return all, nil
}

// TestPreviews: a port needs a token unless a caller with more permissions
// makes it public, and other tenants cannot access it.
func TestPreviews(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{{Name: "fake", Open: func(providerset.Host) (driver.Provider, error) {
			under := fake.New(fake.Options{World: m.World, Limited: true, SnapshotDir: filepath.Join(m.Dir, "snapshots")})
			return &showing{Provider: under, ports: map[sandbox.ID]map[uint16]sandbox.Preview{}}, nil
		}}}
	})
	owner, writer, reader := daemontest.Client(t, d), bearer(t, d, "", "read", "exec", "write"), bearer(t, d, "", "read", "exec")
	create(t, owner, sandbox.Spec{Name: "one"})
	s, err := writer.Get(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := s.Previews(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("without a request: %+v, %v", all, err)
	}
	p, err := s.Preview(t.Context(), sandbox.PreviewRequest{Port: 8000})
	if want := (sandbox.Preview{Port: 8000, URL: "https://8000.provider.example", Header: "X-Provider", Token: "canary"}); err != nil || p != want {
		t.Errorf("%+v, %v; want %+v", p, err, want)
	}
	_, err = s.Preview(t.Context(), sandbox.PreviewRequest{Port: 8000, Public: true})
	wantCode(t, err, sandbox.CodeDenied)
	_, err = s.Preview(t.Context(), sandbox.PreviewRequest{})
	wantCode(t, err, sandbox.CodeInvalid)
	if all, err := s.Previews(t.Context()); err != nil || len(all) != 1 || all[0].Public || all[0].Token != "" {
		t.Errorf("%+v, %v", all, err)
	}
	less, err := reader.Get(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	_, err = less.Preview(t.Context(), sandbox.PreviewRequest{Port: 8000})
	wantCode(t, err, sandbox.CodeDenied)
	wantCode(t, less.Unpreview(t.Context(), 8000), sandbox.CodeDenied)
	mine, err := owner.Get(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := mine.Preview(t.Context(), sandbox.PreviewRequest{Port: 8000, Public: true}); err != nil || !p.Public || p.Token != "" {
		t.Errorf("%+v, %v", p, err)
	}
	for range 2 {
		if err := s.Unpreview(t.Context(), 8000); err != nil {
			t.Error(err)
		}
	}
	// Other tenants, and providers without addresses.
	_, err = bearer(t, d, "rival", "admin").Get(t.Context(), string(s.ID()))
	wantCode(t, err, sandbox.CodeNotFound)
	plain := create(t, daemontest.Client(t, daemontest.New(t).Start(t, nil)), sandbox.Spec{Name: "plain"})
	_, err = plain.Preview(t.Context(), sandbox.PreviewRequest{Port: 8000})
	wantCode(t, err, sandbox.CodeUnsupported)
}
