package drivertest

import (
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// The names of capabilities, as in their JSON form.
const (
	capFiles     = "files"
	capWatch     = "watch"
	capArchive   = "archive"
	capTerminal  = "terminal"
	capProcesses = "processes"
	capUsers     = "users"
	capImages    = "images"
	capMounts    = "mounts"
	capNetwork   = "network"
	capReattach  = "reattach"
	capPause     = "pause"
	capSnapshot  = "snapshot"
	capMemory    = "memory"
	capDiff      = "diff"
	capPorts     = "ports"
	capResize    = "resize"
	capDeadline  = "deadline"
	capUsage     = "usage"
	capPreviews  = "previews"
	capRejoin    = "rejoin"
)

func (s *suite) declared(capability string) bool {
	c := s.facts.Capabilities
	return map[string]bool{
		capFiles: c.Files, capWatch: c.Watch, capArchive: c.Archive, capTerminal: c.Terminal, capProcesses: c.Processes,
		capUsers: c.Users, capImages: c.Images, capMounts: c.Mounts, capNetwork: c.Network, capReattach: c.Reattach,
		capPause: c.Pause, capSnapshot: c.Snapshot, capMemory: c.Memory, capDiff: c.Diff, capPorts: c.Ports, capResize: c.Resize,
		capDeadline: c.Deadline, capUsage: c.Usage, capPreviews: c.Previews, capRejoin: c.Rejoin,
	}[capability]
}

// implemented reports whether an instance has the interface of a capability;
// known is false for capabilities without one.
func implemented(inst driver.Instance, capability string) (has, known bool) {
	switch capability {
	case capFiles:
		_, has = driver.As[driver.FileSystem](inst)
	case capWatch:
		_, has = driver.As[driver.Watcher](inst)
	case capArchive:
		_, has = driver.As[driver.Archiver](inst)
	case capProcesses:
		_, has = driver.As[driver.ProcessManager](inst)
	case capPause:
		_, has = driver.As[driver.Pauser](inst)
	case capSnapshot:
		_, has = driver.As[driver.Snapshotter](inst)
	case capDiff:
		_, has = driver.As[driver.Differ](inst)
	case capPorts:
		_, has = driver.As[driver.Dialer](inst)
	case capResize:
		_, has = driver.As[driver.Resizer](inst)
	case capDeadline:
		_, has = driver.As[driver.DeadlineSetter](inst)
	case capPreviews:
		_, has = driver.As[driver.Previewer](inst)
	case capRejoin:
		_, has = driver.As[driver.Rejoiner](inst)
	case capUsage:
		_, has = driver.As[driver.Meter](inst)
	default:
		return false, false
	}
	return has, true
}

// assertAbsent checks that a capability that is not declared is absent: its
// interface is missing, and using it is CodeUnsupported.
func (t *caseT) assertAbsent(capability string) {
	if capability == capReattach {
		t.assertNoReattach()
		return
	}
	if capability == capImages || capability == capMounts || capability == capNetwork {
		t.refusesSpec(capability)
		return
	}
	b := t.sandbox()
	if has, known := implemented(b.inst, capability); known && has {
		t.Errorf("%s is not declared, but the instance implements it", capability)
	}
	if capability == capMemory {
		if snap, ok := driver.As[driver.Snapshotter](b.inst); ok {
			_, err := snap.Snapshot(t.ctx, driver.SnapshotOptions{ID: newSnapshotID(), Memory: true})
			t.wantCode("Snapshot with memory, which is not declared", err, sandbox.CodeUnsupported)
		}
		return
	}
	cmd := sandbox.Command{Args: []string{"true"}}
	switch capability {
	case capTerminal:
		cmd.TTY = &sandbox.WindowSize{Cols: 80, Rows: 24}
	case capUsers:
		cmd.User = "1234"
	case capProcesses:
		cmd.Background = true
	default:
		return
	}
	p, err := b.inst.Exec(t.ctx, &cmd)
	if err == nil {
		_ = p.Close()
	}
	t.wantCode("Exec that needs "+capability+", which is not declared", err, sandbox.CodeUnsupported)
}

// refusesSpec checks that Create refuses a spec that needs the capability.
func (t *caseT) refusesSpec(capability string) {
	spec := t.spec(func(s *sandbox.Spec) {
		switch capability {
		case capImages:
			s.Image = "dir:" + t.TempDir()
		case capNetwork:
			s.Network.Egress = []string{"drivertest.example"}
		default:
			s.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/mnt/drivertest"}}
		}
	})
	inst, err := t.provider.Create(t.ctx, spec)
	if err == nil {
		_ = inst.Destroy(t.ctx)
	}
	t.wantCode("Create that needs "+capability+", which is not declared", err, sandbox.CodeUnsupported)
	t.notListed(t.provider, spec.ID)
}

// assertNoReattach checks that a provider without reattachment does not find a
// running sandbox of another process, and does not report it as gone.
func (t *caseT) assertNoReattach() {
	b := t.fresh()
	_, err := t.connect().Attach(t.ctx, b.inst.ID())
	t.wantCode("Attach to another process's sandbox", err, sandbox.CodeUnsupported)
}

func capabilityCase(capability string) testCase {
	return testCase{"capabilities/" + capability, "", func(t *caseT) {
		if !t.declared(capability) {
			t.assertAbsent(capability)
			return
		}
		b := t.sandbox()
		if has, known := implemented(b.inst, capability); known && !has {
			t.Errorf("%s is declared, but the instance does not implement it", capability)
		}
		if _, restores := driver.As[driver.Restorer](t.provider); capability == capSnapshot && !restores {
			t.Errorf("snapshot is declared, but the provider restores none")
		}
		if _, keeps := driver.As[driver.SnapshotKeeper](t.provider); capability == capSnapshot && !keeps {
			t.Errorf("snapshot is declared, but the provider is no driver.SnapshotKeeper")
		}
	}}
}

var capabilityCases = []testCase{
	{"probe/facts", "", func(t *caseT) {
		f, err := t.provider.Probe(t.ctx)
		t.ok("Probe", err)
		if f.Provider == "" || !f.Available {
			t.Errorf("Probe says provider %q, available %v", f.Provider, f.Available)
		}
		if f.Capabilities != t.facts.Capabilities {
			t.Errorf("capabilities changed: %+v, then %+v", t.facts.Capabilities, f.Capabilities)
		}
		if f.Capabilities.Watch && !f.Capabilities.Files {
			t.Errorf("watch is declared without files")
		}
	}},
	{"probe/binding", "", func(t *caseT) {
		b, ok := driver.As[driver.Binder](t.provider)
		if !ok {
			return // sandboxes cannot belong to another account
		}
		binding, err := b.Binding(t.ctx)
		t.ok("Binding", err)
		again, ok := driver.As[driver.Binder](t.connect())
		if !ok {
			t.Fatalf("the provider is a Binder only once")
		}
		same, err := again.Binding(t.ctx)
		t.ok("Binding", err)
		if binding == "" || same != binding {
			t.Errorf("the binding is %q, and %q for a second provider of the same sandboxes; want one that is stable", binding, same)
		}
		t.hides("the binding", binding)
	}},
	{"probe/findings", "", func(t *caseT) {
		for _, f := range t.facts.Findings {
			switch f.Severity {
			case driver.OK, driver.Note, driver.Warning:
			case driver.Blocker:
				t.Errorf("a blocker although the provider is available: %+v", f)
			default:
				t.Errorf("a finding with severity %q", f.Severity)
			}
			if f.Subject == "" || f.Message == "" {
				t.Errorf("a finding without subject or message: %+v", f)
			}
		}
		if !t.facts.Isolates && len(t.facts.Findings) == 0 {
			t.Errorf("the provider does not isolate, and no finding says so")
		}
	}},
	{"probe/limits", "", func(t *caseT) {
		for _, name := range []string{"cpus", "memory", "disk", "pids", "lifetime"} {
			l, ok := t.facts.Limits[name]
			switch {
			case !ok:
				t.Errorf("Probe does not say whether the limit of %s holds", name)
			case l.Holds && l.By == "":
				t.Errorf("the limit of %s holds, but not by what", name)
			case !l.Holds && l.Why == "":
				t.Errorf("the limit of %s does not hold, but not why", name)
			}
		}
	}},
	capabilityCase(capFiles),
	capabilityCase(capWatch),
	capabilityCase(capArchive),
	capabilityCase(capTerminal),
	capabilityCase(capProcesses),
	capabilityCase(capUsers),
	capabilityCase(capImages),
	capabilityCase(capMounts),
	capabilityCase(capNetwork),
	capabilityCase(capReattach),
	capabilityCase(capPause),
	capabilityCase(capSnapshot),
	capabilityCase(capMemory),
	capabilityCase(capDiff),
	capabilityCase(capPorts),
	capabilityCase(capResize),
	capabilityCase(capDeadline),
	capabilityCase(capUsage),
	capabilityCase(capPreviews),
	capabilityCase(capRejoin),
}
