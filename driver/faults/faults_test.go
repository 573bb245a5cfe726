package faults_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/faults"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

func broken(t *testing.T) (driver.Provider, *faults.Injector) {
	t.Helper()
	inner := fake.New(fake.Options{World: new(fake.World)})
	t.Cleanup(func() { _ = inner.Close() })
	i := new(faults.Injector)
	return faults.Provider(inner, i), i
}

func create(t *testing.T, p driver.Provider, id sandbox.ID) error {
	t.Helper()
	_, err := p.Create(t.Context(), &sandbox.Spec{ID: id, Name: string(id), Image: "host"})
	return err
}

func count(t *testing.T, p driver.Provider) (n int) {
	t.Helper()
	for _, err := range p.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

func TestProviderFailsBeforeAndAfterItActs(t *testing.T) {
	p, i := broken(t)
	lost := &faults.Error{Code: sandbox.CodeUnavailable, Text: "502"}
	i.Add(faults.Fault{Op: faults.Create, Times: 1, Err: lost})
	i.Add(faults.Fault{Op: faults.Create, Times: 1, Err: lost, Act: true})
	for want := range 2 { // the first does nothing, the second loses its answer
		if err := create(t, p, "sb-1"); p.ErrorCode(err) != sandbox.CodeUnavailable || count(t, p) != want {
			t.Errorf("creation %d: %v, %d exist", want, err, count(t, p))
		}
	}
	if err := create(t, p, "sb-2"); err != nil || count(t, p) != 2 || i.Calls(faults.Create) != 3 {
		t.Errorf("%v, %d exist after %d calls", err, count(t, p), i.Calls(faults.Create))
	}
}

func TestProviderLies(t *testing.T) {
	p, i := broken(t)
	if err := create(t, p, "sb-1"); err != nil {
		t.Fatal(err)
	}
	for _, lie := range faults.Lies() {
		i.Add(faults.Fault{Op: faults.Attach, Err: lie})
		if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) == sandbox.CodeGone || p.ErrorCode(err) == "" {
			t.Errorf("%v is %q", err, p.ErrorCode(err))
		}
		i.Clear()
	}
	i.Add(faults.Fault{Op: faults.Attach, Times: 1, Err: faults.Gone("404")})
	if _, err := p.Attach(t.Context(), "sb-1"); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("a false 404: %v", err)
	}
	i.Clear()
	i.Add(faults.Fault{Op: faults.Attach, ID: "sb-9"})
	inst, err := p.Attach(t.Context(), "sb-1")
	if err != nil || inst.ID() != "sb-9" {
		t.Errorf("another identity: %v, %v", inst, err)
	}
	if _, ok := driver.As[driver.FileSystem](inst); !ok {
		t.Error("the optional interfaces are lost")
	}
}

func TestProviderWaits(t *testing.T) {
	p, i := broken(t)
	i.Add(faults.Fault{Op: faults.Probe, Delay: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Probe(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestProxy(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
	}))
	defer server.Close()
	p, err := faults.NewProxy(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	get := func(n faults.Network) (int, error) {
		p.Set(n)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 500 * time.Millisecond}
		res, err := client.Get("http://" + p.Addr())
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		return len(data), err
	}
	if n, err := get(faults.Network{}); n != 100_000 || err != nil {
		t.Fatalf("without faults: %d bytes, %v", n, err)
	}
	for name, tt := range map[string]struct {
		network faults.Network
		arrives int32 // requests that reach the server
	}{
		"refused": {faults.Network{Refuse: true}, 0}, "silent": {faults.Network{Silent: true}, 0},
		"truncated": {faults.Network{Truncate: 50_000}, 1}, "lost": {faults.Network{Lose: true}, 1},
	} {
		before := requests.Load()
		if _, err := get(tt.network); err == nil || requests.Load()-before != tt.arrives {
			t.Errorf("%s: %v, %d requests arrived", name, err, requests.Load()-before)
		}
	}
	p.Cut()
}
