// Command guest is a guest and nothing else. Tests use it where the guest must
// not be the test binary: as process 1 it changes all its threads, which a
// program linked with C, as under the race detector, cannot.
package main

import (
	"os"

	_ "github.com/atoll-run/atoll/internal/guest/early"
)

func main() { os.Exit(64) }
