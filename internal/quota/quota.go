// Package quota decides whether a request is within a tenant's quota. Its
// decisions are pure: they depend on the limits, the current usage and the
// request. Package store calls [Check] in the transaction that creates a
// sandbox, while it holds the tenant's row, so that several daemons on one
// database cannot exceed a limit together.
//
// [Meter] limits rates, such as commands and bytes of output per second, in the
// memory of one daemon.
package quota

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/docker/go-units"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Exceeded describes the limit that was exceeded. It is the cause of the
// *sandbox.Error with CodeExhausted.
type Exceeded struct {
	Resource string // a JSON field name of Limits
	Limit    float64
	Used     float64
	Asked    float64
	// RetryAfter is when the same request can succeed, or an estimate if that
	// depends on other resources being freed.
	RetryAfter time.Duration
}

// Error describes the request and the limit.
func (e *Exceeded) Error() string {
	if e.Asked == 0 {
		return fmt.Sprintf("quota of %s: %s used, %s allowed", e.Resource, amount(e.Resource, e.Used), amount(e.Resource, e.Limit))
	}
	return fmt.Sprintf("quota of %s: %s used, %s requested, %s allowed",
		e.Resource, amount(e.Resource, e.Used), amount(e.Resource, e.Asked), amount(e.Resource, e.Limit))
}

// RetryAfter returns when to retry a refused request. It returns false if err
// is not a refusal of this package.
func RetryAfter(err error) (time.Duration, bool) {
	var e *Exceeded
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.RetryAfter, true
}

// sandboxRetry is the retry time if a tenant's sandboxes use up its quota: it is
// unknown when one will be removed.
const sandboxRetry = 5 * time.Second

// Check decides whether a tenant with the usage u may have one more sandbox
// with the resources ask, which must include defaults. It returns a
// *sandbox.Error: CodeExhausted with an [*Exceeded] as its cause, or
// CodeInvalid if ask leaves a limited resource unlimited, or has unlimited
// processes with any of these quotas.
func Check(l operator.Limits, u operator.TenantUsage, ask sandbox.Resources) error {
	for _, c := range []struct {
		name              string
		limit, used, want float64
	}{
		{"boxes", float64(l.Sandboxes), float64(u.Sandboxes), 1},
		{"cpus", l.CPUs, u.CPUs, ask.CPUs},
		{"memory", float64(l.Memory), float64(u.Memory), float64(ask.Memory)},
		{"disk", float64(l.Disk), float64(u.Disk), float64(ask.Disk)},
	} {
		if c.limit <= 0 {
			continue
		}
		if c.want <= 0 {
			return invalid(c.name, "must be limited, because the tenant has a quota of %s", amount(c.name, c.limit))
		}
		slack := 0.0
		if c.name == "cpus" {
			slack = 1e-6 // tolerance for rounding of sums of fractions
		}
		if c.used+c.want > c.limit+slack {
			return exceeded(&Exceeded{Resource: c.name, Limit: c.limit, Used: c.used, Asked: c.want, RetryAfter: sandboxRetry})
		}
	}
	// No quota counts processes, but a tenant with a quota may not remove the
	// process limit of a sandbox.
	if ask.PIDs < 0 && (l.Sandboxes > 0 || l.CPUs > 0 || l.Memory > 0 || l.Disk > 0) {
		return invalid("pids", "must be limited, because the tenant has a quota")
	}
	return nil
}

// CheckSnapshot decides whether a tenant with the usage u may have one more
// snapshot of that many bytes; zero if unknown. Errors are as for Check.
func CheckSnapshot(l operator.Limits, u operator.TenantUsage, bytes int64) error {
	switch {
	case l.Snapshots > 0 && u.Snapshots+1 > l.Snapshots:
		return exceeded(&Exceeded{Resource: "snapshots", Limit: float64(l.Snapshots), Used: float64(u.Snapshots), Asked: 1, RetryAfter: sandboxRetry})
	case l.SnapshotBytes > 0 && u.SnapshotBytes+max(bytes, 1) > l.SnapshotBytes:
		return exceeded(&Exceeded{Resource: "snapshotBytes", Limit: float64(l.SnapshotBytes), Used: float64(u.SnapshotBytes), Asked: float64(bytes), RetryAfter: sandboxRetry})
	}
	return nil
}

// Month returns the start of the calendar month of a time and of the next
// month, in UTC.
func Month(now time.Time) (from, to time.Time) {
	y, m, _ := now.UTC().Date()
	return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
}

// CheckWarm decides whether a tenant whose sessions used sandboxes for that
// long in the current month may continue. It returns CodeExhausted with an
// [*Exceeded] as its cause.
func CheckWarm(l operator.Limits, used time.Duration, now time.Time) error {
	if l.WarmHours <= 0 || used.Hours() < l.WarmHours {
		return nil
	}
	_, next := Month(now)
	e := &Exceeded{Resource: "warmHours", Limit: l.WarmHours, Used: used.Hours(), RetryAfter: next.Sub(now)}
	return &sandbox.Error{
		Code: sandbox.CodeExhausted, Subject: e.Resource, Message: e.Error(), Cause: e,
		Hint: "turns in progress continue; wait until " + next.Format(time.DateOnly) + ", or ask the operator for a larger quota",
	}
}

func exceeded(e *Exceeded) error {
	return &sandbox.Error{
		Code: sandbox.CodeExhausted, Subject: e.Resource, Message: e.Error(), Cause: e,
		Hint: "remove something, or ask the operator for a larger quota",
	}
}

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

func amount(resource string, v float64) string {
	switch resource {
	case "memory", "disk", "outputRate", "snapshotBytes":
		return units.BytesSize(v)
	case "warmHours":
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
