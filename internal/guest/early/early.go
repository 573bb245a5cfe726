// Package early starts the guest while the program is still being initialised.
//
// An atoll binary that was built without `make build` embeds no guest and
// serves as its own; see package program. Such a binary contains a whole
// sandbox kernel, whose initialisation costs time and memory that a guest does
// not need. Go initialises packages in the order of their import paths as soon
// as their imports are ready. This package imports little and its path sorts
// before the kernel's, so it comes first. Import it for its side effect.
package early

import (
	"os"

	"github.com/atoll-run/atoll/internal/guest/agent"
)

func init() {
	if agent.Asked(os.Args) {
		// Not on this goroutine, which is locked to its thread during initialisation.
		go func() { os.Exit(agent.Main(os.Args)) }()
		select {}
	}
}
