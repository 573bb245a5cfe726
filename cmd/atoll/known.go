//go:build linux

package main

import (
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/cli/target"
)

// known describes the providers for the command line.
func known() (out []target.ProviderInfo) {
	for _, p := range catalog.Builtin() {
		out = append(out, target.ProviderInfo{Name: p.Name, Summary: p.Summary, Warning: p.Warning})
	}
	return out
}
