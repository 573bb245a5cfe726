// Package none is the provider for deployments without sandboxes, for example a
// daemon that only stores sessions and configuration. Every operation fails
// with an error that says so.
package none

import (
	"context"
	"iter"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "none"

const (
	message = "the provider none makes no sandboxes"
	hint    = "choose another provider; see: atoll provider ls"
)

// Provider refuses all operations. Create one with New.
type Provider struct{}

var (
	_ driver.Provider       = Provider{}
	_ driver.EgressEnforcer = Provider{}
	_ driver.Binder         = Provider{}
	_ driver.ImageChecker   = Provider{}
)

// New returns the provider.
func New() Provider { return Provider{} }

// Probe implements driver.Provider.
func (Provider) Probe(ctx context.Context) (driver.Facts, error) {
	no := driver.Limit{Why: message}
	return driver.Facts{
		Provider: Name, Version: "1", Isolates: true,
		Findings: []driver.Finding{{Severity: driver.Blocker, Subject: "provider", Message: message, Fix: hint}},
		Limits:   map[string]driver.Limit{"cpus": no, "memory": no, "disk": no, "pids": no, "lifetime": no},
	}, ctx.Err()
}

// Create implements driver.Provider. It fails with CodeUnavailable.
func (Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "none.create", Subject: string(spec.ID), Message: message, Hint: hint}
}

// Attach implements driver.Provider. It fails with CodeUnsupported and not
// CodeGone, because the sandbox may belong to another provider.
func (Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "none.attach", Subject: string(id), Message: message, Hint: hint}
}

// List implements driver.Provider. The list is empty.
func (Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(driver.Found{}, err)
		}
	}
}

// EgressAbility implements driver.EgressEnforcer.
func (Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.None}
}

// Binding implements driver.Binder.
func (Provider) Binding(ctx context.Context) (string, error) { return Name, ctx.Err() }

// CheckImage implements driver.ImageChecker. It prevents fetching images.
func (Provider) CheckImage(string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "none.create", Subject: "image", Message: message, Hint: hint}
}

// ErrorCode implements driver.Provider.
func (Provider) ErrorCode(err error) sandbox.Code {
	if code := sandbox.CodeOf(err); code != sandbox.CodeInternal {
		return code
	}
	return ""
}

// Close implements driver.Provider.
func (Provider) Close() error { return nil }
