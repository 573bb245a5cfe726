package hosted

import (
	"context"
	"net/url"

	"github.com/atoll-run/atoll/driver"
)

// Description is what a provider says of itself for Probe. The rest follows
// from its Core.
type Description struct {
	Version  string // of the service's API
	Limits   map[string]driver.Limit
	Deadline bool // the lifetime of a running sandbox can be changed
	Previews bool // ports have URLs of the service
	// Needs is the variable without which nothing works, and What it is.
	Needs, What string
	// Credential and Address are the variables of the credential and of the
	// service's addresses.
	Credential, Address string
	Notes               []driver.Finding
	// Tested says what the driver was tested with. Empty: a fake service.
	Tested string
}

// Facts implements driver.Provider.Probe. set reports whether the setting d.Needs
// is there. ask makes a first request to the service, whose addresses are urls.
func (c *Core) Facts(ctx context.Context, d *Description, set bool, ask func(context.Context) error, urls ...*url.URL) (driver.Facts, error) {
	if err := ctx.Err(); err != nil {
		return driver.Facts{}, err
	}
	facts := driver.Facts{
		Provider: c.Name, Version: d.Version, Engine: c.Name, Isolates: true, Limits: d.Limits,
		Capabilities: driver.Capabilities{ // most of them are the guest's
			Files: true, Watch: true, Archive: true, Terminal: true, Processes: true, Users: true, Reattach: true, Ports: true, Usage: true, Rejoin: true,
			Snapshot: c.keeper != nil, Memory: c.keeper != nil && c.keeper.Memory, Deadline: d.Deadline, Previews: d.Previews,
		},
	}
	if set {
		AddFindings(&facts, ask(ctx), d.Credential, d.Address, urls...)
	} else {
		facts.Findings = []driver.Finding{{Severity: driver.Blocker, Subject: d.What, Message: "it is not set", Fix: "set " + d.Needs}}
	}
	if err := ctx.Err(); err != nil {
		return driver.Facts{}, err
	}
	tested := d.Tested
	if tested == "" {
		tested = "tested with a fake service, not with the real one"
	}
	facts.Findings = append(append(facts.Findings, d.Notes...), driver.Finding{Severity: driver.Note, Subject: "service", Message: tested})
	return facts, nil
}
