//go:build docker

package docker_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/sandbox"
)

// Root in the container cannot get past a limit that the provider claims to
// enforce.
func TestAttackClaims(t *testing.T) {
	p := open(t, options(t.TempDir()))
	facts, err := p.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"memory", "cpus", "pids", "lifetime"} {
		if !facts.Limits[name].Holds {
			t.Errorf("this daemon does not enforce the limit of %s: %+v", name, facts.Limits[name])
		}
	}
	if facts.Limits["disk"].Holds {
		t.Error("a limit of the disk is claimed, which nothing enforces")
	}
	const pids = 40
	limits := sandbox.Resources{Memory: 64 << 20, CPUs: 0.5, PIDs: pids}
	neighbour := create(t, p, sandbox.Spec{ID: "neighbour-1"})
	in := create(t, p, sandbox.Spec{ID: "attacker-1", Resources: limits})
	for what, attack := range map[string]struct{ script, want string }{
		"more memory":           {`dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null && echo taken || echo refused`, "refused"},
		"lifting its own limit": {`for f in memory.max pids.max cpu.max memory/memory.limit_in_bytes pids/pids.max; do echo max >/sys/fs/cgroup/$f; done 2>/dev/null && echo lifted || echo refused`, "refused"},
		"the machine's disks": {
			`tail -n +3 /proc/partitions | while read major minor size name; do mknod /tmp/$name b $major $minor && dd if=/tmp/$name of=/dev/null bs=512 count=1 && echo read; done 2>/dev/null; echo done`, "done",
		},
		"the machine's memory":   {`(mknod /tmp/mem c 1 1 && dd if=/tmp/mem of=/dev/null bs=1 count=1) 2>/dev/null && echo read || echo refused`, "refused"},
		"a mount":                {`mount -t tmpfs none /mnt 2>/dev/null && echo mounted || echo refused`, "refused"},
		"settings of the kernel": {`echo 0 2>/dev/null >/proc/sys/kernel/randomize_va_space && echo written || echo refused`, "refused"},
		"another network":        {`ls /sys/class/net`, "lo"},
		"the daemon's socket":    {`ls /var/run/docker.sock /run/docker.sock 2>/dev/null; echo done`, "done"},
	} {
		t.Run(strings.ReplaceAll(what, " ", "-"), func(t *testing.T) {
			if got := shell(t, in, attack.script); got != attack.want {
				t.Errorf("%s: %q, want %q", what, got, attack.want)
			}
		})
	}
	// The shell ends at the first process that it cannot start.
	shell(t, in, `i=0; while [ $i -lt 300 ]; do sleep 600 >/dev/null 2>&1 & i=$((i+1)); done 2>/dev/null`)
	n, err := strconv.Atoi(shell(t, neighbour, `ls /proc | grep -c '^[0-9]'`))
	if err != nil || n > 20 {
		t.Errorf("the neighbour sees %d processes, %v; want its own", n, err)
	}
	stats, err := api.ContainerTop(t.Context(), containers(t, "attacker-1")[0].ID, client.ContainerTopOptions{})
	const guest = 32 // at most, beside the limit
	if err != nil || len(stats.Processes) > pids+guest || len(stats.Processes) < pids/2 {
		t.Errorf("%d processes run, %v; want about the limit of %d", len(stats.Processes), err, pids)
	}
	if got := shell(t, neighbour, "echo here"); got != "here" {
		t.Errorf("the neighbour says %q", got)
	}
}
