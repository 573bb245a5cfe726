package daemon_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// pulling is a provider that fetches images from a server. late makes it ignore
// that its caller has gone, until the server has answered.
type pulling struct {
	fetching
	from string
	late bool
}

func (p pulling) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	wait := ctx
	if p.late {
		wait = context.WithoutCancel(ctx)
	}
	r, err := http.NewRequestWithContext(wait, http.MethodGet, p.from, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	res.Body.Close()
	return p.fetching.Create(wait, spec)
}

// A caller of Create who goes while the registry of the image hangs leaves no
// request, and no sandbox, even if the provider makes it nevertheless.
func TestCreateIsAbandoned(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(map[bool]string{false: "registry hangs", true: "made nevertheless"}[late], func(t *testing.T) {
			asked, answer := make(chan struct{}, 8), make(chan struct{})
			var pulls, hanging atomic.Int32
			hub := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				pulls.Add(1)
				hanging.Add(1)
				defer hanging.Add(-1)
				asked <- struct{}{}
				select {
				case <-answer:
				case <-r.Context().Done():
				}
			}))
			t.Cleanup(hub.Close)
			d := daemontest.New(t).Start(t, func(o *daemon.Options) {
				o.Providers = []providerset.Entry{{Name: "pulls", Open: func(providerset.Host) (driver.Provider, error) {
					return pulling{fetching{fake.New(fake.Options{Limited: true})}, hub.URL, late}, nil
				}}}
			})
			c := daemontest.Client(t, d)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := c.Create(ctx, sandbox.Spec{Name: "box", Image: "debian:12"})
				ended <- err
			}()
			<-asked
			cancel()
			if late {
				close(answer)
			}
			if err := <-ended; sandbox.CodeOf(err) != sandbox.CodeCanceled || strings.Contains(err.Error(), "too long") {
				t.Errorf("Create says %v, want %s alone", err, sandbox.CodeCanceled)
			}
			if n := pulls.Load(); n != 1 {
				t.Errorf("the image was asked for %d times, want once", n)
			}
			if all := sandboxes(t, c); len(all) != 0 {
				t.Errorf("left: %+v", all)
			}
			if !late {
				close(answer)
			}
			sb, err := c.Create(t.Context(), sandbox.Spec{Name: "box", Image: "debian:12"})
			if err != nil {
				t.Fatalf("its name is not free: %v", err)
			}
			if err := sb.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A request that arrives after it was abandoned makes nothing. The key is that of
// one tenant, and of callers who may create.
func TestAbandonedRequestsComeLate(t *testing.T) {
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Listen, o.Plain = "127.0.0.1:0", true })
	c := daemontest.Client(t, d)
	token := func(verbs ...string) string {
		k, err := c.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: verbs})
		if err != nil {
			t.Fatal(err)
		}
		return k.Token
	}
	admin, reader := token("admin"), token("read")
	send := func(token, key string, abandon bool) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+d.TCP().String()+"/v1/sandboxes", strings.NewReader(`{"name":"box"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		if abandon {
			r.Header.Set("Atoll-Abandon", "true")
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	if code, text := send(admin, "", true); code != http.StatusBadRequest {
		t.Errorf("without a key: %d %s, want %d", code, text, http.StatusBadRequest)
	}
	if code, text := send(reader, "one", true); code != http.StatusForbidden {
		t.Errorf("with a key that may only read: %d %s, want %d", code, text, http.StatusForbidden)
	}
	if code, text := send(admin, "one", true); code != http.StatusNotFound {
		t.Errorf("what was never asked for: %d %s, want %d", code, text, http.StatusNotFound)
	}
	if code, text := send(admin, "one", false); !strings.Contains(text, string(sandbox.CodeCanceled)) {
		t.Errorf("a request after it was abandoned: %d %s, want %s", code, text, sandbox.CodeCanceled)
	}
	if all := sandboxes(t, c); len(all) != 0 {
		t.Errorf("left: %+v", all)
	}
	if code, text := send(admin, "two", false); code != http.StatusCreated {
		t.Fatalf("another request: %d %s", code, text)
	}
	code, text := send(admin, "two", true)
	if code != http.StatusOK || !strings.Contains(text, `"name":"box"`) {
		t.Errorf("what was made: %d %s, want the sandbox", code, text)
	}
	sb, err := c.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if code, text := send(admin, "two", true); code != http.StatusGone {
		t.Errorf("what is gone: %d %s, want %d", code, text, http.StatusGone)
	}
}
