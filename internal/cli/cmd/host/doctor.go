package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// diagnosis is doctor's report about one provider.
type diagnosis struct {
	Provider     string                  `json:"provider"`
	Default      bool                    `json:"default"`
	Version      string                  `json:"version,omitempty"`
	Available    bool                    `json:"available"`
	Isolation    bool                    `json:"isolates"`
	Findings     []driver.Finding        `json:"findings"`
	Capabilities driver.Capabilities     `json:"capabilities"`
	Limits       map[string]driver.Limit `json:"limits,omitempty"`
}

// diagnose probes one provider. A provider that cannot even be probed is a
// finding like any other.
func (a providerCommands) diagnose(ctx context.Context, system target.System, info target.ProviderInfo) diagnosis {
	facts, err := system.Probe(ctx, info.Name)
	if err != nil {
		text, hint := term.Explain(err)
		facts = driver.Facts{Findings: []driver.Finding{{Severity: driver.Blocker, Subject: "probe", Message: text, Fix: hint}}}
	}
	return diagnosis{
		Provider: info.Name, Default: info.Name == a.ChosenProvider(), Version: facts.Version,
		Available: facts.Available, Isolation: facts.Isolates, Findings: append([]driver.Finding{}, facts.Findings...),
		Capabilities: facts.Capabilities, Limits: facts.Limits,
	}
}

// diagnoseDaemon asks the daemon about its state. Nil: none runs. A daemon that
// refuses or does not answer is a finding.
func (a providerCommands) diagnoseDaemon(ctx context.Context) (*operator.Diagnosis, error) {
	c, err := a.Daemon(ctx)
	if c == nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return nil, err
	}
	var d operator.Diagnosis
	if err == nil {
		d, err = c.Admin().Diagnose(ctx)
	}
	if err != nil {
		text, hint := term.Explain(err)
		f := operator.Finding{Severity: string(driver.Blocker), Subject: "daemon", Message: text, Fix: hint}
		switch sandbox.CodeOf(err) {
		case sandbox.CodeDenied, sandbox.CodeUnauthorized:
			f.Severity, d.Healthy = string(driver.Note), true
		case sandbox.CodeNotFound:
			f.Message, f.Fix = "it runs an older version, which does not support this check", "restart it: atoll down, then atoll up --detach"
		}
		d.Findings = []operator.Finding{f}
		return &d, ctx.Err()
	}
	if d.Version != a.Version.Atoll {
		d.Findings = append(d.Findings, operator.Finding{
			Severity: string(driver.Warning), Subject: "version", Message: "the daemon is " + cmp.Or(d.Version, "unknown") + " and this program " + cmp.Or(a.Version.Atoll, "unknown"),
			Fix: "restart it with this program: atoll down, then atoll up --detach; sandboxes keep running",
		})
	}
	return &d, nil
}

// showDiagnoses shows how the providers and the daemon are, if there is one.
func (a providerCommands) showDiagnoses(all []diagnosis, d *operator.Diagnosis, asJSON bool) error {
	healthy := d == nil || d.Healthy
	if all != nil {
		healthy = healthy && slices.ContainsFunc(all, func(d diagnosis) bool { return d.Default && d.Available })
	}
	var err error
	if asJSON {
		err = a.PrintJSON(struct {
			Providers []diagnosis         `json:"providers,omitempty"`
			Daemon    *operator.Diagnosis `json:"daemon,omitempty"`
		}{all, d})
	} else {
		var b strings.Builder
		for _, d := range all {
			a.writeDiagnosis(&b, d)
		}
		if d != nil {
			a.writeDaemon(&b, d)
		}
		err = a.Printf("%s", term.Painted(b.String()))
	}
	if err == nil && !healthy {
		return term.ExitCode(term.ExitFailure)
	}
	return err
}

// writeDaemon writes how a daemon is.
func (a providerCommands) writeDaemon(b *strings.Builder, d *operator.Diagnosis) {
	state, color := "well", term.Green
	if !d.Healthy {
		state, color = "not well", term.Red
	}
	title := "daemon"
	for _, more := range []string{d.Version, d.Node} {
		if more != "" {
			title += " " + more
		}
	}
	_ = term.Writef(b, "%s: %s\n", title, a.Paint(a.Stdout, color, state))
	for _, f := range d.Findings {
		a.writeFinding(b, driver.Finding{Severity: driver.Severity(f.Severity), Subject: f.Subject, Message: f.Message, Fix: f.Fix})
	}
	b.WriteByte('\n')
}

func (a providerCommands) writeFinding(b *strings.Builder, f driver.Finding) {
	color := map[driver.Severity]string{driver.OK: term.Green, driver.Note: term.Cyan, driver.Warning: term.Yellow, driver.Blocker: term.Red}[f.Severity]
	_ = term.Writef(b, "  %s %s: %s\n", a.Paint(a.Stdout, color, fmt.Sprintf("%-8s", f.Severity)), f.Subject, term.Painted(term.Visible(f.Message)))
	if f.Fix != "" {
		_ = term.Writef(b, "           fix: %s\n", term.Painted(strings.ReplaceAll(term.Visible(f.Fix), "\n", "\n                 ")))
	}
}

func (a providerCommands) writeDiagnosis(b *strings.Builder, d diagnosis) {
	state, color := "available", term.Green
	if !d.Available {
		state, color = "not available", term.Red
	}
	if d.Available && !d.Isolation {
		state, color = state+", no isolation", term.Yellow
	}
	title := d.Provider
	if d.Version != "" {
		title += " " + d.Version
	}
	if d.Default {
		title += " (default)"
	}
	_ = term.Writef(b, "%s: %s\n", title, a.Paint(a.Stdout, color, state))
	for _, f := range d.Findings {
		a.writeFinding(b, f)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Limits)) {
		l := d.Limits[name]
		how := "holds"
		if !l.Holds {
			how = "does not hold"
		}
		if l.By != "" {
			how += ", by " + l.By
		}
		if l.Why != "" {
			how += ": " + l.Why
		}
		_ = term.Writef(b, "  limit    %s: %s\n", name, how)
	}
	b.WriteByte('\n')
}
