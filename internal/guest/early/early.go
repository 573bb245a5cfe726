// Package early turns a process that was started as a guest into one, while the
// program is still being initialised.
//
// An atoll binary that was built without `make build` embeds no guest and is its
// own; see package program. Such a binary carries a whole sandbox kernel, and
// initialising that costs time and memory that a guest does not need. Packages
// are initialised in the order of their import paths as soon as what they import
// is ready, so that this one, which imports little and whose path sorts before
// the kernel's, comes first. A program imports it for its effect.
package early

import (
	"os"

	"github.com/atoll-run/atoll/internal/guest/agent"
)

func init() {
	if agent.Asked(os.Args) {
		// Not on this goroutine, which is bound to its thread for as long as
		// initialisation lasts.
		go func() { os.Exit(agent.Main(os.Args)) }()
		select {}
	}
}
