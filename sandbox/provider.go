package sandbox

// Provider describes what can make sandboxes in a daemon, or here.
type Provider struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
	Warning string `json:"warning,omitempty"` // shown whenever it runs something
	Default bool   `json:"default"`           // for requests that name none
	Version string `json:"version,omitempty"` // of the technology behind it
	// Available says that it can make sandboxes now, and Isolates that code
	// inside cannot harm the machine.
	Available bool `json:"available"`
	Isolates  bool `json:"isolates"`
	// SharesFiles says that its sandboxes have no root file system of their own:
	// commands see and change the files of the machine, so that no workspace and
	// no session can be brought there.
	SharesFiles bool `json:"sharesFiles,omitempty"`
	// Images says that it makes sandboxes from OCI images of registries, whoever
	// fetches them.
	Images bool `json:"images,omitempty"`
	// Binding is the account or address that its sandboxes belong to. Empty: the
	// machine.
	Binding string `json:"binding,omitempty"`
	// Capabilities are what its sandboxes can do, by name.
	Capabilities map[string]bool `json:"capabilities"`
	// Limits say which limits of a sandbox hold, by name.
	Limits map[string]Enforcement `json:"limits,omitempty"`
	// Descriptor is what is known about the provider without asking it.
	Descriptor Descriptor `json:"descriptor"`
	// Problem says why it cannot be used, or why nothing more is known.
	Problem string `json:"problem,omitempty"`
}
