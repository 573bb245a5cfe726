package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// peer is the other daemon's description of itself.
type peer struct {
	binding  string
	provider catalog.Provider
}

// errNoAddress is the error of every call without an address.
var errNoAddress = &sandbox.Error{
	Code: sandbox.CodeUnavailable, Op: "remote.open", Message: "no other daemon is named", Hint: "set ATOLL_REMOTE_HOST and ATOLL_REMOTE_KEY",
}

// known returns the other daemon's description, requested at most once.
func (p *Provider) known(ctx context.Context) (*peer, error) {
	p.mu.Lock()
	known := p.peer
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	now, err := p.ask(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.peer == nil {
		p.peer = now
	}
	return p.peer, nil
}

// ask requests the other daemon's description.
func (p *Provider) ask(ctx context.Context) (*peer, error) {
	if p.client == nil {
		return nil, errNoAddress
	}
	binding, err := p.Whose(ctx)
	if err != nil {
		return nil, err
	}
	if p.opts.Binding != "" && binding != p.opts.Binding {
		return nil, p.another(p.host, p.opts.Binding, binding)
	}
	all, err := p.client.Providers(ctx)
	if err != nil {
		return nil, p.explain(err)
	}
	at := slices.IndexFunc(all, func(one catalog.Provider) bool {
		return one.Name == p.opts.Provider || p.opts.Provider == "" && one.Default
	})
	if at < 0 {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: p.host, Message: "the daemon has no provider " + p.opts.Provider}
	}
	return &peer{binding: binding, provider: all[at]}, nil
}

// Whose asks for the binding of the sandboxes that the key can reach. A daemon
// has no name; a tenant has one. Its creation time distinguishes it from
// tenants with the same name in other databases.
func (p *Provider) Whose(ctx context.Context) (string, error) {
	t, err := p.client.Admin().Tenant(ctx)
	if err != nil {
		return "", p.explain(err)
	}
	if t.ID == "" || t.Created.IsZero() {
		return "", &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: p.host, Message: "the daemon does not say which tenant the key belongs to"}
	}
	sum := sha256.Sum256([]byte(t.ID + "\n" + t.Created.UTC().Format(time.RFC3339Nano)))
	return t.ID + "#" + hex.EncodeToString(sum[:8]), nil
}

// Binding implements driver.Binder. It returns the tenant of the other daemon,
// requested at most once.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	k, err := p.known(ctx)
	if err != nil {
		return "", err
	}
	return k.binding, nil
}

// absent returns the error for a sandbox that the other daemon does not have.
// It is CodeGone only if the daemon and the tenant are still those that this
// provider started with.
func (p *Provider) absent(ctx context.Context, id sandbox.ID) error {
	k, err := p.known(ctx)
	if err != nil {
		return err
	}
	now, err := p.Whose(ctx)
	if err != nil {
		return err
	}
	if now != k.binding {
		return p.another(string(id), k.binding, now)
	}
	return &sandbox.Error{Code: sandbox.CodeGone, Subject: string(id), Message: "the sandbox does not exist"}
}

// another returns the error for sandboxes that are not those of the daemon that
// answers.
func (p *Provider) another(subject, want, got string) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Subject: subject, Message: "the sandbox belongs to " + want + ", and " + p.host + " is now " + got,
		Hint: "use its original address and a key of its tenant",
	}
}

// limits are the limits that Facts must describe.
var limits = []string{"cpus", "memory", "disk", "pids", "lifetime"}

// Probe implements driver.Provider.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	if err := ctx.Err(); err != nil {
		return driver.Facts{}, err
	}
	facts := driver.Facts{Provider: Name, Limits: map[string]driver.Limit{}}
	for _, name := range limits {
		facts.Limits[name] = driver.Limit{Why: "the other daemon does not say whether it holds"}
	}
	now, err := p.ask(ctx)
	if ctx.Err() != nil {
		return driver.Facts{}, ctx.Err()
	}
	if err != nil {
		facts.Findings = append(facts.Findings, blocker(err))
		return facts, nil
	}
	p.mu.Lock()
	if p.peer == nil {
		p.peer = now
	}
	p.mu.Unlock()
	p.describe(&facts, &now.provider)
	return facts, nil
}

func blocker(err error) driver.Finding {
	f := driver.Finding{Severity: driver.Blocker, Subject: "daemon", Message: err.Error(), Fix: "check ATOLL_REMOTE_HOST and whether the daemon there is running"}
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Hint != "" {
		f.Fix = e.Hint
	}
	return f
}

// describe adds the other daemon's provider to facts.
func (p *Provider) describe(facts *driver.Facts, other *catalog.Provider) {
	facts.Version, facts.Available, facts.Isolates = other.Name+" "+other.Version, other.Available, other.Isolates
	facts.Isolation = other.Descriptor.Isolation
	facts.SharesFiles = other.SharesFiles
	facts.Capabilities = capabilities(other)
	for _, name := range limits {
		if l, ok := other.Limits[name]; ok {
			facts.Limits[name] = driver.Limit{Holds: l.Enforced, Why: l.Why, By: "the daemon at " + p.host}
		}
		if l := facts.Limits[name]; !l.Holds && l.Why == "" {
			facts.Limits[name] = driver.Limit{Why: "the daemon at " + p.host + " does not enforce it"}
		}
	}
	add := func(severity driver.Severity, subject, message string) {
		facts.Findings = append(facts.Findings, driver.Finding{Severity: severity, Subject: subject, Message: message})
	}
	switch {
	case !other.Available:
		add(driver.Blocker, "provider", "the provider "+other.Name+" of "+p.host+" is not available: "+other.Problem)
	default:
		add(driver.OK, "daemon", p.host+" answers and takes the key; its provider "+other.Name+" makes the sandboxes")
	}
	if !other.Isolates {
		add(driver.Warning, "isolation", "sandboxes of the provider "+other.Name+" are not isolated from the machine of the other daemon")
	}
	if other.Warning != "" {
		add(driver.Warning, "provider", other.Warning)
	}
}

// capabilities returns those of the other daemon's provider that its API can
// carry.
func capabilities(other *catalog.Provider) (c driver.Capabilities) {
	if text, err := json.Marshal(other.Capabilities); err == nil {
		_ = json.Unmarshal(text, &c) // both types have the same boolean fields
	}
	c.Reattach = true // the other daemon keeps them
	c.Mounts, c.Images, c.Network, c.Diff = false, false, false, false
	return c
}

// isTyped reports whether an error has a code.
func isTyped(err error) bool {
	_, ok := errors.AsType[*sandbox.Error](err)
	return ok
}

// explain adds the other daemon's address to a connection error.
func (p *Provider) explain(err error) error {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		return err
	}
	inner, typed := errors.AsType[*sandbox.Error](e.Cause)
	switch {
	case typed && e.Op == "client.request": // the transport knows more
		own := *inner
		own.Subject = p.host
		return &own
	case e.Code == sandbox.CodeUnavailable && e.Op == "client.request":
		return &sandbox.Error{
			Code: e.Code, Subject: p.host, Message: e.Message, Cause: e,
			Hint: "check ATOLL_REMOTE_HOST and whether the daemon there is running",
		}
	case e.Code == sandbox.CodeUnauthorized && !ofImage(e):
		return &sandbox.Error{
			Code: e.Code, Subject: p.host, Message: "the daemon does not take the API key", Cause: e,
			Hint: "set ATOLL_REMOTE_KEY, or ATOLL_REMOTE_KEY_FILE, to a key that was made there with: atoll key create",
		}
	}
	return err
}
