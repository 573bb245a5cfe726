package quota_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/quota"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const gib = 1 << 30

func TestCheck(t *testing.T) {
	limits := operator.Limits{Sandboxes: 3, CPUs: 1, Memory: 4 * gib, Disk: 10 * gib}
	fits := sandbox.Resources{CPUs: 0.1, Memory: gib, Disk: gib}
	for _, tt := range []struct {
		name     string
		limits   operator.Limits
		used     operator.TenantUsage
		ask      sandbox.Resources
		code     sandbox.Code
		resource string
	}{
		{"no limits", operator.Limits{}, operator.TenantUsage{Sandboxes: 1e6}, sandbox.Resources{}, "", ""},
		{"fits", limits, operator.TenantUsage{}, fits, "", ""},
		{"fits exactly", limits, operator.TenantUsage{Sandboxes: 2, CPUs: 0.9, Memory: 3 * gib, Disk: 9 * gib}, fits, "", ""},
		{"fractions add up", limits, operator.TenantUsage{CPUs: 0.1 + 0.2 + 0.1 + 0.2 + 0.3}, fits, "", ""},
		{"boxes", limits, operator.TenantUsage{Sandboxes: 3}, fits, sandbox.CodeExhausted, "boxes"},
		{"cpus", limits, operator.TenantUsage{CPUs: 0.95}, fits, sandbox.CodeExhausted, "cpus"},
		{"memory", limits, operator.TenantUsage{Memory: 3*gib + 1}, fits, sandbox.CodeExhausted, "memory"},
		{"disk", limits, operator.TenantUsage{Disk: 10 * gib}, fits, sandbox.CodeExhausted, "disk"},
		{"more than all", limits, operator.TenantUsage{}, sandbox.Resources{CPUs: 1, Memory: math.MaxInt64, Disk: gib}, sandbox.CodeExhausted, "memory"},
		{"memory left open", limits, operator.TenantUsage{}, sandbox.Resources{CPUs: 0.1, Disk: gib}, sandbox.CodeInvalid, "memory"},
		{"memory without end", limits, operator.TenantUsage{}, sandbox.Resources{CPUs: 0.1, Memory: -1, Disk: gib}, sandbox.CodeInvalid, "memory"},
		{"processes without end", operator.Limits{Sandboxes: 3}, operator.TenantUsage{}, sandbox.Resources{PIDs: -1}, sandbox.CodeInvalid, "pids"},
		{"processes without end or limits", operator.Limits{ExecRate: 3}, operator.TenantUsage{}, sandbox.Resources{PIDs: -1}, "", ""},
		{"a limit lowered below use", operator.Limits{Sandboxes: 1}, operator.TenantUsage{Sandboxes: 5}, fits, sandbox.CodeExhausted, "boxes"},
	} {
		err := quota.Check(tt.limits, tt.used, tt.ask)
		if sandbox.CodeOf(err) != tt.code {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var e *sandbox.Error
		if errors.As(err, &e) && e.Subject != tt.resource {
			t.Errorf("%s: refused for %s, want %s", tt.name, e.Subject, tt.resource)
		}
		if wait, refused := quota.RetryAfter(err); refused != (tt.code == sandbox.CodeExhausted) || refused && wait <= 0 {
			t.Errorf("%s: retry after %v, %v", tt.name, wait, refused)
		}
	}
	err := quota.Check(limits, operator.TenantUsage{Memory: 4 * gib}, fits)
	if want := "quota of memory: 4GiB used, 1GiB requested, 4GiB allowed"; !strings.Contains(err.Error(), want) {
		t.Errorf("the refusal says %q", err)
	}
}

func TestValidate(t *testing.T) {
	if err := (operator.Limits{Sandboxes: 1, CPUs: 0.5, ExecRate: 10}).Validate(); err != nil {
		t.Error(err)
	}
	for _, l := range []operator.Limits{{Sandboxes: -1}, {CPUs: math.NaN()}, {CPUs: math.Inf(1)}, {Memory: -1}, {Disk: -1}, {ExecRate: -1}, {ExecBurst: -1}, {OutputRate: -1}, {OutputBurst: -1}, {WarmHours: -1}} {
		if sandbox.CodeOf(l.Validate()) != sandbox.CodeInvalid {
			t.Errorf("%+v is accepted", l)
		}
	}
}

// RB-59.
func TestMonths(t *testing.T) {
	now := time.Date(2026, 12, 31, 23, 0, 0, 0, time.UTC)
	l := operator.Limits{WarmHours: 1.5}
	for used, want := range map[time.Duration]sandbox.Code{0: "", 89 * time.Minute: "", 90 * time.Minute: sandbox.CodeExhausted, 90 * time.Hour: sandbox.CodeExhausted} {
		err := quota.CheckWarm(l, used, now)
		if sandbox.CodeOf(err) != want {
			t.Errorf("%v: %v", used, err)
		}
		if wait, refused := quota.RetryAfter(err); refused != (want != "") || refused && wait != time.Hour {
			t.Errorf("%v: again after %v", used, wait)
		}
		if err := quota.CheckWarm(operator.Limits{}, used, now); err != nil {
			t.Errorf("without a limit: %v", err)
		}
	}
	if from, to := quota.Month(now.In(time.FixedZone("", 3600*5))); !from.Equal(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)) || !to.Equal(now.Add(time.Hour)) {
		t.Errorf("the month is from %v to %v", from, to)
	}
}

func TestExecRate(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := quota.NewMeter(func() time.Time { return now })
	l := operator.Limits{ExecRate: 2, ExecBurst: 3}
	start := func(tenant string, want time.Duration) {
		t.Helper()
		err := m.Exec(tenant, l)
		wait, _ := quota.RetryAfter(err)
		if wait != want || (want > 0) != (sandbox.CodeOf(err) == sandbox.CodeExhausted) {
			t.Errorf("%v, retry after %v, want %v", err, wait, want)
		}
	}
	for range 3 {
		start("acme", 0)
	}
	start("acme", 500*time.Millisecond)
	start("acme", 500*time.Millisecond) // a refusal costs nothing
	start("rival", 0)
	now = now.Add(500 * time.Millisecond)
	start("acme", 0)
	start("acme", 500*time.Millisecond)
	l.ExecRate = 10 // a new limit holds from now on
	start("acme", 100*time.Millisecond)
	now = now.Add(time.Hour)
	for range 3 {
		start("acme", 0)
	}
	l = operator.Limits{}
	for range 100 {
		start("acme", 0)
	}
}

func TestOutputRate(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := quota.NewMeter(func() time.Time { return now })
	const rate = 1 << 20
	l := operator.Limits{OutputRate: rate}
	for _, tt := range []struct {
		n    int
		want time.Duration
	}{{rate, 0}, {rate / 2, 500 * time.Millisecond}, {rate / 2, time.Second}, {4 * rate, 5 * time.Second}, {0, 0}, {-1, 0}} {
		if got := m.Output("acme", l, tt.n); got != tt.want {
			t.Errorf("%d bytes: wait %v, want %v", tt.n, got, tt.want)
		}
	}
	now = now.Add(5 * time.Second)
	if got := m.Output("acme", l, rate/4); got != 250*time.Millisecond {
		t.Errorf("after waiting: %v", got)
	}
	if got := m.Output("acme", operator.Limits{}, math.MaxInt); got != 0 {
		t.Errorf("without a limit: %v", got)
	}
}

// TestForgetsTenants: the memory of a Meter is bounded by who uses it now.
func TestForgetsTenants(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := quota.NewMeter(func() time.Time { return now })
	l := operator.Limits{ExecRate: 1}
	for i := range 100 {
		if err := m.Exec(strings.Repeat("a", i+1), l); err != nil {
			t.Error(err)
		}
	}
	if m.Len() != 100 {
		t.Errorf("%d tenants, want 100", m.Len())
	}
	now = now.Add(2 * time.Hour)
	if err := m.Exec("new", l); err != nil || m.Len() != 1 {
		t.Errorf("%d tenants after two hours, want 1 (%v)", m.Len(), err)
	}
}
