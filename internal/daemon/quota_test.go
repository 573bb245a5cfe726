package daemon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// limit changes the limits of a tenant, given by their JSON names.
func limit(t *testing.T, owner *atoll.Client, tenant string, limits map[string]float64) {
	t.Helper()
	var change operator.LimitsChange
	text, err := json.Marshal(limits)
	if err == nil {
		err = json.Unmarshal(text, &change)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Admin().UpdateTenant(t.Context(), tenant, operator.TenantChange{Limits: &change}); err != nil {
		t.Fatal(err)
	}
}

// An exceeded quota is a 429 with a retry time.
func TestTooMuch(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner := daemontest.Client(t, d)
	k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: "acme", Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	limit(t, owner, "acme", map[string]float64{"boxes": 1, "execRate": 0.001, "execBurst": 1})
	transport := d.Memory().Transport()
	defer transport.CloseIdleConnections()
	ask := func(path, body string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://atoll"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+k.Token)
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return resp
	}
	if resp := ask("/v1/sandboxes", `{"name":"one"}`); resp.StatusCode != 201 {
		t.Fatalf("the first sandbox: %d", resp.StatusCode)
	}
	if resp := ask("/v1/sandboxes/one/exec", `{"shell":"true"}`); resp.StatusCode != 200 {
		t.Fatalf("the first command: %d", resp.StatusCode)
	}
	for path, body := range map[string]string{"/v1/sandboxes": `{"name":"two"}`, "/v1/sandboxes/one/exec": `{"shell":"true"}`} {
		resp := ask(path, body)
		after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if resp.StatusCode != http.StatusTooManyRequests || err != nil || after < 1 {
			t.Errorf("%s: %d, Retry-After %q", path, resp.StatusCode, resp.Header.Get("Retry-After"))
		}
	}
	own, err := daemontest.Bearer(t, d, k.Token).Admin().Tenant(t.Context())
	if err != nil || own.Usage.Sandboxes != 1 || own.Limits.Sandboxes != 1 || own.ID != "acme" {
		t.Errorf("%+v %v", own, err)
	}
}

// An attacker whose tenant has a quota cannot exceed it with updates.
func TestQuotaHoldsForUpdates(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner, boss := daemontest.Client(t, d), bearer(t, d, "acme", "admin")
	limit(t, owner, "acme", map[string]float64{"cpus": 2, "memory": 2 << 30, "disk": 20 << 30})
	s := create(t, boss, sandbox.Spec{Name: "one", Resources: sandbox.Resources{CPUs: 1, Memory: 1 << 30, Disk: 4 << 30}})
	before, err := boss.Admin().Tenant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []sandbox.Resources{{CPUs: -1}, {Memory: -1}, {Disk: -1}, {CPUs: -1e9}, {CPUs: 2.5}, {Memory: 3 << 30}} {
		_, err := s.Update(t.Context(), sandbox.Change{Resources: more})
		if code := sandbox.CodeOf(err); code != sandbox.CodeInvalid && code != sandbox.CodeExhausted {
			t.Errorf("%+v: %v", more, err)
		}
	}
	if after, err := boss.Admin().Tenant(t.Context()); err != nil || after.Usage != before.Usage {
		t.Errorf("%+v became %+v, %v", before.Usage, after.Usage, err)
	}
}

// An attacker without a quota requests so much that the sum overflows, which
// would hide the usage from the owner of the machine.
func TestUsageCanBeAddedUp(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner, boss := daemontest.Client(t, d), bearer(t, d, "acme", "admin")
	for _, huge := range []sandbox.Resources{{Memory: math.MaxInt64}, {Disk: math.MaxInt64}} {
		_, err := boss.Create(t.Context(), sandbox.Spec{Resources: huge}, atoll.CreateOptions{})
		wantCode(t, err, sandbox.CodeInvalid)
		s := create(t, boss, sandbox.Spec{Resources: sandbox.Resources{Memory: bounds.MaxMemory, Disk: bounds.MaxDisk}})
		_, err = s.Update(t.Context(), sandbox.Change{Resources: huge})
		wantCode(t, err, sandbox.CodeInvalid)
	}
	all, err := owner.Admin().Tenants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.ID == "acme" && (one.Usage.Memory != 2*bounds.MaxMemory || one.Usage.Disk != 2*bounds.MaxDisk) {
			t.Errorf("%+v", one.Usage)
		}
	}
}

// Only the owner of the machine can see and change limits. Keys of a disabled
// tenant are refused.
func TestTenantsAreTheOwners(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	owner, boss := daemontest.Client(t, d), bearer(t, d, "acme", "admin")
	_, err := boss.Admin().UpdateTenant(t.Context(), "acme", operator.TenantChange{Limits: &operator.LimitsChange{Sandboxes: new(int64(99))}})
	wantCode(t, err, sandbox.CodeDenied)
	_, err = boss.Admin().CreateTenant(t.Context(), "mine", operator.Limits{})
	wantCode(t, err, sandbox.CodeDenied)
	_, err = boss.Admin().Tenants(t.Context())
	wantCode(t, err, sandbox.CodeDenied)
	_, err1 := boss.Admin().TenantByID(t.Context(), "default")
	_, err2 := boss.Admin().TenantByID(t.Context(), "nobody")
	wantCode(t, err1, sandbox.CodeDenied)
	wantCode(t, err2, sandbox.CodeDenied)
	_, err = boss.Admin().Backup(t.Context())
	wantCode(t, err, sandbox.CodeDenied)
	for _, bad := range []operator.LimitsChange{{Sandboxes: new(int64(-1))}, {CPUs: new(-0.5)}} {
		_, err = owner.Admin().UpdateTenant(t.Context(), "acme", operator.TenantChange{Limits: &bad})
		wantCode(t, err, sandbox.CodeInvalid)
	}
	off, on := true, false
	if _, err := owner.Admin().UpdateTenant(t.Context(), "acme", operator.TenantChange{Disabled: &off}); err != nil {
		t.Fatal(err)
	}
	_, err = boss.Admin().Tenant(t.Context())
	wantCode(t, err, sandbox.CodeUnauthorized)
	if _, err := owner.Admin().UpdateTenant(t.Context(), "acme", operator.TenantChange{Disabled: &on}); err != nil {
		t.Fatal(err)
	}
	if _, err := boss.Admin().Tenant(t.Context()); err != nil {
		t.Error(err)
	}
	copied, err := owner.Admin().Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if text, err := io.ReadAll(copied); err != nil || !bytes.HasPrefix(text, []byte("SQLite format 3")) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// Output above the rate is slowed down, and is complete.
func TestOutputIsMetered(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t).Start(t, nil)
	owner := daemontest.Client(t, d)
	s := create(t, owner, sandbox.Spec{Name: "one"})
	const burst, over = 64 << 10, 96 << 10
	limit(t, owner, "default", map[string]float64{"outputRate": 32 << 10, "outputBurst": burst})
	began := time.Now()
	r, err := s.Run(t.Context(), sandbox.Command{Shell: "cat"}, atoll.RunOptions{Input: bytes.Repeat([]byte("x"), burst+over)})
	if err != nil || len(r.Stdout) != burst+over {
		t.Fatalf("%d bytes, %v", len(r.Stdout), err)
	}
	// The one thing that a rate promises is a time.
	if took := time.Since(began); took < time.Second {
		t.Errorf("it took %s", took)
	}
	for e, err := range owner.FollowEvents(t.Context(), sandbox.EventQuery{Types: []string{"exec.ended"}}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Bytes != burst+over || e.Exit == nil || *e.Exit != 0 || e.Reason != "exited" || e.Duration > 100*time.Second {
			t.Errorf("%+v", e)
		}
		break
	}
}

// The ends of commands are recorded in all cases, without output.
func TestEndsAreRecorded(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	s := create(t, c, sandbox.Spec{Name: "one"})
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "echo canary-99; exit 7"}, atoll.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := s.Exec(t.Context(), sandbox.Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close() // its caller goes away
	for _, fifo := range []string{"first", "second"} {
		_, err = s.Exec(t.Context(), sandbox.Command{Shell: "until test -e /" + fifo + "; do sleep 0.01; done; exit 3", Background: true})
		if err != nil {
			t.Fatal(err)
		}
	}
	touch := func(c *atoll.Client, path string) {
		one, err := c.Get(t.Context(), "one")
		if err == nil {
			_, err = one.Files().Write(t.Context(), path, strings.NewReader(""), atoll.WriteOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	wait := func(c *atoll.Client, after int64) sandbox.Event {
		for e, err := range c.FollowEvents(t.Context(), sandbox.EventQuery{Types: []string{"exec.ended"}, After: after}) {
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		return sandbox.Event{}
	}
	first := wait(c, 0)
	if *first.Exit != 7 || first.Program != "sh" || first.Bytes != 10 {
		t.Errorf("%+v", first)
	}
	killed := wait(c, first.Seq)
	if killed.Reason == "exited" || killed.Program != "cat" {
		t.Errorf("%+v", killed)
	}
	touch(c, "/first")
	background := wait(c, killed.Seq)
	if *background.Exit != 3 {
		t.Errorf("%+v", background)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	c = daemontest.Client(t, m.Start(t, nil)) // the other one ends under another daemon
	touch(c, "/second")
	if e := wait(c, background.Seq); *e.Exit != 3 || e.Subject == background.Subject {
		t.Errorf("%+v", e)
	}
	for e, err := range c.Events(t.Context(), sandbox.EventQuery{}) {
		if err != nil || strings.Contains(e.Subject+e.Name+strings.Join(e.Args, " "), "canary") {
			t.Errorf("%+v %v", e, err)
		}
	}
}

// Readers that stop reading block the writers, and use bounded memory.
func TestSlowReaders(t *testing.T) {
	c := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	s := create(t, c, sandbox.Spec{Name: "one"})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const readers, each = 16, 16 << 20
	var writers sync.WaitGroup
	var taken atomic.Int64
	var open []*atoll.Process
	for range readers {
		p, err := s.Exec(t.Context(), sandbox.Command{Args: []string{"cat"}, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, p)
		writers.Go(func() {
			_, _ = io.Copy(p.Stdin(), io.LimitReader(zeros{&taken}, each)) // ends when p is closed
		})
	}
	// A throttled command accepts no more input. Without throttling, all input
	// would be accepted.
	for last, same := int64(-1), 0; same < 10; {
		time.Sleep(20 * time.Millisecond)
		if now := taken.Load(); now == last {
			same++
		} else {
			last, same = now, 0
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	for _, p := range open {
		_ = p.Close()
	}
	writers.Wait()
	if n := taken.Load(); n >= readers*each/2 {
		t.Errorf("%d bytes were accepted that nobody read", n)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > readers*(4<<20) {
		t.Errorf("%d readers cost %d bytes", readers, grown)
	}
}

// zeros is an endless source.
type zeros struct{ taken *atomic.Int64 }

func (z zeros) Read(p []byte) (int, error) {
	clear(p)
	z.taken.Add(int64(len(p)))
	return len(p), nil
}

// Of concurrent requests for the last places, exactly as many succeed as there
// are places. Refused requests leave nothing that uses one.
func TestLastPlaces(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	limit(t, c, "default", map[string]float64{"boxes": 5})
	rush := func(name string) (won int) {
		errs := make(chan error)
		const wanting = 20
		for i := range wanting {
			go func() {
				_, err := c.Create(t.Context(), sandbox.Spec{Name: fmt.Sprint(name, i)}, atoll.CreateOptions{})
				errs <- err
			}()
		}
		for range wanting {
			switch err := <-errs; {
			case err == nil:
				won++
			case sandbox.CodeOf(err) != sandbox.CodeExhausted:
				t.Error(err)
			}
		}
		return won
	}
	count := func() (n int, last string) {
		for s, err := range c.List(t.Context(), atoll.ListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			n, last = n+1, s.Name
		}
		return n, last
	}
	if won := rush("a"); won != 5 {
		t.Errorf("%d have one", won)
	}
	n, last := count()
	if n != 5 {
		t.Fatalf("%d are there", n)
	}
	if err := c.Remove(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if won := rush("b"); won != 1 {
		t.Errorf("%d have the place that became free", won)
	}
	if n, _ := count(); n != 5 {
		t.Errorf("%d are there in the end", n)
	}
}

// An attacker whose tenant has a quota requests as many processes as the
// machine has, which would leave none for others.
func TestAttackUnlimitedProcesses(t *testing.T) {
	for name, quota := range map[string]map[string]float64{
		"of sandboxes": {"boxes": 3}, "of memory": {"memory": 2 << 30}, "of disk": {"disk": 20 << 30}, "of cpus": {"cpus": 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.New(t).Start(t, nil)
			owner, boss := daemontest.Client(t, d), bearer(t, d, "acme", "admin")
			limit(t, owner, "acme", quota)
			bounded := sandbox.Resources{CPUs: 1, Memory: 1 << 30, Disk: 4 << 30}
			for _, pids := range []int64{-1, math.MinInt64} {
				ask := bounded
				ask.PIDs = pids
				_, err := boss.Create(t.Context(), sandbox.Spec{Resources: ask}, atoll.CreateOptions{})
				wantCode(t, err, sandbox.CodeInvalid)
			}
			s := create(t, boss, sandbox.Spec{Name: "one", Resources: bounded})
			_, err := s.Update(t.Context(), sandbox.Change{Resources: sandbox.Resources{PIDs: -1}})
			wantCode(t, err, sandbox.CodeInvalid)
			if own, err := boss.Admin().Tenant(t.Context()); err != nil || own.Usage.Sandboxes != 1 {
				t.Errorf("%+v %v", own, err)
			}
		})
	}
}
