package catalog

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/providers.md anew")

// The matrix of providers is made of their descriptors. After a change:
// go test ./catalog -run TestMatrix -update
func TestMatrix(t *testing.T) {
	const file = "../docs/reference/providers.md"
	text := matrix(Known())
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != text {
		t.Errorf("%s is not what the descriptors say; write it anew with: go test ./catalog -run TestMatrix -update", file)
	}
}

func matrix(list []Descriptor) string {
	mark := func(b bool) string {
		if b {
			return "yes"
		}
		return "–"
	}
	var b strings.Builder
	b.WriteString(`# Providers

What each system can do through Atoll's driver or, without one, as far as Atoll knows. Generated from the descriptors in ` + "`catalog`" + `. ` + "`atoll provider ls`" + ` shows which ones this build has a driver for,
and ` + "`atoll provider show NAME`" + ` everything about one. *Isolation* is the wall around a sandbox: the
machine's own kernel (none), a kernel of its own (kernel), or a virtual machine (hardware); – means that it is not known, which counts as none. *Verified* says what the driver was tested with: the technology itself (live), a fake that the official client
accepts too (fake), or nothing yet (none).

| provider | tier | isolation | pause | snapshot | fork | egress | ports | terminal | desktop | lifetime | verified |
|---|---|---|---|---|---|---|---|---|---|---|---|
`)
	// name links the page of a provider.
	name := func(name string) string {
		page := "providers/" + name + ".md"
		if name == "selfhosted" {
			page = "../guide/own-machine.md"
		}
		if _, err := os.Stat("../docs/reference/" + page); err != nil {
			return name
		}
		return "[" + name + "](" + page + ")"
	}
	for _, d := range list {
		pause, life := string(d.Pause), "–"
		if pause == "" {
			pause = "–"
		}
		if d.Lifetime.Hard > 0 {
			life = d.Lifetime.Hard.String()
		}
		rules := string(d.Egress)
		for _, c := range d.Credentials {
			if c.Name == gatewaySetting {
				rules += "; full with `" + c.Env + "`"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", name(d.Name), d.Tier, cmp.Or(string(d.Isolation), "–"), pause, d.Snapshot.Kind, mark(d.Fork), rules, d.Ports.Kind,
			mark(d.Terminal.PTY), mark(d.Desktop.Available), life, d.Verified)
	}
	b.WriteString("\nThe page of a provider lists its settings, and `atoll provider show NAME` which of them it needs. [Providers of services](hosted.md) have most things in common.\n")
	return b.String()
}

// Every setting of a provider is on its page.
func TestSettingsAreOnPages(t *testing.T) {
	found := 0
	for _, d := range Known() {
		page, err := os.ReadFile("../docs/reference/providers/" + d.Name + ".md")
		if errors.Is(err, fs.ErrNotExist) {
			continue // the guide of selfhosted; the providers fake and host have no settings
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range d.Credentials {
			found++
			if !strings.Contains(string(page), "`"+c.Env+"`") {
				t.Errorf("the page of %s does not name `%s`", d.Name, c.Env)
			}
		}
	}
	if found < 80 {
		t.Errorf("there are only %d settings", found)
	}
}
