package operator

import "time"

// ConsoleSettings say where a daemon serves the web console.
type ConsoleSettings struct {
	// Listen is a loopback address, HOST:PORT. Empty: where the daemon serves
	// clients over TCP already or, without that, DefaultConsole.
	Listen string `json:"listen,omitempty" maxLength:"255"`
}

// DefaultConsole is the address of the console on this machine.
const DefaultConsole = "127.0.0.1:7070"

// ConsoleLink opens the web console, signed in.
type ConsoleLink struct {
	URL     string    `json:"url" doc:"with a code that is valid once"`
	Expires time.Time `json:"expires" doc:"of the code"`
}

// Caller is who calls the API.
type Caller struct {
	Tenant string   `json:"tenant"`
	Key    string   `json:"key,omitempty" doc:"public part of the key"`
	Verbs  []string `json:"verbs" doc:"permissions: read, exec, write, admin"`
	Owner  bool     `json:"owner" doc:"whether this is the owner of the machine"`
	Nodes  bool     `json:"nodes" doc:"whether the caller may manage the nodes of this daemon"`
	// Tenants is set for the owner of the machine and pages of the owner.
	Tenants bool `json:"tenants" doc:"whether the caller may list the tenants of this daemon"`
	// Machines is set by the server; it is about the daemon, not the caller.
	Machines bool `json:"machines" doc:"whether self-hosted machines can connect to this daemon"`
}
