package hosted

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Quote quotes arguments for a shell.
func Quote(argv []string) string {
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// Env converts an environment to a map.
func Env(env []string) map[string]string {
	vars := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	return vars
}

// usageScript prints the total and available memory and the used disk space in
// KiB, and the number of processes.
const usageScript = `while read -r name n rest; do case $name in MemTotal:) t=$n ;; MemFree:) f=$n ;; MemAvailable:) a=$n ;; esac; done </proc/meminfo
set -- /proc/[0-9]*
n=$#
set -- $(df -Pk / | tail -n 1)
echo "$((t - ${a:-$f})) ${3:--1} $n"`

// Usage measures a sandbox from inside. run runs a script in it and returns the
// output. Processor time is not measured.
func Usage(ctx context.Context, in *guestkit.Instance, run func(context.Context, string) (string, error)) (sandbox.Usage, error) {
	if _, ended := in.Ended(); ended {
		return sandbox.Usage{}, guestkit.Gone(in.ID())
	}
	// Start the guest first: it counts as a process in every measurement.
	if err := in.Use(ctx, false, func(context.Context, *guest.Client) error { return nil }); err != nil {
		return sandbox.Usage{}, err
	}
	out, err := run(ctx, usageScript)
	if err != nil {
		return sandbox.Usage{}, in.Explain(ctx, err)
	}
	u := sandbox.Usage{CPU: -1, Memory: -1, Disk: -1, PIDs: -1, Sampled: time.Now()}
	fields := strings.Fields(out)
	for i, into := range []*int64{&u.Memory, &u.Disk, &u.PIDs} {
		if i < len(fields) {
			if n, err := strconv.ParseInt(fields[i], 10, 64); err == nil && n >= 0 {
				*into = n
			}
		}
	}
	if u.Memory > 0 {
		u.Memory <<= 10
	}
	if u.Disk > 0 {
		u.Disk <<= 10
	}
	return u, nil
}

// Destinations returns the names and addresses that rules allow.
func Destinations(rules *sandbox.EgressRules) []string {
	all := []string{}
	if rules == nil {
		return all
	}
	for _, t := range rules.Allow {
		if t.Host != "" {
			all = append(all, t.Host)
		} else {
			all = append(all, t.Prefix.String())
		}
	}
	return all
}
