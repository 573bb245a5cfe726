package catalog

import "github.com/atoll-run/atoll/sandbox"

// Provider describes a provider of a daemon, which makes sandboxes.
type Provider struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
	Warning string `json:"warning,omitempty"` // shown whenever it runs a command
	Default bool   `json:"default"`           // used for requests that name no provider
	Version string `json:"version,omitempty"` // version of the underlying technology
	// Available says that it can make sandboxes now. Isolates says that code inside
	// cannot harm the machine.
	Available bool `json:"available"`
	Isolates  bool `json:"isolates"`
	// SharesFiles says that its sandboxes do not have their own root file system:
	// commands see and change the files of the machine. Workspaces and sessions
	// cannot be moved to such a provider.
	SharesFiles bool `json:"sharesFiles,omitempty"`
	// Images says that it makes sandboxes from OCI images of registries.
	Images bool `json:"images,omitempty"`
	// Binding is the account or endpoint that its sandboxes belong to. Empty: this
	// machine.
	Binding string `json:"binding,omitempty"`
	// Capabilities are what its sandboxes can do, by name.
	Capabilities map[string]bool `json:"capabilities"`
	// Limits says which limits of a sandbox are enforced, by name.
	Limits map[string]sandbox.Enforcement `json:"limits,omitempty"`
	// Descriptor is the static description of the provider.
	Descriptor Descriptor `json:"descriptor"`
	// Problem says why it cannot be used, or why nothing more is known.
	Problem string `json:"problem,omitempty"`
}
