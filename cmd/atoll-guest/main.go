// Command atoll-guest is the program that Atoll runs inside a sandbox: process 1
// in its own sandboxes, and an ordinary process in those of another service.
// `make build` embeds it in atoll; see package internal/guest/program.
package main

import (
	"fmt"
	"os"

	"github.com/atoll-run/atoll/internal/guest/agent"
)

func main() {
	if !agent.Asked(os.Args) {
		fmt.Fprintln(os.Stderr, "atoll-guest: Atoll starts this program inside its sandboxes. It is of no use on its own.")
		os.Exit(64)
	}
	os.Exit(agent.Main(os.Args))
}
