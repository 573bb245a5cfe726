package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// ids prints the generation, and the ids of the boot and the machine.
const ids = "cat /dev/atoll/generation /proc/sys/kernel/random/boot_id /etc/machine-id 2>/dev/null || true"

// TestGeneration checks what tells programs that they were copied or restored.
func TestGeneration(t *testing.T) {
	s := newSoaker(t)
	b := s.sandbox(t, "box")
	run(t, b, "echo 0123456789abcdef0123456789abcdef >/etc/machine-id")
	before := strings.Fields(run(t, b, ids))
	uuid := regexp.MustCompile("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
	if len(before) != 3 || !uuid.MatchString(before[0]) || !uuid.MatchString(before[1]) || before[0] == before[1] {
		t.Fatalf("a new sandbox has %q", before)
	}
	if other := strings.Fields(run(t, s.sandbox(t, "other"), ids)); other[0] == before[0] || other[1] == before[1] {
		t.Errorf("two sandboxes have %q and %q", before, other)
	}
	// A program sees the change in the file that it has open.
	watcher, err := b.Exec(t.Context(), sandbox.Command{Background: true, Shell: `exec 3</dev/atoll/generation; read old <&3
cd /tmp; echo x >ready; while :; do new=$(cat /proc/self/fd/3 /dev/atoll/generation | tail -n 1); [ "$new" = "$old" ] || { echo "$old $new" >seen; exit; }; sleep 0.1; done`})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	run(t, b, `mkdir -p /etc/atoll/restored.d; cd /etc/atoll/restored.d
printf '#!/bin/sh\necho $ATOLL_GENERATION $(hostname) $(id -u) >>/tmp/hook\n' >10-first
printf '#!/bin/sh\necho second >>/tmp/hook; echo said; exit 3\n' >20-second
printf '#!/bin/sh\necho never >>/tmp/hook\n' >30-not-executable
chmod 755 10-first 20-second; until [ -e /tmp/ready ]; do sleep 0.1; done`)

	same := func(what string) {
		t.Helper()
		if now := strings.Fields(run(t, b, ids)); strings.Join(now, " ") != strings.Join(before, " ") {
			t.Errorf("%s changed the ids from %q to %q", what, before, now)
		}
		run(t, b, "[ ! -e /tmp/hook ]")
	}
	changed := func(what string, c *atoll.Sandbox, times int) []string {
		t.Helper()
		now := strings.Fields(run(t, c, ids))
		for i, name := range []string{"generation", "boot_id", "machine-id"} {
			if now[i] == before[i] {
				t.Errorf("%s did not change the %s", what, name)
			}
		}
		want := now[0] + " " + c.Name() + " 0\nsecond"
		got := run(t, c, "tail -n 2 /tmp/hook; [ $(wc -l </tmp/hook) = "+string(rune('0'+2*times))+" ]")
		if got != want {
			t.Errorf("after %s the hooks wrote %q, want %q", what, got, want)
		}
		if got := run(t, c, "cat /dev/atoll/restored.log"); got != "said\n/etc/atoll/restored.d/20-second: exit code 3" {
			t.Errorf("after %s the log of the hooks is %q", what, got)
		}
		return now
	}
	forks, err := b.Fork(t.Context(), durable.ForkRequest{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	same("a fork of it")
	var seen []string
	for _, f := range forks {
		seen = append(seen, changed("a fork", f, 1)...)
		run(t, f, "until [ -e /tmp/seen ]; do sleep 0.1; done")
	}
	if seen[0] == seen[3] || seen[1] == seen[4] || seen[2] == seen[5] {
		t.Errorf("two forks have %q", seen)
	}
	if _, err := b.Pause(t.Context(), sandbox.PauseMemory); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	same("a pause in memory")
	if _, err := b.Pause(t.Context(), sandbox.PauseDisk); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	changed("a pause to disk", b, 1)
}
