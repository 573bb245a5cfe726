package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
)

// diagnosis is what doctor tells about one provider.
type diagnosis struct {
	Provider     string                  `json:"provider"`
	Default      bool                    `json:"default"`
	Version      string                  `json:"version,omitempty"`
	Available    bool                    `json:"available"`
	Isolates     bool                    `json:"isolates"`
	Findings     []driver.Finding        `json:"findings"`
	Capabilities driver.Capabilities     `json:"capabilities"`
	Limits       map[string]driver.Limit `json:"limits,omitempty"`
}

// diagnose probes one provider. A provider that cannot even be probed is a
// finding like any other.
func (a *App) diagnose(ctx context.Context, system System, info ProviderInfo) diagnosis {
	facts, err := system.Probe(ctx, info.Name)
	if err != nil {
		text, hint := explain(err)
		facts = driver.Facts{Findings: []driver.Finding{{Severity: driver.Blocker, Subject: "probe", Message: text, Mend: hint}}}
	}
	return diagnosis{
		Provider: info.Name, Default: info.Name == a.chosenProvider(), Version: facts.Version,
		Available: facts.Available, Isolates: facts.Isolates, Findings: append([]driver.Finding{}, facts.Findings...),
		Capabilities: facts.Capabilities, Limits: facts.Limits,
	}
}

func (a *App) showDiagnoses(all []diagnosis, asJSON bool) error {
	healthy := slices.ContainsFunc(all, func(d diagnosis) bool { return d.Default && d.Available })
	var err error
	if asJSON {
		err = a.printJSON(all)
	} else {
		var b strings.Builder
		for _, d := range all {
			a.writeDiagnosis(&b, d)
		}
		_, err = fmt.Fprint(a.Stdout, b.String())
	}
	if err == nil && !healthy {
		return exitCode(exitFailure)
	}
	return err
}

func (a *App) writeDiagnosis(b *strings.Builder, d diagnosis) {
	state, color := "available", green
	if !d.Available {
		state, color = "not available", red
	}
	if d.Available && !d.Isolates {
		state, color = state+", isolates nothing", yellow
	}
	title := d.Provider
	if d.Version != "" {
		title += " " + d.Version
	}
	if d.Default {
		title += " (default)"
	}
	fmt.Fprintf(b, "%s: %s\n", visible(title), a.paint(a.Stdout, color, state))
	for _, f := range d.Findings {
		color := map[driver.Severity]string{driver.OK: green, driver.Note: cyan, driver.Warning: yellow, driver.Blocker: red}[f.Severity]
		fmt.Fprintf(b, "  %s %s: %s\n", a.paint(a.Stdout, color, fmt.Sprintf("%-8s", f.Severity)), visible(f.Subject), visible(f.Message))
		if f.Mend != "" {
			fmt.Fprintf(b, "           mend: %s\n", strings.ReplaceAll(visible(f.Mend), "\n", "\n                 "))
		}
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
		fmt.Fprintf(b, "  limit    %s: %s\n", visible(name), visible(how))
	}
	b.WriteByte('\n')
}
